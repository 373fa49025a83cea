"""Methods of a tensor environment that write into what they are given, or return the same memory again, do no harm: every
number is that of the pure twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.envs.recorded_step import MAX_NUMPY_ROWS
from tightrope.errors import UsageError
from tightrope.types import Box, Discrete


class Pure(tr.envs.TensorEnv):
    """A walk on a line, paid for progress, which needs the state before and after."""

    observation = Box((2,))
    action = Discrete(2)
    noise_size = 2
    time_limit = 7

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.1

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        x, steps = state.unbind(-1)
        return torch.stack([x + 0.2 * (2 * action - 1), steps + 1], -1)

    def observe(self, state: Tensor) -> Tensor:
        return state / torch.tensor([1.0, 10.0], device=state.device)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0] - state[:, 0] + 0.01 * action

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0].abs() > 0.5


def advance_writes(self: Pure, state: Tensor, action: Tensor) -> Tensor:
    state[:, 0] += 0.2 * (2 * action - 1)
    state[:, 1] += 1
    return state


def advance_writes_and_returns_another(self: Pure, state: Tensor, action: Tensor) -> Tensor:
    following = Pure.advance(self, state, action)
    state.zero_()
    return following


def advance_writes_into_the_action(self: Pure, state: Tensor, action: Tensor) -> Tensor:
    action.mul_(2).sub_(1)
    x, steps = state.unbind(-1)
    return torch.stack([x + 0.2 * action, steps + 1], -1)


def advance_through_numpy(self: Pure, state: Tensor, action: Tensor) -> Tensor:
    """No version counter sees this."""
    array = state.numpy()
    array[:, 0] += 0.2 * (2 * action.numpy() - 1)
    array[:, 1] += 1
    return state


def fills_a_buffer(name: str) -> Any:
    def method(self: Any, state: Tensor, *others: Tensor) -> Tensor:
        if getattr(self, "buffer", state[:0]).shape != state.shape:
            self.buffer = torch.zeros_like(state)
        return self.buffer.copy_(getattr(Pure, name)(self, state, *others))

    return method


def reward_writes(self: Pure, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
    next_state[:, 0] -= state[:, 0]
    return next_state[:, 0] + 0.01 * action


def observe_writes(self: Pure, state: Tensor) -> Tensor:
    state[:, 1] /= 10
    return state


def kind(name: str, **changes: Any) -> type[Pure]:
    return type(name, (Pure,), changes)


AdvanceWrites = kind("AdvanceWrites", advance=advance_writes)
AdvanceFillsABuffer = kind("AdvanceFillsABuffer", advance=fills_a_buffer("advance"))
RewardWrites = kind("RewardWrites", reward=reward_writes)
ObserveWrites = kind("ObserveWrites", observe=observe_writes)
InitialWrites = kind("InitialWrites", initial=lambda self, noise: noise.mul_(0.1))
KINDS = [
    AdvanceWrites, AdvanceFillsABuffer, RewardWrites, ObserveWrites, InitialWrites,
    kind("AdvanceReturnsAView", advance=lambda self, *given: advance_writes(self, *given).view(-1, 2)),
    kind("AdvanceWritesAndReturnsAnother", advance=advance_writes_and_returns_another),
    kind("AdvanceWritesIntoTheAction", advance=advance_writes_into_the_action),
    kind("TerminatedWrites", terminated=lambda self, state: state[:, 0].abs_() > 0.5),
    kind("ObserveFillsABuffer", observe=fills_a_buffer("observe")),
    kind("ThroughNumPy", advance=advance_through_numpy),
    kind("OnceAStep", advance=advance_writes, pure=False),
]  # fmt: skip


def played(env: tr.envs.TensorEnv, steps: int = 30) -> list[Tensor]:
    """Everything that an environment shows, and its state."""
    generator = torch.Generator().manual_seed(0)
    shown, noise = [env.reset(seed=1).clone()], torch.rand(env.num_envs, 2, generator=generator)
    for _ in range(steps):
        action = torch.randint(2, (env.num_envs,), generator=generator)
        sent, drawn = action.clone(), noise.clone()
        step = env.step(sent, drawn)
        assert torch.equal(sent, action)
        assert torch.equal(drawn, noise)
        shown += [x.clone() for x in step[:5]] + [env.state.clone()]
    return [*shown, env.finished_episodes()]


@pytest.mark.parametrize("rows", [5, MAX_NUMPY_ROWS + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_that_of_the_pure_twin(kind: type[Pure], rows: int) -> None:
    ours, twin = kind(rows), Pure(rows)
    for a, b in zip(played(ours), played(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [AdvanceWrites, RewardWrites, ObserveWrites, InitialWrites])
def test_an_environment_in_place_still_runs_over_arrays(kind: type[Pure]) -> None:
    env = kind(5)
    played(env)
    assert env._recorded_step is not None


@pytest.mark.parametrize("kind", [AdvanceWrites, ObserveWrites, AdvanceFillsABuffer])
def test_training_evaluation_and_resume_are_those_of_the_pure_twin(kind: type[Pure], tmp_path: Any) -> None:
    settings: dict[str, Any] = dict(num_steps=16, total_timesteps=2048, seed=3, learning_rate=0.01)
    whole, pure = tr.PPO(kind(16), **settings), tr.PPO(Pure(16), **settings)
    returns = pure.learn(quiet=True).evaluate(20).returns
    assert whole.learn(quiet=True).evaluate(20).returns == pytest.approx(returns, abs=1e-5)
    half = tr.PPO(kind(16), **settings).learn(quiet=True, until=1024)
    half.save(tmp_path / "half")
    again = tr.load(tmp_path / "half", env=kind(16)).learn(quiet=True)
    for a, b in zip(again.policy.parameters(), whole.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_start_states_that_are_an_attribute_stay_what_they_are() -> None:
    class Fixed(Pure):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.start = torch.tensor([[0.1, 0.0]])
            super().__init__(*args, **kwargs)

        def initial(self, noise: Tensor) -> Tensor:
            return self.start.expand(len(noise), 2)

    for rows in (1, 3):
        env = Fixed(rows)
        played(env)
        assert env.start.tolist() == [[pytest.approx(0.1), 0.0]]


def test_a_method_that_begins_to_write_later_is_named() -> None:
    class Windy(Pure):
        wind = 0.0

        def advance(self, state: Tensor, action: Tensor) -> Tensor:
            if self.wind:
                state[:, 0] += self.wind
            return super().advance(state, action)

    for rows in (4, MAX_NUMPY_ROWS + 1):
        env = Windy(rows)
        played(env)
        env.wind = 0.1
        with pytest.raises(UsageError, match=r"Windy.advance writes into an argument.*: return a new tensor"):
            env.step(torch.zeros(rows, dtype=torch.int64))


@pytest.mark.parametrize("method", ["advance", "reward", "observe", "terminated"])
def test_a_method_that_uses_the_environments_own_state_is_refused(method: str) -> None:
    def wrong(self: Pure, *given: Tensor) -> Tensor:
        self.state.add_(1)
        return getattr(Pure, method)(self, *given)

    def lent(self: Pure, *given: Tensor) -> Tensor:
        return self.state[:, 0] if method in ("reward", "terminated") else self.state

    for function in (wrong, lent):
        with pytest.raises(UsageError, match=f"Broken.{method} changes or returns self.state: use its arguments"):
            type("Broken", (Pure,), {method: function})(4).reset()


def test_the_trial_leaves_no_trace() -> None:
    class Counting(Pure):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.calls, self.rng = torch.zeros(()), torch.Generator().manual_seed(5)
            super().__init__(*args, **kwargs)

        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            self.calls += 1
            return super().reward(state, action, next_state) + torch.rand(len(state), generator=self.rng) * torch.rand(
                ()
            )

    env = Counting(4)
    before = torch.get_rng_state(), env.rng.get_state(), env.generator.get_state()
    env.try_methods()
    after = torch.get_rng_state(), env.rng.get_state(), env.generator.get_state()
    assert all(map(torch.equal, before, after))
    assert float(env.calls) == 0


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("kind", [AdvanceWrites, ObserveWrites])
def test_compiled_steps_are_those_of_the_pure_twin(kind: type[Pure]) -> None:
    env, twin = kind(5), Pure(5)
    assert torch.equal(env.reset(seed=0), twin.reset(seed=0))
    torch._dynamo.reset()
    compiled = torch.compile(lambda action, noise: env.step(action, noise), backend="aot_eager", fullgraph=True)
    for t in range(8):
        action, noise = torch.tensor([0, 1, 1, 0, t % 2]), torch.rand(5, 2)
        torch.testing.assert_close(compiled(action, noise)[:5], twin.step(action, noise)[:5])
        torch.testing.assert_close(env.state, twin.state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [AdvanceWrites, RewardWrites, ObserveWrites, InitialWrites])
def test_captured_training_is_that_of_the_pure_twin(kind: type[Pure]) -> None:
    settings: dict[str, Any] = dict(num_steps=16, total_timesteps=16 * 64 * 4, seed=3, accelerate="graph")
    ours, pure = (tr.PPO(each(64, "cuda"), **settings).learn(quiet=True) for each in (kind, Pure))
    for a, b in zip(ours.policy.parameters(), pure.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
