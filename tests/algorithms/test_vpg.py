"""What the page of VPG promises: baselines, whole trajectories, reuse with weights, early stops, honest step counts."""

import pytest
import torch

import tightrope as tr
from tightrope.algorithms import VPGConfig, vpg
from tightrope.engine import Runtime
from tightrope.engine.metrics import Reading
from tightrope.envs import CartPole, TensorEnv
from tightrope.errors import UsageError
from tightrope.training.build import build
from tightrope.training.config import configure
from tightrope.types import Box, Discrete

SMALL = dict(num_envs=8, num_steps=64, total_timesteps=8 * 64 * 5, device="cpu")


def new_state(env="CartPole-v1", **settings):
    config = configure(env, "vpg", {**SMALL, **settings}, with_preset=False)
    return build(config), config.algorithm


def new_state_of(env, **settings):
    agent = tr.VPG(env, **{"defaults": "plain", "num_steps": 20, "total_timesteps": 20 * env.num_envs * 5, **settings})
    return agent.state, agent.config.algorithm


def run(state, config):
    return [Reading(metrics).row() for metrics in vpg.vpg(state, config)]


def learned_from(monkeypatch, state, config):
    """The batches that one phase learns from."""
    batches = []
    original = Runtime.backward

    def watching(self, loss, policy, batch, optimizer):
        batches.append(batch)
        return original(self, loss, policy, batch, optimizer)

    monkeypatch.setattr(Runtime, "backward", watching)
    metrics = next(vpg.vpg(state, config))
    return batches, metrics


class Dies(TensorEnv):
    """Environment i of N dies after i + 1 steps (the last one never does); reward 1 a step."""

    observation, action, time_limit, noise_size = Box((2,)), Discrete(2), None, 1

    def initial(self, noise):
        index = torch.arange(noise.shape[0], dtype=noise.dtype)
        return torch.stack([index, torch.zeros_like(index)], -1)

    def advance(self, state, action):
        return torch.stack([state[:, 0], state[:, 1] + 1], -1)

    def reward(self, state, action, next_state):
        return torch.ones_like(state[:, 0])

    def terminated(self, state):
        return (state[:, 1] > state[:, 0]) & (state[:, 0] < self.num_envs - 1)


def test_one_life_a_rollout_and_returns_up_to_the_cut(monkeypatch):
    state, config = new_state_of(Dies(num_envs=4), num_steps=10, baseline="none", gamma=0.5)
    (batch,), metrics = learned_from(monkeypatch, state, config)
    alive = batch.alive.view(4, 10)  # rows may be shuffled
    assert sorted(alive.sum(1).tolist()) == [1, 2, 3, 10]
    longest = alive.sum(1).argmax()
    returns = batch.advantage.view(4, 10)[longest]
    assert returns[-1] == 1.0, "cut by the window: kept, with its reward-to-go"
    assert returns[0] == pytest.approx(sum(0.5**k for k in range(10)))
    assert (metrics.lifespan_mean, metrics.lifespan_max) == (4.0, 10.0)
    assert metrics.steps == 40


def test_a_critic_bootstraps_the_cut_and_no_critic_does_not(monkeypatch):
    state, config = new_state_of(Dies(num_envs=2), num_steps=3, baseline="critic", gamma=0.5)
    monkeypatch.setattr(state.policy, "_value", lambda obs: torch.full_like(obs[:, 0], 8.0, requires_grad=True))
    (batch,), _ = learned_from(monkeypatch, state, config)
    target = batch.target.view(2, 3)
    survivor = batch.alive.view(2, 3).sum(1).argmax()
    assert target[survivor].tolist() == [1 + 0.5 + 0.25 + 0.125 * 8, 1 + 0.5 + 0.25 * 8, 1 + 0.5 * 8]
    assert target[1 - survivor][0] == 1.0, "termination has no future"


def test_rollout_stops_once_the_chosen_fraction_has_terminated_and_counts_what_it_took():
    for fraction, steps in ((1.0, 10), (0.75, 3), (0.5, 2), (0.25, 1)):
        state, config = new_state_of(Dies(num_envs=4), num_steps=10, dead_fraction=fraction)
        metrics = next(vpg.vpg(state, config))
        assert metrics.steps == 4 * steps
        assert state.steps == 4 * steps


