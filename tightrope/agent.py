"""The front door: PPO(...), VPG(...), load(...)."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .algorithms import ALGORITHMS
from .engine import State, apart, stream_seed
from .envs.engines import ENGINES
from .envs.host import HostEnv, one_line, path_of
from .envs.importing import import_module_of
from .errors import UsageError
from .models import NetworkConfig
from .runs.build import build, check_env, make_env, settled
from .runs.checkpoint import Checkpoint
from .runs.config import MOST_EPISODES, Config, configure
from .runs.devices import available, resolve_device
from .runs.directory import RunDirectory, new_run_dir
from .runs.evaluate import Evaluation, evaluate
from .runs.export import Exported, export
from .runs.given import (
    Network,
    ancestor_of,
    check_env_object,
    from_user,
    has_id,
    import_training_env,
    imported,
    is_ours,
    is_path,
    name_of,
    named_by_file,
    needs_import,
    settings_fixed_by,
)
from .runs.record import Recording, Shot, record
from .runs.recover import LOOKS, check_plausible, find, going_on, load_config, restore
from .runs.train import Outcome, train
from .types import Discrete, Env, Settings
from .view import Clip, Live


class Agent:
    """A policy with its environment, settings and training state. Use `PPO` or `VPG`."""

    algo: ClassVar[str]

    def __init__(self, env: Any, *others: Any, network: Network | None = None, **settings: Any) -> None:
        """`env` is an id, module:Class, an environment or a factory of them, of ours or of Gymnasium's. `network` is a
        trunk of one's own: observations in, features (B, F) out. Settings are those of `tightrope train --help`, over the
        env's preset."""
        if others:
            raise UsageError(
                f"{others[0]!r} is one argument too many: give the env alone; the network is chosen from its spaces"
            )
        if settings.pop("algo", self.algo) != self.algo:
            raise UsageError(
                f"algo is fixed: this is tr.{type(self).__name__}. Use another class for another algorithm"
            )
        if network is not None:
            kind = network if isinstance(network, (str, type)) else type(network)
            settings["network"] = kind if isinstance(kind, str) else path_of(kind)
        if isinstance(env, str) and not is_path(env):
            check_env(env, settings.get("backend", "auto"))
            config = configure(env, self.algo, settings)
            import_training_env(config)
            self._setup(config, None, network)
            return
        if isinstance(env, str):
            env = imported(env)
        fixed = settings_fixed_by(env, settings)
        config = configure(name_of(env), self.algo, settings, fixed, preset_env=ancestor_of(env))
        self._setup(config, env, network)

    @classmethod
    def from_config(cls, config: Config, env: Any = None, network: Network | None = None) -> Self:
        """An untrained agent with exactly these settings."""
        import_training_env(config)
        agent = cls.__new__(cls)
        agent._setup(config, env, network)
        return agent

    def _setup(self, config: Config, env: Any, network: Network | None) -> None:
        """Made from the seed alone, whatever streams a user's own environment or network draws from."""
        device = env.device if is_ours(env) else resolve_device(config.run.device)
        with apart(stream_seed(config.run.seed, "setup"), device):
            self._make(config, env, network)

    def _make(self, config: Config, env: Any, network: Network | None) -> None:
        self.config = config
        self.run: RunDirectory | None = None  # where training is being written
        self.loaded: Checkpoint | None = None  # what it goes on from, until it has gone on
        count = config.algorithm.num_envs
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

    def learn(
        self,
        total_timesteps: int | None = None,
        run_dir: str | Path | None = None,
        quiet: bool = False,
        until: int | None = None,
        live: bool = False,
    ) -> Self:
        """Train to `total_timesteps` steps in all (the setting's value if not given), or stop in the middle of that plan
        once there were `until` of them: `learn` again, here or after `tr.load`, and it goes on as if it had never stopped.
        With `live`, a notebook shows a picture of it that changes as it goes."""
        outcome = self.train(total_timesteps, run_dir, quiet, until, live)
        if self.run is not None and outcome.unsaved is not None:
            raise UsageError(
                f"{self.run.complaint(self.state)}. The agent in memory has them: agent.save(another directory)"
            )
        if outcome.interrupted == signal.SIGINT:
            raise KeyboardInterrupt(f"stopped after {self.steps:,} steps, at the end of a phase")
        if outcome.interrupted is not None:  # whoever sent it wants the process to end
            raise SystemExit(128 + outcome.interrupted)
        return self

    def train(
        self,
        total_timesteps: int | None = None,
        run_dir: str | Path | None = None,
        quiet: bool = False,
        until: int | None = None,
        live: bool = False,
    ) -> Outcome:
        """`learn`, reporting how it ended instead of raising when interrupted."""
        config = self.config
        if total_timesteps is not None:
            config = config.changed(total_timesteps=total_timesteps)
        if ALGORITHMS[self.algo].finished(self.state, config.algorithm):
            if not quiet:
                print(self.nothing_to_do(config))
            return Outcome([])
        if until is not None and self.steps >= until:
            return Outcome([])
        self.config = config
        if run_dir is not None and self.run_dir != Path(run_dir).absolute():
            self.run = RunDirectory(new_run_dir(Path(run_dir), config), new=True)  # refuses another run's
        if self.loaded is not None and not quiet:
            for line in going_on(self.loaded, self.state):
                print(line)
        self.loaded = None
        return train(self.state, config, self.score_env, self.run, quiet, until, [Live()] if live else [])

    @property
    def finished(self) -> bool:
        """Whether the plan leaves nothing to do."""
        return ALGORITHMS[self.algo].finished(self.state, self.config.algorithm)

    def nothing_to_do(self, config: Config) -> str:
        if self.state.solved:
            return f"nothing to do: the agent solved its task after {self.steps:,} steps"
        total = config.algorithm.total_timesteps
        more = "" if self.run is None else ". A larger --total-timesteps goes on"
        return (
            f"nothing to do: the agent has {self.steps:,} of {total:,} steps already, and no whole phase is left{more}"
        )

    def evaluate(self, episodes: int = 100, env: str | Env | None = None, seed: int | None = None) -> Evaluation:
        """Greedy episodes in a fresh environment. Changes nothing about the agent or its training."""
        check_episodes(episodes)
        check_seed(seed)
        if isinstance(env, str) and is_path(env):
            env = imported(env)
        where = self.score_env
        if isinstance(env, str):
            import_module_of(env)
            where = make_env(self.config, env, 1, scoring=True)
        elif env is not None:
            check_env_object(env)
            where = from_user(env, self.config, 1)
        if (where.observation, where.action) != (self.state.env.observation, self.state.env.action):
            name = env if isinstance(env, str) else name_of(where)
            raise UsageError(f"env {name!r} has other spaces than {self.config.env!r}, on which this agent was trained")
        if seed is None:
            seed = stream_seed(self.config.run.seed, "evaluate")
        return evaluate(self.state.policy, where, episodes, seed, captured=self.state.execution.unit == "phase")

    def record(self, path: str | Path, episodes: int | None = None, seed: int | None = None, **shot: Any) -> Recording:
        """Film greedy episodes in a fresh environment as an MP4: one after the other, or side by side with grid=True.

        `every` shows every so-many-th step, `fps` sets frames a second (real time if neither is given), `stochastic` draws
        actions as in training. Changes nothing about the agent or its training.
        """
        path = Path(path)
        if path.suffix != ".mp4":
            raise UsageError(f"path {path} is not a video: give a name that ends in .mp4")
        check_seed(seed)
        wrong = sorted(shot.keys() - {field.name for field in fields(Shot)})
        if wrong:
            raise UsageError(f"unknown option {wrong[0]!r} of record: give grid, every, fps or stochastic")
        seed = stream_seed(self.config.run.seed, "record") if seed is None else seed
        try:
            return record(
                self.state.policy, self.score_env, path, seed, Shot(episodes=episodes, **shot), self.config.env
            )
        except OSError as error:
            raise UsageError(f"path {path} cannot be written: {error.strerror or error}") from None

    def show(self, episodes: int | None = None, seed: int | None = None, **shot: Any) -> Clip:
        """The same for a notebook, which plays what this returns."""
        with tempfile.TemporaryDirectory() as folder:
            film = self.record(Path(folder, "clip.mp4"), episodes, seed, **shot)
            return Clip(film.path.read_bytes(), film.frames)

    @torch.no_grad()
    def predict(self, obs: Any, deterministic: bool = True) -> Any:
        """The action for one observation or a batch; an array for an array, a tensor for a tensor."""
        env, as_tensor = self.state.env, isinstance(obs, Tensor)
        if isinstance(env, HostEnv):
            batch, single = env.encode(obs)
        else:
            spec = env.observation
            batch = torch.as_tensor(obs, dtype=spec.dtype, device=env.device)
            single = batch.shape == spec.shape
            batch = batch[None] if single else batch
            if batch.shape[1:] != spec.shape:
                raise UsageError(
                    f"an observation of shape {tuple(batch.shape)} does not fit: give {spec.shape} or (B, *{spec.shape})"
                )
        distribution = self.state.policy.distribution(batch)
        if deterministic:
            action = distribution.mode()
        else:
            generator = torch.Generator(batch.device).manual_seed(int(torch.randint(2**62, ())))
            action = distribution.sample(self.state.policy.head.noise((len(batch),), generator))
        action = self.state.policy.head.to_env(action)
        array = env.decode(action) if isinstance(env, HostEnv) else action.cpu().numpy()
        if as_tensor:
            members = torch.as_tensor(array, device=action.device) if isinstance(env, HostEnv) else action
            return members[0] if single else members
        if not single:
            return array
        return int(array[0]) if isinstance(env.action, Discrete) else array[0]

    def save(self, path: str | Path) -> None:
        """Write settings and state to a directory, in formats that cannot run code. An agent saved there is replaced,
        another run that was trained there is not."""
        run = self.run if self.run_dir == Path(path).absolute() else None
        if run is None:
            run = RunDirectory(Path(path))
        run.save_apart(self.state, settled(self.config, self.state))

    def export(self, path: str | Path) -> Exported:
        """Write the greedy policy to an ONNX file, from the environment's observations to its actions, once onnxruntime has
        been held to torch on it. Replaces a file of that name. Changes nothing about the agent or its training."""
        about = {"env": self.config.env, "algo": self.algo, "steps": self.steps}
        return export(self.state.policy, self.score_env, Path(path), stream_seed(self.config.run.seed, "export"), about)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.env!r}, steps={self.steps:,})"


