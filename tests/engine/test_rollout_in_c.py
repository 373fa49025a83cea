"""Runs whose recordings are C code: rollouts in one call, resuming, and which runs are compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import assert_same_state, forge, manifest_of, newest
from torch import Tensor

import tightrope as tr
from tightrope.engine import Runtime, collect, draw_noise, rollout_in_c, runtime
from tightrope.envs.with_memory import with_memory
from tightrope.models import NetworkConfig, actor_critic
from tightrope.training.plan import plan
from tightrope.types import Rollout

pytestmark = pytest.mark.usefixtures("c_compiler")
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=16, hidden_sizes=(8, 8), seed=3, device="cpu", threads=1)
ENVS = [tr.envs.CartPole, tr.envs.Pendulum, tr.envs.MountainCar, tr.envs.Acrobot, tr.envs.DanceCart, tr.envs.SpinCart]


class Shown(tr.envs.CartPole):
    """Shows part of its state, in an observation of its own."""

    observation = tr.types.Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([state[:, 0] * 2, state[:, 2].tanh()], 1)


def rolled_out(env: Any, dead_fraction: float | None, memory: str | None = None) -> list[Tensor]:
    """Everything that three rollouts leave behind."""
    torch.manual_seed(0)
    policy = actor_critic(env.observation, env.action, NetworkConfig(hidden_sizes=(8,), memory=memory, memory_size=6))
    inner, env = env, with_memory(env, policy.memory_rows)
    rollout, obs = Rollout.allocate(30, env), env.reset(seed=3)
    found: list[Tensor] = []
    for phase in range(3):
        rollout.final_obs.zero_()
        noise = draw_noise(env, policy.head.noise, 30, (1, 1), 0, phase)
        obs, taken = Runtime(compiles_recordings=True).collect(env, policy, rollout, obs, noise, dead_fraction)
        first = rollout.first(taken)
        found += [obs, torch.tensor(taken), first.obs, first.action, first.reward, first.terminated, first.truncated]
        found += [first.final_obs, first.log_prob, first.value]
        found += [inner.state, inner.clock, inner._running_return, inner._finished]
        found = [x.clone() for x in found]
    return found


@pytest.mark.parametrize("dead_fraction", [None, 0.4])
@pytest.mark.parametrize(
    ("kind", "memory"), [*((kind, None) for kind in [*ENVS, Shown]), *((kind, "lstm") for kind in (ENVS[1], Shown))]
)
def test_a_rollout_in_one_call_has_the_bits_of_single_steps(
    kind: type[tr.envs.TensorEnv], memory: str | None, dead_fraction: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def counted(*args: Any) -> Any:
        calls.append(found := rollout_in_c.collect_in_c(*args))
        return found

    monkeypatch.setattr(collect, "collect_in_c", counted)
    in_one = rolled_out(kind(5, max_episode_steps=13), dead_fraction, memory)
    assert None not in calls
    monkeypatch.setattr(collect, "collect_in_c", lambda *args: None)
    for mine, theirs in zip(in_one, rolled_out(kind(5, max_episode_steps=13), dead_fraction, memory), strict=True):
        assert torch.equal(mine, theirs)


class Masked(tr.envs.CartPole):
    def action_mask(self, state: Tensor) -> Tensor:
        return torch.ones(len(state), 2, dtype=torch.bool)


class Sorted(tr.envs.CartPole):
    """Uses an operation without C code."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state.sort(-1)[0][:, 0]


