"""Phases that do not stay finite: what is said, what is written, and where the run stands afterwards."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import AGENTS, Spoiled, assert_same_state, rows, start_command, state_after
from safetensors.torch import load_file
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine import unguarded
from tightrope.engine.guard import lateness
from tightrope.training import nonfinite
from tightrope.training.nonfinite import NonFiniteGuard

NAN = float("nan")
SMALL: dict[str, Any] = dict(num_steps=8, total_timesteps=32 * 12, seed=3, video_every=0)
SIZED: dict[str, Any] = {**SMALL, "num_envs": 4, "device": "cpu"}
OWN: dict[str, dict[str, Any]] = {"ppo": {}, "vpg": {"full_reset": False, "baseline": "critic"}}


class BadReward(Spoiled):
    """One reward is nan."""


class HugeReward(Spoiled):
    value = 1e38


class BadObservation(Spoiled):
    what = "observation"


class LargeRewards(tr.envs.Pendulum):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.full_like(state[:, 0], 1e14)


class HugeObservation(tr.envs.Pendulum):
    def observe(self, state: Tensor) -> Tensor:
        return super().observe(state) * 1e25


class Root(nn.Module):
    """Not finite for negative features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sqrt()


class RootAtZero(Root):
    """Finite, but not its derivative."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * 0).square().sqrt()


def caught(agent: tr.Agent, run_dir: Path | None = None) -> str:
    """The one line of a training that does not stay finite."""
    with pytest.raises(tr.NotFinite) as error:
        agent.learn(run_dir=run_dir, quiet=True)
    line = str(error.value)
    assert "\n" not in line
    return line


def spread(log_std: float) -> tr.Agent:
    agent = tr.PPO("Pendulum-v1", **SIZED)
    agent.state.policy.head.log_std.data.fill_(log_std)
    return agent


# what is said --------------------------------------------------------------------------------------------------------

PENDULUM = "Pendulum-v1"
ENV_AT_FAULT = r"; look at the env, .*tightrope check"
TOO_LARGE = r": env gave reward 1e\+38 at env 3, step 3, whose square is too large; scale or clip rewards"
BY_NETWORK = r"the network made it of a finite observation, first in its layer actor\.network \(Root\)"
LARGE: dict[str, Any] = {**SMALL, "vf_coef": 1e8}
# what is trained, the beginning of the line, what follows; RUN is the run's directory
SAID: list[tuple[Callable[[], tr.Agent], str, str]] = [
    *(
        (lambda a=algo, e=env: AGENTS[a](e(4), **SMALL, **OWN[a]), rf"phase 3 is not finite: {bad}", ENV_AT_FAULT)
        for algo in AGENTS
        for env, bad in [
            (BadObservation, r"env gave observation nan at env 3, step 3 \(entry 1\)"),
            (BadReward, "env gave reward nan at env 3, step 3"),
        ]
    ),
    (lambda: tr.PPO(HugeReward(4), **SMALL, norm_reward=False), "phase 3 is not finite: .*", TOO_LARGE),
    (lambda: tr.PPO(HugeReward(4), **SMALL, norm_reward=True), "phase 3 is not finite: .*", TOO_LARGE),
    (lambda: tr.VPG(HugeReward(4), **SMALL, **OWN["vpg"]), "phase 3 is not finite: .*", TOO_LARGE),
    (
        lambda: tr.PPO(LargeRewards(4), **LARGE, norm_reward=False),
        "phase 1 is not finite: .*",
        r"scale rewards, or set norm_reward; .*`tightrope resume RUN --env test_nonfinite:LargeRewards --norm-reward`$",
    ),
    (
        lambda: tr.PPO(HugeObservation(4), **SMALL, norm_obs=True),
        "phase 1 is not finite: statistics normalizer.variance is .*",
        r"env gave observation -?\d\.\d+e\+25 at env \d, step \d \(entry \d\); scale or clip",
    ),
    *(
        (
            lambda r=rate: tr.PPO(PENDULUM, **SIZED, learning_rate=r),
            r"phase \d is not finite: (gradient of|loss term) \S+ (is|reaches) \S+ .*in update \d.*",
            "learning rate too high, KL rose from 0 to inf within the phase; try learning_rate 0.001; .*; "
            "then resume from the phase before with `tightrope resume RUN --learning-rate 0.001`$",
        )
        for rate in (1e6, 1e30)
    ),
    (  # what there is to go on from is finite, but no good
        lambda: tr.VPG(PENDULUM, **SIZED, learning_rate=1e6),
        "phase 2 is not finite: policy gave log-probability .*learning rate too high, ",
        r".*has grown to 1e\+06; try learning_rate 0.001 and max_grad_norm 0.5, from the start; (?!.*resume)",
    ),
    (lambda: spread(90.0), "phase 1 ", ".*log_std has grown to 90"),
    (lambda: spread(-90.0), "phase 1 ", ".*log_std has shrunk to -90"),
    *(
        (
            lambda a=algo: AGENTS[a](PENDULUM, **SIZED, network=Root()),
            "phase 1 is not finite: policy gave log-probability nan at env 0, step 0: ",
            BY_NETWORK,
        )
        for algo in AGENTS
    ),
    (
        lambda: tr.PPO(PENDULUM, **SIZED, network=RootAtZero()),
        r"phase 1 is not finite: gradient of actor\.network\.layer\.weight is nan in update 0: ",
        "the network made it",
    ),
]


@pytest.mark.parametrize(("agent", "begins", "follows"), SAID)
def test_the_first_bad_number_is_named_with_its_cause_and_a_fix(
    agent: Callable[[], tr.Agent], begins: str, follows: str, tmp_path: Path
) -> None:
    line = caught(agent(), tmp_path)
    assert re.match(begins + follows.replace("RUN", re.escape(str(tmp_path))), line), line


def test_the_advice_about_rewards_helps(tmp_path: Path) -> None:
    class Local(LargeRewards):
        pass

    line = caught(tr.PPO(Local(4), **LARGE, norm_reward=False), tmp_path)
    assert line.endswith(f'`tr.load("{tmp_path}", env=...).learn()`'), "no command can name a class of a function"
    tr.PPO(Local(4), **LARGE, norm_reward=True).learn(quiet=True)


def test_a_divergence_that_rose_over_phases_is_told_as_such() -> None:
    agent = tr.PPO("Pendulum-v1", **SIZED)
    guard, kls = NonFiniteGuard(agent.state, agent.config), iter((0.02, 0.3, 4.0, 41.0, 5.0))
    for metrics in unguarded(ALGORITHMS["ppo"].loop)(agent.state, agent.config.algorithm):
        metrics = metrics._replace(terms=metrics.terms._replace(approx_kl=torch.tensor(next(kls))))
        if agent.state.phase == 5:
            metrics.health[..., -1] = NAN
            guard.add(metrics)
            break
        guard.add(metrics)
        guard.check_metrics()
        guard.snapshot()
    with pytest.raises(tr.NotFinite, match=r"KL rose from 0.02 to 41 over 5 phases; try learning_rate 0.0002"):
        guard.check_metrics()


def test_an_env_that_cannot_be_put_back_is_not_asked_again(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    class Breaks(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
        made = 0

        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))
            self.number, Breaks.made = Breaks.made, Breaks.made + 1
            self.steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            obs, *rest = self.env.step(action)
            if self.number == 2 and self.steps == 13:
                obs[3] = math.inf
                rest[1] = False
            return obs, *rest

    settings = dict(num_envs=4, num_steps=8, total_timesteps=320, device="cpu")
    agent = tr.PPO(lambda: Breaks(), **settings)
    Breaks.made = -100  # what is made from here on is sound
    with pytest.raises(
        tr.NotFinite, match=r"env gave (final )?observation inf at env 2, step [45] \(entry 3\)"
    ) as error:
        agent.learn(run_dir=tmp_path, quiet=True)
    assert str(error.value).startswith("phase 2 ")
    assert agent.state.phase == 1
    assert torch.isfinite(agent.state.obs).all()
    rollout = load_file(tmp_path / "crash" / "phase-000002" / "rollout.safetensors")
    assert not torch.isfinite(rollout["obs"]).all()
    agent.learn(quiet=True)  # from fresh episodes
    assert agent.steps == 320


# what is written -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", AGENTS)
def test_the_bundle_has_it_all(algo: str, tmp_path: Path) -> None:
    line = caught(AGENTS[algo](BadReward(4), **SMALL, **OWN[algo]), tmp_path)
    folder = tmp_path / "crash" / "phase-000003"
    command = f"tightrope resume {tmp_path} --env test_nonfinite:BadReward"
    assert f"the evidence is in {folder}; once it is fixed, resume from the phase before with `{command}`" in line

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    report = json.loads((folder / "report.json").read_text(), parse_constant=refuse)
    found = [report[key] for key in ("phase", "first", "kind")]
    assert found == [3, "env gave reward nan at env 3, step 3", "reward"]
    assert "tightrope check" in report["fix"]
    assert report["not finite"][0] == "reward"
    assert [row["phase"] for row in report["metrics"]] == [1, 2, 3]
    assert report["config"]["num_steps"] == 8
    assert report["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in report["versions"]["torch"]
    agent = AGENTS[algo](PENDULUM, **SIZED, **OWN[algo])
    assert list(report["gradient norms"]) == [name for name, _ in agent.policy.named_parameters()]
    assert "nan" in report["gradient norms"].values()
    assert 0 <= report["update"] < agent.config.algorithm.updates_per_phase
    rollout, minibatch = (load_file(folder / f"{name}.safetensors") for name in ("rollout", "minibatch"))
    assert torch.isnan(rollout["reward"]).nonzero().tolist() == [[3, 3]]
    assert rollout["obs"].shape == (8, 4, 3)
    assert not torch.isfinite(minibatch["target"]).all()
    assert [row["phase"] for row in rows(tmp_path)] == [1, 2], "the bad phase is in no metrics file"


def test_a_bundle_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nonfinite, "write_evidence", full)
    line = caught(tr.PPO(BadReward(4), **SMALL), tmp_path)
    assert re.search("env gave reward nan at env 3, step 3.*could not be written to.*No space left", line)
    monkeypatch.setattr("tightrope.training.run_directory.save_checkpoint", full)
    line = caught(tr.PPO(BadReward(4), **{**SMALL, "seed": 4}), tmp_path / "other")
    assert "env gave reward nan" in line
    assert "cannot be saved to (No space left on device)" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["crash", "crash/phase-000003"])
def test_evidence_is_not_written_through_a_link(place: str, tmp_path: Path) -> None:
    agent, elsewhere = tr.PPO(BadReward(4), **SMALL), tmp_path / "elsewhere"
    elsewhere.mkdir()
    agent.learn(until=1, run_dir=tmp_path / "run", quiet=True)
    (tmp_path / "run" / place).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / place).symlink_to(elsewhere)
    with pytest.raises(tr.NotFinite, match="is a link"):
        agent.learn(quiet=True)
    assert list(elsewhere.iterdir()) == []


def test_a_look_that_fails_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("of our own")

    agent = tr.PPO(BadReward(4), **SMALL)
    monkeypatch.setattr(nonfinite, "first_bad", broken)
    assert caught(agent).startswith("phase 3 is not finite: reward and ")
    assert agent.state.phase == 2


# where the run stands ------------------------------------------------------------------------------------------------


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"norm_obs": True, "norm_reward": True}), ("ppo", {"share_trunk": True}), ("vpg", OWN["vpg"])
]  # fmt: skip


@pytest.mark.parametrize(
    ("algo", "settings", "bad", "late", "saved"),
    [
        *((algo, settings, 3, 0, True) for algo, settings in KINDS),
        *(("ppo", {}, bad, late, False) for bad in (1, 2, 5) for late in (0, 1)),
    ],
)
def test_the_state_is_that_before_the_bad_phase(
    algo: str, settings: dict[str, Any], bad: int, late: int, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Read late, as on a device, the bad phase is known when the next has been run."""
    monkeypatch.setattr("tightrope.engine.guard.lateness", lambda env: late)
    monkeypatch.setattr(BadReward, "at", 8 * (bad - 1) + 3)
    given = {**SMALL, "total_timesteps": 32 * 5, **settings}
    agent = AGENTS[algo](BadReward(4), **given)
    line = caught(agent, tmp_path if saved else None)
    assert line.startswith(f"phase {bad} is not finite: env gave reward nan at env 3, step 3;")
    expected = state_after(bad - 1, AGENTS[algo](BadReward(4), **given))
    assert_same_state(agent, expected)
    if saved:
        assert_same_state(tr.load(tmp_path, env=BadReward(4)), expected)


