"""Progress: a bar on a terminal, lines in a log."""

import io
import sys
from typing import Any

import pytest

from tightrope.view import About, Progress
from tightrope.view.progress import LiveBar, PlainLines, facts

STATE: Any = None  # nobody looks at it here
ROW = {
    "phase": 3,
    "step": 12_345,
    "charts/episodic_return": 21.25,
    "charts/episodic_length": 20.6,
    "charts/SPS": 54_321.9,
    "losses/approx_kl": 0.01234,
    "losses/entropy": 0.693,
    "losses/value_loss": 99.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_facts_a_person_watches() -> None:
    line = facts(ROW)
    for part in ("12,345 steps", "return 21.2", "length 21", "KL 0.0123", "54,322 steps/s"):
        assert part in line
    assert "99" not in line
    assert "greedy" not in line
    assert "greedy 480.0" in facts({**ROW, "eval/episodic_return": 480.0})


def test_what_is_not_there_is_not_shown() -> None:
    assert facts({"phase": 1, "step": 5}) == "5 steps"


def begun(title: str, total: int, done: int = 0) -> Progress:
    progress = Progress()
    progress.begin(About(title=title, settings={}, plan=[], steps=done, total_steps=total))
    return progress


def show(progress: Progress, *steps: int) -> None:
    for phase, step in enumerate(steps, 1):
        progress.row({**ROW, "phase": phase, "step": step})


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun("CartPole-v1 ppo", 4000)
    show(progress, 1000, 2000, 3000, 4000)
    progress.end(STATE)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 4
    assert "\x1b" not in err
    assert "\r" not in err
    for phase, line in enumerate(lines, 1):
        assert line.startswith(f"CartPole-v1 ppo {phase * 25:3d}%")
        assert line.endswith(facts({**ROW, "phase": phase, "step": phase * 1000}))


def test_plain_lines_come_at_a_sensible_pace(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun("run", 10_000)
    show(progress, *range(10, 10_001, 10))
    progress.end(STATE)
    lines = capsys.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 11
    assert lines[-1].startswith("run 100%")


def test_the_last_phase_is_shown_wherever_a_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun("run", 10_000)
    show(progress, 10, 20)
    assert capsys.readouterr().err == ""
    progress.end(STATE)
    (line,) = capsys.readouterr().err.splitlines()
    assert "20 steps" in line
    progress.end(STATE)
    assert capsys.readouterr().err == "", "said twice"


def test_a_slow_run_shows_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("tightrope.view.progress.time.monotonic", lambda: clock[0])
    progress = begun("run", 10_000)
    for phase in range(1, 11):
        clock[0] += 10.0
        progress.row({**ROW, "phase": phase, "step": phase})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-2] for line in lines] == ["3", "6", "9"]
    assert len(lines) == 3


def test_a_phase_without_a_finished_episode_shows_the_last_return(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun("run", 20_000)
    progress.row({**ROW, "phase": 1, "step": 10_000})
    progress.row({"phase": 2, "step": 20_000})
    last = capsys.readouterr().err.splitlines()[-1]
    assert "return 21.2" in last
    assert "20,000 steps" in last


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    progress = begun("CartPole-v1 ppo", 16_460, 1000)
    assert isinstance(progress.bar, LiveBar)
    assert progress.bar.rich.tasks[0].completed == 1000
    progress.row(ROW)
    task = progress.bar.rich.tasks[0]
    assert (task.completed, task.total) == (12_345, 16_460)
    progress.end(STATE)
    shown = terminal.getvalue()
    for part in ("CartPole-v1 ppo", "75%", "return 21.2", "KL 0.0123"):
        assert part in shown
    assert not progress.bar.rich.live.is_started


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_only_the_stream_that_progress_goes_to_decides(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, Terminal())
    progress = begun("run", 4)
    expected: Any = LiveBar if stream == "stderr" else PlainLines
    assert isinstance(progress.bar, expected)
    progress.end(STATE)
