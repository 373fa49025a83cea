"""Environments that live on the device as tensors, adapters for those of other engines, and the ids they go by."""

from .classic.acrobot import Acrobot
from .classic.cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .classic.double_pendulum import CartDoublePendulum
from .classic.mountain_car import MountainCar, MountainCarShaped
from .classic.pendulum import Pendulum
from .classic.probes import Probe1, Probe2, Probe3, Probe4, Probe5
from .registry import ENVS, EnvOptions, choose, make, register
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
