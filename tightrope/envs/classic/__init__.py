"""Tightrope's own environments, as tensors: classic control, reward-shaped variants of it, and the diagnostic probes."""

from .acrobot import Acrobot
from .cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .double_pendulum import CartDoublePendulum
from .mountain_car import MountainCar, MountainCarShaped
from .pendulum import Pendulum
from .probes import HybridProbe, MaskProbe, PrivilegedProbe, Probe1, Probe2, Probe3, Probe4, Probe5

__all__ = [
    "Acrobot",
    "CartDoublePendulum",
    "CartPole",
    "DanceCart",
    "EasyCart",
    "HybridProbe",
    "MaskProbe",
    "MountainCar",
    "MountainCarShaped",
    "Pendulum",
    "PrivilegedProbe",
    "Probe1",
    "Probe2",
    "Probe3",
    "Probe4",
    "Probe5",
    "SpinCart",
]
