"""What a user should know about an environment before training on it: no time limit, action masks that nobody applies."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from ..models.networks import IMAGE_SIDE, is_image
from ..types import Composite, Env, Spec
from .tensor import TensorEnv

PARSING = threading.Lock()  # two threads at once make CPython 3.11 raise a SystemError
LIMITS = ("max_episode_steps", "_max_episode_steps", "max_num_frames_per_episode")  # names of a time limit
LOOKS_LIKE_A_LIMIT = re.compile(
    r"max_?(\w*_)?(steps?|len\w*|time\w*|frames?|turns?|moves?|ticks?|iter\w*|t)$"
    r"|(steps?|time|turns?|moves?|episode)_?(limit|left|out|remaining|budget|len\w*)|horizon",
    re.IGNORECASE,
)
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


def has_no_time_limit(env: Any) -> bool:
    """Whether a Gymnasium environment shows that it has none: no TimeLimit, a `step` that always returns truncated False, no
    counter and no name that looks like a limit. False where that cannot be known."""
    layers = list(wrapped(env))
    core = layers[-1]
    own_wrappers = [
        layer for layer in layers[:-1] if type(layer).__module__.split(".")[0] not in ("gymnasium", "tightrope")
    ]
    if (
        time_limit(env) is not None
        or own_wrappers
        or any(map(LOOKS_LIKE_A_LIMIT.search, getattr(core, "__dict__", {})))
    ):
        return False
    try:
        source = textwrap.dedent(inspect.getsource(type(core).step))
        with PARSING:
            step = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, AttributeError):
        return False
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(step)}
    return not any(map(LOOKS_LIKE_A_LIMIT.search, names)) and not counts(step) and always_false(step, 3)


def counts(function: ast.AST) -> bool:
    """Whether a function adds 1 to something, as one that counts steps does."""
    added = [
        node.value for node in ast.walk(function) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    ]
    return any(isinstance(value, ast.Constant) and value.value == 1 for value in added)


def always_false(function: ast.AST, place: int) -> bool:
    """Whether the value at that place of every tuple that a function returns is written as False."""
    nodes = list(ast.walk(function))
    set_to: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                set_to.setdefault(getattr(target, "id", ""), []).append(node.value)

    def is_false(value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return value.id in set_to and all(
                isinstance(x, ast.Constant) and x.value is False for x in set_to[value.id]
            )
        return isinstance(value, ast.Constant) and value.value is False

    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    tuples = [value for value in returned if isinstance(value, ast.Tuple) and len(value.elts) == 5]
    return bool(tuples) and len(tuples) == len(returned) and all(is_false(value.elts[place]) for value in tuples)


def masks_among(names: Iterable[Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and MASK.match(name)]


def action_mask(env: Any, info: Any = None) -> str | None:
    """Where an environment offers masks of its actions, if it does: in `info`, in an observation, or by a method."""
    if isinstance(info, dict) and (found := masks_among(info)):
        return f"info[{found[0]!r}]"
    for layer in wrapped(env):
        space = getattr(layer, "observation", None) or getattr(layer, "observation_space", None)
        parts = [name for name, _ in space.parts] if isinstance(space, Composite) else getattr(space, "spaces", ())
        if not isinstance(parts, tuple) and (found := masks_among(parts)):
            return f"the observation's {found[0]!r}"
        methods = (name for kind in type(layer).__mro__ for name, value in vars(kind).items() if value is not None)
        if found := masks_among([*methods, *getattr(layer, "__dict__", ())]):
            return f"its {found[0]}"
    return None


def mask_note(name: str, where: str) -> str:
    return f"{name} offers action masks ({where}), which are not applied: the policy may choose invalid actions"


def flat_images(spec: Spec) -> list[tuple[int, ...]]:
    """Shapes of what looks like images but is not read by convolutions."""
    parts = [part for _, part in spec.parts] if isinstance(spec, Composite) else [spec]
    return [part.shape for part in parts if len(part.shape) > 2 and math.prod(part.shape) > 1000 and not is_image(part)]


def notes(env: Env) -> list[str]:
    """One line each, for the beginning of a training."""
    name = getattr(env, "name", type(env).__name__)
    found = []
    if isinstance(env, TensorEnv):
        if env.max_episode_steps is None:
            never = "its episodes never end" if not env._overrides("terminated") else "an episode may never end"
            found.append(f"{name} has no time limit, so {never}: set time_limit, or give max_episode_steps")
    elif getattr(env, "backend", "") == "gymnasium" and has_no_time_limit(env):
        found.append(
            f"{name} has no time limit that is known: unless its episodes always end, give --max-episode-steps N "
            "(max_episode_steps=N) or wrap it in TimeLimit"
        )
    found += [
        f"{name} shows arrays of shape {shape}, which go flat into a multilayer perceptron: if they are images, give uint8 or "
        f"float frames of (height, width, 1, 3 or 4) from {IMAGE_SIDE} x {IMAGE_SIDE}, or a network of your own"
        for shape in flat_images(env.observation)
    ]
    where = action_mask(env, getattr(env, "info", None))
    return found if where is None else [*found, mask_note(name, where)]