class PPO(Agent):
    """Proximal policy optimisation."""

    algo = "ppo"


class VPG(Agent):
    """Vanilla policy gradient, REINFORCE with a baseline."""

    algo = "vpg"


AGENTS: dict[str, type[Agent]] = {agent.algo: agent for agent in (PPO, VPG)}


def load(
    path: str | Path,
    env: Any = None,
    checkpoint: str = "last",
    network: Network | None = None,
    **settings: Any,
) -> Agent:
    """The agent saved in a directory: its newest checkpoint, its `best`, or the one of that name.

    An environment or network of one's own is passed. Settings given here win. Loaded from its newest checkpoint a run goes on
    where it was: `learn` writes to its directory.
    """
    path = Path(path)
    for left in reversed(range(LOOKS)):
        found = find(path, checkpoint)
        try:
            env = named(env, found.config) if isinstance(env, str) else env
            config = adapted(found.config, settings, env)
            check_kept(found.config.flat(), config.flat())
            check_plausible(found, config)
            agent = made(config, path, env, network)
            restore(agent.state, found)
            break
        except UsageError:
            if not left or found.path.exists():  # otherwise dropped meanwhile by who trains it: look again
                raise
    agent.loaded = found
    if checkpoint == "last" and found.path != path:
        agent.run = RunDirectory(path, found)
    return agent


