"""Recordings as C code: the functions, the calls that stay in Python, the cache, and machines without a working compiler."""

from __future__ import annotations

import ctypes
import math
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import PythonProcess
from test_recording import KNOWN, UNKNOWN, numbers, replayed
from torch import Tensor
from torch.nn.functional import one_hot

from tightrope.recording import NotCompiled, RecordedFunction, Unrecordable, why_not_compiled
from tightrope.recording.call import call_of
from tightrope.recording.compiler import (
    FLAGS,
    cache_directory,
    cached,
    compile_text,
    compiled,
    compiler_command,
    stored,
)
from tightrope.recording.emitted import CFunction, Machine, emitted, source, sums_in_products
from tightrope.recording.memory import MemoryPlan, owned
from tightrope.recording.reductions import product_and_sum

TEXT = "int f(int x) {{ return x + {}; }}\n"
HEADER = Path(sys.modules[RecordedFunction.__module__].__file__ or "").with_name("prelude.h")


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize(
    ("name", "exact"),
    [*((name, False) for name in KNOWN), ("arithmetic", True), ("choices", True), ("activations", True)],
)
def test_compiled_calls_give_what_the_function_gives(name: str, exact: bool) -> None:
    function, shapes = KNOWN[name]
    assert replayed(function, *shapes, compiled=True, exact=exact).machine is not None


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize("name", UNKNOWN)
def test_operations_that_are_not_in_the_table_stay_torch_calls(name: str) -> None:
    recording = replayed(UNKNOWN[name], (6, 3), compiled=True)
    assert recording.machine is not None
    assert recording.function is None


PRODUCTS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a b": lambda a, b: a @ b,
    "a' b": lambda a, b: a.T.contiguous().T @ b,
    "a b'": lambda a, b: a @ b.T.contiguous().T,
    "a' b'": lambda a, b: a.T.contiguous().T @ b.T.contiguous().T,
    "columns of a": lambda a, b: a[:, ::2] @ b[: (b.shape[0] + 1) // 2],
    "a b + c": lambda a, b: (torch.addmm(b[0], a, b), a @ b + (a @ b).tanh(), b.T @ a.T + b.T[:, :1]),
    "sums": lambda a, b: (a.sum(0), b.sum(1), a.mean()),
}


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_every_size_and_layout(name: str) -> None:
    """Sizes around the lengths of vectors and blocks, in one recording: each compilation takes a while. Then with factors of
    mostly zeros, which products leave out, and with numbers that are not finite."""
    sizes = [
        (1, 1, 1),
        (1, 7, 1),
        (1, 300, 3),
        (5, 1, 9),
        (7, 3, 2),
        (13, 64, 1),
        (6, 16, 64),
        (65, 17, 31),
        (33, 520, 70),
    ]
    given = [numbers(*shape, seed=i) for i, (m, k, n) in enumerate(sizes) for shape in ((m, k), (k, n))]

    def function(*x: Tensor) -> list[object]:
        return [PRODUCTS[name](a, b) for a, b in zip(x[::2], x[1::2], strict=True)]

    found = RecordedFunction(function, [torch.zeros_like(x) for x in given], compiled=True)
    assert found.machine is not None
    sparse = [one_hot(x.argmax(1), x.shape[1]).float() for x in given]
    broken = [x.clone() for x in sparse]
    for x in broken:
        x[-1, -1], x[0, 0] = torch.nan, torch.inf
    mixed = [[y if i % 2 == k else x for i, (x, y) in enumerate(zip(given, sparse, strict=True))] for k in (0, 1)]
    for values in (given, sparse, *mixed, broken):
        wanted = [y for x in function(*values) for y in (x if isinstance(x, tuple) else (x,))]
        for mine, theirs in zip(found(*[x.numpy() for x in values]), wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(mine), theirs, rtol=2e-5, atol=5e-5, equal_nan=True)


