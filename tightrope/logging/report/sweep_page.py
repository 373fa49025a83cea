"""The page of a sweep: what came out, the study's own figures, every trial."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .html import NOTHING, document, figure_of, section, table, text
from .run_page import REFRESH, clock, footer, shown

MOST_ROWS = 500


@dataclass(frozen=True)
class Drawn:
    """A figure as plotly takes it, made by somebody else."""

    name: str
    title: str
    says: str
    wide: bool = False
    group: str = "study"
    figure: dict[str, Any] = field(default_factory=dict)  # data, layout


@dataclass(frozen=True)
class TrialRow:
    """A trial, as much of it as a page shows."""

    number: int
    score: float | None
    complete: bool
    failed: bool
    how: str
    scores: list[float]
    settings: dict[str, Any]
    seconds: float | None
    worker: str


@dataclass(frozen=True)
class SweepRecord:
    """A sweep, as much of it as a page shows. No password is in it."""

    env: str
    algo: str
    name: str
    status: str  # running, ended, stopped
    done: int
    wanted: int
    seeds: list[int]
    steps: int
    storage: str
    command: str  # that trains the best settings
    best: TrialRow | None
    settings: list[tuple[str, Any, Any]]  # (name, best, usual)
    trials: list[TrialRow]
    figures: list[Drawn]
    searched: list[tuple[str, str]]  # (name, where)


def sweep_page(record: SweepRecord) -> str:
    """The whole page in one file."""
    study = [(i, one) for i, one in enumerate(record.figures) if one.group == "study"]
    slices = [(i, one) for i, one in enumerate(record.figures) if one.group == "slices"]
    parts = [
        header(record),
        "<main>",
        best_settings(record),
        section("study", "The study", figures(study), "Drawn by Optuna. Drag to zoom, double-click to see everything.")
        if study
        else section("study", "The study", "<p>No trial has come to its end yet.</p>"),
        section(
            "slices", "One setting at a time", figures(slices), "Score over each setting, the most important first."
        )
        if slices
        else "",
        trial_table(record),
        about(record),
        "</main>",
        footer("A trial's score is the mean of its seeds' last greedy evaluations."),
    ]
    data = {
        "charts": [{"figure": one.figure} for one in record.figures],
        "live": record.status == "running",
        "written": time.time(),
        "every": REFRESH,
    }
    return document(f"{record.env} {record.algo} sweep", "\n".join(parts), data)


def header(record: SweepRecord) -> str:
    words = {"ended": "finished"}.get(record.status, record.status)
    return f"""<header class="top">
