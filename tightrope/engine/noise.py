"""Randomness: the noise of a phase, and the generators of `random`, NumPy and torch that belong to a run.

All random numbers of a phase are drawn before it from streams with a key (seed, name, phase, rank), and passed to it. A phase
is then a deterministic function of its state and noise, however it is executed. A resumed run draws the same numbers
as an uninterrupted one. Evaluation has a stream name of its own and cannot disturb training.

Tightrope itself does not draw from the process's global generators, but a user's environment or network may. While a run
trains, these generators are the run's: they start from its seed, are saved in checkpoints, and continue when it resumes. The
caller's generators are restored afterwards. Two threads that train at the same time share the generators. If one of them draws,
neither is reproducible, and a warning is printed.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..envs.random_streams import streams_lock
from ..output import print_line
from ..types import Env
from .distributed import world

WARNING = (
    "warning: two threads of this process train or evaluate at the same time and draw from the same global random generators "
    "(random, numpy.random or torch): their numbers are not reproducible. Give each a process of its own, as --seeds does, or "
    "let environments draw from generators of their own, such as self.np_random"
)


class Noise(NamedTuple):
    """All random numbers of one phase."""

    start: Tensor  # (N, R) uniform, for a reset of all environments before the rollout
    action: Tensor  # (T, N, ...) for the action distribution's `sample`
    reset: Tensor  # (T, N, R) uniform, for environments whose episode ends
    shuffle: Tensor  # (epochs, rows) uniform keys of the order of rows: sorted, or see kernels/orders.py


def stream_seed(seed: int, name: str, phase: int = 0, rank: int = 0) -> int:
    """Return a 63-bit seed for one named stream. Different keys give independent streams."""
    digest = hashlib.blake2b(f"{seed}/{name}/{phase}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(device: torch.device, seed: int, name: str, phase: int = 0, rank: int = 0) -> torch.Generator:
    """Return a generator at the start of one named stream."""
    return torch.Generator(device).manual_seed(stream_seed(seed, name, phase, rank))


ActionNoise = Callable[[tuple[int, ...], torch.Generator], Tensor]


def draw_noise(
    env: Env, action_noise: ActionNoise, num_steps: int, shuffle: tuple[int, int], seed: int, phase: int
) -> Noise:
    """Draw the noise of phase number `phase` for this rank. `shuffle` is (epochs, rows to shuffle in each)."""
    rank, generator = world().rank, torch.Generator(env.device)

    def at_start(name: str) -> torch.Generator:
        return generator.manual_seed(stream_seed(seed, name, phase, rank))

    def uniform(name: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=at_start(name), device=env.device)

    return Noise(
        start=uniform("start", env.num_envs, env.noise_size),
        action=action_noise((num_steps, env.num_envs), at_start("action")),
        reset=uniform("reset", num_steps, env.num_envs, env.noise_size),
        shuffle=uniform("shuffle", *shuffle),
    )


# the process's global generators ------------------------------------------------------------------------------------------


class Streams:
    """The states of a run's generators, and the context in which the process uses them."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.stored = seeded(seed, device)
        self.callers: dict[str, Tensor] = {}  # the caller's states, while these streams are active
        self.thread = 0  # the thread in which they are active

    @contextmanager
    def activated(self) -> Iterator[None]:
        """Inside, the process's generators have the run's states."""
        _active.enter(self)
        try:
            yield
        finally:
            _active.leave(self)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within `activated`: inside, the process's generators have the caller's states again."""
        _active.leave(self)
        try:
            yield
        finally:
            _active.enter(self)

    def state_dict(self) -> dict[str, Tensor]:
        return _active.state_of(self)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Set the states that fit: generators of different kinds of device have different states."""
        mine = self.state_dict()
        if missing := mine.keys() - state.keys() - {"cuda"}:
            raise KeyError(f"streams.{min(missing)}")
        taken = {k: state[k] if k in state and state[k].shape == v.shape else v for k, v in mine.items()}
        check_streams(taken)
        _active.set_state_of(self, taken)