def test_truncated_is_not_dead():
    state, config = new_state("CartPole-v1", max_episode_steps=5)
    metrics = next(vpg.vpg(state, config))
    assert metrics.steps == config.batch_size
    assert metrics.lifespan_mean == 5
    assert bool(metrics.solved)


@pytest.mark.parametrize("settings", [{}, dict(norm_obs=True), dict(baseline="critic"), dict(normalize_returns=True),
                                      dict(full_reset=False, baseline="none")])  # fmt: skip
def test_stopping_early_equals_masking_what_came_after(settings, monkeypatch):
    """On the CPU collection breaks off; on a device it runs on and the masks take the rest out. Over several phases."""
    (broken, config), (masked, _) = (new_state(dead_fraction=0.5, seed=3, **settings) for _ in range(2))
    rows = run(broken, config)
    original = Runtime.collect
    monkeypatch.setattr(Runtime, "collect", lambda *args: original(*args[:-1]))  # without the fraction
    masked_rows = run(masked, config)
    assert masked.steps == broken.steps
    assert torch.allclose(broken.optimizer.flat, masked.optimizer.flat, atol=1e-4)
    for row, other in zip(rows, masked_rows, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-4)


def test_timestep_baseline_is_the_mean_of_the_living(monkeypatch):
    state, config = new_state_of(Dies(num_envs=4), num_steps=10, baseline="timestep", gamma=1.0)
    (batch,), _ = learned_from(monkeypatch, state, config)
    advantage, alive = batch.advantage.view(4, 10), batch.alive.view(4, 10)
    for t in range(10):
        assert advantage[alive[:, t], t].sum().item() == pytest.approx(0.0, abs=1e-4)
    first = sorted(advantage[:, 0].tolist())
    assert first == pytest.approx([1 - 4, 2 - 4, 3 - 4, 10 - 4])


@pytest.mark.parametrize("baseline", ["timestep", "none"])
def test_normalized_returns_are_standardised_over_the_lived_steps(baseline, monkeypatch):
    settings = dict(num_steps=10, baseline=baseline, gamma=1.0)
    (batch,), _ = learned_from(monkeypatch, *new_state_of(Dies(num_envs=4), normalize_returns=True, **settings))
    (plain,), _ = learned_from(monkeypatch, *new_state_of(Dies(num_envs=4), **settings))
    lived = torch.tensor([1.0, 2, 1, 3, 2, 1, *range(10, 0, -1)])
    advantage, unscaled = batch.advantage[batch.alive], plain.advantage[plain.alive]
    if baseline == "none":
        unscaled = unscaled - lived.mean()
    assert advantage.sort().values.tolist() == pytest.approx((unscaled / lived.std()).sort().values.tolist(), abs=1e-5)


def test_full_reset_starts_every_environment_anew():
    state, config = new_state_of(CartPole(num_envs=4), num_steps=5, full_reset=True)
    loop = vpg.vpg(state, config)
    for _ in range(2):
        next(loop)
        assert (state.rollout.obs[0].abs() <= 0.05).all()
    carried, config = new_state_of(CartPole(num_envs=4), num_steps=5, full_reset=False, baseline="none")
    loop = vpg.vpg(carried, config)
    next(loop)
    last = carried.obs.clone()
    next(loop)
    assert torch.equal(carried.rollout.obs[0], last)


