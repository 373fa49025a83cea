"""Collect the data of a population's page from its record and its runs, and write the page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from ..errors import UsageError
from ..files import Place, Unreadable
from ..logging.metrics import RETURN, Columns, read_rows
from ..logging.report import write_page
from ..logging.report.population import AgentRow, PopulationPage, TakeoverRow, population_page
from ..logging.report.statistics import Curve, smooth
from ..training.run_directory import METRICS
from ..types import Settings
from .record import AgentRecord, PopulationRecord, plain_tree
from .rounds import agent_dir

PAGE = "population.html"
MAX_CURVES = 256  # agents whose curves are read


def write_population_page(record: PopulationRecord, folder: Path, running: bool = False) -> Path:
    """Write the page of a population, and return its path. UsageError without plotly."""
    try:
        write_page(folder / PAGE, population_page(page_of(record, folder, running)))
    except RuntimeError as error:  # no plotly
        raise UsageError(str(error)) from None
    return folder / PAGE


def page_of(record: PopulationRecord, folder: Path, running: bool) -> PopulationPage:
    ranked = sorted(record.agents, key=lambda agent: (-agent.rank, agent.number))
    step = -(-len(ranked) // MAX_CURVES)
    curves = {agent.number: curve for agent in ranked[::step] if (curve := curve_of(agent_dir(folder, agent.number)))}
    first = {one.agent: one.before for one in reversed(record.lineage)}
    done, scored = record.round == record.rounds, ranked[0].score is not None
    entries = record.vary.items()
    varied = [(name, json.dumps(entry), isinstance(entry, dict) and bool(entry.get("log"))) for name, entry in entries]
    return PopulationPage(
        env=record.env, algo=record.algo, status="ended" if done else "running" if running else "stopped",
        steps=0, round=record.round, rounds=record.rounds, varied=varied,
        agents=[agent_row(agent, first.get(agent.number, agent.settings), record.round) for agent in ranked],
        curves=list(curves.values()), best_curve=curves.get(ranked[0].number) if scored else None,
        takeovers=[
            TakeoverRow(one.round, one.agent, one.donor, settings_as_data(one.before), settings_as_data(one.after))
            for one in record.lineage
        ],
        command=shlex.join(["tightrope", "eval", str(agent_dir(folder, ranked[0].number))]) if scored else "",
    )  # fmt: skip


def agent_row(agent: AgentRecord, first: Settings, rounds: int) -> AgentRow:
    status = "under way" if agent.steps else "waiting"
    if agent.finished or agent.failed:
        status = f"failed: {agent.failed}" if agent.failed else "finished"
    elif agent.round == rounds > 0:
        status = "round done"
    return AgentRow(
        agent.number, agent.seed, settings_as_data(agent.settings), settings_as_data(first), agent.steps, agent.score,
        status, f"agent{agent.number:04d}/", agent.seconds,
    )  # fmt: skip


def settings_as_data(settings: Settings) -> Settings:
    return {name: plain_tree(value) for name, value in settings.items()}


def curve_of(run_dir: Path) -> Curve | None:
    """The smoothed return in training of a run; None if it has none."""
    try:
        columns = Columns(read_rows(Place(run_dir) / METRICS))
    except (Unreadable, OSError):
        return None
    x, y = columns.curve(RETURN)
    if len(x) < 2:
        return None
    x, y = smooth(x, y, columns.weights(RETURN))
    there = y == y
    return (x[there], y[there]) if there.sum() > 1 else None
