"""The probes: what they show, what they pay, how long they live."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tightrope.envs import make
from tightrope.types import Discrete

N = 256
# id: actions, steps of an episode, what it may show at step t, the reward by (obs, action)
PROBES: dict[str, tuple[int, int, Callable[[int], set[float]], Callable[[Tensor, Tensor], Tensor]]] = {
    "Probe1-v0": (1, 1, lambda t: {0.0}, lambda obs, action: torch.ones(N)),
    "Probe2-v0": (1, 1, lambda t: {-1.0, 1.0}, lambda obs, action: obs),
    "Probe3-v0": (1, 2, lambda t: {float(t % 2)}, lambda obs, action: obs),
    "Probe4-v0": (2, 1, lambda t: {0.0}, lambda obs, action: torch.where(action == 1, 1.0, -1.0)),
    "Probe5-v0": (2, 1, lambda t: {0.0, 1.0}, lambda obs, action: torch.where(action == obs.long(), 1.0, -1.0)),
}


@pytest.mark.parametrize("env_id", PROBES)
def test_what_a_probe_shows_and_pays_and_how_long_it_lives(env_id: str) -> None:
    actions, life, shown, reward = PROBES[env_id]
    env, generator = make(env_id, num_envs=N), torch.Generator().manual_seed(0)
    assert (env.observation.shape, env.action, env.max_episode_steps) == ((1,), Discrete(actions), None)
    obs = env.reset(seed=0)
    for t in range(20):
        assert set(obs.flatten().tolist()) == shown(t)
        assert len(shown(t)) == 1 or 0.3 < (obs > 0).float().mean() < 0.7
        action = torch.randint(actions, (N,), generator=generator)
        step = env.step(action)
        assert torch.equal(step.reward, reward(obs[:, 0], action))
        assert (step.terminated == ((t + 1) % life == 0)).all()
        assert not step.truncated.any()
        obs = step.obs


def test_what_the_time_limit_probe_pays_and_how_it_ends() -> None:
    env = make("TimeLimitProbe-v0", num_envs=2)
    assert env.reset(noise=torch.tensor([[0.1], [0.9]])).flatten().tolist() == [1.0, 0.0]
    step = env.step(torch.zeros(2, dtype=torch.int64), torch.tensor([[0.9], [0.9]]))
    assert step.reward.tolist() == [1.0, 0.0]
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]
    assert step.final_obs.flatten().tolist() == [2.0, 1.0]
    assert step.obs.flatten().tolist() == [0.0, 0.0]


def test_what_the_hybrid_probe_pays() -> None:
    env = make("HybridProbe-v0", num_envs=4)
    obs = env.reset(noise=torch.tensor([[0.1], [0.1], [0.9], [0.9]]))
    assert obs.flatten().tolist() == [1.0, 1.0, -1.0, -1.0]
    step = env.step(torch.tensor([[1.0, 0.5], [0.0, 1.5], [0.0, -0.5], [1.0, -1.0]]))
    assert step.reward.tolist() == [1.0, -1.0, 1.0, -0.25]
    assert step.terminated.all()
