"""Histograms of parameters and gradients, from copies: nothing is hooked into the network, nothing waits for the device.

The gradient is that of the phase's last minibatch, as the optimiser left it. Hooks on autograd would see none of it where it is
computed in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..callback import StateView

TIMES = 100  # in the whole of a run, at most
APART = 10  # phases, at least
BINS = 64


@dataclass(frozen=True)
class Histogram:
    counts: np.ndarray  # (BINS,)
    edges: np.ndarray  # (BINS + 1,)
    values: np.ndarray  # what was counted, flat and finite


class Watch:
    """Says when to look: after the first phase, and then neither too often for the run nor for its phases."""

    def __init__(self, steps: int, total_steps: int) -> None:
        self.every = max(1, (total_steps - steps) // TIMES)
        self.next_steps, self.next_phase = steps, 0

    def is_due(self, steps: int, phase: int) -> bool:
        if steps < self.next_steps or phase < self.next_phase:
            return False
        self.next_steps, self.next_phase = steps + self.every, phase + APART
        return True


class Look:
    """Parameters and gradients as they are now, on their way to the host."""

    def __init__(self, state: StateView) -> None:
        optimizer = state.optimizer
        names = {id(p): name for name, p in state.policy.named_parameters()}
        self.layout = [(names[id(p)], p.numel()) for p in optimizer.parameters]
        copied = torch.stack([optimizer.flat.detach(), optimizer.grad])
        self.copied, self.arrival = copied, None
        if copied.is_cuda:
            self.copied = torch.empty(copied.shape, dtype=copied.dtype, pin_memory=True)
            self.copied.copy_(copied, non_blocking=True)
            self.arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrival.record(torch.cuda.current_stream(copied.device))

    def histograms(self) -> dict[str, Histogram]:
        """By name, such as parameters/actor.0.weight. Waits for the device: not for the thread that trains."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found = {}
        for kind, row in zip(("parameters", "gradients"), self.copied.cpu().numpy(), strict=True):
            offset = 0
            for name, size in self.layout:
                found[f"{kind}/{name}"] = histogram(row[offset : offset + size])
                offset += size
        return found


def histogram(values: np.ndarray[Any, Any]) -> Histogram:
    finite = values[np.isfinite(values)].astype(np.float64)
    counts, edges = np.histogram(finite, bins=BINS)
    return Histogram(counts, edges, finite)
