"""From observations of an environment to actions for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..envs.adapters.host import HostEnv
from ..envs.validate import in_short
from ..errors import UsageError, one_line
from ..models import ActorCritic
from ..models.action_mask import ACTION_MASK, MISSING_MASK, ActionMask, check_one_mask, mask_rows
from ..models.memory import MemoryRows
from ..models.observation_groups import group_of, is_inside, names_of
from ..types import Composite, Discrete, Env

if TYPE_CHECKING:
    from ..envs.adapters.space_members import Observation, Space


@torch.no_grad()
def predict(policy: ActorCritic, env: Env, obs: Any, state: object, deterministic: bool, mask: object) -> Any:
    """The action for one observation or a batch, in the form of the spaces of `env`; a tensor for a tensor. With memory,
    (action, next state)."""
    refuse_state(policy, state)
    given, obs, as_tensor = obs, without_info(env, obs), isinstance(obs, Tensor)
    if policy.action_mask is not None and given is not obs and mask is None:
        mask = given[1].get(ACTION_MASK)
    obs = completed(policy, env, obs)
    if policy.action_mask is not None:
        obs = with_action_mask(policy.action_mask, env, obs, mask)
    elif mask is not None:
        raise UsageError("mask is given, and this policy was trained without action masks: drop it")
    batch, single = encoded(env, obs)
    if policy.action_mask is not None:
        # refuses a mask that allows nothing
        mask_rows(policy.action_mask(batch)[1].cpu(), env.action, len(batch))
    noise = None
    if not deterministic:
        generator = torch.Generator(batch.device).manual_seed(int(torch.randint(2**62, ())))
        noise = policy.head.noise((len(batch),), generator)
    if policy.memory_rows is None:
        return in_form_of(env, policy.act(batch, noise)[1], single, as_tensor)
    rows = policy.memory_rows
    taken = policy.act(rows.join(batch, batch.new_zeros(len(batch)), state_rows(rows, state, batch)), noise)[1]
    action, following = rows.split_action(taken, env.action)
    following = following[0] if single else following
    return in_form_of(env, action, single, as_tensor), following if as_tensor else following.cpu().numpy()


def refuse_state(policy: ActorCritic, state: object) -> None:
    """Refuse a state that a policy does not have."""
    if isinstance(state, bool):
        raise UsageError(f"state {state} is not a state: give deterministic={state} by name")
    if state is not None and policy.memory_rows is None:
        raise UsageError("state is given, and this policy has no memory: drop it")


def state_rows(rows: MemoryRows, state: object, batch: Tensor) -> Tensor:
    """The states (B, S) for a batch of observations: zeros for None."""
    size = len(batch), rows.state_size
    if state is None:
        return torch.zeros(size, device=batch.device)
    try:
        found = torch.as_tensor(state, dtype=torch.float32, device=batch.device)
    except (TypeError, ValueError, RuntimeError):
        shown = f"{state!r:.60}".splitlines()[0]
        raise UsageError(f"state {shown} is not numbers: give {size}, as predict returned it, or None") from None
    if not found.isfinite().all():
        raise UsageError("state has numbers that are not finite: give it as predict returned it, or None")
    if found.shape not in (size, size[1:] if len(batch) == 1 else size):
        shape = tuple(found.shape)
        raise UsageError(f"state has shape {shape}: give {size}, as predict returned it, or None where episodes start")
    return found.view(size)


def in_form_of(env: Env, action: Tensor, single: bool, as_tensor: bool) -> object:
    """Actions as members of the environment's space; tensors for tensors."""
    if isinstance(env.action, Composite):
        from ..envs.adapters.actions import hybrid_action

        return hybrid_action(env, action, as_tensor, single)
    array = env.decode(action) if isinstance(env, HostEnv) else action.cpu().numpy()
    if as_tensor:
        members = torch.as_tensor(array, device=action.device) if isinstance(env, HostEnv) else action
        return members[0] if single else members
    if not single:
        return array
    return int(array[0]) if isinstance(env.action, Discrete) else array[0]


