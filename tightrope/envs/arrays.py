"""A step of a tensor environment on the CPU where rows are few: its own equations, over NumPy arrays.

At a few hundred rows a step costs what its calls cost, and NumPy's cost a third of torch's. The equations are not written
twice: `Rows` is an array that answers to the names that tensors have, so that `advance`, `reward`, `terminated`, `initial` and
`observe` run on it as they are, and give the same to the last bit: sums and products round alike everywhere, and the rest is
torch's own. Equations that use something `Rows` does not know, or give something else for it, or change the environment while
they are at it, or draw random numbers, run on tensors, as on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..types import Step
from .own import Randomness, copied, same

if TYPE_CHECKING:
    from .tensor import TensorEnv

MOST_ROWS = 1024  # up to which NumPy is quicker
SPREADS = (0.0, 0.01, 0.3, 3.0)  # how far from the current state the equations are tried out
KINDS = {torch.float32: np.float32, torch.bool: np.bool_, torch.int64: np.int64, torch.int32: np.int32}
UNLIKE = ("__mod__", "__rmod__", "__pow__", "__rpow__", "__floordiv__", "__rfloordiv__", "__matmul__")


def rows(array: Any) -> Rows:
    """The array under the names of tensors."""
    return np.ndarray.view(array, Rows)


def by_torch(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function of torch's over arrays, for those that NumPy rounds differently."""

    def call(*args: Any) -> Any:
        return rows(function(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args)).numpy())

    return call


