"""What the page of PPO promises: schedules, determinism, exact ratios, exact stops, exact truncation."""

import math

import pytest
import torch

import tightrope as tr
from tightrope.algorithms import ppo
from tightrope.engine import Runtime, draw_noise
from tightrope.engine.metrics import Reading
from tightrope.envs import ENVS, Pendulum, TensorEnv
from tightrope.training.build import build
from tightrope.training.config import configure
from tightrope.types import Box, Discrete

SMALL = dict(num_envs=16, num_steps=16, num_minibatches=4, update_epochs=3, total_timesteps=16 * 16 * 6, device="cpu")


def new_state(env="CartPole-v1", **settings):
    config = configure(env, "ppo", {**SMALL, **settings}, with_preset=False)
    return build(config), config.algorithm


def run(state, config, phases=None):
    rows = []
    for metrics in ppo.ppo(state, config):
        rows.append(Reading(metrics).row())
        if phases is not None and state.phase >= phases:
            break
    return rows


def test_learning_rate_and_clip_decay_each_phase_and_end_exactly_at_their_end():
    state, config = new_state(learning_rate=3e-4, learning_rate_end=1e-5, anneal_clip=True)
    rates = [row["charts/learning_rate"] for row in run(state, config)]
    expected = [3e-4 + k / config.phases * (1e-5 - 3e-4) for k in range(config.phases)]
    assert rates == pytest.approx(expected, rel=1e-6)
    assert all(rate > 1e-5 for rate in rates), "no phase trains at the end value"
    assert state.optimizer.learning_rate == torch.tensor(1e-5)
    assert state.clip_coef == 0.0


def test_without_annealing_rates_are_constant():
    state, config = new_state(learning_rate=3e-4, anneal_lr=False)
    assert {row["charts/learning_rate"] for row in run(state, config)} == {torch.tensor(3e-4).item()}


def test_a_phase_depends_on_state_and_noise_alone():
    (a, config), (b, _) = new_state(), new_state()
    noise = draw_noise(a.env, a.policy.head.noise, config.num_steps, (config.update_epochs, config.batch_size), 7, 0)
    for state in (a, b):
        ppo.schedule(state, config)
        torch.manual_seed(torch.seed())
        ppo.phase(state, config, noise)
    assert torch.equal(a.optimizer.flat, b.optimizer.flat)
    assert torch.equal(a.obs, b.obs)


def watch_gradients(monkeypatch, look):
    """Have `look` called with the policy and the batch before each gradient."""
    original = Runtime.backward

    def watching(self, loss, policy, batch, optimizer):
        look(policy, batch)
        return original(self, loss, policy, batch, optimizer)

    monkeypatch.setattr(Runtime, "backward", watching)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("env", "normalize"),
    [
        (e, i % 2 == 0) for i, e in enumerate(ENVS) if not e.startswith(("Probe", "PrivilegedProbe", "TimeLimitProbe"))
    ],  # these have a single action
)
def test_ratio_is_1_on_the_first_minibatch_of_every_phase(env, normalize, recorded, monkeypatch):
    """Exactly, where the policy plays as it is written; to float32's rounding, where a recording plays for it."""
    tolerance = 3e-6 if recorded else 0.0
    if not recorded:
        monkeypatch.setattr("tightrope.engine.runtime.recorded_policy", lambda *_: None)
    seen = []

    @torch.no_grad()
    def look(policy, batch):
        distribution, value = policy(batch.obs)
        ratio = (distribution.log_prob(batch.action) - batch.log_prob).exp()
        near = torch.allclose(value, batch.value, rtol=tolerance, atol=tolerance)
        seen.append((bool(((ratio - 1).abs() <= tolerance).all()), near))

    watch_gradients(monkeypatch, look)
    state, config = new_state(env, norm_obs=normalize, norm_reward=normalize, learning_rate=1e-3)
    run(state, config)
    first = seen[:: config.updates_per_phase]
    assert len(first) == config.phases
    assert all(ratio_one and value_same for ratio_one, value_same in first)
    assert not all(ratio_one for ratio_one, _ in seen), "later minibatches have moved on"


def test_target_kl_stops_a_phase_and_breaking_out_equals_masking(monkeypatch):
    settings = dict(target_kl=1e-4, learning_rate=1e-2, update_epochs=8)
    (broken, config), (masked, _), (free, free_config) = (
        new_state(**settings),
        new_state(**settings),
        new_state(**{**settings, "target_kl": None}),
    )
    steps = []
    original = Runtime.step
    monkeypatch.setattr(Runtime, "step", lambda *a: steps.append(1) or original(*a))
    rows = run(broken, config)
    taken = int(broken.optimizer.step_count)
    assert taken < len(steps) < config.phases * config.updates_per_phase
    assert len(steps) <= taken + config.phases  # in each phase, one step that changes nothing ends the loop
    monkeypatch.setattr(
        Runtime, "halted", lambda self, stopped: False
    )  # as on a device, where looking would synchronise
    masked_rows = run(masked, config)
    assert torch.equal(broken.optimizer.flat, masked.optimizer.flat)
    assert torch.equal(broken.optimizer.first_moment, masked.optimizer.first_moment)
    assert broken.optimizer.step_count == masked.optimizer.step_count
    assert [r["losses/approx_kl"] for r in rows] == pytest.approx([r["losses/approx_kl"] for r in masked_rows])
    run(free, free_config)
    assert free.optimizer.step_count == free_config.phases * free_config.updates_per_phase


