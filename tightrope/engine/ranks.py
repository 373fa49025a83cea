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
    """One rank's place among all of them. `talks` if there is someone to talk to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    local_size: int = 1
    talks: bool = False
    restarts: int = 0  # of the whole run, by torchrun
    board: Store | None = None  # a few words that all ranks can read, also after a restart

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes, scores and speaks to the user."""
        return self.rank == 0


ALONE = World()
_world = ALONE
_vigil: Vigil | None = None


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
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # or torchrun's agent does
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        board = PrefixStore(f"tightrope/{run}", TCPStore(host, port, size, serves))
    except dist.DistError as error:
        raise RankLost(f"the launcher's store at {host}:{port} does not answer: {error}") from error
    if talks:
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
            with watched():
                dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=MESSAGE)
    _world = World(
        rank, size, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        talks, restarts, board,
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
def watched() -> Iterator[None]:
    """What fails in here for want of a rank that is gone raises RankLost; what fails by itself ends the other ranks too, if
    they have not found the same."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if _vigil is not None and not isinstance(error, (NotFinite, Everyones)):
            _vigil.explain(error)
        raise


class Everyones(UsageError):
    """A mistake that all ranks know of."""


def when_one_is_lost(words: Callable[[], str]) -> None:
    """What the line that names a lost rank ends with, such as how to go on; it is said from a thread of its own."""
    if _vigil is not None:
        _vigil.epilogue = words


def wait_at_most(seconds: float) -> None:
    """End the run once ranks have waited so long for one that makes no progress; 0 waits for ever."""
    if _vigil is not None:
        _vigil.overdue.set_limit(seconds)


@contextmanager
def waiting() -> Iterator[None]:
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
    if _world.talks and dist.is_initialized():
        dist.destroy_process_group()
    _world = ALONE


@contextmanager
def apart() -> Iterator[None]:
    """Inside, this rank speaks to nobody: what it does there the others do not do with it."""
    global _world
    before, _world = _world, replace(_world, talks=False)
    try:
        yield
    finally:
        _world = before


# what they say -------------------------------------------------------------------------------------------------------


def summed(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    if not _world.talks:
        return x
    total = x.clone()
    with waiting():
        dist.all_reduce(total)
    return total


def greatest(x: Tensor) -> Tensor:
    """The greatest over all ranks, number by number."""
    if not _world.talks:
        return x
    most = x.clone()
    with waiting():
        dist.all_reduce(most, dist.ReduceOp.MAX)
    return most


def gathered(x: Tensor) -> Tensor:
    """What each rank has, as (ranks, ...), the same on all of them."""
    if not _world.talks:
        return x[None]
    rows = x.new_empty(_world.size, *x.shape)
    with waiting():
        dist.all_gather(list(rows), x.contiguous())
    return rows


def as_first(*tensors: Tensor) -> None:
    """Make these what they are on the first rank."""
    if _world.talks:
        with waiting():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


def told_by_first(word: Callable[[], bytes]) -> bytes:
    """What the first rank says; the others are not asked. A mistake that it finds is everyone's."""
    return told_by(0, word)


def told_by(rank: int, word: Callable[[], bytes]) -> bytes:
    """The same of another rank."""
    if not _world.talks:
        return word()
    said = b""
    if _world.rank == rank:
        try:
            said = b"+" + word()
        except UsageError as error:
            said = b"!" + str(error).encode()
    size = torch.tensor(len(said))
    with waiting():
        dist.broadcast(size, rank)
        content = torch.frombuffer(bytearray(said or bytes(int(size))), dtype=torch.uint8)
        dist.broadcast(content, rank)
    said = content.numpy().tobytes()
    if said.startswith(b"!"):
        raise Everyones(said[1:].decode())
    return said[1:]


def post(name: str, words: str) -> None:
    """Leave a few words for whoever is started after us in our place."""
    if _world.board is not None and _world.is_first:
        _world.board.set(name, json.dumps(words))  # a path need not be UTF-8


def posted(name: str) -> str | None:
    """What was left by those who trained before a restart; the first rank reads it to all."""
    board = _world.board
    if board is None or not _world.restarts:
        return None
    return json.loads(told_by_first(lambda: board.get(name) if board.check([name]) else b"null"))


def said_by_first(line: str) -> bool:
    """Whether the first rank says this line too, so that another need not."""
    board, key = _world.board, f"{_world.restarts}/said"
    if board is None or _world.size == 1:
        return False
    try:
        if _world.is_first:
            board.set(key, line)
            return False
        board.wait([key], ECHO)
        return board.get(key) == line.encode()
    except (RuntimeError, ValueError):  # nobody has said anything, or nobody is there to ask
        return False


def handed_to_first(content: bytes) -> list[bytes]:
    """What each rank has to give, in their order, on the first; nothing on the others."""
    if not _world.talks:
        return [content]
    received = [content] if _world.is_first else []
    with waiting():
        if not _world.is_first:
            dist.send(torch.tensor(len(content)), 0)
            dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
        for rank in range(1, _world.size if _world.is_first else 1):
            size = torch.tensor(0)
            dist.recv(size, rank)
            theirs = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(theirs, rank)
            received.append(theirs.numpy().tobytes())
            activity.mark()
    return received
