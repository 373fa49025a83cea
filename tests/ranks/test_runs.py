"""Runs of several ranks: one writer, exact resume, and what happens when a rank is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.runs.build import per_rank_config

from .launcher import finished, pid_of, results, started, wait_for


def rows(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def train(run: Path, *flags: str, launcher: tuple[str, ...] = (), ranks: int = 2) -> subprocess.Popen[str]:
    words = ["-m", "tightrope", "train", "CartPole-v1", "--run-dir", str(run), "--video-every", "0"]
    return started(*words, *flags, launcher=launcher, ranks=ranks)


def test_two_ranks_solve_cartpole_and_one_of_them_speaks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, said = finished(train(run, "--total-timesteps", "100000", "--seed", "451"))
    assert code == 0, said
    assert said.count("plan: ") == 1
    assert "on each of 2 ranks: batch 512, minibatches of 256" in said
    assert said.count("greedy return mean") == 1
    assert len((run / "scores.jsonl").read_text().splitlines()) == 1
    agent = tr.load(run)
    assert agent.evaluate(100).mean > 475
    assert [row["phase"] for row in rows(run)] == list(range(1, len(rows(run)) + 1))


def test_a_run_of_two_ranks_resumes_exactly_and_on_other_numbers_of_ranks_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = results("resume_worker.py", "whole", str(tmp_path / "whole"))
    half = results("resume_worker.py", "half", str(tmp_path / "parts"))
    shutil.copytree(tmp_path / "parts-ppo", tmp_path / "others-ppo")
    shutil.copytree(tmp_path / "parts-vpg", tmp_path / "others-vpg")
    rest = results("resume_worker.py", "on", str(tmp_path / "parts"))
    for algo in ("ppo", "vpg"):
        first, second = whole[0][algo], whole[1][algo]
        assert half[0][algo]["steps"] < first["steps"]
        for rank in (0, 1):
            mine, theirs = whole[rank][algo], rest[rank][algo]
            assert mine["sums"] == theirs["sums"]
            assert mine["obs"] == theirs["obs"]
            assert mine["scores"] == half[rank][algo]["scores"] + theirs["scores"]
        assert first["scores"]
        assert first["weights"] == second["weights"]  # ranks agree
        assert first["obs"] != second["obs"]  # but each has envs of its own
        assert [first["envs"], second["envs"]] == [4, 4]
        assert numbers(tmp_path / f"whole-{algo}") == numbers(tmp_path / f"parts-{algo}")

    alone = tr.load(tmp_path / "others-ppo")
    assert alone.state.env.num_envs == 8
    assert alone.state.optimizer.flat.tolist()[:50] == half[0]["ppo"]["weights"]
    alone.learn(until=alone.steps + 128)
    assert (
        "saved by 2 ranks, this is 1: episodes start afresh, and so does what the environment"
        in capsys.readouterr().out
    )
    four = results("resume_worker.py", "on", str(tmp_path / "others"), ranks=4)
    assert [row["ppo"]["envs"] for row in four] == [2] * 4
    assert four[0]["ppo"]["steps"] == 1280
    assert len({json.dumps(row["vpg"]["weights"]) for row in four}) == 1


def numbers(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, but for the clock."""
    return [{k: v for k, v in row.items() if k not in ("time", "charts/SPS")} for row in rows(run)]


def test_a_killed_rank_ends_the_run_at_once_and_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = train(run, "--total-timesteps", "100000000", "--save-seconds", "0.5")
    try:
        wait_for(lambda: (run / "checkpoints" / "latest").exists())
        os.kill(pid_of(process.pid, 1), signal.SIGKILL)
        began = time.monotonic()
        code, said = finished(process, within=30)
    finally:
        process.kill()
    assert time.monotonic() - began < 30
    assert code != 0
    assert "rank 1" in said
    assert tr.load(run).steps > 0  # what was saved is whole


