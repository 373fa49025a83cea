"""How the return of a run has gone, in a few numbers: what it began with, its best, its end, and how much it jumps about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import Columns
from .statistics import smooth

FEW_PHASES = 10  # with fewer there is nothing to judge
COLLAPSE, FLAT = 0.4, 0.1  # shares of the range that returns went through
ROUNDING = 1e-6  # what differs by so little is the same
DECIDED, STILL_KL, STILL_NORM = 1e-3, 1e-6, 1e-4  # of a dead policy: shares of the first entropy and norm; a KL
DEAD_SHARE = 0.2  # of the phases, at the least


@dataclass(frozen=True)
class Stages:
    """Smoothed returns: at first, at their best, at last. The very first phases are left out: only short episodes end there."""

    begin: float
    best: float
    end: float
    noise: float  # deviation of single phases from the smoothed curve
    rise: float  # from the first quarter to the last, in standard errors
    sprint: float  # what was gained in the very first phases

    @property
    def range(self) -> float:
        return self.best - min(self.begin, self.end)


def stages(columns: Columns) -> Stages | None:
    step, value = columns.curve("charts/episodic_return")
    if len(value) < 2 * FEW_PHASES:
        return None
    x, y = smooth(step, value)
    noise = max(float(np.std(value - np.interp(step, x, y))), ROUNDING * float(np.abs(value).max()), 1e-12)
    skipped, quarter = max(len(y) // 20, 1), len(value) // 4
    early, late = value[len(value) // 20 : quarter], value[-quarter:]
    error = float(np.hypot(early.std() / len(early) ** 0.5, late.std() / len(late) ** 0.5))
    return Stages(
        begin=float(y[skipped]),
        best=float(y[skipped:].max()),
        end=float(y[-skipped:].mean()),
        noise=noise,
        rise=float(late.mean() - early.mean()) / max(error, 1e-12),
        sprint=float(y[skipped] - y[0]),
    )


def improved(columns: Columns) -> bool:
    """Whether the return has risen by more than it jumps about. Yes, if that cannot be told."""
    found = stages(columns)
    if found is None:
        return True
    return found.rise > 4 or found.best - found.begin > 2 * found.noise or found.sprint > 10 * found.noise


def collapsed(found: Stages) -> bool:
    """Whether it rose, and then lost much of what it had gained."""
    lost = found.best - found.end
    return found.best - found.begin > 2 * found.noise and lost > max(COLLAPSE * found.range, 2 * found.noise)


def near_its_best(columns: Columns) -> bool:
    """Whether the return has risen and stayed up there."""
    found = stages(columns)
    return found is not None and improved(columns) and found.best - found.end < FLAT * found.range


def constant(columns: Columns) -> bool:
    """Whether every phase returned the same."""
    value = columns.curve("charts/episodic_return")[1]
    return len(value) > 0 and bool(np.ptp(value) <= ROUNDING * np.abs(value).max())


def dead_since(columns: Columns) -> int | None:
    """The phase from which on the policy has had no choice left and has not changed; None for one that lives. A Gaussian,
    whose entropy may be negative, is only asked whether it changes."""
    entropy, kl, norm = (columns[f"losses/{name}"] for name in ("entropy", "approx_kl", "grad_norm"))
    known = entropy[np.isfinite(entropy)]
    if len(known) == 0:
        return None
    first = norm[np.isfinite(norm)][:FEW_PHASES]
    still = kl <= STILL_KL if "losses/approx_kl" in columns else norm <= STILL_NORM * max(first.max(initial=0.0), 1e-30)
    if known.min() >= 0:
        still = still & (entropy <= DECIDED * known[0])
    alive = np.flatnonzero(~still)
    since = int(alive[-1]) + 1 if len(alive) else 0
    return since + 1 if columns.count - since >= max(FEW_PHASES, DEAD_SHARE * columns.count) else None
