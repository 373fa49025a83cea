"""Convert outputs of the policy to actions of Gymnasium's spaces: Discrete, MultiDiscrete, MultiBinary, a Box of real numbers,
and Dict and Tuple of these to any depth, whose parts lie side by side in a row. Anything else is a UsageError.

Parts that are used only with some values of a choice are declared by an attribute `action_conditions` of the environment:
{"power": ("kind", (1, 2))} for a Dict, {1: (0, (1, 2))} for a Tuple, joined names ("arm/power") for nested parts.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...models.hybrid_spec import check_hybrid, flat_parts
from ...types import Box, Composite, Discrete, Env, MultiDiscrete, Spec
from ..step_arrays import Array
from .space_members import Observation, Space, bound, dtype_of, entries_of, leaves, nested_like
from .spaces import in_shape, observation_reader, space_of, split_rows

CONDITIONS = "action_conditions"
Conditions = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class ActionPart:
    """One plain space of an action, and what the policy gives for it."""

    name: str
    space: Space
    spec: Spec
    start: Array | None = None  # of choices, which may not count from 0

    def batch(self, actions: Array) -> Array:
        """Convert actions (N, *spec.shape) for a simulator's step: a copy, which it may write into."""
        space, kind = self.space, self.space.dtype
        if isinstance(space, gs.Box):  # clipped where conversion may round beyond a bound
            return actions.copy() if kind == np.float32 else np.clip(actions.astype(kind), space.low, space.high)
        return (actions.reshape(-1, *(space.shape or ())) + (0 if self.start is None else self.start)).astype(kind)

    def traced(self, actions: Tensor) -> Tensor:
        """Do the same as `batch`, on tensors."""
        space, kind = self.space, dtype_of(self.space)
        dtype = torch.from_numpy(np.empty(0, kind)).dtype
        if isinstance(space, gs.Box):
            if dtype == torch.float32:
                return actions
            low, high = (torch.from_numpy(end.astype(kind)) for end in (space.low, space.high))
            return torch.minimum(torch.maximum(actions.to(dtype), low), high)
        choices = in_shape(actions, space.shape or ())
        return (choices if self.start is None else choices + torch.from_numpy(self.start)).to(dtype)


@dataclass(frozen=True)
class ActionWriter:
    """Writes one action space, part by part: in order, the parts lie side by side in a row."""

    space: Space
    spec: Spec
    parts: tuple[ActionPart, ...]

    def batch(self, rows: Array) -> Observation:
        """Convert actions (N, *spec.shape) for a simulator's step: a copy, which it may write into."""
        if not isinstance(self.spec, Composite):
            return self.parts[0].batch(rows)
        pieces = split_rows(rows, [part.spec for part in self.parts])
        return nested_like(self.space, (part.batch(piece) for part, piece in zip(self.parts, pieces, strict=True)))

    def member(self, batch: Observation, row: int) -> Observation:
        """One action of a batch."""
        if not isinstance(self.spec, Composite):
            return batch[row]
        return nested_like(self.space, (leaf[row] for leaf in leaves(self.space, batch)))

    def traced(self, rows: Tensor) -> list[Tensor]:
        """A batch of each part, as tensors."""
        pieces = self.spec.split(rows).values() if isinstance(self.spec, Composite) else [rows]
        return [part.traced(piece) for part, piece in zip(self.parts, pieces, strict=True)]


def action_writer(space: Space, conditions: Conditions = ()) -> ActionWriter:
    """The writer of an action space; UsageError for a space that is not supported."""
    parts = tuple(plain_action_parts(space, ""))
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return ActionWriter(space, parts[0].spec, parts)
    spec = Composite(tuple((part.name, part.spec) for part in parts), conditions=conditions)
    check_hybrid(spec)
    return ActionWriter(space, spec, parts)


