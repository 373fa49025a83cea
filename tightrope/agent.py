"""The front door: PPO(...), VPG(...). What was saved comes back by `saved.load`."""

from __future__ import annotations

import atexit
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch

from . import activity
from .engine import State, apart, stream_seed, world
from .engine.across_ranks import check_same_settings
from .engine.distributed import broadcast_from_rank0, join, set_rank_timeout
from .errors import UsageError, checked_seed, plural, warn
from .logging import Callback, Clip, NotebookPicture
from .output import print_line
from .training.build import build, check_env, configured, configured_with, make_env, per_rank_config, resolved
from .training.callbacks import check_callbacks
from .training.checkpoint import Checkpoint
from .training.config import MOST_EPISODES, Config, check_changeable
from .training.devices import resolve_device
from .training.evaluate import Evaluation, Tick, evaluate_policy
from .training.export import Exported, export_policy
from .training.names import AgentType, check_run_dir, known_arguments, missing_member, one_too_many
from .training.persistence import find_on_all_ranks, has_checkpoints, restore, resume_notes
from .training.policy import predict
from .training.record import RecordedVideo, Shot, record_video
from .training.run_directory import RunDirectory, begun_before, directory, new_run_dir
from .training.scoring import Score, is_complete, options_of, other_env, reached
from .training.signals import Interrupted, Interrupts
from .training.trainer import Outcome, Trainer
from .training.user_objects import (
    Network,
    from_user,
    implements_env,
    import_training_env,
    imported,
    is_path,
    network_path,
    settings_fixed_by,
    short_name,
)
from .types import Env


