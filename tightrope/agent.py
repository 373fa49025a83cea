"""The front door: PPO(...), VPG(...), load(...)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .algorithms import ALGORITHMS
from .engine import State, stream_seed
from .envs import ENVS
from .envs.engines import ENGINES
from .envs.host import HostEnv, path_of
from .errors import UsageError
from .runs.build import available, build, check_env, from_user, has_id, imported, is_ours, is_path, make_env, settled
from .runs.checkpoint import load_config, load_tensors, restore, save_config, save_state
from .runs.config import MOST_EPISODES, Config, configure
from .runs.evaluate import Evaluation, evaluate
from .runs.record import record
from .runs.train import Outcome, new_run_dir, train
from .types import Discrete, Env, Settings


class Agent:
    """A policy with its environment, settings and training state. Use `PPO` or `VPG`."""

    algo: ClassVar[str]

    def __init__(self, env: Any, *others: Any, network: nn.Module | str | None = None, **settings: Any) -> None:
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
            settings["network"] = network if isinstance(network, str) else path_of(type(network))
        if isinstance(env, str) and not is_path(env):
            check_env(env, settings.get("backend", "auto"))
            self._setup(configure(env, self.algo, settings), None, network)
            return
        if isinstance(env, str):
            env = imported(env)
        fixed = settings_fixed_by(env, settings)
        config = configure(name_of(env), self.algo, settings, fixed, preset_env=ancestor_of(env))
        self._setup(config, env, network)

    @classmethod
    def from_config(cls, config: Config, env: Any = None, network: nn.Module | str | None = None) -> Self:
        """An untrained agent with exactly these settings."""
        agent = cls.__new__(cls)
        agent._setup(config, env, network)
        return agent

    def _setup(self, config: Config, env: Any, network: nn.Module | str | None) -> None:
        self.config = config
        self.run_dir: Path | None = None  # where this agent's training is being written
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

    def learn(self, total_timesteps: int | None = None, run_dir: str | Path | None = None, quiet: bool = False) -> Self:
        """Train to `total_timesteps` steps in all (the setting's value if not given)."""
        outcome = self.train(total_timesteps, run_dir, quiet)
        if outcome.interrupted is not None:
            raise KeyboardInterrupt(f"stopped after {self.steps:,} steps, at the end of a phase")
        return self

    def train(
        self, total_timesteps: int | None = None, run_dir: str | Path | None = None, quiet: bool = False
    ) -> Outcome:
        """`learn`, reporting how it ended instead of raising when interrupted."""
        config = self.config
        if total_timesteps is not None:
            config = config.changed(total_timesteps=total_timesteps)
        if ALGORITHMS[self.algo].finished(self.state, config.algorithm):
            if not quiet:
                total = config.algorithm.total_timesteps
                print(
                    f"nothing to do: the agent has {self.steps:,} of {total:,} steps already, and no whole phase is left"
                )
            return Outcome([], None)
        self.config = config
        if run_dir is not None and self.run_dir != Path(run_dir).absolute():
            new_run_dir(Path(run_dir), self.config)  # refuses another run's directory
            self.run_dir = Path(run_dir).absolute()
        return train(self.state, self.config, self.score_env, self.run_dir if run_dir is not None else None, quiet)

    def evaluate(self, episodes: int = 100, env: str | Env | None = None, seed: int | None = None) -> Evaluation:
        """Greedy episodes in a fresh environment. Changes nothing about the agent or its training."""
        check_episodes(episodes)
        if seed is not None and not 0 <= seed < 2**63:
            raise UsageError(f"seed {seed} is out of range: give a whole number from 0 to 2^63 - 1")
        if isinstance(env, str) and is_path(env):
            env = imported(env)
        where = self.score_env
        if isinstance(env, str):
            where = make_env(self.config, env, 1, scoring=True)
        elif env is not None:
            check_env_object(env)
            where = from_user(env, self.config, 1)
        if (where.observation, where.action) != (self.state.env.observation, self.state.env.action):
            name = env if isinstance(env, str) else name_of(where)
            raise UsageError(f"env {name!r} has other spaces than {self.config.env!r}, on which this agent was trained")
        if seed is None:
            seed = stream_seed(self.config.run.seed, "evaluate")
        return evaluate(self.state.policy, where, episodes, seed)

    def record(self, path: str | Path, episodes: int = 16, seed: int | None = None) -> Path:
        """Write greedy episodes, side by side, to an MP4. Changes nothing about the agent or its training."""
        check_episodes(episodes)
        path = Path(path)
        if path.suffix != ".mp4":
            raise UsageError(f"path {path} is not a video: give a name that ends in .mp4")
        seed = stream_seed(self.config.run.seed, "record") if seed is None else seed
        try:
            record(self.state.policy, self.score_env, path, episodes, seed)
        except OSError as error:
            raise UsageError(f"path {path} cannot be written: {error.strerror}") from None
        return path

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
        """Write settings and state to a directory, in formats that cannot run code."""
        try:
            save_state(Path(path), self.state)
            save_config(Path(path), settled(self.config))
        except OSError as error:
            raise UsageError(f"path {path} cannot be written: {error.strerror}") from None

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
    network: nn.Module | str | None = None,
    **settings: Any,
) -> Agent:
    """The agent saved in a directory. An environment or network of one's own is passed; settings given here win."""
    path = Path(path)
    config = load_config(path)
    if env is not None:
        check_env_object(env)
    if config.run.device not in ("auto", "cpu") and "device" not in settings and not available(config.run.device):
        settings["device"] = "auto"  # trained elsewhere
    if env is None and not has_id(config.env):
        raise UsageError(
            f"{path} was trained on {config.env}, which has no id here: pass it, tr.load(path, env=...) or --env module:Class"
        )
    if config.network.network is not None and network is None:
        raise UsageError(
            f"{path} has a network of your own, {config.network.network}: pass it, tr.load(path, network=...)"
        )
    if config.run.backend in ENGINES and not ENGINES[config.run.backend].installed and "backend" not in settings:
        settings["backend"] = "auto"  # trained elsewhere
    if config.run.accelerate == "graph" and not available("cuda"):
        settings.setdefault("accelerate", "auto")  # trained elsewhere; the numbers are the same
    ours = is_ours(env)
    if ours:
        settings = {"device": env.device.type, **settings}
    config = config.changed(**settings)
    if ours and env.num_envs != config.algorithm.num_envs:
        env = env.spawn(config.algorithm.num_envs, seed=0)  # as many as were trained on
    agent = AGENTS[config.algo].from_config(config, env, network)
    restore(agent.state, load_tensors(path, checkpoint), path)
    agent.run_dir = path.absolute()
    return agent


