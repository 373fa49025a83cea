"""Ids to environments. A new environment is one class and one line here, or `register` from anywhere else."""

from __future__ import annotations

from ..errors import UsageError, near_matches
from .classic.acrobot import Acrobot
from .classic.cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .classic.double_pendulum import CartDoublePendulum
from .classic.mountain_car import MountainCar, MountainCarShaped
from .classic.pendulum import Pendulum
from .classic.probes import Probe1, Probe2, Probe3, Probe4, Probe5
from .tensor import TensorEnv

ENVS: dict[str, type[TensorEnv]] = {
    "CartPole-v1": CartPole,
    "EasyCart-v0": EasyCart,
    "SpinCart-v0": SpinCart,
    "DanceCart-v0": DanceCart,
    "Pendulum-v1": Pendulum,
    "MountainCar-v0": MountainCar,
    "MountainCarShaped-v0": MountainCarShaped,
    "Acrobot-v1": Acrobot,
    "CartDoublePendulum-v0": CartDoublePendulum,
    "Probe1-v0": Probe1,
    "Probe2-v0": Probe2,
    "Probe3-v0": Probe3,
    "Probe4-v0": Probe4,
    "Probe5-v0": Probe5,
}


def register(env_id: str, env: type[TensorEnv]) -> None:
    """Give an environment class an id, so that commands, presets and saved runs can name it."""
    if env_id in ENVS and ENVS[env_id] is not env:
        raise UsageError(f"env id {env_id!r} is taken by {ENVS[env_id].__name__}: choose another")
    ENVS[env_id] = env


def known(env_id: str) -> type[TensorEnv]:
    """The class behind an id."""
    if env_id not in ENVS:
        raise UsageError(f"unknown tensor env {env_id!r}.{near_matches(env_id, ENVS)} `tightrope envs` lists them")
    return ENVS[env_id]
