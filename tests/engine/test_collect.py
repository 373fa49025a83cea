"""Collection: on-policy, complete and reproducible, whether the environments are stepped at once or by turns."""

import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tightrope.engine import Noise, Runtime, draw_noise
from tightrope.envs import CartPole, Pendulum
from tightrope.envs.adapters.groups import Grouped
from tightrope.envs.adapters.gym import from_object
from tightrope.envs.with_memory import with_memory
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.types import Env, Rollout, Step

STEPS = 12
gymnasium = pytest.importorskip("gymnasium")


class Counter(gymnasium.Env):
    """Shows (who, episode, time, the last action); ends at random times, by itself or by the clock."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.who, self.episode, self.random = 0.0, -1, np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.who, self.episode, self.random = seed % 256 / 256, -1, np.random.default_rng(seed)
        self.episode, self.time, self.length = self.episode + 1, 0, self.random.integers(2, 7)
        return self.shown(-1), {}

    def shown(self, action: int) -> Any:
        return np.array([self.who, self.episode, self.time, action], np.float32)

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time >= self.length
        return self.shown(action), float(action) + self.who, over and self.length % 2 == 0, over, {}


def counters(sizes: list[int]) -> Any:
    """These engines do nothing before they are received, which is as good for the order of things."""
    members = [from_object(Counter, size) for size in sizes]
    return Grouped(members) if len(members) > 1 else members[0]


def policy_for(env: Env, share: bool = False, memory: str | None = None) -> ActorCritic:
    torch.manual_seed(0)
    config = NetworkConfig(hidden_sizes=(16,), share_trunk=share, memory=memory, memory_size=8)
    return actor_critic(env.observation, env.action, config)


def noise_for(env: Env, policy: ActorCritic, steps: int = STEPS, phase: int = 0) -> Noise:
    return draw_noise(env, policy.head.noise, steps, (1, 1), 0, phase)


def collected(
    env: Env, steps: int = STEPS, phases: int = 2, share: bool = False, memory: str | None = None,
    runtime: Runtime | None = None,
) -> tuple[Rollout, Tensor, ActorCritic]:  # fmt: skip
    policy = policy_for(env, share, memory)
    env, runtime = with_memory(env, policy.memory_rows), runtime or Runtime()
    rollout = Rollout.allocate(steps, env)
    rollout.log_prob.fill_(torch.nan)  # all of it must be written
    rollout.value.fill_(torch.nan)
    obs = env.reset(seed=5)
    for phase in range(phases):
        obs, taken = runtime.collect(env, policy, rollout, obs, noise_for(env, policy, steps, phase))
        assert taken == steps
    return rollout, obs, policy


def fields(rollout: Rollout) -> dict[str, Tensor]:
    return {name: value for name, value in vars(rollout).items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("sizes", [[5], [3, 2], [2, 2, 1]], ids=str)
def test_every_row_is_one_uninterrupted_story(sizes: list[int]) -> None:
    rollout, obs, _ = collected(counters(sizes))
    shown = torch.cat([rollout.obs, obs[None]])
    done = rollout.done
    assert done.sum() > 5
    assert (shown[:, :, 0] == shown[0, :, 0]).all(), "rows keep their places"
    assert len(shown[0, :, 0].unique()) == 5
    assert torch.equal(rollout.final_obs[:, :, 3], rollout.action.float()), "what was done is what was taken"
    assert torch.equal(rollout.reward, rollout.action + rollout.obs[:, :, 0])
    assert torch.equal(rollout.final_obs[:, :, 2], rollout.obs[:, :, 2] + 1)
    assert torch.equal(shown[1:][~done], rollout.final_obs[~done])
    assert (shown[1:][done][:, 2] == 0).all()
    assert torch.equal(shown[1:, :, 1], shown[:-1, :, 1] + done), "no episode is lost"


RUNTIMES = {"plain": Runtime(on_device=True), "recorded": Runtime(), "compiled": Runtime(compiles_recordings=True)}


@pytest.mark.parametrize("memory", [None, "lstm"])
@pytest.mark.parametrize("share", [False, True], ids=["two trunks", "one trunk"])
@pytest.mark.parametrize("sizes", [[4], [2, 2]], ids=str)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_is_stored_is_what_the_policy_says_of_what_is_stored(
    runtime: str, sizes: list[int], share: bool, memory: str | None
) -> None:
    """Each action is that of this policy, on the observation of this row at this time, with the noise of this row."""
    env = counters(sizes)
    rollout, _, policy = collected(env, share=share, memory=memory, runtime=RUNTIMES[runtime])
    noise = noise_for(env, policy, phase=1)
    with torch.no_grad():
        distribution, value = policy(rollout.obs.flatten(0, 1))
        action = distribution.sample(noise.action.flatten(0, 1)).view_as(rollout.action)
        log_prob = distribution.log_prob(rollout.action.flatten(0, 1)).view_as(rollout.log_prob)
    assert torch.equal(action, rollout.action)
    assert len(rollout.action.unique()) == 3
    torch.testing.assert_close(log_prob, rollout.log_prob)
    torch.testing.assert_close(value.view_as(rollout.value), rollout.value)


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second = (collected(counters([2, 2]))[0] for _ in range(2))
    for name, tensor in fields(first).items():
        assert torch.equal(tensor, getattr(second, name)), name


def test_groups_give_what_all_at_once_give() -> None:
    """On rows of this size the network rounds alike whatever their number, so that everything must be equal."""
    alone, grouped = collected(counters([4]))[0], collected(counters([2, 2]))[0]
    for name, tensor in fields(alone).items():
        torch.testing.assert_close(tensor, getattr(grouped, name), msg=name)


def test_groups_work_while_the_policy_acts_for_others() -> None:
    """From the first send on, some group is always at work when the policy is asked."""
    env, events = counters([2, 2]), []
    send, recv = env.send, env.recv

    def noted_send(action: Tensor, group: int = 0) -> None:
        events.append(f"send {group}")
        send(action, group)

    def noted_recv(group: int = 0) -> Step:
        events.append(f"recv {group}")
        return recv(group)

    env.send, env.recv = noted_send, noted_recv
    collected(env, steps=3, phases=1)
    assert events == [
        "send 0", "send 1",
        "recv 0", "send 0", "recv 1", "send 1",
        "recv 0", "send 0", "recv 1", "send 1",
        "recv 0", "recv 1",
    ]  # fmt: skip


def test_a_rollout_that_may_break_off_is_not_collected_in_groups() -> None:
    env = counters([2, 2])
    policy, rollout = policy_for(env), Rollout.allocate(STEPS, env)
    obs, taken = Runtime().collect(env, policy, rollout, env.reset(seed=5), noise_for(env, policy), dead_fraction=0.25)
    assert 1 < taken < STEPS
    assert torch.equal(obs[~rollout.done[taken - 1]], rollout.final_obs[taken - 1][~rollout.done[taken - 1]])


def test_parts_are_views_and_cover_all_rows() -> None:
    rollout = Rollout.allocate(3, counters([3, 2]))
    assert [part.reward.shape[1] for part in rollout.parts] == [3, 2]
    for group, part in enumerate(rollout.parts):
        for row in part.rows:
            row.reward.fill_(group + 1)
    assert rollout.reward.tolist() == [[1, 1, 1, 2, 2]] * 3
    assert rollout.parts is rollout.parts


def test_tensor_environments_have_no_groups() -> None:
    env = CartPole(num_envs=3)
    assert env.groups == 0
    rollout, obs, _ = collected(env)
    assert torch.equal(obs[~rollout.done[-1]], rollout.final_obs[-1][~rollout.done[-1]])


def all_of(rollout: Rollout, obs: Tensor) -> dict[str, Tensor]:
    return {**fields(rollout), "after": obs}


@pytest.mark.parametrize(
    "make",
    [
        lambda: counters([5]),
        lambda: CartPole(num_envs=6, max_episode_steps=7),
        lambda: Pendulum(num_envs=3, max_episode_steps=5),
        lambda: from_object(Torques, 3),
        lambda: from_object(Skipping(3), 3),
    ],
    ids=["gymnasium", "CartPole", "Pendulum", "torques", "skipping"],
)
def test_a_rollout_over_arrays_is_that_over_tensors(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []
    module = sys.modules["tightrope.engine.collect"]
    play = module.on_arrays  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "on_arrays", lambda *args: played.append("over arrays") or play(*args))
    rollout, obs, _ = collected(make())
    assert played == ["over arrays"] * 2
    monkeypatch.setattr(module, "array_stepper", lambda env: None)
    expected = all_of(*collected(make())[:2])
    assert len(played) == 2
    assert expected["terminated"].any() or expected["truncated"].any()
    for name, tensor in all_of(rollout, obs).items():  # actions are scaled to a box with other rounding
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5, msg=name)


class Torques(Counter):
    """Actions in a box of their own, in two rows; observations in rows and columns."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
    action_space = gymnasium.spaces.Box(np.float32([[-2.0], [0.0]]), np.float32([[2.0], [5.0]]))

    def shown(self, action: Any) -> Any:
        return np.array([[self.who, self.episode], [self.time, np.sum(action)]])

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        obs, _, terminated, truncated, info = super().step(action.sum())
        return obs, float(action.sum()), terminated, truncated, info


class Skipping(gymnasium.vector.VectorEnv):
    """A vector environment that resets a row in the step after its end, in which nothing happens."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Counter.observation_space, Counter.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = np.zeros(self.num_envs)
        return self.shown(), {}

    def shown(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.time, self.time, self.time], 1).astype(np.float32)

    def step(self, actions: Any) -> Any:
        self.time = np.where(self.time == 4, 0, self.time + 1)
        over = self.time == 4
        return self.shown(), 1.0 + actions, over, np.zeros_like(over), {}


def test_who_wraps_an_environment_is_asked_himself() -> None:
    class Wrapped:
        def __init__(self, env: Any) -> None:
            self.env, self.steps = env, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

        def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
            self.steps += 1
            return self.env.step(action, noise)

    env: Any = Wrapped(CartPole(num_envs=2))
    collected(env, phases=1)
    assert env.steps == STEPS
