"""The rounds of a population: in each, agents take over from others, all agents train, and the next takeovers are decided.

A population that was killed continues: population.json says which round it is in, and each agent's own run how far it is. The
directory of an agent is written only by its own turns, and takeovers of a round are all done before anyone trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..tools.progress_bars import ProgressBars
from ..tools.sweep.space import Space
from ..training.checkpoint_reader import CONFIG, has_checkpoints
from ..training.config import Config
from ..types import Settings
from .record import AgentRecord, PopulationRecord, agent_dir
from .turns import Turn, TurnResult
from .vary import takeovers
from .workers import AgentWorkers

SAVED_EVERY = 1.0  # seconds between records of agents that have ended


class PopulationRounds:
    """Runs the rounds of a population whose agents have their runs in `folder`."""

    def __init__(
        self, record: PopulationRecord, folder: Path, space: Space, config: Config, workers: AgentWorkers,
        lines: ProgressBars, after_round: Callable[[], None],
    ) -> None:  # fmt: skip
        self.record, self.folder, self.space, self.config = record, folder, space, config
        self.workers, self.lines, self.after_round = workers, lines, after_round
        self.saved = 0.0
        self.steps = {agent.number: agent.steps for agent in record.agents}

    def run(self) -> None:
        """Run until all rounds are done or a signal comes."""
        record = self.record
        self.save(wait=True)
        while record.round < record.rounds and self.take_over() and self.train():
            record.round += 1
            if record.exploit and record.round < record.rounds:
                self.decide()
            self.save(wait=True)
            self.after_round()

    def take_over(self) -> bool:
        """Do the takeovers that were decided after the last round; returns whether all are done."""
        record = self.record
        if not record.is_taken_over:
            pending = [one for one in record.lineage if one.round == record.round]
            turns = [
                Turn(one.agent, self.agent_dir(one.agent), {}, donor=self.agent_dir(one.donor), changes=one.after, trains=False)
                for one in pending
            ]  # fmt: skip
            if not self.take(turns):
                return False
            for one in pending:
                if not record.agents[one.agent].failed:
                    record.agents[one.agent].settings = dict(one.after)
            record.is_taken_over = True
            self.save(wait=True)
        return True

    def train(self) -> bool:
        """Train all agents to the end of this round; returns whether all are there."""
        round = self.record.round + 1
        until = None
        if round < self.record.rounds:
            algorithm = self.config.algorithm
            until = max(1, round * algorithm.phases // self.record.rounds) * algorithm.batch_size
        waiting = [
            agent for agent in self.record.agents if not (agent.failed or agent.finished or agent.round >= round)
        ]
        return self.take(
            [Turn(a.number, self.agent_dir(a.number), {"seed": a.seed, **a.settings}, until) for a in waiting]
        )

    def decide(self) -> None:
        """Decide who takes over from whom."""
        record, agents = self.record, self.record.agents
        scores, steps, settings = [a.rank for a in agents], [a.steps for a in agents], [a.settings for a in agents]
        for one in takeovers(scores, steps, settings, self.space, record.seed, record.round):
            there = has_run(self.agent_dir(one.agent)) and has_run(self.agent_dir(one.donor))
            if there and not agents[one.agent].finished:
                if not self.is_valid(one.after):
                    one = replace(one, after=dict(settings[one.donor]))
                record.lineage.append(one)
                record.is_taken_over = False
                line = f"agent {one.agent} takes over from agent {one.donor}: {in_words(one.after)}"
                self.lines.say(f"round {record.round}: {line}")

    def is_valid(self, settings: Settings) -> bool:
        """Whether an agent may have these settings together."""
        try:
            self.config.changed(**settings)
        except UsageError:
            return False
        return True

    def take(self, turns: list[Turn]) -> bool:
        """Take turns; returns whether all of them ended."""
        ended = 0
        for result in self.workers.take(turns, lambda progress: self.show(progress.number, progress.steps)):
            ended += not result.stopped
            self.end_turn(result, turns[0].trains)
        return ended == len(turns)

    def end_turn(self, result: TurnResult, trained: bool) -> None:
        """Note the result of a turn, and print it."""
        agent = self.record.agents[result.number]
        agent.steps, agent.seconds = result.steps or agent.steps, agent.seconds + result.seconds
        agent.failed = result.failed
        if result.failed:
            self.lines.say(f"agent {agent.number}: failed: {result.failed}")
        elif trained and not result.stopped:
            agent.score, agent.finished, agent.round = result.score, result.finished, self.record.round + 1
            self.lines.say(f"agent {agent.number}: {summary(agent)}")
        self.show(agent.number, agent.steps)
        if time.monotonic() - self.saved > SAVED_EVERY:
            self.save(wait=False)

    def show(self, number: int, steps: int) -> None:
        """Show the steps of all agents together, now that this one is so far."""
        self.steps[number] = steps
        done = sum(self.steps.values())
        self.lines.show("all", done, f"{done:,} of {self.lines.total:,} steps")

    def save(self, wait: bool) -> None:
        self.record.write(self.folder, wait)
        self.saved = time.monotonic()

    def agent_dir(self, number: int) -> Path:
        return agent_dir(self.folder, number)


def has_run(run_dir: Path) -> bool:
    """Whether an agent has a checkpoint."""
    return (run_dir / CONFIG).exists() and has_checkpoints(run_dir)


def summary(agent: AgentRecord) -> str:
    """The result of an agent in a few words."""
    score = "not evaluated" if agent.score is None else f"greedy return {agent.score:.2f}"
    return f"{score} after {agent.steps:,} steps ({in_words({'seed': agent.seed, **agent.settings})})"


def in_words(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
