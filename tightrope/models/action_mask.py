"""Action masks. A mask travels as a part of the observation: rollouts, minibatches, checkpoints and graphs carry it with no
code of their own. The policy takes it out again, so that networks do not see it.

A row of a mask has a 1 for each allowed option and a 0 for each forbidden one: n numbers for Discrete(n), those of every
choice side by side for MultiDiscrete and for the parts of a hybrid action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..types import Box, Composite, Spec
from .hybrid_spec import flat_parts
from .hybrid_spec import options as options

ACTION_MASK, OBSERVATION = "action_mask", "observation"  # names of the parts
MISSING_MASK = "this policy has action masks: give mask=..., or the (observation, info) of the environment"


def with_mask(observation: Spec, action: Spec) -> Composite:
    """Observations that carry a mask of these actions."""
    parts = observation.parts if isinstance(observation, Composite) else ((OBSERVATION, observation),)
    return Composite((*parts, (ACTION_MASK, Box((sum(options(action)),), 0.0, 1.0))))


def append_mask(obs: Tensor, mask: Tensor) -> Tensor:
    """Observations (N, ...) of the space that `with_mask` returns, from observations without a mask and bools (N, options)."""
    return torch.cat([obs.reshape(len(obs), -1).float(), mask.float()], 1)


def mask_columns(observation: Spec, action: Spec) -> slice | None:
    """The columns of an observation's row that hold the action mask; None if there is no mask."""
    count, parts = sum(options(action)), observation.parts if isinstance(observation, Composite) else ()
    held = [(name, math.prod(part.shape)) for name, part in parts if is_mask(name, action)]
    if not held or not count:
        return None
    size = sum(size for _, size in held)
    if size != count:
        raise UsageError(
            f"the observation's {ACTION_MASK!r} has {size} entries, and the actions have {count} options: give one entry "
            "for each option"
        )
    if held[0][0] != ACTION_MASK:
        check_mask_parts(held, action)
    names = [name for name, _ in parts]
    start = sum(math.prod(part.shape) for _, part in parts[: names.index(held[0][0])])
    return slice(start, start + size)


def is_mask(name: str, action: Spec) -> bool:
    """Whether a part of an observation is the action mask, or the part of it for a part of a hybrid action."""
    return name == ACTION_MASK or (isinstance(action, Composite) and name.startswith(f"{ACTION_MASK}/"))


def check_mask_parts(held: list[tuple[str, int]], action: Spec) -> None:
    """Raise UsageError unless masks by part are those of a hybrid action's choices, in their order."""
    choices = [(name, sum(options(part))) for name, part in flat_parts(action) if options(part)]
    sizes: dict[str, int] = {}
    for name, size in held:
        inner = name.removeprefix(f"{ACTION_MASK}/")
        owner = next((choice for choice, _ in choices if inner == choice or inner.startswith(f"{choice}/")), inner)
        sizes[owner] = sizes.get(owner, 0) + size
    if [*sizes.items()] != choices:
        wanted, found = (", ".join(f"{name} ({size})" for name, size in pairs) for pairs in (choices, sizes.items()))
        raise UsageError(
            f"the observation's {ACTION_MASK!r} has the parts {found}: give those of the choices, {wanted}"
        )


def without_mask(observation: Spec, action: Spec) -> Spec:
    """The space of what networks see: the observation without its action mask."""
    if mask_columns(observation, action) is None or not isinstance(observation, Composite):
        return observation
    rest = tuple((name, part) for name, part in observation.parts if not is_mask(name, action))
    if not rest:
        raise UsageError(f"the observation has nothing but {ACTION_MASK!r}: add what the policy is to decide by")
    return rest[0][1] if [name for name, _ in rest] == [OBSERVATION] else Composite(rest)


def forbids_all(mask: np.ndarray, action: Spec) -> np.ndarray:
    """Whether a row of a mask (N, options) leaves a choice without any option. (N,)"""
    starts = [0, *accumulate(options(action)[:-1])]
    allowed: np.ndarray = np.logical_or.reduceat(mask > 0.5, starts, axis=-1)
    return np.logical_not(np.logical_and.reduce(allowed, axis=-1))


def plain_mask(given: object, action: Spec) -> np.ndarray | None:
    """One mask of 0 and 1 in a usual form, an array or a flat list that allows an option of each choice, as int8. None for
    others, which `mask_rows` reads or refuses. Environments give one in every step: comparing bytes is quickest."""
    try:
        mask = np.frombuffer(bytes(given), np.uint8) if isinstance(given, (list, tuple)) else given
    except (TypeError, ValueError):
        return None
    counts = options(action)
    if not isinstance(mask, np.ndarray) or mask.shape != (sum(counts),) or mask.dtype.kind not in "biuf":
        return None
    ones = mask == 1
    if ones.astype(mask.dtype).tobytes() != mask.tobytes():
        return None
    allowed, start = ones.tobytes(), 0
    for count in counts:
        if allowed.find(1, start, start + count) < 0:
            return None
        start += count
    return ones.astype(np.int8)