class Markers(TensorEnv):
    """Counts 0, 1, 2, 3 and is cut there; starts at 10, so that a reset's value cannot be mistaken for the final one."""

    observation, action, time_limit = Box((1,)), Discrete(1), 3

    def initial(self, noise):
        return torch.full_like(noise, 10.0)

    def advance(self, state, action):
        return torch.where(state == 10, 1.0, state + 1)

    def reward(self, state, action, next_state):
        return next_state[:, 0] * 0


def test_advantage_of_a_truncated_step_uses_the_final_observation(monkeypatch):
    """With V(s) = s, rewards 0 and lambda 0, A_t = gamma V(successor) - V(s_t) shows which successor was used."""
    state, config = new_state_of(Markers(num_envs=2), num_steps=4, num_minibatches=1, gae_lambda=0.0, gamma=0.5)
    monkeypatch.setattr(state.policy, "_value", lambda obs: obs[:, 0])
    batches = []

    def watching(self, loss, policy, batch, optimizer):
        batches.append((batch.obs.clone(), batch.target.clone()))
        return tr.functional.PPOTerms(*torch.zeros(5))

    monkeypatch.setattr(Runtime, "backward", watching)
    next(ppo.ppo(state, config))
    obs, target = batches[0]  # target = A + V = r + gamma V(successor) when lambda is 0
    expected = {10.0: 0.5 * 1, 1.0: 0.5 * 2, 2.0: 0.5 * 3}
    for seen, wanted in zip(obs[:, 0].tolist(), target.tolist(), strict=True):
        assert wanted == expected[seen], "the truncated step 2 -> 3 bootstraps V(3), not V(10) of the next episode"


def new_state_of(env, **settings):
    agent = tr.PPO(env, **{"total_timesteps": 10_000, "update_epochs": 1, **settings})
    return agent.state, agent.config.algorithm


def test_observation_statistics_move_only_between_phases():
    state, config = new_state("Pendulum-v1", norm_obs=True)
    moments = state.policy.normalizer
    rollouts = []
    for _ in ppo.ppo(state, config):
        rollouts.append(state.rollout.obs.flatten(0, 1).clone())
        everything = torch.cat(rollouts)
        assert torch.allclose(moments.mean, everything.mean(0), atol=1e-5)
        assert torch.allclose(moments.variance, everything.var(0, correction=0), rtol=1e-4)


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    state, config = new_state("Pendulum-v1", norm_reward=True, gamma=0.9, num_steps=50, num_minibatches=1)
    running, returns = torch.zeros(config.num_envs), []
    for _ in ppo.ppo(state, config):
        for reward, done in zip(state.rollout.reward, state.rollout.done, strict=True):
            running = 0.9 * running + reward
            returns.append(running.clone())
            running = running * ~done
    assert state.policy.reward_scaler.std.item() == pytest.approx(torch.cat(returns).std().item(), rel=1e-3)


def test_raw_actions_are_kept_and_clipped_ones_are_played():
    played = []

    class Recorder(Pendulum):
        pure = False

        def advance(self, state, action):
            played.append(action.clone())
            return super().advance(state, action)

    state, config = new_state_of(Recorder(num_envs=8), num_steps=32, learning_rate=1e-9)
    with torch.no_grad():
        state.policy.head.log_std.fill_(2.0)
    next(ppo.ppo(state, config))
    raw = state.rollout.action
    assert raw.abs().max() > 1.0  # in units in which the bounds are -1 and 1
    assert torch.equal(torch.stack(played), (2 * raw).clamp(-2.0, 2.0))


def test_advantages_and_targets_stay_what_they_were_through_all_epochs(monkeypatch):
    """Estimated once from the critic that acted, not again from the one being changed."""
    seen = []
    watch_gradients(monkeypatch, lambda policy, batch: seen.append(sorted(batch.target.tolist())))
    state, config = new_state(num_minibatches=1, learning_rate=1e-2)
    next(ppo.ppo(state, config))
    assert len(seen) == config.update_epochs
    assert all(targets == seen[0] for targets in seen)


def test_the_first_step_of_a_phase_is_taken_whatever_the_target_kl():
    state, config = new_state(num_envs=1, num_steps=64, target_kl=1e-20, total_timesteps=64 * 3)
    run(state, config)
    assert state.optimizer.step_count >= config.phases


@pytest.mark.parametrize("setting", [dict(norm_adv=False), dict(clip_vloss=True), dict(max_grad_norm=None),
                                     dict(norm_obs=True), dict(log_std="state"), dict(share_trunk=True),
                                     dict(hidden_sizes=[8]), dict(activation="relu"), dict(ent_coef=0.1)])  # fmt: skip
def test_every_switch_changes_what_is_learned_and_keeps_it_finite(setting):
    (plain, config), (changed, changed_config) = new_state("Pendulum-v1"), new_state("Pendulum-v1", **setting)
    rows, changed_rows = run(plain, config), run(changed, changed_config)
    assert rows[-1]["losses/value_loss"] != changed_rows[-1]["losses/value_loss"]
    assert all(math.isfinite(v) for row in changed_rows for v in row.values())
