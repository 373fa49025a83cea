"""Checks of ranks under torchrun: whether they are alike, and how long an all-reduce takes them."""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.distributed as dist

from ...engine import cores, distributed
from ...errors import plural
from ...version import __version__
from .results import CheckResult, format_bytes, format_seconds

SLOW_FACTOR = 1.5  # times the median, from which on a rank holds up the others
MATRIX, PRODUCTS, WARM_UP = 384, 30, 2
MESSAGES = [  # bytes, repeats, what is as large
    (8, 50, "; a flag"),
    (40_000, 50, "; CartPole's gradient"),
    (1_000_000, 20, ""),
    (7_000_000, 10, "; the Atari network's"),
    (64_000_000, 3, ""),
]


@dataclass(frozen=True)
class RankReport:
    """What a rank reports of itself."""

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
    """The ranks one by one, what differs between them, and their all-reduces; on the first rank only."""
    too_many = too_many_ranks()
    if too_many is not None:
        yield too_many
    elif reports := measure():
        yield from compare_ranks(reports)
        yield from all_reduces(reports)


def measure() -> list[RankReport]:
    """Join the other ranks and measure with them: on the first rank the reports of all, nothing elsewhere."""
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
            sums=[all_reduce_seconds(size, repeats, device) for size, repeats, _ in MESSAGES],
        )
        received = distributed.gather_to_rank0(json.dumps(asdict(own)).encode())
    finally:
        distributed.leave()
    return [RankReport(**json.loads(content)) for content in received]


def all_reduce_seconds(size: int, repeats: int, device: torch.device) -> float:
    numbers = torch.zeros(size // 4, device=device)
    return statistics.median(timed(lambda: dist.all_reduce(numbers), repeats, device))


def timed(action: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each repeat, after a few that do not count."""
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
    """The ranks one by one, then what differs between them, and which of them wait for others."""
    yield from (report.result() for report in found)
    compared = {name: [report.versions.get(name, "none") for report in found] for name in found[0].versions}
    for name, values in {**compared, "devices": [report.model for report in found]}.items():
        if len(set(values)) > 1:
            words = ", ".join(f"{value} on rank {report.rank}" for report, value in zip(found, values, strict=True))
            fix = "the slowest sets the pace" if name == "devices" else "install the same"
            yield CheckResult(name, f"differs: {words}", "warning", fix)
    used = [(report.host, report.device) for report in found if report.device != "cpu"]
    for host, device in sorted({place for place in used if used.count(place) > 1}):
        yield CheckResult("devices", f"several ranks use {device} of {host}", "warning", "start one rank per GPU")
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
        if size >= 1000:  # smaller ones are all latency
            words += f", {format_bytes(algorithm)}/s, bus {format_bytes(bus)}/s"
        facts = {
            "bytes": size, "seconds": seconds, "median": median, "slowest": slowest,
            "algorithm_bytes_per_second": algorithm, "bus_bytes_per_second": bus,
        }  # fmt: skip
        yield CheckResult(format_bytes(size), f"{words}{like}", facts=facts, part="all-reduce")
