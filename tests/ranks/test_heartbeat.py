"""What the other ranks do when one is stopped, fails, is busy or ends in good order; `test_runs.py` has one that is killed."""

import signal
import time

from .launcher import ROOT, Job

LOOP = str(ROOT / "benchmarks" / "scaling" / "loop.py")


def test_a_stopped_rank_is_missed_after_the_silence() -> None:
    with Job(LOOP, "--seconds=60", "--silence=2") as job:
        job.wait_for(lambda: job.printed.count("attempt 0") == 2)
        pid, began = job.pids()[0], job.send(signal.SIGSTOP, 0)
        job.wait_for(lambda: 1 not in job.pids(), 20)
        assert time.monotonic() - began > 1.5
        (line,) = job.lines
        assert f"rank 0 (pid {pid} on" in line
        assert "has not been heard for" in line


def test_an_error_in_one_rank_is_told_by_the_others() -> None:
    with Job(LOOP, "--seconds=60", "--fails=1") as job:
        assert job.codes(60) == [1, 1]
        assert "ValueError: made up" in job.printed
        assert "RankLost: rank 1" in job.printed
        assert "has failed: ValueError: made up" in job.lines[0]


def test_who_is_busy_is_not_missed_and_who_ends_in_good_order_neither() -> None:
    with Job(LOOP, "--seconds=1", "--silence=0.5", "--busy=3") as job:
        assert job.codes(60) == [0, 0]
        assert job.lines == []
        assert job.printed.count("is done") == 2