def plain_action_parts(space: Space, path: str) -> Iterator[ActionPart]:
    """The plain spaces in an action space."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        for key, entry in entries_of(space):
            yield from plain_action_parts(entry, f"{path}/{key}" if path else str(key))
    elif isinstance(space, gs.Discrete):
        yield ActionPart(path, space, Discrete(int(space.n)), np.array(int(space.start)))
    elif isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        spec = MultiDiscrete(tuple(int(n) for n in space.nvec.flatten()))
        yield ActionPart(path, space, spec, np.asarray(space.start, np.int64))
    elif isinstance(space, gs.MultiBinary):
        yield ActionPart(path, space, MultiDiscrete((2,) * math.prod(space.shape)))
    elif isinstance(space, gs.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        yield ActionPart(path, space, Box(space.shape, bound(space.low), bound(space.high)))
    else:
        is_box, which = isinstance(space, gs.Box), f"part {path!r} of the action: " if path else ""
        what = f"Box of dtype {space.dtype} and shape {space.shape}" if is_box else type(space).__name__
        raise UsageError(
            f"{which}actions of {what} are not supported: give Discrete, MultiDiscrete, MultiBinary, a Box of real numbers, "
            "or Dict and Tuple of these, for example with a gymnasium.ActionWrapper"
        )


# of environments --------------------------------------------------------------------------------------------------------


def writer_of(env: Env) -> ActionWriter:
    """The writer of an environment's actions; of a tensor environment's, one that changes nothing."""
    if isinstance(writer := getattr(env, "_action", None), ActionWriter):
        return writer
    parts = tuple(ActionPart(name, space_of(part), part) for name, part in flat_parts(env.action))
    if not isinstance(env.action, Composite):
        return ActionWriter(parts[0].space, env.action, parts)
    return ActionWriter(gs.Dict(OrderedDict((part.name, part.space) for part in parts)), env.action, parts)


def writer_for_env(env: object) -> ActionWriter:
    """The writer of a Gymnasium environment or vector environment, with the conditions that it declares."""
    space: Space = getattr(env, "single_action_space" if hasattr(env, "num_envs") else "action_space")
    given = declared_conditions(env) if isinstance(space, (gs.Dict, gs.Tuple)) else None
    return action_writer(space, () if given is None else read_conditions(given, space))


def hybrid_action(env: Env, rows: Tensor, as_tensor: bool, single: bool) -> object:
    """Rows of hybrid actions in the form of the action space; of a tensor environment, a dict of its parts."""
    writer = writer_of(env)
    batch = writer.batch(rows.cpu().numpy())
    if as_tensor:
        batch = nested_like(writer.space, (torch.as_tensor(x, device=rows.device) for x in leaves(writer.space, batch)))
    return writer.member(batch, 0) if single else batch


def declared_conditions(env: object) -> object:
    """The conditions that an environment declares, or one that it wraps or consists of; None if there are none."""
    given: object = getattr(env, CONDITIONS, None)
    if given is None and isinstance(env, gymnasium.Env):
        with contextlib.suppress(AttributeError):
            given = env.get_wrapper_attr(CONDITIONS)
    rows: Sequence[object] = getattr(env, "envs", ())
    return declared_conditions(rows[0]) if given is None and rows else given


def read_conditions(given: object, space: Space) -> Conditions:
    """Conditions as an environment declares them: {part: (choice, values)}, in the numbers of its space."""
    starts = {part.name: part.start for part in plain_action_parts(space, "")}
    try:
        if not isinstance(given, Mapping):
            raise TypeError
        found = []
        for part, (choice, values) in given.items():
            each = [int(value) for value in (values if isinstance(values, Iterable) else [values])]
            start = starts.get(str(choice))
            found.append((str(part), str(choice), tuple(v - (0 if start is None else int(start.min())) for v in each)))
    except (TypeError, ValueError):
        form = f'give {CONDITIONS} = {{"power": ("kind", (1, 2))}} if power is used where kind is 1 or 2'
        raise UsageError(f"{CONDITIONS} {str(given)[:80]} is not {{part: (choice, values)}}: {form}") from None
    return tuple(found)


class Shown:
    """The spaces of a Gymnasium environment or vector environment, as an Env has them."""

    capturable = False

    def __init__(self, env: Env | gymnasium.Env[object, object]) -> None:
        single = "single_" if hasattr(env, "num_envs") else ""
        self.observation = observation_reader(getattr(env, f"{single}observation_space")).spec
        self.action = writer_for_env(env).spec
        self.env = env