def test_what_comes_next_is_what_a_sound_run_would_have_done() -> None:
    """Recordings included: that a batch was bad is no reason to give them up."""

    class Once(HugeReward):
        """In the very first phase, in which recordings are made."""

        at = 3

    agent = tr.PPO(Once(4), **SMALL)
    caught(agent)
    assert agent.state.phase == 0
    agent.state.env.value = 0.0  # fixed
    fixed = tr.PPO(Once(4), **SMALL)
    fixed.state.env.value = 0.0
    assert_same_state(state_after(2, agent), state_after(2, fixed))
    assert all(agent.state.runtime.recorded.kept.values())


def test_nothing_bad_is_scored_or_kept_as_the_best(tmp_path: Path) -> None:
    agent = tr.PPO(BadReward(4), **SMALL, eval_every=32, eval_episodes=2, save_seconds=0)
    caught(agent, tmp_path)
    for checkpoint in ("last", "best"):
        loaded = tr.load(tmp_path, env=BadReward(4), checkpoint=checkpoint)
        assert loaded.state.phase <= 2
        assert torch.isfinite(loaded.state.optimizer.flat).all()


def test_a_rollout_that_was_broken_off_is_looked_at_as_far_as_it_went(tmp_path: Path) -> None:
    class Mortal(tr.envs.CartPole):
        pure = False

        def terminated(self, state: Tensor) -> Tensor:
            return self.clock >= torch.tensor([2, 4, 9, 9])[: len(state)]

        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            return torch.where(self.clock == 3, NAN, torch.ones_like(state[:, 0]))

    settings = {**SMALL, "num_steps": 20, "total_timesteps": 800, "dead_fraction": 0.5}
    line = caught(tr.VPG(Mortal(4), **settings), tmp_path)
    assert line.startswith("phase 1 is not finite: env gave reward nan at env 1, step 3;")
    rollout = load_file(tmp_path / "crash" / "phase-000001" / "rollout.safetensors")
    assert rollout["reward"].shape == (5, 4)


