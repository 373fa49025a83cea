"""The devices torch finds, and whether what training asks of them works: a graph, a compilation, a few phases."""

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

from ...algorithms import ALGORITHMS
from ...engine import State
from ...engine import threads as torch_threads
from ...types import Settings
from ..build import build
from ..config import configure
from ..devices import resolve_device
from .findings import Finding, in_bytes, in_seconds, in_words
from .trials import Trial, trial

DRIVER = Path("/proc/driver/nvidia/version")
AMPERE = (8, 0)  # from which on tensor cores take tf32
PATIENCE = 120.0  # seconds: a first compilation, with a busy processor
TINY: Settings = dict(num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=96, hidden_sizes=(8,), seed=1)
COMPILATION = """
import time, torch

def f(x):
    return (x.sin() * 2 + 1).sum()

x = torch.linspace(0, 1, 64, device="{device}")
expected = f(x)
began = time.perf_counter()
torch.testing.assert_close(torch.compile(f)(x), expected)
print(time.perf_counter() - began)
"""
REMEDIES = {  # by what the complaint contains
    "Python.h": "apt install python3-dev",
    "InvalidCxxCompiler": "apt install g++" if sys.platform == "linux" else "xcode-select --install",
    "C compiler": "apt install gcc" if sys.platform == "linux" else "xcode-select --install",
    "triton installation": "pip install triton",
}


def chosen(device: str) -> Iterator[Finding]:
    """The device of a run, and how phases are executed there."""
    on = resolve_device(device)
    why = (
        "asked for"
        if device != "auto"
        else "a CUDA device is there"
        if on.type == "cuda"
        else "there is no CUDA device"
    )
    others = "; --device mps is there too" if torch.backends.mps.is_available() and on.type != "mps" else ""
    yield Finding("device", f"{on.type}: {why}{others}", facts={"device": on.type})


def gpus() -> Iterator[Finding]:
    """Each GPU; or why there is none, where that can be helped."""
    with warnings.catch_warnings(record=True) as caught:  # by which torch says that a driver is too old
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        yield from without_gpu([str(warning.message) for warning in caught])
        return
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        capability = f"{about.major}.{about.minor}"
        facts: Settings = {
            "name": about.name,
            "free": free,
            "total": total,
            "capability": capability,
            "driver": driver(),
        }
        words = f"{about.name}, {in_bytes(free)} of {in_bytes(total)} free, compute capability {capability}"
        yield Finding(f"cuda:{i}", f"{words}, driver {driver() or 'unknown'}", facts=facts)


def without_gpu(complaints: list[str]) -> Iterator[Finding]:
    """Silence is right where there is none to be had."""
    if driver() is None:
        yield Finding("gpu", "none found; everything runs on the CPU", "absent")
    elif torch.version.cuda is None and torch.version.hip is None:
        words = f"there is an NVIDIA driver, {driver()}, but this torch was built without CUDA"
        yield Finding("gpu", words, "warning", "pip install --force-reinstall torch")
    else:
        said = complaints[0].splitlines()[0] if complaints else "torch does not say why"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f"unset CUDA_VISIBLE_DEVICES, which is {hidden!r}" if hidden is not None else "nvidia-smi"
        yield Finding("gpu", f"torch cannot use it: {said}", "warning", hint)


def driver() -> str | None:
    """NVIDIA's, by its version, if it is loaded."""
    try:
        words = DRIVER.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), "unknown")


def precision(device: str) -> Iterator[Finding]:
    """What --precision may say there."""
    on = resolve_device(device)
    if on.type == "cuda":
        tf32 = torch.cuda.get_device_capability(on) >= AMPERE
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        words = ", ".join(["fp32", *["tf32"] * tf32, *["bf16"] * bf16])
        yield Finding("precision", words, facts={"tf32": tf32, "bf16": bf16})
    else:
        yield Finding("precision", "fp32, bf16; tf32 needs CUDA", facts={"tf32": False, "bf16": True})


