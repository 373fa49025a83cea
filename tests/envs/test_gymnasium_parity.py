"""Our classic control against Gymnasium's: same states, same actions, same trajectories, same ends, same rewards."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tightrope.envs import make

# id: the box of a reset's states, the time limit
RESET = {
    "CartPole-v1": ([-0.05] * 4, [0.05] * 4, 500),
    "Pendulum-v1": ([-np.pi, -1], [np.pi, 1], 200),
    "MountainCar-v0": ([-0.6, 0], [-0.4, 0], 200),
    "Acrobot-v1": ([-0.1] * 4, [0.1] * 4, 500),
}
every_id = pytest.mark.parametrize("env_id", list(RESET))


def random_action(env_id: str, rng: np.random.Generator) -> tuple[int | np.ndarray, Tensor]:
    """One action, as Gymnasium takes it and as a batch of one; torques go beyond their bounds."""
    if env_id == "Pendulum-v1":
        torque = rng.uniform(-3, 3, 1)
        return torque, torch.tensor(torque)[None]
    choice = int(rng.integers(make(env_id).action.n))
    return choice, torch.tensor([choice])


@every_id
def test_single_steps_from_the_edges_of_the_state_space(env_id: str) -> None:
    """Walls, speed limits, wraps and ends, none of which gentle trajectories reach."""
    ours, theirs, rng = make(env_id), gymnasium.make(env_id).unwrapped, np.random.default_rng(0)
    edge = {
        "CartPole-v1": [2.5, 3, 0.25, 3],
        "Pendulum-v1": [12, 8],
        "MountainCar-v0": [0.9, 0.07],
        "Acrobot-v1": [np.pi, np.pi, 4 * np.pi, 9 * np.pi],
    }[env_id]
    center = [-0.3, 0] if env_id == "MountainCar-v0" else 0
    for _ in range(300):
        theirs.reset(seed=0)
        start = center + np.array(edge) * np.sin(rng.uniform(-np.pi, np.pi, len(edge)))  # more often near the edges
        action, batch = random_action(env_id, rng)
        theirs.state, state = start.copy(), torch.tensor(start)[None]
        _, reward, terminated, _, _ = theirs.step(action)
        next_state, their_state = ours.advance(state, batch), torch.tensor(np.array(theirs.state))[None]
        torch.testing.assert_close(next_state, their_state, rtol=0, atol=1e-9)
        assert ours.reward(state, batch, next_state).item() == pytest.approx(reward, abs=1e-9)
        assert ours.terminated(next_state).item() == terminated


def pumping(env_id: str, obs: Tensor) -> Tensor:
    """Actions that reach the goal, or keep the pole up."""
    if env_id == "CartPole-v1":
        x, v, theta, omega = obs.unbind(-1)
        return (0.1 * x + 0.3 * v + 3 * theta + omega > 0).long()
    if env_id == "MountainCar-v0":
        return 2 * (obs[:, 1] >= 0).long()
    if env_id == "Acrobot-v1":
        return 2 * (obs[:, 4] < 0).long()
    return -2 * obs[:, 2:].sign()


def mixed_action(env_id: str, obs: Tensor, rng: np.random.Generator) -> Tensor:
    """Every second row acts at random, the others with a purpose."""
    random = torch.stack([random_action(env_id, rng)[1][0] for _ in obs])
    skilled = pumping(env_id, obs)
    odd = torch.arange(len(obs)) % 2 == 1
    return torch.where(odd if skilled.dim() == 1 else odd[:, None], skilled, random.to(skilled.dtype))


@every_id
def test_whole_episodes_step_by_step(env_id: str) -> None:
    """Skilled and random, to the end of every episode; their state is set to ours each step, for errors would grow."""
    count, rng = 8, np.random.default_rng(0)
    ours = make(env_id, num_envs=count)
    obs = ours.reset(seed=0)
    theirs = [gymnasium.make(env_id) for _ in range(count)]
    for env in theirs:
        env.reset(seed=0)
    running, ends = set(range(count)), set()
    for _ in range(RESET[env_id][2]):
        action = mixed_action(env_id, obs, rng)
        before = ours.state.double().numpy().copy()
        step = ours.step(action)
        for i in sorted(running):
            theirs[i].unwrapped.state = before[i]
            their_action = action[i].numpy() if env_id == "Pendulum-v1" else action[i].item()
            their_obs, reward, terminated, truncated, _ = theirs[i].step(their_action)
            np.testing.assert_allclose(step.final_obs[i], their_obs, rtol=1e-5, atol=2e-6)
            assert step.reward[i].item() == pytest.approx(reward, rel=1e-5, abs=1e-6)
            assert (step.terminated[i].item(), step.truncated[i].item()) == (terminated, truncated and not terminated)
            if terminated or truncated:
                running.discard(i)
                ends.add("terminated" if terminated else "truncated")
        obs = step.obs
    assert not running
    assert ends == ({"truncated"} if env_id == "Pendulum-v1" else {"terminated", "truncated"})


@every_id
def test_start_states(env_id: str) -> None:
    low, high, _ = (np.array(part) for part in RESET[env_id])
    ours = make(env_id, num_envs=500)
    ours.reset(seed=0)
    theirs, their_states = gymnasium.make(env_id).unwrapped, []
    for seed in range(500):
        theirs.reset(seed=seed)
        their_states.append(np.array(theirs.state))
    for states in (ours.state.double().numpy(), np.stack(their_states)):
        width = high - low
        assert (states >= low - 1e-6).all()
        assert (states <= high + 1e-6).all()
        assert (states.min(0) <= low + 0.03 * width).all()
        assert (states.max(0) >= high - 0.03 * width).all()
        np.testing.assert_allclose(states.mean(0), (low + high) / 2, atol=0.06 * width.max())
        np.testing.assert_allclose(states.std(0), width / np.sqrt(12), atol=0.03 * width.max())


@every_id
def test_settings(env_id: str) -> None:
    ours, theirs = make(env_id), gymnasium.make(env_id)
    assert ours.time_limit == theirs.spec.max_episode_steps
    assert ours.observation.shape == theirs.observation_space.shape
    space = theirs.action_space
    if env_id == "Pendulum-v1":
        assert (ours.action.shape, ours.action.low, ours.action.high) == (space.shape, space.low[0], space.high[0])
    else:
        assert ours.action.n == space.n
