"""Check the return values of a tensor environment's methods. An error is one line with the method, its value, the expected
value and a fix."""

from __future__ import annotations

import math
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..draw import draw_observations
from ..errors import EnvError, UsageError, raised
from ..models.action_mask import forbids_all, options
from ..types import Discrete, MultiDiscrete, Spec

ON_DEVICE = "make tensors with device=self.device, or with ..._like(state)"


class TensorEnvLike(Protocol):
    """The part of a TensorEnv that checks, dry runs and recordings use."""

    num_envs: int
    device: torch.device
    observation: Spec
    action: Spec
    noise_size: int
    max_episode_steps: int | None
    state: Tensor
    clock: Tensor
    _running_return: Tensor
    _finished: Tensor

    @property
    def pure(self) -> bool: ...
    @property
    def _masked(self) -> bool: ...
    @property
    def _privileged(self) -> int: ...
    @property
    def _seen(self) -> Spec | None: ...
    def _show(self, state: Tensor) -> Tensor: ...
    def _overrides(self, name: str) -> bool: ...
    def _apply(self, name: str, *arguments: Tensor) -> Tensor: ...
    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self: ...
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray: ...


def short_text(thing: object) -> str:
    """The text of a value, on one line that is not too long."""
    text = " ".join(str(thing).split())
    return text if len(text) <= 100 else text[:97] + "..."


def describe_value(value: object) -> str:
    """The type, shape and dtype or text of a value."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, (dict, tuple, list)):
        content = list(value) if isinstance(value, dict) else len(value)
        return f"a {type(value).__name__} of {content}"
    return "None" if value is None else f"{type(value).__name__} {short_text(value)}"


def in_short(spec: Spec) -> str:
    """The kind and size of a space."""
    return f"{type(spec).__name__}({spec.n if isinstance(spec, (Discrete, MultiDiscrete)) else tuple(spec.shape)})"


def mistake(env: TensorEnvLike, name: str, found: str, fix: str) -> UsageError:
    """The error about one method: its mistake and the fix."""
    return UsageError(f"{type(env).__name__}.{name} {found}: {fix}")


def check_tensor(env: TensorEnvLike, name: str, value: object, fix: str) -> Tensor:
    """Return the value; UsageError unless it is a tensor on the environment's device."""
    if not isinstance(value, Tensor):
        raise mistake(env, name, f"returns {describe_value(value)}, not a tensor", fix)
    if value.device.type != env.device.type:
        found = f"returns a tensor on {value.device}, the environment is on {env.device}"
        raise mistake(env, name, found, ON_DEVICE)
    return value


def check_state(env: TensorEnvLike, value: object) -> Tensor:
    """Start states must be (N, S)."""
    rows = env.num_envs
    fix = "return one tensor (N, S), the parts of a state side by side as columns, as by torch.stack(parts, -1)"
    state = check_tensor(env, "initial", value, fix)
    shape = tuple(state.shape)
    if len(shape) != 2:
        fix = "add a dimension, as in x.unsqueeze(-1)" if len(shape) < 2 else "flatten each row, as in x.flatten(1)"
        raise mistake(env, "initial", f"returns shape {shape}, wanted ({rows}, S), one row per row of noise", fix)
    if shape[0] != rows:
        fix = "make one row per row of noise, as in torch.zeros(len(noise), 2, device=noise.device)"
        raise mistake(env, "initial", f"returns {shape[0]} rows for {rows} rows of noise", fix)
    return state


def check_next_state(env: TensorEnvLike, value: object, state: Tensor) -> Tensor:
    after = check_tensor(env, "advance", value, "return the next states, of the shape of state")
    if after.shape != state.shape:
        found = f"returns shape {tuple(after.shape)}, wanted {tuple(state.shape)}, the shape of state"
        raise mistake(env, "advance", found, "return every column of the next state")
    if not torch.can_cast(after.dtype, state.dtype):
        found = f"returns {after.dtype}, but initial {state.dtype}, which cannot hold it"
        raise mistake(env, "advance", found, f"let initial return {after.dtype}")
    return after


