"""population.json: the agents of a population, how far they are, and who has taken over from whom."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..algorithms.common import VARYING
from ..envs.registry import id_or_path
from ..errors import UsageError
from ..files import Place, Unreadable
from ..functional import Schedule
from ..logging import finite
from ..tools.sweep.space import Choices, Space
from ..training.config import plain
from ..training.own_code import NAMES, is_import_path, needs_import
from ..training.run_directory import reason
from ..types import Settings
from .vary import Takeover

FILE, VERSION = "population.json", 1
MAX_BYTES = 1 << 28
IMPORTS = ("network", "memory", "functions", "train_env", *NAMES, *VARYING)  # settings that may name code


@dataclass
class AgentRecord:
    """One agent of a population."""

    number: int
    seed: int
    settings: Settings  # the varied ones
    run_dir: Path | None = None
    steps: int = 0
    round: int = 0  # completed rounds
    score: float | None = None  # mean greedy return at the end of the last round
    finished: bool = False
    failed: str = ""  # the error that ended its run
    seconds: float = 0.0  # of processor time

    @property
    def rank(self) -> float:
        """What agents are ordered by: the score, -inf without one."""
        return -math.inf if self.failed or self.score is None else self.score


@dataclass
class PopulationRecord:
    """All that population.json holds."""

    env: str
    algo: str
    size: int
    seed: int
    rounds: int
    exploit: bool
    vary: Settings  # ranges and choices, as in a YAML file of `tightrope sweep`
    settings: Settings  # of all agents
    agents: list[AgentRecord] = field(default_factory=list)
    lineage: list[Takeover] = field(default_factory=list)
    round: int = 0  # completed rounds
    is_taken_over: bool = True  # whether the takeovers after the last round are done

    @property
    def ranked(self) -> list[AgentRecord]:
        """All agents, the best first: by their scores, those without one last."""
        return sorted(self.agents, key=lambda agent: (-agent.rank, agent.number))

    def write(self, folder: Path, wait: bool) -> None:
        """Write the file; `wait` for the disk. UsageError if it cannot be written."""
        content = finite(plain_tree(asdict(self) | {"version": VERSION}))
        for agent in content["agents"]:
            del agent["run_dir"]
        try:
            (Place(folder) / FILE).write(json.dumps(content, indent=1).encode(), wait=wait)
        except OSError as error:
            raise UsageError(f"run_dir {folder} cannot be written: {reason(error)}") from None

    def take_from(self, other: PopulationRecord, folder: Path, space: Space) -> None:
        """Continue where another record of the same population is; UsageError if it is of another one."""
        for f in fields(self):
            if f.name in ("agents", "lineage", "round", "is_taken_over"):
                continue
            mine, theirs = plain_tree(getattr(self, f.name)), getattr(other, f.name)
            if mine != theirs:
                name, mine, theirs = differing_entry(f.name, mine, theirs)
                wrong = f"{name} {mine} is not the {theirs} of the population in {folder}, which is there already"
                raise UsageError(f"{wrong}: give that, or another run_dir")
        if [agent.number for agent in other.agents] != list(range(self.size)):
            raise UsageError(f"{folder / FILE} is damaged: its agents are not numbered from 0 to {self.size - 1}")
        self.agents, self.lineage = other.agents, other.lineage
        self.round, self.is_taken_over = other.round, other.is_taken_over
        settings = [agent.settings for agent in self.agents] + [
            each for one in self.lineage for each in (one.before, one.after)
        ]
        for given in settings:
            given.update({name: value_in_space(space, name, value) for name, value in given.items()})


def agent_dir(folder: Path, number: int) -> Path:
    """The directory of an agent's run."""
    return folder / f"agent{number:04d}"


def differing_entry(name: str, mine: object, theirs: object) -> tuple[str, object, object]:
    """The setting in which two mappings differ, with both values; other values as they are."""
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return ("population" if name == "size" else name), mine, theirs
    key = next(key for key in [*mine, *theirs] if mine.get(key) != theirs.get(key))
    return (f"vary {key}" if name == "vary" else key), mine.get(key), theirs.get(key)


def value_in_space(space: Space, name: str, value: object) -> object:
    """A varied setting as the space has it: a file holds schedules as text."""
    dimension = space.get(name)
    if isinstance(dimension, Choices):
        return next((each for each in dimension.values if plain(each) == value), value)
    return value


def plain_tree(value: Any) -> Any:
    """Plain data for JSON; what a file cannot hold, such as a user's class, by its name."""
    if isinstance(value, dict):
        return {str(key): plain_tree(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_tree(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return id_or_path(value) if callable(value) and not isinstance(value, Schedule) else str(plain(value))


def names_code(value: object) -> bool:
    """Whether a setting is module:name, or a list of such texts; the name of a memory or a schedule is not."""
    if isinstance(value, list):
        return any(names_code(each) for each in value)
    return isinstance(value, str) and re.fullmatch(r"(\w+=)?[\w.]+:\S+", value) is not None


def read_record(folder: Path) -> PopulationRecord | None:
    """The record in a population's directory; None if it has none. The file may come from a stranger."""
    place = Place(folder) / FILE
    if not place.exists():
        return None
    try:
        content = json.loads(place.read(MAX_BYTES))
        if content.pop("version") != VERSION:
            raise UsageError(f"{place} was written by another version of Tightrope: train a new population")
        agents = [AgentRecord(**agent) for agent in content.pop("agents")]
        lineage = [Takeover(**each) for each in content.pop("lineage")]
        return PopulationRecord(**content, agents=agents, lineage=lineage)
    except (Unreadable, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{place} is damaged ({type(error).__name__}): train a new population") from None


def check_imports(record: PopulationRecord, folder: Path, env: object, settings: Settings) -> None:
    """Raise UsageError if continuing a population would import code that only its file names."""
    if env is None and (is_import_path(record.env) or needs_import(record.env)):
        raise UsageError(f"{folder} was trained on {record.env}, which a file may not import: give env={record.env!r}")
    named = next((name for name in IMPORTS if names_code(record.settings.get(name)) and name not in settings), None)
    if named is not None:
        raise UsageError(
            f"{folder} has {named} {record.settings[named]}, which a file may not import: give {named} again"
        )