@pytest.mark.usefixtures("c_compiler")
def test_large_products_and_results_are_compiled() -> None:
    """NumPy calls would be no faster than torch's there; compiled loops and products are."""

    def function(x: Tensor) -> Tensor:
        return ((x @ x.T + 1) * 2).abs() - 3

    x = torch.rand(4500, 8)  # the five results take 400 MB
    with pytest.raises(Unrecordable, match="too large"):
        RecordedFunction(function, [x])
    recording = RecordedFunction(function, [x], compiled=True)
    assert recording.function is not None
    torch.testing.assert_close(torch.from_numpy(recording(x.numpy())[0]), function(x))
    square = torch.rand(300, 300)  # a product above the size from which NumPy calls leave it to torch
    recording = RecordedFunction(lambda x: x @ x, [square], compiled=True)
    assert recording.function is not None
    torch.testing.assert_close(torch.from_numpy(recording(square.numpy())[0]), square @ square)


@pytest.mark.usefixtures("c_compiler")
def test_the_gradient_of_a_weight_used_at_each_step_is_summed_in_its_products() -> None:
    """And the weight is turned once for all steps, and not once for each."""
    weight = numbers(24, 8, seed=9).requires_grad_()
    written = torch.zeros_like(weight)

    def gradient(x: Tensor) -> Tensor:
        state = torch.zeros(40, 8)
        for row in x.unbind(1):
            state = (row + torch.nn.functional.linear(state, weight)[:, :8]).tanh()
        (grad,) = torch.autograd.grad((state * state).sum(), [weight])
        written.copy_(grad)
        return grad

    x = numbers(40, 6, 8)
    found = RecordedFunction(gradient, [torch.zeros_like(x)], writes=[written], compiled=True)
    names = [getattr(each.function, "__name__", "") for each in found.calls]
    assert found.machine is not None
    assert names.count("product_and_sum") >= 4  # of the gradients of six steps
    turned = [each for each in found.calls if each.function is np.copyto and each.args[1].shape == (8, 24)]
    assert len(turned) == 1
    expected = gradient(x).clone()
    found(x.numpy())
    torch.testing.assert_close(written, expected, rtol=1e-4, atol=1e-4)


def test_a_sum_stays_by_itself_where_joining_it_would_change_what_is_read() -> None:
    """The product is read twice, its factor is overwritten before the sum, or the sum overlaps with what is added."""
    a, b, c = (numbers(8, 8, seed=i).numpy() for i in range(3))
    product, out, other = (np.empty((8, 8), np.float32) for _ in range(3))
    dot, add = call_of(np.dot, a, b, product), call_of(np.add, product, c, out)
    assert [x.function for x in sums_in_products([dot, add])] == [product_and_sum]
    for calls in (
        [dot, add, call_of(np.tanh, product, other)],
        [dot, call_of(np.copyto, a, c, written=0), add],
        [dot, call_of(np.multiply, b, b, c), add],
        [dot, call_of(np.add, product, c[::-1], c)],
        [call_of(np.copyto, product, c, written=0), dot, add],
        [call_of(np.dot, a, b, a), call_of(np.add, a, c, a)],
    ):
        assert sums_in_products(calls) == calls
    assert sums_in_products([dot, add], {owned(product).start}) == [dot, add]  # others read the product


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize(
    ("name", "units"), [("exp", 2.0), ("expm1", 2.0), ("log", 2.0), ("log1p", 2.5), ("tanh", 2.0), ("erf", 3.0)]
)
def test_elementwise_functions_are_those_of_float64(name: str, units: float) -> None:
    """Over all floats, in steps, with infinities, NaN, and numbers next to 0."""
    loop = f"void f(const float *x, float *y, long n) {{ for (long i = 0; i < n; i++) y[i] = {name}_f4(x[i]); }}"
    function = compiled(HEADER.read_text() + loop, exact=False).f
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.72283, 88.72284, -103.97, -87.4, 1, -1, 9.5, 0.625]
    bits = np.arange(0, 1 << 32, 4999, np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.array(edges, np.float32)])
    y = np.empty_like(x)
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(len(x)))
    with np.errstate(all="ignore"):
        exact = (np.vectorize(math.erf) if name == "erf" else getattr(np, name))(x.astype(np.float64))
        rounded = exact.astype(np.float32)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~finite], rounded[~finite])
        distance = np.abs(y.astype(np.float64) - exact)[finite] / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert distance.max() <= units


