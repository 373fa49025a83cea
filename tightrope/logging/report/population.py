"""The page of a population: its spread, its best agents, scores over settings, and who has taken over from whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ...types import Settings
from . import html
from .charts import Chart, Plot, Trace, line
from .html import NO_NUMBER, format_number, section, settings_table, table, text
from .statistics import Curve
from .sweep import short_value

MAX_ROWS = 500  # agents in the table
BANDS = (("middle 90 %", 0.05, 0.95), ("middle half", 0.25, 0.75))
POINTS_OF_CURVE = 200
BLUE, ORANGE, GREY = "#3b82c4", "#e08a2e", "#8a8f99"
MARKER = {"color": BLUE, "size": 7, "opacity": 0.75}


@dataclass(frozen=True)
class AgentRow:
    """The data of an agent."""

    number: int
    seed: int
    settings: Settings  # the varied ones, at the end
    first: Settings  # the same at the beginning
    steps: int
    score: float | None
    status: str
    link: str  # relative path of its directory
    seconds: float


@dataclass(frozen=True)
class TakeoverRow:
    """One agent took over from another."""

    round: int
    agent: int
    donor: int
    before: Settings
    after: Settings


@dataclass(frozen=True)
class PopulationPage:
    """The data of a population's page."""

    env: str
    algo: str
    status: str  # running, ended, stopped
    steps: int  # of each agent
    round: int
    rounds: int
    varied: list[tuple[str, str, bool]]  # (name, where, whether by the logarithm)
    agents: list[AgentRow]  # the best first
    curves: list[Curve]  # (steps, return in training) of agents, as far as they are drawn
    best_curve: Curve | None
    takeovers: list[TakeoverRow] = field(default_factory=list)
    command: str = ""  # that scores the best agent


def population_page(page: PopulationPage) -> str:
    """The whole page in one file."""
    drawn = [curve_chart(page).data()] if page.curves else []
    cards = [card(0, "curves", "Return", "In training, with sampled actions.", "wide")] if page.curves else []
    shown = [(name, log) for name, _, log in page.varied if len(scored(page)) > 1]
    figures = [("scores", "Scores", "Of all agents.", scores_figure(page))] if len(scored(page)) > 1 else []
    figures += [(f"over-{name}", name, "Score over it.", setting_figure(page, name, log)) for name, log in shown]
    lineage = []
    if page.takeovers:
        says = "A line is an agent; a line that goes up or down took over from where it began."
        lineage = [("lineage", "Who descends from whom", says, lineage_figure(page))]
        lineage += [
            (f"{name}-rounds", name, "Of each agent, round after round.", rounds_figure(page, name, log))
            for name, _, log in page.varied
        ]
    spread = [*cards, *numbered(figures, drawn)]
    tree = html.figures(numbered(lineage, drawn)) + takeover_table(page) if lineage else ""
    note = "Line: the median agent. Bands: the middle half and the middle 90 % of all agents. One that has ended counts on."
    parts = [
        population_header(page),
        "<main>",
        section("spread", "The spread", html.figures(spread) if spread else "<p>No agent has a curve yet.</p>", note),
        section("lineage", "Exploit and explore", tree, lineage_note(page)) if tree else "",
        agent_table(page),
        varied_table(page),
        "</main>",
        html.footer("Every agent is an ordinary run: evaluate, record, play, export or resume it by its directory."),
    ]  # fmt: skip
    return html.document(f"{page.env} {page.algo} population", parts, drawn, page.status == "running")


def card(number: int, name: str, title: str, says: str, style: str = "tall") -> str:
    return html.figure(number, name, title, says, f"{title}: {says}", "population", style)


def numbered(figures: Sequence[tuple[str, str, str, Settings]], drawn: list[Trace]) -> list[str]:
    """Cards of figures, whose data are added to `drawn`."""
    cards = []
    for name, title, says, figure in figures:
        cards.append(card(len(drawn), name, title, says, "wide" if name == "lineage" else "tall"))
        drawn.append({"figure": figure})
    return cards


