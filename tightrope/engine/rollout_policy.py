"""The policy during a rollout: in plain PyTorch, or on the CPU as recordings of sampling and evaluating actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..models import ActorCritic
from ..recording import Array, RecordedFunction
from ..types import Rollout
from .recorded import BLOCK, agree, attempted, cache_key, random_acts, shapes_of

TRIALS = 3  # comparisons of a new recording with the policy
Act = Callable[[ActorCritic, Tensor, Tensor], tuple[Tensor, ...]]
Choose = Callable[[Array, Array], list[Array]]  # (obs, noise) to what `act` of a policy returns


class RolloutPolicy(Protocol):
    """A policy as `collect` uses it during one rollout."""

    evaluates_in_act: bool  # whether `act` also returns log_prob and value

    @property
    def choose(self) -> Choose | None:
        """A function that acts on NumPy arrays, or None."""

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Sample actions with the given noise: (actions to learn from, actions for the environment), and with
        `evaluates_in_act` the log-probabilities and values."""

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action and the value of each observation."""


class EagerPolicy:
    """The policy in PyTorch. `act` is the function below, possibly compiled or captured."""

    choose: Choose | None = None

    def __init__(self, policy: ActorCritic, act: Act) -> None:
        self.policy, self._act = policy, act
        self.evaluates_in_act = in_one_pass(policy)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return self._act(self.policy, obs, noise)

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return evaluate(self.policy, obs, action)


def evaluate(policy: ActorCritic, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each action and the value of each observation."""
    distribution, value = policy(obs)
    return distribution.log_prob(action), value


def in_one_pass(policy: ActorCritic) -> bool:
    """Whether acting computes the values as well: with a shared trunk, and with memory, which computes all next states."""
    return policy.critic is policy.actor or policy.memory_rows is not None


