"""Each term against its definition, and what each lets gradients through."""

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
import torch.distributions
from hypothesis import assume, given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor
from torch.autograd import grad

from tightrope.functional import (
    PPOLoss,
    VPGLoss,
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    entropy_bonus,
    importance_weights,
    policy_gradient,
    value_loss,
)  # fmt: skip
from tightrope.models import Categorical
from tightrope.types import Batch, Trajectories

CLIP = 0.2


def columns(*bounds: tuple[float, float]):
    """Columns of equal length, one for each pair of bounds, as double precision tensors."""
    rows = st.lists(st.tuples(*(st.floats(low, high) for low, high in bounds)), min_size=1, max_size=8)
    return rows.map(lambda rows: [torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True)])


LOG_PROB, REAL, POSITIVE = (-3.0, 0.0), (-10.0, 10.0), (0.1, 3.0)


def same(actual: Tensor, expected: float) -> bool:
    return float(actual) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


@given(columns(LOG_PROB, LOG_PROB), st.none() | st.floats(0.0, 1.0))
def test_importance_weight_is_the_ratio_of_probabilities(case, clamp):
    log_prob, old = case
    weight = importance_weights(log_prob, old, clamp)
    for w, new_lp, old_lp in zip(weight, log_prob.tolist(), old.tolist(), strict=True):
        ratio = math.exp(new_lp) / math.exp(old_lp)
        assert same(w, ratio if clamp is None else clip(ratio, 1 - clamp, 1 + clamp))


@given(columns(LOG_PROB, REAL, POSITIVE), st.data())
def test_policy_gradient_is_the_mean_over_the_steps_that_count(case, data):
    log_prob, advantage, weight = case
    mask = data.draw(st.lists(st.booleans(), min_size=len(weight), max_size=len(weight)).filter(any))
    rows = zip(log_prob.tolist(), advantage.tolist(), weight.tolist(), mask, strict=True)
    expected = fmean(w * lp * a for lp, a, w, counts in rows if counts)
    assert same(policy_gradient(log_prob, advantage, weight, torch.tensor(mask)), expected)


@given(columns(LOG_PROB, LOG_PROB, REAL), st.floats(0.01, 0.9))
def test_clipped_surrogate_is_the_lesser_of_two_products(case, eps):
    log_prob, old, advantage = case
    expected = []
    for new_lp, old_lp, a in zip(*(column.tolist() for column in case), strict=True):
        ratio = math.exp(new_lp - old_lp)
        expected.append(min(ratio * a, clip(ratio, 1 - eps, 1 + eps) * a))
    assert same(clipped_surrogate(log_prob, old, advantage, eps), fmean(expected))
    assert same(clipped_surrogate(log_prob, old, advantage, torch.tensor(eps, dtype=torch.float64)), fmean(expected))


@given(columns(REAL, REAL))
def test_value_loss_is_half_the_mean_squared_error(case):
    value, target = case
    assert same(value_loss(value, target), 0.5 * fmean(((value - target) ** 2).tolist()))


@given(columns(REAL, REAL, (-1.0, 1.0)))
def test_a_mask_leaves_steps_out_of_the_value_loss(case):
    value, target, sign = case
    mask = sign >= 0
    errors = [0.5 * (v - goal) ** 2 for v, goal in zip(value[mask].tolist(), target[mask].tolist(), strict=True)]
    assert same(value_loss(value, target, mask), fmean(errors) if errors else 0.0)


@given(columns(REAL, REAL, REAL), st.floats(0.01, 5.0))
def test_clipped_value_loss_is_the_worse_of_two_errors(case, eps):
    value, old_value, target = case
    expected = []
    for v, old, goal in zip(*(column.tolist() for column in case), strict=True):
        expected.append(0.5 * max((v - goal) ** 2, (clip(v, old - eps, old + eps) - goal) ** 2))
    assert same(clipped_value_loss(value, old_value, target, eps), fmean(expected))


@given(columns((0.0, 5.0)))
def test_entropy_bonus_is_the_mean(case):
    assert same(entropy_bonus(case[0]), fmean(case[0].tolist()))


@given(columns(LOG_PROB, LOG_PROB), st.floats(0.05, 0.9))
def test_clip_fraction_counts_the_ratios_outside(case, eps):
    log_prob, old = case
    ratios = [math.exp(a - b) for a, b in zip(log_prob.tolist(), old.tolist(), strict=True)]
    assume(all(abs(abs(r - 1) - eps) > 1e-6 for r in ratios))
    expected = fmean(r < 1 - eps or r > 1 + eps for r in ratios)
    assert float(clip_fraction(log_prob, old, eps)) == pytest.approx(expected)


