"""Check the return values of a tensor environment's methods. An error is one line with the method, its value, the expected
value and a fix."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..draw import draw_observations
from ..errors import EnvError, UsageError, raised
from ..types import Composite, Discrete, MultiDiscrete, Spec

PARAMETERS = {
    "initial": ("noise",),
    "advance": ("state", "action"),
    "reward": ("state", "action", "next_state"),
    "terminated": ("state",),
    "observe": ("state",),
    "action_mask": ("state",),
    "privileged": ("state",),
}
REQUIRED = {
    "initial": "it turns uniform noise (N, noise_size) into start states (N, S)",
    "advance": "it returns the next states, of the shape of state",
    "reward": "it returns one float32 number per row, shape (N,)",
}

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


# calling -------------------------------------------------------------------------------------------------------------


def check_numbers(env: TensorEnvLike) -> None:
    limit: object = env.max_episode_steps
    size: object = env.noise_size
    if not isinstance(limit, (int, type(None))):
        raise mistake(env, f"time_limit {limit!r}", "is not a number of steps", "give an int or None")
    if not isinstance(size, int) or size < 0:
        fix = "set it to the columns of noise that initial uses, 0 or more"
        raise mistake(env, f"noise_size {size!r}", "is invalid", fix)


def check_defined(env: TensorEnvLike, name: str) -> None:
    """Raise UsageError if the environment lacks this required method."""
    if not env._overrides(name):
        raise UsageError(f"{type(env).__name__} has no {name}: write {signature(name)}; {REQUIRED[name]}")


def signature(name: str) -> str:
    return f"`def {name}({', '.join(('self', *PARAMETERS[name]))})`"


def call_method(env: TensorEnvLike, name: str, *arguments: Tensor) -> object:
    """Call a method and return its result; an exception becomes a UsageError of one line."""
    try:
        return getattr(env, name)(*arguments_for(env, name, arguments))
    except UsageError:
        raise
    except Exception as error:
        raise explained(env, name, arguments, error) from None


def arguments_for(env: TensorEnvLike, name: str, arguments: Sequence[Tensor]) -> Sequence[Tensor | dict[str, Tensor]]:
    """The arguments as a method takes them: a hybrid action as a dict of its parts."""
    if name not in ("advance", "reward") or not isinstance(env.action, Composite):
        return arguments
    return arguments[0], env.action.split(arguments[1]), *arguments[2:]


def explained(env: TensorEnvLike, name: str, arguments: tuple[Tensor, ...], error: Exception) -> UsageError:
    """One line about an exception in a user's method, with the likely fix."""
    if isinstance(error, AttributeError) and error.obj is env:
        fix = "set it in __init__" if "state" in vars(env) else "set it before super().__init__()"
        return mistake(env, name, f"reads self.{error.name}, which is not set yet", fix)
    if isinstance(error, TypeError) and not takes_arguments(getattr(env, name), arguments):
        return mistake(env, name, f"does not take ({', '.join(PARAMETERS[name])})", f"write {signature(name)}")
    parts = [x if isinstance(x, dict) else {"": x} for x in arguments_for(env, name, arguments)]
    given = [{key: tuple(part.shape) for key, part in each.items()} for each in parts]
    shapes = ", ".join(f"{p} {each.get('', each)}" for p, each in zip(PARAMETERS[name], given, strict=True))
    fix = "fix that line"
    if name == "initial" and isinstance(error, (IndexError, ValueError, RuntimeError)):
        fix = f"noise has noise_size = {env.noise_size} columns; set noise_size to the number of columns it uses"
    if "same device" in str(error) or "on cpu" in str(error):
        fix = ON_DEVICE
    elif isinstance(error, RuntimeError) and "at non-singleton dimension 0" in str(error):
        fix = "use as many rows as it is given, for evaluation uses copies with other numbers of rows"
    return mistake(env, name, f"raises {raised(error)} on {shapes}", fix)


def takes_arguments(method: Callable[..., object], arguments: tuple[object, ...]) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # its signature cannot be read
        return True
    return True


# results -------------------------------------------------------------------------------------------------------------


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
