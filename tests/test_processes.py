"""Child processes: signals are not for them, they end with their parent, and nobody waits for them without a limit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tightrope import processes
from tightrope.processes import Wait, alive, fork, kill, run_isolated, standing_still, stop_request

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, /proc")


@pytest.fixture
def asked_to_stop() -> Iterator[None]:
    stop_request.since = time.monotonic()
    yield
    stop_request.since = None


def until(condition: object, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def script(code: str) -> subprocess.Popen[str]:
    """A process that prints the number of a helper and waits."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def helper_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_helper_takes_no_notice_of_signals_for_its_parent() -> None:
    helper = fork(time.sleep, 60)
    assert helper.pid is not None
    try:
        until(lambda: os.getpgid(helper.pid) == helper.pid)  # the last thing that it does before its work
        for number in (*processes.STOPS, *processes.NOTICES):
            os.kill(helper.pid, number)
            time.sleep(0.02)  # together they might not fit on the small stack that pytest's faulthandler has for them
        assert alive(helper.pid)
    finally:
        kill([helper])
    assert not alive(helper.pid)


FROM_MAIN = "helper = fork(time.sleep, 60)"
FROM_THREAD = """
box = []
thread = threading.Thread(target=lambda: box.append(fork(time.sleep, 60)))
thread.start(); thread.join()
helper = box[0]
time.sleep(1); assert helper.is_alive(), 'it ended with the thread'
"""


@pytest.mark.parametrize(
    ("how", "stopped"),
    [(FROM_MAIN, False), (FROM_MAIN, True), (FROM_THREAD, False)],  # then a stopped one cannot look
    ids=["main thread", "main thread, stopped", "a thread that ends"],
)
def test_a_helper_is_gone_when_its_parent_was_killed(how: str, stopped: bool) -> None:
    code = f"import threading, time\nfrom tightrope.processes import fork\n{how}\nprint(helper.pid, flush=True)\ntime.sleep(60)"
    with script(code) as process:
        helper = helper_of(process)
        until(lambda: os.getpgid(helper) == helper)
        if stopped:
            os.kill(helper, signal.SIGSTOP)
        process.kill()
    until(lambda: not alive(helper), 5)


def test_python_does_not_wait_for_a_stopped_helper_at_its_end() -> None:
    code = """
import os, signal, time
from tightrope.processes import fork
helper = fork(time.sleep, 60)
os.kill(helper.pid, signal.SIGSTOP)
print(helper.pid, flush=True)
"""
    with script(code) as process:
        helper = helper_of(process)
        assert process.wait(10) == 0
    assert not alive(helper)


@pytest.mark.parametrize(
    "words", ['[sys.executable, "-uc", code]', '["sh", "-c", \'"$0" -uc "$1"; :\', sys.executable, code]']
)
def test_a_program_that_follows_its_parent_is_asked_to_end_with_it(words: str) -> None:
    """Also one that was started by way of another."""
    follower = "import os, time, tightrope.processes as p; p.follow_parent(); print(os.getpid()); time.sleep(60)"
    code = f"""
import os, subprocess, sys, time
from tightrope.processes import start_program
code = {follower!r}
child = start_program({words}, dict(os.environ), stdout=subprocess.PIPE)
print(int(child.stdout.readline()), flush=True)
time.sleep(60)
"""
    with script(code) as process:
        helper = helper_of(process)
        assert alive(helper)
        process.kill()
    until(lambda: not alive(helper), 5)


def test_a_child_of_somebody_else_is_not_killed() -> None:
    """A forked process has the children of its parent in its memory."""
    helper = fork(time.sleep, 60)
    try:
        other = fork(kill, [helper])
        other.join(10)
        assert other.exitcode == 0
        assert helper.is_alive()
    finally:
        kill([helper])


def test_time_without_progress_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = passing(monkeypatch)
    wait = Wait()
    assert not any(wait.over(2.1) for _ in clock(4))
    assert any(wait.over(2.1) for _ in clock(1))
    assert not any(wait.over(2.1, progress=1.0) for _ in clock(4))
    assert not any(wait.over(2.1, progress=number) for number in clock(20)), "each is another picture"


def test_time_in_which_we_were_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = passing(monkeypatch, 3600.0)
    wait = Wait()
    assert not any(wait.over(600.0) for _ in clock(10))


def test_patience_is_short_once_a_signal_has_come(asked_to_stop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = passing(monkeypatch)
    wait = Wait()
    looks = int(processes.AFTER_STOP / processes.LOOK)
    assert not any(wait.over(600.0) for _ in clock(looks - 1))
    assert any(wait.over(600.0) for _ in clock(2))


def passing(monkeypatch: pytest.MonkeyPatch, seconds: float = processes.LOOK) -> Callable[[int], Iterator[float]]:
    """A clock that goes on by so much at each look."""
    now = [time.monotonic()]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])

    def looks(count: int) -> Iterator[float]:
        for _ in range(count):
            now[0] += seconds
            yield now[0]

    return looks


def test_a_stopped_helper_is_seen_and_killed() -> None:
    helper = fork(time.sleep, 60)
    assert helper.pid is not None
    os.kill(helper.pid, signal.SIGSTOP)
    until(lambda: standing_still(helper.pid))
    kill([helper])
    assert not alive(helper.pid)


@pytest.mark.parametrize(
    ("code", "worked", "line"),
    [
        ("print('a'); print('b')", True, "b"),
        ("raise ValueError('odd')", False, "ValueError: odd"),
        ("import sys; sys.excepthook = lambda *_: print('a.BError: odd\\n\\nread more', file=sys.stderr); 1 / 0",
         False, "a.BError: odd"),
        ("import os; os.abort()", False, "its process died of SIGABRT"),
        ("import time; time.sleep(60)", False, "not done after 1 s"),
    ],
)  # fmt: skip
def test_isolated_code_may_fail_crash_or_hang(code: str, worked: bool, line: str) -> None:
    done = run_isolated(code, 1.0 if "sleep" in code else 30.0)
    assert (done.worked, done.line) == (worked, line)
