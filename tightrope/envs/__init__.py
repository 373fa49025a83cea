"""Environments that live on the device as tensors, adapters for those of other engines, and the ids they go by."""

from .acrobot import Acrobot
from .cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .double_pendulum import CartDoublePendulum
from .engines import choose, make
from .mountain_car import MountainCar, MountainCarShaped
from .options import EnvOptions
from .pendulum import Pendulum
from .probes import Probe1, Probe2, Probe3, Probe4, Probe5
from .registry import ENVS, register
from .tensor import TensorEnv

__all__ = [
    "ENVS",
    "Acrobot",
    "CartDoublePendulum",
    "CartPole",
    "DanceCart",
    "EasyCart",
    "EnvOptions",
    "MountainCar",
    "MountainCarShaped",
    "Pendulum",
    "Probe1",
    "Probe2",
    "Probe3",
    "Probe4",
    "Probe5",
    "SpinCart",
    "TensorEnv",
    "choose",
    "make",
    "register",
]
