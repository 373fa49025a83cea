"""A step of a tensor environment on the CPU where rows are few: its own equations, over NumPy arrays.

At a few hundred rows a step costs what its calls cost, and NumPy's cost a third of torch's. The equations are not written
twice: `Rows` is an array that answers to the names that tensors have, so that `advance`, `reward`, `terminated`, `initial` and
`observe` run on it as they are, and give the same to the last bit: sums and products round alike everywhere, and the rest is
torch's own. Equations that use something `Rows` does not know, or give something else for it, run on tensors, as on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..types import Step

if TYPE_CHECKING:
    from .tensor import TensorEnv

FEW = 1024  # environments up to which NumPy is quicker
KINDS = {torch.float32: np.float32, torch.bool: np.bool_, torch.int64: np.int64, torch.int32: np.int32}


class Rows(np.ndarray):
    """A NumPy array with the methods and functions of tensors that equations are made of."""

    device: Any = torch.device("cpu")

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        return tuple(self.T if dim == -1 and self.ndim == 2 else np.moveaxis(self, dim, 0))

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        kept = self if min is None else np.maximum(self, min)
        return kept if max is None else np.minimum(kept, max)

    def to(self, kind: Any) -> Any:
        return self.astype(KINDS.get(kind, kind))

    def unsqueeze(self, dim: int) -> Any:
        return np.expand_dims(self, dim).view(Rows)

    def clone(self) -> Any:
        return self.copy()

    def float(self) -> Any:
        return self.astype(np.float32)

    def square(self) -> Any:
        return self * self

    def sin(self) -> Any:
        return by_torch(torch.sin)(self)

    def cos(self) -> Any:
        return by_torch(torch.cos)(self)

    def exp(self) -> Any:
        return by_torch(torch.exp)(self)

    def tanh(self) -> Any:
        return by_torch(torch.tanh)(self)

    def sqrt(self) -> Any:
        return np.sqrt(self)

    def abs(self) -> Any:
        return np.abs(self)

    def sign(self) -> Any:
        return np.sign(self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch's functions do with such arrays: NumPy's where there is one, otherwise as with the tensors they are."""
        if function not in FUNCTIONS or not all(issubclass(kind, Rows) for kind in types):
            args, kwargs = pytree.tree_map_only(Rows, torch.from_numpy, (args, kwargs or {}))
            return function(*args, **kwargs)
        named = {"axis" if name == "dim" else name: value for name, value in (kwargs or {}).items()}
        if "dtype" in named:
            named["dtype"] = KINDS[named["dtype"]]
        return np.asarray(FUNCTIONS[function](*args, **named)).view(Rows)


def by_torch(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function of torch's over arrays, for those that NumPy rounds differently."""

    def call(*args: Any) -> Any:
        return function(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args)).numpy().view(Rows)

    return call


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


class ArrayStep:
    """The step of one environment, over views of its state."""

    def __init__(self, env: TensorEnv) -> None:
        self.env: Any = env
        self.state, self.clock = env.state.numpy(), env.clock.numpy()
        self.running_return, self.finished = env._running_return.numpy(), env._finished.numpy()

    @np.errstate(all="ignore")  # what is not finite is for the learner to report
    def __call__(self, action: Tensor, noise: Tensor) -> Step:
        env = self.env
        state, done_noise = self.state.copy().view(Rows), noise.numpy().view(Rows)
        chosen = action.numpy().astype(np.float32).view(Rows)
        following = env.advance(state, chosen)
        reward = np.asarray(
            env.reward(state, chosen, following), np.float32
        )  # where torch's would be, NumPy's is a double
        terminated = np.asarray(env.terminated(following))
        final_obs = env.observe(following)
        late = (
            self.clock + 1 >= env.max_episode_steps if env.max_episode_steps is not None else np.zeros_like(terminated)
        )
        done = terminated | late
        ended = bool(done.any())
        kept, obs = following, final_obs.copy()
        if ended:
            kept = np.where(done[:, None], env.initial(done_noise), following).view(Rows)
            obs = env.observe(kept)
        # nothing has been changed so far
        self.clock += 1
        self.running_return += reward
        if ended:
            self.finished += done * np.stack([done, self.running_return, self.clock])
            self.running_return[done], self.clock[done] = 0.0, 0
        self.state[:] = kept
        answer = (obs, reward, terminated, late & ~terminated, final_obs)
        return Step(*(torch.from_numpy(np.ascontiguousarray(x)) for x in answer))


def array_step(env: TensorEnv, action: Tensor, noise: Tensor) -> ArrayStep | None:
    """The quick way to step an environment, if its equations give the same for arrays as for tensors and keep nothing."""
    held = dict(vars(env))
    try:
        for a, b in zip(outcomes(env, lambda x: x, action, noise), outcomes(env, as_rows, action, noise), strict=True):
            b = torch.from_numpy(np.asarray(b))
            alike = a.shape == b.shape and a.is_floating_point() == b.is_floating_point()
            if not alike or not torch.equal(a, b.to(a.dtype)):
                return None
        if any(held.get(name) is not value for name, value in vars(env).items()):
            return None
    except Exception:  # whatever the equations do with an array that they would not do with a tensor
        return None
    return ArrayStep(env)


def as_rows(x: Tensor) -> Any:
    array = x.clone().numpy()
    return (array.astype(np.float32) if array.dtype == np.int64 else array).view(Rows)


def outcomes(env: Any, form: Any, action: Tensor, noise: Tensor) -> list[Any]:
    """What every equation of an environment says, of its state now; nothing is changed."""
    state, chosen = form(env.state.clone()), form(action)
    following = env.advance(state, chosen)
    fresh = env.initial(form(noise))
    return [
        following, env.reward(state, chosen, following), env.terminated(following), env.observe(following), fresh,
        env.observe(fresh),
    ]  # fmt: skip
