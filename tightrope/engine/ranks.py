"""The processes that train one run together, as torchrun has started them, and what they say to each other.

Each process is a rank. Alone, which is the usual case, nobody speaks: every function here then gives back what it was given.
Numbers on a GPU travel by NCCL, also from within a CUDA graph; everything on the host travels by Gloo.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(minutes=30)  # with a rank that lives but is busy: the first one scores and saves, the others wait


@dataclass(frozen=True)
class World:
    """One rank's place among all of them. `talks` if there is someone to talk to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1
    talks: bool = False
    restarts: int = 0  # of the whole run, by torchrun
    store: dist.Store | None = None  # a few words that all ranks can read, of this attempt alone
    board: dist.Store | None = None  # the same, kept over restarts

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes, scores and speaks to the user."""
        return self.rank == 0

    def share(self, count: int) -> int:
        """This rank's part of a number that is split evenly."""
        return count // self.size


ALONE = World()
_world = ALONE


def world() -> World:
    return _world


def launched() -> bool:
    """Whether torchrun, or whatever speaks as it does, has started this process."""
    return dist.is_available() and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def join(talks: bool | None = None) -> World:
    """Take the place that the launcher has given this process, once; without a launcher, remain alone.

    `talks` makes a lone process use its collectives all the same, which a test wants.
    """
    global _world
    if _world is not ALONE or not launched():
        return _world
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    talks = size > 1 if talks is None else talks
    store = board = None
    if talks:
        server = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        board = dist.PrefixStore(f"tightrope/{run}", server)
        store = dist.PrefixStore(f"{restarts}", board)  # or a restart reads addresses of processes that are gone
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        if not dist.is_initialized():  # or by whoever called
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    _world = World(
        rank, size, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        talks, restarts, store, board,
    )  # fmt: skip
    return _world


def leave() -> None:
    """Be alone again."""
    global _world
    if _world.talks and dist.is_initialized():
        dist.destroy_process_group()
    _world = ALONE


# what they say -------------------------------------------------------------------------------------------------------


def summed(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    if not _world.talks:
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total


def greatest(x: Tensor) -> Tensor:
    """The greatest over all ranks, number by number."""
    if not _world.talks:
        return x
    most = x.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most


def gathered(x: Tensor) -> Tensor:
    """What each rank has, as (ranks, ...), the same on all of them."""
    if not _world.talks:
        return x[None]
    rows = x.new_empty(_world.size, *x.shape)
    dist.all_gather(list(rows), x.contiguous())
    return rows


def as_first(*tensors: Tensor) -> None:
    """Make these what they are on the first rank."""
    if _world.talks:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def told_by_first(word: Callable[[], bytes]) -> bytes:
    """What the first rank says; the others are not asked."""
    if not _world.talks:
        return word()
    said = word() if _world.is_first else b""
    size = torch.tensor(len(said))
    dist.broadcast(size, 0)
    content = (
        torch.frombuffer(bytearray(said), dtype=torch.uint8) if said else torch.empty(int(size), dtype=torch.uint8)
    )
    if len(content):
        dist.broadcast(content, 0)
    return content.numpy().tobytes()


def handed_to_first(content: bytes) -> list[bytes]:
    """What each rank has to give, in their order, on the first; nothing on the others."""
    if not _world.talks:
        return [content]
    if not _world.is_first:
        dist.send(torch.tensor(len(content)), 0)
        dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
        return []
    received = [content]
    for rank in range(1, _world.size):
        size = torch.tensor(0)
        dist.recv(size, rank)
        theirs = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(theirs, rank)
        received.append(theirs.numpy().tobytes())
    return received
