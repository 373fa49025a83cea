"""Populations: every agent is the run that it would be alone, whoever else trains in the same memory."""

import json
import math
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import start_command

import tightrope as tr
from tightrope.engine import gradients, threads
from tightrope.errors import UsageError
from tightrope.population import turns
from tightrope.population.record import FILE

TINY = dict(total_timesteps=1024, num_envs=8, num_steps=32, num_minibatches=2, update_epochs=2, eval_episodes=4)
SHORT = {name: value for name, value in TINY.items() if name not in ("update_epochs", "num_minibatches")}
TINY_VPG = dict(total_timesteps=1024, num_envs=8, num_steps=32, eval_episodes=4, hidden_sizes=(16,))
NUMBERS = {"learning_rate": "1e-4..1e-2,log", "ent_coef": (0, 0.02), "gamma": [0.9, 0.99], "vf_coef": (0.2, 1.0)}


class Drifting(tr.envs.CartPole):
    """Its wind is drawn from the process's generator, and its strength is an attribute that changes."""

    def __init__(self, num_envs: int = 1, device: Any = "cpu", max_episode_steps: int | None = None) -> None:
        self.strength = torch.zeros(())
        super().__init__(num_envs, device, max_episode_steps)

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        self.strength += 0.001
        return super().advance(state, action) + self.strength * torch.randn(state.shape)


CASES: dict[str, tuple[Any, str, dict[str, Any], dict[str, Any]]] = {
    "ppo": ("CartPole-v1", "ppo", NUMBERS | {"clip_coef": (0.1, 0.3), "max_grad_norm": [None, 0.5]}, TINY),
    "schedules": ("CartPole-v1", "ppo", {"learning_rate": ["linear(1e-3, 0)", 1e-3], "ent_coef": (0, 0.1)}, TINY),
    "gaussian": ("Pendulum-v1", "ppo", NUMBERS, TINY | dict(norm_obs=True, norm_reward=True)),
    "passes": ("CartPole-v1", "ppo", {"update_epochs": [1, 3], "num_minibatches": [1, 4], "norm_adv": [True, False]}, SHORT),
    "target_kl": ("CartPole-v1", "ppo", {"target_kl": [None, 1e-4], "gae_lambda": (0.8, 1.0)}, TINY),
    "memory": ("CartPoleNoVelocity-v0", "ppo", NUMBERS, TINY | dict(memory="gru", memory_size=8, total_timesteps=512)),
    "vpg": ("CartPole-v1", "vpg", {"learning_rate": (1e-3, 1e-2), "gamma": (0.9, 1.0), "ent_coef": (0, 0.1)}, TINY_VPG),
    "critic": ("CartPole-v1", "vpg", {"vf_coef": [0.0, 1.0]}, TINY_VPG | dict(baseline="critic", full_reset=False)),
    "own env": (Drifting, "ppo", NUMBERS, TINY),
}  # fmt: skip


def state_of(agent: tr.Agent) -> dict[str, torch.Tensor]:
    """The state without times, and without the generator from which the checks of types in tests draw."""
    return {k: x for k, x in agent.state.state_dict().items() if k not in ("run.seconds", "streams.python")}


def check_same_state(run_dir: Path, alone: tr.Agent, env: Any = None) -> None:
    """A saved run has exactly the state of an agent."""
    saved, mine = state_of(tr.load(run_dir, env=None if isinstance(env, str) else env)), state_of(alone)
    assert saved.keys() == mine.keys()
    assert [name for name in mine if not torch.equal(saved[name], mine[name])] == []