def mask_rows(given: object, action: Spec, rows: int | None = None) -> np.ndarray:
    """A mask as numbers (rows, options), 0 or 1; UsageError for one of a wrong size or value, or that allows nothing.

    `given` is one mask, or one for each of several `rows`. Masks of several choices are side by side, or a tuple of them; those
    of a hybrid action may also be nested like it, None where everything is allowed.
    """
    counts = options(action)
    total = sum(counts)
    try:
        if isinstance(action, Composite) and is_nested(given):
            given = joined_masks(given, action)
        lengths = [np.shape(part)[-1:] for part in given] if isinstance(given, (tuple, list)) else []
        if isinstance(given, (tuple, list)) and len(counts) > 1 and lengths == [(count,) for count in counts]:
            given = np.concatenate([np.asarray(part) for part in given], -1)
        if np.asarray(given).dtype.kind not in "biufO":
            raise TypeError
        mask = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"mask {str(given)[:80]!r} is not numbers: give 0 or 1 for each of {total} options") from None
    if mask.size == total and rows in (None, 1):
        mask = mask.reshape(1, total)
    mask = mask[None] if mask.shape == (total,) else mask
    if mask.shape != (len(mask) if mask.ndim else 0, total):
        bits = ", two for each bit" if {*counts} == {2} and len(counts) > 1 else ""
        raise UsageError(f"mask has shape {mask.shape}: give one entry for each of {total} options{bits}")
    other = (mask != 0) & (mask != 1)
    if other.any():
        raise UsageError(f"mask has {mask[other][0]:g}: give 0 for forbidden and 1 for allowed options")
    if forbids_all(mask, action).any():
        raise UsageError("mask allows nothing: allow an option of each choice")
    if len(mask) not in (1, rows or 1):
        raise UsageError(f"mask has {len(mask)} rows for {rows or 1} observations: give one for each")
    return np.broadcast_to(mask, (rows or 1, total))


def is_nested(given: object) -> bool:
    """Whether a mask is given part by part."""
    parts = given if isinstance(given, tuple) else ()
    return isinstance(given, dict) or any(part is None or isinstance(part, dict) or np.ndim(part) for part in parts)


def joined_masks(given: object, action: Composite) -> np.ndarray:
    """Masks by part, in dicts and tuples nested like the action, as one row for each observation."""
    found = dict(masks_by_name(given, "", dict(flat_parts(action))))
    rows = []
    for name, part in flat_parts(action):
        count, mask = sum(options(part)), found.pop(name, None)
        if count == 0 and mask is not None:
            raise UsageError(f"mask[{name!r}] is given, and that part is no choice: drop it, or give None")
        several = isinstance(mask, (tuple, list)) and len(mask) == len(options(part)) > 1
        if isinstance(mask, (tuple, list)) and several and any(np.ndim(each) for each in mask):
            mask = np.concatenate([np.asarray(each) for each in mask], -1)
        rows.append(np.ones(count, np.float32) if mask is None else np.asarray(mask, np.float32))
        if rows[-1].ndim == 0 or rows[-1].shape[-1] != count:
            raise UsageError(f"mask[{name!r}] has shape {rows[-1].shape}: give one entry for each of {count} options")
    if found:
        names = ", ".join(name for name, part in flat_parts(action) if options(part))
        raise UsageError(f"mask has a part {next(iter(found))!r}: the choices are {names}")
    shape = np.broadcast_shapes(*(row.shape[:-1] for row in rows))
    return np.concatenate([np.broadcast_to(row, (*shape, row.shape[-1])) for row in rows], -1)


def masks_by_name(given: object, path: str, parts: dict[str, Spec]) -> Iterator[tuple[str, object]]:
    """(joined name, mask) of every part that a nested mask has."""
    entries = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, tuple) else None
    inside = [name for name in parts if name.startswith(f"{path}/")] if given is None else []
    if entries is None or path in parts:
        yield from ((name, given) for name in inside or [path])  # None stands for everything inside
        return
    for key, entry in entries:
        yield from masks_by_name(entry, f"{path}/{key}" if path else str(key), parts)


def choice_columns(action: Spec) -> list[int]:
    """The numbers of an action that are choices, by their place in its row."""
    sizes = [(math.prod(part.shape), bool(options(part))) for _, part in flat_parts(action)]
    kinds = [is_choice for size, is_choice in sizes for _ in range(size)]
    return [i for i, is_choice in enumerate(kinds) if is_choice]


def next_allowed(action: np.ndarray, mask: np.ndarray, spec: Spec) -> np.ndarray:
    """Actions (N, ...) with each forbidden option replaced by the next allowed one."""
    chosen, start = np.array(action).reshape(len(mask), -1), 0
    for column, count in zip(choice_columns(spec), options(spec), strict=True):
        following = (chosen[:, column, None].astype(np.int64) + np.arange(count)) % count
        allowed = np.take_along_axis(mask[:, start : start + count], following, 1) > 0.5
        chosen[:, column] = np.take_along_axis(following, allowed.argmax(1)[:, None], 1)[:, 0]
        start += count
    return chosen.reshape(np.shape(action))


def check_one_mask(mask: object) -> None:
    """Refuse a second mask beside that of an observation."""
    if mask is not None:
        raise UsageError("mask is given twice, in the observation and beside it: drop one of them")


class ActionMask(nn.Module):
    """Rows of observations to (what networks see, the mask)."""

    def __init__(self, observation: Spec, action: Spec, columns: slice) -> None:
        super().__init__()
        self.start, self.stop, self.width = columns.start, columns.stop, observation.shape[0]
        self.seen, self.options = without_mask(observation, action), options(action)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        pieces = [rows[:, : self.start], rows[:, self.stop :]]
        seen = torch.cat(pieces, 1) if self.start > 0 and self.stop < self.width else pieces[self.start == 0]
        if not isinstance(self.seen, Composite):
            seen = seen.reshape(-1, *self.seen.shape).to(self.seen.dtype)
        return seen, rows[:, self.start : self.stop]

    def with_valid_masks(self, rows: Tensor) -> Tensor:
        """Rows of random numbers with valid masks in their place: each choice has an allowed option."""
        masks = rows[:, self.start : self.stop].split_with_sizes(list(self.options), 1)
        allowed = [(mask > 0) | (mask == mask.amax(1, keepdim=True)) for mask in masks]
        return torch.cat([rows[:, : self.start], *(x.to(rows.dtype) for x in allowed), rows[:, self.stop :]], 1)
