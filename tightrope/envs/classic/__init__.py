"""Tightrope's own environments, as tensors: classic control, reward-shaped variants of it, and the diagnostic probes."""

from .acrobot import Acrobot
from .cartpole import CartPole, DanceCart, EasyCart, SpinCart
from .double_pendulum import CartDoublePendulum
from .memory import CartPoleNoVelocity, PendulumNoVelocity, Recall10, Recall50, TMaze
from .mountain_car import MountainCar, MountainCarShaped
from .pendulum import Pendulum
from .probes import HybridProbe, MaskProbe, PrivilegedProbe, Probe1, Probe2, Probe3, Probe4, Probe5, TimeLimitProbe

PROBES = (
    Probe1, Probe2, Probe3, Probe4, Probe5, TimeLimitProbe, MaskProbe, PrivilegedProbe, HybridProbe, Recall10, Recall50, TMaze,
)  # fmt: skip

__all__ = [
    "Acrobot",
    "CartDoublePendulum",
    "CartPole",
    "CartPoleNoVelocity",
    "DanceCart",
    "EasyCart",
    "HybridProbe",
    "MaskProbe",
    "MountainCar",
    "MountainCarShaped",
    "Pendulum",
    "PendulumNoVelocity",
    "PrivilegedProbe",
    "Probe1",
    "Probe2",
    "Probe3",
    "Probe4",
    "Probe5",
    "Recall10",
    "Recall50",
    "SpinCart",
    "TMaze",
    "TimeLimitProbe",
]
