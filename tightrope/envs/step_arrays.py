"""A step of environments as NumPy arrays, as environments outside torch return it, and its copy to a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..types import Step

Array = np.ndarray[Any, Any]
MAX_SPACE_SIZE = 1 << 22  # numbers of one observation or action, in spaces that come from a file
ALIGNMENT = 16  # bytes, so that a number of any type may begin there
NO_ROWS = np.empty(0, np.int64)


class StepArrays(NamedTuple):
    """The results of one step of N environments, as arrays."""

    obs: Array  # (N, ...) rows as the spec has them, reset where an episode ended
    reward: Array  # (N,) what is learned from
    terminated: Array  # (N,) bool
    truncated: Array  # (N,) bool, False where terminated
    rows: Array  # (K,) rows whose true successor is not `obs`
    final_obs: Array  # (K, ...) the successors of these rows
    valid: Array | None = None  # (N,) bool, where some rows may not be valid transitions
    score: Array | None = None  # (N,) the reward to report; None: `reward`
    over: Array | None = None  # (N,) bool, where a reported episode ends; None: where terminated or truncated

    @property
    def arrays(self) -> list[Array]:
        """The arrays that every step has: obs, reward, terminated, truncated, and `valid` if there is one."""
        reward = self.reward.astype(np.float32, copy=False)
        arrays = [self.obs, reward, self.terminated, self.truncated]
        return arrays if self.valid is None else [*arrays, self.valid]

    @property
    def step(self) -> Step:
        """A copy of a Step."""
        final_obs = self.obs.copy()
        final_obs[self.rows] = self.final_obs
        obs, reward, terminated, truncated, *valid = (torch.from_numpy(x.copy()) for x in self.arrays)
        return Step(obs, reward, terminated, truncated, torch.from_numpy(final_obs), *valid)

    @classmethod
    def from_step(cls, step: Step) -> Self:
        """Views of a Step on the host."""
        obs, reward, terminated, truncated, final_obs = (x.numpy() for x in step[:5])
        ended = np.flatnonzero(terminated | truncated)
        valid = None if step.valid is None else step.valid.numpy()
        return cls(obs, reward, terminated, truncated, ended, final_obs[ended], valid)


# (actions, noise of resets) to the step, which the next call overwrites
ArrayStepper = Callable[[Array, Array], StepArrays]


class StepTransferBuffer:
    """Arrays of fixed shapes, side by side in one buffer on the host and in a copy of it on the device.

    On CUDA the host's buffer is pinned, so that copying does not block. On the CPU there is no copy. No address changes.
    """

    def __init__(self, arrays: Sequence[Array], device: torch.device) -> None:
        self.device, self._pinned = device, device.type == "cuda"
        ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays])
        self._host = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=self._pinned)
        on_host = device.type == "cpu"
        self._device = self._host if on_host else torch.empty_like(self._host, device=device, pin_memory=False)
        starts = [0, *(int(end) for end in ends[:-1])]
        self._targets = [view_like(self._host, start, x).numpy() for start, x in zip(starts, arrays, strict=True)]
        self._tensors = [view_like(self._device, start, x) for start, x in zip(starts, arrays, strict=True)]
        self._copied: Any = torch.cuda.Event() if self._pinned else None  # type: ignore[no-untyped-call]

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        """The arrays on the device, until the next call."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may not be finished
        for target, array in zip(self._targets, arrays, strict=True):
            np.copyto(target, array)  # torch's copy would use threads that wait for cores busy with the simulator
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=self._pinned)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device))
        return self._tensors


def view_like(buffer: Tensor, start: int, array: Array) -> Tensor:
    """The part of a buffer of bytes that holds an array like this one."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return buffer[start : start + array.nbytes].view(dtype).view(array.shape)
