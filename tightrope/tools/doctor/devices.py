"""Check the devices that torch finds, training and compilation on them, and ranks under torchrun: differences between them and
the time of an all-reduce."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import socket
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ...algorithms import ALGORITHMS
from ...engine import cores, distributed
from ...engine import threads as torch_threads
from ...errors import plural
from ...output import format_bytes, format_seconds
from ...processes import run_isolated
from ...training.build import build
from ...training.config import configure
from ...training.settings import resolve_device
from ...types import Settings
from ...version import __version__
from .machine import CheckResult, error_line, installed_version

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
SLOW_FACTOR = 1.5  # times the median, from which on a rank holds up the others
MATRIX, PRODUCTS, WARM_UP = 384, 30, 2
MESSAGES = [  # bytes, repeats, what is as large
    (8, 50, "; a flag"), (40_000, 50, "; CartPole's gradient"), (1_000_000, 20, ""), (7_000_000, 10, "; the Atari network's"),
    (64_000_000, 3, ""),
]  # fmt: skip


def gpus() -> Iterator[CheckResult]:
    """A result for each GPU, or the reason why torch cannot use one."""
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


def jax() -> CheckResult:
    """JAX, of which pip installs a build for the CPU unless told otherwise."""
    version = installed_version("jax")
    if version is None:
        return CheckResult("jax", "not installed; Brax and MuJoCo Playground need it", "absent")
    has_cuda = any(installed_version(f"jax-cuda{major}-plugin") for major in (11, 12, 13))
    if torch.cuda.is_available() and not has_cuda:
        fix = f'pip install "jax[cuda{(torch.version.cuda or "12").partition(".")[0]}]"'
        return CheckResult("jax", f"{version}, without CUDA: its environments run on the CPU", "warning", fix)
    return CheckResult("jax", version, facts={"version": version})


def backends() -> CheckResult:
    """The backends by which ranks can communicate."""
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
    """Compile a small function without a cache, in a separate process."""
    kind, names = resolve_device(device).type, [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if quick:
        compiler = next(filter(None, map(shutil.which, names)), None)
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
    """Train three phases of CartPole in memory; on CUDA the first is eager, the second captured, the third replayed."""
    start, problems = time.perf_counter(), list[str]()
    try:
        config = configure("CartPole-v1", "ppo", TINY, {"device": device}, with_preset=False)
        state = build(config)
        state.runtime.say = problems.append  # what could not be captured
        before = state.optimizer.flat.clone()
        with torch_threads(1), state.streams.activated():
            for _ in ALGORITHMS["ppo"].loop(state, config.algorithm):
                pass
        change = float((state.optimizer.flat - before).abs().sum())
        if not math.isfinite(change) or change == 0:
            raise ArithmeticError(f"parameters changed by {change} in three phases")
    except Exception as error:
        fix = "" if resolve_device(device).type == "cpu" else "train with --device cpu"
        return CheckResult("training", f"does not work: {error_line(error)}", "broken", fix)
    seconds, kind, mode = time.perf_counter() - start, state.env.device.type, state.runtime.mode
    facts: Settings = {"device": kind, "mode": mode, "seconds": seconds}
    words = f"three phases of CartPole on {kind}, {mode}, in {format_seconds(seconds)}"
    if problems:
        return CheckResult("training", f"{words}, but {problems[0]}", "warning", "train with --accelerate eager", facts)
    return CheckResult("training", words, facts=facts)


# ranks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankReport:
    """The report of one rank."""

    rank: int
    host: str
    device: str  # as torch calls it
    model: str  # of the device
    threads: int
    cores: int
    versions: dict[str, str]
    work: float  # seconds of a matrix product
    sums: list[float]  # seconds of an all-reduce of each message

    def result(self) -> CheckResult:
        device = self.device if self.device == self.model else f"{self.device} ({self.model})"
        work = f"a product of {MATRIX} x {MATRIX} matrices in {format_seconds(self.work)}"
        words = f"{self.host}, {device}, {plural(self.threads, 'torch thread')}; {work}"
        return CheckResult(f"rank {self.rank}", words, facts=asdict(self))


def ranks_together() -> Iterator[CheckResult]:
    """Results for each rank, for differences between ranks, and for their all-reduces; on rank 0 only."""
    too_many = too_many_ranks()
    if too_many is not None:
        yield too_many
    elif reports := measure_ranks():
        yield from compare_ranks(reports)
        yield from all_reduces(reports)


def measure_ranks() -> list[RankReport]:
    """Join the other ranks and measure with them. Returns the reports of all on rank 0, nothing on others."""
    world = distributed.join()
    try:
        device = torch.device("cuda", world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        matrix = torch.ones(MATRIX, MATRIX, device=device)
        own = RankReport(
            rank=world.rank,
            host=socket.gethostname(),
            device=str(device),
            model=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            threads=torch.get_num_threads(),
            cores=cores(),
            versions={"tightrope": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
            work=min(timed(lambda: matrix @ matrix, PRODUCTS, device)),
            sums=[
                statistics.median(
                    timed(partial(dist.all_reduce, torch.zeros(size // 4, device=device)), repeats, device)
                )
                for size, repeats, _ in MESSAGES
            ],
        )
        received = distributed.gather_to_rank0(json.dumps(asdict(own)).encode())
    finally:
        distributed.leave()
    return [RankReport(**json.loads(content)) for content in received]


def timed(action: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """The seconds of each repeat, after a few warm-up repeats."""
    wait: Callable[[], None] = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    times = []
    for _ in range(WARM_UP + repeats):
        wait()
        start = time.perf_counter()
        action()
        wait()
        times.append(time.perf_counter() - start)
    return times[WARM_UP:]


def too_many_ranks() -> CheckResult | None:
    """More ranks than GPUs on a machine, which every rank can see before it joins."""
    local, count = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if not torch.cuda.is_available() or local <= count:
        return None
    words = f"{plural(local, 'rank')} on a machine with {plural(count, 'GPU')}: each needs one of its own"
    return CheckResult("ranks", words, "broken", f"torchrun --nproc-per-node {count} -m tightrope ...")


def compare_ranks(found: list[RankReport]) -> Iterator[CheckResult]:
    """Results for each rank, then for differences between ranks and for slow ranks."""
    yield from (report.result() for report in found)
    compared = {name: [report.versions.get(name, "none") for report in found] for name in found[0].versions}
    for name, values in {**compared, "devices": [report.model for report in found]}.items():
        if len(set(values)) > 1:
            words = ", ".join(f"{value} on rank {report.rank}" for report, value in zip(found, values, strict=True))
            fix = "the slowest sets the pace" if name == "devices" else "install the same"
            yield CheckResult(name, f"differs: {words}", "warning", fix)
    median = statistics.median_low([report.work for report in found])
    for report in [report for report in found if report.work > SLOW_FACTOR * median]:
        words = f"{report.work / median:.1f} times as slow as the others at the same work, and holds them up"
        yield CheckResult(f"rank {report.rank}", words, "warning", f"see what else runs on {report.host}")
    for host in sorted({report.host for report in found}):
        here = [report for report in found if report.host == host]
        if len(here) > here[0].cores:
            words = f"{len(here)} ranks share {plural(here[0].cores, 'core')} of {host}"
            yield CheckResult("cores", words, "warning", f"torchrun --nproc-per-node {here[0].cores} -m tightrope ...")


def all_reduces(found: list[RankReport]) -> Iterator[CheckResult]:
    """The time of each message. Bus bandwidth is 2 (n - 1) / n of the message's: what passes the link of a rank."""
    for i, (size, _, like) in enumerate(MESSAGES):
        seconds = [report.sums[i] for report in found]
        median, slowest = statistics.median(seconds), max(found, key=lambda report: report.sums[i]).rank
        algorithm = size / median
        bus = algorithm * 2 * (len(found) - 1) / len(found)
        span = f"{format_seconds(min(seconds))} to {format_seconds(max(seconds))}"
        words = f"{format_seconds(median)} ({span}, slowest rank {slowest})"
        rates = f", {format_bytes(algorithm)}/s, bus {format_bytes(bus)}/s" if size >= 1000 else ""  # or all is latency
        facts = {
            "bytes": size, "seconds": seconds, "median": median, "slowest": slowest,
            "algorithm_bytes_per_second": algorithm, "bus_bytes_per_second": bus,
        }  # fmt: skip
        yield CheckResult(format_bytes(size), f"{words}{rates}{like}", facts=facts, part="all-reduce")
