"""The processes that train one run together, as torchrun has started them, and what they say to each other.

Each process is a rank. Alone, which is the usual case, nobody speaks: every function here then gives back what it was given.
Numbers on a GPU travel by NCCL, also from within a CUDA graph; everything on the host travels by Gloo.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from .. import activity
from ..errors import NotFinite, RankLost, UsageError
from .network import address_toward, is_loopback, open_ear, speak_toward
from .roll import Roll, call_roll, this_process
from .vigil import Vigil

ECHO = timedelta(seconds=2)  # for what the first rank says to be heard
MESSAGE = timedelta(days=7)  # for a message to arrive: who holds it up is found by `overdue`, much earlier


@dataclass(frozen=True)
class World:
    """One rank's place among all of them. `is_distributed` if there is someone to talk to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1
    is_distributed: bool = False
    restarts: int = 0  # of the whole run, by torchrun
    store: Store | None = None  # a few words that all ranks can read, also after a restart

    @property
    def is_rank0(self) -> bool:
        """Whether this is the rank that writes, scores and speaks to the user."""
        return self.rank == 0


ALONE = World()
_world = ALONE
_vigil: Vigil | None = None


def world() -> World:
    return _world


def is_launched() -> bool:
    """Whether torchrun, or whatever speaks as it does, has started this process."""
    return dist.is_available() and {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def join(collectives: bool | None = None) -> World:
    """Take the place that the launcher has given this process, once; without a launcher, remain alone.

    `collectives` makes a lone process use its collectives all the same, which a test wants.
    """
    global _world
    if _world is not ALONE or not is_launched():
        return _world
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    run = os.environ.get("TORCHELASTIC_RUN_ID", "run")
    is_distributed = size > 1 if collectives is None else collectives
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # or torchrun's agent does
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        board = PrefixStore(f"tightrope/{run}", TCPStore(host, port, size, serves))
    except dist.DistError as error:
        raise RankLost(f"the launcher's store at {host}:{port} does not answer: {error}") from error
    if is_distributed:
        roll = keep_vigil(board, rank, size, restarts, host, port)
        restarts = roll.restarts
        store = PrefixStore(f"{roll.attempt}", board)  # or a restart reads addresses of processes that are gone
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        if dist.is_initialized() and "gloo" not in dist.get_backend_config():
            raise UsageError(
                f"the process group that is there speaks {dist.get_backend_config()}: make it of cpu:gloo,cuda:nccl, or none"
            )
        if not dist.is_initialized():  # or by whoever called
            with propagate_errors():
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=MESSAGE)
    _world = World(
        rank, size, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        is_distributed, restarts, board,
    )  # fmt: skip
    return _world


def spans_machines() -> bool:
    return int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1


def keep_vigil(board: Store, rank: int, size: int, restarts: int, host: str, port: int) -> Roll:
    """Find out who the others are, and from now on whether they live."""
    global _vigil
    address = address_toward(host, port)
    ear = open_ear(address if is_loopback(address) and not spans_machines() else "")
    me = this_process(rank, restarts, address, ear.getsockname()[1])
    roll = call_roll(board, me, size)
    elsewhere = [m.address for m in roll.members if m.machine != me.machine and not is_loopback(m.address)]
    if elsewhere:
        speak_toward(elsewhere[0], port)
    if size > 1:
        _vigil = Vigil(rank, roll, ear, host)
        _vigil.start()
    return roll


