"""The way from one GPU of this machine to another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from .findings import Finding, in_bytes

SIZE = 64_000_000  # bytes of a copy
REPEATS = 5


def backends() -> Iterator[Finding]:
    """What ranks would talk by."""
    dist = torch.distributed
    if not dist.is_available():
        yield Finding("torchrun", "this torch has no torch.distributed: a run is one process", "absent")
        return
    there = [name for name, has in (("Gloo", dist.is_gloo_available()), ("NCCL", dist.is_nccl_available())) if has]
    lacking = torch.cuda.device_count() > 1 and not dist.is_nccl_available()
    words = f"ranks can talk by {' and '.join(there) or 'nothing'}"
    fix = "pip install --force-reinstall torch" if lacking or not there else ""
    words += ", but GPUs need NCCL" if lacking else ""
    yield Finding("torchrun", words, "warning" if fix else "ok", fix, {"backends": there})


def copies() -> Iterator[Finding]:
    """Each GPU to every other: whether it reaches the other's memory, and how fast a copy is."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for i in range(count if count > 1 else 0):
        others = [j for j in range(count) if j != i]
        reaches = {j: torch.cuda.can_device_access_peer(i, j) for j in others}
        speeds = {j: bandwidth(i, j) for j in others}
        ways = [f"{j}: {in_bytes(speeds[j])}/s{'' if reaches[j] else ' (no P2P)'}" for j in others]
        facts = {str(j): {"p2p": reaches[j], "bytes_per_second": speeds[j]} for j in others}
        yield Finding(f"cuda:{i} to", ", ".join(ways), facts=facts)


def bandwidth(source: int, target: int) -> float:
    """Bytes a second of the fastest of a few copies."""
    here = torch.zeros(SIZE, dtype=torch.uint8, device=f"cuda:{source}")
    there = torch.empty(SIZE, dtype=torch.uint8, device=f"cuda:{target}")
    times = []
    for _ in range(REPEATS + 1):  # the first one opens the way
        settle(source, target)
        began = time.perf_counter()
        there.copy_(here)
        settle(source, target)
        times.append(time.perf_counter() - began)
    return SIZE / min(times[1:])


def settle(*devices: int) -> None:
    for device in devices:
        torch.cuda.synchronize(device)