def graphs(device: str) -> Iterator[Finding]:
    """Capture a CUDA graph and replay it on other numbers."""
    on = resolve_device(device)
    if on.type != "cuda":
        yield Finding("CUDA graph", f"not on {on.type}: phases run as written", "absent", facts={"works": None})
        return
    try:
        works = replays(on)
        trouble = "" if works else "a replay gave other numbers"
    except Exception as error:
        works, trouble = False, in_words(error)
    if works:
        yield Finding("CUDA graph", "captured and replayed", facts={"works": True})
    else:
        yield Finding("CUDA graph", trouble, "warning", "train with --accelerate eager", {"works": False})


def replays(device: torch.device) -> bool:
    x = torch.ones(8, device=device)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        doubled = x * 2
    x.fill_(3.0)
    graph.replay()
    return bool((doubled == 6).all())


# compiling -------------------------------------------------------------------------------------------------------------


def compiling(device: str, quick: bool) -> Iterator[Finding]:
    """Compile something tiny from nothing, in a process that cannot take us along."""
    on, compiler = resolve_device(device), cxx()
    if quick:
        found = f"a compiler is there ({compiler})" if compiler else "no C++ compiler is on the path"
        yield Finding("compile", f"not tried (--quick); {found}", "absent", facts={"works": None})
        return
    with tempfile.TemporaryDirectory() as folder:  # a cache would hide that the compiler has gone
        caches = dict(TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=f"{folder}/triton")
        tried = trial(COMPILATION.format(device=on.type), PATIENCE, **caches)
    if tried.worked:
        seconds = float(tried.said)
        words = f"works on {on.type}; the first compilation took {in_seconds(seconds)}"
        yield Finding("compile", words, facts={"works": True, "seconds": seconds})
    else:
        fix = remedy(tried)
        yield Finding("compile", f"--accelerate compile fails: {tried.said}", "absent", fix, {"works": False})


def cxx() -> str | None:
    """The C++ compiler that torch would find."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((path for path in map(shutil.which, names) if path), None)


def remedy(tried: Trial) -> str:
    """What to install, going by the complaint; without a hint, what to do without it."""
    found = next((fix for sign, fix in REMEDIES.items() if sign in tried.everything), None)
    return found or "none is known; train without --accelerate compile and max, which nothing else needs"


# training --------------------------------------------------------------------------------------------------------------


def training(device: str) -> Iterator[Finding]:
    """Three phases of CartPole in memory: as written, captured and replayed, where there are graphs."""
    began = time.perf_counter()
    try:
        state, remarks = trained(device)
    except Exception as error:
        fix = "" if resolve_device(device).type == "cpu" else "train with --device cpu"
        yield Finding("training", f"does not work: {in_words(error)}", "broken", fix)
        return
    seconds = time.perf_counter() - began
    on, mode = state.env.device.type, state.execution.mode
    facts: Settings = {"device": on, "mode": mode, "seconds": seconds}
    words = f"three phases of CartPole on {on}, {mode}, in {in_seconds(seconds)}"
    if remarks:
        yield Finding("training", f"{words}, but {remarks[0]}", "warning", "train with --accelerate eager", facts)
    else:
        yield Finding("training", words, facts=facts)


def trained(device: str) -> tuple[State, list[str]]:
    """The state after a tiny run, and what could not be captured. Raises where nothing was learned."""
    config = configure("CartPole-v1", "ppo", TINY, {"device": device}, with_preset=False)
    state: State = build(config)
    remarks: list[str] = []
    state.execution.say = remarks.append
    before = [p.detach().clone() for p in state.policy.parameters()]
    with torch_threads(1), state.streams.in_force():
        for _ in ALGORITHMS["ppo"].loop(state, config.algorithm):
            pass
    moved = sum(float((p.detach() - old).abs().sum()) for p, old in zip(state.policy.parameters(), before, strict=True))
    if not math.isfinite(moved) or moved == 0:
        raise ArithmeticError(f"parameters moved by {moved} in three phases")
    return state, remarks
