"""A policy with memory. Its state travels as a part of the observation: rollouts, minibatches, checkpoints and graphs carry it
with no code of their own.

A row is (observation, first, state): the observation's numbers with its action mask if there is one, 1 where an episode starts,
and the state of the memories before this observation. So a single row can be evaluated as it is, with the right state. Only
learning looks at sequences of rows (sequences.py): they have the state of their first row, and it computes the later ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Spec
from .action_mask import ActionMask
from .actor_critic import ActorCritic, Distribution, Head
from .memory import MemoryRows, RecurrentTrunk
from .normalizer import ObservationNormalizer


class Recalled(NamedTuple):
    """What networks see of some rows."""

    obs: Tensor  # (B, ...) normalised, without mask
    mask: Tensor | None
    first: Tensor | None  # (n, T) for sequences, None for single rows
    valid: Tensor | None  # (m,) the rows of sequences whose results count, None for all
    states: list[Tensor]  # before the first row of each sequence: of the actor and, where it has its own, of the critic


def after_steps(trunk: RecurrentTrunk, seen: Recalled, which: int) -> tuple[Tensor, Tensor]:
    """The features of rows, and the next state of one memory, for sequences the state after their last row."""
    state = seen.states[which]
    if seen.first is None:
        return trunk.step(seen.obs, state)
    features, kept = [], (1 - seen.first).unsqueeze(2).unbind(1)
    for t, x in enumerate(trunk.trunk(seen.obs).unflatten(0, seen.first.shape).unbind(1)):
        out, state = trunk.memory.step(x, state * kept[t])
        features.append(out)
    return torch.stack(features, 1).flatten(0, 1), state


class RecurrentActorCritic(ActorCritic):
    """An ActorCritic with memory. Actor and critic have a memory each, unless they share their trunk.

    It takes single rows (B, row), or sequences (n, T, ...) for which it returns n T results, one sequence after the other.
    Sequences may have one more column, 1 where a step is valid: results are those of the valid steps.
    """

    memory_rows: MemoryRows
    actor: RecurrentTrunk
    critic: RecurrentTrunk | None

    def __init__(
        self, actor: RecurrentTrunk, critic: RecurrentTrunk | None, head: Head, observation: Spec,
        normalizer: ObservationNormalizer | None = None, action_mask: ActionMask | None = None,
    ) -> None:  # fmt: skip
        super().__init__(actor, critic, head, normalizer, action_mask)
        trunks = [actor] if critic is None or critic is actor else [actor, critic]
        self.state_sizes = [trunk.state_size for trunk in trunks]
        self.memory_rows = MemoryRows(observation, sum(self.state_sizes))

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        seen = self._recall(obs)
        features = self._features(self.actor, seen, 0)
        return self.head(features, seen.mask), self._value(self._critic_features(seen, features))

    def distribution(self, obs: Tensor) -> Distribution:
        seen = self._recall(obs)
        return self.head(self._features(self.actor, seen, 0), seen.mask)

    def value(self, obs: Tensor) -> Tensor:
        seen = self._recall(obs)
        return self._value(self._critic_features(seen))

    def act(self, obs: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(actions to learn from, rows for the environment): the action that it takes, and the next state of the memories."""
        distribution, _, state = self.step(obs)
        action = distribution.mode() if noise is None else distribution.sample(noise)
        return action, self._to_env(action, state)

    def act_and_evaluate(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        distribution, value, state = self.step(obs)
        action = distribution.sample(noise)
        return action, self._to_env(action, state), distribution.log_prob(action), value

    def step(self, obs: Tensor) -> tuple[Distribution, Tensor, Tensor]:
        """(distribution of actions, value, next state of the memories) for single rows (B, row), or for sequences, which are
        computed step by step, with the state after their last row."""
        seen = self._recall(obs)
        features, state = after_steps(self.actor, seen, 0)
        distribution, states = self.head(features, seen.mask), [state]
        if self.critic is not None and len(self.state_sizes) > 1:  # an exporter gives shared modules two identities
            features, state = after_steps(self.critic, seen, 1)
            states.append(state)
        return distribution, self._value(features), torch.cat(states, 1)

    def observed(self, obs: Tensor) -> Tensor:
        return self.memory_rows.observed(obs)

    def valid_rows(self, rows: Tensor) -> Tensor:
        obs, first, state = self.memory_rows.split(rows)
        flat = super().valid_rows(obs.reshape(-1, obs.shape[-1])).view_as(obs)
        return torch.cat([flat, (first > 1).to(rows.dtype).unsqueeze(-1), state], -1)

    def _to_env(self, action: Tensor, state: Tensor) -> Tensor:
        return torch.cat([self.head.to_env(action).reshape(len(action), -1).float(), state], 1)

    def _recall(self, rows: Tensor) -> Recalled:
        if rows.dim() == 2:
            numbers, _, state = self.memory_rows.split(rows)
            obs, mask = self._prepare(self.memory_rows.observed(numbers))
            return Recalled(obs, mask, None, None, [*state.split_with_sizes(self.state_sizes, 1)])
        numbers, first, state, steps = self.memory_rows.split_sequences(rows)
        valid = None if steps is None else steps.flatten().nonzero().squeeze(1)
        obs, mask = self._prepare(self.memory_rows.observed(numbers.reshape(-1, numbers.shape[-1])))
        mask = mask if mask is None or valid is None else mask[valid]
        return Recalled(obs, mask, first, valid, [*state.split_with_sizes(self.state_sizes, 1)])

    def _features(self, trunk: RecurrentTrunk, seen: Recalled, which: int) -> Tensor:
        if seen.first is None:
            return trunk.step(seen.obs, seen.states[which])[0]
        features: Tensor = trunk(seen.obs, seen.states[which], seen.first)
        return features if seen.valid is None else features[seen.valid]

    def _critic_features(self, seen: Recalled, features: Tensor | None = None) -> Tensor:
        """The features that the value depends on. `features` are the actor's, if they are known."""
        if self.critic is None or len(self.state_sizes) == 1:
            return self._features(self.actor, seen, 0) if features is None else features
        return self._features(self.critic, seen, 1)

    def _value(self, x: Tensor) -> Tensor:
        """Return the value for features of the critic."""
        if self.value_head is None:
            return torch.zeros(x.shape[0], device=x.device)
        return self.value_head(x).float().squeeze(-1)
