"""Findings and the report that holds them, in words."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

from ...errors import plural
from ..host import one_line
from ..spaces import space_in_words

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """One thing about an environment that someone should know."""

    level: Level
    check: str
    message: str
    fix: str


@dataclass
class Report:
    """What a check saw of an environment."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.of("error")

    def of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    def has(self, check: str) -> bool:
        return any(finding.check == check for finding in self.findings)

    def add(self, level: Level, check: str, message: str, fix: str) -> None:
        """A finding, once per check: what comes after the first is mostly its consequence."""
        if not self.has(check):
            self.findings.append(Finding(level, check, message, fix))

    def lines(self) -> list[str]:
        """The report in words, the worst first."""
        lines = [self.name, *(f"  {name:<12} {words}" for name, words in in_words(self.facts)), ""]
        for level in LEVELS:
            for finding in self.of(level):
                lines += [f"{level:<8} {finding.check}: {finding.message}", f"{'':<8} fix: {finding.fix}"]
        total = ", ".join(plural(len(self.of(level)), level) for level in LEVELS)
        return [*lines, f"{total}. {'Nothing here stops a training.' if self.ok else 'Mend the errors first.'}"]


def in_words(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values of the facts there are."""
    for name in ("engine", "observation", "action"):
        if name in facts:
            yield name, str(facts[name])
    if "steps" in facts:
        early = ", then its time was over" if facts["stopped_early"] else ""
        yield "play", f"{plural(facts['steps'], 'random step')}, {plural(facts['episodes'], 'episode')} ended{early}"
    if facts.get("episodes"):
        yield "length", "{episode_length:.1f} steps on average, {shortest:,} to {longest:,}".format(**facts)
    if "reward_mean" in facts:
        form = "mean {reward_mean:.4g}, std {reward_std:.4g}, {reward_min:.4g} to {reward_max:.4g}"
        yield "reward", form.format(**facts)
    if "steps_per_second" in facts:
        spent = f", {facts['reset_share']:.0%} of the time in resets" if facts.get("reset_share", 0) >= 0.01 else ""
        yield "speed", f"{facts['steps_per_second']:,.0f} steps/s of the environment alone{spent}"
    for name, why in (("checks", ""), ("unfinished", " (it broke)"), ("skipped", " (its time was over)")):
        if facts.get(name):
            yield name, ", ".join(facts[name]) + why


def brief(thing: Any) -> str:
    """A thing's own words, on one line that is not too long."""
    words = " ".join(space_in_words(thing).split())
    return words if len(words) <= 100 else words[:97] + "..."


def described(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, (dict, tuple, list)):
        held = list(value) if isinstance(value, dict) else len(value)
        return f"a {type(value).__name__} of {held}"
    return "None" if value is None else f"{type(value).__name__} {brief(value)}"


def raised(error: BaseException) -> str:
    """What was raised, and the line that did it: one of the user's if one took part."""
    words = f"{type(error).__name__}: {one_line(error)}"
    while error.__cause__ is not None:
        error = error.__cause__
    here = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent != here]
    libraries = ("site-packages", sysconfig.get_paths()["stdlib"])
    own = [frame for frame in frames if not any(library in frame.filename for library in libraries)] or frames
    if not own:
        return words
    path = Path(own[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{words} ({shown}:{own[-1].lineno})"
