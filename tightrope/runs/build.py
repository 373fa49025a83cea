"""From a configuration to a state that can be trained: environments, network, optimiser, all seeded."""

from __future__ import annotations

import torch

from ..algorithms import ALGORITHMS
from ..engine import State, stream_seed
from ..envs import TensorEnv, make
from ..envs.registry import known
from ..errors import UsageError
from ..models import actor_critic
from ..types import Env
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


def check_env(env_id: str) -> type[TensorEnv]:
    """The class behind an id, or an error that knows the ids of other libraries too."""
    foreign = here_called(env_id, ENVS)
    if foreign:
        raise UsageError(f"unknown env {env_id!r}: {foreign}")
    return known(env_id)


def make_env(config: Config, env_id: str, num_envs: int) -> TensorEnv:
    check_env(env_id)
    return make(env_id, num_envs, resolve_device(config.run.device), config.run.max_episode_steps)


def build(config: Config, env: Env | None = None) -> State:
    """A state before its first phase. `env` stands in for the configured training environment."""
    try:
        return _build(config, env)
    except (RuntimeError, MemoryError) as error:
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        sizes = f"num_envs {config.algorithm.num_envs} x num_steps {config.algorithm.num_steps}"
        raise UsageError(
            f"{sizes} with hidden_sizes {list(config.network.hidden_sizes)} does not fit into memory: lower them"
        ) from None


def _build(config: Config, env: Env | None) -> State:
    if env is None:
        env = make_env(config, config.run.train_env or config.env, config.algorithm.num_envs)
    if hasattr(env, "gamma"):  # a potential's discount is the learner's
        env.gamma = config.algorithm.gamma
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random stream alone
        torch.manual_seed(stream_seed(config.run.seed, "network"))
        policy = actor_critic(env.observation, env.action, config.network, config.algorithm.has_critic).to(env.device)
    return ALGORITHMS[config.algo].start(env, policy, config.algorithm, config.run.seed)