@pytest.mark.usefixtures("c_compiler")
def test_numbers_that_are_not_finite_are_those_of_torch() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        parts = x.clamp(-1, 1), torch.maximum(x, y), torch.minimum(x, y), x.relu(), x.abs(), x.sign(), x > y, x != x
        return *parts, x * y, x / y, torch.where(x > 0, x, y), x.tanh(), x.exp(), (x * 0).sum(), x.softmax(0)

    odd = torch.tensor([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -2.0])
    x, y = (z.flatten() for z in torch.meshgrid(odd, odd, indexing="ij"))
    recording = RecordedFunction(function, [torch.ones(64), torch.ones(64)], compiled=True)
    assert recording.function is not None
    for mine, theirs in zip(recording(x.numpy(), y.numpy()), function(x, y), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), theirs, equal_nan=True, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("c_compiler")
def test_one_loop_computes_what_follows_each_other() -> None:
    """And a result that overlaps with what the loop reads is not computed in it."""

    def shifted(x: Tensor) -> Tensor:
        y = x * 2 + 1
        y = y.tanh() - x
        z = y.clone()
        z[1:] = z[:-1] * y[1:]
        return z

    recording = replayed(shifted, (50,), compiled=True)
    loops: dict[str, str] = {}
    (function,) = [part for part in emitted(recording.calls, loops) if not isinstance(part, tuple)]
    assert 1 < source([function], loops).count("INDEPENDENT for") < len(recording.calls)


