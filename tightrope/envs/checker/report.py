"""Findings about an environment, and the report that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...errors import plural

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """One problem of an environment, and how to fix it."""

    level: Level
    check: str
    message: str
    fix: str


@dataclass
class Report:
    """The findings about one environment, and facts such as the lengths of its episodes."""

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
        """Add a finding, once per check: further ones are mostly consequences of the first."""
        if not self.has(check):
            self.findings.append(Finding(level, check, message, fix))

    def lines(self) -> list[str]:
        """The report as text, errors first."""
        lines = [self.name, *(f"  {name:<12} {text}" for name, text in fact_lines(self.facts)), ""]
        for level in LEVELS:
            for finding in self.of(level):
                lines += [f"{level:<8} {finding.check}: {finding.message}", f"{'':<8} fix: {finding.fix}"]
        total = ", ".join(plural(len(self.of(level)), level) for level in LEVELS)
        return [*lines, f"{total}. {'Nothing here prevents training.' if self.ok else 'Fix the errors first.'}"]


def fact_lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, text) of each fact there is."""
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
    for name, reason in (("checks", ""), ("unfinished", " (it broke)"), ("skipped", " (its time was over)")):
        if facts.get(name):
            yield name, ", ".join(facts[name]) + reason
