"""The doctor: what it finds here, how it prints it, what it says of things that are missing or broken, and ranks."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import tightrope as tr
from tightrope.cli.machine import print_report
from tightrope.output import format_bytes, format_seconds
from tightrope.processes import ProcessResult
from tightrope.tools.doctor import Check, CheckResult, checks, devices, machine, run_check
from tightrope.tools.doctor.devices import MESSAGES, RankReport

METADATA = """\
Metadata-Version: 2.4
Name: tightrope
Version: {version}
Provides-Extra: atari
Provides-Extra: unheard-of
Requires-Dist: torch>=2.9
Requires-Dist: numpy>=1.26; python_version > "3"
Requires-Dist: winonly; sys_platform == "win32"
Requires-Dist: ale-py>=0.11; extra == "atari"
Requires-Dist: no-such-package>=3; extra == "unheard-of"
"""


@pytest.fixture(autouse=True)
def fresh_requirements() -> Iterator[None]:
    machine.requirements.cache_clear()
    yield
    machine.requirements.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that a version of the package is installed."""

    def install_version(version: str) -> None:
        folder = tmp_path / f"tightrope-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA.format(version=version))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install_version


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def uninstall(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a package is not installed."""
    real = metadata.version
    missing = raises(metadata.PackageNotFoundError(package))
    monkeypatch.setattr(metadata, "version", lambda name: (missing if name == package else real)(name))


# the command ------------------------------------------------------------------------------------------------------------


def test_every_check_has_a_result_here_and_none_fails(tightrope: Callable[..., Any]) -> None:
    done = tightrope("doctor --quick --json --device cpu")
    report = json.loads(done.out)
    assert (done.code, report["works"], report["tightrope"]) == (0, True, tr.__version__)
    parts = {"versions", "extras", "machine", "devices", "pictures", "training"}
    assert {finding["part"] for finding in report["findings"]} == parts
    for finding in report["findings"]:
        assert finding.keys() == {"part", "name", "words", "verdict", "fix", "facts"}
        assert finding["words"]
        assert "\n" not in finding["words"] + finding["fix"]
        assert "the check failed" not in finding["words"]
        assert finding["verdict"] != "broken"


def test_where_no_phase_can_be_trained_the_exit_code_is_1(
    tightrope: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "build", raises(RuntimeError("no kernel image")))
    done = tightrope("doctor --quick --device cpu")
    assert done.code == 1
    lines = done.out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")][:3] == ["versions", "extras", "machine"]
    assert lines[-1] == "no run works here: see training"
    assert "\x1b" not in done.out
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize(
    ("args", "word"), [("here", "here"), ("--qick", "Did you mean quick"), ("--device tpu", "tpu")]
)
def test_a_mistake_is_one_line(tightrope: Callable[..., Any], args: str, word: str) -> None:
    done = tightrope("doctor", args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert word in done.err


FOUND = [
    CheckResult("torch", "2.13.0", part="versions"),
    CheckResult("[atari]", "not installed", "absent", 'pip install "tightrope[atari]"', part="extras"),
    CheckResult("gpu", "none found", "absent", part="devices"),
    CheckResult("cpu", "a limit of 1, " + "at some length " * 10, "warning", "--threads 1", part="machine"),
]


def as_checks(results: list[CheckResult]) -> list[Check]:
    return [Check(result.part, result.name, lambda result=result: result) for result in results]


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_terminal_of_any_width_shows_every_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "0")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(as_checks(FOUND), width)
    out = capsys.readouterr().out
    assert "\x1b[" in out
    lines = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    everything = "".join("".join(lines).split())
    for result in FOUND:
        for words in (result.name, result.words, result.fix):
            assert "".join(words.split()) in everything


def test_the_end_lists_what_can_be_done_and_no_check_ends_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Check("disk", "disk", raises(OSError("the disk is on fire")))
    found = print_report([broken, *as_checks(FOUND)])
    assert [result.verdict for result in found] == ["warning", "ok", "absent", "absent", "warning"]
    out = capsys.readouterr().out
    end = out[out.index("what to look at") :]
    assert "the disk is on fire" in end
    assert "--threads 1" in end
    assert 'pip install "tightrope[atari]"' in end
    assert "gpu" not in end, "which needs nothing"
    assert out.splitlines()[-1] == "runs work here: tightrope train CartPole-v1"


class Panic(BaseException):
    """What a library written in another language may raise."""


@pytest.mark.parametrize("error", [RuntimeError("first\nsecond"), SystemExit(3), Panic("first line"), KeyError()])
def test_a_check_that_raises_is_a_result(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    def function() -> Iterator[CheckResult]:
        print("noise")
        yield CheckResult("before", "is kept")
        raise error

    before, failed = run_check(Check("part", "name", function, if_it_raises="broken"))
    assert (before.words, before.part) == ("is kept", "part")
    assert (failed.name, failed.part, failed.verdict) == ("name", "part", "broken")
    assert type(error).__name__ in failed.words
    assert "\n" not in failed.words
    assert capsys.readouterr() == ("", "noise\n")


def test_ctrl_c_ends_a_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_check(Check("part", "name", raises(KeyboardInterrupt())))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        *((format_bytes(n), w) for n, w in [(8, "8 B"), (40_000, "40 kB"), (64e6, "64 MB"), (2.5e12, "2.5 TB")]),
        *((format_seconds(n), w) for n, w in [(12.34, "12.3 s"), (0.0021, "2.1 ms"), (3.1e-5, "31 us")]),
    ],
)
def test_sizes_and_times(shown: str, words: str) -> None:
    assert shown == words


# packages ---------------------------------------------------------------------------------------------------------------


def test_a_missing_package_comes_with_the_command_that_installs_its_extra(
    install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(machine.__version__)
    uninstall("ale-py", monkeypatch)
    names = ("atari", "unheard-of")
    assert [(r.name, r.verdict, r.fix) for r in machine.extras()] == [
        (f"[{name}]", "absent", f'pip install "tightrope[{name}]"') for name in names
    ]
    monkeypatch.setattr(metadata, "version", lambda name: "0.12.1")
    assert next(iter(machine.extras())) == CheckResult("[atari]", "ale-py 0.12.1", facts={"ale-py": "0.12.1"})


def test_from_a_checkout_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "metadata", raises(metadata.PackageNotFoundError("tightrope")))
    for name in ("tightrope", "wandb"):
        uninstall(name, monkeypatch)
    fixes = {result.name: result.fix for result in machine.extras()}
    assert fixes["[wandb]"] == f'pip install -e "{machine.ROOT}[wandb]"'
    assert {"[atari]", "[mujoco]", "[dev]"} <= fixes.keys()


@pytest.mark.parametrize(("extra", "packages"), [("mujoco", {"gymnasium", "mujoco"}), ("dev", {"onnx"})])
def test_extras_of_other_packages_and_of_our_own_are_followed(extra: str, packages: set[str]) -> None:
    assert packages <= {requirement.name for requirement in machine.expand_extras(machine.requirements()[extra])}


def test_what_is_required_and_too_old(install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine.__version__)
    monkeypatch.setattr(metadata, "version", lambda name: {"torch": "2.8.0+cu126"}.get(name, "9"))
    *_, old, rest = machine.versions()
    assert (old.name, rest.name) == ("torch", "required"), "what is for other systems is not required"
    assert (old.verdict, old.words) == ("warning", "torch 2.8.0+cu126 is not >=2.9")
    assert old.fix == 'pip install "torch>=2.9"'


def test_an_installation_older_than_the_code_is_a_warning(install: Callable[[str], None]) -> None:
    install("0.0.1")
    result = next(machine.versions())
    assert result.verdict == "warning"
    assert "installed as 0.0.1" in result.words
    assert "pip install" in result.fix


# the machine ------------------------------------------------------------------------------------------------------------

OLD_CPU = {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "cpu", "memory"),
    [
        ({}, None, None),
        (OLD_CPU, 1.5, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),  # that is no limit
        ({"cpu.max": "max 100000", "memory.max": "2000000", **OLD_CPU}, 1.5, 2_000_000),
        ({"cpu.max": "50000 100000", **OLD_CPU}, 0.5, None),
    ],
)
def test_limits_of_a_container_are_read_in_both_forms(
    files: dict[str, str], cpu: float | None, memory: int | None, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert (machine.cpu_limit(tmp_path), machine.memory_limit(tmp_path)) == (cpu, memory)


def test_cores_that_a_container_may_not_use_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for module in (machine, import_module("tightrope.engine.threads")):  # which has a class of its name beside it
        monkeypatch.setattr(module, "cpu_limit", lambda: 2.5)
    result = machine.check_cpu()
    assert result.verdict == "ok"
    assert "2 cores to use of 16, by a limit of 2.5" in result.words


def test_a_directory_for_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = machine.disk(tmp_path)
    assert result.verdict == "ok"
    assert result.facts["free"] > 0
    assert list(tmp_path.iterdir()) == []
    result = machine.disk(tmp_path / "gone")
    assert (result.verdict, "--run-dir" in result.fix) == ("broken", True)
    monkeypatch.setattr(machine, "has_locks", lambda path: False)
    result = machine.disk(tmp_path)
    assert (result.verdict, "without locks" in result.words) == ("warning", True)
    monkeypatch.setattr(machine, "LOW_DISK", 1e30)
    assert machine.disk(tmp_path).fix.startswith("make room")


def test_an_encoder_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Video", raises(ImportError("No module named 'av'")))
    result = machine.encoder()
    assert (result.verdict, result.fix) == ("warning", "pip install av opencv-python-headless")


def test_an_opengl_that_fails_is_a_warning_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "installed_version", lambda name: "4.0.0")
    monkeypatch.setattr(machine.pictures, "choose_opengl", lambda: None)
    monkeypatch.setattr(machine, "RENDER", "raise ImportError('Unable to load EGL library')")
    result = machine.rendering()
    assert (result.verdict, result.fix.startswith("apt install libegl1")) == ("warning", True)


# devices ----------------------------------------------------------------------------------------------------------------


def test_training_that_changes_nothing_means_that_no_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = replace(devices.ALGORITHMS["ppo"], loop=lambda state, config: iter(()))
    monkeypatch.setitem(devices.ALGORITHMS, "ppo", idle)
    result = devices.training("cpu")
    assert (result.verdict, "changed by 0" in result.words) == ("broken", True)


def test_a_device_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [r for check in checks("cuda", quick=True) if check.part == "devices" for r in run_check(check)]
    assert [result.name for result in found if result.verdict == "broken"] == ["device"]


@pytest.mark.parametrize(
    ("built_for", "hidden", "fix"),
    [(None, None, "pip install --force-reinstall torch"), ("12.8", None, "nvidia-smi"), ("12.8", "", "unset CUDA")],
)
def test_a_gpu_that_torch_cannot_use(
    built_for: str | None, hidden: str | None, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 14 2025")
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    (result,) = devices.gpus()
    assert devices.driver_version() == "570.86.15"
    assert (result.verdict, result.fix.startswith(fix)) == ("warning", True)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("InductorError: InvalidCxxCompiler: No working C++ compiler", devices.COMPILE_FIXES["InvalidCxxCompiler"]),
        ("fatal error: Python.h: No such file or directory", "apt install python3-dev"),
        ("RuntimeError: Cannot find a working triton installation", "pip install triton"),
        ("something else", "train without"),
    ],
)
def test_a_compilation_has_a_time_or_a_fix(error: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([ProcessResult(False, error, error), ProcessResult(True, "12.5", "")])
    monkeypatch.setattr(devices, "run_isolated", lambda *_, **__: next(results))
    failed, worked = (devices.compilation("cpu", quick=False) for _ in range(2))
    assert (failed.verdict, fix in failed.fix) == ("absent", True)
    assert worked.facts == {"works": True, "seconds": 12.5}
    assert "12.5 s" in worked.words


# ranks ------------------------------------------------------------------------------------------------------------------


def report(rank: int, **changes: Any) -> RankReport:
    versions = {"tightrope": "1", "torch": "2", "python": "3"} | changes.pop("versions", {})
    usual = dict(host="a", device="cpu", model="cpu", threads=1, cores=8, versions=versions, work=1e-3)
    return RankReport(**{"rank": rank, "sums": [1e-3] * len(MESSAGES), **usual, **changes})


GPU0 = dict(device="cuda:0", model="H200")


@pytest.mark.parametrize(
    ("several", "warnings"),
    [
        ([{}, {}], []),
        ([{}, {"versions": {"tightrope": "other"}}], ["tightrope: differs: 1 on rank 0, other on rank 1"]),
        ([GPU0, {"device": "cuda:1", "model": "A100"}], ["devices: differs: H200 on rank 0, A100 on rank 1"]),
        ([GPU0, {**GPU0, "host": "b"}], []),
        ([{}, {"work": 3e-3}, {}], ["rank 1: 3.0 times as slow as the others at the same work, and holds them up"]),
        ([{"work": 3e-3}, {}], ["rank 0: 3.0 times as slow as the others at the same work, and holds them up"]),
        ([{"cores": 1}, {"cores": 1}], ["cores: 2 ranks share 1 core of a"]),
    ],
)
def test_ranks_are_listed_and_compared(several: list[dict[str, Any]], warnings: list[str]) -> None:
    found = list(devices.compare_ranks([report(i, **changes) for i, changes in enumerate(several)]))
    assert [r.name for r in found if r.verdict == "ok"] == [f"rank {i}" for i in range(len(several))]
    assert [f"{r.name}: {r.words}" for r in found if r.verdict == "warning"] == warnings
    assert all(r.fix for r in found if r.verdict == "warning")


def test_bandwidths_follow_from_the_median_over_ranks() -> None:
    times = [1e-3, 2e-3, 2e-3, 4e-3]
    found = list(devices.all_reduces([report(i, sums=[t] * len(MESSAGES)) for i, t in enumerate(times)]))
    assert [result.facts["bytes"] for result in found] == [size for size, _, _ in MESSAGES]
    largest = found[-1]
    assert largest.facts["algorithm_bytes_per_second"] == pytest.approx(64e6 / 2e-3)
    assert largest.facts["bus_bytes_per_second"] == pytest.approx(64e6 / 2e-3 * 1.5)  # 2 (n - 1) / n
    assert "1 ms to 4 ms, slowest rank 3" in largest.words
    assert "/s" not in found[0].words, "a few bytes have no bandwidth"


def test_more_ranks_than_gpus_are_named_before_any_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert devices.too_many_ranks() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    result = devices.too_many_ranks()
    assert result is not None
    assert (result.verdict, "--nproc-per-node 2" in result.fix) == ("broken", True)


def test_two_ranks_give_one_report_with_what_passes_between_them(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(tr.__file__).parents[1])}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # by Gloo, whatever is there
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tightrope", "doctor"]
    done = subprocess.run(
        [sys.executable, *launch, "--quick", "--json"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by_part: dict[str, list[Any]] = {}
    for finding in report["findings"]:
        by_part.setdefault(finding["part"], []).append(finding)
    assert [f["name"] for f in by_part["ranks"] if f["verdict"] == "ok"] == ["rank 0", "rank 1"]
    assert [f["name"] for f in by_part["all-reduce"]] == ["8 B", "40 kB", "1 MB", "7 MB", "64 MB"]
    for finding in by_part["all-reduce"]:
        assert len(finding["facts"]["seconds"]) == 2
        assert min(finding["facts"]["seconds"]) > 0
        assert finding["facts"]["bus_bytes_per_second"] == pytest.approx(finding["facts"]["algorithm_bytes_per_second"])
    assert "training" in by_part


# on a GPU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_cuda_training_uses_graphs_and_something_tiny_compiles() -> None:
    found = {result.name: result for check in checks("cuda") for result in run_check(check)}
    assert (found["training"].facts["mode"], found["training"].verdict) == ("graph", "ok")
    assert found["cuda:0"].facts["total"] > 1e9
    assert found["compile"].facts["works"], found["compile"].words
    assert not [result for result in found.values() if "the check failed" in result.words]