def population_header(page: PopulationPage) -> str:
    status = {"ended": "finished"}.get(page.status, page.status)
    sub = f'{len(page.agents)} agents · written {html.now()} <span id="age"></span>'
    return html.page_header(
        page.env, f"{page.algo.upper()} population", sub, (page.status, status), "\n" + tiles_of(page)
    )


def tiles_of(page: PopulationPage) -> str:
    scores = [agent.score for agent in page.agents if agent.score is not None]
    ended = sum(agent.status in ("finished", "round done") for agent in page.agents)
    failed = sum(agent.status.startswith("failed") for agent in page.agents)
    best = page.agents[0] if scores else None
    cells = [
        ("Best score", format_number(best.score if best else None), f"agent {best.number}" if best else ""),
        ("Median score", format_number(median(scores) if scores else None), f"of {len(scores)}"),
        ("Agents", f"{ended:,}", f"of {len(page.agents):,} done"),
        ("Failed", f"{failed:,}", "their errors are in the table"),
        ("Round", f"{page.round}", f"of {page.rounds}"),
        ("Processor time", html.format_duration(sum(agent.seconds for agent in page.agents)), "of all agents"),
    ]
    return html.tiles(cells)


def scored(page: PopulationPage) -> list[AgentRow]:
    return [agent for agent in page.agents if agent.score is not None]


# figures ----------------------------------------------------------------------------------------------------------------


def curve_chart(page: PopulationPage) -> Chart:
    """The median return over steps, with bands, and the best agent."""
    last = max(float(x[-1]) for x, _ in page.curves)
    steps = np.linspace(max(float(x[0]) for x, _ in page.curves), last, POINTS_OF_CURVE)
    values = np.stack([np.interp(steps, x, y) for x, y in page.curves])
    traces = []
    for name, low, high in BANDS:
        for kind, share in (("low", low), ("high", high)):
            traces.append(line(kind, steps, np.quantile(values, share, axis=0), name, 0))
    traces.append(line("mean", steps, np.median(values, axis=0), "median", 0) | {"legend": True})
    if page.best_curve is not None:
        traces.append(line("mean", *page.best_curve, f"agent {page.agents[0].number}, the best", 1) | {"legend": True})
    return Chart(Plot("Return", (), "Of all agents, in training."), traces)


def scores_figure(page: PopulationPage) -> Settings:
    values = [agent.score for agent in scored(page)]
    bars = {
        "type": "histogram",
        "x": values,
        "marker": {"color": BLUE},
        "nbinsx": 24,
        "hovertemplate": "%{y}<extra></extra>",
    }
    titles = {"xaxis": {"title": {"text": "score"}}, "yaxis": {"title": {"text": "agents"}}}
    return {"data": [bars], "layout": {**titles, "bargap": 0.05}}


def setting_figure(page: PopulationPage, name: str, log: bool) -> Settings:
    agents = scored(page)
    x = [axis_value(agent.settings.get(name)) for agent in agents]
    points = {
        "type": "scatter", "mode": "markers", "x": x, "y": [agent.score for agent in agents], "marker": MARKER,
        "text": [f"agent {agent.number}" for agent in agents],
        "hovertemplate": f"%{{text}}<br>{text(name)} %{{x}}<br>score %{{y:,.4~g}}<extra></extra>",
    }  # fmt: skip
    kind = "log" if log else "category" if any(isinstance(each, str) for each in x) else "linear"
    return {
        "data": [points],
        "layout": {
            "xaxis": {"type": kind, "title": {"text": text(name)}, "exponentformat": "power" if log else "none"},
            "yaxis": {"title": {"text": "score"}}, "showlegend": False,
        },
    }  # fmt: skip