def named(env: str, config: Config) -> Any:
    """What a user's words for an environment mean: module:Class of one's own, or the run's own id, which says nothing new."""
    if is_path(env):
        return imported(env)
    if env != config.env:
        raise UsageError(
            f"env {env!r} is not {config.env!r}, on which the run was trained: give it to evaluate(env=...)"
        )
    return None


def begin_anew(path: Path, env: Any = None, network: Network | None = None, **settings: Any) -> Agent:
    """The agent of a run that was stopped before its first checkpoint: its settings, from the beginning."""
    agent = made(adapted(load_config(path), settings, env), path, env, network)
    agent.run = RunDirectory(path)
    return agent


def adapted(config: Config, settings: Settings, env: Any) -> Config:
    """The settings of a run as this machine can serve them."""
    settings = dict(settings)
    if "env_kwargs" not in settings:
        check_arguments(config.run.env_kwargs)
    if is_ours(env):
        settings.setdefault("device", env.device.type)
    if config.run.device not in ("auto", "cpu") and not available(config.run.device):
        settings.setdefault("device", "auto")
    if config.run.backend in ENGINES and not ENGINES[config.run.backend].installed:
        settings.setdefault("backend", "auto")
    if settings.get("device", config.run.device) != config.run.device:
        settings.setdefault("accelerate", "auto")
    return config.changed(**settings)


