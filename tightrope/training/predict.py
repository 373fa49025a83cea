"""From observations of an environment to actions for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..envs.adapters.host import HostEnv
from ..envs.validate import in_short
from ..errors import UsageError, one_line
from ..models import ActorCritic
from ..models.action_mask import ACTION_MASK, MISSING_MASK, ActionMask, check_one_mask, mask_rows
from ..models.memory import MemoryRows
from ..types import Composite, Discrete, Env
from .actor_inputs import completed


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
        from ..envs.adapters.hybrid_writer import hybrid_action

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
        from ..envs.adapters.gym_masks import with_mask_entry

        return with_mask_entry(env._observation.space, env.action, obs, mask)
    given, whole, seen = torch.as_tensor(obs, device=env.device), env.observation.shape, split.seen.shape
    if whole in (tuple(given.shape), tuple(given.shape[1:])):
        check_one_mask(mask)
        return given
    if seen not in (tuple(given.shape), tuple(given.shape[1:])):
        raise UsageError(f"an observation of shape {tuple(given.shape)} does not fit: give {seen}, or a batch of them")
    if mask is None:
        raise UsageError(MISSING_MASK)
    single = tuple(given.shape) == seen
    rows = given.reshape(1 if single else len(given), -1).float()
    allowed = mask_rows(mask.cpu() if isinstance(mask, Tensor) else mask, env.action, len(rows))
    joined = [rows[:, : split.start], torch.tensor(allowed).to(rows), rows[:, split.start :]]
    return torch.cat(joined, 1)[0] if single else torch.cat(joined, 1)


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
