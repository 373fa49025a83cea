"""The page of one run."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...files import Place, Unreadable
from .charts import RETURN, Chart, charts, main_chart
from .health import health
from .html import NOTHING, document, figure_of, section, table, text
from .outcome import Finding
from .record import RunRecord, Score
from .statistics import smooth

REFRESH = 30  # seconds, of a run under way
EMBEDDED = 6 << 20  # bytes of videos inside of a page; more of them are linked
SHOWN = 6  # videos; the newest
LISTED = 200  # videos and checkpoints, at most


def run_page(record: RunRecord, beside: Path) -> str:
    """The whole page, to be written into the directory `beside`, from where its links lead."""
    drawn = [main_chart(record), *charts(record.columns)]
    live = record.status.kind == "running"
    parts = [
        header(record),
        "<main>",
        section("health", "Health check", findings(record)),
        curves(drawn),
        videos([(clip.place, record.label(clip)) for clip in record.found.clips][::-1], beside),
        evaluations(record.scores),
        settings(record),
        reproduce(record),
        checkpoints(record),
        "</main>",
        footer("Drag across a curve to zoom, all follow; double-click to see everything again."),
    ]
    data = {"charts": [chart.data() for chart in drawn], "live": live, "written": time.time(), "every": REFRESH}
    return document(f"{record.about.title} · {record.name}", "\n".join(parts), data)


# head -----------------------------------------------------------------------------------------------------------------


def header(record: RunRecord) -> str:
    name, _, algo = record.about.title.rpartition(" ")
    kind = record.status.kind
    style = "bad" if kind in ("not finite", "failed") else kind
    words = f'<p class="sub">{text(record.status.words)}</p>' if record.status.words else ""
    share = min(record.steps / max(record.about.total_steps, 1), 1.0)
    progress = f'<progress value="{share:.4f}" aria-label="progress"></progress>' if kind == "running" else ""
    return f"""<header class="top">
