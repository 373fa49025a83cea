"""What an actor reads of an observation, for acting outside training, where what only the critic sees is not known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..envs.adapters.host import HostEnv
from ..envs.step_arrays import Array
from ..errors import UsageError
from ..models import ActorCritic
from ..models.action_mask import ACTION_MASK, OBSERVATION
from ..models.observation_groups import group_of, is_inside, names_of
from ..types import Composite, Env

if TYPE_CHECKING:
    from ..envs.adapters.space_members import Observation, Space
    from ..envs.adapters.spaces import ObservationReader, Part


def actor_names(policy: ActorCritic, env: Env) -> tuple[str, ...]:
    """The names of the parts that the actor needs: those of its group, and the action mask."""
    mask = () if policy.action_mask is None else (ACTION_MASK,)
    return (*names_of(policy.actor, env.observation), *mask)


# observations that lack what the actor does not need ------------------------------------------------------------------------


def completed(policy: ActorCritic, env: Env, obs: object) -> object:
    """An observation with zeros for the entries that it lacks and the actor does not need. Anything else is returned as given:
    what is wrong with it is found later."""
    if isinstance(env, HostEnv) and isinstance(obs, Mapping):
        return completed_dict(policy, env, obs)
    if isinstance(env, HostEnv) or not isinstance(env.observation, Composite):
        return obs
    return row_of(policy, env, obs) if isinstance(obs, Mapping) else completed_row(policy, env, obs)


def completed_dict(policy: ActorCritic, env: HostEnv, obs: Mapping[str, object]) -> Mapping[str, object]:
    """An observation of an environment outside torch, with the keys at every depth but that of the action mask."""
    from ..envs.adapters.space_members import has_shape_of, shape_mismatch

    space, group = env._observation.space, group_of(policy.actor)
    if group is None:
        return obs
    parts = [(part, value) for part, value in given_parts(space, obs) if shape_mismatch(part, value) is None]
    rows = [len(value) for part, value in parts if not has_shape_of(part, value)]
    shown = env._observation.show(np.zeros((rows[0] if rows else 1, *env.observation.shape), np.float32))
    nothing = env._observation.nested(shown if rows else [batch[0] for batch in shown])
    return filled(space, obs, nothing, group.names, "")


def given_parts(space: Space, obs: Observation) -> Iterator[tuple[Space, Observation]]:
    """(space, value) of each plain part that an observation has, but for its action mask."""
    spaces = getattr(space, "spaces", None)
    if not isinstance(spaces, Mapping):
        yield space, obs
    elif isinstance(obs, Mapping):
        for key in spaces:
            if key in obs and key != ACTION_MASK:
                yield from given_parts(spaces[key], obs[key])


def filled(
    space: Space, obs: Mapping[str, object], nothing: Observation, needed: Sequence[str], path: str
) -> dict[str, object]:
    """An observation with the entries of `nothing` for those that it lacks and that are not needed."""
    entries, spaces = dict(obs), getattr(space, "spaces", {})
    for key in spaces:
        name, given = f"{path}{key}", entries.get(key)
        if key in entries:
            if isinstance(getattr(spaces[key], "spaces", None), Mapping) and isinstance(given, Mapping):
                entries[key] = filled(spaces[key], given, nothing[key], needed, f"{name}/")
        elif name != ACTION_MASK and not any(is_inside(part, name) for part in needed):
            entries[key] = nothing[key]
    return entries


def row_of(policy: ActorCritic, env: Env, obs: Mapping[str, object]) -> Tensor:
    """The row of an observation of a tensor environment that is given by its parts. The action mask may be missing."""
    assert isinstance(env.observation, Composite)
    needed, pieces, single = actor_names(policy, env), list[Tensor | int](), False
    for name, part in env.observation.parts:
        size = math.prod(part.shape)
        if name not in obs:
            if name in needed and name != ACTION_MASK:
                raise UsageError(f"an observation has no {name!r}, only {', '.join(map(str, obs))}: give it")
            pieces += [size] if name != ACTION_MASK or policy.action_mask is None else []
            continue
        given = torch.as_tensor(obs[name], device=env.device).float()
        single = tuple(given.shape) == part.shape
        if not single and tuple(given.shape[1:]) != part.shape:
            raise UsageError(
                f"{name!r} of an observation has shape {tuple(given.shape)}: give {part.shape}, or a batch of them"
            )
        pieces.append(given.reshape(1 if single else len(given), -1))
    count = max((len(piece) for piece in pieces if isinstance(piece, Tensor)), default=1)
    rows = [torch.zeros(count, piece, device=env.device) if isinstance(piece, int) else piece for piece in pieces]
    if any(len(row) != count for row in rows):
        raise UsageError("the parts of an observation have different numbers of rows: give as many of each")
    return torch.cat(rows, 1)[0] if single else torch.cat(rows, 1)


def completed_row(policy: ActorCritic, env: Env, obs: object) -> object:
    """A row of a tensor environment without its action mask, from what the actor sees of it."""
    group = group_of(policy.actor)
    if group is None:
        return obs
    try:
        given = torch.as_tensor(obs, device=env.device)
    except (TypeError, ValueError, RuntimeError):
        return obs
    seen = env.observation if policy.action_mask is None else policy.action_mask.seen
    whole, own = (env.observation.shape, seen.shape), group.spec.shape
    forms = tuple(given.shape), tuple(given.shape[1:])
    if own not in forms or (given.is_floating_point() and any(shape in forms for shape in whole)):
        return obs
    single = forms[0] == own
    rows = given.reshape(1 if single else len(given), -1).float()
    full, start = torch.zeros(len(rows), *seen.shape, device=env.device), 0
    for first, last in group.columns:
        full[:, first:last] = rows[:, start : start + last - first]
        start += last - first
    return full[0] if single else full


# inputs of an exported graph ------------------------------------------------------------------------------------------------


class ActorInputs:
    """Reads the parts of observations that the actor needs into rows, in which the others are 0."""

    def __init__(self, policy: ActorCritic, env: Env) -> None:
        self.env, self.spec, self.reader = env, env.observation, reader_by_parts(policy, env)
        needed, grouped = actor_names(policy, env), group_of(policy.actor) is not None
        names = [name_in_row(part) for part in self.reader.parts]
        self.used = [not grouped or name in needed or is_inside(name, ACTION_MASK) for name in names]
        self.parts = tuple(part for part, used in zip(self.reader.parts, self.used, strict=True) if used)
        self.has_value = policy.critic is not None and {*names_of(policy.critic, self.spec)} <= {*needed}

    def traced(self, obs: Sequence[Tensor]) -> Tensor:
        """Batches of the parts to rows, as tensors."""
        given, count = iter(obs), obs[0].shape[0]
        every = (
            next(given) if used else torch.zeros(count, *(part.space.shape or ()))
            for part, used in zip(self.reader.parts, self.used, strict=True)
        )
        return self.reader.traced([*every])

    def show(self, rows: Array) -> list[Array]:
        """Rows to a batch of each part."""
        return [batch for batch, used in zip(self.reader.show(rows), self.used, strict=True) if used]

    def rows(self, shown: Sequence[Array]) -> Tensor:
        """Batches of the parts to rows, by the environment's own conversion."""
        nothing = self.reader.show(np.zeros((len(shown[0]), *self.spec.shape), np.float32))
        given = iter(shown)
        every = [next(given) if used else batch for batch, used in zip(nothing, self.used, strict=True)]
        if isinstance(self.env, HostEnv):
            return self.env.encode(self.env._observation.nested(every))[0].cpu()
        if len(every) == 1:
            return torch.from_numpy(every[0])
        return torch.cat([torch.from_numpy(batch).reshape(len(batch), -1).float() for batch in every], 1)


def reader_by_parts(policy: ActorCritic, env: Env) -> ObservationReader:
    """The reader of an environment's observations. That of a tensor environment has one part, or with groups one for each."""
    from ..envs.adapters.spaces import OBS, ObservationReader, Part, reader_of, space_of

    reader, spec = reader_of(env), env.observation
    if isinstance(env, HostEnv) or group_of(policy.actor) is None or not isinstance(spec, Composite):
        return reader
    named = ((OBS if name == OBSERVATION else name, part) for name, part in spec.parts)
    return ObservationReader(reader.space, spec, tuple(Part(name, name, space_of(part), part) for name, part in named))


def name_in_row(part: Part) -> str:
    """The name of a reader's part in the observation."""
    from ..envs.adapters.spaces import OBS

    return OBSERVATION if part.name == OBS else part.name