def check_arguments(env_kwargs: Settings) -> None:
    """Refuse arguments of an environment that open windows or files, as long as only a file says so."""
    for name, value in env_kwargs.items():
        if name == "render_mode" or (isinstance(value, str) and ("/" in value or "\\" in value)):
            raise UsageError(
                f"env_kwargs {name}={value!r} of the run opens what a file may not name: if it is yours, pass them again, "
                f"tr.load(path, env_kwargs={{...}})"
            )


def check_kept(before: Settings, after: Settings) -> None:
    """Refuse settings that what was trained cannot take on."""
    for name in ("num_envs", "num_steps", *(field.name for field in fields(NetworkConfig) if field.name != "network")):
        if after[name] != before[name]:
            raise UsageError(
                f"{name} {after[name]} is not the {before[name]} of the run, which it keeps: drop it, or train a new one"
            )


def made(config: Config, path: Path, env: Any, network: Network | None) -> Agent:
    """An untrained agent with the settings of a saved run, and with the user's own code if the user gave it."""
    env_is_users = env is not None
    if env_is_users:
        check_env_object(env)
    elif needs_import(config.env) or not has_id(config.env):  # in this order: to ask for an id may import its module
        env = named_by_file(config.env, path, "was trained on", "env")
    if config.run.train_env is not None and (is_path(config.run.train_env) or needs_import(config.run.train_env)):
        raise UsageError(f"{path} was trained on {config.run.train_env}, which a file may not import: import it first")
    if config.network.network is not None and network is None:
        network = named_by_file(config.network.network, path, "has a network of your own,", "network")
    if is_ours(env) and env.num_envs != config.algorithm.num_envs:
        env = env.spawn(config.algorithm.num_envs, seed=0)  # as many as were trained on
    try:
        agent = AGENTS[config.algo].__new__(AGENTS[config.algo])
        agent._setup(config, env, network)  # not as a user's settings, which may import
        return agent
    except (NotImplementedError, AttributeError, TypeError) as error:
        if env_is_users:
            raise
        raise UsageError(f"{path} names {config.env}, which cannot be made: {one_line(error)}") from error


def check_seed(seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 2**63:
        raise UsageError(f"seed {seed} is out of range: give a whole number from 0 to 2^63 - 1")


def check_episodes(episodes: int) -> None:
    if not isinstance(episodes, int) or not 1 <= episodes <= MOST_EPISODES:
        raise UsageError(f"episodes {episodes!r} will not do: give a whole number from 1 to {MOST_EPISODES:,}")
