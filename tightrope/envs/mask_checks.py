"""What a tensor environment shows besides its observation, privileged numbers and action masks: both become parts of the
observation's space, and are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import EnvError
from ..models.action_mask import ACTION_MASK, OBSERVATION, append_mask, forbids_all, options, with_mask
from ..models.hybrid_spec import flat_action
from ..models.observation_groups import PRIVILEGED, append_privileged, with_privileged
from ..types import Composite, Spec
from .validate import TensorEnvLike, call_method, check_tensor, describe_value, in_short, mistake


def declare_parts(env: Any, start: Tensor | None = None) -> None:
    """Add the privileged numbers and the action mask of an environment, where it has them, to its observation space. The number
    of privileged numbers is found out from start states. The parts of a nested action get joined names."""
    if start is not None:
        env._privileged = 0
        if env._overrides("privileged"):
            env._privileged = check_privileged(env, call_method(env, "privileged", start)).shape[1]
    seen, action = getattr(env, "observation", None), getattr(env, "action", None)
    if isinstance(action, Composite) and (flat := flat_action(action)) is not action:
        vars(env).update(action=(action := flat))
    masked = env._masked and isinstance(action, Spec) and bool(options(action))
    added = [name for name, has in ((PRIVILEGED, env._privileged), (ACTION_MASK, masked)) if has]
    if not added or not isinstance(seen, Spec):
        return
    if isinstance(seen, Composite) and {*added} & dict(seen.parts).keys():  # of an earlier declaration
        parts = tuple((name, part) for name, part in seen.parts if name not in (PRIVILEGED, ACTION_MASK))
        seen = parts[0][1] if [name for name, _ in parts] == [OBSERVATION] else Composite(parts)
    shown = with_privileged(seen, env._privileged) if env._privileged else seen
    vars(env).update(_seen=seen, observation=with_mask(shown, action) if masked and action else shown)


def with_parts(env: TensorEnvLike, obs: Tensor, call: Callable[[str, Tensor], object], state: Tensor) -> Tensor:
    """Observations with the privileged numbers and action masks of these states. `call` calls a method by its name."""
    if env._privileged:
        obs = append_privileged(obs, check_privileged(env, call("privileged", state)))
    return append_mask(obs, check_mask(env, call("action_mask", state))) if env._masked else obs


def check_privileged(env: TensorEnvLike, value: object) -> Tensor:
    """Return what `privileged` returned, which must be real numbers (N, K)."""
    numbers = check_tensor(env, "privileged", value, "return real numbers (N, K)")
    if numbers.dim() != 2 or 0 in numbers.shape or not numbers.is_floating_point():
        fix = "return one row of real numbers for each environment, such as state[:, 2:]"
        raise mistake(env, "privileged", f"returns {describe_value(numbers)}, wanted real numbers (N, K)", fix)
    if env._privileged and numbers.shape[1] != env._privileged:
        found = f"returns {numbers.shape[1]} columns, and {env._privileged} before"
        raise mistake(env, "privileged", found, "return as many in every state")
    return numbers


def check_mask(env: TensorEnvLike, value: object) -> Tensor:
    """Return what `action_mask` returned, which must be bools (N, options)."""
    mask, wanted = check_tensor(env, "action_mask", value, "return bools (N, options)"), sum(options(env.action))
    if not wanted:
        found = f"is for choices, and action is {in_short(env.action)}"
        raise mistake(env, "action_mask", found, "drop the method, or give discrete actions")
    if tuple(mask.shape) != (len(mask), wanted) or mask.dtype != torch.bool:
        found = f"returns {describe_value(mask)}, wanted bools (N, {wanted})"
        raise mistake(env, "action_mask", found, f"return one bool for each option of {in_short(env.action)}")
    return mask


def check_masks(env: TensorEnvLike, obs: Tensor | np.ndarray, error: type[Exception] = EnvError) -> None:
    """Raise an error if the mask in an observation allows nothing. `obs` is a tensor on the CPU or an array."""
    if env._masked:
        forbidden = np.flatnonzero(forbids_all(np.asarray(obs)[:, -sum(options(env.action)) :], env.action))
        if len(forbidden):
            fix = "allow an option of each choice in every state that does not end the episode"
            raise error(f"{type(env).__name__}.action_mask allows nothing for env number {forbidden[0]}: {fix}")