def act(policy: ActorCritic, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Sample actions. Where acting does not give their log-probabilities and the values, these are computed in one pass at the
    end of the rollout."""
    return policy.act_and_evaluate(obs, noise) if in_one_pass(policy) else policy.act(obs, noise)


# on the CPU ------------------------------------------------------------------------------------------------------------


class RecordedPolicy:
    """Recordings of a policy for batches of one shape. With memory one recording acts and evaluates; without, a second one
    evaluates blocks of rows at the end of a rollout, as many calls on few rows take longer."""

    def __init__(self, policy: ActorCritic, obs: Tensor, rows: int, compiled: bool = False) -> None:
        """`obs` are the observations of one step; `rows` is the number of rows in a whole rollout."""

        self.policy, self.rows = policy, len(obs)
        self.in_c: object = None  # see rollout_in_c.py
        self.evaluates_in_act = policy.memory_rows is not None
        self.sample = policy.act_and_evaluate if self.evaluates_in_act else policy.act
        shown, noise, *_ = random_acts(policy, obs, 1)
        self.distribution = type(policy.distribution(shown))
        self.methods = methods_of(self.distribution)
        self.samples = RecordedFunction(self.sample, (shown, noise), steady=True, compiled=compiled)
        self.evaluates: RecordedFunction | None = None
        self.values: RecordedFunction | None = None
        many = obs[:1].expand(min(rows, BLOCK), *obs.shape[1:])
        if not self.evaluates_in_act:
            block, _, taken, *_ = random_acts(policy, many, 1)
            self.evaluates = RecordedFunction(partial(evaluate, policy), (block, taken), steady=True, compiled=compiled)
        if compiled:
            self.values = RecordedFunction(policy.value, (shown,), steady=True, compiled=True)
        self.agrees = all(self._agrees(obs, many, seed) for seed in range(2, 2 + TRIALS))

    def _agrees(self, obs: Tensor, many: Tensor, seed: int) -> bool:
        """Whether the recordings agree with the policy on other random observations. Half a block is evaluated, because the
        last block of a rollout is seldom full."""
        shown, noise, *_ = random_acts(self.policy, obs, seed)
        given, expected = [*self.samples(shown.numpy(), noise.numpy())], self.sample(shown, noise)
        other = np.mean(given[0] != expected[0].numpy())  # rounding may change a few discrete actions
        alike = given[0].dtype.kind == "f" or other <= 1 / 64
        floats = [i for i, x in enumerate(expected) if x.is_floating_point()]
        if not alike or not agree([given[i] for i in floats], [expected[i] for i in floats]):
            return False
        block, _, taken, *_ = random_acts(self.policy, many, seed)
        first = block[: 2 * len(obs)]
        if self.values is not None and not agree([self.value(first)], [self.policy.value(first)]):
            return False
        if self.evaluates is None:
            return True
        half = [x[: max(1, len(block) // 2)] for x in (block, taken)]
        return agree(self.evaluate_actions(*half), evaluate(self.policy, *half))

    def refresh(self) -> None:
        """Recompute everything that depends only on parameters and normalizer statistics. Call it before each rollout."""
        self.samples.refresh()
        if self.evaluates is not None:
            self.evaluates.refresh()

    def choose(self, obs: Array, noise: Array) -> list[Array]:
        """Sample actions for observations (N, ...). Returns what `act` does, in arrays that the next call overwrites."""
        return self.samples(obs, noise)

    @np.errstate(all="ignore")
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Sample actions into new tensors. A group of environments has fewer rows and uses the policy in PyTorch."""
        if len(obs) != self.rows:
            return self.sample(obs, noise)
        return tuple(torch.from_numpy(x.copy()) for x in self.samples(obs.numpy(), noise.numpy()))

    @np.errstate(all="ignore")
    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action and the value of each observation, computed in blocks."""
        if self.evaluates is None:
            return evaluate(self.policy, obs, action)
        rows, block = len(obs), len(self.evaluates.results[0])
        log_prob, value = torch.empty(rows), torch.empty(rows)
        given = obs.numpy(), action.numpy()
        for start in range(0, rows, block):
            part = slice(start, min(start + block, rows))
            self._fill([x[part] for x in given], self.evaluates)
            self.evaluates.run()
            for out, found in zip((log_prob, value), self.evaluates.results, strict=True):
                out.numpy()[part] = found[: part.stop - start]
        return log_prob, value

    @np.errstate(all="ignore")
    def value(self, obs: Tensor) -> Tensor:
        """Return the values of observations, computed in blocks of as many as there are environments."""
        if self.values is None:
            return self.policy.value(obs)
        self.values.refresh()
        value = torch.empty(len(obs))
        for start in range(0, len(obs), self.rows):
            part = value[start : start + self.rows].numpy()
            self._fill([obs[start : start + self.rows].numpy()], self.values)
            self.values.run()
            part[:] = self.values.results[0][: len(part)]
        return value

    def _fill(self, values: Sequence[Array], recording: RecordedFunction) -> None:
        """Write the first rows of a block. The results for its other rows are ignored."""
        for place, value in zip(recording.inputs, values, strict=True):
            if place is not None:
                place[: len(value)] = value


def methods_of(distribution: type) -> list[object]:
    kinds = [kind for kind in distribution.__mro__ if kind not in (tuple, object)]
    return [x for kind in kinds for x in vars(kind).values() if callable(x)]


def recorded_policy(
    policy: ActorCritic, obs: Tensor, noise: Tensor, rows: int, compiled: bool = False
) -> RecordedPolicy | None:
    """Return recordings of the policy for a rollout of `rows` rows that starts at `obs`, or None if it cannot be recorded."""
    policy.recordings.renew(cache_key(policy))
    key = (*shapes_of([obs, noise]), min(rows, BLOCK), compiled)

    def make() -> RecordedPolicy | None:
        return make_recordings(policy, obs, rows, compiled)

    found: RecordedPolicy | None = policy.recordings.find(key, make)
    if found is not None and found.methods != methods_of(found.distribution):  # a method was replaced since
        del policy.recordings[key]
        found = policy.recordings.find(key, make)
    if found is not None:
        found.refresh()
    return found


@torch.no_grad()
def make_recordings(policy: ActorCritic, obs: Tensor, rows: int, compiled: bool) -> RecordedPolicy | None:
    """Make recordings, or return None and store the reason in `policy.recordings.refusal`."""
    found, policy.recordings.refusal = attempted(
        policy, lambda compiled: RecordedPolicy(policy, obs, rows, compiled), compiled
    )
    return found


def why_not_recorded(policy: ActorCritic, rollout: Rollout, obs: Tensor, compiled: bool = False) -> str | None:
    """Return why the policy cannot be recorded for rollouts that start at `obs`, or None if it can."""
    noise = policy.head.noise((len(obs),), torch.Generator())
    found = recorded_policy(policy, obs, noise, rollout.reward.numel(), compiled)
    return None if found is not None else policy.recordings.refusal
