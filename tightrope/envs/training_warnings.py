"""What a user should know about an environment they train on: no time limit, action masks that nobody applies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..models.networks import IMAGE_SIDE, is_image
from ..types import Composite, Env, Spec
from .tensor import TensorEnv

STEPS_WITHOUT_END = 1000  # of each environment, after which it is said that none of its episodes has ended
LIMITS = ("max_episode_steps", "_max_episode_steps", "max_num_frames_per_episode")  # names of a time limit
MASK = re.compile(
    r"^(get_|invalid_|valid_|legal_)?action_masks?$|^(valid|legal|avail|available)_(actions|moves)(_mask)?$"
)


def wrapped(env: Any) -> Iterator[Any]:
    """An environment and what it wraps, from the outside in; of several rows, the first."""
    while env is not None:
        yield env
        held = getattr(env, "__dict__", {})
        rows = held.get("envs") or held.get("members")
        env = rows[0] if rows else held.get("env", held.get("engine"))


def time_limit(env: Any) -> Any:
    """The time limit of an environment or of what it wraps, where one is found."""
    for layer in wrapped(env):
        held = getattr(layer, "__dict__", {})
        for known in (held, getattr(held.get("spec"), "kwargs", {})):
            limit = next((known[name] for name in LIMITS if known.get(name) is not None), None)
            if limit is not None:
                return limit
    return None


def endless_note(env: Any) -> str | None:
    """What to say of a Gymnasium environment in which no episode has ended for STEPS_WITHOUT_END steps; nothing if a time limit
    is known."""
    if getattr(env, "backend", "") != "gymnasium" or time_limit(env) is not None:
        return None
    return (
        f"no episode of {env.name} has ended in {STEPS_WITHOUT_END:,} steps, and no time limit is known: unless episodes do "
        "end, give --max-episode-steps N (max_episode_steps=N) or wrap it in TimeLimit"
    )


def masks_among(names: Iterable[Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and MASK.match(name)]


def action_mask(env: Any) -> str | None:
    """Where an environment offers masks of its actions, if it does: in its last info, in an observation, or by a method."""
    if where := mask_in_info(env):
        return where
    for layer in wrapped(env):
        space = getattr(layer, "observation", None) or getattr(layer, "observation_space", None)
        parts = [name for name, _ in space.parts] if isinstance(space, Composite) else getattr(space, "spaces", ())
        if not isinstance(parts, tuple) and (found := masks_among(parts)):
            return f"the observation's {found[0]!r}"
        methods = (name for kind in type(layer).__mro__ for name, value in vars(kind).items() if value is not None)
        if found := masks_among([*methods, *getattr(layer, "__dict__", ())]):
            return f"its {found[0]}"
    return None


def mask_in_info(env: Any) -> str | None:
    """Where the last answer of an environment has masks, if it has. Cheap: asked in every phase."""
    info = getattr(env, "info", None)
    found = masks_among(info) if isinstance(info, dict) else []
    return f"info[{found[0]!r}]" if found else None


def name_of(env: Env) -> str:
    return getattr(env, "name", type(env).__name__)


def mask_note(env: Env, where: str) -> str:
    return f"{name_of(env)} offers action masks ({where}), which are not applied: the policy may choose invalid actions"


def flat_images(spec: Spec) -> list[tuple[int, ...]]:
    """Shapes of what looks like images but is not read by convolutions."""
    parts = [part for _, part in spec.parts] if isinstance(spec, Composite) else [spec]
    return [part.shape for part in parts if len(part.shape) > 2 and math.prod(part.shape) > 1000 and not is_image(part)]


def notes(env: Env) -> list[str]:
    """One line each, for the beginning of a training."""
    name = name_of(env)
    found = []
    if isinstance(env, TensorEnv) and env.max_episode_steps is None:
        never = "its episodes never end" if not env._overrides("terminated") else "an episode may never end"
        found.append(f"{name} has no time limit, so {never}: set time_limit, or give max_episode_steps")
    found += [
        f"{name} shows arrays of shape {shape}, which go flat into a multilayer perceptron: if they are images, give uint8 or "
        f"float frames of (height, width, 1, 3 or 4) from {IMAGE_SIDE} x {IMAGE_SIDE}, or a network of your own"
        for shape in flat_images(env.observation)
    ]
    where = action_mask(env)
    return found if where is None else [*found, mask_note(env, where)]
