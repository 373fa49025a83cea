"""Write hybrid actions: rows of numbers to the nested members of a Dict or Tuple action space.

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
from ...types import Composite, Env
from ..step_arrays import Array
from .space_members import Observation, Space, entries_of, leaves, nested_like
from .spaces import NUMPY, ActionWriter, action_writer, observation_reader, space_of

CONDITIONS = "action_conditions"
Conditions = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class HybridWriter:
    """Writes a Dict or Tuple action space, part by part: in order, the parts lie side by side in a row."""

    space: Space
    spec: Composite
    writers: tuple[ActionWriter, ...]

    def batch(self, rows: Array) -> Observation:
        """Convert actions (N, numbers) for a simulator's step: a copy, which it may write into."""
        pieces = np.split(rows, np.cumsum([math.prod(writer.spec.shape) for writer in self.writers])[:-1], axis=1)
        shaped = (
            piece.reshape(len(rows), *writer.spec.shape).astype(NUMPY[writer.spec.dtype])
            for writer, piece in zip(self.writers, pieces, strict=True)
        )
        return nested_like(self.space, (w.batch(piece) for w, piece in zip(self.writers, shaped, strict=True)))

    def member(self, batch: Observation, row: int) -> Observation:
        """One action of a batch."""
        return nested_like(self.space, (leaf[row] for leaf in leaves(self.space, batch)))

    def traced(self, rows: Tensor) -> list[Tensor]:
        """A batch of each part, as tensors."""
        pieces = zip(self.writers, self.spec.split(rows).values(), strict=True)
        return [writer.traced(piece) for writer, piece in pieces]


Writer = ActionWriter | HybridWriter


def writer_for(space: Space, conditions: Conditions = ()) -> Writer:
    """The writer of any action space; UsageError for one that is not supported."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return action_writer(space)
    found = list(writers_of(space, ""))
    spec = Composite(tuple((name, writer.spec) for name, writer in found), conditions=conditions)
    check_hybrid(spec)
    return HybridWriter(space, spec, tuple(writer for _, writer in found))


def writers_of(space: Space, path: str) -> Iterator[tuple[str, ActionWriter]]:
    """(joined name, writer) of every part."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        for key, entry in entries_of(space):
            yield from writers_of(entry, f"{path}/{key}" if path else str(key))
        return
    try:
        yield path, action_writer(space)
    except UsageError as error:
        raise UsageError(f"part {path!r} of the action: {error}") from None


def writer_of(env: Env) -> Writer:
    """The writer of an environment's actions; of a tensor environment's, one that changes nothing."""
    writer = getattr(env, "_action", None)
    if isinstance(writer, (ActionWriter, HybridWriter)):
        return writer
    if not isinstance(env.action, Composite):
        return ActionWriter(space_of(env.action), env.action)
    parts = [(name, ActionWriter(space_of(part), part)) for name, part in flat_parts(env.action)]
    space = gs.Dict(OrderedDict((name, writer.space) for name, writer in parts))
    return HybridWriter(space, env.action, tuple(writer for _, writer in parts))


def writer_for_env(env: object) -> Writer:
    """The writer of a Gymnasium environment or vector environment, with the conditions that it declares."""
    space: Space = getattr(env, "single_action_space" if hasattr(env, "num_envs") else "action_space")
    given = declared_conditions(env) if isinstance(space, (gs.Dict, gs.Tuple)) else None
    return writer_for(space, () if given is None else read_conditions(given, space))


def hybrid_action(env: Env, rows: Tensor, as_tensor: bool, single: bool) -> object:
    """Rows of hybrid actions in the form of the action space; of a tensor environment, a dict of its parts."""
    writer = writer_of(env)
    batch = writer.batch(rows.cpu().numpy())
    if as_tensor:
        batch = nested_like(writer.space, (torch.as_tensor(x, device=rows.device) for x in leaves(writer.space, batch)))
    return writer.member(batch, 0) if single else batch


# conditions -------------------------------------------------------------------------------------------------------------


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
    starts = {name: writer.start for name, writer in writers_of(space, "")}
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
