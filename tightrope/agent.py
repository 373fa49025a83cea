"""The agents PPO and VPG: make, train and save them. `saved.load` loads a saved one."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from . import activity
from .agent_base import AgentBase
from .engine import State, isolated_rng, stream_seed, world
from .engine.across_ranks import check_same_settings
from .engine.distributed import broadcast_from_rank0, join, set_rank_timeout
from .envs.with_memory import without_memory
from .errors import UsageError, warn
from .logging import Callback, NotebookPicture
from .logging.callback import MetricsRow
from .output import print_line
from .training import user_objects
from .training.build import build, check_env, configured, configured_with, make_env, per_rank_config, resolved
from .training.checkpoint_reader import Checkpoint, has_checkpoints
from .training.config import Config, check_changeable
from .training.evaluate import Evaluation, Tick, evaluate_policy
from .training.names import AgentType, check_run_dir, known_arguments, one_too_many
from .training.own_code import imported, is_import_path
from .training.plan import nothing_to_do, resume_notes
from .training.run_directory import RunDirectory, begun_before, directory, new_run_dir
from .training.saving import find_on_all_ranks, restore
from .training.schedules import check_functions
from .training.scoring import is_complete, options_of
from .training.settings import resolve_device
from .training.signals import Interrupts
from .training.trainer import Outcome, Trainer
from .training.user_objects import Network, import_memory, import_own_code, memory_setting, network_path
from .training.warm_start import start_from
from .types import Env


def check_callbacks(callbacks: object) -> None:
    """Raise UsageError unless this is a list of Callback objects."""
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(each, Callback) for each in callbacks):
        raise UsageError(f"callbacks {callbacks!r} is invalid: give a list of tr.Callback objects")


class Agent(AgentBase, metaclass=AgentType):
    """A policy with its environment, settings and training state. Use `PPO` or `VPG`."""

    def __init__(self, env: Any, *others: Any, network: Network | None = None, **settings: Any) -> None:
        """Make an untrained agent.

        Args:
            env: An id, module:Class, a TensorEnv or Gymnasium environment or a class of either, or a function that makes one
                of Gymnasium's.
            network: Your own network from observations to features (B, F): a class or function that makes it, so that its
                weights follow the seed, or an instance, which is copied with its weights.
            settings: The settings of `tightrope train --help`. They override the environment's preset.
                A function of yours replaces one of the algorithm's, as in gae=my_gae.
        """
        join()
        if others:
            raise UsageError(one_too_many(env, others[0], type(self).__name__))
        if settings.pop("algo", self.algo) != self.algo:
            raise UsageError(f"algo is fixed: this is tr.{type(self).__name__}. Use the class of the other algorithm")
        if network is not None:
            settings["network"] = network_path(network)
        if "memory" in settings:
            settings["memory"] = memory_setting(settings["memory"])
        if isinstance(settings.get("train_env"), type):
            settings["train_env"] = user_objects.name_of(settings["train_env"])
        if isinstance(env, str) and not is_import_path(env):
            check_env(env, settings.get("backend", "auto"))
            config = configured(env, self.algo, settings)
            env = None
        else:
            env = imported(env) if isinstance(env, str) else env
            config, env = configured_with(env, self.algo, settings, user_objects.settings_fixed_by(env, settings))
        import_memory(config.network.memory)
        user_objects.named_by_user(config.run.train_env, "train_env")
        self._setup(config, env, network)

    @classmethod
    def from_config(cls, config: Config, network: Network | None = None) -> Self:
        """An untrained agent with exactly these settings, which the user gave."""
        join()
        user_objects.named_by_user(config.run.train_env, "train_env")
        import_memory(config.network.memory)
        return cls.made_of(import_own_code(config), None, network)

    @classmethod
    def made_of(cls, config: Config, env: Any, network: Network | None, new: bool = True) -> Self:
        """An untrained agent. Nothing that the settings name is imported: they may be saved ones."""
        agent = cls.__new__(cls)
        agent._setup(config, env, network, new)
        return agent

    def _setup(self, config: Config, env: Any, network: Network | None, new: bool = True) -> None:
        """Build the agent with random streams that depend only on the seed, also for a user's environment or network. Only a
        `new` run starts from init_from: a saved one has its own weights."""
        device = env.device if user_objects.implements_env(env) else resolve_device(config.run.device)
        seed = stream_seed(config.run.seed, "setup", rank=world().rank)
        set_rank_timeout(config.run.rank_timeout)
        try:
            with activity.during("making its agent"), isolated_rng(seed, device):
                self._make(config, env, network)
                self.taken_over = start_from(self.state, config.run.init_from) if new else []  # lines for the user
        except UsageError as error:
            raise error.with_traceback(None) from None  # a traceback through our code would hide the user's mistake

    def _make(self, config: Config, env: Any, network: Network | None) -> None:
        self.config, self.closed = config, False
        self.training: Trainer | None = None  # the training in progress
        self.run: RunDirectory | None = None  # where training is being written
        self.loaded: Checkpoint | None = None  # the checkpoint to resume from, until training resumes
        self.notes: list[str] = []  # notes about a loaded run, printed when training starts
        count = per_rank_config(config.algorithm, world().size).num_envs
        given: Env | None = None if env is None else user_objects.from_user(env, config, count)
        if given is not None and given.num_envs != count and config.run.train_env is None:
            raise UsageError(f"num_envs {count} does not match the given environment, which has {given.num_envs}")
        self.state: State = build(config, given, network)
        self.score_env: Env = given if given is not None else make_env(config, config.env, 1, scoring=True)
        trained_on = without_memory(self.state.env)
        if (self.score_env.observation, self.score_env.action) != (trained_on.observation, trained_on.action):
            raise UsageError(f"train_env {config.run.train_env!r} and env {config.env!r} have different spaces")

    @property
    def run_dir(self) -> Path | None:
        """The directory that training writes to."""
        return None if self.run is None else self.run.path

    @known_arguments
    def learn(
        self, total_timesteps: int | None = None, run_dir: str | Path | None = None, quiet: bool = False,
        until: int | None = None, live: bool = False, callbacks: Sequence[Callback] = (),
    ) -> Self:  # fmt: skip
        """Train to `total_timesteps` steps in all (the setting's value if not given), or stop once `until` steps are done.
        Another `learn`, here or after `tr.load`, continues as if training had never stopped. `live` shows a chart in a
        notebook while training runs. `callbacks` are `tr.Callback` objects; they may stop training."""
        self._check(self.train(total_timesteps, run_dir, quiet, until, live, callbacks))
        return self

    @known_arguments
    def phases(
        self, total_timesteps: int | None = None, run_dir: str | Path | None = None, quiet: bool = True,
        until: int | None = None, callbacks: Sequence[Callback] = (),
    ) -> Iterator[MetricsRow]:  # fmt: skip
        """Train as `learn` does, and yield the metrics of each phase to a loop of your own:

            for row in agent.phases(run_dir="runs/mine"):
                if row["step"] > 50_000:
                    agent.change(ent_coef=0.0)
                if agent.evaluate(20).mean >= 475:
                    break

        A row has the columns of metrics.jsonl. Between phases the agent may be evaluated, recorded, exported and changed.
        Leaving the loop, by `break` or by an exception, ends training: the run is saved and can be resumed."""
        check_callbacks(callbacks)
        training = self._training(total_timesteps, run_dir, quiet, until, callbacks, runs_user_code=True)
        return iter(()) if training is None else self._handed_out(training)

    def _handed_out(self, training: Trainer) -> Iterator[MetricsRow]:
        rows = training.phases()
        atexit.register(rows.close)  # a program that ends inside the loop also saves the run
        try:
            self.training = training
            yield from rows
        finally:
            self.training = None
            atexit.unregister(rows.close)
        self._check(training.outcome)

    def change(self, **settings: Any) -> None:
        """Change settings of the algorithm, of evaluations or of checkpoints, from the next phase on, also during training. A
        schedule continues as if it had started from the new value. With several ranks, call it on every rank."""
        check_changeable(self.config, settings)
        self.config = self.config.changed_after(self.steps, **settings)
        if self.training is not None:
            self.training.change(self.training.config.changed_after(self.steps, **settings))

    def _check(self, outcome: Outcome) -> None:
        """Raise the exception for a training that was interrupted or could not be saved."""
        if self.run is not None and outcome.unsaved is not None:
            complaint = self.run.complaint(self.state)
            raise UsageError(
                f"{complaint}. The agent in memory has these steps: save it with agent.save(another directory)"
            )
        if outcome.interrupted == signal.SIGINT:
            raise KeyboardInterrupt(f"stopped after {self.steps:,} steps, at the end of a phase")
        if outcome.interrupted is not None:  # the process should end
            raise SystemExit(128 + outcome.interrupted)

    def train(
        self, total_timesteps: int | None = None, run_dir: str | Path | None = None, quiet: bool = False,
        until: int | None = None, live: bool = False, callbacks: Sequence[Callback] = (), score_episodes: int = 0,
        report: bool = True,
    ) -> Outcome:  # fmt: skip
        """Train as `learn` does, but return the outcome instead of raising if interrupted. The trained agent is evaluated on
        `score_episodes` greedy episodes; trackers and the report, if one is wanted, show the score."""
        check_callbacks(callbacks)
        score = partial(self._score, score_episodes) if score_episodes else None
        shown = [NotebookPicture(), *callbacks] if live else callbacks
        self.training = self._training(total_timesteps, run_dir, quiet, until, shown, score=score, report=report)
        try:
            for _ in self.training.phases() if self.training else ():
                pass
            return self.training.outcome if self.training else Outcome([])
        finally:
            self.training = None

    def _score(self, episodes: int, interrupts: Interrupts, tick: Tick) -> Evaluation:
        """Evaluate the trained agent at the end of training."""
        seed, options = self._seed("evaluate", None), options_of(self.config, self.state)
        return evaluate_policy(self.state.policy, self.score_env, episodes, seed, options, interrupts, tick)

    def _training(
        self, total_timesteps: int | None, run_dir: str | Path | None, quiet: bool, until: int | None,
        callbacks: Sequence[Callback], **how: Any,
    ) -> Trainer | None:  # fmt: skip
        """Set up a training without starting it; None if nothing is left to do."""
        check_run_dir(run_dir)
        self.check_open()
        if self.training is not None:
            raise UsageError("this agent is being trained already: leave the loop over agent.phases() first")
        config, quiet = self.config, quiet or not world().is_rank0
        if total_timesteps is not None:
            config = config.changed_after(self.steps, total_timesteps=total_timesteps)
        check_functions(config.values())
        set_rank_timeout(config.run.rank_timeout)
        check_same_settings(config.to_flat_dict() | {"threads": None, "until": until, "run_dir": run_dir is not None})
        if is_complete(self.state, config):
            if not quiet:
                print_line(nothing_to_do(self.state, config, self.run is not None))
            return None
        if until is not None and self.steps >= until:
            return None
        self.config = config
        for line in self.notes if world().is_rank0 else ():
            warn(line)
        self.notes = []
        if run_dir is not None and self.run_dir != Path(run_dir).absolute():
            begun = begun_before(Path(run_dir))
            self.run = directory(new_run_dir(Path(run_dir), config), new=True) if begun is None else self._again(begun)
        shown = self.taken_over if self.loaded is None else resume_notes(self.loaded, self.state, config)
        for line in () if quiet else shown:
            print_line(line)
        self.loaded, self.taken_over = None, []
        return Trainer(self.state, config, self.score_env, self.run, quiet, until, callbacks, **how)

    def _again(self, begun: Path) -> RunDirectory:
        """Resume the run that this program trained before torchrun restarted it."""
        if broadcast_from_rank0(lambda: b"yes" if has_checkpoints(begun) else b""):
            self.loaded = find_on_all_ranks(begun)
            restore(self.state, self.loaded)
        return directory(begun, self.loaded)

    @property
    def finished(self) -> bool:
        """Whether training is complete under the present settings."""
        return is_complete(self.state, self.config)

    @known_arguments
    def save(self, path: str | Path) -> None:
        """Write settings and state to a directory, in formats that cannot run code. An agent saved there before is replaced;
        a directory with a trained run is refused."""
        run = self.run if self.run_dir == Path(path).absolute() else None
        if run is None:
            run = directory(Path(path))
        run.save_now(self.state, resolved(self.config, self.state))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.env!r}, steps={self.steps:,})"


class PPO(Agent):
    """Proximal policy optimisation. It has the members of `Agent` and the settings of `PPOConfig`."""

    algo = "ppo"


class VPG(Agent):
    """Vanilla policy gradient, REINFORCE with a baseline. It has the members of `Agent` and the settings of `VPGConfig`."""

    algo = "vpg"


AGENTS: dict[str, type[Agent]] = {agent.algo: agent for agent in (PPO, VPG)}


def agent_class(algo: str) -> type[Agent]:
    """The agent class of an algorithm; created for an algorithm other than PPO and VPG."""
    if algo not in AGENTS:
        AGENTS[algo] = cast(type[Agent], AgentType(algo.upper(), (Agent,), {"algo": algo}))
    return AGENTS[algo]
