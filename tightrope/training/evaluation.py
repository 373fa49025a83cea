"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import in_unit, plural
from ..logging.metrics import MEASURED
from ..types import Settings


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of the episodes of an evaluation."""

    returns: list[float]
    """Return of each episode."""
    lengths: list[int]
    """Length of each episode, in steps."""
    unfinished: int = 0
    """Number of episodes that were cut off before their end."""
    requested: int = 0
    """Number of episodes requested, if the time limit came before all of them ended; otherwise 0."""
    seconds: float = 0.0
    """The time limit in seconds, if it was reached."""
    favours_short: bool = False
    """Whether only the episodes that ended first are counted, which favours short ones."""
    games_cut: int = 0
    """Number of Atari games that were cut off at their step limit."""
    measured: float | None = None
    """Mean over all steps of what the task measures in its own unit, if it does."""
    unit: str = ""
    """That unit, such as "rad/s"."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        """Mean length of the episodes."""
        return float(np.mean(self.lengths))

    @property
    def own(self) -> str:
        """The score in the task's own unit, such as "11.8 rad/s"; empty if it has none."""
        return in_unit(self.measured, self.unit)

    @property
    def representative(self) -> bool:
        """Whether the mean estimates the score: not if the time limit came before the end of the first round."""
        return not self.requested or not (self.favours_short or self.unfinished == len(self.returns))

    def as_dict(self) -> Settings:
        """All results, as `tightrope eval --json` prints them."""
        return {
            "mean": self.mean, "std": self.std, "min": min(self.returns), "max": max(self.returns),
            "episodes": len(self.returns), "mean_length": self.mean_length, "returns": self.returns,
            "lengths": self.lengths, "unfinished": self.unfinished, "requested": self.requested or len(self.returns),
            "favours_short": self.favours_short, "games_cut": self.games_cut,
            **({} if self.measured is None else {"measured": self.measured, "unit": self.unit}),
        }  # fmt: skip

    @property
    def metrics(self) -> dict[str, float]:
        """The columns of an evaluation in a row of metrics."""
        row = {
            "eval/episodic_return": self.mean, "eval/episodic_length": self.mean_length, "eval/return_std": self.std,
            "eval/return_min": min(self.returns), "eval/return_max": max(self.returns), "eval/episodes": len(self.returns),
        }  # fmt: skip
        row |= {} if self.measured is None else {MEASURED: self.measured}
        return row if self.representative else {**row, "eval/cut_off": 1.0}

    @property
    def note(self) -> str:
        """A note on episodes that were cut off or not finished; empty if every episode ended by itself."""
        if self.requested:
            up = f"time was up after {self.seconds:g} s"
            if self.unfinished == len(self.returns):
                return f"{up} with none of {self.requested} episodes finished: these are the returns so far"
            only = ": the score is of those only"
            favoured = ", and short episodes are favoured" if self.favours_short else ""
            return f"{up} with {len(self.returns)} of {self.requested} episodes finished{only}{favoured}"
        if self.unfinished:
            return f"{self.unfinished} of them cut off after {max(self.lengths):,} steps, set max_episode_steps"
        if self.games_cut:
            circles = "a deterministic policy may repeat itself forever, sampling actions may end the game"
            return f"{self.games_cut} of them cut at the limit of {max(self.lengths):,} steps: {circles}"
        return ""

    def __str__(self) -> str:
        note = "".join(f"; {words}" for words in (self.own, self.note) if words)
        return (
            f"mean {self.mean:.2f}, std {self.std:.2f}, min {min(self.returns):.2f}, max {max(self.returns):.2f} "
            f"over {plural(len(self.returns), 'episode')} (mean length {self.mean_length:.1f}){note}"
        )
