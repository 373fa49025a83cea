"""Action masks of single Gymnasium environments: from infos or from a method into the observation."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces as gs

from ...errors import EnvError, MaskError, UsageError
from ...models.action_mask import (
    ACTION_MASK,
    MISSING_MASK,
    OBSERVATION,
    check_one_mask,
    forbids_all,
    mask_columns,
    mask_rows,
    options,
    plain_mask,
)
from ...types import Composite, Spec
from ..step_arrays import Array
from .gym_workers import SingleEnv
from .host import HostEnv
from .hybrid_writer import writer_for
from .space_members import Observation, Space, has_shape_of, leaves, nested_like, plain_spaces, size_of

METHOD = "action_masks"
MaskSource = Literal["info", "method"]


def mask_source(env: SingleEnv) -> MaskSource | None:
    """Where an environment has masks that its observations lack; None if there are none. It is reset to look at its info."""
    try:
        choices = options(writer_for(env.action_space).spec)
    except UsageError:  # which is reported with the spaces
        return None
    if not choices or ACTION_MASK in (getattr(env.observation_space, "spaces", None) or ()):
        return None
    if env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD)):
        return "method"
    with contextlib.suppress(Exception):  # the first true reset reports what is wrong
        if ACTION_MASK in env.reset()[1]:
            return "info"
    return None


def with_masks(env: SingleEnv, source: MaskSource | None) -> SingleEnv:
    """The environment with its masks in its observations, if it has some."""
    return env if source is None else MaskInObservation(env, source)


def given_mask_columns(env: HostEnv) -> slice | None:
    """The columns of the action mask that an environment itself gives with its observations; None if it gives none."""
    return mask_columns(env.observation, env.action) if isinstance(env.observation, Composite) else None


def check_mask_rows(env: HostEnv, rows: Array, columns: slice | None) -> None:
    """Raise an error if an observation has an action mask that is not of 0 and 1, or allows nothing."""
    if columns is not None:
        mask = rows[:, columns]
        wrong = np.flatnonzero(((mask != 0) & (mask != 1)).any(1) | forbids_all(mask, env.action))
        if len(wrong):
            shown = f"env {env.name!r} number {env.first_row + int(wrong[0])} shows the action mask {mask[wrong[0]].tolist()}"
            raise EnvError(f"{shown}: give 1 for allowed options, of each choice at least one, and 0 for the others")


def with_mask_entry(space: Space, action: Spec, obs: Observation, mask: object) -> Observation:
    """An observation with an action mask among its entries: its own, or `mask`."""
    whole = space.spaces if isinstance(space, gs.Dict) else {}
    rest = {name: entry for name, entry in whole.items() if name != ACTION_MASK}
    if isinstance(obs, dict) and ACTION_MASK in obs:
        check_one_mask(mask)
        return obs
    alone = [*rest] == [OBSERVATION] and not (isinstance(obs, dict) and OBSERVATION in obs)
    entries = {OBSERVATION: obs} if alone else obs
    if not isinstance(entries, dict) or not rest.keys() <= entries.keys():
        return obs  # of a wrong form, which `encode` reports
    if mask is None:
        raise UsageError(MISSING_MASK)
    name, entry = next(iter(rest.items()))
    if all(has_shape_of(space, entries[key]) for key, space in rest.items()):
        return {**entries, ACTION_MASK: like_entry(whole[ACTION_MASK], mask_rows(mask, action)[0])}
    rows = mask_rows(mask, action, len(next(iter(leaves(entry, entries[name])))))
    return {**entries, ACTION_MASK: like_entry(whole[ACTION_MASK], rows)}


def like_entry(space: Space, mask: Array) -> Observation:
    """A mask (..., options) in the form of the observation's entry for it, which may be nested like a hybrid action."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return mask
    ends = np.cumsum([size_of(inner) for inner in plain_spaces(space)])[:-1]
    return nested_like(space, iter(np.split(mask, ends, axis=-1)))


class MaskInObservation(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Observations with the action mask beside them, or among the entries of a Dict."""

    def __init__(self, env: SingleEnv, source: MaskSource) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, source=source)
        super().__init__(env)
        self.source, self.action_spec, inner = source, writer_for(env.action_space).spec, env.observation_space
        self.count, self.nested = sum(options(self.action_spec)), isinstance(inner, gs.Dict)
        entries = inner.spaces if isinstance(inner, gs.Dict) else {OBSERVATION: inner}
        self.observation_space = gs.Dict({**entries, ACTION_MASK: gs.MultiBinary(self.count)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            return result  # the adapter reports it
        return self._joined(result[0], self._mask(result[1])), result[1]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        # no action follows the end of an episode
        mask = np.ones(self.count, np.int8) if terminated or truncated else self._mask(info)
        return self._joined(obs, mask), reward, terminated, truncated, info

    def _joined(self, obs: Any, mask: Array) -> dict[str, Any]:
        return {**obs, ACTION_MASK: mask} if self.nested else {OBSERVATION: obs, ACTION_MASK: mask}

    def _mask(self, info: dict[str, Any]) -> Array:
        if self.source == "method":
            given, name = self.env.get_wrapper_attr(METHOD)(), f"{METHOD}()"
        else:
            given, name = info.get(ACTION_MASK), f"info[{ACTION_MASK!r}]"
        if given is None:
            raise MaskError(f"{name} is missing: give a mask with every observation")
        mask = plain_mask(given, self.action_spec)
        try:
            return mask_rows(given, self.action_spec)[0].astype(np.int8) if mask is None else mask
        except UsageError as error:
            raise MaskError(f"{name} {str(error).removeprefix('mask ')}") from None
