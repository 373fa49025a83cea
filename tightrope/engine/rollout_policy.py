"""What acts in a rollout: the policy as it is written, or on the CPU recordings of how it samples and evaluates actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..models import ActorCritic
from ..recording import Array, RecordedFunction
from ..types import Rollout
from .recorded import BLOCK, agree, attempted, cache_key, made_up_acts, shapes_of

TRIALS = 3
Act = Callable[[ActorCritic, Tensor, Tensor], tuple[Tensor, ...]]
Choose = Callable[[Array, Array], list[Array]]  # (obs, noise) to actions: for learning, and for the environment


class RolloutPolicy(Protocol):
    """A policy for the length of one rollout."""

    evaluates_in_act: bool  # whether `act` gives (action, log_prob, value), and not (action,) alone

    @property
    def choose(self) -> Choose | None:
        """How to act over arrays, where that can be done."""

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """What the policy does, sampled with that noise."""

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """How likely each action was, and what each observation is worth."""


class EagerPolicy:
    """The policy itself. `act` is the function below, or a compiled or captured one."""

    choose: Choose | None = None

    def __init__(self, policy: ActorCritic, act: Act) -> None:
        self.policy, self._act = policy, act
        self.evaluates_in_act = policy.critic is policy.actor

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return self._act(self.policy, obs, noise)

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        distribution, value = self.policy(obs)
        return distribution.log_prob(action), value


def act(policy: ActorCritic, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Where actor and critic share a trunk, its answer has all there is to know. Where they are apart a step needs the actor
    alone, and the rest is one pass at the end of the rollout."""
    if policy.critic is not policy.actor:
        return (policy.distribution(obs).sample(noise),)
    distribution, value = policy(obs)
    action = distribution.sample(noise)
    return action, distribution.log_prob(action), value


# on the CPU ------------------------------------------------------------------------------------------------------------


class RecordedPolicy:
    """A policy for batches of one shape."""

    evaluates_in_act = False

    def __init__(self, policy: ActorCritic, obs: Tensor, rows: int) -> None:
        """`obs` is what it is shown in each step, `rows` are those of a whole rollout."""

        def sample(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
            action = policy.distribution(obs).sample(noise)
            return action, policy.head.to_env(action)

        def evaluate(obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
            distribution, value = policy(obs)
            return distribution.log_prob(action), value

        self.policy, self.rows = policy, len(obs)
        many = obs[:1].expand(min(rows, BLOCK), *obs.shape[1:])
        shown, noise, *_ = made_up_acts(policy, obs, 1)
        block, _, taken, *_ = made_up_acts(policy, many, 1)
        self.distribution = type(policy.distribution(shown))
        self.methods = methods_of(self.distribution)
        self.samples = RecordedFunction(sample, (shown, noise), steady=True)
        self.evaluates = RecordedFunction(evaluate, (block, taken), steady=True)
        self.agrees = all(self._agrees(policy, sample, evaluate, obs, many, seed) for seed in range(2, 2 + TRIALS))

    def _agrees(self, policy: ActorCritic, sample: Any, evaluate: Any, obs: Tensor, many: Tensor, seed: int) -> bool:
        """Whether the recordings give what the policy gives, for other observations. Part of a block must give the same values
        as the whole: a block holds rows of several steps."""
        shown, noise, *_ = made_up_acts(policy, obs, seed)
        block, _, taken, *_ = made_up_acts(policy, many, seed)
        given, expected = [*self.samples(shown.numpy(), noise.numpy())], sample(shown, noise)
        part = max(1, len(block) // 2)
        evaluated = self.evaluate_actions(block[:part], taken[:part])
        other = np.mean(given[0] != expected[0].numpy())  # one action of many may be a rounding away
        alike = given[0].dtype.kind == "f" or other <= 1 / 64
        real = [i for i, x in enumerate(expected) if x.is_floating_point()]
        sampled = agree([given[i] for i in real], [expected[i] for i in real])
        return bool(alike) and sampled and agree(evaluated, evaluate(block[:part], taken[:part]))

    def refresh(self) -> None:
        """Take in what has changed since the last rollout: parameters, and the moments of observations."""
        self.samples.refresh()
        self.evaluates.refresh()

    def choose(self, obs: Array, noise: Array) -> list[Array]:
        """The actions for rows (N, ...), sampled with that noise: as they are learned from, and as the environment wants them.
        Both are overwritten by the next call."""
        return self.samples(obs, noise)

    @np.errstate(all="ignore")
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor]:
        """Actions as tensors of their own. A group of environments, which has fewer rows, is left to the policy itself."""
        if len(obs) != self.rows:
            return (self.policy.distribution(obs).sample(noise),)
        action, _ = self.samples(obs.numpy(), noise.numpy())
        return (torch.from_numpy(action.copy()),)

    @np.errstate(all="ignore")
    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of each action and the value of each observation, block by block."""
        rows, block = len(obs), len(self.evaluates.results[0])
        log_prob, value = torch.empty(rows), torch.empty(rows)
        given = obs.numpy(), action.numpy()
        for start in range(0, rows, block):
            part = slice(start, min(start + block, rows))
            self._fill([x[part] for x in given])
            self.evaluates.run()
            for out, found in zip((log_prob, value), self.evaluates.results, strict=True):
                out.numpy()[part] = found[: part.stop - start]
        return log_prob, value

    def _fill(self, values: Sequence[Array]) -> None:
        """The first rows of a block; the others keep what they had, and nobody looks at them."""
        for place, value in zip(self.evaluates.inputs, values, strict=True):
            if place is not None:
                place[: len(value)] = value


def methods_of(distribution: type) -> list[object]:
    kinds = [kind for kind in distribution.__mro__ if kind not in (tuple, object)]
    return [x for kind in kinds for x in vars(kind).values() if callable(x)]


def recorded_policy(policy: ActorCritic, obs: Tensor, noise: Tensor, rows: int) -> RecordedPolicy | None:
    """The policy for a rollout of so many rows that starts from `obs`; None where it has to run as it is written."""
    policy.recordings.renew(cache_key(policy))
    key = (*shapes_of([obs, noise]), min(rows, BLOCK))
    found: RecordedPolicy | None = policy.recordings.find(key, lambda: made(policy, obs, rows))
    if found is not None and found.methods != methods_of(found.distribution):  # someone has changed an equation
        del policy.recordings[key]
        found = policy.recordings.find(key, lambda: made(policy, obs, rows))
    if found is not None:
        found.refresh()
    return found


@torch.no_grad()
def made(policy: ActorCritic, obs: Tensor, rows: int) -> RecordedPolicy | None:
    """The recordings, or None: why not is then noted with the policy."""
    found, policy.recordings.refusal = attempted(policy, lambda: RecordedPolicy(policy, obs, rows))
    return found


def why_as_written(policy: ActorCritic, rollout: Rollout, obs: Tensor) -> str | None:
    """Why a policy has to run as it is written in rollouts from `obs` on; None where it is recorded."""
    noise = policy.head.noise((len(obs),), torch.Generator())
    found = recorded_policy(policy, obs, noise, rollout.reward.numel())
    return None if found is not None else policy.recordings.refusal
