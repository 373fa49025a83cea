"""Progress: a live line on a terminal, lines in a log."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.logging import ConsoleLogger, RunInfo, TrainingResult
from tightrope.logging.console import LiveLine, PlainLines
from tightrope.logging.progress import clock, sparkline

STATE: Any = None  # nobody looks at it here
ROW = {
    "phase": 3,
    "step": 12_345,
    "charts/episodic_return": 21.25,
    "charts/episodic_length": 20.6,
    "charts/SPS": 54_321.9,
    "losses/approx_kl": 0.01234,
}
LEARNING = {
    "losses/total_loss": 48.5, "losses/policy_loss": -0.0123, "losses/value_loss": 97.0, "losses/value_mean": 12.5,
    "losses/explained_variance": 0.751, "losses/entropy": 0.693, "losses/grad_norm": 3.21, "charts/learning_rate": 0.0025,
}  # fmt: skip


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    """What time.monotonic() says."""

    now = 0.0


@pytest.fixture
def clock_at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("tightrope.logging.console.time.monotonic", lambda: made.now)
    return made


def use_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))


def begun(total: int, done: int = 0, title: str = "run", taken: Any = None, **settings: int) -> ConsoleLogger:
    progress = ConsoleLogger()
    progress.on_start(RunInfo(title, settings, plan=[], steps=done, total_steps=total, steps_taken=taken))
    return progress


def show(progress: ConsoleLogger, *steps: int, **more: float) -> None:
    for phase, step in enumerate(steps, 1):
        row = {name.replace("__", "/"): value for name, value in more.items()}
        progress.on_phase({**ROW, "phase": phase, "step": step, **row})


# lines in a log ------------------------------------------------------------------------------------------------------


def test_a_line_has_what_a_person_watches(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(4000, num_envs=10, num_steps=100)
    show(progress, 1000)
    line = capsys.readouterr().err
    for part in ("25%", "phase 1/4", "1,000 steps", "return 21.2", "length 21", "KL 0.0123", "54,322 steps/s", " left"):
        assert part in line
    assert "greedy" not in line
    progress.on_phase({**ROW, "phase": 2, "step": 2000, "charts/episodic_return": 30.25, "eval/episodic_return": 480.0})
    line = capsys.readouterr().err
    assert "return 30.2 (+9.0)" in line, "no trend"
    assert "greedy 480.0" in line


def test_a_second_line_is_about_learning(capsys: pytest.CaptureFixture[str]) -> None:
    begun(4000, num_envs=10, num_steps=100).on_phase({**ROW, **LEARNING, "phase": 1, "step": 1000})
    _, second = capsys.readouterr().err.splitlines()
    words = "loss 48.5  policy -0.0123  value loss 97  value 12.5  explained 0.751  entropy 0.693  grad norm 3.21  lr 0.0025"
    assert second == f"    {words}"


def test_the_second_line_of_vpg_has_a_critic_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"losses/objective": 0.5, "losses/value_loss": 0.0, "losses/entropy": 0.6, "losses/grad_norm": 1.0}
    begun(4000).on_phase({**ROW, **row, "phase": 1, "step": 1000})
    assert capsys.readouterr().err.splitlines()[1] == "    objective 0.5  entropy 0.6  grad norm 1"


@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_second_live_line_has_what_fits(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    use_terminal(monkeypatch, width)
    progress = begun(16_460, 1000, "CartPole-v1 ppo", num_envs=5, num_steps=823)
    progress.on_phase({**ROW, **LEARNING})
    assert isinstance(progress.display, LiveLine)
    _, second = progress.display.line().plain.split("\n")
    progress.on_end(TrainingResult(STATE))
    assert len(second) < width
    assert second.startswith("  loss 48.5")
    assert ("lr 0.0025" in second) == (width == 200)


@pytest.mark.parametrize(
    ("returns", "shown"),
    [
        ((-0.183, -0.0792), "return -0.079 (+0.104)"),
        ((-0.083, -0.0792), "return -0.0792 (+0.0038)"),
        ((1.25, 2.5), "return 2.50 (+1.25)"),
        ((0.00021, 0.00032), "return 3.20e-04 (+1.10e-04)"),
        ((-1500.0, -3.0), "return -3.0 (+1497.0)"),
        ((150_000.4, 200_000.6), "return 200001 (+50000)"),
        ((1e12, 3e12), "return 3.00e+12 (+2.00e+12)"),
        ((0.0, 0.0), "return 0.0 (+0.0)"),
        ((float("inf"), 2.5), "return 2.50 (-inf)"),
    ],
)
def test_returns_have_the_digits_that_their_scale_needs(
    returns: tuple[float, float], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = begun(2000)
    for phase, value in enumerate(returns, 1):
        progress.on_phase({**ROW, "phase": phase, "step": 1000 * phase, "charts/episodic_return": value})
    assert f"{shown}  " in capsys.readouterr().err


@pytest.mark.parametrize(("kl", "shown"), [(1.23e-5, "1.23e-05"), (0.000456, "0.000456"), (0.0, "0")])
def test_a_small_divergence_is_not_rounded_to_nothing(
    kl: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(begun(1000), 1000, losses__approx_kl=kl, charts__episodic_length=1.34)
    err = capsys.readouterr().err
    assert f"KL {shown}  " in err
    assert "length 1.3 " in err


def test_what_is_not_there_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    begun(5).on_phase({"phase": 1, "step": 5})
    assert capsys.readouterr().err == "run  100%  phase 1  5 steps  in 0:00\n"


def test_where_phases_differ_in_length_their_number_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(4000, num_envs=10, num_steps=100)
    show(progress, 700)
    progress.on_end(TrainingResult(STATE))
    assert "phase 1  700 steps" in capsys.readouterr().err


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(4000, title="CartPole-v1 ppo")
    show(progress, 1000, 2000, 3000, 4000)
    progress.on_end(TrainingResult(STATE))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.isascii()
    assert {"\x1b", "\r"}.isdisjoint(err)
    for phase, line in zip((1, 2, 3, 4), err.splitlines(), strict=True):
        assert line.startswith(f"CartPole-v1 ppo  {phase * 25:3d}%")
        assert f"{phase * 1000:,} steps" in line


def test_plain_lines_come_at_a_sensible_pace(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(10_000)
    show(progress, *range(10, 10_001, 10))
    progress.on_end(TrainingResult(STATE))
    lines = capsys.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 11
    assert lines[-1].startswith("run  100%")


def test_a_resumed_run_starts_at_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(10_000, done=8000)
    show(progress, 8010)
    assert capsys.readouterr().err == "", "a line for what was done before"
    show(progress, 9000)
    assert capsys.readouterr().err.startswith("run   90%")


def test_the_last_phase_is_shown_once_wherever_a_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(10_000)
    show(progress, 10, 20)
    assert capsys.readouterr().err == ""
    for shown in (1, 0):
        progress.on_end(TrainingResult(STATE))
        assert capsys.readouterr().err.count("20 steps") == shown


def test_a_slow_run_shows_a_line_now_and_then_and_how_long_it_will_take(
    capsys: pytest.CaptureFixture[str], clock_at: Clock
) -> None:
    progress = begun(100)
    for phase in range(1, 10):
        clock_at.now += 10.0
        progress.on_phase({**ROW, "phase": phase, "step": phase})
    lines = capsys.readouterr().err.splitlines()
    assert [re.search(r"(\d) steps", line)[1] for line in lines] == ["3", "6", "9"]  # type: ignore[index]
    assert lines[-1].endswith("15:10 left")  # 91 steps of ten seconds


def test_an_evaluation_shows_how_far_it_has_come(capsys: pytest.CaptureFixture[str], clock_at: Clock) -> None:
    progress = begun(100)
    for over in range(100):
        clock_at.now += 1.0
        progress.on_evaluation_progress(over, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"run  evaluating: {over} of 100 episodes" for over in (0, 30, 60, 90)]
    show(progress, 100)
    assert "evaluating" not in capsys.readouterr().err
    progress.on_trained(STATE)
    progress.on_evaluation_progress(3, 100)
    progress.on_end(TrainingResult(STATE))
    assert capsys.readouterr().err == "run  evaluating: 3 of 100 episodes\n"


def test_a_long_phase_shows_how_far_it_has_come(
    capsys: pytest.CaptureFixture[str], clock_at: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [5000]
    monkeypatch.setattr("tightrope.logging.console.WATCH_SECONDS", 0.001)
    progress = begun(4000, taken=lambda: taken[0], num_envs=10, num_steps=100)

    def said(steps: int, now: float) -> str:
        taken[0], clock_at.now = steps, now
        time.sleep(0.1)
        return capsys.readouterr().err

    assert said(5000, 0.0) == ""
    assert said(5400, 40.0) == "run    0%  phase 0/4  0 steps  400 of 1,000 steps into the next  -:-- left\n"
    progress.on_update(STATE)
    progress.on_phase({"phase": 1, "step": 1000})
    assert "into the next" not in capsys.readouterr().err
    assert "learning" in said(6400, 80.0)
    progress.on_end(TrainingResult(STATE))
    capsys.readouterr()
    assert said(6400, 200.0) == "", "it goes on after the end"


def test_a_phase_without_a_finished_episode_shows_the_last_return(capsys: pytest.CaptureFixture[str]) -> None:
    progress = begun(20_000)
    show(progress, 10_000)
    progress.on_phase({"phase": 2, "step": 20_000})
    last = capsys.readouterr().err.splitlines()[-1]
    assert "20,000 steps  return 21.2  " in last, "a trend of nothing new"


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.2, "0:07"), (59.9, "1:00"), (754, "12:34"), (3723, "1:02:03"), (273_900, "3 d 04:05 h")]
)
def test_time_as_clocks_show_it(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def test_the_curve_of_a_run() -> None:
    assert sparkline([1.0], 8) == ""
    assert sparkline([0.0, 1.0, 2.0, 7.0], 8) == "▁▂▃█"
    assert sparkline([float(x) for x in range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0] * 20, 4) == "▁▁▁▁"


# a live line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_a_line_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    use_terminal(monkeypatch, width)
    progress = begun(16_460, 1000, "CartPole-v1 ppo", num_envs=5, num_steps=823)
    progress.on_phase({**ROW, "phase": 2, "step": 8230})
    progress.on_phase(ROW)
    assert isinstance(progress.display, LiveLine)
    line = progress.display.line().plain
    progress.on_end(TrainingResult(STATE))
    assert not progress.display.live.is_started
    assert len(line) < width
    assert "75%" in line
    assert "return 21.2" in line
    assert ("CartPole-v1 ppo" in line) == (width >= 200)
    for part in ("KL 0.012", "3/4", "▁▁", "len", "54,322", "left"):
        assert part in line or width < 80
    assert ("KL" in line, "3/4" in line) == (width >= 80, width >= 80)


def test_nothing_jumps_when_a_number_gets_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch, 200)
    progress = begun(100_000)
    assert isinstance(progress.display, LiveLine)
    at = []
    for value in (-1234.5, 3.0):
        show(progress, 1, 2, charts__episodic_return=value)
        at.append(progress.display.line().plain.index("length"))
    progress.on_end(TrainingResult(STATE))
    assert at[0] == at[1]


@pytest.mark.parametrize(
    ("stream", "kind", "display"),
    [("stdout", "xterm", PlainLines), ("stderr", "xterm", LiveLine), ("stderr", "dumb", PlainLines)],
)
def test_the_stream_that_progress_goes_to_decides(
    monkeypatch: pytest.MonkeyPatch, stream: str, kind: str, display: type
) -> None:
    monkeypatch.setattr(sys, stream, Terminal())
    monkeypatch.setenv("TERM", kind)
    progress = begun(4)
    assert isinstance(progress.display, display)
    progress.on_end(TrainingResult(STATE))


def test_in_a_real_terminal_ctrl_c_leaves_the_cursor_as_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tightrope", "train", "CartPole-v1", "--total-timesteps", "90000000"]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.environ.update(TERM="xterm-256color", OMP_NUM_THREADS="1", PYTHONPATH=str(Path(tr.__file__).parents[1]))
        os.environ.pop("COLUMNS", None)
        os.execv(sys.executable, [*command, "--run-dir", str(tmp_path / "run")])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    seen, until, interrupted = b"", time.monotonic() + 120, False
    while time.monotonic() < until:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # its other end is closed
            break
        seen += piece
        if not interrupted and seen.count(b"return") > 3:
            os.write(terminal, b"\x03")
            interrupted = True
    else:
        os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    text = seen.decode()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0, "the cursor is not shown again"
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r\x1b[2K", "\n").replace("^C", "")).splitlines()
    live = [line for line in lines if line.startswith("━")]
    assert live
    assert max(map(len, live)) < 80
    assert lines[-1].startswith("stopped after ")