def without_info(env: Env, obs: Any) -> Any:
    """The observation itself, also if the (observation, info) of a Gymnasium reset is given."""
    if not isinstance(obs, tuple) or len(obs) != 2 or not isinstance(obs[1], dict):
        return obs
    if isinstance(env, HostEnv) and isinstance(getattr(env._observation.space, "spaces", None), tuple):
        from ..envs.adapters.space_members import has_shape_of

        # an observation that ends in a Dict
        return obs if has_shape_of(env._observation.space, obs) or not isinstance(obs[0], tuple) else obs[0]
    return obs[0]


def with_action_mask(split: ActionMask, env: Env, obs: object, mask: object) -> object:
    """An observation that has an action mask: its own, or `mask`."""
    if isinstance(env, HostEnv):
        from ..envs.adapters.gym_single import with_mask_entry

        return with_mask_entry(env._observation.space, env.action, obs, mask)
    given, whole, seen = torch.as_tensor(obs, device=env.device), env.observation.shape, split.seen.shape
    if flat_rows(given, whole) is not None:
        check_one_mask(mask)
        return given
    if (found := flat_rows(given, seen)) is None:
        raise UsageError(f"an observation of shape {tuple(given.shape)} does not fit: give {seen}, or a batch of them")
    if mask is None:
        raise UsageError(MISSING_MASK)
    rows, single = found
    allowed = mask_rows(mask.cpu() if isinstance(mask, Tensor) else mask, env.action, len(rows))
    joined = torch.cat([rows[:, : split.start], torch.tensor(allowed).to(rows), rows[:, split.start :]], 1)
    return joined[0] if single else joined


def flat_rows(given: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, bool] | None:
    """(flat rows, whether it is a single observation) for a tensor of this shape or a batch of it; None for another shape."""
    single = tuple(given.shape) == shape
    if not single and tuple(given.shape[1:]) != shape:
        return None
    return given.reshape(1 if single else len(given), math.prod(shape)).float(), single


def encoded(env: Env, obs: Any) -> tuple[Tensor, bool]:
    """(rows for the network, whether a single observation was given)."""
    if isinstance(env, HostEnv):
        return env.encode(obs)
    spec = env.observation
    try:
        given = torch.as_tensor(obs, device=env.device)
        batch = given.to(spec.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"an observation cannot be converted to numbers of shape {spec.shape}: {one_line(error)}"
        ) from None
    if not spec.dtype.is_floating_point and not torch.equal(batch.to(given.dtype), given):
        raise UsageError(f"an observation is not in {in_short(spec)}: give whole numbers")
    single = batch.shape == spec.shape
    batch = batch[None] if single else batch
    if batch.shape[1:] != spec.shape:
        shape = tuple(batch.shape)
        raise UsageError(f"an observation of shape {shape} does not fit: give {spec.shape}, or a batch of them")
    return batch, single


# observations that lack what the actor does not need, such as what only the critic sees ---------------------------------------


def actor_names(policy: ActorCritic, env: Env) -> tuple[str, ...]:
    """The names of the parts that the actor needs: those of its group, and the action mask."""
    mask = () if policy.action_mask is None else (ACTION_MASK,)
    return (*names_of(policy.actor, env.observation), *mask)


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
        given = torch.as_tensor(obs[name], device=env.device)
        if (found := flat_rows(given, part.shape)) is None:
            shape = tuple(given.shape)
            raise UsageError(f"{name!r} of an observation has shape {shape}: give {part.shape}, or a batch of them")
        rows, single = found
        pieces.append(rows)
    count = max((len(piece) for piece in pieces if isinstance(piece, Tensor)), default=1)
    filled = [torch.zeros(count, piece, device=env.device) if isinstance(piece, int) else piece for piece in pieces]
    if any(len(piece) != count for piece in filled):
        raise UsageError("the parts of an observation have different numbers of rows: give as many of each")
    joined = torch.cat(filled, 1)
    return joined[0] if single else joined


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
    whole = any(flat_rows(given, shape) is not None for shape in (env.observation.shape, seen.shape))
    found = flat_rows(given, group.spec.shape)
    if found is None or (given.is_floating_point() and whole):
        return obs
    rows, single = found
    full, start = torch.zeros(len(rows), *seen.shape, device=env.device), 0
    for first, last in group.columns:
        full[:, first:last] = rows[:, start : start + last - first]
        start += last - first
    return full[0] if single else full
