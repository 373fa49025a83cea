"""Randomness: the noise of a phase, which is an argument, and the process's own streams, which belong to the run.

All random numbers of a phase are drawn at its head from streams keyed by (seed, name, phase, rank). A phase is then a
deterministic function of its state and its noise, whichever way it is executed; a resumed run draws what the uninterrupted
one would have; and evaluation, with a stream name of its own, cannot disturb training.

Nothing here is drawn from the process's own generators (Python's, NumPy's, torch's), but a user's environment or network may
draw from them. While a run trains they are the run's: they start from its seed, are saved with it and go on where they were;
the caller's are left untouched. Two threads that train at the same time share them: where neither draws from them, nothing is
lost; where one does, each draws numbers that were the other's, and a warning says so.
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
    """Everything random that happens in one phase."""

    start: Tensor  # (N, R) uniform, for a full reset at the head of the phase
    action: Tensor  # (T, N, ...) what the action distribution's `sample` consumes
    reset: Tensor  # (T, N, R) uniform, for environments whose episode ends
    shuffle: Tensor  # (passes, rows) uniform keys whose order is a permutation


def stream_seed(seed: int, name: str, phase: int = 0, rank: int = 0) -> int:
    """A 63-bit seed for one named stream; unrelated keys give unrelated streams."""
    digest = hashlib.blake2b(f"{seed}/{name}/{phase}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(device: torch.device, seed: int, name: str, phase: int = 0, rank: int = 0) -> torch.Generator:
    """A generator at the start of one named stream."""
    return torch.Generator(device).manual_seed(stream_seed(seed, name, phase, rank))


ActionNoise = Callable[[tuple[int, ...], torch.Generator], Tensor]


def draw_noise(
    env: Env, action_noise: ActionNoise, num_steps: int, shuffle: tuple[int, int], seed: int, phase: int
) -> Noise:
    """The noise of phase number `phase` for this rank. `shuffle` is (passes over the data, rows to shuffle in each)."""
    rank = world().rank

    def uniform(name: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=stream(env.device, seed, name, phase, rank), device=env.device)

    return Noise(
        start=uniform("start", env.num_envs, env.noise_size),
        action=action_noise((num_steps, env.num_envs), stream(env.device, seed, "action", phase, rank)),
        reset=uniform("reset", num_steps, env.num_envs, env.noise_size),
        shuffle=uniform("shuffle", *shuffle),
    )


# the process's own streams ---------------------------------------------------------------------------------------------


class Streams:
    """The states of a run's random streams while the process uses others."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.stored = seeded(seed, device)
        self.callers: dict[str, Tensor] = {}  # what was in force before these
        self.thread = 0  # in which they are in force

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, the process draws from the run's streams."""
        _in_force.enter(self)
        try:
            yield
        finally:
            _in_force.leave(self)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within `in_force`: inside, the process draws from the caller's streams again."""
        _in_force.leave(self)
        try:
            yield
        finally:
            _in_force.enter(self)

    def state_dict(self) -> dict[str, Tensor]:
        return _in_force.state_of(self)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes what fits: between kinds of device generators differ."""
        mine = self.state_dict()
        if missing := mine.keys() - state.keys() - {"cuda"}:
            raise KeyError(f"streams.{min(missing)}")
        taken = {k: state[k] if k in state and state[k].shape == v.shape else v for k, v in mine.items()}
        check_streams(taken)
        _in_force.set_state_of(self, taken)


class InForce:
    """The streams in force in this process, in the order in which they came into force. Those of one thread are nested."""

    def __init__(self) -> None:
        self.lock = streams_lock
        self.stack: list[Streams] = []
        self.last: dict[str, Tensor] = {}  # the process's streams when they were last looked at or set
        self.warned = False  # once is enough

    def enter(self, streams: Streams) -> None:
        with self.lock:
            streams.callers, streams.thread = self.look(streams.device), threading.get_ident()
            self.stack.append(streams)
            self.put(streams.stored, streams.device)

    def leave(self, streams: Streams) -> None:
        with self.lock:
            streams.stored = self.state_of(streams)
            above = self.above(streams)
            self.stack.remove(streams)
            if above is None:
                self.put(streams.callers, streams.device)
            else:  # another thread's, which goes on: at its end the process gets back what was there before both
                above.callers |= {k: v for k, v in streams.callers.items() if k in above.callers}
                if "cuda" in streams.callers and "cuda" not in above.callers:
                    torch.cuda.set_rng_state(streams.callers["cuda"], streams.device)

    def state_of(self, streams: Streams) -> dict[str, Tensor]:
        """Where these streams are. Under another thread's, where they were when those came into force."""
        with self.lock:
            if streams not in self.stack:
                return dict(streams.stored)
            now, above = self.look(streams.device), self.above(streams)
            return now if above is None else now | {k: v for k, v in above.callers.items() if k in now}

    def set_state_of(self, streams: Streams, state: dict[str, Tensor]) -> None:
        with self.lock:
            streams.stored = state
            if streams not in self.stack:
                return
            above = self.above(streams)
            if above is None:
                self.put(state, streams.device)
            else:
                above.callers |= {k: v for k, v in state.items() if k in above.callers}

    def above(self, streams: Streams) -> Streams | None:
        """Those that came into force next."""
        after = self.stack[self.stack.index(streams) + 1 :]
        return after[0] if after else None

    def look(self, device: torch.device) -> dict[str, Tensor]:
        """The process's streams. A warning, if they were drawn from since the last look and two threads use them."""
        now, before = drawn_from(device), self.last
        threads = {streams.thread for streams in self.stack} | {threading.get_ident()}
        drawn = any(k in before and not torch.equal(now[k], before[k]) for k in now.keys() - {"cuda"})
        if self.stack and len(threads) > 1 and drawn and not self.warned:
            self.warned = True
            print_line(WARNING, error=True)
        self.last = now
        return now

    def put(self, state: dict[str, Tensor], device: torch.device) -> None:
        draw_from(state, device)
        self.last = state