@given(columns(LOG_PROB, LOG_PROB))
def test_approx_kl_by_definition(case):
    ratios = [math.exp(a - b) for a, b in zip(*(column.tolist() for column in case), strict=True)]
    assert same(approx_kl(*case), fmean(r - 1 - math.log(r) for r in ratios))


@given(st.floats(1e-8, 1.0), st.sampled_from([-1.0, 1.0]))
def test_approx_kl_is_never_negative(size, sign):
    """In single precision too, where exp(x) - 1 loses what is left of x to rounding."""
    log_ratio = torch.tensor([sign * size])
    assert float(approx_kl(log_ratio, torch.zeros(1))) >= 0


def test_approx_kl_of_a_small_step_is_half_its_square():
    log_ratio = torch.tensor([1e-3, -1e-3])
    assert float(approx_kl(log_ratio, torch.zeros(2))) == pytest.approx(0.5e-6, rel=1e-2)


def test_approx_kl_approaches_the_divergence_from_the_old_policy():
    generator = torch.Generator().manual_seed(0)
    old, new = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.1, 0.2, 0.7]).log()
    action = torch.multinomial(old.exp(), 200_000, replacement=True, generator=generator)
    divergence = float((old.exp() * (old - new)).sum())
    assert float(approx_kl(new[action], old[action])) == pytest.approx(divergence, rel=0.02)
    assert float(approx_kl(old[action], old[action])) == 0


def leaf(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64, requires_grad=True)


def surrogate_slope(ratio: float, advantage: float) -> float:
    """How the surrogate of one step changes with its log-probability."""
    log_prob = leaf(math.log(ratio))
    surrogate = clipped_surrogate(log_prob, torch.zeros_like(log_prob), leaf(advantage), CLIP)
    return grad(surrogate, log_prob)[0].item()


@given(st.floats(0.3, 3.0), st.floats(-10, 10))
def test_the_surrogate_is_flat_only_where_it_has_gone_far_enough_the_right_way(ratio, advantage):
    assume(abs(abs(ratio - 1) - CLIP) > 1e-6)
    far_enough = ratio > 1 + CLIP if advantage > 0 else ratio < 1 - CLIP
    expected = 0.0 if far_enough else ratio * advantage
    assert surrogate_slope(ratio, advantage) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.5, 1, 0), (0.5, -1, 0), (1.5, -1, -1.5), (0.5, 1, 0.5), (1.0, 2, 2), (1.1, 1, 1.1), (0.9, -1, -0.9)],
)
def test_the_surrogate_in_numbers(ratio, advantage, slope):
    assert surrogate_slope(ratio, advantage) == pytest.approx(slope)


@given(columns(LOG_PROB, REAL))
def test_at_ratio_one_the_surrogate_has_the_plain_policy_gradient(case):
    log_prob, advantage = case[0].requires_grad_(), case[1]
    surrogate = clipped_surrogate(log_prob, log_prob.detach(), advantage, CLIP)
    plain = policy_gradient(
        log_prob, advantage, torch.ones_like(advantage), torch.ones(len(advantage), dtype=torch.bool)
    )
    torch.testing.assert_close(grad(surrogate, log_prob)[0], grad(plain, log_prob)[0])


def test_weights_advantages_targets_and_everything_old_are_constants():
    log_prob, value = leaf(-0.5, -1.0), leaf(1.0, 2.0)
    old_log_prob, old_value, advantage, target = leaf(-0.6, -0.9), leaf(1.1, 1.9), leaf(1.0, -1.0), leaf(3.0, -3.0)
    everyone = torch.ones(2, dtype=torch.bool)
    old = (old_log_prob, old_value, advantage, target)
    weight = importance_weights(log_prob, old_log_prob)
    terms = [
        policy_gradient(log_prob, advantage, leaf(1.0, 1.0), everyone),
        clipped_surrogate(log_prob, old_log_prob, advantage, CLIP),
        value_loss(value, target),
        clipped_value_loss(value, old_value, target, CLIP),
    ]
    for term in terms:
        assert grad(term, old, retain_graph=True, allow_unused=True) == (None,) * len(old)
        into_policy, into_critic = grad(term, (log_prob, value), allow_unused=True)
        assert (into_policy if into_critic is None else into_critic).abs().min() > 0
    assert not weight.requires_grad
    assert not approx_kl(log_prob, old_log_prob).requires_grad
    assert not clip_fraction(log_prob, old_log_prob, CLIP).requires_grad


