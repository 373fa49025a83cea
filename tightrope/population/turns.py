"""Train many agents in turns in one state, so that all of them use the same recordings and compiled code.

A recording is bound to the memory of the tensors that it was made for (see engine/recorded.py). The first agent's state is
therefore kept, and every later agent moves into it: its parameters, moments, statistics, environments, random streams and
counters are copied to these tensors. Then it trains as any agent does, and has the results that it would have alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from torch import Tensor

from ..agent import Agent
from ..engine import State
from ..envs.attributes import same_plain_attributes
from ..envs.tensor import UNSAVED
from ..envs.with_memory import without_memory
from ..errors import EnvError, NotFinite, UsageError, one_line, printable, raised
from ..logging import Callback, StateView, StopTraining
from ..logging.callback import MetricsRow
from ..logging.metrics import RETURN
from ..saved import begin_anew, load
from ..training.checkpoint_reader import CONFIG, MODEL, TRAINING, find, has_checkpoints
from ..training.reports import scores
from ..training.scoring import save_score
from ..types import Settings

EVERY = 0.2  # seconds between messages about the progress of an agent
COPIED = ("policy.", "optimizer.")  # what an agent takes over from another one


@dataclass(frozen=True)
class Turn:
    """What one agent is to do next: take over from another agent, then train."""

    number: int  # of the agent
    run_dir: Path
    settings: Settings  # of a new agent, besides those that all agents have
    until: int | None = None  # environment steps in all; None for the end of the run
    donor: Path | None = None  # the run whose newest parameters it takes over
    changes: Settings = field(default_factory=dict)  # settings that change then
    trains: bool = True


@dataclass(frozen=True)
class TurnProgress:
    """A message from a turn that is not over."""

    number: int
    steps: int
    value: float | None  # the newest episodic return


@dataclass(frozen=True)
class TurnResult:
    """How a turn ended."""

    number: int
    steps: int
    finished: bool = False  # whether the run has come to its end
    score: float | None = None  # mean greedy return at the end of the turn
    stopped: bool = False  # by a signal: the turn is not over
    failed: str = ""  # the error that ended the run
    seconds: float = 0.0  # of processor time


class Reporter(Callback):
    """Reports the progress of an agent, and ends its training after the phase in which `is_stopped` becomes true."""

    def __init__(self, number: int, report: Callable[[TurnProgress], None], is_stopped: Callable[[], bool]) -> None:
        self.number, self.report, self.is_stopped, self.due = number, report, is_stopped, time.monotonic() + EVERY

    def on_update(self, state: StateView) -> None:
        if self.is_stopped():
            raise StopTraining("by a signal")

    def on_phase(self, row: MetricsRow) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY
            self.report(TurnProgress(self.number, int(row["step"]), row.get(RETURN)))


class Turns:
    """Trains agents in turns. `make` makes a new agent with some settings, `env` is a user's own environment, if there is one,
    and `network` a user's own network."""

    def __init__(
        self, make: Callable[[Settings], Agent], env: object = None, network: object = None, reports: bool = False
    ) -> None:
        self.make, self.env, self.network, self.reports = make, env, network, reports
        self.homes: dict[str, State] = {}  # the state in which agents train, by how phases are executed

    def take(self, turn: Turn, report: Callable[[TurnProgress], None], is_stopped: Callable[[], bool]) -> TurnResult:
        """Do a turn. An error ends the run of this agent, not the others."""
        began = time.process_time()
        try:
            agent = self.agent(turn)
        except Exception as error:
            return TurnResult(turn.number, 0, failed=reason_of(error))
        stopped, failed, score = False, "", None
        with agent:
            self.move_in(agent)
            try:
                if turn.donor is not None:
                    take_over(agent, turn.run_dir, turn.donor, turn.changes)
                if turn.trains:
                    stopped = self.train(agent, turn, report, is_stopped)
                    score = None if stopped else greedy_score(agent, turn.run_dir)
            except (KeyboardInterrupt, SystemExit):  # a signal came while the agent was evaluated
                stopped = True
            except Exception as error:
                failed = reason_of(error)
            spent = time.process_time() - began
            return TurnResult(turn.number, agent.steps, agent.finished, score, stopped, failed, spent)

    def agent(self, turn: Turn) -> Agent:
        """The agent as its run directory has it; a new one without a directory."""
        if not (turn.run_dir / CONFIG).exists():
            return self.make(turn.settings)
        if not has_checkpoints(turn.run_dir):  # killed before the first
            return begin_anew(turn.run_dir, self.env, self.network)  # type: ignore[arg-type]
        return load(turn.run_dir, self.env, network=self.network)  # type: ignore[arg-type]

    def train(
        self, agent: Agent, turn: Turn, report: Callable[[TurnProgress], None], is_stopped: Callable[[], bool]
    ) -> bool:
        """Train until the turn is over; returns whether it was stopped before."""
        reporter = Reporter(turn.number, report, is_stopped)
        new_dir = turn.run_dir if agent.run is None else None
        outcome = agent.train(run_dir=new_dir, quiet=True, until=turn.until, callbacks=[reporter], report=self.reports)
        if outcome.unsaved is not None and agent.run is not None:
            raise UsageError(agent.run.complaint(agent.state))
        until = agent.config.algorithm.total_timesteps if turn.until is None else turn.until
        reached = agent.finished or agent.steps >= until
        return not reached and (outcome.interrupted is not None or is_stopped())

    def move_in(self, agent: Agent) -> None:
        """Copy an agent's state to the tensors of the state that all agents train in; the first one's state becomes it. An
        agent stays in its own state if its environments differ from the others by more than their states."""
        own = agent.state
        home = self.homes.setdefault(own.runtime.describe(), own)
        env, other = without_memory(home.env), without_memory(own.env)
        if home is own or not same_plain_attributes(env, other, UNSAVED):
            return
        home.seed, home.functions = own.seed, own.functions
        home.load_state_dict(own.state_dict())
        for f in fields(own.rollout):
            if isinstance(ours := getattr(home.rollout, f.name), Tensor) and 0 not in ours.stride():
                ours.copy_(getattr(own.rollout, f.name))
        agent.state = home


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line; with the place of a mistake in the user's code."""
    return printable(one_line(error) if isinstance(error, UsageError | EnvError | NotFinite) else raised(error))


def take_over(agent: Agent, run_dir: Path, donor: Path, changes: Settings) -> None:
    """Give an agent the parameters, moments and statistics of the donor's newest checkpoint, change its settings, and save it.
    Its environments and random streams stay its own."""
    found = find(donor)
    theirs = {name: x for file in (MODEL, TRAINING) for name, x in found.read(file).items()}
    mine = agent.state.state_dict()
    copied = {name: x for name, x in theirs.items() if name.startswith(COPIED) and name in mine}
    agent.state.load_state_dict({**mine, **copied})
    if changes:
        agent.change(**changes)
    agent.save(run_dir)


def greedy_score(agent: Agent, run_dir: Path) -> float | None:
    """The mean greedy return of an agent, saved with its run; None if the settings want no evaluation."""
    run, known = agent.config.run, [score.mean for score in scores(run_dir) if score.step == agent.steps]
    if not run.eval_episodes or known:
        return known[-1] if known else None
    found = agent.evaluate(run.eval_episodes, eval_seconds=run.eval_seconds)
    save_score(run_dir, agent.steps, found)
    return found.mean
