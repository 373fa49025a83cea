"""A population: many agents with seeds and settings of their own, trained in one program.

RUN_DIR/population.json     which agents there are, how far they are, who has taken over from whom
RUN_DIR/population.html     the page with the spread of all agents
RUN_DIR/agent0000/          the first agent, an ordinary run: `tightrope eval`, `tr.load` and all others take it
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Self

from ..agent import Agent, agent_class
from ..engine import choose_threads, cores
from ..engine.distributed import is_launched
from ..envs import TensorEnv
from ..envs.with_memory import without_memory
from ..errors import UsageError, checked_seed, plural, printable
from ..output import print_line
from ..tools.progress_bars import ProgressBars
from ..training import user_objects
from ..training.checkpoint_reader import CONFIG
from ..training.lock import locked
from ..training.own_code import is_import_path
from ..training.run_directory import reason
from ..training.signals import Interrupts
from ..types import Settings
from .page import write_population_page
from .record import FILE, AgentRecord, PopulationRecord, agent_dir, check_imports, plain_tree, read_record
from .rounds import PopulationRounds
from .turns import Turns
from .vary import drawn, read_vary
from .workers import AgentWorkers, can_fork

MAX_AGENTS, MAX_ROUNDS, MAX_JOBS = 10_000, 1000, 1000
ROUNDS = 10  # with exploit
DEFAULTS: Settings = {"video_every": 0, "device": "cpu"}


class Population:
    """Many agents, each with a seed and settings of its own, that train in turns in one program. Every agent has the result
    that it has alone, unless `exploit` lets the worst take over from the best."""

    def __init__(
        self, env: Any, size: int, vary: Mapping[str, object] | Sequence[str] = (), *, algo: str = "ppo", seed: int = 1,
        exploit: bool = False, rounds: int | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        """Make an untrained population.

        Args:
            env: An id, module:Class, a TensorEnv, or a class or function that makes one.
            size: Number of agents.
            vary: What differs between agents, such as {"learning_rate": "1e-4..1e-2,log", "gamma": [0.97, 0.99]}.
            algo: The algorithm of all agents.
            seed: Seed of the first agent; the others have the next ones. The varied settings are drawn from it too.
            exploit: After each round the worst fifth takes over from the best fifth, with settings near theirs.
            rounds: Number of rounds, in each of which all agents train equally long; 1, or 10 with exploit, if not given.
            settings: The settings of all agents, as in tr.PPO.
        """
        if is_launched():
            raise UsageError("a population starts its own processes: run it without torchrun")
        rounds = (ROUNDS if exploit else 1) if rounds is None else rounds
        for name, number, most in (("population", size, MAX_AGENTS), ("rounds", rounds, MAX_ROUNDS)):
            if type(number) is not int or not 1 <= number <= most:
                raise UsageError(f"{name} {number!r} is invalid: give a whole number from 1 to {most:,}")
        self.env, self.algo, self.settings = env, algo, {**DEFAULTS, **settings}
        with self.make({"seed": checked_seed(seed)}) as first:
            check_first(first, rounds)
            self.config = first.config
            self.threads = first.config.run.threads or choose_threads(
                first.policy, first.config.algorithm.minibatch_size
            )
        self.space = read_vary(vary, self.config, settings)
        if exploit and (size < 2 or not self.space or rounds < 2 or not self.config.run.eval_episodes):
            wrong = "exploit needs at least 2 agents, settings that vary, 2 rounds and evaluations"
            raise UsageError(f"{wrong}: give population, vary, rounds and eval_episodes, or drop exploit")
        self.record = PopulationRecord(
            self.config.env, algo, size, seed, rounds, exploit, settings=plain_tree(settings),
            vary={name: plain_tree(dimension.as_yaml()) for name, dimension in self.space.items()},
            agents=[AgentRecord(i, seed + i, varied) for i, varied in enumerate(drawn(self.space, size, seed))],
        )  # fmt: skip
        for agent in self.record.agents:
            try:
                self.config.changed(seed=agent.seed, **agent.settings)
            except UsageError as error:
                raise UsageError(f"agent {agent.number} would have invalid settings: {error}") from None
        self.run_dir: Path | None = None

    @classmethod
    def load(cls, run_dir: str | Path, env: Any = None, **settings: Any) -> Self:
        """A population from its directory; `learn` continues it. Give your own `env`, network and functions again, if it has
        some."""
        folder = Path(run_dir)
        if (record := read_record(folder)) is None:
            raise UsageError(
                f"{folder} is not a population: it has no {FILE}. Give a directory that one was trained in"
            )
        check_imports(record, folder, env, settings)
        given = record.settings | settings
        options: Settings = {
            "algo": record.algo,
            "seed": record.seed,
            "exploit": record.exploit,
            "rounds": record.rounds,
        }
        population = cls(record.env if env is None else env, record.size, record.vary, **options, **given)
        population.record.take_from(record, folder, population.space)
        population._use(folder)
        return population

    def make(self, settings: Settings) -> Agent:
        """A new agent with these settings besides those of all agents."""
        env = self.env.spawn(self.env.num_envs, seed=0) if user_objects.implements_env(self.env) else self.env
        return agent_class(self.algo)(env, **{**self.settings, **settings})

    @property
    def agents(self) -> list[AgentRecord]:
        """All agents, by their numbers."""
        return self.record.agents

    @property
    def results(self) -> list[AgentRecord]:
        """All agents, the best first: by their scores, those without one last."""
        return self.record.ranked

    def learn(self, run_dir: str | Path | None = None, jobs: int | None = None, quiet: bool = False) -> Self:
        """Train all agents to the end; write their runs and the page. A population that was stopped continues.

        Args:
            run_dir: Directory of the population; runs/<env>__<algo>__population__<time> if not given.
            jobs: Processes that share the agents; one for every `threads` cores if not given.
            quiet: Print nothing.
        """
        received = self.train(run_dir, jobs, quiet)
        if received == signal.SIGINT:
            raise KeyboardInterrupt("the population was stopped; learn continues it")
        if received is not None:
            raise SystemExit(128 + received)
        return self

    def train(self, run_dir: str | Path | None = None, jobs: int | None = None, quiet: bool = False) -> int | None:
        """Train as `learn` does, but return the signal that ended it, or None."""
        jobs, folder = self._jobs(jobs), self._folder(run_dir)
        with locked(folder), Interrupts() as interrupts:
            if (record := read_record(folder)) is not None:
                self.record.take_from(record, folder, self.space)
            self._use(folder)
            total = self.record.size * self.config.algorithm.run_steps
            with ProgressBars(total, quiet) as lines:
                lines.say(self.describe(jobs))
                env = None if isinstance(self.env, str) and not is_import_path(self.env) else self.env
                turns = Turns(self.make, env, self.settings.get("network"))
                with closing(AgentWorkers(turns, jobs, interrupts)) as workers:
                    after = partial(self.write_page, running=True)
                    rounds = PopulationRounds(self.record, folder, self.space, self.config, workers, lines, after)
                    rounds.run()
                    rounds.save(wait=True)
            if interrupts.received is not None:
                self.write_page()
            return interrupts.received

    def describe(self, jobs: int) -> str:
        """The plan, in one line."""
        record = self.record
        varied = f", varying {', '.join(self.space)}" if self.space else ""
        rounds = f", {record.rounds} rounds" if record.rounds > 1 else ""
        rounds += " with exploit and explore" if record.exploit else ""
        how = f"in turns on the cpu, {plural(jobs, 'job')}"
        steps = f"{self.config.algorithm.run_steps:,} steps each"
        return f"population: {plural(record.size, 'agent')}{varied}, {steps}{rounds}; {how}; in {self.run_dir}"

    def write_page(self, running: bool = False) -> None:
        """Write the page of the population. An error is only a warning: the runs are there."""
        assert self.run_dir is not None
        try:
            write_population_page(self.record, self.run_dir, running)
        except (UsageError, OSError) as error:
            print_line(f"warning: the population has no page: {printable(str(error))}", error=True)

    def _jobs(self, jobs: int | None) -> int:
        """The number of processes."""
        if jobs is None:
            return min(max(1, cores() // self.threads), self.record.size) if can_fork() else 1
        if type(jobs) is not int or not 1 <= jobs <= MAX_JOBS:
            raise UsageError(f"jobs {jobs!r} is invalid: give a whole number from 1 to {MAX_JOBS:,}")
        if jobs > 1 and not can_fork():
            raise UsageError(f"jobs {jobs} are not possible here, where processes cannot be forked: give 1")
        return min(jobs, self.record.size)

    def _folder(self, run_dir: str | Path | None) -> Path:
        """The directory of the population, which is made."""
        folder = self.run_dir if run_dir is None else Path(run_dir)
        if folder is None:
            name = f"{re.sub('[/:]', '-', self.config.env)}__{self.algo}__population__{time.strftime('%Y%m%d-%H%M%S')}"
            folder = Path("runs") / name
        if folder == Path():
            raise UsageError("run_dir is empty: give the name of a directory")
        if (folder / CONFIG).exists():
            raise UsageError(f"run_dir {folder} is the run of one agent: give another directory")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"run_dir {folder} cannot be made: {reason(error)}") from None
        return folder

    def _use(self, folder: Path) -> None:
        self.run_dir = folder
        for agent in self.agents:
            agent.run_dir = agent_dir(folder, agent.number)


def check_first(agent: Agent, rounds: int) -> None:
    """Raise UsageError if agents like this one cannot train in turns."""
    env, config = without_memory(agent.state.env), agent.config
    if not isinstance(env, TensorEnv):
        advice = "train it with --seeds, or search settings with `tightrope sweep`"
        raise UsageError(f"env {config.env} is not a tensor environment, which a population needs: {advice}")
    if env.device.type != "cpu":
        raise UsageError(f"device {env.device} is not possible: a population trains on the cpu. Drop device")
    if config.algorithm.phases < rounds:
        phases = plural(config.algorithm.phases, "phase")
        raise UsageError(f"rounds {rounds} are more than the {phases} of a run: lower rounds, or raise total_timesteps")
    if config.run.log:
        raise UsageError(f"log {' '.join(config.run.log)} is not possible in a population: drop it")