def test_only_where_the_env_can_be_put_back_are_metrics_read_late() -> None:
    env = tr.envs.CartPole(2)
    assert lateness(env) == 0
    env.device = torch.device("cuda")
    assert lateness(env) == 1
    env.resumable = False
    assert lateness(env) == 0


def test_an_env_that_does_not_do_it_again_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[bool] = []  # not in the environment, which would be put back

    class Fickle(BadReward):
        pure = False

        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            reward = super().reward(state, action, next_state)
            if done or not torch.isnan(reward).any():
                return reward.nan_to_num()
            done.append(True)
            return reward

    line = caught(tr.PPO(Fickle(4), **SMALL))  # the rollout is still there
    assert line.startswith("phase 3 is not finite: env gave reward nan at env 3, step 3;")
    done.clear()
    monkeypatch.setattr("tightrope.engine.guard.lateness", lambda env: 1)
    line = caught(tr.PPO(Fickle(4), **SMALL))
    assert "phase 3 is not finite: reward and loss" in line
    assert "but not when it was run again eagerly" in line


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    command = ["train", "Pendulum-v1", "--run-dir", "r", "--learning-rate", "1e6", "--num-envs", "4", "--num-steps", "8",
               "--num-minibatches", "4", "--total-timesteps", "640", "--quiet", "--device", "cpu"]  # fmt: skip
    process = start_command(*command, cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.count("\n") == 1, err
    assert err.startswith("tightrope: phase ")
    assert "learning rate too high" in err
    assert f"phase {tr.load(tmp_path / 'r').state.phase + 1} is not finite" in err


# on a device ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("accelerate", ["eager", "graph"])
def test_on_a_device_the_bundle_is_that_of_the_right_phase(accelerate: str, tmp_path: Path) -> None:
    agent = tr.PPO(BadReward(4, "cuda"), **SMALL, accelerate=accelerate)
    line = caught(agent, tmp_path)
    assert line.startswith("phase 3 is not finite: env gave reward nan at env 3, step 3;")
    rollout = load_file(tmp_path / "crash" / "phase-000003" / "rollout.safetensors")
    assert torch.isnan(rollout["reward"]).nonzero().tolist() == [[3, 3]]
    assert_same_state(agent, state_after(2, tr.PPO(BadReward(4, "cuda"), **SMALL, accelerate=accelerate)))


@pytest.mark.gpu
@pytest.mark.parametrize("accelerate", ["eager", "graph"])
def test_on_a_device_a_learning_rate_too_high_is_found(accelerate: str) -> None:
    agent = tr.PPO("Pendulum-v1", **{**SIZED, "device": "cuda"}, learning_rate=1e6, accelerate=accelerate)
    assert "learning rate too high" in caught(agent)