def check_column(env: TensorEnvLike, name: str, value: object, dtype: torch.dtype) -> Tensor:
    """One number or flag per row."""
    rows, example = env.num_envs, "torch.ones_like(state[:, 0])" if name == "reward" else "state[:, 0] > 1"
    column = check_tensor(env, name, value, f"return one value per row, shape (N,), such as {example}")
    shape = tuple(column.shape)
    if shape != (rows,):
        fix = f"return one value per row, such as {example}"
        if shape == (rows, 1):
            fix = "drop the last dimension, as in x.squeeze(-1) or x[:, 0]"
        elif not shape:
            fix = "give dim=-1 to sum, mean, any or norm, so that rows stay apart"
        raise mistake(env, name, f"returns shape {shape} for {rows} rows, wanted ({rows},)", fix)
    if column.dtype != dtype:
        fix = "return x.float()" if dtype == torch.float32 else f"return a comparison, such as {example}, or x.bool()"
        raise mistake(env, name, f"returns {column.dtype}, wanted {dtype}", fix)
    return column


def check_observation(env: TensorEnvLike, value: object) -> Tensor:
    spec = env._seen or env.observation
    rows, own = env.num_envs, env._overrides("observe")
    name, wanted = "observe" if own else "initial", (rows, *spec.shape)
    obs = check_tensor(env, "observe", value, "return one observation per row")
    if tuple(obs.shape) != wanted:
        found = f"returns shape {tuple(obs.shape)} for {rows} rows, wanted {wanted} by observation {in_short(spec)}"
        plain = f"write observe, or change initial (noise_size is {env.noise_size}) or observation"
        raise mistake(env, name, found, "change observe, or the shape in observation" if own else plain)
    if obs.dtype != spec.dtype:
        found = f"returns observations of {obs.dtype}, wanted {spec.dtype} by observation {in_short(spec)}"
        raise mistake(env, name, found, f"return x.to({spec.dtype}), or give observation another dtype")
    return obs


def check_finite(env: TensorEnvLike, name: str, value: Tensor, when: str) -> None:
    bad = (~value.isfinite()).nonzero()
    if len(bad):
        row, *column = (int(i) for i in bad[0])
        place = f"row {row}" + (f", column {', '.join(map(str, column))}" if column else "")
        fix = "look for a division by 0, a root or a logarithm"
        method = name if env._overrides(name) else "initial"
        raise mistake(env, method, f"returns {float(value[row, *column])} {when} in {place}", fix)


def check_choices(
    env: TensorEnvLike, obs: Tensor | np.ndarray, error: type[Exception] = EnvError, source: str = "advance"
) -> None:
    """Raise an error if an observation is outside its discrete space. `obs` is a tensor on the CPU or an array; `source` is the
    method that returned the observed state."""
    spec = env._seen or env.observation
    if not isinstance(spec, (Discrete, MultiDiscrete)):
        return
    choices = np.asarray(obs)
    if env._seen is not None:  # privileged numbers and the action mask follow
        choices = choices[:, : math.prod(spec.shape)].reshape(-1, *spec.shape)
    outside = (choices < 0) | (choices >= spec.n)
    if outside.any():
        row, *column = np.argwhere(outside)[0].tolist()
        method = "observe" if env._overrides("observe") else source
        place = f" in column {column[0]}" if column else ""
        raise error(
            f"{type(env).__name__}.{method} gives observation {choices[row, *column]}{place} for env number {row}, outside "
            f"{in_short(spec)}: widen observation, or keep the state inside"
        )


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


def draw_frames(env: TensorEnvLike, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
    """Draw these observations; an exception of `draw` or a wrong shape becomes a UsageError of one line."""
    try:
        frames: object = draw_observations(env, obs, action)
    except UsageError:
        raise
    except Exception as error:
        raise mistake(env, "draw", f"raises {raised(error)} on obs {tuple(obs.shape)}", "fix that line") from None
    wanted = f"({len(obs)}, height, width, 3)"
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4:
        fix = f"return a NumPy array of shape {wanted} and dtype uint8"
        raise mistake(env, "draw", f"returns {describe_value(frames)}", fix)
    if (len(frames), frames.shape[-1]) != (len(obs), 3):
        raise mistake(env, "draw", f"returns shape {frames.shape}", f"return one frame per row of obs, {wanted}")
    return frames


def check_spaces(env: TensorEnvLike) -> None:
    for name in ("observation", "action"):
        spec, example = getattr(env, name, None), f"{name} = tightrope.types.Box((4,))"
        if spec is None:
            raise UsageError(f"{type(env).__name__} has no {name}: set it in the class, such as {example}")
        if not isinstance(spec, Spec):
            kind = f"{type(spec).__module__.partition('.')[0]}.{type(spec).__name__}"
            fix = f"write Box, Discrete, MultiDiscrete or Composite, such as {example}"
            raise mistake(env, name, f"is a {kind}, not a space of tightrope.types", fix)


def bitwise_equal(a: Tensor, b: Tensor) -> bool:
    same_form = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return same_form and torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))
