"""Histograms of parameters and gradients, made from copies: no hooks in the network, no waiting for the device.

The gradient is that of the phase's last minibatch, as the optimizer left it. Autograd hooks would miss gradients that are
computed in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..callback import StateView

MAX_TIMES = 100  # in a run
MIN_PHASES_BETWEEN = 10  # between two
BINS = 64


@dataclass(frozen=True)
class Histogram:
    counts: np.ndarray  # (BINS,)
    edges: np.ndarray  # (BINS + 1,)
    values: np.ndarray  # what was counted, flat and finite


class HistogramSchedule:
    """When histograms are due: after the first phase, then every `MIN_PHASES_BETWEEN` phases or less often."""

    def __init__(self, steps: int, total_steps: int) -> None:
        self.every = max(1, (total_steps - steps) // MAX_TIMES)
        self.next_steps, self.next_phase = steps, 0

    def is_due(self, steps: int, phase: int) -> bool:
        if steps < self.next_steps or phase < self.next_phase:
            return False
        self.next_steps, self.next_phase = steps + self.every, phase + MIN_PHASES_BETWEEN
        return True


class ParameterCopy:
    """A copy of parameters and gradients, on its way to the host."""

    def __init__(self, state: StateView) -> None:
        optimizer = state.optimizer
        names = {id(p): name for name, p in state.policy.named_parameters()}
        self.layout = [(names[id(p)], p.numel()) for p in optimizer.parameters]
        self.numbers, self.arrival = torch.stack([optimizer.flat.detach(), optimizer.grad]), None
        if self.numbers.is_cuda:
            on_device = self.numbers
            self.numbers = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            self.numbers.copy_(on_device, non_blocking=True)
            self.arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrival.record(torch.cuda.current_stream(on_device.device))

    def histograms(self) -> dict[str, Histogram]:
        """By name, such as parameters/actor.0.weight. It waits for the device, so the training thread must not call it."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found = {}
        for kind, row in zip(("parameters", "gradients"), self.numbers.cpu().numpy(), strict=True):
            offset = 0
            for name, size in self.layout:
                found[f"{kind}/{name}"] = histogram(row[offset : offset + size])
                offset += size
        return found


def histogram(values: np.ndarray) -> Histogram:
    finite = values[np.isfinite(values)].astype(np.float64)
    counts, edges = np.histogram(finite, bins=BINS)
    return Histogram(counts, edges, finite)