def test_reuse_takes_several_steps_on_whole_trajectories(monkeypatch):
    state, config = new_state(rollout_uses=3, num_batches=2, use_importance_weights=True, weight_clamp=None)
    batches, metrics = learned_from(monkeypatch, state, config)
    assert len(batches) == 6
    assert state.optimizer.step_count == 6
    assert {b.alive.shape[0] for b in batches} == {4 * state.steps // 8}
    assert metrics.terms.importance_weight != 1.0


def test_reuse_or_batches_without_weights_is_refused():
    for settings in (dict(rollout_uses=2), dict(num_batches=2)):
        with pytest.raises(UsageError, match="use_importance_weights"):
            VPGConfig(**settings)
        VPGConfig(**settings, use_importance_weights=True)


def test_learning_rate_decays_over_the_chosen_fraction():
    decay = dict(anneal_lr=True, learning_rate=1e-2, learning_rate_end=1e-3, anneal_fraction=0.4)
    state, config = new_state(**decay, max_episode_steps=4)  # nobody dies, so every rollout is whole
    rates = [row["charts/learning_rate"] for row in run(state, config)]
    assert rates == pytest.approx([1e-2, 5.5e-3, 1e-3, 1e-3, 1e-3])
    assert state.optimizer.learning_rate == torch.tensor(1e-3)


def test_total_timesteps_are_steps_really_taken():
    state, config = new_state(anneal_lr=True, total_timesteps=8 * 64 * 8)
    rows = run(state, config)
    assert len(rows) > config.phases, "rollouts that stop early leave steps for more"
    assert config.total_timesteps - config.batch_size < state.steps <= config.total_timesteps
    assert state.optimizer.learning_rate == 0.0


def test_stops_when_solved_if_asked_to():
    for ask, phases in ((True, 1), (False, 5)):
        state, config = new_state(max_episode_steps=4, stop_when_solved=ask)  # nobody dies within 4 steps
        run(state, config)
        assert state.phase == phases


def test_gradient_norm_is_limited_only_if_asked():
    (free, config), (tight, tight_config) = new_state(), new_state(max_grad_norm=1e-6)
    free_row, tight_row = run(free, config)[0], run(tight, tight_config)[0]
    assert free_row["losses/grad_norm"] == pytest.approx(tight_row["losses/grad_norm"])
    assert tight.optimizer.grad.norm() <= 1.01e-6


class Bonus(TensorEnv):
    """Pays minus the squared distance of the action from 0.7."""

    observation, action, time_limit = Box((1,)), Box((1,)), 1

    def initial(self, noise):
        return torch.ones_like(noise)

    def advance(self, state, action):
        return state

    def reward(self, state, action, next_state):
        return -(action[:, 0] - 0.7).square()


def test_continuous_actions_learn_too():
    agent = tr.VPG(Bonus(num_envs=128), num_steps=1, total_timesteps=128 * 300, learning_rate=1e-2, seed=1).learn(
        quiet=True
    )
    assert agent.predict([1.0])[0] == pytest.approx(0.7, abs=0.15)
    assert agent.evaluate().mean > -0.03


def test_what_cannot_mean_what_it_says_is_refused():
    for settings in (dict(full_reset=False), dict(anneal_lr=True, anneal_fraction=0.5)):
        with pytest.raises(UsageError):
            VPGConfig(**settings)
    with pytest.raises(UsageError, match="stop_when_solved"):
        new_state("Pendulum-v1", stop_when_solved=True)


def test_returns_shown_are_those_of_the_lives_in_the_rollout():
    state, config = new_state_of(Dies(num_envs=4), num_steps=10)
    row = Reading(next(vpg.vpg(state, config))).row()
    assert (row["charts/episodes"], row["charts/episodic_return"], row["charts/lifespan_mean"]) == (4, 4.0, 4.0)
    assert row["losses/value_loss"] == 0.0


def test_defaults_are_valid():
    assert VPGConfig().phases == 40


def test_without_full_reset_every_step_is_learned_from_and_whole_episodes_are_reported():
    from tightrope.algorithms.vpg import estimate, vpg

    state, config = new_state_of(CartPole(num_envs=8), num_steps=100, full_reset=False, baseline="critic")
    metrics = next(vpg(state, config))
    done = state.rollout.done
    assert done.any(0).all()  # so that all have a second life in the rollout
    batch = estimate(state, config, state.rollout, torch.ones(100, 1, dtype=torch.bool))
    assert batch.alive.all()
    assert metrics.lifespan_mean == (done.float().cumsum(0) == 0).sum(0).float().mean() + 1
    count, returns, lengths = metrics.episodes.tolist()
    assert count == done.sum()
    assert returns == lengths == sum(int(done[:, i].nonzero().max()) + 1 for i in range(8))