def axis_value(value: object) -> object:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def lineage_figure(page: PopulationPage) -> Settings:
    """Each agent over the rounds; where it took over, its line comes from its donor's."""
    ends = [agent.number for agent in page.agents]
    by = {(one.round, one.agent): one.donor for one in page.takeovers}
    best = ancestors(page, page.agents[0].number)
    grey: tuple[list[float | None], list[float | None]] = ([], [])
    orange: tuple[list[float | None], list[float | None]] = ([], [])
    for number in sorted(ends):
        for round in range(page.round):
            donor = by.get((round, number), number)
            x, y = orange if best[round + 1] == number and best[round] == donor else grey
            x += [round, round + (0.5 if donor != number else 0.0), round + 1, None]
            y += [donor, number, number, None]
    lines = [
        {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": color, "width": width}, "hoverinfo": "skip"}
        for (x, y), color, width in ((grey, GREY, 1), (orange, ORANGE, 2.5))
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "round"}, "dtick": max(1, page.rounds // 10)},
        "yaxis": {"title": {"text": "agent"}},
    }
    return {"data": lines, "layout": layout | {"showlegend": False}}


def round_axis(page: PopulationPage) -> Settings:
    return {"title": {"text": "round"}, "dtick": max(1, page.rounds // 10)}


def ancestors(page: PopulationPage, number: int) -> list[int]:
    """Whose parameters an agent descends from, after 0, 1, ... rounds; the last is the agent itself."""
    by = {(one.round, one.agent): one.donor for one in page.takeovers}
    found = [number]
    for round in range(page.round - 1, -1, -1):
        number = by.get((round, number), number)
        found.append(number)
    return found[::-1]


def rounds_figure(page: PopulationPage, name: str, log: bool) -> Settings:
    """A setting of each agent over the rounds."""
    by = {(one.round, one.agent): one.after for one in page.takeovers}
    traces = []
    for agent in reversed(page.agents):  # the best on top
        value, values = agent.first.get(name), []
        for round in range(page.round):
            value = by.get((round, agent.number), {name: value})[name]
            values.append(axis_value(value))
        best = agent is page.agents[0]
        style = {"color": ORANGE if best else GREY, "width": 2.5 if best else 1, "shape": "hv"}
        drawn = {"x": list(range(page.round + 1)), "y": [*values, *values[-1:]], "opacity": 1.0 if best else 0.5}
        traces.append({"type": "scatter", "mode": "lines", "line": style, "hoverinfo": "skip", **drawn})
    axis = {"type": "log" if log else "-", "exponentformat": "power" if log else "none"}
    return {"data": traces, "layout": {"xaxis": round_axis(page), "yaxis": axis, "showlegend": False}}


# tables -----------------------------------------------------------------------------------------------------------------


def lineage_note(page: PopulationPage) -> str:
    first = ancestors(page, page.agents[0].number)[0]
    return f"Orange: agent {page.agents[0].number}, the best, whose parameters began with agent {first}."


def takeover_table(page: PopulationPage) -> str:
    head = ["round", "agent", "from", *(text(name) for name, _, _ in page.varied)]
    rows = [
        [str(one.round), str(one.agent), str(one.donor),
         *(f"{short_value(one.before.get(name))} \u2192 {short_value(one.after.get(name))}" for name, _, _ in page.varied)]
        for one in reversed(page.takeovers[-MAX_ROWS:])
    ]  # fmt: skip
    return table("Takeovers, the last first", head, rows)


def agent_table(page: PopulationPage) -> str:
    names = [name for name, _, _ in page.varied]
    head = ["agent", "score", "steps", "status", "seed", *map(text, names), "time"]
    rows = [
        [
            f'<a href="{text(agent.link)}">{agent.number}</a>', format_number(agent.score), f"{agent.steps:,}",
            text(agent.status), str(agent.seed), *(text(short_value(agent.settings.get(name))) for name in names),
            html.format_duration(agent.seconds) if agent.seconds else NO_NUMBER,
        ]
        for agent in page.agents[:MAX_ROWS]
    ]  # fmt: skip
    left = len(page.agents) - MAX_ROWS
    more = f'<p class="note">The other {left} are in population.json.</p>' if left > 0 else ""
    note = (
        "The best first, by the greedy return. The best of many is partly luck: train its settings with other seeds before you "
        "believe the number."
    )
    content = (html.command_box(page.command) if page.command else "") + table("Agents", head, rows, [True]) + more
    return section("agents", "Agents", content, note)


def varied_table(page: PopulationPage) -> str:
    if not page.varied:
        return ""
    rows = [[text(name), text(where)] for name, where, _ in page.varied]
    return section("varied", "What varies", settings_table("What varies", ["setting", "where"], rows))