def check_episodes(episodes: int) -> None:
    if not isinstance(episodes, int) or not 1 <= episodes <= MOST_EPISODES:
        raise UsageError(f"episodes {episodes!r} will not do: give a whole number from 1 to {MOST_EPISODES:,}")


def check_env_object(env: Any) -> None:
    if not is_ours(env) and not callable(env) and not (hasattr(env, "reset") and hasattr(env, "step")):
        raise UsageError(
            f"env {env!r} is not supported: give an id, a Gymnasium environment or a factory of them, or a tr.envs.TensorEnv"
        )


def settings_fixed_by(env: Any, settings: Settings) -> Settings:
    """The settings that an environment given as an object decides; others may not contradict them."""
    check_env_object(env)
    fixed: Settings = {"train_env": None}
    limit = None
    if not callable(env):
        fixed |= {"env_kwargs": {}, "max_episode_steps": None}
    if is_ours(env):
        limit = getattr(env, "max_episode_steps", None)
        fixed |= {"num_envs": env.num_envs, "device": env.device.type, "max_episode_steps": limit}
    elif hasattr(env, "num_envs"):
        fixed |= {"num_envs": env.num_envs}
    for name, value in fixed.items():
        if settings.get(name, value) not in (value, "auto"):
            raise UsageError(
                f"{name} {settings[name]!r} is not the {value!r} of the environment given: drop one of them"
            )
    if limit is not None and limit == getattr(env, "time_limit", None):
        fixed["max_episode_steps"] = None
    return fixed


def ancestor_of(env: Any) -> str | None:
    """The id of the nearest class among an environment's ancestors that has one: its preset is where to start from."""
    if getattr(env, "spec", None) is not None:
        return str(env.spec.id)
    ids = {cls: env_id for env_id, cls in ENVS.items()}
    return next((ids[cls] for cls in type(env).__mro__ if cls in ids), None)


def name_of(env: Any) -> str:
    """The id of an environment's class, or module:Class where it has none."""
    if is_ours(env) and isinstance(getattr(env, "name", None), str):
        return str(env.name)
    for env_id, cls in ENVS.items():
        if cls is type(env) or cls is env:
            return env_id
    return path_of(env)