def rows(run_dir: Path) -> list[dict[str, float]]:
    """The metrics of a run, without times."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "charts/SPS")} for row in found]


@pytest.mark.parametrize("case", CASES)
def test_each_agent_is_the_run_that_it_would_be_alone(case: str, tmp_path: Path) -> None:
    env, algo, vary, settings = CASES[case]
    population = tr.Population(env, 2, vary, algo=algo, seed=11, rounds=2, **settings)
    population.learn(tmp_path / "many", jobs=1, quiet=True)
    for agent in population.agents:
        make = tr.PPO if algo == "ppo" else tr.VPG
        alone = make(env, seed=agent.seed, video_every=0, **{**settings, **agent.settings})
        alone.learn(run_dir=tmp_path / f"alone{agent.number}", quiet=True)
        assert agent.run_dir is not None
        assert agent.finished
        check_same_state(agent.run_dir, alone, env)
        assert rows(agent.run_dir) == rows(tmp_path / f"alone{agent.number}")
        if case != "own env":  # whose evaluations draw random numbers
            assert agent.score == alone.evaluate(settings["eval_episodes"]).mean


def test_several_processes_share_the_agents(tmp_path: Path) -> None:
    settings = TINY | dict(hidden_sizes=(64, 64))
    with threads(2):  # of which the initial weights depend in their last digits, and whose pool a fork must not inherit
        population = tr.Population("CartPole-v1", 4, NUMBERS, seed=21, **settings).learn(tmp_path, jobs=2, quiet=True)
        for agent in population.agents:
            assert agent.run_dir is not None
            alone = tr.PPO("CartPole-v1", seed=agent.seed, **{**settings, **agent.settings}).learn(quiet=True)
            check_same_state(agent.run_dir, alone)


def test_one_recording_serves_all_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = gradients.RecordedGradient.__init__
    monkeypatch.setattr(
        gradients.RecordedGradient, "__init__", lambda self, *args: (made.append(self), original(self, *args))[1]
    )
    tr.Population("CartPole-v1", 4, NUMBERS, **TINY).learn(tmp_path, jobs=1, quiet=True)
    assert len(made) == 1


def test_an_agent_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    population = tr.Population("CartPole-v1", 2, {"learning_rate": [1e-3, 1e30]}, seed=2, anneal_lr=False, **TINY)
    population.learn(tmp_path, jobs=1, quiet=True)
    bad = next(agent for agent in population.agents if agent.settings["learning_rate"] == 1e30)
    good = next(agent for agent in population.agents if agent is not bad)
    assert "not finite" in bad.failed
    assert bad.rank == -math.inf
    assert good.finished
    assert not good.failed
    assert population.results == [good, bad]
    assert "not finite" in (tmp_path / "population.html").read_text()


@pytest.mark.parametrize(("error", "stopped"), [(ValueError("of the user"), False), (SystemExit(143), True)])
def test_an_error_or_a_signal_in_an_evaluation_ends_a_turn(
    error: BaseException, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(turns, "greedy_score", broken)
    found = turns.Turns(lambda settings: tr.PPO("CartPole-v1", **TINY, **settings)).take(
        turns.Turn(0, tmp_path / "run", {}), lambda progress: None, lambda: False
    )
    assert (found.steps, found.stopped) == (1024, stopped)
    assert ("ValueError: of the user" in found.failed) != stopped


def test_the_best_agent_is_an_ordinary_run(tmp_path: Path) -> None:
    population = tr.Population("CartPole-v1", 2, {"ent_coef": (0, 0.02)}, **TINY).learn(tmp_path, jobs=1, quiet=True)
    best = population.results[0]
    assert best.run_dir is not None
    agent = tr.load(best.run_dir)
    assert agent.config.algorithm.ent_coef == best.settings["ent_coef"]
    assert agent.evaluate(4).mean == best.score
    agent.learn(total_timesteps=2048, quiet=True)
    assert agent.steps == 2048


# stopping and continuing -------------------------------------------------------------------------------------------------

EXPLOITING = dict(rounds=4, exploit=True, seed=31)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 2])
def test_a_killed_population_continues_as_if_nothing_had_happened(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tr.Population("CartPole-v1", 3, NUMBERS, **EXPLOITING, **TINY).learn(tmp_path / "whole", quiet=True, jobs=1)
    assert len(whole.record.lineage) == 3

    def die(self: tr.Population, running: bool = False) -> None:
        if self.record.round == after:
            raise Killed

    killed = tr.Population("CartPole-v1", 3, NUMBERS, **EXPLOITING, **TINY)
    with monkeypatch.context() as patch:
        patch.setattr(tr.Population, "write_page", die)
        with pytest.raises(Killed):
            killed.learn(tmp_path / "killed", quiet=True, jobs=1)
    again = tr.Population.load(tmp_path / "killed").learn(quiet=True, jobs=1)
    assert again.record.lineage == whole.record.lineage
    for one, other in zip(whole.agents, again.agents, strict=True):
        assert (one.settings, one.score, one.steps) == (other.settings, other.score, other.steps)
        assert one.run_dir is not None
        assert other.run_dir is not None
        check_same_state(one.run_dir, tr.load(other.run_dir))
        assert rows(one.run_dir) == rows(other.run_dir)


def test_ctrl_c_saves_every_agent_and_resume_continues(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    words = (
        "train CartPole-v1 --population 3 --vary gamma=0.9..1 --num-envs 8 --num-steps 32 --eval-episodes 4 --jobs 2"
    )
    process = start_command(*words.split(), "--total-timesteps", "32768", "--run-dir", str(folder))
    deadline = time.monotonic() + 120
    while not all((folder / f"agent000{i}" / "metrics.jsonl").exists() for i in (0, 1)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 130, complaints
    assert f"stopped with 3 of 3 agents unfinished; `tightrope resume {folder}` continues" in said
    assert not (folder / "agent0002").exists()
    assert tr.load(folder / "agent0001").steps < 32768

    process = start_command("resume", str(folder), "--quiet")
    said, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    assert said.startswith("CartPole-v1: 3 agents: greedy return best ")
    alone = tr.PPO("CartPole-v1", num_envs=8, num_steps=32, total_timesteps=32768, seed=2, gamma=gamma_of(folder, 1))
    check_same_state(folder / "agent0001", alone.learn(quiet=True))


def gamma_of(folder: Path, number: int) -> float:
    found: float = json.loads((folder / FILE).read_text())["agents"][number]["settings"]["gamma"]
    return found


def test_a_takeover_copies_the_network_and_keeps_the_environments(tmp_path: Path) -> None:
    population = tr.Population("CartPole-v1", 3, {"learning_rate": (1e-3, 1e-2)}, **EXPLOITING, **TINY)
    population.learn(tmp_path, quiet=True, jobs=1)
    one = population.record.lineage[0]
    assert (one.round, one.steps) == (1, 256)
    changes = tr.load(tmp_path / f"agent{one.agent:04d}").config.changes
    assert (changes[0].step, changes[0].saved()["to"]) == (256, one.after["learning_rate"])
    page = (tmp_path / "population.html").read_text()
    assert "Who descends from whom" in page


def test_explored_settings_that_are_invalid_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.population.vary.explored", lambda space, settings, random: {"learning_rate": -1.0})
    population = tr.Population("CartPole-v1", 3, {"learning_rate": (1e-3, 1e-2)}, **EXPLOITING, **TINY)
    population.learn(tmp_path, quiet=True, jobs=1)
    assert population.record.lineage
    assert all(one.after["learning_rate"] > 0 for one in population.record.lineage)
    assert not any(agent.failed for agent in population.agents)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (dict(gamma=0.5), "gamma 0.5 is not the None of the population"),
        (dict(seed=5), "seed 5 is not the 1"),
        (dict(size=3), "population 3 is not the 2"),
        (dict(vary={"ent_coef": (0, 0.5)}), "vary ent_coef .* is not the .* give that, or another run_dir"),
    ],
)
def test_a_directory_belongs_to_one_population(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    given: dict[str, Any] = dict(size=2, vary={"ent_coef": (0, 0.02)}, **TINY)
    tr.Population("CartPole-v1", **given).learn(tmp_path, jobs=1, quiet=True)
    with pytest.raises(UsageError, match=words):
        tr.Population("CartPole-v1", **given | changed).learn(tmp_path, jobs=1, quiet=True)
    with pytest.raises(UsageError, match=r"is not a population: it has no population\.json"):
        tr.Population.load(tmp_path / "agent0000")
    (tmp_path / FILE).write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        tr.Population.load(tmp_path)


# bad input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("CartPole-v1 --population 0", "population 0 is invalid: give a whole number from 1"),
        ("CartPole-v1 --population 4 --vary lerning_rate=1..2", "unknown setting 'lerning_rate'.* Did you mean learning_rate"),
        ("CartPole-v1 --population 4 --vary num_steps=8..16", "vary num_steps is invalid: all agents share tensors"),
        ("CartPole-v1 --population 4 --vary hidden_sizes=32,64", "vary hidden_sizes is invalid: all agents share tensors"),
        ("CartPole-v1 --population 4 --vary total_timesteps=1..2", "all agents train equally long"),
        ("CartPole-v1 --population 4 --vary ent_coef=0..0.1,log", "vary ent_coef low 0.0 has no logarithm"),
        ("CartPole-v1 --population 4 --vary gamma=0.99..0.9", "vary gamma goes from low 0.99 to high 0.9: swap them"),
        ("CartPole-v1 --population 4 --vary gamma=0.9..1.5", "vary gamma 1.5 is invalid: gamma 1.5 is out of range"),
        ("CartPole-v1 --population 4 --vary gamma", "vary 'gamma' is not name=range"),
        ("CartPole-v1 --population 4 --vary gamma=0.9..", "vary gamma '0.9..' is not a range"),
        ("CartPole-v1 --population 4 --vary seed=1..3", "vary seed is not needed"),
        ("CartPole-v1 --population 4 --vary eval_every=1..5", "only settings of the algorithm can vary"),
        ("CartPole-v1 --population 4 --vary norm_adv=0..1", "vary norm_adv is not a number and has no range"),
        ("CartPole-v1 --population 4 --vary gamma=0.9,0.9", "vary gamma .* has a choice twice"),
        ("CartPole-v1 --population 4 --vary gamma=0.9,0.99 gamma=0..1", "vary gamma is given twice"),
        ("CartPole-v1 --population 4 --vary gamma=0.9,0.99 --gamma 0.5", "vary gamma is also given as a setting"),
        ("CartPole-v1 --population 4 --vary num_minibatches=1..8", "agent . would have invalid settings: num_minibatches"),
        ("CartPole-v1 --population 4 --exploit", "exploit needs at least 2 agents, settings that vary"),
        ("CartPole-v1 --population 4 --rounds 0", "rounds 0 is invalid"),
        ("CartPole-v1 --population 4 --rounds 999", "rounds 999 are more than the .* phases of a run"),
        ("CartPole-v1 --population 4 --jobs 0", "jobs 0 is invalid"),
        ("CartPole-v1 --population 4 --log tensorboard", "log tensorboard is not possible in a population"),
        ("CartPole-v1 --population 4 --seeds 1-4", "seeds 1-4 and population 4 are both given"),
        ("CartPole-v1 --vary gamma=0..1", "vary gamma=0..1 needs a population"),
        ("CartPole-v1 --exploit", "exploit needs a population"),
        ("Acrobot-v1 --population 4 --backend gymnasium", "is not a tensor environment, which a population needs"),
        ("CartPol-v1 --population 4", "CartPol-v1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(flags: str, words: str, tightrope: Any, tmp_path: Path) -> None:
    code, said, complaint = tightrope("train", flags, f"--run-dir {tmp_path / 'none'}")
    assert code == 2
    assert complaint.count("\n") == 1
    assert re.search(words, complaint), complaint
    assert not said
    assert not (tmp_path / "none").exists()


def plain_gae(*given: Any) -> torch.Tensor:
    return tr.functional.gae(*given)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (dict(memory="gru", num_minibatches=1, learning_rate="piecewise(0: 1e-3, 1: 0)", train_env="EasyCart-v0"), None),
        (dict(gae=plain_gae), f"has gae {__name__}:plain_gae,"), (dict(train_env=Drifting), f"train_env {__name__}:Drifting"),
        (dict(learning_rate=lambda progress: 1e-3), f"has learning_rate {__name__}:"),
    ],
)  # fmt: skip
def test_only_code_must_be_given_again(settings: dict[str, Any], asked: str | None, tmp_path: Path) -> None:
    given: dict[str, Any] = {**TINY, **settings}
    tr.Population("CartPole-v1", 1, **given).learn(tmp_path, jobs=1, quiet=True)
    if asked is not None:
        with pytest.raises(UsageError, match=asked):
            tr.Population.load(tmp_path)
    again = tr.Population.load(tmp_path, **(settings if asked else {}))
    assert again.learn(jobs=1, quiet=True).agents[0].finished