_in_force = InForce()


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Inside, the process's generators on the CPU start from this seed, one thread at a time: layers draw their first weights
    from torch's, and a network of a user's own may draw from NumPy's and Python's. Outside, nothing has happened."""
    with _in_force.lock, torch.random.fork_rng(devices=[]):
        before = from_python(random) | from_numpy(np.random)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            into(before, random, np.random)


@contextmanager
def apart(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, the process draws from streams of this seed; outside, nothing has happened."""
    with Streams(seed, device).in_force():
        yield


def seeded(seed: int, device: torch.device) -> dict[str, Tensor]:
    """The streams as one seed would start them, each on its own."""
    numpy = np.random.RandomState(stream_seed(seed, "numpy") % 2**32)
    state = from_python(random.Random(stream_seed(seed, "python"))) | from_numpy(numpy)
    state["torch"] = torch.Generator().manual_seed(stream_seed(seed, "torch")).get_state()
    if device.type == "cuda":
        state["cuda"] = torch.Generator(device).manual_seed(stream_seed(seed, "cuda")).get_state()
    return state


def drawn_from(device: torch.device) -> dict[str, Tensor]:
    """The process's streams as they are now."""
    state = from_python(random) | from_numpy(np.random)
    state["torch"] = torch.get_rng_state()
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def draw_from(state: dict[str, Tensor], device: torch.device) -> None:
    """Let the process go on from there."""
    into(state, random, np.random)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def check_streams(state: dict[str, Tensor]) -> None:
    """Raise if these are no generators' states, before anything draws from them."""
    into(state, random.Random(), np.random.RandomState())
    torch.Generator().set_state(state["torch"])


def into(state: dict[str, Tensor], python: Any, numpy: Any) -> None:
    kept, gauss = state["python.gauss"].tolist()
    python.setstate((3, tuple(state["python"].tolist()), gauss if kept else None))
    *key, position, has_gauss = state["numpy"].tolist()
    if not 0 <= position <= len(key):
        raise ValueError(f"streams.numpy has position {position} of {len(key)}")  # NumPy would read from beyond its end
    words = {"key": np.array(key, np.uint32), "pos": position}
    rest = {"has_gauss": has_gauss, "gauss": float(state["numpy.gauss"])}
    numpy.set_state({"bit_generator": "MT19937", "state": words, **rest})


def from_python(source: Any) -> dict[str, Tensor]:
    _, words, gauss = source.getstate()
    return {
        "python": torch.tensor(words),
        "python.gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),  # kept for the next call
    }


def from_numpy(source: Any) -> dict[str, Tensor]:
    state = source.get_state(legacy=False)
    words = [*state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"]]
    return {"numpy": torch.tensor(words), "numpy.gauss": torch.tensor(state["gauss"], dtype=torch.float64)}
