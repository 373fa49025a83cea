"""The methods of an agent besides training: evaluate, predict, record, show, play, imitate, export."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from .engine import State, isolated_rng, stream_seed
from .envs.with_memory import without_memory
from .errors import UsageError, check_count, checked_seed
from .logging import Clip
from .training.config import MAX_EPISODES, Config
from .training.evaluate import Evaluation, Tick, evaluate_policy
from .training.export import Exported, export_policy
from .training.names import known_arguments, missing_member
from .training.own_code import short_name
from .training.predict import predict
from .training.scoring import evaluation_env, options_of
from .training.signals import Interrupted
from .training.video import RecordedVideo, Shot, record_video
from .training.warm_start import Imitation, imitate
from .types import Env

if TYPE_CHECKING:
    from .play.game import Game
    from .play.page import PlayPage


class AgentBase:
    """A policy with its settings, its training environments and the environment of its evaluations."""

    algo: ClassVar[str]
    config: Config
    state: State
    score_env: Env
    closed: bool

    @property
    def policy(self) -> torch.nn.Module:
        """The network: `distribution, value = agent.policy(obs)`."""
        return self.state.policy

    @property
    def steps(self) -> int:
        """Environment steps trained on so far."""
        return self.state.steps

    @known_arguments
    def evaluate(
        self, episodes: int = 100, env: str | Env | None = None, seed: int | None = None, deterministic: bool = True,
        eval_seconds: float | None = None, eval_envs: int | None = None, tick: Tick = lambda over: None,
    ) -> Evaluation:  # fmt: skip
        """Play episodes in fresh environments and return their score. The agent and its training do not change.

        Ctrl-C raises KeyboardInterrupt, other signals SystemExit.

        Args:
            episodes: Number of episodes.
            env: Another environment with the same spaces; the agent's own if not given.
            seed: Seed of the environments; derived from the agent's seed if not given, so that calls repeat exactly.
            deterministic: Take the likeliest action; otherwise sample actions as in training.
            eval_seconds: Time limit. If it is reached, the score covers the episodes finished so far.
            eval_envs: Number of environments at once, if they run outside torch; the setting if not given.
            tick: Called after every step with the number of finished episodes.
        """
        self.check_open()
        check_count("episodes", episodes, MAX_EPISODES)
        if not isinstance(deterministic, bool):
            raise UsageError(f"deterministic {deterministic!r} is not True or False")
        if eval_seconds is not None and not eval_seconds > 0:
            raise UsageError(f"eval_seconds {eval_seconds} is invalid: give a number above 0, or None for no limit")
        seed = self._seed("evaluate", seed)
        config = self.config if eval_envs is None else self.config.changed(eval_envs=eval_envs)
        options = replace(options_of(config, self.state), deterministic=deterministic, seconds=eval_seconds)
        where, made_here = self.score_env, False
        if env is not None:
            with isolated_rng(seed, self.state.env.device):
                where, made_here = evaluation_env(
                    env, self.config, without_memory(self.state.env), options.width(episodes)
                )
            options = replace(options, in_itself=made_here)
        try:
            return evaluate_policy(self.state.policy, where, episodes, seed, options, tick=tick)
        except Interrupted as error:
            raise error.as_exit() from None
        finally:
            if made_here:
                where.close()

    def record(
        self, path: str | Path, episodes: int | None = None, seed: int | None = None, **shot: Any
    ) -> RecordedVideo:
        """Write a video of greedy episodes in a fresh environment. The agent and its training do not change.

        Args:
            path: An MP4 file; an existing file is replaced.
            episodes: Number of episodes; 1, or 16 with grid=True, if not given.
            seed: Seed of the environments; derived from the agent's seed if not given.
            shot: `grid=True` shows episodes side by side, `every=n` shows every n-th step, `fps` sets frames per second (real
                time if neither is given), `stochastic=True` samples actions as in training.
        """
        self.check_open()
        path = Path(path)
        if path.suffix != ".mp4":
            raise UsageError(f"path {path} is not a video: give a name that ends in .mp4")
        seed = self._seed("record", seed)
        if wrong := sorted(shot.keys() - {field.name for field in fields(Shot)}):
            raise UsageError(f"unknown option {wrong[0]!r} of record: give grid, every, fps or stochastic")
        try:
            title = short_name(self.config.env)
            return record_video(self.state.policy, self.score_env, path, seed, Shot(episodes=episodes, **shot), title)
        except Interrupted as error:
            raise error.as_exit() from None
        except OSError as error:
            raise UsageError(f"path {path} cannot be written: {error.strerror or error}") from None

    def play(self, path: str | Path = "play.html", *others: AgentBase, seed: int | None = None) -> PlayPage:
        """Write a page on which the policy plays in a browser, beside those of `others` if some are given. Its tensor
        environment is recorded and checked against torch. The agent does not change."""
        from .play.page import write_play_page

        path, seed = Path(path), self._seed("play", seed)
        if path.suffix not in (".html", ".htm"):
            raise UsageError(f"path {path} is not a page: give a name that ends in .html")
        return write_play_page([each.game(seed, named=bool(others)) for each in (self, *others)], path, seed)

    def game(self, seed: int, named: bool = False) -> Game:
        """The recorded policy and environment. The run's name is part of its title if it is `named`."""
        from .play.page import checked_game

        self.check_open()
        run = getattr(self, "run_dir", None) if named else None
        title = f"{short_name(self.config.env)} {self.algo.upper()}" + ("" if run is None else f" · {run.name}")
        return checked_game(self.state.policy, self.score_env, seed, title, self.steps)

    def _seed(self, what: str, seed: int | None) -> int:
        """The given seed, or one derived from the agent's."""
        return stream_seed(self.config.run.seed, what) if seed is None else checked_seed(seed)

    def show(self, episodes: int | None = None, seed: int | None = None, **shot: Any) -> Clip:
        """Record episodes as `record` does and return a clip that a notebook plays."""
        with tempfile.TemporaryDirectory() as folder:
            film = self.record(Path(folder, "clip.mp4"), episodes, seed, **shot)
            return Clip(film.path.read_bytes(), film.frames)

    @known_arguments
    def predict(self, obs: Any, state: Any = None, deterministic: bool = True, mask: object = None) -> Any:
        """The action for one observation or a batch; an array for an array, a tensor for a tensor. The `(obs, info)` of a reset
        may be given too. With deterministic=False the action is sampled as in training. `mask` has a 1 for each allowed option,
        for environments with action masks whose observations do not hold them.

        An agent with memory returns (action, state): give the state with the next observation, and None when an episode starts;
        of a batch, set the rows of episodes that start to 0."""
        return predict(self.state.policy, without_memory(self.state.env), obs, state, deterministic, mask)

    @known_arguments
    def imitate(
        self, teacher: object, steps: int = 100_000, epochs: int = 10, learning_rate: float = 3e-3
    ) -> Imitation:
        """Learn a teacher's actions by maximum likelihood, and the values of what it does, before training begins.

        Args:
            teacher: A run, an agent or a loaded policy with the same spaces, which may see more parts of the observation; or a
                .npz or .safetensors file with arrays obs and action, one row each in the order of time.
            steps: Steps that the teacher takes, in fresh copies of the environments and with sampled actions.
            epochs: Passes over these steps.
            learning_rate: Step size of Adam, which decays to 0.
        """
        self.check_open()
        return imitate(self.state, self.config, teacher, steps, epochs, learning_rate)

    def export(self, path: str | Path) -> Exported:
        """Write the greedy policy, from the environment's observations to its actions, to an ONNX file, if onnxruntime agrees
        with torch. An existing file is replaced."""
        about = {"env": self.config.env, "algo": self.algo, "steps": self.steps}
        return export_policy(self.state.policy, self.score_env, Path(path), self._seed("export", None), about)

    def close(self) -> None:
        """Close the environments, including one that was passed in. The agent can still predict, save and export."""
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
            if kind is None:  # otherwise the first error matters, not one of closing
                raise

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_member(type(self).__name__, name)