<div class="bar"><h1>{text(record.env)} <small>{text(record.algo.upper())} sweep</small></h1>
<span class="pill {text(record.status)}" id="status">{text(words)}</span>
<button id="theme" class="push" type="button" aria-label="dark colours">Dark</button></div>
<p class="sub">{text(record.name)} · written {text(time.strftime("%Y-%m-%d %H:%M:%S"))} <span id="age"></span></p>
{tiles(record)}
</header>"""


def tiles(record: SweepRecord) -> str:
    best, ended = record.best, [trial for trial in record.trials if not trial.failed]
    early = sum(not trial.complete and trial.seconds is not None for trial in ended)
    lost = sum(trial.failed for trial in record.trials)
    seconds = sum(trial.seconds or 0.0 for trial in record.trials)
    workers = len({trial.worker for trial in record.trials if trial.worker})
    cells = [
        ("Best score", figure_of(None if best is None else best.score), "" if best is None else f"trial {best.number}"),
        ("Trials", f"{record.done:,}", f"of {record.wanted:,}"),
        ("Given up early", f"{early:,}", "below the median, or diverged"),
        ("Done again", f"{lost:,}", "stopped, or their process died"),
        ("Seeds per trial", f"{len(record.seeds)}", f"{record.steps:,} steps each"),
        ("Time", clock(seconds), f"of {workers} process{'es' if workers != 1 else ''}"),
    ]
    inside = "".join(f'<div class="tile"><dt>{a}</dt><dd>{b}<small>{c}</small></dd></div>' for a, b, c in cells)
    return f'<dl class="tiles">{inside}</dl>'


def best_settings(record: SweepRecord) -> str:
    if record.best is None:
        return section("best", "The best settings", "<p>No trial has come to its end yet.</p>")
    rows = [[text(name), text(brief(value)), text(brief(usual))] for name, value, usual in record.settings]
    copy = '<button class="copy" type="button">Copy</button>'
    command = f'<div class="command"><code>{text(record.command)}</code>{copy}</div>'
    marked = [value != usual for _, value, usual in record.settings]
    content = (
        f'{command}<div class="settings">{table("The best settings", ["setting", "best", "usual"], rows, marked)}</div>'
    )
    scores = ", ".join(figure_of(score) for score in record.best.scores)
    note = (
        f"Trial {record.best.number}; its seeds scored {scores}. The best of many is partly luck: train it with seeds that "
        "took no part before you believe the number."
    )
    return section("best", "The best settings", content, note)


def figures(drawn: Sequence[tuple[int, Drawn]]) -> str:
    """Those that are wide by themselves, the others beside each other."""
    rows: list[str] = []
    narrow: list[str] = []
    for number, one in drawn:
        label, size = text(f"{one.title}: {one.says}"), "" if one.group == "slices" else " tall"
        card = (
            f'<figure class="chart card{" wide main" if one.wide else ""}" id="{text(one.name)}">'
            f"<figcaption><h3>{text(one.title)}</h3><p>{text(one.says)}</p></figcaption>"
            f'<div class="plot{size}" data-chart="{number}" data-part="{text(one.name)}" role="img" aria-label="{label}"></div>'
            "</figure>"
        )
        if one.wide:
            rows += [beside(narrow)] if narrow else []
            rows.append(card)
            narrow = []
        else:
            narrow.append(card)
    return "".join([*rows, beside(narrow) if narrow else ""])


def beside(cards: Sequence[str]) -> str:
    return f'<div class="grid main">{"".join(cards)}</div>'


def trial_table(record: SweepRecord) -> str:
    """The best first; what was done again comes last."""
    ordered = sorted(
        record.trials, key=lambda t: (t.failed, not t.complete, -(t.score if t.score is not None else -1e300))
    )
    names = [name for name, _ in record.searched]
    head = ["trial", "score", "seeds", "how it ended", "time", *map(text, names), "process"]
    rows = [
        [
            str(trial.number),
            figure_of(trial.score),
            ", ".join(figure_of(score) for score in trial.scores) or NOTHING,
            f'<span title="{text(trial.how)}">{text(trial.how if len(trial.how) < 40 else trial.how[:38] + "...")}</span>',
            NOTHING if trial.seconds is None else clock(trial.seconds),
            *(text(brief(trial.settings[name])) if name in trial.settings else NOTHING for name in names),
            text(trial.worker),
        ]
        for trial in ordered[:MOST_ROWS]
    ]
    marks = [record.best is not None and trial.number == record.best.number for trial in ordered]
    more = (
        f'<p class="note">The other {len(ordered) - MOST_ROWS} are in the storage.</p>'
        if len(ordered) > MOST_ROWS
        else ""
    )
    return section("trials", "Trials", table("Trials", head, rows, marks) + more)


def about(record: SweepRecord) -> str:
    rows = [[text(name), text(where)] for name, where in record.searched]
    facts = {"study": record.name, "storage": record.storage, "seeds": " ".join(map(str, record.seeds))}
    listed = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items())
    space = f'<div class="settings">{table("What was searched", ["setting", "where"], rows)}</div>'
    return section(
        "searched", "What was searched", f'{space}<div class="card main"><dl class="facts">{listed}</dl></div>'
    )


def brief(value: Any) -> str:
    """Three digits of what was drawn at random are enough."""
    return f"{value:.3g}" if isinstance(value, float) else shown(value)
