"""Several seeds side by side: which seeds, where they run, what is left when one fails or all are stopped."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from run_helpers import start_command

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.tools.progress_bars import ProgressBars
from tightrope.tools.seeds import Seed, SeedPool, compare, process_variables, read_seeds
from tightrope.training.reports import add_score

RULE = import_module("tightrope.engine.threads")  # which has a class of its name beside it
FLAGS = ["--total-timesteps", "1024", "--num-envs", "8", "--num-steps", "32", "--video-every", "0"]


@pytest.mark.parametrize(
    ("text", "seeds"), [("1-3", [1, 2, 3]), ("7", [7]), ("1,2,5-7", [1, 2, 5, 6, 7]), ("3, 1", [3, 1])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "3-1", "1,1", "1-3,2", "1..3", "0-5000", "1.5", "9" * 30])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^seeds? "):
        read_seeds(text)


def test_gpus_are_dealt_out_and_shared_where_more_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def dealt(jobs: int | None) -> list[str]:
        return [variables["CUDA_VISIBLE_DEVICES"] for variables in process_variables("cuda", 1, jobs)]

    assert dealt(None) == ["0", "1"]
    assert dealt(3) == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-x")
    assert dealt(None) == ["4", "GPU-x"]


def test_cores_are_dealt_out_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.tools.seeds.cores", lambda: 8)
    assert [len(process_variables("cpu", threads, None)) for threads in (None, 1, 3, 16)] == [8, 8, 2, 1]
    assert len(process_variables("cpu", 1, 5)) == 5


class Pictures(gymnasium.Env[Any, Any]):
    """Images, whose networks take as many threads as there are cores."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros((4, 84, 84), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((4, 84, 84), np.uint8), 0.0, False, True, {}