@pytest.mark.parametrize("kind", [Masked, Sorted])
def test_other_environments_take_single_steps(kind: type[tr.envs.TensorEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_in_c, "collector", lambda: pytest.fail("this needs Python between its steps"))
    rolled_out(kind(3), None)


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.parametrize("kind", [Masked, Sorted])
def test_an_action_by_one_call_has_the_bits_of_one_over_arrays(
    kind: type[tr.envs.TensorEnv], memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_one_call: list[bool] = []

    def counted(*args: Any) -> Any:
        found = rollout_in_c.act_in_c(*args)
        by_one_call.append(found is not None)
        return found

    monkeypatch.setattr(collect, "act_in_c", counted)
    in_c = rolled_out(kind(3), None, memory)
    assert by_one_call == [True] * 3
    monkeypatch.setattr(collect, "act_in_c", lambda *args: None)
    assert all(map(torch.equal, in_c, rolled_out(kind(3), None, memory)))


@pytest.mark.parametrize("memory", [None, "gru"])
def test_a_method_that_was_replaced_between_rollouts_counts(memory: str | None) -> None:
    class Paid(tr.envs.CartPole):
        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            return torch.full_like(state[:, 0], 2.0)

    env: Any = Paid(3)
    policy = actor_critic(env.observation, env.action, NetworkConfig(hidden_sizes=(8,), memory=memory))
    env = with_memory(env, policy.memory_rows)
    rollout, obs = Rollout.allocate(8, env), env.reset(seed=1)
    for wanted in (2.0, 5.0):
        noise = draw_noise(env, policy.head.noise, 8, (1, 1), 0, 0)
        obs, _ = Runtime(compiles_recordings=True).collect(env, policy, rollout, obs, noise)
        assert (rollout.reward == wanted).all()
        Paid.reward = lambda self, state, action, next_state: torch.full_like(state[:, 0], 5.0)  # type: ignore[method-assign]


@pytest.mark.parametrize("memory", [None, "gru"])
def test_a_method_of_one_environment_may_read_what_changes(memory: str | None) -> None:
    paid = [2.0]
    env: Any = tr.envs.CartPole(3)
    env.reward = lambda state, action, next_state: torch.full_like(state[:, 0], paid[0])
    policy = actor_critic(env.observation, env.action, NetworkConfig(hidden_sizes=(8,), memory=memory))
    env = with_memory(env, policy.memory_rows)
    rollout, obs = Rollout.allocate(8, env), env.reset(seed=1)
    for wanted in (2.0, 5.0):
        paid[0] = wanted
        noise = draw_noise(env, policy.head.noise, 8, (1, 1), 0, 0)
        obs, _ = Runtime(compiles_recordings=True).collect(env, policy, rollout, obs, noise)
        assert (rollout.reward == wanted).all()


def test_numbers_that_are_not_finite_reach_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MIN_CALLS", 0)

    class Broken(tr.envs.Pendulum):
        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            return super().reward(state, action, next_state) / (self.clock_like(state))

        def clock_like(self, state: Tensor) -> Tensor:
            return (state[:, 0] < 3).float()  # 0 at some time

    agent = tr.PPO(Broken, **SMALL, total_timesteps=64 * 100)
    assert agent.state.runtime.compiles_recordings
    with pytest.raises(tr.errors.NotFinite, match="reward"):
        agent.learn(quiet=True)


# runs -------------------------------------------------------------------------------------------------------------------


RUNS: list[tuple[type[tr.Agent], str, dict[str, Any]]] = [
    (tr.PPO, "CartPole-v1", dict(num_minibatches=2)),
    (tr.PPO, "Pendulum-v1", dict(num_minibatches=2, norm_obs=True, norm_reward=True)),
    (tr.VPG, "CartPole-v1", {}),
    (tr.PPO, "CartPoleNoVelocity-v0", dict(num_minibatches=2, memory="gru", memory_size=8)),
]


@pytest.mark.parametrize(("cls", "env", "settings"), RUNS)
def test_a_compiled_run_resumes_exactly(
    cls: type[tr.Agent], env: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_CALLS", 0)
    given = {**SMALL, **settings, "total_timesteps": 64 * 6, "eval_every": 0, "stop_at_return": None}
    whole = cls(env, **given).learn(quiet=True)
    assert whole.state.runtime.compiles_recordings
    cls(env, **given).learn(until=64 * 3, run_dir=tmp_path, quiet=True)
    assert_same_state(whole.state.state_dict(), tr.load(tmp_path).learn(quiet=True).state.state_dict())


def planned(agent: tr.Agent) -> list[str]:
    return plan(agent.state, agent.config).lines()


def test_only_long_runs_are_compiled(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    short, long = (
        planned(tr.PPO("CartPole-v1", **SMALL, num_minibatches=1, update_epochs=4, total_timesteps=64 * phases))
        for phases in (149, 150)
    )
    assert short[0].endswith("recorded")
    assert long[0].endswith("recorded, compiled C")
    monkeypatch.setenv("TIGHTROPE_COMPILER", "off")
    assert not tr.PPO("CartPole-v1", **SMALL, total_timesteps=10**6).state.runtime.compiles_recordings


def test_a_run_is_told_that_numpy_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = dict(SMALL, num_minibatches=1, total_timesteps=64 * 2000)
    tr.PPO("CartPole-v1", **settings).learn(until=64, run_dir=tmp_path, quiet=True)
    told = "were compiled C, and NumPy replays them here: last digits may differ"

    def resumed() -> str:
        capsys.readouterr()
        tr.load(tmp_path).learn(until=128)
        return capsys.readouterr().out

    monkeypatch.setenv("TIGHTROPE_COMPILER", "off")
    assert told in resumed()
    assert told not in resumed()
    monkeypatch.setenv("TIGHTROPE_COMPILER", "/bin/false")
    assert "were compiled C" not in resumed()


def test_a_run_is_told_that_an_earlier_version_compiled_other_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = dict(SMALL, num_minibatches=1, total_timesteps=64 * 2000)
    tr.PPO("CartPole-v1", **settings).learn(until=64, run_dir=tmp_path, quiet=True)
    forge(tmp_path, versions={k: v for k, v in manifest_of(newest(tmp_path))["versions"].items() if k != "compiled"})
    told = "an earlier version compiled the recordings of this run to other C: last digits may differ"
    for expected in (True, False):
        tr.load(tmp_path).learn(until=128)
        assert (told in capsys.readouterr().out) == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_goes_on_as_it_began_whatever_its_length(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_CALLS", 0 if compiled else 10**9)
    given = dict(SMALL, num_minibatches=2, total_timesteps=64 * 4, eval_every=0, stop_at_return=None)
    whole = tr.PPO("CartPole-v1", **given).learn(quiet=True)
    tr.PPO("CartPole-v1", **given).learn(until=64 * 2, run_dir=tmp_path, quiet=True)
    monkeypatch.setattr(runtime, "MIN_CALLS", 10**9 if compiled else 0)
    resumed = tr.load(tmp_path).learn(quiet=True)
    assert resumed.state.runtime.compiles_recordings is compiled
    assert_same_state(whole.state.state_dict(), resumed.state.state_dict())


def test_a_compiler_that_is_not_there_is_named_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTROPE_COMPILER", "/nowhere/cc")
    text = "\n".join(planned(tr.PPO("CartPole-v1", **SMALL, total_timesteps=10**6)))
    assert "note: recordings are not compiled, which is slower: TIGHTROPE_COMPILER is /nowhere/cc" in text
