"""Single environments of Gymnasium, stepped one after the other, and their action masks: from infos or from a method into the
observation."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gs
from numpy.typing import DTypeLike
from torch import Tensor

from ... import activity
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
from ..step_arrays import NO_ROWS, Array, StepArrays
from .actions import action_writer, writer_for_env
from .host import HostEnv
from .pictures import pictures
from .space_members import (
    Observation,
    Space,
    has_shape_of,
    leaves,
    nested_like,
    plain_spaces,
    size_of,
    space_text,
    stacked,
)
from .spaces import NUMPY, ObservationReader, observation_reader

SingleEnv = gymnasium.Env[Any, Any]
Factory = Callable[[bool], SingleEnv]  # called with whether the environment must draw
METHOD = "action_masks"
MaskSource = Literal["info", "method"]


class GymEnv(HostEnv):
    """N single Gymnasium environments, stepped one after the other in this process."""

    backend = "gymnasium"

    def __init__(
        self, factory: Factory, num_envs: int, device: str | torch.device, name: str, drawn: bool = False
    ) -> None:
        self.name, self._factory, self._drawn = name, factory, drawn
        self._ended: dict[int, Array] = {}  # the last pictures of episodes
        one = factory(drawn)
        self.envs = [with_masks(one, masks := mask_source(one))]
        for _ in range(1, num_envs):
            self.envs.append(with_masks(factory(drawn), masks))
            activity.mark()
        one = self.envs[0]
        self._set_spaces(observation_reader(one.observation_space), writer_for_env(one), num_envs, device)
        self._plain = plain_type(self._observation)
        self._results = np.empty(num_envs, np.float32), np.empty(num_envs, bool), np.empty(num_envs, bool)
        self._mask_columns = given_mask_columns(self) if masks is None else None  # the others are checked one by one
        self.solved_at = None if one.spec is None else one.spec.reward_threshold
        self.pace = int(one.metadata.get("render_fps") or self.pace)

    def _reset(self, seeds: Array | None) -> Array:
        per_row = [None] * self.num_envs if seeds is None else [int(seed) for seed in seeds]
        return self._rows([self._reset_row(i, seed) for i, seed in enumerate(per_row)])

    def _recv(self) -> StepArrays:
        observations: list[Any] = []
        rows: list[int] = []
        finals: list[Any] = []
        reward, terminated, truncated = self._results
        for i, env in enumerate(self.envs):
            try:
                obs, paid, over, late, self.info = env.step(self._action.member(self._sent, i))
                reward[i], terminated[i], truncated[i] = float(paid), over, late and not over
            except Exception as error:
                raise self.failure(i, self._sent, error) from error
            activity.mark()
            if over or late:
                rows.append(i)
                finals.append(copy.deepcopy(obs))  # the reset may write into the same array
                if self._drawn:
                    self._ended[i] = pictures(self.name, [env])[0]
                obs = self._reset_row(i)
            observations.append(obs)
        obs = self._rows(observations)
        if not rows:
            return StepArrays(obs, reward, terminated, truncated, NO_ROWS, obs[:0])
        return StepArrays(obs, reward, terminated, truncated, np.array(rows), self._rows(finals, rows))

    def _reset_row(self, row: int, seed: int | None = None) -> object:
        """The first observation of a new episode of one environment."""
        try:
            result = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise self.failure(row, None, error) from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self.failure(row, None, "it returns an observation alone, not (observation, info)")
        activity.mark()
        self.info = result[1]
        return result[0]

    def _rows(self, singles: list[Any], rows: list[int] | None = None) -> Array:
        """Observations of single environments as rows. EnvError names the first of the wrong shape."""
        space = self._observation.space
        try:
            if self._plain is not None and {*map(type, singles)} == {np.ndarray}:
                batch = np.array(singles, self._plain)
            else:
                batch = self._read(stacked(space, singles), rows)
        except (ValueError, TypeError, KeyError, IndexError):
            batch = None
        if batch is None or batch.shape[1:] != self.observation.shape:
            wrong = next((i for i, one in enumerate(singles) if not has_shape_of(space, one)), 0)
            row, is_box = wrong if rows is None else rows[wrong], isinstance(space, gymnasium.spaces.Box)
            shown = f"shape {np.shape(singles[wrong])}" if is_box else repr(singles[wrong])
            raise EnvError(
                f"env {self.name!r} number {row} shows {shown}, which is not in {space_text(space)}: `tightrope check` it"
            )
        if rows is None:  # no action follows the others, which end an episode
            check_mask_rows(self, batch, self._mask_columns)
        return batch

    def _spawn(self, num_envs: int, drawn: bool) -> Self:
        return type(self)(self._factory, num_envs, self.device, self.name, drawn)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """The environments in their current state: Gymnasium does not draw observations."""
        if not self._drawn:
            raise UsageError(f"env {self.name!r} cannot be drawn from observations alone: use agent.record(path)")
        return pictures(self.name, self.envs[: len(obs)])

    def draw_ended(self, obs: Tensor) -> Array | None:
        """The environments whose episodes ended in the last step as they were then; other rows are of no use."""
        if not self._ended:
            return None
        some = next(iter(self._ended.values()))
        return np.stack([self._ended.get(i, some) for i in range(len(obs))])

    def close(self) -> None:
        for env in self.envs:
            env.close()


def plain_type(reader: ObservationReader) -> DTypeLike | None:
    """The type of rows that are the observations themselves, only converted to it; None if more is done to them."""
    part, spec = reader.parts[0], reader.spec
    changed = part.axes is not None or part.whole is not None or part.start is not None or part.unit != 1
    if changed or isinstance(spec, Composite) or spec.shape != part.space.shape:
        return None
    return NUMPY[spec.dtype]


def in_drawing_mode(env: SingleEnv, drawn: bool, factory: Callable[..., Any] | None = None) -> SingleEnv:
    """The environment, made again with render_mode rgb_array where it must draw and can be made again."""
    if not drawn or env.render_mode == "rgb_array":
        return env
    if factory is not None and "render_mode" in signature_parameters(factory):
        env.close()
        return factory(render_mode="rgb_array")
    if env.spec is not None:
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return gymnasium.make(env.spec, render_mode="rgb_array")
    return env


def signature_parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable; none where its signature cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


# action masks --------------------------------------------------------------------------------------------------------


def mask_source(env: SingleEnv) -> MaskSource | None:
    """Where an environment has masks that its observations lack; None if there are none. It is reset to look at its info."""
    try:
        choices = options(action_writer(env.action_space).spec)
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
        self.source, self.action_spec, inner = source, action_writer(env.action_space).spec, env.observation_space
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
