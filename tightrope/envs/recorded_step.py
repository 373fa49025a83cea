"""A step of a tensor environment on the CPU where rows are few: its own equations, recorded and replayed over arrays.

The equations are not written twice, and give the same to the last bit: that is tried out in a few states before the
recording is used, and in one again whenever something may have changed that the equations read (see `TensorEnv`). Equations
that cannot be recorded, or change the environment while they are at it, or draw random numbers, run on tensors, as on a
device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .attributes import Randomness, same, streams_lock
from ..recording import Recording
from .step_arrays import Array, StepArrays
from .validate import check_choices

if TYPE_CHECKING:
    from .tensor import TensorEnv

MOST_ROWS = 1024  # up to which NumPy is quicker
SPREADS = (0.0, 0.01, 0.3, 3.0)  # how far from the current state the equations are tried out


class ArrayStep:
    """The step of one environment, over views of its state."""

    def __init__(self, env: TensorEnv, action: Tensor, noise: Tensor) -> None:
        def onwards(state: Tensor, action: Tensor) -> tuple[Tensor, ...]:
            following = env._apply("advance", state, action)
            reward = env._apply("reward", state, action, following)
            return following, reward, env._apply("terminated", following), env._apply("observe", following)

        def anew(state: Tensor, done: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
            kept = torch.where(done.unsqueeze(-1), env._apply("initial", noise), state)
            return kept, env._apply("observe", kept)

        self.env, self.trusted = env, False  # whether equations are known to be still what was recorded
        kept = (env.clock, env._running_return, env._finished)  # which are written at other moments here
        over = torch.zeros(env.num_envs, dtype=torch.bool)
        self.onwards = Recording(onwards, (env.state, action), exact=True, banned=kept)
        self.anew = Recording(anew, (env.state, over, noise), exact=True, banned=kept)
        self.sums = np.empty(env.num_envs, np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of an environment record for themselves."""
        return type(None), ()

    def __call__(self, action: Array, noise: Array) -> StepArrays:
        env, limit = self.env, self.env.max_episode_steps
        state, clock, running_return = env.state.numpy(), env.clock.numpy(), env._running_return.numpy()
        kept, reward, terminated, final_obs = self.onwards(state, action)
        done = terminated if limit is None else terminated | (clock >= limit - 1)
        ended, obs = done.nonzero()[0], final_obs
        if len(ended):
            kept, obs = self.anew(kept, done, noise)
            check_choices(env, obs)
        check_choices(env, final_obs)  # said by the step on tensors, which comes after any error
        # nothing has been changed so far
        clock += 1
        running_return += reward
        np.copyto(state, kept)
        if not len(ended):
            return StepArrays(obs, reward, terminated, done & ~terminated, ended, final_obs[ended])
        episodes, returns, lengths = env._finished.numpy()
        episodes += done
        returns += np.multiply(running_return, done, self.sums)
        lengths += np.multiply(clock, done, self.sums)
        np.copyto(running_return, 0, where=done)
        np.copyto(clock, 0, where=done)
        return StepArrays(obs, reward, terminated, done & ~terminated, ended, final_obs[ended])

    @np.errstate(all="ignore")
    def holds(self, state: Tensor, action: Tensor, noise: Tensor) -> bool:
        """Whether all equations still say of a state what the recordings say."""
        env = self.env
        following = env._apply("advance", state.clone(), action)
        fresh, all_over = env._apply("initial", noise), torch.ones(env.num_envs, dtype=torch.bool)
        reward, terminated = env._apply("reward", state.clone(), action, following), env._apply("terminated", following)
        expected = [
            following, reward, terminated, env._apply("observe", following), fresh, env._apply("observe", fresh),
        ]  # fmt: skip
        given = (
            *self.onwards(state.numpy(), action.numpy()),
            *self.anew(state.numpy(), all_over.numpy(), noise.numpy()),
        )
        self.trusted = all(map(equal, expected, given))
        return self.trusted


def array_step(env: TensorEnv, action: Tensor, noise: Tensor) -> ArrayStep | None:
    """The quick way to step an environment, if its equations give the same bits when they are replayed, here and in a few
    states around, and change nothing."""
    with streams_lock:
        return _array_step(env, action, noise)


def _array_step(env: TensorEnv, action: Tensor, noise: Tensor) -> ArrayStep | None:
    held = dict(vars(env))
    values: dict[str, Any] = {name: value.copy() for name, value in held.items() if is_numbers(value)}
    values |= {name: value.clone() for name, value in held.items() if isinstance(value, Tensor)}
    generator, randomness = torch.Generator().manual_seed(0), Randomness(env)
    try:
        step, state = ArrayStep(env, action, noise), values["state"]
        for spread in SPREADS:
            around = state + spread * torch.randn(state.shape, generator=generator)
            drawn = noise if spread == 0 else torch.rand(noise.shape, generator=generator)
            if not step.holds(around, action, drawn):
                return None
    except Exception:  # whatever the equations do that cannot be recorded; a true mistake will show again
        return None
    finally:
        unchanged, undrawn = restored(env, held, values), randomness.back()
    return step if unchanged and undrawn else None


def equal(a: Tensor, b: Array) -> bool:
    """Bit for bit, but for what is no number in both."""
    other = torch.from_numpy(b)
    return a.dtype == other.dtype and torch.equal(a.nan_to_num(), other.nan_to_num())


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
