"""population.html: the spread of a population, its best agents, scores over settings, and who has taken over from whom."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from ..errors import UsageError
from ..files import Place, Unreadable
from ..logging.metrics import RETURN, Columns, read_rows
from ..logging.report import html, write_page
from ..logging.report.charts import Chart, Plot, Trace, line, smoothed
from ..logging.report.html import NO_NUMBER, format_number, section, short_value, table, text
from ..logging.report.statistics import Curve
from ..training.run_directory import METRICS
from ..types import Settings
from .record import AgentRecord, PopulationRecord, agent_dir

PAGE = "population.html"
MAX_CURVES = 256  # agents whose curves are read
MAX_ROWS = 500  # agents in the table
BANDS = (("middle 90 %", 0.05, 0.95), ("middle half", 0.25, 0.75))
BLUE, ORANGE, GREY = "#3b82c4", "#e08a2e", "#8a8f99"
MARKER = {"color": BLUE, "size": 7, "opacity": 0.75}


def write_population_page(record: PopulationRecord, folder: Path, running: bool = False) -> Path:
    """Write the page of a population, and return its path. UsageError without plotly."""
    status = "ended" if record.round == record.rounds else "running" if running else "stopped"
    try:
        write_page(folder / PAGE, population_page(ShownPopulation(record, folder), status))
    except RuntimeError as error:  # no plotly
        raise UsageError(str(error)) from None
    return folder / PAGE


@dataclass(frozen=True)
class ShownPopulation:
    """What the page shows of a population."""

    record: PopulationRecord
    folder: Path

    @cached_property
    def agents(self) -> list[AgentRecord]:
        """The best first."""
        return self.record.ranked

    @property
    def best(self) -> AgentRecord:
        return self.agents[0]

    @cached_property
    def scored(self) -> list[AgentRecord]:
        return [agent for agent in self.agents if agent.score is not None]

    @cached_property
    def varied(self) -> list[tuple[str, bool]]:
        """The settings that vary, and whether by the logarithm."""
        entries = self.record.vary.items()
        return [(name, isinstance(entry, dict) and bool(entry.get("log"))) for name, entry in entries]

    @cached_property
    def curves(self) -> dict[int, Curve]:
        """The return in training of agents, evenly from the best to the worst, by their numbers."""
        read = self.agents[:: -(-len(self.agents) // MAX_CURVES)]
        found = {agent.number: training_curve(agent_dir(self.folder, agent.number)) for agent in read}
        return {number: curve for number, curve in found.items() if curve is not None}

    @property
    def round_axis(self) -> Settings:
        return axis("round", dtick=max(1, self.record.rounds // 10))

    @cached_property
    def donors(self) -> dict[tuple[int, int], int]:
        """Whose parameters an agent took over, by round and agent."""
        return {(one.round, one.agent): one.donor for one in self.record.lineage}

    @cached_property
    def ancestors(self) -> list[int]:
        """Whose parameters the best agent descends from, after 0, 1, ... rounds; the last is the agent itself."""
        found = [self.best.number]
        for round in range(self.record.round - 1, -1, -1):
            found.append(self.donors.get((round, found[-1]), found[-1]))
        return found[::-1]


def training_curve(run_dir: Path) -> Curve | None:
    """The smoothed return in training of a run; None if it has none."""
    try:
        columns = Columns(read_rows(Place(run_dir) / METRICS))
    except (Unreadable, OSError):
        return None
    x, y = smoothed(columns, RETURN)
    there = np.isfinite(y)
    return (x[there], y[there]) if there.sum() > 1 else None


def population_page(shown: ShownPopulation, status: str) -> str:
    """The whole page in one file."""
    record, drawn = shown.record, list[Trace]()
    varied = [[text(name), text(json.dumps(entry))] for name, entry in record.vary.items()]
    note = "Line: the median agent. Bands: the middle half and the middle 90 % of all agents. One that has ended counts on."
    parts = [
        population_header(shown, status),
        "<main>",
        section("spread", "The spread", spread_cards(shown, drawn), note),
        lineage_section(shown, drawn) if record.lineage else "",
        agent_table(shown),
        section("varied", "What varies", html.settings_table("What varies", ["setting", "where"], varied))
        if varied
        else "",
        "</main>",
        html.footer("Every agent is an ordinary run: evaluate, record, play, export or resume it by its directory."),
    ]
    return html.document(f"{record.env} {record.algo} population", parts, drawn, status == "running")


def population_header(shown: ShownPopulation, status: str) -> str:
    record, scores = shown.record, [agent.score for agent in shown.scored if agent.score is not None]
    states = [agent_status(agent, record.round) for agent in shown.agents]
    ended = sum(state in ("finished", "round done") for state in states)
    failed = sum(state.startswith("failed") for state in states)
    tiles = html.tiles([
        ("Best score", format_number(shown.best.score if scores else None), f"agent {shown.best.number}" if scores else ""),
        ("Median score", format_number(median(scores) if scores else None), f"of {len(scores)}"),
        ("Agents", f"{ended:,}", f"of {len(states):,} done"),
        ("Failed", f"{failed:,}", "their errors are in the table" if failed else ""),
        ("Round", f"{record.round}", f"of {record.rounds}"),
        ("Processor time", html.format_duration(sum(agent.seconds for agent in shown.agents)), "of all agents"),
    ])  # fmt: skip
    sub = f'{len(states)} agents · written {html.now()} <span id="age"></span>'
    kind = f"{record.algo.upper()} population"
    return html.page_header(record.env, kind, sub, (status, html.status_words(status)), "\n" + tiles)


def agent_status(agent: AgentRecord, rounds: int) -> str:
    if agent.failed:
        return f"failed: {agent.failed}"
    if agent.finished:
        return "finished"
    if agent.round == rounds > 0:
        return "round done"
    return "under way" if agent.steps else "waiting"


# figures ----------------------------------------------------------------------------------------------------------------


def spread_cards(shown: ShownPopulation, drawn: list[Trace]) -> str:
    """Curves, scores, and scores over settings. Figures are added to `drawn`."""
    cards = []
    if shown.curves:
        curves = curve_chart(shown).data()
        cards.append(add_card(drawn, curves, "curves", "Return", "In training, with sampled actions.", "wide"))
    if len(shown.scored) > 1:
        cards.append(add_card(drawn, scores_figure(shown), "scores", "Scores", "Of all agents."))
        for name, log in shown.varied:
            cards.append(add_card(drawn, setting_figure(shown, name, log), f"over-{name}", name, "Score over it."))
    return html.figures(cards) if cards else "<p>No agent has a curve yet.</p>"


def lineage_section(shown: ShownPopulation, drawn: list[Trace]) -> str:
    """The section about takeovers. Figures are added to `drawn`."""
    says = "A line is an agent; a line that goes up or down took over from where it began."
    cards = [add_card(drawn, lineage_figure(shown), "lineage", "Who descends from whom", says, "wide")]
    for name, log in shown.varied:
        rounds = rounds_figure(shown, name, log)
        cards.append(add_card(drawn, rounds, f"{name}-rounds", name, "Of each agent, round after round."))
    note = f"Orange: agent {shown.best.number}, the best, whose parameters began with agent {shown.ancestors[0]}."
    return section("lineage", "Exploit and explore", html.figures(cards) + takeover_table(shown.record), note)


def add_card(drawn: list[Trace], data: Trace, name: str, title: str, says: str, style: str = "tall") -> str:
    """The card of a chart or figure, whose data are added to `drawn`."""
    drawn.append(data)
    return html.figure(len(drawn) - 1, name, title, says, f"{title}: {says}", "population", style)


def plotly_figure(data: list[Trace], **layout: object) -> Trace:
    return {"figure": {"data": data, "layout": layout}}


def curve_chart(shown: ShownPopulation) -> Chart:
    """The median return over steps, with bands, and the best agent."""
    curves = [*shown.curves.values()]
    last = max(float(x[-1]) for x, _ in curves)
    steps = np.linspace(max(float(x[0]) for x, _ in curves), last, 200)
    values = np.stack([np.interp(steps, x, y) for x, y in curves])
    traces = []
    for name, low, high in BANDS:
        for kind, share in (("low", low), ("high", high)):
            traces.append(line(kind, steps, np.quantile(values, share, axis=0), name, 0))
    traces.append(line("mean", steps, np.median(values, axis=0), "median", 0) | {"legend": True})
    best = shown.curves.get(shown.best.number)
    if best is not None and shown.best.score is not None:
        traces.append(line("mean", *best, f"agent {shown.best.number}, the best", 1) | {"legend": True})
    return Chart(Plot("Return", (), "Of all agents, in training."), traces)


def scores_figure(shown: ShownPopulation) -> Trace:
    bars = {
        "type": "histogram", "x": [agent.score for agent in shown.scored], "marker": {"color": BLUE}, "nbinsx": 24,
        "hovertemplate": "%{y}<extra></extra>",
    }  # fmt: skip
    return plotly_figure([bars], xaxis=axis("score"), yaxis=axis("agents"), bargap=0.05)


def axis(title: str, **more: object) -> Settings:
    return {"title": {"text": title}, **more}


def setting_figure(shown: ShownPopulation, name: str, log: bool) -> Trace:
    x = [axis_value(agent.settings.get(name)) for agent in shown.scored]
    points = {
        "type": "scatter", "mode": "markers", "x": x, "y": [agent.score for agent in shown.scored], "marker": MARKER,
        "text": [f"agent {agent.number}" for agent in shown.scored],
        "hovertemplate": f"%{{text}}<br>{text(name)} %{{x}}<br>score %{{y:,.4~g}}<extra></extra>",
    }  # fmt: skip
    kind = "log" if log else "category" if any(isinstance(each, str) for each in x) else "linear"
    across = {"type": kind, **axis(text(name)), "exponentformat": "power" if log else "none"}
    return plotly_figure([points], xaxis=across, yaxis=axis("score"), showlegend=False)


def axis_value(value: object) -> object:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def lineage_figure(shown: ShownPopulation) -> Trace:
    """Each agent over the rounds; where it took over, its line comes from its donor's."""
    best = shown.ancestors
    grey, orange = ((list[float | None](), list[float | None]()) for _ in range(2))
    for number in range(len(shown.agents)):
        for round in range(shown.record.round):
            donor = shown.donors.get((round, number), number)
            x, y = orange if best[round + 1] == number and best[round] == donor else grey
            x += [round, round + (0.5 if donor != number else 0.0), round + 1, None]
            y += [donor, number, number, None]
    lines = [
        {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": color, "width": width}, "hoverinfo": "skip"}
        for (x, y), color, width in ((grey, GREY, 1), (orange, ORANGE, 2.5))
    ]  # fmt: skip
    return plotly_figure(lines, xaxis=shown.round_axis, yaxis=axis("agent"), showlegend=False)


def rounds_figure(shown: ShownPopulation, name: str, log: bool) -> Trace:
    """A setting of each agent over the rounds."""
    record, traces = shown.record, []
    first = {one.agent: one.before for one in reversed(record.lineage)}  # the settings at the beginning
    after = {(one.round, one.agent): one.after for one in record.lineage}
    for agent in reversed(shown.agents):  # the best on top
        value, values = first.get(agent.number, agent.settings).get(name), []
        for round in range(record.round):
            value = after.get((round, agent.number), {name: value})[name]
            values.append(axis_value(value))
        best = agent is shown.best
        style = {"color": ORANGE if best else GREY, "width": 2.5 if best else 1, "shape": "hv"}
        drawn = {"x": list(range(record.round + 1)), "y": [*values, *values[-1:]], "opacity": 1.0 if best else 0.5}
        traces.append({"type": "scatter", "mode": "lines", "line": style, "hoverinfo": "skip", **drawn})
    up = {"type": "log" if log else "-", "exponentformat": "power" if log else "none"}
    return plotly_figure(traces, xaxis=shown.round_axis, yaxis=up, showlegend=False)


# tables -----------------------------------------------------------------------------------------------------------------


def takeover_table(record: PopulationRecord) -> str:
    rows = [
        [str(one.round), str(one.agent), str(one.donor),
         *(text(f"{short_value(one.before.get(name))} \u2192 {short_value(one.after.get(name))}") for name in record.vary)]
        for one in reversed(record.lineage[-MAX_ROWS:])
    ]  # fmt: skip
    return table("Takeovers, the last first", ["round", "agent", "from", *map(text, record.vary)], rows)


def agent_table(shown: ShownPopulation) -> str:
    record = shown.record
    head = ["agent", "score", "steps", "status", "seed", *map(text, record.vary), "time"]
    rows = [
        [
            f'<a href="{text(agent_dir(Path(), agent.number))}/">{agent.number}</a>', format_number(agent.score),
            f"{agent.steps:,}", text(agent_status(agent, record.round)), str(agent.seed),
            *(text(short_value(agent.settings.get(name))) for name in record.vary),
            html.format_duration(agent.seconds) if agent.seconds else NO_NUMBER,
        ]
        for agent in shown.agents[:MAX_ROWS]
    ]  # fmt: skip
    note = (
        "The best first, by the greedy return. The best of many is partly luck: train its settings with other seeds before you "
        "believe the number."
    )
    command = shlex.join(["tightrope", "eval", str(agent_dir(shown.folder, shown.best.number))])
    content = (html.command_box(command) if shown.best.score is not None else "") + table("Agents", head, rows, [True])
    return section("agents", "Agents", content + html.more_note(len(shown.agents) - MAX_ROWS, "population.json"), note)