def test_weights_scale_the_policy_gradient_but_are_not_differentiated():
    log_prob, weight = leaf(-0.5, -1.0), leaf(2.0, 3.0)
    objective = policy_gradient(log_prob, torch.ones_like(weight), weight, torch.tensor([True, True]))
    into_policy, into_weight = grad(objective, (log_prob, weight), allow_unused=True)
    assert into_policy.tolist() == [2 / 2, 3 / 2]
    assert into_weight is None


def test_the_value_loss_pulls_the_value_towards_its_target():
    value = leaf(1.0, 5.0)
    assert grad(value_loss(value, leaf(3.0, 3.0)), value)[0].tolist() == [(1 - 3) / 2, (5 - 3) / 2]


@pytest.mark.parametrize(
    ("value", "slope"),
    [(0.1, 0.1 - 1), (0.5, 0.0), (-0.5, -0.5 - 1), (2.5, 2.5 - 1)],
    ids=["near the old value", "far enough towards the target", "away from the target", "far beyond the target"],
)
def test_the_clipped_value_loss_is_flat_only_where_the_value_has_gone_far_enough(value, slope):
    """From an old value of 0 towards a target of 1."""
    v = leaf(value)
    loss = clipped_value_loss(v, leaf(0.0), leaf(1.0), CLIP)
    assert grad(loss, v)[0].item() == pytest.approx(slope)


