"""Check what works on this machine and what is missing: one line for each check, with the command that fixes it."""

from __future__ import annotations

import sys

from ...recording.compiler import VARIABLE, cache_directory, compiler_command
from ...recording.products import NO_COMPILER, why_not_compiled
from ...training.settings import available
from . import devices, machine
from .machine import Check, CheckResult, run_check

INSTALL_COMPILER = "apt install gcc" if sys.platform == "linux" else "xcode-select --install"
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
        Check("devices", "C compiler", c_compiler),
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


def c_compiler() -> CheckResult:
    """Compile a small file for recordings on the CPU, see recording/, or say why they run as NumPy calls."""
    refusal = why_not_compiled()
    if refusal is None:
        command = " ".join(compiler_command())
        words = f"{command} compiles recordings on the CPU; cache {cache_directory()}"
        return CheckResult("C compiler", words, facts={"command": command})
    slower = f"recordings on the CPU run as NumPy calls, which is slower: {refusal}"
    if refusal == NO_COMPILER:
        return CheckResult("C compiler", slower, "absent", INSTALL_COMPILER)
    return CheckResult("C compiler", slower, "absent" if refusal.startswith(VARIABLE) else "warning")


__all__ = ["RANKS", "Check", "CheckResult", "checks", "run_check"]
