"""`tightrope train` on several ranks: one of them writes and prints, they stop together, and a lost or stuck one is named."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows

import tightrope as tr
from tightrope.training.build import per_rank_config

from .launcher import Job

SMALL = "--num-envs 4 --num-steps 16 --num-minibatches 2 --total-timesteps 640 --device cpu"
FOREVER = "--total-timesteps 100000000"


def train(run: Path, flags: str, env: str = "CartPole-v1", **options: Any) -> Job:
    words = f"-m tightrope train {env} --video-every 0 {flags} --run-dir".split()
    return Job(*words, str(run), cwd=run.parent, **options)


def test_two_ranks_solve_cartpole_and_one_of_them_prints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with train(run, "--total-timesteps 100000 --seed 451") as job:
        assert job.codes() == [0, 0], job.printed
        printed = job.printed
    assert printed.count("plan: ") == 1
    assert "on each of 2 ranks: batch 512, minibatches of 256" in printed
    assert printed.count("greedy return mean") == 1
    assert len((run / "scores.jsonl").read_text().splitlines()) == 1
    assert tr.load(run).evaluate(100).mean > 475
    assert [row["phase"] for row in rows(run)] == list(range(1, len(rows(run)) + 1))


def test_a_killed_rank_ends_the_others_in_seconds_and_is_named_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with train(run, f"--num-envs 6 --num-minibatches 2 {FOREVER} --save-seconds 0.2", ranks=3, torchrun=()) as job:
        job.wait_for(lambda: (run / "checkpoints" / "latest").exists())
        pid = job.pids()[1]
        began = job.send(signal.SIGKILL, 1)
        assert job.codes(within=20) == [1]
        assert time.monotonic() - began < 10
        (line,) = job.lines
    died = rf"tightrope: rank 1 \(pid {pid} on \S+\) has died: the run ends here"
    assert re.fullmatch(died + r"; `tightrope resume \S+/run` resumes from [\d,]+ steps", line)
    assert tr.load(run).steps > 0  # what was saved is whole


PROGRAM = """
import sys, odd_envs, tightrope as tr
settings = dict(num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, device="cpu", save_seconds=0)
tr.PPO(odd_envs.Mortal, **settings).learn(run_dir=sys.argv[-1])
"""


@pytest.mark.parametrize("is_program", [False, True], ids=["command", "program"])
def test_a_run_that_torchrun_restarts_goes_on_by_itself(tmp_path: Path, is_program: bool) -> None:
    run, program, options = tmp_path / "run", tmp_path / "program.py", {"torchrun": ("--max-restarts=2",)}
    program.write_text(PROGRAM)
    flags = f"{SMALL} --save-seconds 0 --eval-episodes 1 --eval-seconds 1"
    with (
        Job(str(program), str(run), **options) if is_program else train(run, flags, "odd_envs:Mortal", **options) as job
    ):
        assert job.codes() == [0], job.printed
        assert "has died: torchrun starts the run again" in job.printed
        assert "resuming from" in job.printed
        assert is_program or "greedy return mean" in job.printed
    assert [row["phase"] for row in rows(run)] == list(range(1, 11))
    assert rows(run)[-1]["step"] == 640


def test_a_restart_does_not_touch_a_run_that_was_refused(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", num_envs=8, num_steps=16, total_timesteps=256, device="cpu").learn(run_dir=tmp_path / "old")
    with train(tmp_path / "old", "--total-timesteps 4096", torchrun=("--max-restarts=1",)) as job:
        assert job.codes() == [1]
        assert job.printed.count("already holds a run") == 2  # once in each attempt
    assert tr.load(tmp_path / "old").steps == 256


def test_sigterm_to_torchrun_saves_and_the_run_can_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with train(run, FOREVER, torchrun=()) as job:
        job.wait_for(lambda: len(rows(run)) > 3)
        os.kill(job.processes[0].pid, signal.SIGTERM)
        job.codes(within=30)
        assert "stopped after" in job.printed
    agent = tr.load(run)
    assert agent.steps == rows(run)[-1]["step"]
    assert agent.loaded is not None
    assert agent.loaded.ranks == 2


def test_all_ranks_stop_at_the_same_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = "--total-timesteps 200000 --eval-every 2048 --eval-episodes 2 --stop-at-return 9 --save-every 1024"
    with train(run, f"{flags} --save-seconds 1000") as job:
        assert job.codes() == [0, 0], job.printed
        assert job.printed.count("reached stop_at_return 9 after") == 1
    scores = [row["eval/episodic_return"] for row in rows(run) if "eval/episodic_return" in row]
    assert all(score < 9 for score in scores[:-1])
    assert scores[-1] >= 9
    agent = tr.load(run)
    assert agent.steps == rows(run)[-1]["step"]
    assert agent.finished
    assert len(list((run / "checkpoints").glob("*/manifest.json"))) >= 2, "none but the best"


def test_a_signal_to_any_rank_ends_the_evaluation_that_rank_0_makes(tmp_path: Path) -> None:
    with train(tmp_path / "run", f"{SMALL} --eval-every 64 --eval-episodes 4", "odd_envs:Endless") as job:
        job.wait_for(lambda: (tmp_path / "evaluating").exists())
        began = job.send(signal.SIGTERM, 1)
        job.codes(within=30)
        assert time.monotonic() - began < 25
        assert "stopped after 64 steps" in job.printed
    assert [row["step"] for row in rows(tmp_path / "run")] == [64]


def test_a_nan_on_one_rank_ends_all_of_them_with_one_line_that_names_it(tmp_path: Path) -> None:
    with train(tmp_path / "run", "--num-envs 8 --total-timesteps 20000", "odd_envs:Sick") as job:
        assert job.codes() == [1, 1]
        (line,) = job.lines
    assert line.startswith("tightrope: rank 1: ")
    assert "reward" in line
    assert (tmp_path / "run" / "crash").is_dir()


def test_a_rank_that_is_stuck_in_its_environment_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with train(tmp_path / "run", f"{SMALL} --save-seconds 0 --rank-timeout 1", "odd_envs:Stuck") as job:
        assert job.codes(within=60) == [1, 1]
        (line,) = job.lines
    stuck = r"rank 1 \(pid \d+ on \S+\) has made no progress for \d+ s while stepping its environments"
    assert re.match(rf"tightrope: {stuck}, and other ranks wait for it \(rank_timeout 1\): the run ends here; ", line)
    assert "resume" in line


def test_a_usage_error_is_printed_once(tmp_path: Path) -> None:
    with train(tmp_path / "run", "--num-envs 65") as job:
        assert job.codes() == [2, 2]
        assert job.lines == ["tightrope: num_envs 65 does not split evenly over 2 ranks: give 64 or 66"]
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_divide_among_ranks_are_refused_with_some_that_do() -> None:
    whole = tr.algorithms.PPOConfig(num_envs=8, num_steps=4, num_minibatches=16)
    assert per_rank_config(whole, 1) is whole
    assert per_rank_config(whole, 2).phases == whole.phases
    with pytest.raises(
        tr.UsageError, match=r"on each of 4 ranks, with num_envs 2: num_minibatches 16 .* try num_minibatches 8"
    ):
        per_rank_config(whole, 4)
    with pytest.raises(tr.UsageError, match="num_envs 8 does not split evenly over 16 ranks: give 16"):
        per_rank_config(whole, 16)


LEAVING = """
import os, sys
if os.environ["RANK"] == "1":
    sys.exit()
import tightrope as tr
try:
    tr.PPO("CartPole-v1", device="cpu")
except RuntimeError as error:
    print("after all:", error)
"""


def test_a_rank_that_exits_before_making_an_agent_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    with Job(str(tmp_path / "leaving.py"), torchrun=()) as job:
        assert job.codes(within=60) == [0]
        assert "after all: rank 1 has ended its program before it made an agent" in job.printed
