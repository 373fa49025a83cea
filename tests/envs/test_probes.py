"""The probes: what they show, what they pay, how long they live."""

import pytest
import torch
from torch import Tensor

from tightrope.envs import make
from tightrope.types import Discrete, Step

PROBES = {f"Probe{i}-v0": actions for i, actions in zip(range(1, 6), (1, 1, 1, 2, 2), strict=True)}
every_probe = pytest.mark.parametrize("env_id", list(PROBES))
N = 256


def played(env_id: str, steps: int = 6) -> list[tuple[Tensor, Tensor, Step]]:
    """(obs, action, step) triples of random play."""
    env, generator = make(env_id, num_envs=N), torch.Generator().manual_seed(0)
    obs, moments = env.reset(seed=0), []
    for _ in range(steps):
        action = torch.randint(env.action.n, (N,), generator=generator)
        step = env.step(action)
        moments.append((obs, action, step))
        obs = step.obs
    return moments


@every_probe
def test_one_number_and_few_actions(env_id: str) -> None:
    env = make(env_id)
    assert env.observation.shape == (1,)
    assert env.action == Discrete(PROBES[env_id])


@every_probe
def test_never_truncated(env_id: str) -> None:
    assert make(env_id).max_episode_steps is None
    assert not any(step.truncated.any() for *_, step in played(env_id, 20))


@every_probe
def test_lives_one_step_and_probe3_two(env_id: str) -> None:
    life = 2 if env_id == "Probe3-v0" else 1
    for t, (_, _, step) in enumerate(played(env_id)):
        assert (step.terminated == ((t + 1) % life == 0)).all()


def test_probe1_shows_0_and_pays_1() -> None:
    for obs, _, step in played("Probe1-v0"):
        assert (obs == 0).all()
        assert (step.reward == 1).all()


def test_probe2_shows_a_sign_and_pays_it() -> None:
    for obs, _, step in played("Probe2-v0"):
        assert set(obs.flatten().tolist()) == {-1.0, 1.0}
        assert 0.3 < (obs > 0).float().mean() < 0.7
        assert torch.equal(step.reward, obs[:, 0])


def test_probe3_shows_0_then_1_and_pays_0_then_1() -> None:
    for t, (obs, _, step) in enumerate(played("Probe3-v0")):
        assert (obs == t % 2).all()
        assert (step.reward == t % 2).all()


def test_probe4_pays_for_action_1() -> None:
    for obs, action, step in played("Probe4-v0"):
        assert (obs == 0).all()
        assert torch.equal(step.reward, torch.where(action == 1, 1.0, -1.0))


def test_probe5_pays_for_the_action_it_shows() -> None:
    for obs, action, step in played("Probe5-v0"):
        assert set(obs.flatten().tolist()) == {0.0, 1.0}
        assert 0.3 < obs.mean() < 0.7
        assert torch.equal(step.reward, torch.where(action == obs[:, 0].long(), 1.0, -1.0))
