"""The terms of the REINFORCE and PPO objectives, the two losses that the algorithms minimise, and that of imitation.

REINFORCE: Williams 1992. PPO: Schulman et al. 2017 (arXiv:1707.06347), eq. 7 and eq. 9. Terms to be maximised (surrogate,
policy gradient, entropy) have the paper's sign; PPOLoss and VPGLoss turn the sum into a loss to be minimised.

A loss is a frozen dataclass, called on (policy, batch). It returns the scalar to minimise and the terms to log.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..types import Batch, Trajectories
from .estimators import masked_mean


class Distribution(Protocol):
    def log_prob(self, action: Tensor) -> Tensor: ...
    def entropy(self, action: Tensor) -> Tensor: ...  # of the parts that the actions use


Policy = Callable[[Tensor], tuple[Distribution, Tensor]]
Equation = Callable[..., Tensor]  # a field of a loss with the function of this file as its default


def importance_weights(
    log_prob: Float[Tensor, "B"], old_log_prob: Float[Tensor, "B"], clamp: float | None = None
) -> Float[Tensor, "B"]:
    """w = pi / pi_old, detached, and clamped to [1 - clamp, 1 + clamp] unless `clamp` is None."""
    weight = (log_prob - old_log_prob).detach().exp()
    return weight if clamp is None else weight.clamp(1 - clamp, 1 + clamp)


def policy_gradient(
    log_prob: Float[Tensor, "B"], advantage: Float[Tensor, "B"], weight: Float[Tensor, "B"], mask: Bool[Tensor, "B"]
) -> Float[Tensor, ""]:
    """REINFORCE, to be maximised: mean of w log pi(a|s) (G - b) over the steps in the mask."""
    return masked_mean(weight.detach() * log_prob * advantage.detach(), mask)


def clipped_surrogate(
    log_prob: Float[Tensor, "B"],
    old_log_prob: Float[Tensor, "B"],
    advantage: Float[Tensor, "B"],
    clip_coef: float | Tensor,
) -> Float[Tensor, ""]:
    """L^CLIP, to be maximised: mean of min(r A, clip(r, 1 - eps, 1 + eps) A)."""
    advantage = advantage.detach()
    ratio = (log_prob - old_log_prob.detach()).exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)  # type: ignore[arg-type]
    return torch.min(ratio * advantage, clipped * advantage).mean()  # eq. 7 [detail 8]


def value_loss(
    value: Float[Tensor, "B"], target: Float[Tensor, "B"], mask: Bool[Tensor, "B"] | None = None
) -> Float[Tensor, ""]:
    """Half the mean squared error, over the steps in the mask if there is one."""
    error = (value - target.detach()).square()
    return 0.5 * (error.mean() if mask is None else masked_mean(error, mask))


def clipped_value_loss(
    value: Float[Tensor, "B"], old_value: Float[Tensor, "B"], target: Float[Tensor, "B"], clip_coef: float | Tensor
) -> Float[Tensor, ""]:
    """Half the mean of the larger squared error: that of the value, or of the value clipped to old_value +- clip_coef."""
    old_value, target = old_value.detach(), target.detach()
    clipped = old_value + (value - old_value).clamp(-clip_coef, clip_coef)  # type: ignore[arg-type]
    return 0.5 * torch.max((value - target).square(), (clipped - target).square()).mean()  # [detail 9]


def entropy_bonus(entropy: Float[Tensor, "B"]) -> Float[Tensor, ""]:
    """S of eq. 9, to be maximised: the mean entropy."""
    return entropy.mean()


def approx_kl(log_prob: Float[Tensor, "B"], old_log_prob: Float[Tensor, "B"]) -> Float[Tensor, ""]:
    """KL(pi_old || pi) from samples of pi_old: the mean of (r - 1) - log r, unbiased and never negative. [detail 12]"""
    log_ratio = (log_prob - old_log_prob).detach()
    return (log_ratio.expm1() - log_ratio).mean()


def clip_fraction(
    log_prob: Float[Tensor, "B"], old_log_prob: Float[Tensor, "B"], clip_coef: float | Tensor
) -> Float[Tensor, ""]:
    """Fraction of the batch whose ratio is outside [1 - eps, 1 + eps]."""
    ratio = (log_prob - old_log_prob).detach().exp()
    return ((ratio - 1).abs() > clip_coef).float().mean()


class PPOTerms(NamedTuple):
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor

    @staticmethod
    def diagnostics() -> frozenset[str]:
        """Name the terms that are only logged and may overflow. Training stops if any other term is not finite."""
        return frozenset({"approx_kl", "clip_fraction"})


@dataclass(frozen=True)
class PPOLoss:
    """-(L^CLIP - c1 L^VF + c2 S): eq. 9 with the opposite sign, to be minimised."""

    inputs: ClassVar[tuple[str, ...]] = ("vf_coef", "ent_coef")  # numbers for which a recording needs not be made again

    clip_coef: float | Tensor
    vf_coef: float | Tensor
    ent_coef: float | Tensor
    clip_vloss: bool
    surrogate: Equation = clipped_surrogate
    critic_loss: Equation = value_loss
    bonus: Equation = entropy_bonus

    def __call__(self, policy: Policy, batch: Batch) -> tuple[Tensor, PPOTerms]:
        distribution, value = policy(batch.obs)
        log_prob = distribution.log_prob(batch.action)
        surrogate = self.surrogate(log_prob, batch.log_prob, batch.advantage, self.clip_coef)
        if self.clip_vloss:
            critic_loss = clipped_value_loss(value, batch.value, batch.target, self.clip_coef)
        else:
            critic_loss = self.critic_loss(value, batch.target)
        entropy = self.bonus(distribution.entropy(batch.action))
        total = -(surrogate - self.vf_coef * critic_loss + self.ent_coef * entropy)  # eq. 9 [detail 10]
        return total, PPOTerms(
            policy_loss=-surrogate.detach(),
            value_loss=critic_loss.detach(),
            entropy=entropy.detach(),
            approx_kl=approx_kl(log_prob, batch.log_prob),
            clip_fraction=clip_fraction(log_prob, batch.log_prob, self.clip_coef),
        )


class VPGTerms(NamedTuple):
    objective: Tensor
    value_loss: Tensor
    entropy: Tensor
    importance_weight: Tensor

    @staticmethod
    def diagnostics() -> frozenset[str]:
        """Name the terms that are only logged and may overflow. Training stops if any other term is not finite."""
        return frozenset({"importance_weight"})


@dataclass(frozen=True)
class VPGLoss:
    """-(mean of w log pi (G - b) + c2 S) + c1 L^VF over the steps that are not padding."""

    inputs: ClassVar[tuple[str, ...]] = ("ent_coef",)  # numbers for which a recording needs not be made again

    use_importance_weights: bool
    weight_clamp: float | None
    vf_coef: float
    ent_coef: float | Tensor
    weights: Equation = importance_weights
    gradient: Equation = policy_gradient

    def __call__(self, policy: Policy, batch: Trajectories) -> tuple[Tensor, VPGTerms]:
        distribution, value = policy(batch.obs)
        log_prob = distribution.log_prob(batch.action)
        if self.use_importance_weights:
            weight = self.weights(log_prob, batch.log_prob, self.weight_clamp)
        else:
            weight = torch.ones_like(log_prob)
        objective = self.gradient(log_prob, batch.advantage, weight, batch.alive)
        critic_loss = value_loss(value, batch.target, batch.alive) if self.vf_coef > 0 else torch.zeros_like(objective)
        entropy = masked_mean(distribution.entropy(batch.action), batch.alive)
        total = -(objective + self.ent_coef * entropy) + self.vf_coef * critic_loss
        return total, VPGTerms(
            objective=objective.detach(),
            value_loss=critic_loss.detach(),
            entropy=entropy.detach(),
            importance_weight=masked_mean(weight, batch.alive),
        )


class ImitationTerms(NamedTuple):
    negative_log_likelihood: Tensor
    value_loss: Tensor


@dataclass(frozen=True)
class ImitationLoss:
    """Behaviour cloning: -(mean of log pi(a|s)) of a teacher's actions + c1 L^VF."""

    vf_coef: float

    def __call__(self, policy: Policy, batch: Batch) -> tuple[Tensor, ImitationTerms]:
        distribution, value = policy(batch.obs)
        likelihood = distribution.log_prob(batch.action).mean()
        critic_loss = value_loss(value, batch.target) if self.vf_coef > 0 else torch.zeros_like(likelihood)
        total = self.vf_coef * critic_loss - likelihood
        return total, ImitationTerms(-likelihood.detach(), critic_loss.detach())


@runtime_checkable
class Terms(Protocol):
    """A named tuple of the terms that a loss returns. It may have a method `diagnostics`, as PPOTerms has."""

    def _asdict(self) -> dict[str, Tensor]: ...


def terms_to_check(terms: Terms) -> dict[str, Tensor]:
    """Return by name the terms that must stay finite: all but the `diagnostics` that the tuple declares."""
    ignored: frozenset[str] = getattr(terms, "diagnostics", frozenset)()
    return {name: term for name, term in terms._asdict().items() if name not in ignored}