class ActiveStreams:
    """A stack of the streams that are active in this process. Those of one thread are nested."""

    def __init__(self) -> None:
        self.lock = streams_lock
        self.stack: list[Streams] = []
        self.last: dict[str, Tensor] = {}  # the process's states when last read or written
        self.warned = False

    def enter(self, streams: Streams) -> None:
        with self.lock:
            streams.callers, streams.thread = self.read_state(streams.device), threading.get_ident()
            self.stack.append(streams)
            self.write_state(streams.stored, streams.device)

    def leave(self, streams: Streams) -> None:
        with self.lock:
            streams.stored = self.state_of(streams)
            above = self.above(streams)
            self.stack.remove(streams)
            if above is None:
                self.write_state(streams.callers, streams.device)
            else:  # another thread's streams stay active; when they end, the process gets the states from before both
                above.callers |= {k: v for k, v in streams.callers.items() if k in above.callers}
                if "cuda" in streams.callers and "cuda" not in above.callers:
                    torch.cuda.set_rng_state(streams.callers["cuda"], streams.device)

    def state_of(self, streams: Streams) -> dict[str, Tensor]:
        """Return the states of these streams. If another thread's are on top: as they were when it started."""
        with self.lock:
            if streams not in self.stack:
                return dict(streams.stored)
            now, above = self.read_state(streams.device), self.above(streams)
            return now if above is None else now | {k: v for k, v in above.callers.items() if k in now}

    def set_state_of(self, streams: Streams, state: dict[str, Tensor]) -> None:
        with self.lock:
            streams.stored = state
            if streams not in self.stack:
                return
            above = self.above(streams)
            if above is None:
                self.write_state(state, streams.device)
            else:
                above.callers |= {k: v for k, v in state.items() if k in above.callers}

    def above(self, streams: Streams) -> Streams | None:
        """Return the streams that were activated next, or None."""
        after = self.stack[self.stack.index(streams) + 1 :]
        return after[0] if after else None

    def read_state(self, device: torch.device) -> dict[str, Tensor]:
        """Return the process's states. Warn if a number was drawn since the last call while two threads are active."""
        now, before = get_rng_state(device), self.last
        threads = {streams.thread for streams in self.stack} | {threading.get_ident()}
        drawn = any(k in before and not torch.equal(now[k], before[k]) for k in now.keys() - {"cuda"})
        if self.stack and len(threads) > 1 and drawn and not self.warned:
            self.warned = True
            print_line(WARNING, error=True)
        self.last = now
        return now

    def write_state(self, state: dict[str, Tensor], device: torch.device) -> None:
        set_rng_state(state, device)
        self.last = state


_active = ActiveStreams()


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Inside, the process's CPU generators start from this seed, for drawing a network's initial weights. Afterwards they are
    restored. Only one thread at a time is inside."""
    with _active.lock, torch.random.fork_rng(devices=[]):
        before = python_rng_state(random) | numpy_rng_state(np.random)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            set_generators(before, random, np.random)


@contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, the process's generators start from this seed. Afterwards they are restored."""
    with Streams(seed, device).activated():
        yield


def seeded(seed: int, device: torch.device) -> dict[str, Tensor]:
    """Return the initial states of all generators for a seed."""
    numpy = np.random.RandomState(stream_seed(seed, "numpy") % 2**32)
    state = python_rng_state(random.Random(stream_seed(seed, "python"))) | numpy_rng_state(numpy)
    state["torch"] = torch.Generator().manual_seed(stream_seed(seed, "torch")).get_state()
    if device.type == "cuda":
        state["cuda"] = torch.Generator(device).manual_seed(stream_seed(seed, "cuda")).get_state()
    return state


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """Return the current states of the process's generators."""
    state = python_rng_state(random) | numpy_rng_state(np.random)
    state["torch"] = torch.get_rng_state()
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Set the states of the process's generators."""
    set_generators(state, random, np.random)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def check_streams(state: dict[str, Tensor]) -> None:
    """Raise an error unless these are valid states, without touching the process's generators."""
    set_generators(state, random.Random(), np.random.RandomState())
    torch.Generator().set_state(state["torch"])


def set_generators(state: dict[str, Tensor], python: Any, numpy: Any) -> None:
    """Set the states of a Python and a NumPy generator (or of the modules `random` and `numpy.random`)."""
    kept, gauss = state["python.gauss"].tolist()
    python.setstate((3, tuple(state["python"].tolist()), gauss if kept else None))
    *key, position, has_gauss = state["numpy"].tolist()
    if not 0 <= position <= len(key):
        # NumPy would read beyond the end of the key
        raise ValueError(f"streams.numpy has position {position} of {len(key)}")
    words = {"key": np.array(key, np.uint32), "pos": position}
    rest = {"has_gauss": has_gauss, "gauss": float(state["numpy.gauss"])}
    numpy.set_state({"bit_generator": "MT19937", "state": words, **rest})


def python_rng_state(source: Any) -> dict[str, Tensor]:
    _, words, gauss = source.getstate()
    return {
        "python": torch.tensor(words),
        "python.gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),  # the kept second number
    }


def numpy_rng_state(source: Any) -> dict[str, Tensor]:
    state = source.get_state(legacy=False)
    words = [*state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"]]
    return {"numpy": torch.tensor(words), "numpy.gauss": torch.tensor(state["gauss"], dtype=torch.float64)}
