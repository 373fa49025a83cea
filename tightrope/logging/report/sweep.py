"""The page of a sweep: the best settings, the figures of the study, every trial."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types import Settings
from . import html
from .html import NO_NUMBER, format_number, format_setting, section, settings_table, table, text

MAX_TRIALS = 500
NOTHING_YET = "<p>No trial has come to its end yet.</p>"


@dataclass(frozen=True)
class SweepFigure:
    """A plotly figure, made by Optuna."""

    name: str
    title: str
    says: str
    wide: bool = False
    group: str = "study"
    figure: Settings = field(default_factory=dict)  # data, layout


@dataclass(frozen=True)
class TrialRow:
    """The data of a trial."""

    number: int
    score: float | None
    complete: bool
    failed: bool
    how: str
    scores: list[float]
    settings: Settings
    seconds: float | None
    worker: str
    own: str = ""  # the score in the task's own unit

    @property
    def score_text(self) -> str:
        """Such as '423.2 (11.8 rad/s)', as HTML."""
        return format_number(self.score) + (f" ({text(self.own)})" if self.own and self.score is not None else "")


@dataclass(frozen=True)
class SweepRecord:
    """The data of a sweep's page. It contains no password."""

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
    settings: list[tuple[str, object, object]]  # (name, best, usual)
    trials: list[TrialRow]
    figures: list[SweepFigure]
    searched: list[tuple[str, str]]  # (name, where)


def sweep_page(record: SweepRecord) -> str:
    """The whole page in one file."""
    cards: dict[str, list[str]] = {"study": [], "slices": []}
    for i, one in enumerate(record.figures):
        style = "wide" if one.wide else "tall" if one.group == "study" else ""
        label = f"{one.title}: {one.says}"
        cards[one.group].append(html.figure(i, one.name, one.title, one.says, label, one.name, style))
    study, slices = cards["study"], cards["slices"]
    drawn = "Drawn by Optuna. Drag to zoom, double-click to see everything."
    each = "Score over each setting, the most important first."
    parts = [
        sweep_header(record),
        "<main>",
        best_settings(record),
        section("study", "The study", html.figures(study) if study else NOTHING_YET, drawn if study else ""),
        section("slices", "One setting at a time", html.figures(slices), each) if slices else "",
        trial_table(record),
        searched(record),
        "</main>",
        html.footer("A trial's score is the mean of its seeds' last greedy evaluations."),
    ]
    charts = [{"figure": one.figure} for one in record.figures]
    return html.document(f"{record.env} {record.algo} sweep", parts, charts, record.status == "running")


def sweep_header(record: SweepRecord) -> str:
    status = {"ended": "finished"}.get(record.status, record.status)
    sub = f'{text(record.name)} · written {html.now()} <span id="age"></span>'
    kind, pill = f"{record.algo.upper()} sweep", (record.status, status)
    return html.page_header(record.env, kind, sub, pill, "\n" + sweep_tiles(record))


def sweep_tiles(record: SweepRecord) -> str:
    best, ended = record.best, [trial for trial in record.trials if not trial.failed]
    early = sum(not trial.complete and trial.seconds is not None for trial in ended)
    lost = sum(trial.failed for trial in record.trials)
    seconds = sum(trial.seconds or 0.0 for trial in record.trials)
    workers = len({trial.worker for trial in record.trials if trial.worker})
    which = "" if best is None else f"{text(best.own)}; " * bool(best.own) + f"trial {best.number}"
    cells = [
        ("Best score", format_number(None if best is None else best.score), which),
        ("Trials", f"{record.done:,}", f"of {record.wanted:,}"),
        ("Given up early", f"{early:,}", "below the median, or diverged"),
        ("Done again", f"{lost:,}", "stopped, or their process died"),
        ("Seeds per trial", f"{len(record.seeds)}", f"{record.steps:,} steps each"),
        ("Time", html.format_duration(seconds), f"of {workers} process{'es' if workers != 1 else ''}"),
    ]
    return html.tiles(cells)


def best_settings(record: SweepRecord) -> str:
    if record.best is None:
        return section("best", "The best settings", NOTHING_YET)
    rows = [[text(name), text(short_value(value)), text(short_value(usual))] for name, value, usual in record.settings]
    marked = [value != usual for _, value, usual in record.settings]
    content = settings_table("The best settings", ["setting", "best", "usual"], rows, marked)
    scores = ", ".join(format_number(score) for score in record.best.scores)
    note = (
        f"Trial {record.best.number}; its seeds scored {scores}. The best of many is partly luck: train it with seeds that "
        "took no part before you believe the number."
    )
    return section("best", "The best settings", html.command_box(record.command) + content, note)


def trial_table(record: SweepRecord) -> str:
    """The best first, trials that were done again last."""
    ordered = sorted(record.trials, key=lambda t: (t.failed, not t.complete, t.score is None, -(t.score or 0.0)))
    names = [name for name, _ in record.searched]
    head = ["trial", "score", "seeds", "how it ended", "time", *map(text, names), "process"]
    rows = [
        [
            str(trial.number),
            trial.score_text,
            ", ".join(format_number(score) for score in trial.scores) or NO_NUMBER,
            f'<span title="{text(trial.how)}">{text(trial.how if len(trial.how) < 40 else trial.how[:38] + "...")}</span>',
            NO_NUMBER if trial.seconds is None else html.format_duration(trial.seconds),
            *(text(short_value(trial.settings[name])) if name in trial.settings else NO_NUMBER for name in names),
            text(trial.worker),
        ]
        for trial in ordered[:MAX_TRIALS]
    ]
    marks = [record.best is not None and trial.number == record.best.number for trial in ordered]
    left = len(ordered) - MAX_TRIALS
    more = f'<p class="note">The other {left} are in the storage.</p>' if left > 0 else ""
    return section("trials", "Trials", table("Trials", head, rows, marks) + more)


def searched(record: SweepRecord) -> str:
    rows = [[text(name), text(where)] for name, where in record.searched]
    facts = {"study": record.name, "storage": record.storage, "seeds": " ".join(map(str, record.seeds))}
    space = settings_table("What was searched", ["setting", "where"], rows)
    return section("searched", "What was searched", f'{space}<div class="card main">{html.facts_list(facts)}</div>')


def short_value(value: object) -> str:
    """Numbers that were drawn at random, with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else format_setting(value)