class Agent(metaclass=AgentType):
    """A policy with its environment, settings and training state. Use `PPO` or `VPG`."""

    algo: ClassVar[str]

    def __init__(self, env: Any, *others: Any, network: Network | None = None, **settings: Any) -> None:
        """Make an untrained agent.

        Args:
            env: An id, module:Class, an environment, or a class or function that makes one: a TensorEnv or Gymnasium's.
            network: A network of your own from observations to features (B, F): its class or a function that makes it, whose
                weights follow the seed, or an instance, which is copied with its weights.
            settings: Those of `tightrope train --help`. They win over the environment's preset.
        """
        join()
        if others:
            raise UsageError(one_too_many(env, others[0], type(self).__name__))
        if settings.pop("algo", self.algo) != self.algo:
            raise UsageError(
                f"algo is fixed: this is tr.{type(self).__name__}. Use another class for another algorithm"
            )
        if network is not None:
            settings["network"] = network_path(network)
        if isinstance(env, str) and not is_path(env):
            check_env(env, settings.get("backend", "auto"))
            config = configured(env, self.algo, settings)
            import_training_env(config.run.train_env)
            self._setup(config, None, network)
            return
        if isinstance(env, str):
            env = imported(env)
        config, env = configured_with(env, self.algo, settings, settings_fixed_by(env, settings))
        self._setup(config, env, network)

    @classmethod
    def from_config(cls, config: Config, env: Any = None, network: Network | None = None) -> Self:
        """An untrained agent with exactly these settings."""
        join()
        import_training_env(config.run.train_env)
        agent = cls.__new__(cls)
        agent._setup(config, env, network)
        return agent

    def _setup(self, config: Config, env: Any, network: Network | None) -> None:
        """Made from the seed alone, whatever streams a user's own environment or network draws from."""
        device = env.device if implements_env(env) else resolve_device(config.run.device)
        set_rank_timeout(config.run.rank_timeout)
        try:
            with (
                activity.during("making its agent"),
                apart(stream_seed(config.run.seed, "setup", rank=world().rank), device),
            ):
                self._make(config, env, network)
        except UsageError as error:
            raise error.with_traceback(None) from None  # the user's mistake: our own lines would only hide it

    def _make(self, config: Config, env: Any, network: Network | None) -> None:
        self.config, self.closed = config, False
        self.training: Trainer | None = None  # under way
        self.run: RunDirectory | None = None  # where training is being written
        self.loaded: Checkpoint | None = None  # what it goes on from, until it has gone on
        self.notes: list[str] = []  # what the user of a loaded run should know
        count = per_rank_config(config.algorithm, world().size).num_envs
        given: Env | None = None if env is None else from_user(env, config, count)
        if given is not None and given.num_envs != count:
            raise UsageError(f"num_envs {count} of the run is not the {given.num_envs} of the environment given")
        self.state: State = build(config, given, network)
        self.score_env: Env = given if given is not None else make_env(config, config.env, 1, scoring=True)
        if (self.score_env.observation, self.score_env.action) != (self.state.env.observation, self.state.env.action):
            raise UsageError(f"train_env {config.run.train_env!r} and env {config.env!r} have different spaces")

    @property
    def policy(self) -> torch.nn.Module:
        """The network: `distribution, value = agent.policy(obs)`."""
        return self.state.policy

    @property
    def steps(self) -> int:
        """Environment steps trained on so far."""
        return self.state.steps

    @property
    def run_dir(self) -> Path | None:
        """Where training is being written."""
        return None if self.run is None else self.run.path

    @known_arguments
    def learn(
        self,
        total_timesteps: int | None = None,
        run_dir: str | Path | None = None,
        quiet: bool = False,
        until: int | None = None,
        live: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train to `total_timesteps` steps in all (the setting's value if not given), or stop in the middle of that plan
        once there were `until` of them: `learn` again, here or after `tr.load`, and it goes on as if it had never stopped.
        With `live`, a notebook shows a picture of it that changes as it goes. `callbacks` are `tr.Callback` objects, which
        are called while training runs and may stop it."""
        self._check(self.train(total_timesteps, run_dir, quiet, until, live, callbacks))
        return self

    @known_arguments
    def phases(
        self,
        total_timesteps: int | None = None,
        run_dir: str | Path | None = None,
        quiet: bool = True,
        until: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Iterator[dict[str, Any]]:
        """Train as `learn` does, with the metrics of each phase handed to a loop of your own:

            for row in agent.phases(run_dir="runs/mine"):
                if row["step"] > 50_000:
                    agent.change(ent_coef=0.0)
                if agent.evaluate(20).mean >= 475:
                    break

        A row is one of metrics.jsonl. Between two phases the agent may be evaluated, recorded, exported and changed. Leaving
        the loop, by `break` or by an exception, ends training: the run is saved and can be resumed."""
        training = self._training(total_timesteps, run_dir, quiet, until, callbacks, suspends=True)
        return iter(()) if training is None else self._handed_out(training)

    def _handed_out(self, training: Trainer) -> Iterator[dict[str, Any]]:
        rows = training.phases()
        atexit.register(rows.close)  # a program that ends inside the loop leaves a whole run too
        try:
            self.training = training
            yield from rows
        finally:
            self.training = None
            atexit.unregister(rows.close)
        self._check(training.outcome)

    def change(self, **settings: Any) -> None:
        """Change settings of the algorithm or of evaluations and checkpoints: from the next phase on, also in the middle of
        training. A schedule goes on as if it had begun with the new value. Call it on every rank alike."""
        check_changeable(self.config, settings)
        self.config = self.config.changed(**settings)
        if self.training is not None:
            self.training.change(self.training.config.changed(**settings))

    def _check(self, outcome: Outcome) -> None:
        """Raise what a training that was interrupted or could not be saved has to raise."""
        if self.run is not None and outcome.unsaved is not None:
            raise UsageError(
                f"{self.run.complaint(self.state)}. The agent in memory has them: agent.save(another directory)"
            )
        if outcome.interrupted == signal.SIGINT:
            raise KeyboardInterrupt(f"stopped after {self.steps:,} steps, at the end of a phase")
        if outcome.interrupted is not None:  # the sender wants the process to end
            raise SystemExit(128 + outcome.interrupted)

    def train(
        self,
        total_timesteps: int | None = None,
        run_dir: str | Path | None = None,
        quiet: bool = False,
        until: int | None = None,
        live: bool = False,
        callbacks: Sequence[Callback] = (),
        score_episodes: int = 0,
    ) -> Outcome:
        """`learn`, reporting how it ended instead of raising when interrupted. What was learned is scored on so many greedy
        episodes, which trackers and the report show too."""
        pictures = [NotebookPicture()] if live else []
        score = partial(self._score, score_episodes) if score_episodes else None
        self.training = self._training(total_timesteps, run_dir, quiet, until, callbacks, pictures, score)
        if self.training is None:
            return Outcome([])
        try:
            for _ in self.training.phases():
                pass
            return self.training.outcome
        finally:
            self.training = None

    def _training(
        self,
        total_timesteps: int | None,
        run_dir: str | Path | None,
        quiet: bool,
        until: int | None,
        callbacks: Sequence[Callback],
        more: Sequence[Callback] = (),
        score: Score | None = None,
        suspends: bool = False,
    ) -> Trainer | None:
        """A training that has not begun; None if nothing is left to do."""
        check_run_dir(run_dir)
        check_callbacks(callbacks)
        self.check_open()
        if self.training is not None:
            raise UsageError("this agent is being trained already: leave the loop over agent.phases() first")
        config, quiet = self.config, quiet or not world().is_rank0
        if total_timesteps is not None:
            config = config.changed(total_timesteps=total_timesteps)
        set_rank_timeout(config.run.rank_timeout)
        check_same_settings(config.flat() | {"threads": None, "until": until, "run_dir": run_dir is not None})
        if is_complete(self.state, config):
            if not quiet:
                print_line(self.nothing_to_do(config))
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
        if self.loaded is not None and not quiet:
            for line in resume_notes(self.loaded, self.state):
                print_line(line)
        self.loaded = None
        own = [*more, *callbacks]
        return Trainer(self.state, config, self.score_env, self.run, quiet, until, own, score, suspends)

    def _again(self, begun: Path) -> RunDirectory:
        """Go on where this program was when torchrun restarted it."""
        if broadcast_from_rank0(lambda: b"yes" if has_checkpoints(begun) else b""):
            self.loaded = find_on_all_ranks(begun)
            restore(self.state, self.loaded)
        return directory(begun, self.loaded)

    @property
    def finished(self) -> bool:
        """Whether the plan leaves nothing to do."""
        return is_complete(self.state, self.config)

    def nothing_to_do(self, config: Config) -> str:
        if reached(self.state, config):
            return (
                f"nothing to do: an evaluation returned {self.state.best_score:.2f}, and stop_at_return is "
                f"{config.run.stop_at_return:g}. A higher one goes on"
            )
        if self.state.solved:
            return f"nothing to do: the agent solved its task after {plural(self.steps, 'step')}"
        total = config.algorithm.total_timesteps
        more = "" if self.run is None else ". A larger --total-timesteps goes on"
        return (
            f"nothing to do: the agent has {self.steps:,} of {total:,} steps already, and no whole phase is left{more}"
        )

    @known_arguments
    def evaluate(
        self,
        episodes: int = 100,
        env: str | Env | None = None,
        seed: int | None = None,
        deterministic: bool = True,
        eval_seconds: float | None = None,
        eval_envs: int | None = None,
        tick: Tick = lambda over: None,
    ) -> Evaluation:
        """Play episodes in fresh environments and return their score. The agent and its training stay as they are.

        Ctrl-C ends it with KeyboardInterrupt, other signals with SystemExit.

        Args:
            episodes: How many.
            env: Another environment with the same spaces; the agent's own if not given.
            seed: Of these environments; follows from the agent's seed if not given, so that the same numbers come again.
            deterministic: Take the likeliest action; otherwise draw actions as in training.
            eval_seconds: A time limit. If it is reached, the score is of the episodes finished so far.
            eval_envs: Environments that play at once, where they are engines on the host; as in the settings if not given.
            tick: Called after every step with the number of episodes that are over.
        """
        self.check_open()
        check_episodes(episodes)
        if not isinstance(deterministic, bool):
            raise UsageError(f"deterministic {deterministic!r} is not True or False")
        seed = None if seed is None else checked_seed(seed)
        if eval_seconds is not None and not eval_seconds > 0:
            raise UsageError(
                f"eval_seconds {eval_seconds} is not positive: give a number above 0, or None for no limit"
            )
        seed = stream_seed(self.config.run.seed, "evaluate") if seed is None else seed
        config = self.config if eval_envs is None else self.config.changed(eval_envs=eval_envs)
        options = replace(options_of(config, self.state), deterministic=deterministic, seconds=eval_seconds)
        where, made_here = self.score_env, False
        if env is not None:
            with apart(seed, self.state.env.device):
                where, made_here = other_env(env, self.config, self.state.env, options.width(episodes))
            options = replace(options, in_itself=made_here)
        try:
            return evaluate_policy(self.state.policy, where, episodes, seed, options, tick=tick)
        except Interrupted as error:
            raise error.as_exit() from None
        finally:
            if made_here:
                where.close()

    def _score(self, episodes: int, interrupts: Interrupts, tick: Tick) -> Evaluation:
        """What was learned, at the end of training."""
        seed, options = stream_seed(self.config.run.seed, "evaluate"), options_of(self.config, self.state)
        return evaluate_policy(self.state.policy, self.score_env, episodes, seed, options, interrupts, tick)

    def record(
        self, path: str | Path, episodes: int | None = None, seed: int | None = None, **shot: Any
    ) -> RecordedVideo:
        """Write a video of greedy episodes in a fresh environment. The agent and its training stay as they are.

        Args:
            path: An MP4 file; one of that name is replaced.
            episodes: How many; 1, or 16 with grid=True, if not given.
            seed: Of the environments; follows from the agent's seed if not given.
            shot: `grid` shows episodes side by side, `every` every so-many-th step, `fps` sets frames per second (real time
                if neither is given), `stochastic` draws actions as in training.
        """
        self.check_open()
        path = Path(path)
        if path.suffix != ".mp4":
            raise UsageError(f"path {path} is not a video: give a name that ends in .mp4")
        seed = None if seed is None else checked_seed(seed)
        wrong = sorted(shot.keys() - {field.name for field in fields(Shot)})
        if wrong:
            raise UsageError(f"unknown option {wrong[0]!r} of record: give grid, every, fps or stochastic")
        seed = stream_seed(self.config.run.seed, "record") if seed is None else seed
        try:
            title = short_name(self.config.env)
            return record_video(self.state.policy, self.score_env, path, seed, Shot(episodes=episodes, **shot), title)
        except Interrupted as error:
            raise error.as_exit() from None
        except OSError as error:
            raise UsageError(f"path {path} cannot be written: {error.strerror or error}") from None

    def show(self, episodes: int | None = None, seed: int | None = None, **shot: Any) -> Clip:
        """Record episodes as `record` does, for a notebook, which plays what this returns."""
        with tempfile.TemporaryDirectory() as folder:
            film = self.record(Path(folder, "clip.mp4"), episodes, seed, **shot)
            return Clip(film.path.read_bytes(), film.frames)

    @known_arguments
    def predict(self, obs: Any, deterministic: bool = True) -> Any:
        """The action for one observation or a batch; an array for an array, a tensor for a tensor. `(obs, info)` of a reset
        may be given as it is. Not `deterministic` draws the action as in training."""
        return predict(self.state.policy, self.state.env, obs, deterministic)

    @known_arguments
    def save(self, path: str | Path) -> None:
        """Write settings and state to a directory, in formats that cannot run code. An agent saved there is replaced,
        another run that was trained there is not."""
        run = self.run if self.run_dir == Path(path).absolute() else None
        if run is None:
            run = directory(Path(path))
        run.save_untrained(self.state, resolved(self.config, self.state))

    def export(self, path: str | Path) -> Exported:
        """Write the greedy policy, from the environment's observations to its actions, to an ONNX file, after onnxruntime and
        torch have agreed on it. A file of that name is replaced."""
        about = {"env": self.config.env, "algo": self.algo, "steps": self.steps}
        return export_policy(
            self.state.policy, self.score_env, Path(path), stream_seed(self.config.run.seed, "export"), about
        )

    def close(self) -> None:
        """Close the environments, also one that was given. What was learned stays: predict, save and export still work."""
        if not self.closed:
            self.closed = True
            self.state.env.close()
            if self.score_env is not self.state.env:
                self.score_env.close()

    def check_open(self) -> None:
        if self.closed:
            raise UsageError("this agent is closed and has no environments: make another, or tr.load what was saved")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:  # otherwise what went wrong first is what matters
                raise

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_member(type(self), name)

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
    """The class of an algorithm's agents, made for an algorithm that has none here."""
    if algo not in AGENTS:
        AGENTS[algo] = cast(type[Agent], AgentType(algo.upper(), (Agent,), {"algo": algo}))
    return AGENTS[algo]


def check_episodes(episodes: int) -> None:
    if not isinstance(episodes, int) or not 1 <= episodes <= MOST_EPISODES:
        raise UsageError(f"episodes {episodes!r} is invalid: give a whole number from 1 to {MOST_EPISODES:,}")
