"""The C compiler for recordings on the CPU, see recording/."""

from __future__ import annotations

import sys

from ...recording.compiler import VARIABLE, cache_directory, compiler_command
from ...recording.products import NO_COMPILER, why_not_compiled
from .machine import CheckResult

INSTALL = "apt install gcc" if sys.platform == "linux" else "xcode-select --install"


def c_compiler() -> CheckResult:
    """Compile a small file, or say why recordings run as NumPy calls."""
    refusal = why_not_compiled()
    if refusal is None:
        command = " ".join(compiler_command())
        words = f"{command} compiles recordings on the CPU; cache {cache_directory()}"
        return CheckResult("C compiler", words, facts={"command": command})
    slower = f"recordings on the CPU run as NumPy calls, which is slower: {refusal}"
    if refusal == NO_COMPILER:
        return CheckResult("C compiler", slower, "absent", INSTALL)
    return CheckResult("C compiler", slower, "absent" if refusal.startswith(VARIABLE) else "warning")
