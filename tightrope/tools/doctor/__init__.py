"""Check what works on this machine and what is missing: one line for each check, with the command that fixes it."""

from __future__ import annotations

from ...training.settings import available
from . import compiler, devices, machine
from .machine import Check, CheckResult, run_check

RANKS = Check("ranks", "ranks", devices.ranks_together, if_it_raises="broken")  # run by all ranks at once


def checks(device: str = "auto", quick: bool = False) -> list[Check]:
    """The checks of one process, in the order of the report."""
    found = [
        Check("versions", "versions", machine.versions),
        Check("versions", "jax", devices.jax),
        Check("extras", "extras", machine.extras),
        Check("machine", "system", machine.system),
        Check("machine", "runs", machine.disk, if_it_raises="broken"),
        Check("pictures", "videos", machine.encoder),
        Check("pictures", "MuJoCo pictures", machine.rendering),
        Check("devices", "C compiler", compiler.c_compiler),
        Check("devices", "gpu", devices.gpus),
        Check("devices", "torchrun", devices.backends),
        Check("devices", "device", lambda: devices.chosen_device(device), if_it_raises="broken"),
    ]
    if device != "auto" and not available(device):
        return found
    return [
        *found,
        Check("training", "training", lambda: devices.training(device), if_it_raises="broken"),
        Check("training", "compile", lambda: devices.compilation(device, quick)),
    ]


__all__ = ["RANKS", "Check", "CheckResult", "checks", "run_check"]