@pytest.mark.usefixtures("c_compiler")
def test_what_only_its_own_loop_reads_is_not_stored() -> None:
    x, y, out = (numbers(40, seed=seed).numpy() for seed in range(3))
    middle, kept, total = numbers(40).numpy(), numbers(40).numpy(), np.zeros(1, np.float32)
    calls = [
        call_of(np.tanh, x, middle),
        call_of(np.multiply, middle, y, kept),
        call_of(np.add, kept, middle, out),
        call_of(np.dot, kept.reshape(1, -1), y, total),
    ]
    plan = MemoryPlan(calls, [x, y, out, total])
    calls, last_uses = plan.result(), plan.last_uses()
    assert last_uses == [2, 3, 4, 4]
    loops: dict[str, str] = {}
    machine = Machine([calls], [last_uses], exact=False)
    (function,) = emitted(calls, loops, last_uses)
    assert [text.count("] = y") for text in loops] == [2]  # of three results in the loop
    middle = calls[0].args[1]
    middle[:] = 7
    machine.runs[0]()
    assert (middle == 7).all()
    np.testing.assert_allclose(out, np.tanh(x) * y + np.tanh(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, [(np.tanh(x) * y) @ y], rtol=1e-4)
    assert isinstance(function, CFunction)


@pytest.mark.usefixtures("c_compiler")
def test_the_text_holds_no_addresses() -> None:
    def text() -> str:
        weight = numbers(5, 4)
        calls = RecordedFunction(lambda x: ((x @ weight.T).tanh() * 2, x.sum(0)), [numbers(3, 4)]).calls
        loops: dict[str, str] = {}
        return source([x for x in emitted(calls, loops) if not isinstance(x, tuple)], loops)

    kept = [numbers(1000) for _ in range(3)]
    assert text() == text()
    assert len(kept) == 3


# the compiler and its cache ---------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, c_compiler: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tightrope" / "compiled"


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def test_a_text_is_compiled_once_into_a_private_directory(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(TEXT.format(1), exact=False).f(1) == 2
    (library,) = libraries(fresh_cache)
    assert stat.S_IMODE(fresh_cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(library.stat().st_mode) & 0o077 == 0
    written = library.stat().st_mtime_ns, library.stat().st_ino
    assert compiled(TEXT.format(1), exact=False).f(2) == 3
    assert (library.stat().st_mtime_ns, library.stat().st_ino) == written
    compiled(TEXT.format(2), exact=False)
    assert len(libraries(fresh_cache)) == 2
    assert len(list(fresh_cache.iterdir())) == 4  # nothing else is left


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone", "another"])
def test_a_damaged_library_is_not_loaded(fresh_cache: Path, damage: str) -> None:
    """Loading it would end the process."""
    folder = cache_directory()
    content = compile_text(folder, (*compiler_command(), *FLAGS), TEXT.format(5))
    library = stored(folder, "key", content)
    assert cached(folder, "key") == library
    if damage == "gone":
        library.unlink()
    elif damage == "another":
        (folder / "key").write_text("../" * 8 + "bin/sh")
    else:
        harm = {"cut": content[:2000], "changed": content[:-1] + b"?", "empty": b""}
        library.write_bytes(harm[damage])
    assert cached(folder, "key") is None
    assert stored(folder, "key", content) == cached(folder, "key")


def in_processes(count: int, text: str) -> list[str]:
    code = f"from tightrope.recording.compiler import compiled; print(compiled({text!r}, False).f(1))"
    return [process.communicate()[0].strip() for process in [PythonProcess("-c", code) for _ in range(count)]]


def test_several_processes_compile_one_text_at_once_and_again_after_damage(fresh_cache: Path) -> None:
    assert in_processes(2, TEXT.format(7)) == ["8", "8"]
    (library,) = libraries(fresh_cache)
    library.write_bytes(library.read_bytes()[:3000])
    assert in_processes(1, TEXT.format(7)) == ["8"]


def test_a_directory_that_others_can_write_is_refused(fresh_cache: Path) -> None:
    fresh_cache.mkdir(parents=True)
    fresh_cache.chmod(0o777)
    with pytest.raises(NotCompiled, match=r"other users can write to the cache .*: chmod 700"):
        cache_directory()
    fresh_cache.chmod(0o700)
    cache_directory()
    if os.geteuid() == 0:
        os.chown(fresh_cache, 12345, 12345)
        with pytest.raises(NotCompiled, match="belongs to another user"):
            cache_directory()


def test_a_link_to_a_directory_is_refused(fresh_cache: Path, tmp_path: Path) -> None:
    fresh_cache.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    fresh_cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotCompiled, match="is not a directory"):
        cache_directory()


def test_numpy_replays_where_the_cache_cannot_be_written(fresh_cache: Path) -> None:
    fresh_cache.parent.mkdir(parents=True)
    fresh_cache.write_text("a file is in the way")
    assert why_not_compiled() is None  # it was compiled before, for this process
    recording = replayed(KNOWN["arithmetic"][0], *KNOWN["arithmetic"][1], compiled=True)
    assert recording.machine is None


@pytest.mark.parametrize("command", ["/bin/false", "/bin/true", "/nowhere/cc", "off", "'"])
def test_numpy_replays_without_a_working_compiler(
    command: str, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_COMPILER", command)
    recording = replayed(KNOWN["small product"][0], *KNOWN["small product"][1], compiled=True)
    assert recording.machine is None
    with pytest.raises(NotCompiled):
        compiled(TEXT.format(9), exact=False)


def test_the_compiler_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIGHTROPE_COMPILER", raising=False)
    monkeypatch.setenv("CC", "sh -c")
    assert compiler_command()[1:] == ["-c"]
    assert compiler_command()[0].endswith("/sh")
    monkeypatch.setenv("TIGHTROPE_COMPILER", "env")
    assert compiler_command()[0].endswith("/env")
    assert "-ffast-math" not in FLAGS  # numbers that are not finite would be lost
