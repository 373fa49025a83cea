"""Train the seeds of `tightrope train --seeds` in turns, which saves importing, setting up and recording for each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from ..agent import Agent
from ..envs import TensorEnv
from ..envs.with_memory import without_memory
from ..tools.progress_bars import ProgressBars
from ..tools.seeds import Seed, show_seed, unfinished
from ..training.signals import Interrupts
from ..types import Settings
from .turns import Turn, TurnProgress, TurnResult, Turns
from .workers import AgentWorkers, can_fork


@dataclass
class SeedTurns:
    """Trains seeds in turns, in `jobs` processes. `make` makes the agent of a seed, `env` names a user's own environment."""

    seeds: list[Seed]
    make: Callable[[Settings], Agent]
    env: str | None
    jobs: int
    lines: ProgressBars
    stopped: int | None = None  # the signal that ended training

    def run(self) -> None:
        """Run until all seeds are trained or a signal comes."""
        waiting = unfinished(self.seeds, self.lines)
        turns = [Turn(seed.seed, seed.run_dir, {"seed": seed.seed}) for seed in waiting]
        by_number = {seed.seed: seed for seed in waiting}
        with Interrupts() as interrupts:
            with closing(AgentWorkers(Turns(self.make, self.env, reports=True), self.jobs, interrupts)) as workers:

                def show(progress: TurnProgress) -> None:
                    show_seed(self.lines, by_number[progress.number], progress.steps, progress.value)

                for result in workers.take(turns, show):
                    self.end(by_number[result.number], result)
            self.stopped = interrupts.received

    def end(self, seed: Seed, result: TurnResult) -> None:
        self.lines.remove(str(seed.seed))
        if result.failed:
            seed.code, seed.words = 1, result.failed
            self.lines.say(f"seed {seed.seed}: failed: {result.failed}")
        elif not result.stopped:
            seed.code = 0
            score = "not evaluated" if result.score is None else f"greedy return {result.score:.2f}"
            self.lines.say(f"seed {seed.seed}: {score} after {result.steps:,} steps; run in {seed.run_dir}")


def train_in_turns(agent: Agent) -> bool:
    """Whether seeds of an agent like this one train in turns: on the CPU, in tensor environments, without trackers."""
    on_cpu = isinstance(without_memory(agent.state.env), TensorEnv) and agent.state.env.device.type == "cpu"
    return on_cpu and not agent.config.run.log and can_fork()
