"""Observation groups: the actor and the critic each see their own parts of an observation.

What only a simulator knows helps a critic, which is not needed after training, and must not reach the actor. It travels as a
part of the observation, like action masks: rollouts, minibatches, checkpoints and graphs carry it with no code of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..types import Box, Composite, Spec
from .action_mask import OBSERVATION
from .networks import Trunk

PRIVILEGED = "privileged"  # the part that only the critic sees, unless actor_obs names it
Names = tuple[str, ...]


class Groups(NamedTuple):
    """The names of the parts that the actor and the critic see; empty for an observation without parts."""

    actor: Names
    critic: Names


def observation_groups(seen: Spec, actor_obs: Names | None, critic_obs: Names | None) -> Groups:
    """The groups of an observation space without its action mask. None stands for the default: everything, and for the actor
    everything but the part `privileged`."""
    given = {"actor_obs": actor_obs, "critic_obs": critic_obs}
    if not isinstance(seen, Composite):
        for setting, names in given.items():
            if names is not None:
                wrong = f"{setting} {' '.join(names)} needs an observation of named parts"
                kind = f"{type(seen).__name__} of shape {tuple(seen.shape)}"
                raise UsageError(f"{wrong}, and this one is a {kind}: give a Dict observation, or drop {setting}")
        return Groups((), ())
    every = tuple(name for name, _ in seen.parts)
    public = tuple(name for name in every if name != PRIVILEGED) or every
    actor, critic = (None if names is None else parts_named(every, names, key) for key, names in given.items())
    return Groups(actor or public, critic or every)


def parts_named(every: Names, names: Names, setting: str) -> Names:
    """The parts with these names, in the order of the observation. The key of a nested Dict names all parts inside it."""
    for name in names:
        if not any(is_inside(part, name) for part in every):
            keys = dict.fromkeys(part.partition("/")[0] for part in every)
            nested = next((f", or parts of them, such as {part}" for part in every if "/" in part), "")
            raise UsageError(f"{setting} {name!r} is not in the observation: give some of {', '.join(keys)}{nested}")
    return tuple(part for part in every if any(is_inside(part, name) for name in names))


def is_inside(part: str, name: str) -> bool:
    return part == name or part.startswith(f"{name}/")


def group_spec(seen: Spec, names: Names) -> Spec:
    """The space of the parts with these names."""
    if not isinstance(seen, Composite) or len(names) == len(seen.parts):
        return seen
    parts = tuple((name, part) for name, part in seen.parts if name in names)
    return parts[0][1] if names == (OBSERVATION,) else Composite(parts)


def check_own_trunks(groups: Groups, share_trunk: bool, network: nn.Module | None) -> None:
    """Raise UsageError if an actor and a critic that see different parts are to share a trunk."""
    if groups.actor == groups.critic or not (share_trunk or network is not None):
        return
    what = "share_trunk" if share_trunk else f"network {type(network).__name__}"
    sees = f"the actor sees {', '.join(groups.actor)}, the critic {', '.join(groups.critic)}"
    fix = "drop it, or give actor_obs and critic_obs the same names"
    raise UsageError(f"{what} is one trunk for actor and critic, and {sees}: {fix}")


class GroupTrunk(nn.Module):
    """A trunk that is given only some parts of each row of observations."""

    def __init__(self, trunk: Trunk, seen: Composite, names: Names) -> None:
        super().__init__()
        self.trunk, self.out_features, self.names = trunk, trunk.out_features, names
        self.spec, self.columns = group_spec(seen, names), columns_of_parts(seen, names)

    def forward(self, rows: Tensor) -> Tensor:
        pieces = [rows[:, start:stop] for start, stop in self.columns]
        part = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)
        if not isinstance(self.spec, Composite):
            part = part.reshape(-1, *self.spec.shape).to(self.spec.dtype)
        return self.trunk(part)


def columns_of_parts(seen: Composite, names: Names) -> list[tuple[int, int]]:
    """The columns of the parts with these names as (start, stop), neighbours joined."""
    found: list[tuple[int, int]] = []
    start = 0
    for name, part in seen.parts:
        stop = start + math.prod(part.shape)
        if name in names:
            joins = bool(found) and found[-1][1] == start
            found[-1:] = [(found[-1][0], stop)] if joins else [*found[-1:], (start, stop)]
        start = stop
    return found


def in_group(trunk: Trunk, seen: Spec, names: Names) -> Trunk | GroupTrunk:
    """The trunk itself if it sees everything, otherwise a GroupTrunk around it."""
    return GroupTrunk(trunk, seen, names) if isinstance(seen, Composite) and len(names) < len(seen.parts) else trunk


def group_of(trunk: object) -> GroupTrunk | None:
    """The GroupTrunk of an actor or critic, also below a memory; None if it sees everything."""
    inner = trunk if isinstance(trunk, GroupTrunk) else getattr(trunk, "trunk", None)
    return inner if isinstance(inner, GroupTrunk) else None


def names_of(trunk: object, observation: Spec) -> Names:
    """The names of the parts of an observation that a trunk sees."""
    if (group := group_of(trunk)) is not None:
        return group.names
    return tuple(name for name, _ in observation.parts) if isinstance(observation, Composite) else ()


def with_privileged(observation: Spec, size: int) -> Composite:
    """Observations with this many privileged numbers behind them."""
    parts: Sequence[tuple[str, Spec]] = ((OBSERVATION, observation),)
    parts = observation.parts if isinstance(observation, Composite) else parts
    return Composite((*parts, (PRIVILEGED, Box((size,)))))


def append_privileged(obs: Tensor, privileged: Tensor) -> Tensor:
    """Observations (N, ...) of the space that `with_privileged` returns."""
    return torch.cat([obs.reshape(len(obs), -1).float(), privileged.float()], 1)
