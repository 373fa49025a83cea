"""The ranks of a run (the processes that torchrun has started) and their messages.

A single process, the usual case, sends no message: every function here then returns its argument. GPU tensors use NCCL, also
within a CUDA graph; everything on the host uses Gloo.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from .. import activity
from ..errors import NotFinite, RankLost, UsageError
from ..output import print_line
from .heartbeat import Heartbeat
from .rendezvous import meet

PRINT_TIMEOUT = timedelta(seconds=2)  # for other ranks to read the line that rank 0 prints
MESSAGE_TIMEOUT = timedelta(days=7)  # of a collective: the heartbeat detects a stalled rank much earlier


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of ranks."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1
    is_distributed: bool = False  # whether messages are sent
    restarts: int = 0  # number of restarts of the run by torchrun
    store: Store | None = None  # key-value store shared by all ranks, which survives a restart

    @property
    def is_rank0(self) -> bool:
        """Whether this is the rank that writes, evaluates and prints."""
        return self.rank == 0


SINGLE = World()
_world = SINGLE
_heartbeat: Heartbeat | None = None


def world() -> World:
    return _world


def is_launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, has started this process."""
    return dist.is_available() and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def join(collectives: bool | None = None) -> World:
    """Join the other ranks, once. Without a launcher, remain a single process.

    `collectives` makes a single process send its messages all the same, for tests and measurements.
    """
    global _world, _heartbeat
    if _world is not SINGLE or not is_launched():
        return _world
    rank, size, host, port = number("RANK"), number("WORLD_SIZE"), os.environ["MASTER_ADDR"], number("MASTER_PORT")
    name = f"tightrope/{os.environ.get('TORCHELASTIC_RUN_ID', 'run')}"
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # or torchrun's agent does
    try:
        store = PrefixStore(name, TCPStore(host, port, size, serves))
    except dist.DistError as error:
        raise RankLost(f"the launcher's store at {host}:{port} does not answer: {error}") from error
    is_distributed, restarts = size > 1 if collectives is None else collectives, number("TORCHELASTIC_RESTART_COUNT")
    if is_distributed:
        met = meet(store, rank, size, host)
        restarts = met.attempt
        if size > 1:
            _heartbeat = Heartbeat(rank, met)
            _heartbeat.start()
        make_process_group(PrefixStore(f"{met.attempt}", store), rank, size)
    _world = World(
        rank, size, number("LOCAL_RANK", rank), number("LOCAL_WORLD_SIZE", 1), is_distributed, restarts, store
    )
    return _world


def number(variable: str, default: int = 0) -> int:
    """Return the value of an environment variable as a number."""
    return int(os.environ.get(variable, default))


def make_process_group(store: Store, rank: int, size: int) -> None:
    """Make torch's process group, unless the caller has made one. `store` must be new in each attempt."""
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(number("LOCAL_RANK") % torch.cuda.device_count())
    if not dist.is_initialized():
        with communicating():
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=MESSAGE_TIMEOUT)
    elif "gloo" not in dist.get_backend_config():
        raise UsageError(
            f"the process group uses {dist.get_backend_config()}: make it with cpu:gloo,cuda:nccl, or make none"
        )


def leave() -> None:
    """Leave the group of ranks, and be a single process again."""
    global _world, _heartbeat
    if _heartbeat is not None:
        _heartbeat.stop()
        _heartbeat = None
    if _world.is_distributed and dist.is_initialized():
        dist.destroy_process_group()
    _world = SINGLE


@contextmanager
def local_only() -> Iterator[None]:
    """Inside, this rank sends no message, because the other ranks do not run the same code."""
    global _world
    before, _world = _world, replace(_world, is_distributed=False)
    try:
        yield
    finally:
        _world = before


class SharedUsageError(UsageError):
    """A usage error that all ranks raise together."""


