"""The ranks of a run, which are the processes that torchrun has started, and what they exchange.

A single process, the usual case, sends nothing: every function here then returns what it was given. Numbers on a GPU travel by
NCCL, also from within a CUDA graph; everything on the host travels by Gloo.
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

PRINT_TIMEOUT = timedelta(seconds=2)  # for other ranks to learn what rank 0 prints
MESSAGE_TIMEOUT = timedelta(days=7)  # of a collective: the heartbeat finds who holds it up, much earlier


@dataclass(frozen=True)
class World:
    """One rank's place among all of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1
    is_distributed: bool = False  # whether messages are sent
    restarts: int = 0  # of the whole run, by torchrun
    store: Store | None = None  # a few words that all ranks can read, also after a restart

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
    """Take the place that the launcher has given this process, once; without a launcher, remain a single process.

    `collectives` makes a single process use its collectives all the same, for tests and measurements.
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
    """The value of an environment variable."""
    return int(os.environ.get(variable, default))


def make_process_group(store: Store, rank: int, size: int) -> None:
    """Torch's, unless the caller has made one. The store is this attempt's: another's has addresses of dead ranks."""
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
    """Be a single process again."""
    global _world, _heartbeat
    if _heartbeat is not None:
        _heartbeat.stop()
        _heartbeat = None
    if _world.is_distributed and dist.is_initialized():
        dist.destroy_process_group()
    _world = SINGLE


@contextmanager
def local_only() -> Iterator[None]:
    """Inside, this rank sends nothing: the others do not do with it what it does there."""
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
    """An error in here ends the other ranks too, unless they have raised the same."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _heartbeat is not None and not isinstance(error, (NotFinite, SharedUsageError)):
            _heartbeat.fail(error)
        raise


@contextmanager
def communicating() -> Iterator[None]:
    """For collectives, which end only when other ranks have done their part. RankLost if one of them is gone."""
    with activity.during("exchanging messages with the other ranks", waits=True):
        try:
            yield
        except RuntimeError as error:
            if _heartbeat is not None:
                _heartbeat.explain(error)
            raise


def set_loss_advice(words: Callable[[], str]) -> None:
    """The end of the line that names a lost rank, such as how to resume. It is called in another thread."""
    if _heartbeat is not None:
        _heartbeat.advice = words


def set_rank_timeout(seconds: float) -> None:
    """End the run once ranks have waited so long for one that makes no progress; 0 waits for ever."""
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
    """Whether it is True on any rank."""
    return all_reduce_max(flag.float()) > 0


def all_gather(x: Tensor) -> Tensor:
    """What each rank has, as (ranks, ...), the same on all of them."""
    if not _world.is_distributed:
        return x[None]
    rows = x.new_empty(_world.size, *x.shape)
    with communicating():
        dist.all_gather(list(rows), x.contiguous())
    return rows


def copy_from_rank0(*tensors: Tensor) -> None:
    """Make these what they are on rank 0."""
    if _world.is_distributed:
        with communicating():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


# bytes ---------------------------------------------------------------------------------------------------------------


def broadcast_from(rank: int, make: Callable[[], bytes]) -> bytes:
    """What `make` returns on one rank; it is not called on the others. A UsageError that it raises is raised on all."""
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
    """What each rank has, by rank, on rank 0; nothing on the others."""
    if not _world.is_distributed:
        return [content]
    sizes = all_gather(torch.tensor(len(content))).tolist()
    own = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    own.numpy()[: len(content)] = np.frombuffer(content, np.uint8)
    rows = [torch.empty_like(own) for _ in sizes] if _world.is_rank0 else None
    with communicating():
        dist.gather(own, rows)
    return [row[:size].numpy().tobytes() for row, size in zip(rows or [], sizes, strict=False)]


# words for a restart, and for the terminal ------------------------------------------------------------------------------


def keep_for_restart(name: str, words: str) -> None:
    """Leave a few words for the ranks of the next attempt, if torchrun restarts the run."""
    if _world.store is not None and _world.is_rank0:
        _world.store.set(name, json.dumps(words))  # a path need not be UTF-8


def kept_for_restart(name: str) -> str | None:
    """What the ranks of an earlier attempt have left, as rank 0 reads it."""
    store = _world.store
    if store is None or not _world.restarts:
        return None
    return json.loads(broadcast_from_rank0(lambda: store.get(name) if store.check([name]) else b"null"))


def print_error(line: str) -> None:
    """Print a line that several ranks may have found: rank 0 does, and another rank if rank 0 has not printed the same."""
    store, rank, key = _world.store, _world.rank, f"{_world.restarts}/printed"
    printed = False
    if rank == 0:
        print_line(f"tightrope: {line}", error=True)
    if store is None or _world.size == 1:
        return
    with suppress(RuntimeError, ValueError):  # rank 0 prints nothing, another rank does not, or the store is gone
        if rank == 0:
            store.set(key, line)
            store.wait([f"{key} {other}" for other in range(1, _world.size)], PRINT_TIMEOUT)  # it may end with us
        else:
            store.wait([key], PRINT_TIMEOUT)
            printed = store.get(key) == line.encode()
            store.set(f"{key} {rank}", "read")
    if rank and not printed:
        print_line(f"tightrope: rank {rank}: {line}", error=True)
