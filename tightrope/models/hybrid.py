"""Hybrid actions: several parts of any kind, decided from the same features, each by a head of its own.

An action is one row of numbers, its parts side by side, so that rollouts, minibatches and checkpoints carry it with no code of
their own. Parts are independent given the observation: their log-probabilities, entropies and divergences are added.

A part may be conditional: used only where a Discrete part has one of some values. Where it is not used, it adds 0 to the
log-probability and, given the action, 0 to the entropy; its head has no gradient there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ..types import Composite, Spec
from .distributions import Categorical, Gaussian
from .hybrid_spec import Use, check_hybrid, flat_parts, options, uses_of

Leaf = Categorical | Gaussian


class Hybrid(NamedTuple):
    """Independent distributions over the parts of an action. Noise has the layout of an action, one number for each."""

    parts: tuple[Leaf, ...]
    sizes: tuple[int, ...]  # numbers of each part in a row
    uses: tuple[Use, ...] = ()  # of conditional parts

    def sample(self, noise: Tensor) -> Tensor:
        return self._row([part.sample(piece) for part, piece in zip(self.parts, self._pieces(noise), strict=True)])

    def mode(self) -> Tensor:
        return self._row([part.mode() for part in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        actions = self._actions(action)
        return self._added([part.log_prob(x) for part, x in zip(self.parts, actions, strict=True)], self._used(actions))

    def entropy(self, action: Tensor | None = None) -> Tensor:
        """The entropy of the parts that these actions use: an estimate of the joint entropy from one action, exact on average.
        Without actions, the joint entropy: each part counts by the probability that it is used."""
        entropies = [part.entropy() for part in self.parts]
        return (
            self._expected(entropies) if action is None else self._added(entropies, self._used(self._actions(action)))
        )

    def kl(self, other: Hybrid) -> Tensor:
        """KL(self || other)."""
        pairs = zip(self.parts, other.parts, strict=True)
        return self._expected([mine.kl(theirs) for mine, theirs in pairs])  # type: ignore[arg-type]

    def _pieces(self, row: Tensor) -> Iterator[Tensor]:
        """The columns of each part; a single choice has no dimension of its own."""
        for part, piece in zip(self.parts, row.split_with_sizes(list(self.sizes), -1), strict=True):
            yield piece.squeeze(-1) if type(part) is Categorical else piece

    def _actions(self, row: Tensor) -> list[Tensor]:
        pieces = zip(self.parts, self._pieces(row), strict=True)
        return [piece.to(torch.int64) if isinstance(part, Categorical) else piece for part, piece in pieces]

    def _row(self, actions: Sequence[Tensor]) -> Tensor:
        pairs = zip(self.parts, actions, strict=True)
        return torch.cat([(x.unsqueeze(-1) if type(part) is Categorical else x).float() for part, x in pairs], -1)

    def _used(self, actions: Sequence[Tensor]) -> dict[int, Tensor]:
        """Whether these actions use each conditional part."""

        def chosen(choice: int, values: tuple[int, ...]) -> Tensor:
            return added([(actions[choice] == value).float() for value in values])

        return {part: weight > 0.5 for part, weight in self._weights(chosen).items()}

    def _weights(self, chosen: Callable[[int, tuple[int, ...]], Tensor]) -> dict[int, Tensor]:
        """For each conditional part the product of `chosen` over the choices that it depends on."""
        weights: dict[int, Tensor] = {}
        for part, choice, values in self.uses:  # a choice that is conditional itself stands before
            weight = chosen(choice, values)
            weights[part] = weight * weights[choice] if choice in weights else weight
        return weights

    def _added(self, terms: Sequence[Tensor], used: Mapping[int, Tensor]) -> Tensor:
        """The sum of one term per part, where the part is used."""
        return added([torch.where(used[i], term, 0.0) if i in used else term for i, term in enumerate(terms)])

    def _expected(self, terms: Sequence[Tensor]) -> Tensor:
        """The sum of one term per part, weighted by the probability that the part is used."""

        def chosen(choice: int, values: tuple[int, ...]) -> Tensor:
            log_prob = self.parts[choice].log_prob
            return added([log_prob(torch.full_like(terms[0], value, dtype=torch.int64)).exp() for value in values])

        weights = self._weights(chosen)
        return added([term * weights[i] if i in weights else term for i, term in enumerate(terms)])


def added(terms: Sequence[Tensor]) -> Tensor:
    """The sum of tensors, from first to last."""
    total, *rest = terms
    for term in rest:
        total = total + term
    return total


class LeafHead(Protocol):
    """The head of one part, beside its forward."""

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor: ...
    def to_env(self, action: Tensor) -> Tensor: ...


class HybridHead(nn.Module):
    """Features to a distribution over the parts of an action. `make` builds the head of one part from its space."""

    def __init__(self, action: Composite, make: Callable[[Spec], nn.Module]) -> None:
        super().__init__()
        check_hybrid(action)
        parts = flat_parts(action)
        self.names = tuple(name for name, _ in parts)
        self.sizes = tuple(math.prod(part.shape) for _, part in parts)
        self.options = tuple(sum(options(part)) for _, part in parts)  # columns of each part in a row of a mask
        self.uses = uses_of(action)
        self.heads = nn.ModuleList(make(part) for _, part in parts)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Hybrid:
        masks = [None] * len(self.sizes) if mask is None else mask.split_with_sizes(list(self.options), -1)
        pairs = zip(self.heads, masks, strict=True)
        return Hybrid(tuple(head(features, part) for head, part in pairs), self.sizes, self.uses)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        pairs = zip(self._each(), self.sizes, strict=True)
        return torch.cat([head.noise(shape, generator).view(*shape, size) for head, size in pairs], -1)

    def to_env(self, action: Tensor) -> Tensor:
        """Rows of numbers for the environment: bounded parts are rescaled and clipped, choices stay as they are."""
        pieces = zip(self._each(), action.split_with_sizes(list(self.sizes), -1), strict=True)
        return torch.cat([head.to_env(piece).reshape(piece.shape) for head, piece in pieces], -1)

    def _each(self) -> Iterator[LeafHead]:
        return (cast(LeafHead, head) for head in self.heads)
