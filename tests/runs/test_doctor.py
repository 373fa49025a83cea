"""The doctor: what it finds here, what it says of things that are missing or broken, and that no check can end it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tightrope.runs.doctor import (
    Check,
    Finding,
    checks,
    devices,
    findings_of,
    machine,
    packages,
    peers,
    pictures,
    together,
)
from tightrope.runs.doctor.findings import in_bytes, in_seconds
from tightrope.runs.doctor.together import MESSAGES, Rank
from tightrope.runs.doctor.trials import Trial, trial

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
def fresh_metadata() -> Iterator[None]:
    packages.needs.cache_clear()
    yield
    packages.needs.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that the package is installed."""

    def as_version(version: str) -> None:
        folder = tmp_path / f"tightrope-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA.format(version=version))
        monkeypatch.syspath_prepend(str(tmp_path))

    return as_version


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a package is not there."""
    real = metadata.version

    def version(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)


def named(found: Any, name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)


# all of it ------------------------------------------------------------------------------------------------------------


def test_every_check_finds_something_here_and_none_fails() -> None:
    found = [finding for check in checks("cpu", quick=True) for finding in findings_of(check)]
    assert {finding.part for finding in found} == {"versions", "extras", "machine", "devices", "pictures", "training"}
    for finding in found:
        assert finding.words
        assert "\n" not in finding.words + finding.fix
        assert "cannot be looked at" not in finding.words
        assert finding.verdict != "broken"
    assert named(found, "training").facts["device"] == "cpu"
    json.dumps([finding.as_record() for finding in found], allow_nan=False)


class Panic(BaseException):
    """What a library written in another language may raise."""


@pytest.mark.parametrize("error", [RuntimeError("first line\nsecond"), SystemExit(3), Panic("first line"), KeyError()])
def test_a_check_that_fails_is_a_finding(error: BaseException) -> None:
    def look() -> Iterator[Finding]:
        yield Finding("before", "is kept")
        raise error

    before, failed = findings_of(Check("part", "name", look, if_it_fails="broken"))
    assert (before.words, before.part) == ("is kept", "part")
    assert (failed.name, failed.part, failed.verdict) == ("name", "part", "broken")
    assert type(error).__name__ in failed.words
    assert "second" not in failed.words


def test_an_interrupted_check_is_not_a_finding() -> None:
    def look() -> list[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        findings_of(Check("part", "name", look))


def test_what_a_check_prints_stays_out_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    findings_of(Check("part", "name", lambda: [Finding("a", "b")] if print("noise") is None else []))
    assert capsys.readouterr() == ("", "noise\n")


@pytest.mark.parametrize(("count", "words"), [(8, "8 B"), (40_000, "40 kB"), (64e6, "64 MB"), (2.5e12, "2.5 TB")])
def test_sizes_in_words(count: float, words: str) -> None:
    assert in_bytes(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(12.34, "12.3 s"), (0.0021, "2.1 ms"), (3.1e-5, "31 us")])
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_seconds(seconds) == words


# packages -------------------------------------------------------------------------------------------------------------


def test_a_missing_package_comes_with_the_command_that_installs_its_extra(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages.__version__)
    without("ale-py", monkeypatch)
    found = list(packages.extras())
    assert [finding.name for finding in found] == ["[atari]", "[unheard-of]"]
    assert [finding.fix for finding in found] == [
        'pip install "tightrope[atari]"',
        'pip install "tightrope[unheard-of]"',
    ]
    assert {finding.verdict for finding in found} == {"absent"}


def test_an_extra_that_is_there_shows_its_versions(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(packages.__version__)
    monkeypatch.setattr(metadata, "version", lambda name: "0.12.1")
    assert named(packages.extras(), "[atari]") == Finding("[atari]", "ale-py 0.12.1", facts={"ale-py": "0.12.1"})


def test_from_a_checkout_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", nowhere)
    without("wandb", monkeypatch)
    assert named(packages.extras(), "[wandb]").fix == f'pip install -e "{packages.ROOT}[wandb]"'
    assert {"atari", "mujoco", "dev"} <= packages.needs().extras.keys()


def test_extras_of_other_packages_are_followed() -> None:
    mujoco = {requirement.name for requirement in packages.packages_of(packages.needs().extras["mujoco"])}
    assert {"gymnasium", "mujoco"} <= mujoco


def test_extras_made_of_extras_are_followed() -> None:
    assert "onnx" in {requirement.name for requirement in packages.packages_of(packages.needs().extras["dev"])}


def test_what_is_required_and_missing_or_too_old(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(packages.__version__)
    monkeypatch.setattr(metadata, "version", lambda name: {"torch": "2.8.0+cu126"}.get(name, "9"))
    found = list(packages.required())
    assert [finding.name for finding in found] == ["torch", "required"], "what is for other systems is not asked for"
    assert found[0].verdict == "warning"
    assert found[0].words == "torch 2.8.0+cu126 is not >=2.9"
    assert found[0].fix == 'pip install "torch>=2.9"'


def test_an_installation_older_than_the_code_is_named(install: Any) -> None:
    install("0.0.1")
    (finding,) = packages.own_version()
    assert finding.verdict == "warning"
    assert "installed as 0.0.1" in finding.words
    assert "pip install" in finding.fix


# the machine ----------------------------------------------------------------------------------------------------------


def test_limits_of_a_container_are_read_in_both_forms(tmp_path: Path) -> None:
    assert machine.cpu_limit(tmp_path) is None
    assert machine.memory_limit(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert machine.cpu_limit(tmp_path) == 1.5
    assert machine.memory_limit(tmp_path) is None, "that is none"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("2000000\n")
    assert machine.cpu_limit(tmp_path) == 1.5
    assert machine.memory_limit(tmp_path) == 2_000_000
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.cpu_limit(tmp_path) == 0.5


def test_cores_that_a_container_may_not_use_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for module in (machine, import_module("tightrope.engine.threads")):  # which has a class of its name beside it
        monkeypatch.setattr(module, "cpu_limit", lambda: 2.5)
    (finding,) = machine.processor()
    assert finding.verdict == "ok"
    assert "2 cores to use of 16, by a limit of 2.5" in finding.words


def test_a_directory_that_runs_can_live_in(tmp_path: Path) -> None:
    (finding,) = machine.disk(tmp_path)
    assert finding.verdict == "ok"
    assert finding.facts["free"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_breaks_a_plain_run(tmp_path: Path) -> None:
    (finding,) = machine.disk(tmp_path / "gone")
    assert finding.verdict == "broken"
    assert "--run-dir" in finding.fix


def test_little_room_and_no_locks_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "lock_works", lambda path: False)
    (finding,) = machine.disk(tmp_path)
    assert (finding.verdict, "without locks" in finding.words) == ("warning", True)
    monkeypatch.setattr(machine, "LITTLE", 1e30)
    (finding,) = machine.disk(tmp_path)
    assert finding.fix.startswith("make room")


# what is tried --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "worked", "said"),
    [
        ("print('a'); print('b')", True, "b"),
        ("raise ValueError('odd')", False, "ValueError: odd"),
        (
            "import sys; sys.excepthook = lambda *_: print('a.BError: odd\\n\\nread more', file=sys.stderr); 1 / 0",
            False,
            "a.BError: odd",
        ),
        ("import os; os.abort()", False, "its process died of SIGABRT"),
        ("import time; time.sleep(60)", False, "not done after 1 s"),
    ],
)
def test_a_trial_ends_however_it_goes(code: str, worked: bool, said: str) -> None:
    tried = trial(code, 1.0 if "sleep" in code else 30.0)
    assert (tried.worked, tried.said) == (worked, said)


def test_a_phase_that_fails_means_that_no_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(devices, "build", broken)
    (finding,) = devices.training("cpu")
    assert finding.verdict == "broken"
    assert "no kernel image" in finding.words


def test_training_in_which_nothing_moves_means_that_no_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = replace(devices.ALGORITHMS["ppo"], loop=lambda state, config: iter(()))
    monkeypatch.setitem(devices.ALGORITHMS, "ppo", idle)
    (finding,) = devices.training("cpu")
    assert finding.verdict == "broken"
    assert "moved by 0" in finding.words


def test_a_device_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = [f for check in checks("cuda", quick=True) if check.part == "devices" for f in findings_of(check)]
    assert [f.name for f in found if f.verdict == "broken"] == ["device"]


@pytest.mark.parametrize(
    ("built_for", "hidden", "fix"),
    [(None, None, "pip install --force-reinstall torch"), ("12.8", None, "nvidia-smi"), ("12.8", "", "unset CUDA")],
)
def test_a_gpu_that_torch_cannot_use(
    built_for: str | None, hidden: str | None, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 14 2025"
    (tmp_path / "version").write_text(line)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    (finding,) = devices.gpus()
    assert devices.driver() == "570.86.15"
    assert (finding.verdict, finding.fix.startswith(fix)) == ("warning", True)


@pytest.mark.parametrize(
    ("complaint", "fix"),
    [
        ("InductorError: InvalidCxxCompiler: No working C++ compiler found", devices.REMEDIES["InvalidCxxCompiler"]),
        ("fatal error: Python.h: No such file or directory", "apt install python3-dev"),
        ("RuntimeError: Cannot find a working triton installation", "pip install triton"),
        ("something else", "train without"),
    ],
)
def test_what_helps_against_a_failing_compilation(complaint: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "trial", lambda *_, **__: Trial(False, complaint, complaint, 1.0))
    (finding,) = devices.compiling("cpu", quick=False)
    assert finding.verdict == "absent"
    assert fix in finding.fix


def test_the_time_of_a_compilation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "trial", lambda *_, **__: Trial(True, "12.5", "", 14.0))
    (finding,) = devices.compiling("cpu", quick=False)
    assert finding.facts == {"works": True, "seconds": 12.5}
    assert "12.5 s" in finding.words


def test_an_encoder_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ImportError("No module named 'av'")

    monkeypatch.setattr(pictures, "Video", broken)
    (finding,) = pictures.encoder()
    assert (finding.verdict, finding.fix) == ("warning", "pip install av opencv-python-headless")


def test_an_opengl_that_fails_is_a_warning_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "installed", lambda name: "4.0.0")
    monkeypatch.setattr(pictures.offscreen, "prepare", lambda: None)
    monkeypatch.setattr(pictures, "PICTURE", "raise ImportError('Unable to load EGL library')")
    (finding,) = pictures.rendering()
    assert finding.verdict == "warning"
    assert finding.fix.startswith("apt install libegl1")


# ranks ----------------------------------------------------------------------------------------------------------------


def a_rank(number: int, **changes: Any) -> Rank:
    versions = {"tightrope": "1", "torch": "2", "python": "3"}
    usual = dict(host="a", device="cpu", model="cpu", threads=1, cores=8, versions=versions, work=1e-3)
    return Rank(**{"rank": number, "sums": [1e-3] * len(MESSAGES), **usual, **changes})


def warnings_about(*ranks: Rank) -> list[Finding]:
    return [finding for finding in together.described(list(ranks)) if finding.verdict == "warning"]


def test_ranks_that_are_alike_are_listed_and_nothing_else() -> None:
    found = list(together.described([a_rank(0), a_rank(1)]))
    assert [finding.name for finding in found] == ["rank 0", "rank 1"]
    assert warnings_about(a_rank(0), a_rank(1)) == []


@pytest.mark.parametrize("name", ["tightrope", "torch", "python"])
def test_ranks_with_other_versions_are_named(name: str) -> None:
    other = a_rank(1, versions={**a_rank(1).versions, name: "other"})
    (finding,) = warnings_about(a_rank(0), other)
    assert finding.name == name
    assert "other on rank 1" in finding.words


def test_ranks_on_other_devices_or_on_one_gpu_are_named() -> None:
    first = a_rank(0, device="cuda:0", model="H200")
    (finding,) = warnings_about(first, a_rank(1, device="cuda:1", model="A100"))
    assert "A100 on rank 1" in finding.words
    (finding,) = warnings_about(first, a_rank(1, device="cuda:0", model="H200"))
    assert finding.words == "several ranks use cuda:0 of a"
    assert warnings_about(first, a_rank(1, host="b", device="cuda:0", model="H200")) == []


def test_a_slow_rank_is_named() -> None:
    (finding,) = warnings_about(a_rank(0), a_rank(1, work=3e-3), a_rank(2))
    assert finding.name == "rank 1"
    assert finding.words.startswith("3.0 times as slow")
    (finding,) = warnings_about(a_rank(0, work=3e-3), a_rank(1))
    assert finding.name == "rank 0", "also of two"


def test_more_ranks_than_cores_are_a_warning() -> None:
    (finding,) = warnings_about(a_rank(0, cores=1), a_rank(1, cores=1))
    assert "2 ranks share 1 core" in finding.words


def test_bandwidths_follow_from_the_median_over_ranks() -> None:
    times = [1e-3, 2e-3, 2e-3, 4e-3]
    found = list(together.sums([a_rank(i, sums=[t] * len(MESSAGES)) for i, t in enumerate(times)]))
    assert [finding.facts["bytes"] for finding in found] == [message.size for message in MESSAGES]
    largest = found[-1]
    assert largest.facts["algorithm_bytes_per_second"] == pytest.approx(64e6 / 2e-3)
    assert largest.facts["bus_bytes_per_second"] == pytest.approx(64e6 / 2e-3 * 1.5)  # 2 (n - 1) / n
    assert "1 ms to 4 ms, slowest rank 3" in largest.words
    assert "/s" not in found[0].words, "a few bytes have no bandwidth"


def test_more_ranks_than_gpus_are_named_before_any_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert together.crowded() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    finding = together.crowded()
    assert finding is not None
    assert (finding.verdict, "--nproc-per-node 2" in finding.fix) == ("broken", True)


def test_gpus_are_compared_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: abs(i - j) == 1)
    monkeypatch.setattr(peers, "bandwidth", lambda i, j: 2e11 if abs(i - j) == 1 else 1e10)
    found = list(peers.copies())
    assert [finding.name for finding in found] == ["cuda:0 to", "cuda:1 to", "cuda:2 to"]
    assert found[0].words == "1: 200 GB/s, 2: 10 GB/s (no P2P)"


# on a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_cuda_graphs_are_captured_and_training_uses_them() -> None:
    found = [finding for check in checks("cuda", quick=True) for finding in findings_of(check)]
    assert named(found, "CUDA graph").facts == {"works": True}
    assert named(found, "training").facts["mode"] == "graph"
    assert named(found, "training").verdict == "ok"
    assert named(found, "cuda:0").facts["total"] > 1e9
    assert not [finding for finding in found if "cannot be looked at" in finding.words]


@pytest.mark.gpu
def test_on_cuda_something_tiny_compiles() -> None:
    (finding,) = devices.compiling("cuda", quick=False)
    assert finding.facts["works"], finding.words


@pytest.mark.gpu
def test_a_copy_on_a_gpu_has_a_bandwidth() -> None:
    assert peers.bandwidth(0, 0) > 1e9
