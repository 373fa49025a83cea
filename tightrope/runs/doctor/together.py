"""Ranks under torchrun: who they are, whether they are alike, and how long it takes them to agree on a gradient."""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...engine import cores, distributed
from ...errors import plural
from ...version import __version__
from .findings import Finding, in_bytes, in_seconds

MUCH = 1.5  # times as slow as the others, from which on a rank holds them up
WORK, WORK_REPEATS = 384, 30  # side of the matrices by which ranks are compared
WARM_UP = 2


class Message(NamedTuple):
    """What is summed over ranks, and how often: the same on all of them, so that none waits for another in vain."""

    size: int  # bytes
    repeats: int
    like: str = ""


MESSAGES = (
    Message(8, 50, "a flag"),
    Message(40_000, 50, "CartPole's gradient"),
    Message(1_000_000, 20),
    Message(7_000_000, 10, "the Atari network's"),
    Message(64_000_000, 3),
)


@dataclass(frozen=True)
class Rank:
    """What one rank says of itself."""

    rank: int
    host: str
    device: str  # as torch calls it
    model: str  # of the device
    threads: int
    cores: int
    versions: dict[str, str]
    work: float  # seconds of one matrix product
    sums: list[float]  # seconds of one all-reduce, for each message

    @property
    def line(self) -> str:
        device = self.device if self.device == self.model else f"{self.device} ({self.model})"
        work = f"a product of {WORK} x {WORK} matrices in {in_seconds(self.work)}"
        return f"{self.host}, {device}, {plural(self.threads, 'torch thread')}; {work}"


def speak() -> list[Rank]:
    """Join the other ranks, measure with them and part again: all of them on the first rank, nothing elsewhere."""
    world = distributed.join()
    try:
        device = torch.device("cuda", world.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        own = myself(world.rank, device)
        received = distributed.gather_to_rank0(json.dumps(asdict(own)).encode())
    finally:
        distributed.leave()
    return [Rank(**json.loads(content)) for content in received]


def myself(rank: int, device: torch.device) -> Rank:
    return Rank(
        rank=rank,
        host=socket.gethostname(),
        device=str(device),
        model=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        cores=cores(),
        versions={"tightrope": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        work=work(device),
        sums=[all_reduce(message, device) for message in MESSAGES],
    )


def timed(action: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each repeat, after a few that do not count."""
    times = []
    for _ in range(WARM_UP + repeats):
        settle(device)
        began = time.perf_counter()
        action()
        settle(device)
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def work(device: torch.device) -> float:
    """One matrix product at its best: what a rank can do, whatever else its machine does now and then."""
    matrix = torch.ones(WORK, WORK, device=device)
    return min(timed(lambda: matrix @ matrix, WORK_REPEATS, device))


def all_reduce(message: Message, device: torch.device) -> float:
    """The median over repeats, seen from here."""
    numbers = torch.zeros(message.size // 4, device=device)
    return statistics.median(timed(lambda: dist.all_reduce(numbers), message.repeats, device))


# what is shown ---------------------------------------------------------------------------------------------------------


def crowded() -> Finding | None:
    """More ranks than GPUs on a machine, which every rank can see without asking: none then tries to join."""
    local, there = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if not torch.cuda.is_available() or local <= there:
        return None
    words = f"{plural(local, 'rank')} on a machine with {plural(there, 'GPU')}: each needs one of its own"
    return Finding("ranks", words, "broken", f"torchrun --nproc-per-node {there} -m tightrope ...")


def described(found: list[Rank]) -> Iterator[Finding]:
    """Ranks one by one, then what sets them apart."""
    for rank in found:
        yield Finding(f"rank {rank.rank}", rank.line, facts=asdict(rank))
    yield from differences(found)
    yield from laggards(found)
    yield from crowding(found)


def differences(found: list[Rank]) -> Iterator[Finding]:
    """Versions or devices that are not the same everywhere, and devices that two ranks share."""
    for name in found[0].versions:
        yield from told_apart(name, {rank.rank: rank.versions.get(name, "none") for rank in found}, "install the same")
    yield from told_apart("devices", {rank.rank: rank.model for rank in found}, "the slowest sets the pace")
    places = [(rank.host, rank.device) for rank in found if rank.device != "cpu"]
    for host, device in sorted({place for place in places if places.count(place) > 1}):
        yield Finding("devices", f"several ranks use {device} of {host}", "warning", "start one rank per GPU")


def told_apart(name: str, values: dict[int, str], fix: str) -> Iterator[Finding]:
    if len(set(values.values())) > 1:
        said = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
        yield Finding(name, f"not the same everywhere: {said}", "warning", fix, {str(k): v for k, v in values.items()})


def laggards(found: list[Rank]) -> Iterator[Finding]:
    """Ranks that need much longer for the same work: the others wait for them in every update."""
    usual = statistics.median_low([rank.work for rank in found])
    for rank in found:
        if rank.work > MUCH * usual:
            words = f"{rank.work / usual:.1f} times as slow as the others at the same work, and holds them up"
            yield Finding(f"rank {rank.rank}", words, "warning", f"see what else runs on {rank.host}")


def crowding(found: list[Rank]) -> Iterator[Finding]:
    """More ranks on a machine than cores."""
    for host in sorted({rank.host for rank in found}):
        here = [rank for rank in found if rank.host == host]
        if len(here) > here[0].cores:
            words = f"{len(here)} ranks share {plural(here[0].cores, 'core')} of {host}"
            yield Finding("cores", words, "warning", f"torchrun --nproc-per-node {here[0].cores} -m tightrope ...")


def sums(found: list[Rank]) -> Iterator[Finding]:
    """All-reduces by the size of the message. Bus bandwidth counts what passes a rank's link, 2 (n - 1) / n of the message,
    and is what compares with the hardware's."""
    count = len(found)
    for i, message in enumerate(MESSAGES):
        seconds = [rank.sums[i] for rank in found]
        median, slowest = statistics.median(seconds), max(found, key=lambda rank: rank.sums[i])
        algorithm = message.size / median
        bus = algorithm * 2 * (count - 1) / count
        words = f"{in_seconds(median)} ({in_seconds(min(seconds))} to {in_seconds(max(seconds))}, slowest rank {slowest.rank})"
        if message.size >= 1000:  # below it is all latency
            words += f", {in_bytes(algorithm)}/s, bus {in_bytes(bus)}/s"
        facts = {
            "bytes": message.size, "seconds": seconds, "median": median, "slowest": slowest.rank,
            "algorithm_bytes_per_second": algorithm, "bus_bytes_per_second": bus,
        }  # fmt: skip
        yield Finding(in_bytes(message.size), f"{words}{f'; {message.like}' if message.like else ''}", facts=facts)