class Linear:
    """A policy of one matrix and a critic of one vector."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.actor = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        self.critic = torch.randn(3, dtype=torch.float64, generator=generator, requires_grad=True)

    def __call__(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(obs @ self.actor), obs @ self.critic

    def gradient(self, loss: Tensor) -> tuple[Tensor, ...]:
        return grad(loss, (self.actor, self.critic), materialize_grads=True)


def trajectories(size: int = 32) -> Trajectories:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    obs, action = normal(size, 3), torch.randint(4, (size,), generator=generator)
    with torch.no_grad():
        distribution, value = Linear()(obs)
    return Trajectories(
        obs=obs,
        action=action,
        log_prob=distribution.log_prob(action) + 0.3 * normal(size),
        value=value + 0.3 * normal(size),
        advantage=normal(size),
        target=value + normal(size),
        alive=torch.rand(size, generator=generator) < 0.7,
    )


def transitions() -> Batch:
    t = trajectories()
    return Batch(t.obs, t.action, t.log_prob, t.value, t.advantage, t.target)


@pytest.mark.parametrize("clip_vloss", [False, True])
@pytest.mark.parametrize("clip_coef", [0.2, torch.tensor(0.2, dtype=torch.float64)], ids=["float", "tensor"])
def test_ppo_loss_is_the_negative_of_equation_9(clip_vloss, clip_coef):
    policy, batch = Linear(), transitions()
    total, terms = PPOLoss(clip_coef, vf_coef=0.7, ent_coef=0.03, clip_vloss=clip_vloss)(policy, batch)

    reference = torch.distributions.Categorical(logits=batch.obs @ policy.actor)
    value = batch.obs @ policy.critic
    ratio = (reference.log_prob(batch.action) - batch.log_prob).exp()
    surrogate = torch.min(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage).mean()
    near = torch.max(torch.min(value, batch.value + 0.2), batch.value - 0.2)
    error = (value - batch.target) ** 2
    critic_loss = (torch.max(error, (near - batch.target) ** 2) if clip_vloss else error).mean() / 2
    entropy = reference.entropy().mean()
    expected = -surrogate + 0.7 * critic_loss - 0.03 * entropy

    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(policy.gradient(total), policy.gradient(expected))
    torch.testing.assert_close(terms.policy_loss, -surrogate.detach())
    torch.testing.assert_close(terms.value_loss, critic_loss.detach())
    torch.testing.assert_close(terms.entropy, entropy.detach())
    torch.testing.assert_close(terms.approx_kl, (ratio - 1 - ratio.log()).mean().detach())
    assert float(terms.clip_fraction) == pytest.approx(float(((ratio < 0.8) | (ratio > 1.2)).double().mean()))
    assert 0 < float(terms.clip_fraction) < 1
    assert not any(term.requires_grad for term in terms)


@pytest.mark.parametrize(("reuse", "clamp"), [(False, 0.2), (True, 0.2), (True, None)])
def test_vpg_loss_is_the_negative_of_its_objective_over_the_steps_lived(reuse, clamp):
    policy, batch = Linear(), trajectories()
    total, terms = VPGLoss(reuse, clamp, vf_coef=0.7, ent_coef=0.03)(policy, batch)

    lived = [getattr(batch, name)[batch.alive] for name in ("obs", "action", "log_prob", "advantage", "target")]
    obs, action, old_log_prob, advantage, target = lived
    reference = torch.distributions.Categorical(logits=obs @ policy.actor)
    log_prob = reference.log_prob(action)
    weight = (log_prob - old_log_prob).exp().detach() if reuse else torch.ones_like(log_prob)
    if reuse and clamp is not None:
        weight = weight.clamp(1 - clamp, 1 + clamp)
    objective = (weight * log_prob * advantage).mean()
    critic_loss = ((obs @ policy.critic - target) ** 2).mean() / 2
    entropy = reference.entropy().mean()
    expected = -objective - 0.03 * entropy + 0.7 * critic_loss

    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(policy.gradient(total), policy.gradient(expected))
    torch.testing.assert_close(
        tuple(terms), tuple(t.detach() for t in (objective, critic_loss, entropy, weight.mean()))
    )
    assert not any(term.requires_grad for term in terms)


def test_padding_has_no_influence_on_the_vpg_loss_or_its_gradient():
    policy, batch = Linear(), trajectories()
    loss = VPGLoss(True, None, vf_coef=0.7, ent_coef=0.03)
    padding = ~batch.alive
    other = replace(batch, **{name: getattr(batch, name).clone() for name in ("obs", "action", "advantage", "target")})
    other.obs[padding], other.action[padding] = -3.0, 0
    other.advantage[padding], other.target[padding] = 1e6, -1e6

    total, terms = loss(policy, batch)
    other_total, other_terms = loss(policy, other)
    torch.testing.assert_close((total, *terms), (other_total, *other_terms), rtol=0, atol=0)
    torch.testing.assert_close(policy.gradient(total), policy.gradient(other_total), rtol=0, atol=0)


@pytest.mark.parametrize("loss", [PPOLoss(CLIP, 0.5, 0.0, False), VPGLoss(False, None, 0.5, 0.0)], ids=["ppo", "vpg"])
def test_descending_a_loss_makes_good_actions_likelier_and_values_truer(loss):
    policy, batch = Linear(), trajectories()
    with torch.no_grad():
        before, value_before = policy(batch.obs)
    batch.log_prob = before.log_prob(batch.action)
    total, _ = loss(policy, batch)
    with torch.no_grad():
        for parameter, g in zip((policy.actor, policy.critic), policy.gradient(total), strict=True):
            parameter -= 1e-3 * g
        after, value_after = policy(batch.obs)
    gain = (after.log_prob(batch.action) - before.log_prob(batch.action)) * batch.advantage
    improvement = (value_before - batch.target).square() - (value_after - batch.target).square()
    assert gain[batch.alive].mean() > 0
    assert improvement[batch.alive].mean() > 0


@pytest.mark.parametrize("loss", [PPOLoss(CLIP, 0.0, 0.5, False), VPGLoss(False, None, 0.0, 0.5)], ids=["ppo", "vpg"])
def test_descending_a_loss_with_nothing_to_gain_raises_the_entropy(loss):
    policy, batch = Linear(), replace(trajectories(), advantage=torch.zeros(32, dtype=torch.float64))
    total, terms = loss(policy, batch)
    with torch.no_grad():
        policy.actor -= 1e-3 * policy.gradient(total)[0]
    assert loss(policy, batch)[1].entropy > terms.entropy


def test_one_good_and_one_bad_action():
    """Ascending either objective moves probability from the action that disappointed to the one that did well."""
    for objective in ("policy gradient", "surrogate"):
        logits = torch.zeros(2, 3, requires_grad=True)
        action, advantage = torch.tensor([0, 1]), torch.tensor([1.0, -1.0])
        log_prob = Categorical(logits).log_prob(action)
        if objective == "surrogate":
            term = clipped_surrogate(log_prob, log_prob.detach(), advantage, CLIP)
        else:
            term = policy_gradient(log_prob, advantage, torch.ones(2), torch.tensor([True, True]))
        risen = Categorical(logits.detach() + grad(term, logits)[0]).probs
        assert risen[0, 0] > 1 / 3 > risen[0, 1]
        assert risen[1, 1] < 1 / 3 < risen[1, 0]


def test_wrong_shapes_are_refused():
    """(B, 1) against (B,) would broadcast to (B, B) and learn nonsense."""
    flat, column = torch.zeros(4), torch.zeros(4, 1)
    with pytest.raises(TypeCheckError, match="value"):
        value_loss(column, flat)
    with pytest.raises(TypeCheckError, match="advantage"):
        clipped_surrogate(flat, flat, column, CLIP)
    with pytest.raises(TypeCheckError, match="old_log_prob"):
        approx_kl(flat, flat[:3])
    policy = Linear()
    with pytest.raises(TypeCheckError, match="value"):
        PPOLoss(CLIP, 0.5, 0.0, False)(lambda obs: (policy(obs)[0], policy(obs)[1][:, None]), transitions())
