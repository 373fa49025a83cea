"""Environments that live on the device as tensors, and the ids they go by."""

from .acrobot import Acrobot
from .cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .double_pendulum import CartDoublePendulum
from .mountain_car import MountainCar, MountainCarShaped
from .pendulum import Pendulum
from .probes import Probe1, Probe2, Probe3, Probe4, Probe5
from .registry import ENVS, make, register
from .tensor import TensorEnv

__all__ = [
    "ENVS",
    "Acrobot",
    "CartDoublePendulum",
    "CartPole",
    "DanceCart",
    "EasyCart",
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
    "make",
    "register",
]
