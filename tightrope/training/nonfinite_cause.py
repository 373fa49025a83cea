"""Find the first non-finite tensor of a bad phase and the most likely cause.

Tensors are searched in the order of the phase: observation, policy output and reward of each step; estimates, losses and
gradient of each minibatch; then parameters and statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..engine.metrics import BadEntry, first_bad_entry, first_index, location, over_entries
from ..models import ActorCritic
from ..models.action_mask import forbids_all
from ..types import Batch, MultiDiscrete, Rollout, Spec
from .config import Config
from .user_objects import check_command

HUGE_REWARD, HUGE_OBSERVATION, HUGE_PARAMETER = 1e12, 1e8, 1e3  # sizes that explain a failure
SQUARE = 1e16  # beyond this, normalizing does not help: it squares values, and returns sum rewards
FAR = 1.0  # no parameter of a healthy run moves farther in one phase
WIDE = 20.0  # log_std whose exponential is far from any action
HIGH_KL = 0.5
LAST = 5  # recent phases whose KL divergence is compared
MODERATE_RATE = 1e-3


class Advice(NamedTuple):
    """The cause of a failure and its fix."""

    cause: str
    fix: str
    flags: tuple[str, ...] = ()  # the settings of the fix, for the command line
    worth_resuming: bool = True  # whether the state before the phase can be trained further


NOT_AGAIN = "but not when it was run again eagerly"


@dataclass
class Evidence:
    """Data of a bad phase, on the CPU. `minibatch`, `terms` and `gradient` belong to the first bad update."""

    parts: list[str]  # quantities that the guard found bad
    rollout: Rollout  # the steps of the phase
    last_obs: Tensor  # after the last step
    observation: Spec  # the observation space
    before: dict[str, Tensor]  # parameters before the phase
    after: dict[str, Tensor] = field(default_factory=dict)  # parameters at the failure or the end
    statistics: dict[str, Tensor] = field(default_factory=dict)  # of the normalizers at that point
    updates: int = 0  # good updates before the first bad one
    minibatch: Batch | None = None
    terms: dict[str, float] = field(default_factory=dict)
    checked_terms: list[str] = field(default_factory=list)  # names of the terms that must be finite
    gradient: dict[str, Tensor] = field(default_factory=dict)  # by parameter
    kl: list[float] = field(default_factory=list)  # of each update, if the algorithm has this term
    bad_layer: str | None = None  # the first layer with finite inputs and a non-finite output
    note: str = ""  # an error while running the phase again


def first_bad(evidence: Evidence) -> BadEntry:
    """The first bad entry, in the order of the phase."""
    found = first_bad_entry(evidence.rollout, evidence.last_obs, evidence.observation) or in_update(evidence)
    found = found or in_tensors("parameter", "parameter", evidence.after, "after the updates")
    found = found or in_tensors("statistics", "statistics", evidence.statistics, "after the updates")
    return found or BadEntry(evidence.parts[0], f"{' and '.join(evidence.parts)}, {evidence.note or NOT_AGAIN}")


def in_update(evidence: Evidence) -> BadEntry | None:
    """The first bad tensor or loss in the bad update; without one, the largest gradient, whose square overflows."""
    minibatch, where = evidence.minibatch, f"in update {evidence.updates}"
    if minibatch is None:
        return None
    for name in ("target", "advantage"):
        column = getattr(minibatch, name)
        at = first_index(column, getattr(minibatch, "alive", torch.ones_like(column, dtype=torch.bool)))
        if at is not None:
            return BadEntry("estimate", f"{name} is {column[at]:g} {where}")
    for name in evidence.checked_terms:
        if not math.isfinite(value := evidence.terms[name]):
            return BadEntry("loss", f"loss term {name} is {value:g} {where}")
    found = in_tensors("gradient", "gradient of", evidence.gradient, where)
    if found is not None or not evidence.gradient:
        return found
    size, name = max((largest_size(tensor), name) for name, tensor in evidence.gradient.items())
    return BadEntry("gradient", f"gradient of {name} reaches {size:g}, whose square overflows float32, {where}")


def in_tensors(kind: str, words: str, tensors: dict[str, Tensor], where: str) -> BadEntry | None:
    """The first bad tensor of a mapping."""
    for name, tensor in tensors.items():
        if (at := first_index(tensor)) is not None:
            return BadEntry(kind, f"{words} {name} is {tensor[at]:g} {where}")
    return None


def advise(
    bad: BadEntry, evidence: Evidence, config: Config, rows: list[dict[str, float]], policy: ActorCritic
) -> Advice:
    """The cause and fix: the env if it returned a non-finite number, otherwise the most likely cause."""
    spoilt = next((name for name, x in evidence.before.items() if not torch.isfinite(x).all()), None)
    if spoilt is not None:
        return Advice(f"{spoilt} was not finite before the phase", "load an earlier checkpoint", worth_resuming=False)
    if bad.kind in ("observation", "reward"):
        return Advice("", f"look at the env, {check_command(config.run.train_env or config.env)}")
    suspect = empty_mask(evidence, policy) or size_of_env(evidence, config) or log_std_out_of_bounds(evidence, config)
    if suspect := suspect or steps_too_large(evidence, config, rows):
        return suspect
    if bad.kind == "value" or config.network.network is not None:
        given = "observation" if bad.kind == "value" else "minibatch"
        layer = "" if evidence.bad_layer is None else f", first in its layer {evidence.bad_layer}"
        return Advice(f"the network made it of a finite {given}{layer}", "look for a root, log or division in it")
    return slower(config, "")


def empty_mask(evidence: Evidence, policy: ActorCritic) -> Advice | None:
    """Advice for an action mask that allows nothing."""
    if policy.action_mask is None:
        return None
    obs, spec = evidence.rollout.obs, MultiDiscrete(policy.action_mask.options)
    _, mask = policy.action_mask(obs.flatten(0, 1))
    forbidden = forbids_all(mask.numpy(), spec).reshape(obs.shape[:2])
    if not forbidden.any():
        return None
    step, env = (int(i) for i in np.argwhere(forbidden)[0])
    return Advice(
        f"the action mask {location(step, env)} allows nothing", "allow an option of each choice in every observation"
    )


def size_of_env(evidence: Evidence, config: Config) -> Advice | None:
    """Advice for rewards or observations that are too large to learn from."""
    rollout = evidence.rollout
    reward, at = largest_entry(rollout.reward, rollout.valid)
    if abs(reward) > HUGE_REWARD:
        cause = f"env gave reward {reward:g} {location(*at)}, whose square is too large"
        if abs(reward) > SQUARE or getattr(config.algorithm, "norm_reward", True):
            return Advice(cause, "scale or clip rewards in the env")
        return Advice(cause, "scale rewards, or set norm_reward", ("--norm-reward",))
    obs, at = largest_entry(rollout.obs, rollout.valid)
    if abs(obs) > HUGE_OBSERVATION:
        cause = f"env gave observation {obs:g} {location(*at)}"
        if abs(obs) > SQUARE or config.network.norm_obs:
            return Advice(cause, "scale or clip observations in the env")
        return Advice(cause, "scale observations, or set norm_obs", ("--norm-obs",))
    return None


def log_std_out_of_bounds(evidence: Evidence, config: Config) -> Advice | None:
    """Advice for a Gaussian policy that has become extremely wide or narrow."""
    free = [x for name, x in evidence.before.items() if name.startswith("head.") and name.endswith(".log_std")]
    if not free:
        return None
    value, _ = largest_entry(torch.cat(free))
    if not WIDE < abs(value) < HUGE_PARAMETER:  # larger values have another cause
        return None
    words = ("grown", "smaller") if value > 0 else ("shrunk", "larger")
    return slower(config, f"log_std has {words[0]} to {value:.3g}", f"a {words[1]} ent_coef, or ")


def steps_too_large(evidence: Evidence, config: Config, rows: list[dict[str, float]]) -> Advice | None:
    """Advice for updates that were too large: a high KL divergence, parameters that moved far or have grown large."""
    series = [row["losses/approx_kl"] for row in rows[-LAST:] if "losses/approx_kl" in row]
    series += [max(kl for kl in evidence.kl if not math.isnan(kl))] if any(kl > 0 for kl in evidence.kl) else []
    if series and max(series) > HIGH_KL:
        begin, over = (series[0], f"over {len(series)} phases") if len(series) > 1 else (0.0, "within the phase")
        return slower(config, f"learning rate too high, KL rose from {begin:.2g} to {max(series):.2g} {over}")
    moved = max((largest_size(x - evidence.before[name]) for name, x in evidence.after.items()), default=0.0)
    if moved > FAR:
        return slower(config, f"learning rate too high, a parameter moved by {moved:.2g} within the phase")
    size, name = max((largest_size(x), name) for name, x in evidence.before.items())
    if size > HUGE_PARAMETER:
        found = slower(config, f"learning rate too high, {name} has grown to {size:.2g}")
        return found._replace(fix=f"{found.fix}, from the start", worth_resuming=False)
    return None


def slower(config: Config, cause: str, instead: str = "") -> Advice:
    """Advice to lower the learning rate and clip gradients."""
    rate = f"{min(config.algorithm.value_after('learning_rate', 0) / 10 or MODERATE_RATE, MODERATE_RATE):.2g}"
    fix, flags = f"try {instead}learning_rate {rate}", ("--learning-rate", rate)
    if config.algorithm.max_grad_norm is not None:
        return Advice(cause, fix, flags)
    return Advice(cause, f"{fix} and max_grad_norm 0.5", (*flags, "--max-grad-norm", "0.5"))


def largest_entry(x: Tensor, counts: Tensor | None = None) -> tuple[float, tuple[int, ...]]:
    """The finite entry furthest from 0 among the rows that count, and its index."""
    if not x.is_floating_point():
        return 0.0, ()
    mask = torch.isfinite(x) if counts is None else torch.isfinite(x) & over_entries(counts, x)
    at = tuple(int(i) for i in torch.unravel_index(torch.where(mask, x, 0.0).abs().argmax(), x.shape))
    return float(x[at]), at


def largest_size(x: Tensor) -> float:
    """The largest absolute value of the finite entries."""
    return float(torch.where(torch.isfinite(x), x, 0.0).abs().max()) if x.numel() else 0.0
