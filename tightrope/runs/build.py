"""From a configuration to a state that can be trained: environments, network, optimiser, all seeded."""

from __future__ import annotations

import importlib
import re
from typing import Any

import torch
from torch import nn

from ..algorithms import ALGORITHMS
from ..engine import Execution, State, Unit, chosen_mode, stream_seed
from ..envs import ENVS as TENSOR_ENVS
from ..envs import EnvOptions, TensorEnv, choose, make
from ..envs.engines import ENGINES, Choice
from ..envs.host import HostEnv, one_line, working_directory_on_path
from ..errors import UsageError
from ..models import actor_critic
from ..models.networks import sees_images
from ..types import Env, Settings
from .config import Config
from .names import ENVS, here_called


def available(name: str) -> bool:
    """Whether torch finds such a device."""
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[name]


def resolve_device(name: str) -> torch.device:
    """The torch device behind a setting."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not available(name):
        raise UsageError(f"device {name!r} is not there: torch {torch.__version__} finds none. Try device auto")
    return torch.device(name)


def check_env(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The engine for an id, or an error that knows the ids of other libraries too."""
    foreign = here_called(env_id, ENVS)
    if foreign:
        raise UsageError(f"unknown env {env_id!r}: {foreign}")
    return choose(env_id, backend, with_arguments)


def make_env(config: Config, env_id: str, num_envs: int, scoring: bool = False) -> Env:
    """The environment with that id as the settings want it; `scoring` for evaluation."""
    run = config.run
    wanted = run.backend if env_id == config.env or env_id not in TENSOR_ENVS else "auto"  # a shaped env may be ours
    backend, _ = check_env(env_id, wanted, bool(run.env_kwargs))
    device = resolve_device(run.device)
    # only copies of the scoring one are used, and these need no processes
    mode = "sync" if scoring and run.vectorization_mode == "async" else run.vectorization_mode
    options: Settings = {"vectorization_mode": mode, "env_kwargs": run.env_kwargs, "scoring": scoring}
    env = make(env_id, num_envs, device, run.max_episode_steps, backend=backend, **options)
    if run.device == "auto" and suits_cpu(env):
        env.device = torch.device("cpu")
    return env


def from_user(env: Any, config: Config, num_envs: int) -> Env:
    """What a user handed over as an environment, in our form: ours already, a class of ours, or one of Gymnasium's forms."""
    run = config.run
    if is_ours(env):
        return env
    if isinstance(env, type) and issubclass(env, TensorEnv):
        return env(num_envs, resolve_device(run.device), run.max_episode_steps)
    from ..envs.gym import from_object

    options = EnvOptions(
        max_episode_steps=run.max_episode_steps, vectorization_mode=run.vectorization_mode, env_kwargs=run.env_kwargs
    )
    made = from_object(env, num_envs, resolve_device(run.device), options)
    if config.run.device == "auto" and suits_cpu(made):
        made.device = torch.device("cpu")
    return made


def is_ours(env: Any) -> bool:
    """Whether an object speaks our Env protocol already."""
    return not isinstance(env, type) and all(hasattr(env, name) for name in ("spawn", "finished_episodes", "num_envs"))


def imported(path: str, what: str = "env") -> Any:
    """The class or function behind module:name, as the user wrote it; a UsageError if there is none."""
    module, _, name = path.partition(":")
    try:
        with working_directory_on_path():
            return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UsageError(f"{what} {path!r} cannot be imported: {one_line(error)}. Give module:Class") from error


def own_network(path: str) -> nn.Module:
    """The network behind module:Class, made with no arguments."""
    try:
        return imported(path, "network")()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"network {path!r} cannot be made with no arguments: {one_line(error)}") from None


def is_path(env: str) -> bool:
    """Whether a name is module:Class rather than an id."""
    return ":" in env and not re.search(r"-v\d+$", env)  # Gymnasium's own module:Name-v0 is an id


def has_id(env: str) -> bool:
    """Whether some engine, installed or not, has an environment of that name."""
    if env in TENSOR_ENVS:
        return True
    return not is_path(env) and any(engine.knows(env) for engine in ENGINES.values())


def settled(config: Config) -> Config:
    """The settings with the choice of engine made, so that a saved run keeps to it."""
    if is_path(config.env) or config.run.backend != "auto":
        return config
    backend, _ = check_env(config.env, with_arguments=bool(config.run.env_kwargs))
    return config if backend == "tensor" else config.changed(backend=backend)


def suits_cpu(env: Env) -> bool:
    """Small networks fed by an engine on the host are quicker there than the way to a device and back."""
    return isinstance(env, HostEnv) and not sees_images(env.observation)


def build(config: Config, env: Env | None = None, network: nn.Module | str | None = None) -> State:
    """A state before its first phase. `env` stands in for the configured training environment, `network` for the trunk."""
    try:
        return _build(config, env, network)
    except (RuntimeError, MemoryError) as error:
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        sizes = f"num_envs {config.algorithm.num_envs} x num_steps {config.algorithm.num_steps}"
        raise UsageError(
            f"{sizes} with hidden_sizes {list(config.network.hidden_sizes)} does not fit into memory: lower them"
        ) from None


def _build(config: Config, env: Env | None, network: nn.Module | str | None) -> State:
    if env is None:
        env = make_env(config, config.run.train_env or config.env, config.algorithm.num_envs)
    if env.skips and config.algorithm.num_steps < 2:  # all of it may be rows that only reset
        raise UsageError("num_steps 1 is too few for an env whose resets take a step of their own: give at least 2")
    if hasattr(env, "gamma"):  # a potential's discount is the learner's
        env.gamma = config.algorithm.gamma
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random stream alone
        torch.manual_seed(stream_seed(config.run.seed, "network"))
        trunk = own_network(network) if isinstance(network, str) else network
        has_critic = config.algorithm.has_critic
        policy = actor_critic(env.observation, env.action, config.network, has_critic, trunk)
    policy.to(env.device).eval()  # for good: a policy that drops out or renormalises has no ratio
    state: State = ALGORITHMS[config.algo].start(env, policy, config.algorithm, config.run.seed)
    unit: Unit = "phase" if env.capturable else "part"
    mode = chosen_mode(config.run.accelerate, env.device)
    state.execution = Execution(mode, unit, config.run.precision, env.device)
    return state
