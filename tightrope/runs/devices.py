"""Which device a run is on."""

from __future__ import annotations

import os

import torch

from ..engine import world
from ..envs.host import HostEnv
from ..errors import UsageError
from ..models.networks import sees_images
from ..types import Env


def available(name: str) -> bool:
    """Whether torch finds such a device."""
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[name]


def resolve_device(name: str) -> torch.device:
    """The torch device behind a setting."""
    if (
        name in ("auto", "cuda")
        and torch.cuda.is_available()
        and world().local_size > max(torch.cuda.device_count(), 1)
    ):
        raise UsageError(
            f"{world().local_size} ranks on this machine are more than its {torch.cuda.device_count()} CUDA devices: start "
            f"torchrun with --nproc-per-node {torch.cuda.device_count()}, or train with device cpu"
        )
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not available(name):
        raise UsageError(f"device {name!r} is not there: torch {torch.__version__} finds none. Try device auto")
    return torch.device(name)


def suits_cpu(env: Env) -> bool:
    """Small networks fed by an engine on the host are quicker there than the way to a device and back."""
    return isinstance(env, HostEnv) and not sees_images(env.observation)


def memory_of(device: torch.device) -> float:
    """Bytes that a device has in all; infinite where that cannot be told."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return float("inf")
