"""A replay gives what the function gives, for other numbers than those it was recorded with; some functions are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tightrope.recording import RecordedFunction, Recordings, Unrecordable
from tightrope.recording.call import call_of
from tightrope.recording.memory import Copies, owned

Function = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def replayed(function: Function, *shapes: tuple[int, ...], **options: Any) -> RecordedFunction:
    """The recording, after it has agreed with the function on three sets of numbers."""
    recording = RecordedFunction(function, [numbers(*shape, seed=i) for i, shape in enumerate(shapes)], **options)
    for seed in (10, 20, 30):
        given = [numbers(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
        expected = function(*[x.clone() for x in given])
        expected = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip(recording(*[x.numpy() for x in given]), expected, strict=True):
            found = torch.from_numpy(a)
            assert found.dtype == b.dtype
            assert found.shape == b.shape
            allowed = 0.0 if options.get("exact") else 1e-6 * (float(b.double().norm()) + 1)
            assert (found.double() - b.double()).norm() <= allowed
    return recording


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2).add_(1).clamp_(-1, 1)
    y[:, 0] = 3.0
    return y.sub_(x)


def filled(x: Tensor) -> Tensor:
    """Writes what it reads into something that was constant, after something else has read that."""
    room = torch.zeros(x.shape[0], 3)
    before = room + x[:, :1]
    room[:, 1] = x[:, 0]
    room += 1
    return room + before


def written_over(x: Tensor) -> Tensor:
    """Does one thing twice, and writes over one of the two results."""
    a, b = x.exp(), x.exp()
    a.add_(1)
    return a * b


KNOWN: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "arithmetic": (lambda x, y: (x * y - x / (y.abs() + 1) + 2 * x - (1 - y)) ** 2, ((5, 4), (5, 4))),
    "broadcast rows": (lambda x, y: x * y + y, ((512, 2), (512, 1))),
    "broadcast columns": (lambda x, y: (x - y) / (y.abs() + 1), ((700, 3), (3,))),
    "powers": (lambda x, y: x.abs() ** y + 2**x + x.abs() ** y[:1, :1], ((5, 4), (5, 4))),
    "comparisons": (lambda x, y: ((x > y) & (x < 1) | (y >= 0.5) | ~(x <= -1)).float(), ((9, 3), (9, 3))),
    "whole numbers": (lambda x: (x * 3).round().long() // 2 + (x > 0), ((7, 2),)),
    "choices": (lambda x, y: torch.where(x > 0, x, y).masked_fill(y > 1, -2.0), ((6, 3), (6, 3))),
    "joined": (lambda x, y: torch.cat([x, torch.stack([y, y * 2], 1)], 1), ((6, 3), (6,))),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(-1), x.mean(), x.cumsum(-1), (x > 0).sum(1)), ((6, 5),)),
    "many sums": (lambda x: (x.sum(0), x.sum(1), x.sum()), ((2000, 64),)),
    "categories": (lambda x: (x.softmax(-1), x.log_softmax(-1)), ((6, 3),)),
    "many categories": (lambda x: (x.softmax(-1), x.log_softmax(-1)), ((300, 20),)),
    "activations": (lambda x: (x.tanh(), x.relu(), x.sigmoid(), F.silu(x), F.gelu(x), F.elu(x)), ((6, 3),)),
    "small product": (lambda x, y: (x @ y.T, x.T @ x), ((64, 8), (16, 8))),
    "product in blocks": (lambda x, y: (x @ y.T, x.T @ x), ((256, 64), (64, 64))),
    "large product": (lambda x, y: (x @ y.T, x.T @ x), ((2048, 64), (64, 64))),
    "batches of products": (lambda x, y: torch.bmm(x, y), ((3, 4, 5), (3, 5, 2))),
    "views": (lambda x: x.reshape(3, 2, 4).transpose(0, 1)[1:, :, ::2].flatten() + x[:3, 0].repeat(2), ((6, 4),)),
    "in place": (in_place, ((6, 3),)),
    "constants that are written to": (filled, ((6, 3),)),
    "one result for two": (written_over, ((6, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("steady", [False, True])
def test_a_replay_gives_what_the_function_gives(name: str, steady: bool) -> None:
    function, shapes = KNOWN[name]
    replayed(function, *shapes, steady=steady)


@pytest.mark.parametrize("name", KNOWN)
def test_an_exact_one_gives_the_same_bits(name: str) -> None:
    function, shapes = KNOWN[name]
    replayed(function, *shapes, exact=True)


UNKNOWN: dict[str, Function] = {
    "one result": lambda x: torch.erfinv(x.tanh()) + 1,
    "several": lambda x: x.sort(-1)[0] * 2,
    "of another type": lambda x: x.argmax(-1) + 1,
    "written in place": lambda x: x.clone().cumsum_(0) * 2,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_operations_that_are_not_in_the_table_are_torch_calls(name: str) -> None:
    assert replayed(UNKNOWN[name], (6, 3)).unknown


OUTSIDE = torch.zeros(3)
LOOKS: dict[str, Function] = {
    "item": lambda x: x * x[0, 0].item(),
    "if": lambda x: x if x.sum() > 0 else -x,
    "float": lambda x: x * float(x.mean()),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "random": lambda x: x + torch.rand(3),
    "dropout": lambda x: F.dropout(x, 0.5),
    "writes outside": lambda x: OUTSIDE.add_(x[0]),
    "writes its input": lambda x: x.add_(1),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_function_that_looks_at_numbers_is_refused(name: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(Unrecordable):
        RecordedFunction(LOOKS[name], [numbers(6, 3)])
    assert torch.equal(torch.get_rng_state(), before)
    assert not OUTSIDE.any()


def test_a_banned_tensor_may_not_be_read() -> None:
    clock = torch.ones(3)
    with pytest.raises(Unrecordable):
        RecordedFunction(lambda x: x + clock, [numbers(3)], banned=[clock])


@pytest.mark.parametrize("steady", [False, True])
def test_tensors_from_outside_are_read_where_they_are(steady: bool) -> None:
    scale = torch.ones(4)
    recording = RecordedFunction(lambda x: x * (scale.exp() + 1), [numbers(6, 4)], steady=steady)
    scale.fill_(0.5)
    if steady:
        recording.refresh()
    (found,) = recording(numbers(6, 4).numpy())
    torch.testing.assert_close(torch.from_numpy(found), numbers(6, 4) * (scale.exp() + 1))


def test_gradients_are_written_where_they_belong_without_a_copy() -> None:
    weight = numbers(3, 4).requires_grad_()
    flat = torch.zeros(12)

    def function(x: Tensor) -> Tensor:
        total = (x @ weight.T).tanh().sum()
        torch.cat([torch.autograd.grad(total, weight)[0].flatten()], out=flat)
        return total.detach()

    recording = RecordedFunction(function, [numbers(6, 4)], writes=[flat])
    assert not any(call.function is np.copyto for call in recording.calls[3:])
    function(numbers(6, 4, seed=7))
    expected = flat.clone()
    flat.fill_(torch.nan)
    recording(numbers(6, 4, seed=7).numpy())
    torch.testing.assert_close(flat, expected)


def test_an_operation_is_done_once_and_what_nobody_reads_not_at_all() -> None:
    def function(x: Tensor) -> Tensor:
        x.cos()
        return x.exp() + x.exp() * 2

    assert len(replayed(function, (6, 3)).calls) == 3


def test_memory_is_used_again() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x + 1).tanh()
        return x

    recording = replayed(function, (6, 3))
    assert len({x.ctypes.data for call in recording.calls for x in call.operands if x.ndim}) <= 3


@pytest.mark.parametrize("compiled", [False, True])
def test_results_are_written_where_they_are_stacked_and_joined(compiled: bool) -> None:
    """Each step of a recurrence is written to its place among all, and its gradient to its place in that of the inputs."""
    weight = numbers(6, 6, seed=4).requires_grad_()

    def function(x: Tensor, state: Tensor) -> list[Tensor]:
        x, found = x.detach().requires_grad_(), []
        for step in x.unbind(1):
            left, right = torch.tanh(step + (0.9 * state) @ weight).chunk(2, 1)
            state = torch.cat([left * right, left - right], 1)
            found.append(state)
        steps = torch.stack(found, 1)
        return [steps.detach(), *torch.autograd.grad(steps.square().sum(), [x, weight])]

    inputs = numbers(5, 4, 6, seed=1), numbers(5, 6, seed=2)
    recording = RecordedFunction(function, inputs, compiled=compiled)
    copied = [each for each in recording.calls if each.function is np.copyto]
    assert not [each for each in copied if each.args[0].ndim == 2]  # of a step
    other = numbers(5, 4, 6, seed=8), numbers(5, 6, seed=9)
    for mine, theirs in zip(recording(*(x.numpy() for x in other)), function(*other), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine.copy()), theirs, rtol=1e-4, atol=1e-4)


def float_array(*shape: int) -> Any:
    return numbers(*shape).numpy()


def test_a_copy_stays_where_its_target_or_its_source_is_needed_otherwise() -> None:
    x, y, part, whole = float_array(4, 6), float_array(4, 6), float_array(4, 3), float_array(4, 6)
    left, copy_of_part = whole[:, :3], call_of(np.copyto, whole[:, :3], part, "unsafe", written=0)
    made, used = call_of(np.negative, y[:, :3], part), call_of(np.negative, whole, y)
    for calls, pinned, kept in [
        ([made, copy_of_part, used], [y], 2),
        ([made, copy_of_part, used], [y, part], 3),  # the result of another call
        ([made, used, copy_of_part], [y, whole], 3),  # the target is read before
        ([made, copy_of_part, call_of(np.negative, part, x[:, :3])], [x, whole], 3),  # the source is used later
        ([copy_of_part, used], [y], 2),  # the source was there before
        ([call_of(np.negative, left, part), copy_of_part], [whole], 2),  # it is made from what it is copied to
        ([call_of(np.dot, y, x.T[:, :3], part), copy_of_part], [whole], 2),  # products fill contiguous memory only
    ]:
        assert len(Copies(calls, pinned).result()) == kept
    other = whole[:, 3:]  # lies between the rows of the target, and shares nothing with it
    assert len(Copies([made, call_of(np.negative, y[:, 3:], other), copy_of_part], [whole]).result()) == 2
    transposed = call_of(np.copyto, float_array(3, 4).T, part, "unsafe", written=0)
    (turned,) = Copies([made, transposed], [transposed.args[0]]).result()
    assert turned.args[-1].strides == transposed.args[0].strides
    assert owned(turned.args[-1]) == owned(transposed.args[0])


def test_copies_of_recordings_begin_empty() -> None:
    kept = Recordings(a=1)
    assert not copy.deepcopy(kept)
    assert kept.find("a", lambda: 2) == 1
    kept.renew("other settings")
    assert kept.find("a", lambda: 2) == 2


def test_a_large_product_of_a_part_of_an_input_follows_the_input():
    """Such a product runs in torch, on a view of the input that begins within its memory."""
    weight = torch.randn(64, 192)
    first, second = torch.randn(64, 69), torch.randn(64, 69)
    replay = RecordedFunction(lambda x: (x[:, 5:] @ weight,), (first,), steady=True)
    (found,) = replay(second.numpy())
    torch.testing.assert_close(torch.from_numpy(found.copy()), second[:, 5:] @ weight, rtol=1e-4, atol=1e-4)
