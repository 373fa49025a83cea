"""The page of one run, and the callback that updates it during training."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from ...errors import warn
from ...files import Place, Unreadable
from ...types import Settings
from ..callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from ..metrics import Columns, read_rows
from . import html
from .charts import Chart, charts, main_charts
from .data import RunFiles, RunRecord, RunStatus, ScoreRecord, end_status
from .health import health_findings
from .html import NO_NUMBER, REFRESH, format_number, format_setting, section, sentence, settings_table, table, text
from .outcome import HealthFinding, return_at_the_end

REPORT, ABOUT = "report.html", "about.json"
TRAINING_SHARE = 200  # seconds of training per second of writing
FIRST_SECONDS = 5.0  # until the first page
EMBEDDED = 6 << 20  # bytes of videos inside a page; further ones are linked
MAX_LINKS = 24  # to further videos
MAX_VIDEOS = 6  # shown: the first, the last and some between
LISTED = 200  # videos, evaluations and checkpoints, at most


def run_page(record: RunRecord, beside: Path) -> str:
    """The whole page. `beside` is the directory that it will be written to, from which its links lead."""
    main, others = main_charts(record), charts(record.columns)
    drawn = [*main, *others]
    info, judged = record.info, (record.last_score, record.last_error)
    verdict, *found = health_findings(record.columns, info.settings, info.target, *judged)
    parts = [
        header(record, verdict),
        "<main>",
        section("health", "Health check", findings(found, record.columns)) if found else "",
        curves(drawn, wide=len(main)),
        html.play_section(record.files.play),
        videos(spread([(video.place, record.label(video)) for video in record.files.videos]), beside),
        evaluations(record.scores),
        settings(record),
        reproduce(record),
        checkpoints(record),
        "</main>",
        html.footer("Drag across a curve to zoom, all follow; double-click to see everything again."),
    ]
    title = f"{record.info.title} · {record.name}"
    return html.document(title, parts, [chart.data() for chart in drawn], record.status.kind == "running")


def header(record: RunRecord, verdict: HealthFinding) -> str:
    name, _, algo = record.info.title.rpartition(" ")
    kind = record.status.kind
    style = "bad" if kind in ("not finite", "failed") else kind
    details = f'<p class="sub">{sentence(record.status.details)}</p>' if record.status.details else ""
    share = min(record.steps / max(record.info.total_steps, 1), 1.0)
    progress = f'<progress value="{share:.4f}" aria-label="progress"></progress>' if kind == "running" else ""
    return html.page_header(
        name or algo,
        algo.upper() if name else "",
        f'{text(record.name)} · written {html.now()} <span id="age"></span>',
        (style, record.status.name),
        f"{details}\n{progress}{banner(verdict, record.columns)}{summary_tiles(record)}",
    )


def banner(verdict: HealthFinding, columns: Columns) -> str:
    """How the run ended, before anything else."""
    headline = f"<strong>{text(verdict.headline)}</strong>"
    return f'<div class="verdict {verdict.level}" id="verdict">{headline}<p>{finding_text(verdict, columns)}</p></div>'


def summary_tiles(record: RunRecord) -> str:
    columns, scores = record.columns, record.scores
    cells: list[tuple[str, str, str]] = []
    if scores:
        last, best = scores[-1], max(scores, key=lambda score: score.mean)
        spread = f"± {format_number(last.std, 3)} over {last.episodes} episodes" if last.std is not None else "greedy"
        own = f"{text(last.own)}; " if last.own else ""
        cells.append(("Score", format_number(last.mean), f"{own}{spread}"))
        if best.mean > last.mean:
            own = f"{text(best.own)}; " if best.own else ""
            cells.append(("Best score", format_number(best.mean), f"{own}at {best.step:,} steps"))
    end, other = return_at_the_end(columns), record.info.settings.get("train_env")
    if end is not None:
        cells.append(("Return in training", format_number(end), f"of {text(other)}" if other else "sampled actions"))
    total = record.info.total_steps
    cells.append(("Steps", f"{record.steps:,}", f"of {total:,}" if total > record.steps else ""))
    cells.append(("Time", html.format_duration(columns.last("time") or 0.0), "evaluations included"))
    cells.append(("Speed", format_number(columns.last("charts/SPS"), 3), "steps per second"))
    return html.tiles(cells)


def findings(found: Sequence[HealthFinding], columns: Columns) -> str:
    words = {"good": "Good.", "note": "Note.", "warning": "Look at this."}
    items = [
        f'<li class="{one.level}"><strong>{words[one.level]}</strong> {finding_text(one, columns)}</li>'
        for one in found
    ]
    return f'<ul class="findings">{"".join(items)}</ul>'


def finding_text(finding: HealthFinding, columns: Columns) -> str:
    advice = f' <span class="advice">{sentence(finding.advice)}</span>' if finding.advice else ""
    link = f' <a href="#{anchor(finding.tag)}">See the curve</a>' if finding.tag in columns else ""
    return f"{sentence(finding.what)}{advice}{link}"


def anchor(tag: str) -> str:
    return "curve-" + "".join(letter if letter.isalnum() else "-" for letter in tag)


def curves(drawn: Sequence[Chart], part: str = "", first: int = 0, note: str = "", wide: int = 1) -> str:
    """The first `wide` charts take the whole width. `first` is the number of the first one on the page."""
    cards = []
    for i, chart in enumerate(drawn):
        plot, name = chart.plot, f"{part}{anchor(chart.plot.tags[0])}"
        says = plot.says + (" The axis is logarithmic." if chart.log else "")
        cards.append(html.figure(first + i, name, plot.title, says, chart.summary, part, "" if i >= wide else "wide"))
    note = note or "Over environment steps. Faint: as measured. Strong: smoothed. Dotted: no episode ended."
    return section(f"{part}curves", "Learning curves", html.figures(cards), note)


Labelled = tuple[Place, str]  # a video and its caption


def spread(found: Sequence[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """(those to show, the others) of the videos of a run, in their order: the first, the last and some between."""
    there = [one for one in found[:LISTED] if one[0].is_file()]
    count = min(len(there), MAX_VIDEOS)
    chosen = {round(i * (len(there) - 1) / max(count - 1, 1)) for i in range(count)}
    return [there[i] for i in sorted(chosen)], [one for i, one in enumerate(there) if i not in chosen]


def videos(found: tuple[list[Labelled], list[Labelled]], beside: Path, name: str = "videos") -> str:
    """The section with videos: (those to show, those to link to). Small ones are embedded in the page, the last and the first
    before others; larger ones are files beside it."""
    shown, others = found
    if not shown:
        return ""
    sources, left = dict[int, str](), EMBEDDED
    for i in sorted(range(len(shown)), key=lambda i: (i != len(shown) - 1, i)):
        place = shown[i][0]
        try:
            content = place.read(left)
            sources[i], left = f"data:video/mp4;base64,{base64.b64encode(content).decode()}", left - len(content)
        except Unreadable:  # larger than what is left
            sources[i] = link(place.path, beside)
    cards = [
        f'<figure class="card"><video controls loop muted playsinline preload="metadata" src="{sources[i]}" '
        f'aria-label="{text(label)}"></video><figcaption>{text(label)}</figcaption></figure>'
        for i, (_, label) in enumerate(shown)
    ]
    linked = ", ".join(f'<a href="{link(place.path, beside)}">{text(label)}</a>' for place, label in others[:MAX_LINKS])
    rest = f" and {len(others) - MAX_LINKS:,} others" if len(others) > MAX_LINKS else ""
    more = f'<p class="note">More, as files beside this page: {linked}{rest}</p>' if others else ""
    return section(name, "Videos", f'<div class="videos">{"".join(cards)}</div>{more}')


def link(path: Path, beside: Path) -> str:
    """Relative to the page, quoted: a name may contain anything."""
    return text(quote(os.fsencode(Path(os.path.relpath(path, beside)).as_posix())))


def evaluations(scores: Sequence[ScoreRecord]) -> str:
    if not scores:
        return ""
    best, unit = max(range(len(scores)), key=lambda i: scores[i].mean), any(score.own for score in scores)

    def cells(score: ScoreRecord) -> list[str]:
        spread = f"{format_number(score.low)} to {format_number(score.high)}" if score.low is not None else NO_NUMBER
        numbers = [format_number(score.mean), format_number(score.std, 3), spread, format_number(score.length)]
        numbers += [text(score.own) or NO_NUMBER] * unit
        return [f"{score.step:,}", *numbers, f"{score.episodes:,}" if score.episodes else NO_NUMBER]

    order = list(reversed(range(len(scores))))[:LISTED]
    head = ["steps", "mean return", "deviation", "range", "mean length", *["own unit"] * unit, "episodes"]
    content = table("Evaluations", head, [cells(scores[i]) for i in order], [i == best for i in order])
    return section("evaluations", "Evaluations", content, "Greedy, on fresh environments. The best is highlighted.")


def settings(record: RunRecord) -> str:
    """Settings that differ from the usual ones, then all of them."""
    given, usual = record.info.settings, record.files.usual
    different = [name for name in given if name in usual and given[name] != usual[name]]
    changed = [[text(n), text(format_setting(given[n])), text(format_setting(usual[n]))] for n in different]
    every = [[text(name), text(format_setting(value))] for name, value in given.items()]
    first = "<p>All as the preset or the defaults have it.</p>"
    if different:
        first = settings_table("Settings that were chosen", ["setting", "value", "instead of"], changed)
    all_of_them = settings_table("All settings", ["setting", "value"], every, [name in different for name in given])
    details = f"<details><summary>All {len(given)} settings</summary>{all_of_them}</details>"
    note = "What differs from the preset, or from the defaults where there is none." if different else ""
    return section("settings", "Settings", first + details, note)


def reproduce(record: RunRecord) -> str:
    command = html.command_box(record.files.command) if record.files.command else ""
    plan = "".join(f"<p>{sentence(line)}</p>" for line in record.info.plan)
    content = f'{command}<div class="card">{html.facts_list(record.info.facts)}<div class="note">{plan}</div></div>'
    return section("again", "Make it again", content, "On the same machine the same command gives the same numbers.")


def checkpoints(record: RunRecord) -> str:
    found = record.files.checkpoints
    if not found:
        return ""
    best = max((one.score for one in found if one.score is not None), default=None)
    rows = [[text(one.name), f"{one.steps:,}", format_number(one.score)] for one in found[:LISTED]]
    marks = [one.score is not None and one.score == best for one in found]
    content = table("Checkpoints", ["checkpoint", "steps", "kept for its score"], rows, marks)
    note = f"<code>tightrope eval {text(record.info.run_dir)}</code> scores the newest one again."
    return section("checkpoints", "Checkpoints", content, note)


# during training ------------------------------------------------------------------------------------------------------


class ReportWriter(Callback):
    """Updates the page of a run during training. `find(run_dir)` collects the data of its directory."""

    name, may_fail = "the report", True

    def __init__(self, find: Callable[[Path], RunFiles], seconds: float = REFRESH) -> None:
        self.find, self.seconds = find, seconds
        self.columns = Columns()
        self.info_written = self.failing = False

    def on_start(self, run: RunInfo) -> None:
        assert run.run_dir is not None
        self.info, self.run_dir = run, run.run_dir
        self.columns = Columns(read_rows(Place(self.run_dir) / "metrics.jsonl"))  # of a run that is resumed
        self._try(lambda: None)
        threading.Thread(target=pack_quietly, daemon=True).start()  # it takes a while
        self.due = time.monotonic() + min(self.seconds, FIRST_SECONDS)

    def on_phase(self, row: MetricsRow) -> None:
        self.columns.add(row)

    def on_update(self, state: StateView) -> None:
        if time.monotonic() >= self.due:
            self.write(RunStatus("running"))

    def on_end(self, result: TrainingResult) -> None:
        self.write(end_status(result, self.info, self.columns))

    def write(self, status: RunStatus) -> None:
        began = time.monotonic()
        record = RunRecord(self.info, self.columns, status, self.find(self.run_dir))
        self._try(lambda: write_page(self.run_dir / REPORT, run_page(record, self.run_dir)))
        now = time.monotonic()
        self.due = now + max(self.seconds, TRAINING_SHARE * (now - began))

    def _try(self, write: Callable[[], None]) -> None:
        """An error of the disk is reported once; the page is tried again when it is next due."""
        try:
            if not self.info_written:
                write_info(self.info)
                self.info_written = True
            write()
            self.failing = False
        except OSError as error:
            if not self.failing:
                warn(f"{self.run_dir / REPORT} cannot be written ({error.strerror or error}): another attempt follows")
            self.failing = True


def write_page(path: Path, page: str) -> None:
    """Atomically. It does not wait for the disk: a report can always be made again."""
    Place.of(path).write(page.encode("utf-8", "replace"), wait=False)


def write_info(info: RunInfo) -> None:
    """Write what only the training process knows, for a later report."""
    assert info.run_dir is not None
    content: Settings = {name: getattr(info, name) for name in ("plan", "facts", "total_steps", "traits", "unit")}
    content["target"] = None if info.target is None else asdict(info.target)
    write_page(info.run_dir / ABOUT, json.dumps(content, indent=1) + "\n")


def pack_quietly() -> None:
    """On a thread of its own; the page that needs the library raises the error again."""
    with suppress(Exception):
        html.packed_library()
