"""Tightrope's own environments, as tensors: classic control, reward-shaped variants of it, and the diagnostic probes."""

from .cartpole import CartPole, CartPoleNoVelocity, DanceCart, EasyCart, SpinCart
from .mountain_car import MountainCar, MountainCarShaped
from .pendulums import Acrobot, CartDoublePendulum, Pendulum, PendulumNoVelocity
from .probes import (
    HybridProbe,
    MaskProbe,
    PrivilegedProbe,
    Probe1,
    Probe2,
    Probe3,
    Probe4,
    Probe5,
    Recall10,
    Recall50,
    TimeLimitProbe,
    TMaze,
)

PROBES = (
    Probe1, Probe2, Probe3, Probe4, Probe5, TimeLimitProbe, MaskProbe, PrivilegedProbe, HybridProbe, Recall10, Recall50, TMaze,
)  # fmt: skip

__all__ = [
    "Acrobot", "CartDoublePendulum", "CartPole", "CartPoleNoVelocity", "DanceCart", "EasyCart", "HybridProbe", "MaskProbe",
    "MountainCar", "MountainCarShaped", "Pendulum", "PendulumNoVelocity", "PrivilegedProbe", "Probe1", "Probe2", "Probe3",
    "Probe4", "Probe5", "Recall10", "Recall50", "SpinCart", "TMaze", "TimeLimitProbe",
]  # fmt: skip