class Rows(np.ndarray):
    """A NumPy array with the methods and functions of tensors that equations are made of."""

    device: Any = torch.device("cpu")
    sin, cos, exp, tanh = (by_torch(function) for function in (torch.sin, torch.cos, torch.exp, torch.tanh))

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        return tuple(self.T if dim == -1 and self.ndim == 2 else rows(np.moveaxis(np.asarray(self), dim, 0)))

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        kept = self if min is None else np.maximum(self, min)
        return kept if max is None else np.minimum(kept, max)

    def to(self, kind: Any) -> Any:
        return np.ndarray.astype(self, KINDS.get(kind, kind))

    def float(self) -> Any:
        return np.ndarray.astype(self, np.float32)

    def unsqueeze(self, dim: int) -> Any:
        return rows(np.expand_dims(np.asarray(self), dim))

    def clone(self) -> Any:
        return np.ndarray.copy(self)

    def square(self) -> Any:
        return self * self

    def sqrt(self) -> Any:
        return np.sqrt(self)

    def abs(self) -> Any:
        return np.abs(self)

    def __getattr__(self, name: str) -> Any:
        """Whatever else tensors have, as of the tensor that the array is."""
        return getattr(torch.from_numpy(np.asarray(self)), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch's functions do with such arrays: NumPy's where there is one, otherwise as with the tensors they are."""
        if function not in FUNCTIONS or not all(issubclass(kind, Rows) for kind in types):
            args, kwargs = pytree.tree_map_only(Rows, torch.from_numpy, (args, kwargs or {}))
            return function(*args, **kwargs)
        named = {"axis" if name == "dim" else name: value for name, value in (kwargs or {}).items()}
        if "dtype" in named:
            named["dtype"] = KINDS[named["dtype"]]
        return rows(np.asarray(FUNCTIONS[function](*args, **named)))


FUNCTIONS: dict[Any, Any] = {
    torch.stack: np.stack,
    torch.cat: np.concatenate,
    torch.where: np.where,
    torch.ones_like: np.ones_like,
    torch.zeros_like: np.zeros_like,
    torch.full_like: np.full_like,
    torch.minimum: np.minimum,
    torch.maximum: np.maximum,
    torch.abs: np.abs,
    torch.sqrt: np.sqrt,
    **{function: by_torch(function) for function in (torch.sin, torch.cos, torch.exp, torch.tanh, torch.remainder)},
}


def of_tensors(name: str) -> Callable[..., Any]:
    """A tensor's method of that name."""
    return lambda self, *args, **kwargs: getattr(torch.from_numpy(np.asarray(self)), name)(*args, **kwargs)


for _name, _method in vars(
    np.ndarray
).items():  # what arrays have under the same names means something else, now and then
    if callable(_method) and _name not in vars(Rows) and (_name in UNLIKE or not _name.startswith("_")):
        setattr(Rows, _name, of_tensors(_name))


class ArrayStep:
    """The step of one environment, over views of its state."""

    def __init__(self, env: TensorEnv) -> None:
        self.env: Any = env

    @np.errstate(all="ignore")  # what is not finite is for the learner to report
    def __call__(self, action: Tensor, noise: Tensor) -> Step:
        env = self.env
        state, clock, running_return = env.state.numpy(), env.clock.numpy(), env._running_return.numpy()
        old_state, chosen = rows(state.copy()), rows(action.numpy().astype(np.float32))
        next_state = env.advance(old_state, chosen)
        reward = np.asarray(
            env.reward(old_state, chosen, next_state), np.float32
        )  # a mask times a number is a double here
        terminated = np.asarray(env.terminated(next_state))
        kind = KINDS[env.observation.dtype]
        final_obs: Any = np.asarray(env.observe(next_state), kind)
        limit = env.max_episode_steps
        truncated = np.zeros_like(terminated) if limit is None else (clock + 1 >= limit) & ~terminated
        done = terminated | truncated
        ended = bool(done.any())
        kept, obs = np.asarray(next_state), final_obs.copy()
        if ended:
            kept = np.where(done[:, None], env.initial(rows(noise.numpy())), kept)
            obs = np.asarray(env.observe(rows(kept)), kind)
        # nothing has been changed so far
        clock += 1
        running_return += reward
        if ended:
            env._finished.numpy()[:] += done * np.stack([done, running_return, clock])
            running_return[done], clock[done] = 0.0, 0
        state[:] = kept
        answer = obs, reward, terminated, truncated, final_obs
        return Step(*(torch.from_numpy(np.ascontiguousarray(x)) for x in answer))


def array_step(env: TensorEnv, action: Tensor, noise: Tensor) -> ArrayStep | None:
    """The quick way to step an environment, if its equations give the same bits for arrays as for tensors, here and in a few
    states around, and change nothing."""
    held = dict(vars(env))
    values = {name: copied(value) for name, value in held.items() if isinstance(value, Tensor) or is_numbers(value)}
    generator, randomness = torch.Generator().manual_seed(0), Randomness(env)
    try:
        for spread in SPREADS:
            state = env.state + spread * torch.randn(env.state.shape, generator=generator)
            drawn = noise if spread == 0 else torch.rand(noise.shape, generator=generator)
            expected = outcomes(env, lambda x: x, state, action, drawn)
            if not all(map(equal, expected, outcomes(env, as_rows, state, action, drawn))):
                return None
    except Exception:  # whatever the equations do with an array that they would not do with a tensor
        return None
    finally:
        unchanged, undrawn = restored(env, held, values), randomness.back()
    return ArrayStep(env) if unchanged and undrawn else None


def outcomes(env: Any, form: Any, state: Tensor, action: Tensor, noise: Tensor) -> list[Any]:
    """What every equation of an environment says of a state."""
    before, chosen, fresh = form(state.clone()), form(action), env.initial(form(noise))
    following = env.advance(before, chosen)
    return [
        following, env.reward(before, chosen, following), env.terminated(following), env.observe(following), fresh,
        env.observe(fresh),
    ]  # fmt: skip


def as_rows(x: Tensor) -> Rows:
    array = x.clone().numpy()
    return rows(array.astype(np.float32) if array.dtype == np.int64 else array)


def equal(a: Tensor, b: Any) -> bool:
    """Bit for bit, but for what is no number in both."""
    other = torch.from_numpy(np.asarray(b))
    alike = a.shape == other.shape and a.is_floating_point() == other.is_floating_point()
    return alike and torch.equal(a.nan_to_num(), other.to(a.dtype).nan_to_num())


def is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def restored(env: Any, held: dict[str, Any], values: dict[str, Any]) -> bool:
    """Put back what the equations may have changed of an environment; whether they had left it alone."""
    alone = vars(env).keys() == held.keys() and all(vars(env)[name] is value for name, value in held.items())
    vars(env).clear()
    vars(env).update(held)
    for name, value in values.items():
        alone = alone and same(torch.as_tensor(held[name]), torch.as_tensor(value))
        held[name][...] = value
    return alone
