"""Which device a run is on."""

from __future__ import annotations

import os
import re

import torch

from ..engine import world
from ..envs.adapters.host import HostEnv
from ..errors import UsageError, plural
from ..models.networks import sees_images
from ..types import Env


def device_name(value: object) -> str:
    """A device as the setting has it, from its name or from a torch.device."""
    text = str(value).strip().lower() if isinstance(value, (str, torch.device)) else ""
    if match := re.fullmatch(r"(auto|cpu|mps)(?::0)?|cuda(?::(\d{1,4}))?", text):
        return match[1] or ("cuda" if match[2] is None else f"cuda:{int(match[2])}")
    hint = ": here it is called cuda, or cuda:0" if re.fullmatch(r"(gpu|nvidia|cuda)\W?\d*", text) else ""
    hint = f": here it is called cuda:{value}" if type(value) is int and value >= 0 else hint
    choices = ": give one of auto, cpu, cuda, mps, or one GPU of several as cuda:1"
    raise UsageError(f"device {value!r} is not a choice{hint or choices}")


def name_of_device(device: torch.device) -> str:
    """What the setting calls a torch device."""
    return device.type if device.type != "cuda" or device.index is None else str(device)


def available(name: str) -> bool:
    """Whether torch finds such a device."""
    kind, _, index = name.partition(":")
    if kind == "cuda":
        return torch.cuda.is_available() and (not index or int(index) < torch.cuda.device_count())
    return kind == "cpu" or torch.backends.mps.is_available()


def resolve_device(name: str) -> torch.device:
    """The torch device behind a setting."""
    if (
        name in ("auto", "cuda")
        and torch.cuda.is_available()
        and world().local_size > max(torch.cuda.device_count(), 1)
    ):
        raise UsageError(
            f"{world().local_size} ranks on this machine are more than its {plural(torch.cuda.device_count(), 'CUDA device')}: "
            f"start torchrun with --nproc-per-node {torch.cuda.device_count()}, or train with device cpu"
        )
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda:") and world().is_distributed:
        raise UsageError(f"device {name} is one device, and a run of several ranks has one for each: give cuda")
    if not available(name):
        if torch.cuda.is_available() and name.startswith("cuda:"):
            there = torch.cuda.device_count()
            raise UsageError(
                f"device {name} is not there: this machine has {there}, so give cuda:0 to cuda:{there - 1}"
            )
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