<div class="bar"><h1>{text(name or algo)} <small>{text(algo.upper() if name else "")}</small></h1>
<span class="pill {style}" id="status">{text(record.status.name)}</span>
<button id="theme" class="push" type="button" aria-label="dark colours">Dark</button></div>
<p class="sub">{text(record.name)} · written {text(time.strftime("%Y-%m-%d %H:%M:%S"))} <span id="age"></span></p>{words}
{progress}{tiles(record)}
</header>"""


def tiles(record: RunRecord) -> str:
    """The numbers that people look for first."""
    columns, scores = record.columns, record.scores
    shown: list[tuple[str, str, str]] = []
    if scores:
        last, best = scores[-1], max(scores, key=lambda score: score.mean)
        spread = f"± {figure_of(last.std, 3)} over {last.episodes} episodes" if last.std is not None else "greedy"
        shown.append(("Score", figure_of(last.mean), spread))
        if best.mean > last.mean:
            shown.append(("Best score", figure_of(best.mean), f"at {best.step:,} steps"))
    step, value = columns.curve(RETURN)
    if len(value):
        shown.append(("Return in training", figure_of(float(smooth(step, value)[1][-1])), "sampled actions"))
    total = record.about.total_steps
    shown.append(("Steps", f"{record.steps:,}", f"of {total:,}" if total > record.steps else ""))
    shown.append(("Time", clock(columns.last("time") or 0.0), "evaluations included"))
    shown.append(("Speed", figure_of(columns.last("charts/SPS"), 3), "steps per second"))
    cells = "".join(
        f'<div class="tile"><dt>{title}</dt><dd>{number}<small>{note}</small></dd></div>'
        for title, number, note in shown
    )
    return f'<dl class="tiles">{cells}</dl>'


def clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def findings(record: RunRecord) -> str:
    words = {"good": "Good.", "note": "Note.", "warning": "Look at this."}

    def item(finding: Finding) -> str:
        advice = f' <span class="advice">{text(finding.advice)}</span>' if finding.advice else ""
        there = f' <a href="#{anchor(finding.tag)}">See the curve</a>' if finding.tag in record.columns else ""
        return f'<li class="{finding.level}"><strong>{words[finding.level]}</strong> {text(finding.what)}{advice}{there}</li>'

    found = health(record.columns, record.about.settings, record.about.target, record.last_score)
    return f'<ul class="findings">{"".join(map(item, found))}</ul>'


# body -----------------------------------------------------------------------------------------------------------------


def anchor(tag: str) -> str:
    return "curve-" + "".join(letter if letter.isalnum() else "-" for letter in tag)


def curves(drawn: Sequence[Chart]) -> str:
    """One wide chart, the others below it in a grid."""
    first, *others = (
        figure(chart, number, "chart card main wide" if number == 0 else "chart card")
        for number, chart in enumerate(drawn)
    )
    note = "Over environment steps. Faint: as measured. Strong: smoothed."
    return section("curves", "Learning curves", f'{first}<div class="grid">{"".join(others)}</div>', note)


def figure(chart: Chart, number: int, style: str, part: str = "") -> str:
    """`part` of the page: who zooms into a curve means those of the same part."""
    plot = chart.plot
    says = plot.says + (" The axis is logarithmic." if chart.log else "")
    return (
        f'<figure class="{style}" id="{part}{anchor(plot.tags[0])}"><figcaption><h3>{text(plot.title)}</h3><p>{text(says)}</p>'
        f'</figcaption><div class="plot" data-chart="{number}" data-part="{part}" role="img" '
        f'aria-label="{text(chart.summary)}"></div></figure>'
    )


def videos(clips: Sequence[tuple[Place, str]], beside: Path, name: str = "videos") -> str:
    """Of (place, label), those that matter most first; they are shown the other way round, as they were made. Small ones are
    in the page itself, to be sent around; others beside it."""
    there = [(place, label) for place, label in clips[:LISTED] if place.is_file()]
    if not there:
        return ""
    shown, left = [], EMBEDDED
    for place, label in there[:SHOWN]:
        try:
            content = place.read(left)
            source, left = f"data:video/mp4;base64,{base64.b64encode(content).decode()}", left - len(content)
        except Unreadable:  # too large for what is left
            source = link(place.path, beside)
        shown.append(
            f'<figure class="card"><video controls loop muted playsinline preload="metadata" src="{source}" '
            f'aria-label="{text(label)}"></video><figcaption>{text(label)}</figcaption></figure>'
        )
    others = ", ".join(f'<a href="{link(place.path, beside)}">{text(label)}</a>' for place, label in there[SHOWN:])
    more = f'<p class="note">More, as files beside this page: {others}</p>' if others else ""
    return section(name, "Videos", f'<div class="videos">{"".join(reversed(shown))}</div>{more}')


def link(path: Path, beside: Path) -> str:
    """As seen from the page. Quoted, since a name may hold anything."""
    return text(quote(os.fsencode(Path(os.path.relpath(path, beside)).as_posix())))


def evaluations(scores: Sequence[Score]) -> str:
    if not scores:
        return ""
    best = max(range(len(scores)), key=lambda i: scores[i].mean)

    def cells(score: Score) -> list[str]:
        spread = f"{figure_of(score.low)} to {figure_of(score.high)}" if score.low is not None else NOTHING
        numbers = [figure_of(score.mean), figure_of(score.std, 3), spread, figure_of(score.length)]
        return [f"{score.step:,}", *numbers, f"{score.episodes:,}" if score.episodes else NOTHING]

    order = list(reversed(range(len(scores))))[:200]
    head = ["steps", "mean return", "deviation", "range", "mean length", "episodes"]
    rows = [cells(scores[i]) for i in order]
    content = table("Evaluations", head, rows, [i == best for i in order])
    return section("evaluations", "Evaluations", content, "Greedy, on fresh environments. The best is highlighted.")


# what it was -------------------------------------------------------------------------------------------------------------


def settings(record: RunRecord) -> str:
    """What was chosen for this run, then everything."""
    given, usual = record.about.settings, record.found.usual
    different = [name for name in given if name in usual and given[name] != usual[name]]
    chosen = table(
        "Settings that were chosen",
        ["setting", "value", "instead of"],
        [[text(name), text(shown(given[name])), text(shown(usual[name]))] for name in different],
    )
    every = table(
        "All settings",
        ["setting", "value"],
        [[text(name), text(shown(value))] for name, value in given.items()],
        [name in different for name in given],
    )
    first = (
        f'<div class="settings">{chosen}</div>' if different else "<p>All as the preset or the defaults have it.</p>"
    )
    return section(
        "settings",
        "Settings",
        f'{first}<details><summary>All {len(given)} settings</summary><div class="settings">{every}</div></details>',
        "What differs from the preset, or from the defaults where there is none." if different else "",
    )


def shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or NOTHING
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items()) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None else str(value)


def reproduce(record: RunRecord) -> str:
    command = ""
    if record.found.command:
        copy = '<button class="copy" type="button">Copy</button>'
        command = f'<div class="command"><code>{text(record.found.command)}</code>{copy}</div>'
    plan = "".join(f"<p>{text(line)}</p>" for line in record.about.plan)
    facts = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in record.about.facts.items())
    content = f'{command}<div class="card"><dl class="facts">{facts}</dl><div class="note">{plan}</div></div>'
    return section("again", "Make it again", content, "On the same machine the same command gives the same numbers.")


def checkpoints(record: RunRecord) -> str:
    kept = record.found.kept
    if not kept:
        return ""
    best = max((one.score for one in kept if one.score is not None), default=None)
    rows = [[text(one.name), f"{one.steps:,}", figure_of(one.score)] for one in kept[:LISTED]]
    marks = [one.score is not None and one.score == best for one in kept]
    content = table("Checkpoints", ["checkpoint", "steps", "kept for its score"], rows, marks)
    run = text(record.about.run_dir)
    return section(
        "checkpoints", "Checkpoints", content, f"<code>tightrope eval {run}</code> scores the newest one again."
    )


def footer(words: str) -> str:
    return f"<footer><p>{text(words)} Made by Tightrope; this file needs no network and no server.</p></footer>"