def test_torchrun_restarts_a_run_and_it_goes_on_by_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = train(run, "--total-timesteps", "150000", "--save-seconds", "0.2", launcher=("--max-restarts", "2"))
    try:
        wait_for(lambda: (run / "checkpoints" / "latest").exists())
        os.kill(pid_of(process.pid, 1), signal.SIGKILL)
        code, said = finished(process)
    finally:
        process.kill()
    assert code == 0, said
    assert "going on from" in said
    assert "greedy return mean" in said
    assert [row["phase"] for row in rows(run)] == list(range(1, 150000 // 1024 + 1))


def test_sigterm_to_torchrun_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = train(run, "--total-timesteps", "100000000")
    try:
        wait_for(lambda: len(rows(run)) > 3)
        process.send_signal(signal.SIGTERM)
        _, said = finished(process, within=30)
    finally:
        process.kill()
    assert "stopped after" in said
    agent = tr.load(run)
    assert agent.steps == rows(run)[-1]["step"]
    assert agent.loaded is not None
    assert agent.loaded.ranks == 2


def test_all_ranks_stop_at_the_same_evaluation(tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = "--total-timesteps 200000 --eval-every 2048 --eval-episodes 2 --stop-at-return 9 --save-every 1024"
    code, said = finished(train(run, *flags.split(), "--save-seconds", "1000"))
    assert code == 0, said
    assert said.count("reached the return of 9 asked for after") == 1
    scores = [row["eval/episodic_return"] for row in rows(run) if "eval/episodic_return" in row]
    assert all(score < 9 for score in scores[:-1])
    assert scores[-1] >= 9
    agent = tr.load(run)
    assert agent.steps == rows(run)[-1]["step"]
    assert agent.finished
    assert len(list((run / "checkpoints").glob("*/manifest.json"))) >= 2, "none but the best"


ENDLESS = """
import pathlib, time
import gymnasium, numpy

class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.time = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.time += 1
        if self.time > 100:  # more than there are in training
            pathlib.Path("evaluating").touch()
            time.sleep(0.001)
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
"""


def test_a_signal_to_any_rank_ends_the_evaluation_that_the_first_one_makes(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    words = "-m tightrope train endless:Endless --num-envs 4 --num-steps 16 --total-timesteps 640 --num-minibatches 2"
    flags = "--eval-every 64 --eval-episodes 4 --device cpu --video-every 0 --run-dir run"
    process = started(*words.split(), *flags.split(), cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "evaluating").exists())
        os.kill(pid_of(process.pid, 1), signal.SIGTERM)
        began = time.monotonic()
        _, said = finished(process, within=30)
    finally:
        process.kill()
    assert time.monotonic() - began < 25
    assert "stopped after 64 steps" in said
    with (tmp_path / "run" / "metrics.jsonl").open() as file:
        assert [json.loads(line)["step"] for line in file] == [64]


def test_a_nan_on_one_rank_ends_all_of_them_with_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "sick.py").write_text(
        "import os, torch\n"
        "from tightrope.envs import CartPole\n"
        "class Sick(CartPole):\n"
        "    def reward(self, state, action, next_state):\n"
        "        sick = (next_state[:, 2].abs() > 0.1) & (os.environ['RANK'] == '1')\n"
        "        return torch.where(sick, torch.nan, super().reward(state, action, next_state))\n"
    )
    words = ["-m", "tightrope", "train", "sick:Sick", "--run-dir", str(tmp_path / "run"), "--num-envs", "8"]
    code, said = finished(started(*words, "--total-timesteps", "20000", cwd=tmp_path))
    assert code != 0
    assert said.count("tightrope: ") == 1, said
    assert "tightrope: rank 1: " in said
    assert "reward" in said
    assert (tmp_path / "run" / "crash").is_dir()


def test_what_one_rank_alone_is_asked_for_cannot_do_or_finds_hangs_nobody(tmp_path: Path) -> None:
    first, second = results("edges_worker.py", str(tmp_path))
    for row in (first, second):
        assert "learning_rate is 0.002 on rank 0 and 0.001 on rank 1: give all ranks the same" in row["learning rate"]
        assert "eval_every is 128 on rank 0 and 0 on rank 1" in row["eval_every"]
        assert "run_dir is True on rank 0 and False on rank 1" in row["run_dir"]
        assert row["nan"].startswith("rank 1: ")
        assert row["is watched"]
        assert row["granted"] == [[0, 0], [0, 1], [0, 0], [0, 1], [0, 0], [0, 1]]  # not twice for one wish
        assert row["unsaved"] == "No space left on device"
        assert row["steps"] == 512
    apart = tr.load(tmp_path / "apart")  # by one of several: without what is each rank's own
    assert apart.steps == 512
    assert apart.loaded is not None
    assert apart.loaded.ranks == 0
    assert tr.load(tmp_path / "good").loaded.ranks == 2  # type: ignore[union-attr]


def test_a_program_that_torchrun_restarts_goes_on_by_itself(tmp_path: Path) -> None:
    worker = str(Path(__file__).with_name("restart_worker.py"))
    code, said = finished(started(worker, str(tmp_path / "run"), launcher=("--max-restarts", "1")))
    assert code == 0, said
    assert "restarts 1" in said
    began, steps = map(int, (tmp_path / "run" / "program.txt").read_text().split())
    assert 1 < began <= 6
    assert steps == 1280
    assert [row["phase"] for row in rows(tmp_path / "run")] == list(range(1, 11))


def test_a_restart_does_not_touch_a_run_that_was_refused(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", num_envs=8, num_steps=16, total_timesteps=256, device="cpu").learn(run_dir=tmp_path / "old")
    code, said = finished(train(tmp_path / "old", "--total-timesteps", "4096", launcher=("--max-restarts", "1")))
    assert code != 0
    assert "already holds a run" in said
    assert tr.load(tmp_path / "old").steps == 256


def test_an_uneven_split_is_refused_once(tmp_path: Path) -> None:
    code, said = finished(train(tmp_path / "run", "--num-envs", "65"))
    assert code != 0
    assert said.count("tightrope: ") == 1
    assert "tightrope: num_envs 65 does not split evenly over 2 ranks: give 64 or 66" in said
    assert not (tmp_path / "run").exists()


def test_what_does_not_divide_a_share_is_refused_with_what_would() -> None:
    whole = tr.algorithms.PPOConfig(num_envs=8, num_steps=4, num_minibatches=16)
    assert per_rank_config(whole, 1) is whole
    assert per_rank_config(whole, 2).phases == whole.phases
    with pytest.raises(
        tr.UsageError, match=r"on each of 4 ranks, with num_envs 2: num_minibatches 16 .* try num_minibatches 8"
    ):
        per_rank_config(whole, 4)
    with pytest.raises(tr.UsageError, match="num_envs 8 does not split evenly over 16 ranks: give 16"):
        per_rank_config(whole, 16)


STUCK = """
import os, time
import gymnasium, numpy

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    time = 0

    def reset(self, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.time += 1
        while os.environ["RANK"] == "1" and self.time > 40:  # after it was tried, and a phase
            time.sleep(0.1)
        return numpy.zeros(2, numpy.float32), 1.0, False, self.time % 9 == 0, {}
"""


def test_a_rank_that_is_stuck_in_its_environment_ends_the_run_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    words = "-m tightrope train stuck:Stuck --num-envs 4 --num-steps 16 --total-timesteps 640 --num-minibatches 2"
    flags = "--device cpu --video-every 0 --run-dir run --save-seconds 0 --rank-timeout 1"
    code, said = finished(started(*words.split(), *flags.split(), cwd=tmp_path), within=60)
    assert code != 0
    (line,) = [line for line in said.splitlines() if line.startswith("tightrope: ")]
    stuck = r"rank 1 \(pid \d+ on \S+\) has made no progress for \d+ s while stepping its environments"
    assert re.match(rf"tightrope: {stuck}, and other ranks wait for it \(rank_timeout 1\): the run ends here; ", line)
    assert "resume" in line


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


def test_a_rank_that_leaves_before_making_an_agent_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    code, said = finished(started(str(tmp_path / "leaving.py")), within=60)
    assert "after all: rank 1 has ended its program before it made an agent" in said
    assert code == 0
