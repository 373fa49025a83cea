"""Checks of the devices that torch finds, and of what training needs there: a few phases, a compilation."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from ...algorithms import ALGORITHMS
from ...engine import State
from ...engine import threads as torch_threads
from ...training.build import build
from ...training.config import configure
from ...training.devices import resolve_device
from ...types import Settings
from .results import CheckResult, error_line, format_bytes, format_seconds, run_isolated

DRIVER = Path("/proc/driver/nvidia/version")
AMPERE = (8, 0)  # compute capability from which on there is tf32
COMPILE_SECONDS = 120.0
TINY: Settings = dict(num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=96, hidden_sizes=(8,), seed=1)
COMPILE = """
import time, torch

def f(x):
    return (x.sin() * 2 + 1).sum()

x = torch.linspace(0, 1, 64, device="{device}")
expected = f(x)
start = time.perf_counter()
torch.testing.assert_close(torch.compile(f)(x), expected)
print(time.perf_counter() - start)
"""
COMPILE_FIXES = {  # by what the error contains
    "Python.h": "apt install python3-dev",
    "InvalidCxxCompiler": "apt install g++" if sys.platform == "linux" else "xcode-select --install",
    "C compiler": "apt install gcc" if sys.platform == "linux" else "xcode-select --install",
    "triton installation": "pip install triton",
    "": "none is known; train without --accelerate compile and max, which nothing else needs",
}


def gpus() -> Iterator[CheckResult]:
    """Each GPU; or why torch cannot use one."""
    with warnings.catch_warnings(record=True) as caught:  # torch warns of a driver that is too old
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        yield no_gpu([str(warning.message) for warning in caught])
        return
    for i in range(torch.cuda.device_count()):
        about, version = torch.cuda.get_device_properties(i), driver_version()
        free, total = torch.cuda.mem_get_info(i)
        capability = f"{about.major}.{about.minor}"
        tf32, bf16 = (about.major, about.minor) >= AMPERE, torch.cuda.is_bf16_supported(including_emulation=False)
        facts = {"name": about.name, "free": free, "total": total, "capability": capability, "driver": version}
        words = f"{about.name}, {format_bytes(free)} of {format_bytes(total)} free, compute capability {capability}"
        words += f", driver {version or 'unknown'}{', tf32' * tf32}{', bf16' * bf16}"
        yield CheckResult(f"cuda:{i}", words, facts=facts | {"tf32": tf32, "bf16": bf16})


def no_gpu(warned: list[str]) -> CheckResult:
    version, hidden = driver_version(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if version is None:
        return CheckResult("gpu", "none found; everything runs on the CPU", "absent")
    if torch.version.cuda is None and torch.version.hip is None:
        words = f"there is an NVIDIA driver, {version}, but this torch was built without CUDA"
        return CheckResult("gpu", words, "warning", "pip install --force-reinstall torch")
    reason = warned[0].splitlines()[0] if warned else "torch gives no reason"
    fix = f"unset CUDA_VISIBLE_DEVICES, which is {hidden!r}" if hidden is not None else "nvidia-smi"
    return CheckResult("gpu", f"torch cannot use it: {reason}", "warning", fix)


def driver_version() -> str | None:
    """The version of NVIDIA's driver, if it is loaded."""
    try:
        words = DRIVER.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), "unknown")


def backends() -> CheckResult:
    """How ranks can communicate."""
    if not dist.is_available():
        return CheckResult("torchrun", "this torch has no torch.distributed: a run is one process", "absent")
    found = [name for name, has in (("Gloo", dist.is_gloo_available()), ("NCCL", dist.is_nccl_available())) if has]
    needs_nccl = torch.cuda.device_count() > 1 and "NCCL" not in found
    words = f"ranks can communicate by {' and '.join(found) or 'nothing'}{', but GPUs need NCCL' if needs_nccl else ''}"
    fix = "pip install --force-reinstall torch" if needs_nccl or not found else ""
    return CheckResult("torchrun", words, "warning" if fix else "ok", fix, {"backends": found})


def chosen_device(device: str) -> CheckResult:
    """The device of a run."""
    kind = resolve_device(device).type
    reason = "a CUDA device is there" if kind == "cuda" else "there is no CUDA device"
    reason = reason if device == "auto" else "chosen by --device"
    other = "; --device mps is there too" if torch.backends.mps.is_available() and kind != "mps" else ""
    return CheckResult("device", f"{kind}: {reason}{other}", facts={"device": kind})


def compilation(device: str, quick: bool) -> CheckResult:
    """Compile a small function without a cache, in a process of its own."""
    kind, names = resolve_device(device).type, [os.environ.get("CXX")] if os.environ.get("CXX") else ["g++", "clang++"]
    if quick:
        compiler = next((path for path in map(shutil.which, filter(None, names)) if path), None)
        found = f"a compiler is there ({compiler})" if compiler else "no C++ compiler is on the path"
        return CheckResult("compile", f"not tried (--quick); {found}", "absent", facts={"works": None})
    with tempfile.TemporaryDirectory() as folder:  # an old cache would hide that the compiler is gone
        caches = dict(TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=f"{folder}/triton")
        done = run_isolated(COMPILE.format(device=kind), COMPILE_SECONDS, **caches)
    if not done.worked:
        fix = next(fix for part, fix in COMPILE_FIXES.items() if part in done.output)
        return CheckResult("compile", f"--accelerate compile fails: {done.line}", "absent", fix, {"works": False})
    seconds = float(done.line)
    words = f"works on {kind}; the first compilation took {format_seconds(seconds)}"
    return CheckResult("compile", words, facts={"works": True, "seconds": seconds})


def training(device: str) -> CheckResult:
    """Train three phases of CartPole in memory; on CUDA one as written, one captured, one replayed."""
    start = time.perf_counter()
    try:
        state, problems = train_briefly(device)
    except Exception as error:
        fix = "" if resolve_device(device).type == "cpu" else "train with --device cpu"
        return CheckResult("training", f"does not work: {error_line(error)}", "broken", fix)
    seconds, kind, mode = time.perf_counter() - start, state.env.device.type, state.runtime.mode
    facts: Settings = {"device": kind, "mode": mode, "seconds": seconds}
    words = f"three phases of CartPole on {kind}, {mode}, in {format_seconds(seconds)}"
    if problems:
        return CheckResult("training", f"{words}, but {problems[0]}", "warning", "train with --accelerate eager", facts)
    return CheckResult("training", words, facts=facts)


def train_briefly(device: str) -> tuple[State, list[str]]:
    """The state after three phases, and what could not be captured. An ArithmeticError if no parameter changed."""
    config = configure("CartPole-v1", "ppo", TINY, {"device": device}, with_preset=False)
    state: State = build(config)
    problems: list[str] = []
    state.runtime.say = problems.append
    before = [p.detach().clone() for p in state.policy.parameters()]
    with torch_threads(1), state.streams.in_force():
        for _ in ALGORITHMS["ppo"].loop(state, config.algorithm):
            pass
    change = sum(
        float((p.detach() - old).abs().sum()) for p, old in zip(state.policy.parameters(), before, strict=True)
    )
    if not math.isfinite(change) or change == 0:
        raise ArithmeticError(f"parameters changed by {change} in three phases")
    return state, problems
