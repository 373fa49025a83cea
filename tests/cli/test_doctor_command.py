"""tightrope doctor as a user sees it: lines, a terminal of any width, JSON, exit codes, and ranks under torchrun."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tightrope as tr
from tightrope.cli import main
from tightrope.cli.doctor import Lines, print_report
from tightrope.tools.doctor import Check, CheckResult, devices

FOUND = [
    CheckResult("torch", "2.13.0", part="versions"),
    CheckResult("[atari]", "not installed", "absent", 'pip install "tightrope[atari]"', part="extras"),
    CheckResult("gpu", "none found", "absent", part="devices"),
    CheckResult(
        "cpu", "a limit of 1 on their time, " + "at some length " * 10, "warning", "--threads 1", part="machine"
    ),
]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["doctor", *args])
        return Done(stop.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    return run


def test_lines_for_a_pipe_end_with_what_is_missing(doctor: Callable[..., Done]) -> None:
    done = doctor("--quick", "--device", "cpu")
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")][:3] == ["versions", "extras", "machine"]
    assert lines[-1] == "runs work here: tightrope train CartPole-v1"
    assert "\x1b" not in done.out


def test_json_is_one_object_with_every_finding(doctor: Callable[..., Done]) -> None:
    done = doctor("--quick", "--json", "--device", "cpu")
    report = json.loads(done.out)
    assert (done.code, report["works"], report["tightrope"]) == (0, True, tr.__version__)
    assert {"versions", "machine", "devices", "training"} <= {finding["part"] for finding in report["findings"]}
    assert all(finding.keys() == {"part", "name", "words", "verdict", "fix", "facts"} for finding in report["findings"])


def test_where_no_phase_can_be_trained_the_exit_code_is_1(
    doctor: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(devices, "build", broken)
    done = doctor("--quick", "--device", "cpu")
    assert done.code == 1
    assert done.out.splitlines()[-1] == "no run works here: see training"
    assert "Traceback" not in done.out + done.err


@pytest.mark.parametrize(
    ("args", "word"), [(["here"], "here"), (["--qick"], "Did you mean quick"), (["--device", "tpu"], "tpu")]
)
def test_a_mistake_is_one_line(doctor: Callable[..., Done], args: list[str], word: str) -> None:
    done = doctor(*args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert word in done.err


@pytest.mark.parametrize("width", [30, 40, 59, 60, 80, 200])
def test_a_terminal_of_any_width_shows_every_word(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_report([Check(result.part, result.name, lambda result=result: result) for result in FOUND], Lines(width))
    lines = re.sub(
        "\r?\x1b\\[[0-9]*[mK]", "", re.sub("\x1b\\[Kchecking .*\r", "", capsys.readouterr().out)
    ).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    everything = "".join("".join(lines).split())
    for result in FOUND:
        for words in (result.name, result.words, result.fix):
            assert "".join(words.split()) in everything


def test_what_is_absent_and_needs_nothing_is_not_in_the_list_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(None).summary(FOUND)
    out = capsys.readouterr().out
    assert 'pip install "tightrope[atari]"' in out
    assert "--threads 1" in out
    assert "gpu" not in out


def test_checks_that_fail_do_not_end_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> CheckResult:
        raise OSError("the disk is on fire")

    found = print_report([Check("a", "one", fails), Check("b", "two", lambda: CheckResult("two", "fine"))], Lines(None))
    assert [result.verdict for result in found] == ["warning", "ok"]
    assert capsys.readouterr().out.count("the disk is on fire") == 2, "where it was found, and at the end"


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