@contextmanager
def propagate_errors() -> Iterator[None]:
    """An error inside ends the other ranks too, unless all ranks raise it together."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _heartbeat is not None and not isinstance(error, (NotFinite, SharedUsageError)):
            _heartbeat.fail(error)
        raise


@contextmanager
def communicating() -> Iterator[None]:
    """Context for collectives, which wait for other ranks. Raises RankLost if one of them is lost."""
    with activity.during("exchanging messages with the other ranks", waits=True):
        try:
            yield
        except RuntimeError as error:
            if _heartbeat is not None:
                _heartbeat.explain(error)
            raise


def set_lost_rank_advice(words: Callable[[], str]) -> None:
    """Set the end of the message about a lost rank, such as how to resume. `words` is called in another thread."""
    if _heartbeat is not None:
        _heartbeat.advice = words


def set_rank_timeout(seconds: float) -> None:
    """Set how long ranks wait for a rank that makes no progress before the run ends; 0 waits for ever."""
    if _heartbeat is not None:
        _heartbeat.rank_timeout = seconds or math.inf


# tensors -------------------------------------------------------------------------------------------------------------


def all_reduce_sum(x: Tensor) -> Tensor:
    return _all_reduce(x, dist.ReduceOp.SUM)


def all_reduce_max(x: Tensor) -> Tensor:
    return _all_reduce(x, dist.ReduceOp.MAX)


def _all_reduce(x: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if not _world.is_distributed:
        return x
    result = x.clone()
    with communicating():
        dist.all_reduce(result, operation)
    return result


def any_rank(flag: Tensor) -> Tensor:
    """Whether the flag is True on any rank."""
    return all_reduce_max(flag.float()) > 0


def all_gather(x: Tensor) -> Tensor:
    """Return the tensors of all ranks as (ranks, ...), on every rank."""
    if not _world.is_distributed:
        return x[None]
    rows = x.new_empty(_world.size, *x.shape)
    with communicating():
        dist.all_gather(list(rows), x.contiguous())
    return rows


def copy_from_rank0(*tensors: Tensor) -> None:
    """Overwrite these tensors with those of rank 0."""
    if _world.is_distributed:
        with communicating():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


# bytes ---------------------------------------------------------------------------------------------------------------


def broadcast_from(rank: int, make: Callable[[], bytes]) -> bytes:
    """Call `make` on one rank, and return its result on all ranks. A UsageError is raised on all ranks."""
    if not _world.is_distributed:
        return make()
    content = b""
    if _world.rank == rank:
        try:
            content = b"+" + make()
        except UsageError as error:
            content = b"!" + str(error).encode()
    size = torch.tensor(len(content))
    with communicating():
        dist.broadcast(size, rank)
        buffer = torch.frombuffer(bytearray(content or bytes(int(size))), dtype=torch.uint8)
        dist.broadcast(buffer, rank)
    content = buffer.numpy().tobytes()
    if content.startswith(b"!"):
        raise SharedUsageError(content[1:].decode())
    return content[1:]


broadcast_from_rank0 = partial(broadcast_from, 0)


def gather_to_rank0(content: bytes) -> list[bytes]:
    """Return the contents of all ranks, in order, on rank 0, and an empty list on the others."""
    if not _world.is_distributed:
        return [content]
    sizes = all_gather(torch.tensor(len(content))).tolist()
    own = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    own.numpy()[: len(content)] = np.frombuffer(content, np.uint8)
    rows = [torch.empty_like(own) for _ in sizes] if _world.is_rank0 else None
    with communicating():
        dist.gather(own, rows)
    return [row[:size].numpy().tobytes() for row, size in zip(rows or [], sizes, strict=False)]


# notes for a restart, and printing -------------------------------------------------------------------------------------


def keep_for_restart(name: str, words: str) -> None:
    """Store a note for the ranks of the next attempt, in case torchrun restarts the run."""
    if _world.store is not None and _world.is_rank0:
        _world.store.set(name, json.dumps(words))  # a path need not be UTF-8


def kept_for_restart(name: str) -> str | None:
    """Return the note of an earlier attempt, as rank 0 reads it, or None."""
    store = _world.store
    if store is None or not _world.restarts:
        return None
    return json.loads(broadcast_from_rank0(lambda: store.get(name) if store.check([name]) else b"null"))


def print_error(line: str) -> None:
    """Print a line once even if several ranks call this: on rank 0, and on another rank only if rank 0 printed another line."""
    store, rank, key = _world.store, _world.rank, f"{_world.restarts}/printed"
    printed = False
    if rank == 0:
        print_line(f"tightrope: {line}", error=True)
    if store is None or _world.size == 1:
        return
    with suppress(RuntimeError, ValueError):  # rank 0 or another rank prints nothing, or the store is lost
        if rank == 0:
            store.set(key, line)
            store.wait([f"{key} {other}" for other in range(1, _world.size)], PRINT_TIMEOUT)  # it may end with us
        else:
            store.wait([key], PRINT_TIMEOUT)
            printed = store.get(key) == line.encode()
            store.set(f"{key} {rank}", "read")
    if rank and not printed:
        print_line(f"tightrope: rank {rank}: {line}", error=True)
