"""Action masks of tensor environments: they are added to the observation's space, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import EnvError
from ..models.action_mask import ACTION_MASK, OBSERVATION, forbids_all, options, with_mask
from ..models.hybrid_spec import flat_action
from ..types import Composite, Spec
from .validate import TensorEnvLike, check_tensor, describe_value, in_short, mistake


def declare_mask(env: Any) -> None:
    """Add the action mask of an environment, if it has one, to its observation space, once both spaces are set. The parts of a
    nested action get joined names."""
    seen, action = getattr(env, "observation", None), getattr(env, "action", None)
    if isinstance(action, Composite) and (flat := flat_action(action)) is not action:
        vars(env).update(action=(action := flat))
    if not env._masked or not isinstance(seen, Spec) or not isinstance(action, Spec) or not options(action):
        return
    if isinstance(seen, Composite) and ACTION_MASK in dict(seen.parts):  # of earlier actions
        parts = tuple((name, part) for name, part in seen.parts if name != ACTION_MASK)
        seen = parts[0][1] if [name for name, _ in parts] == [OBSERVATION] else Composite(parts)
    vars(env).update(_seen=seen, observation=with_mask(seen, action))


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