@contextmanager
def propagate_errors() -> Iterator[None]:
    """What fails in here for want of a rank that is gone raises RankLost; what fails by itself ends the other ranks too, if
    they have not found the same."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _vigil is not None and not isinstance(error, (NotFinite, SharedUsageError)):
            _vigil.explain(error)
        raise


class SharedUsageError(UsageError):
    """A mistake that all ranks know of."""


def set_loss_advice(words: Callable[[], str]) -> None:
    """What the line that names a lost rank ends with, such as how to go on; it is said from a thread of its own."""
    if _vigil is not None:
        _vigil.epilogue = words


def set_rank_timeout(seconds: float) -> None:
    """End the run once ranks have waited so long for one that makes no progress; 0 waits for ever."""
    if _vigil is not None:
        _vigil.overdue.set_limit(seconds)


@contextmanager
def communicating() -> Iterator[None]:
    """For messages: other ranks may have to do something before they arrive. RankLost if one of them is gone."""
    with activity.during("exchanging messages with the other ranks", waits=True):
        try:
            yield
        except RuntimeError as error:
            if _vigil is not None:
                _vigil.explain(error)
            raise


def leave() -> None:
    """Be alone again."""
    global _world, _vigil
    if _vigil is not None:
        _vigil.stop()
        _vigil = None
    if _world.is_distributed and dist.is_initialized():
        dist.destroy_process_group()
    _world = ALONE


@contextmanager
def local_only() -> Iterator[None]:
    """Inside, this rank speaks to nobody: what it does there the others do not do with it."""
    global _world
    before, _world = _world, replace(_world, is_distributed=False)
    try:
        yield
    finally:
        _world = before


# what they say -------------------------------------------------------------------------------------------------------


def all_reduce_sum(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    if not _world.is_distributed:
        return x
    total = x.clone()
    with communicating():
        dist.all_reduce(total)
    return total


def all_reduce_max(x: Tensor) -> Tensor:
    """The greatest over all ranks, number by number."""
    if not _world.is_distributed:
        return x
    most = x.clone()
    with communicating():
        dist.all_reduce(most, dist.ReduceOp.MAX)
    return most


def all_gather(x: Tensor) -> Tensor:
    """What each rank has, as (ranks, ...), the same on all of them."""
    if not _world.is_distributed:
        return x[None]
    rows = x.new_empty(_world.size, *x.shape)
    with communicating():
        dist.all_gather(list(rows), x.contiguous())
    return rows


def copy_from_rank0(*tensors: Tensor) -> None:
    """Make these what they are on the first rank."""
    if _world.is_distributed:
        with communicating():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def broadcast_from_rank0(word: Callable[[], bytes]) -> bytes:
    """What the first rank says; the others are not asked. A mistake that it finds is everyone's."""
    return broadcast_from(0, word)


def broadcast_from(rank: int, word: Callable[[], bytes]) -> bytes:
    """The same of another rank."""
    if not _world.is_distributed:
        return word()
    said = b""
    if _world.rank == rank:
        try:
            said = b"+" + word()
        except UsageError as error:
            said = b"!" + str(error).encode()
    size = torch.tensor(len(said))
    with communicating():
        dist.broadcast(size, rank)
        content = torch.frombuffer(bytearray(said or bytes(int(size))), dtype=torch.uint8)
        dist.broadcast(content, rank)
    said = content.numpy().tobytes()
    if said.startswith(b"!"):
        raise SharedUsageError(said[1:].decode())
    return said[1:]


def keep_for_restart(name: str, words: str) -> None:
    """Leave a few words for whoever is started after us in our place."""
    if _world.store is not None and _world.is_rank0:
        _world.store.set(name, json.dumps(words))  # a path need not be UTF-8


def kept_for_restart(name: str) -> str | None:
    """What was left by those who trained before a restart; the first rank reads it to all."""
    board = _world.store
    if board is None or not _world.restarts:
        return None
    return json.loads(broadcast_from_rank0(lambda: board.get(name) if board.check([name]) else b"null"))


def printed_by_rank0(line: str) -> bool:
    """Whether the first rank says this line too, so that another need not."""
    board, key = _world.store, f"{_world.restarts}/said"
    if board is None or _world.size == 1:
        return False
    try:
        if _world.is_rank0:
            board.set(key, line)
            return False
        board.wait([key], ECHO)
        return board.get(key) == line.encode()
    except (RuntimeError, ValueError):  # nobody has said anything, or nobody is there to ask
        return False


def gather_to_rank0(content: bytes) -> list[bytes]:
    """What each rank has to give, in their order, on the first; nothing on the others."""
    if not _world.is_distributed:
        return [content]
    received = [content] if _world.is_rank0 else []
    with communicating():
        if not _world.is_rank0:
            dist.send(torch.tensor(len(content)), 0)
            dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
        for rank in range(1, _world.size if _world.is_rank0 else 1):
            size = torch.tensor(0)
            dist.recv(size, rank)
            theirs = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(theirs, rank)
            received.append(theirs.numpy().tobytes())
            activity.mark()
    return received