@pytest.mark.parametrize(
    ("flags", "jobs", "threads"),
    [
        ("--seeds 1-4", 4, 2), ("--seeds 1-20", 8, 1), ("--seeds 1-4 --jobs 2", 2, 4), ("--seeds 1", 1, 8),
        ("--seeds 1-4 --jobs 16", 4, 2), ("--seeds 1-4 --threads 3", 2, 3),
    ],
)  # fmt: skip
def test_threads_follow_the_number_of_runs_side_by_side(
    flags: str, jobs: int, threads: int, tightrope: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(RULE, "cpu_limit", lambda: None)
    started: list[SeedPool] = []
    monkeypatch.setattr(SeedPool, "run", lambda pool: started.append(pool))
    words = f"{__name__}:Pictures --device cpu --num-envs 2 --num-steps 8 --run-dir {tmp_path}/many"
    tightrope("train", words, flags)
    (pool,) = started
    assert len(pool.variables) == jobs
    command = pool.seeds[0].command(pool.words)
    assert command.count("--threads") == 1
    assert command[command.index("--threads") + 1] == str(threads)


def test_seeds_run_side_by_side_and_end_in_one_report(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    process = start_command(
        "train", "CartPole-v1", *FLAGS, "--seeds", "451,452", "--jobs", "2", "--run-dir", str(folder)
    )
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert "2 seeds, in turns, 2 at once, 1 thread each" in said
    assert "greedy return over 2 seeds: mean" in said
    assert (folder / "comparison.html").stat().st_size > 100_000
    # each is the run that it would have been alone
    alone = tr.PPO("CartPole-v1", total_timesteps=1024, num_envs=8, num_steps=32, seed=452).learn(quiet=True)
    scored = json.loads((folder / "seed0452" / "scores.jsonl").read_text())["mean"]
    assert scored == pytest.approx(alone.evaluate(100).mean)

    # once more: what is done is left alone, and one seed that fails does not stop another
    (folder / "seed0453").write_text("in the way")
    process = start_command("train", "CartPole-v1", *FLAGS, "--seeds", "451-454", "--run-dir", str(folder))
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "seed 451: done already" in said
    assert "over 3 seeds" in said
    assert "tightrope: seed 453 failed: run_dir" in complaints
    assert "Traceback" not in said + complaints


def test_ctrl_c_saves_every_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    words = ["--total-timesteps", "49152", "--num-envs", "8", "--num-steps", "32", "--video-every", "0"]
    words += ["--seeds", "1-3", "--jobs", "2", "--run-dir", str(folder)]
    process = start_command("train", "CartPole-v1", *words)
    seeds = [Seed(number, folder / f"seed{number:04d}") for number in (1, 2)]
    deadline = time.monotonic() + 60
    while not all(seed.progress()[0] > 0 for seed in seeds) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"the same command with --run-dir {folder} continues" in said
    assert not (folder / "seed0003").exists()
    for seed in seeds:
        assert (seed.run_dir / "checkpoints").is_dir()

    process = start_command("train", "CartPole-v1", *words)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "over 3 seeds" in said
    assert [seed.progress()[0] for seed in seeds] == [49152, 49152]


def test_seeds_without_evaluations_are_said_to_be_not_evaluated(tmp_path: Path) -> None:
    small: dict[str, Any] = dict(num_envs=8, num_steps=32, total_timesteps=512, video_every=0, device="cpu")
    seeds = [Seed(number, tmp_path / str(number)) for number in (1, 2)]
    for seed, episodes in zip(seeds, (0, 5), strict=True):
        tr.PPO("CartPole-v1", **small, eval_episodes=episodes).learn(run_dir=seed.run_dir, quiet=True)
    done = compare(seeds[:1], tmp_path)
    assert done is not None
    assert done[1].startswith("not evaluated (eval_episodes 0); the last returns in training are from ")
    assert compare(seeds, tmp_path) == (tmp_path / "comparison.html", "no seed has a score yet")


def test_a_seed_is_done_once_its_last_steps_have_a_score(tmp_path: Path) -> None:
    seed = Seed(1, tmp_path / "seed0001")
    agent = tr.PPO("CartPole-v1", total_timesteps=600, num_envs=8, num_steps=32, seed=1, video_every=0)
    agent.learn(run_dir=seed.run_dir, quiet=True)
    assert agent.finished
    assert not seed.finished  # killed in its last evaluation
    score = agent.evaluate(2)
    add_score(seed.run_dir, agent.steps - 256, score)  # of a shorter plan, before
    assert not seed.finished
    assert seed.command([])[-3:] == ["resume", str(seed.run_dir), "--quiet"]
    add_score(seed.run_dir, agent.steps, score)
    assert seed.finished


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seeds 3-1", "seeds '3-1'"), ("--seeds 1-2 --jobs 0", "jobs 0"),
        ("--jobs 2", "jobs 2 needs seeds"), ("--seeds 1-2 --seed 3", "seed 3 and seeds 1-2"),
        ("--seeds 1-2 --gamma 3", "gamma 3"), ("--seeds 1-2 --run-dir RUN", "is a run of one seed"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_starts_nothing(
    words: str, said: str, tightrope: Callable[..., Any], own_directory: Path
) -> None:
    Path("RUN").mkdir()
    Path("RUN/config.yaml").write_text("")
    done = tightrope("train CartPole-v1", words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err
    assert [path.name for path in own_directory.iterdir()] == ["RUN"]


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell who is stopped")
def test_a_run_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tightrope.tools.seeds.ENDING", 0.2)
    monkeypatch.setattr("tightrope.tools.seeds.STANDING", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    seeds = [Seed(i, tmp_path / str(i)) for i in (1, 2)]
    for seed in seeds:
        seed.process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
        assert seed.process.stdout is not None
        with seed.process.stdout as said:
            said.readline()
    assert seeds[0].process is not None
    seeds[0].process.send_signal(signal.SIGSTOP)
    pool = SeedPool(seeds, [], [], ProgressBars(0, quiet=False))
    pool.receive(signal.SIGTERM, None)
    deadline = time.monotonic() + 10
    while pool.running and time.monotonic() < deadline:
        pool.end_some()
        time.sleep(0.05)
    assert [seed.code for seed in seeds] == [-signal.SIGKILL, -signal.SIGKILL]
    assert capsys.readouterr().out.splitlines() == [
        "seed 1: killed, as its process is suspended; its last checkpoint remains",
        "seed 2: killed, as it has not ended 0 s after the signal; its last checkpoint remains",
    ]
