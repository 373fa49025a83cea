"""How what an engine on the host answers gets to a device: through memory that is made once, in one copy a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..options import Array

ALIGNMENT = 16  # bytes, so that any number may begin there


class Landing:
    """Arrays of fixed shapes, one behind the other in one buffer on the host and in its twin on the device.

    On CUDA the host's is pinned: the copy is queued and the host goes on. On the CPU there is no twin. No address changes.
    """

    def __init__(self, arrays: Sequence[Array], device: torch.device) -> None:
        self.device, self._queued = device, device.type == "cuda"
        ends = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays])
        self._here = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=self._queued)
        on_host = device.type == "cpu"
        self._there = self._here if on_host else torch.empty_like(self._here, device=device, pin_memory=False)
        starts = [0, *(int(end) for end in ends[:-1])]
        self._seats = [seat(self._here, start, array).numpy() for start, array in zip(starts, arrays, strict=True)]
        self._tensors = [seat(self._there, start, array) for start, array in zip(starts, arrays, strict=True)]
        self._copied: Any = torch.cuda.Event() if self._queued else None  # type: ignore[no-untyped-call]

    def __call__(self, arrays: Sequence[Array]) -> list[Tensor]:
        """The arrays on the device, until the next call."""
        if self._copied is not None:
            self._copied.synchronize()  # what was there may still be on its way
        for place, array in zip(self._seats, arrays, strict=True):
            np.copyto(place, array)  # not torch's copy, whose threads would wait for cores that the engine keeps busy
        if self._there is not self._here:
            self._there.copy_(self._here, non_blocking=self._queued)
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.device))
        return self._tensors


def seat(buffer: Tensor, start: int, array: Array) -> Tensor:
    """The part of a buffer of bytes that holds an array like this one."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return buffer[start : start + array.nbytes].view(dtype).view(array.shape)
