"""Warnings about a training environment: no time limit, action masks that are ignored, images not read by convolutions."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..models.action_mask import mask_columns
from ..models.networks import IMAGE_SIDE, is_image
from ..types import Composite, Env, Spec
from .tensor import TensorEnv

STEPS_WITHOUT_END = 1000  # of each environment without the end of an episode, after which a warning is printed
LIMITS = ("max_episode_steps", "_max_episode_steps", "max_num_frames_per_episode")  # names of a time limit
MASK = re.compile(
    r"^(get_|invalid_|valid_|legal_)?action_masks?$|^(valid|legal|avail|available)_(actions|moves)(_mask)?$"
)


def layers_of(env: object) -> Iterator[Any]:
    """An environment and the environments that it wraps, outermost first; for several rows, those of the first."""
    while env is not None:
        yield env
        attributes = getattr(env, "__dict__", {})
        rows = attributes.get("envs") or attributes.get("members")
        env = rows[0] if rows else attributes.get("env", attributes.get("engine"))


def find_time_limit(env: object) -> object:
    """The time limit of an environment or of what it wraps; None if none is found."""
    for layer in layers_of(env):
        attributes = getattr(layer, "__dict__", {})
        for values in (attributes, getattr(attributes.get("spec"), "kwargs", {})):
            limit = next((values[name] for name in LIMITS if values.get(name) is not None), None)
            if limit is not None:
                return limit
    return None


def endless_warning(env: Any) -> str | None:
    """The warning if no episode of a Gymnasium environment ends in STEPS_WITHOUT_END steps; None if it has a time limit."""
    if getattr(env, "backend", "") != "gymnasium" or find_time_limit(env) is not None:
        return None
    return (
        f"no episode of {env.name} has ended in {STEPS_WITHOUT_END:,} steps, and no time limit is known: unless episodes do "
        "end, give --max-episode-steps N (max_episode_steps=N) or wrap it in TimeLimit"
    )


def mask_names(names: Iterable[Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and MASK.match(name)]


def find_action_mask(env: object) -> str | None:
    """The place of action masks that are not applied (the last info, an observation or a method); None if there are none."""
    observation, action = getattr(env, "observation", None), getattr(env, "action", None)
    if isinstance(observation, Spec) and isinstance(action, Spec) and mask_columns(observation, action) is not None:
        return None
    if where := mask_in_info(env):
        return where
    for layer in layers_of(env):
        space = getattr(layer, "observation", None) or getattr(layer, "observation_space", None)
        parts = (
            [n.rpartition("/")[2] for n, _ in space.parts]
            if isinstance(space, Composite)
            else getattr(space, "spaces", ())
        )
        if not isinstance(parts, tuple) and (found := mask_names(parts)):
            return f"the observation's {found[0]!r}"
        kinds = [kind for kind in type(layer).__mro__ if kind is not TensorEnv]
        methods = (name for kind in kinds for name, value in vars(kind).items() if value is not None)
        if found := mask_names([*methods, *getattr(layer, "__dict__", ())]):
            return f"its {found[0]}"
        if workers_have_masks(layer):
            return "its action_masks"
    return None


def workers_have_masks(vector: object) -> bool:
    """Whether the environments of a vector environment, which may live in other processes, have a method action_masks()."""
    call = getattr(vector, "call", None)
    if not hasattr(vector, "num_envs") or call is None:
        return False
    with contextlib.suppress(Exception):  # a dead worker is reported by the next step
        return bool(call("has_wrapper_attr", "action_masks")[0])
    return False


def mask_in_info(env: object) -> str | None:
    """The place of action masks in the last info, such as action_mask, if it has any. Cheap: called in every phase."""
    info = getattr(env, "info", None)
    found = mask_names(info) if isinstance(info, dict) else []
    return f"info[{found[0]!r}]" if found else None


def display_name(env: Env) -> str:
    return getattr(env, "name", type(env).__name__)


MASK_ADVICE = (
    "give one with every observation, of a reset too: as info['action_mask'] of single environments, by a method "
    "action_masks(), as 'action_mask' in a Dict, or by action_mask(state) of a tensor environment"
)


VECTOR_ADVICE = (
    "a vector environment shows masks as an entry 'action_mask' of Dict observations only: give the id, or a function that "
    "makes one environment, with num_envs=N"
)


def mask_advice(env: Env) -> str:
    """How masks that are not applied can be."""
    return VECTOR_ADVICE if any(hasattr(type(layer), "call") for layer in layers_of(env)) else MASK_ADVICE


def mask_warning(env: Env, where: str) -> str:
    return f"{display_name(env)} offers action masks ({where}), which are not applied: {mask_advice(env)}"


def flat_images(spec: Spec) -> list[tuple[int, ...]]:
    """The shapes of observations that look like images but are not read by convolutions."""
    parts = [part for _, part in spec.parts] if isinstance(spec, Composite) else [spec]
    return [part.shape for part in parts if len(part.shape) > 2 and math.prod(part.shape) > 1000 and not is_image(part)]


def training_warnings(env: Env) -> list[str]:
    """The warnings to print before training."""
    name = display_name(env)
    found = []
    if isinstance(env, TensorEnv) and env.max_episode_steps is None:
        never = "its episodes never end" if not env._overrides("terminated") else "an episode may never end"
        found.append(f"{name} has no time limit, so {never}: set time_limit, or give max_episode_steps")
    found += [
        f"{name} shows arrays of shape {shape}, which go flat into a multilayer perceptron: if they are images, give uint8 or "
        f"float frames of (height, width, 1, 3 or 4) from {IMAGE_SIDE} x {IMAGE_SIDE}, or a network of your own"
        for shape in flat_images(env.observation)
    ]
    where = find_action_mask(env)
    return found if where is None else [*found, mask_warning(env, where)]
