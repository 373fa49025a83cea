"""Draws and encodes videos of rollouts where training does not have to wait: in a process of its own.

On Linux it is forked, so that it has the environment, whoever wrote it and wherever, and imports nothing twice; it touches
neither the device nor anything that the trainer holds, and where cores are scarce the trainer comes first. Elsewhere it is a
thread. A painter that is too slow is waited for while it draws picture after picture; one that does not is given up.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import multiprocessing
import os
import queue
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...draw import enlarged
from ...files import Place
from ...processes import LOOK, Wait, fork, kill, standing_still
from ...types import Env
from ..callback import error_line
from .cells import enlargement, together
from .mp4 import Video, page_beside, phase_range

FLASH = (0.65, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # how pink a cell is in the frames after its episode has ended
NICENESS = 10
UNFINISHED = re.compile(r"\.\d+\.mp4(\.[0-9a-f]+)?\.tmp")  # names of videos under way
DIED = "the process that draws has died"
HANGS = 20.0  # seconds without a picture after which nobody waits for the next
STANDS = 2.0  # the same, if its process is seen to be stopped


class Glimpse(NamedTuple):
    """What some environments did in one phase."""

    obs: np.ndarray  # (T, K, ...)
    action: np.ndarray  # (T, K, ...) as the environment was given it
    done: np.ndarray  # (T, K) bool
    phase: int
    steps: int  # of all environments, before it
    steps_a_frame: int


class Painted(NamedTuple):
    """The painter's answer."""

    path: Path
    steps: int
    error: str | None = None
    final: bool = False  # whether no other video will be painted after that error


class Film:
    """One video under way, of glimpses that follow each other."""

    def __init__(self, place: Place, env: Env, title: str, fps: int, pulse: np.ndarray) -> None:
        self.env, self.title, self.pulse = env, title, pulse
        self.since_end: np.ndarray | None = None  # (K,) frames
        self.phases: list[int] = []
        self.video = Video(place, fps, threads=1).__enter__()  # other cores are the trainer's

    def add(self, glimpse: Glimpse) -> None:
        self.phases.append(glimpse.phase)
        count = glimpse.obs.shape[1]
        if self.since_end is None:
            self.since_end = np.full(count, len(FLASH))
        for t, (obs, action, done) in enumerate(zip(glimpse.obs, glimpse.action, glimpse.done, strict=True)):
            with enlarged(enlargement(count)):
                cells = self.env.draw(torch.from_numpy(obs), torch.from_numpy(action))
            pink = [FLASH[k] if k < len(FLASH) else 0.0 for k in self.since_end]
            words = f"phase {glimpse.phase}   {glimpse.steps + t * glimpse.steps_a_frame:,} steps"
            self.video.add(together(cells, pink, words, self.title))
            self.pulse[0] = time.monotonic()
            self.since_end = np.where(done, 0, self.since_end + 1)

    def close(self, place: Place) -> None:
        """Under that name, with a page that tells which phases it shows."""
        self.video.place = place
        self.video.__exit__(None)
        page_beside(place, f"{self.title}, {phase_range(self.phases[0], self.phases[-1])}")

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self.video.__exit__(RuntimeError)


def paint(orders: Connection, env: Env, folder: Place, title: str, fps: int, pulse: np.ndarray) -> None:
    """Serve orders until there are no more: (number of a video, a glimpse of it) or (number, its name and steps). Trouble with
    the disk costs one video. After any other there is no next. `pulse` has the time of the last picture."""
    films: dict[int, Film] = {}
    lost: dict[int, str] = {}  # videos that the disk did not take, and why
    path, steps = folder.path, 0
    try:
        remove_unfinished(folder)
        while True:
            number, order = orders.recv()
            pulse[0] = time.monotonic()
            try:
                if isinstance(order, Glimpse):
                    if number not in lost:
                        film_of(number, films, folder, env, title, fps, pulse).add(order)
                    continue
                name, steps = order
                path = (folder / f"{name}.mp4").path
                if number not in lost:
                    films.pop(number).close(folder / f"{name}.mp4")
            except OSError as error:
                lost[number] = error_line(error)
                if number in films:
                    films.pop(number).abandon()
                if isinstance(order, Glimpse):
                    continue
            orders.send(Painted(path, steps, lost.pop(number, None)))
    except EOFError:
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            orders.send(Painted(path, steps, error_line(error), final=True))
    for film in films.values():
        film.abandon()


def film_of(
    number: int, films: dict[int, Film], folder: Place, env: Env, title: str, fps: int, pulse: np.ndarray
) -> Film:
    """The video of that number, which may begin now."""
    if number not in films:
        folder.mkdir()  # but not the run's directory: if that has gone, someone wanted it so
        films[number] = Film(folder / f"{number}.mp4", env, title, fps, pulse)
    return films[number]


def remove_unfinished(folder: Place) -> None:
    """Videos that were under way when a run was killed."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            if UNFINISHED.fullmatch(name):
                (folder / name).remove()


def paint_apart(ours: Connection, *rest: Any) -> None:
    """`paint` in a process that was forked from a trainer, whose cores are not its."""
    ours.close()  # otherwise the end of the trainer would never be heard of
    os.nice(NICENESS)
    gc.freeze()  # what was the trainer's is not looked through for garbage
    torch.set_num_threads(1)  # the trainer's threads are not here
    import cv2

    cv2.setNumThreads(1)
    paint(*rest)


class Painter:
    """The trainer's side. It holds few orders, so that a trainer too far ahead waits: memory stays bounded."""

    def __init__(self, env: Env, folder: Place, title: str, fps: int) -> None:
        self.ours, theirs = multiprocessing.Pipe()
        self.owed = 0  # videos that have not been answered for
        self.pulse = np.frombuffer(mmap.mmap(-1, 8), np.float64)  # when there was a picture; memory shared with a fork
        arguments = (theirs, env, folder, title, fps, self.pulse)
        self.process: Any = None
        if sys.platform == "linux" and not multiprocessing.current_process().daemon:  # which may not have children
            self.process = forked(paint_apart, self.ours, *arguments)
            theirs.close()
        else:
            threading.Thread(target=paint, args=arguments, daemon=True).start()
        self.orders: queue.Queue[Any] = queue.Queue(1)
        self.cut_off = False  # whether nothing can be sent any more
        threading.Thread(target=self._deliver, name="tightrope-painter", daemon=True).start()

    def _deliver(self) -> None:
        """In a thread, which may block for good where the trainer must not."""
        try:
            while (order := self.orders.get()) is not None:
                self.ours.send(order)
            self.ours.close()  # at which it ends
        except OSError:
            self.cut_off = True

    def show(self, number: int, glimpse: Glimpse) -> None:
        """More of the video with that number."""
        self._send((number, glimpse))

    def finish(self, number: int, name: str, steps: int) -> None:
        """All of it has been shown."""
        self._send((number, (name, steps)))
        self.owed += 1

    def _send(self, order: Any) -> None:
        wait = Wait()
        while not self.cut_off:
            try:
                return self.orders.put(order, timeout=LOOK)
            except queue.Full:
                self._check_works(wait)
        self.painted()  # it has stopped, and may have said why
        raise self.failed(DIED)

    def _check_works(self, wait: Wait) -> None:
        """RuntimeError if it has drawn nothing for so long that it never will."""
        late = wait.over(HANGS, float(self.pulse[0]))
        if self.process is not None and standing_still(self.process.pid) and wait.seconds > STANDS:
            raise self.failed("the process that draws is stopped")
        if late:
            raise self.failed(f"a picture is not drawn after {wait.seconds:.0f} s")

    def painted(self, patience: float = 0.0) -> list[Painted]:
        """Videos finished by now, or with patience all of them; those that the disk did not take have an error. RuntimeError
        with the reason if there will be no more."""
        finished: list[Painted] = []
        began, wait = time.monotonic(), Wait()
        while True:
            left = patience - (time.monotonic() - began) if self.owed else 0.0
            try:
                answer: Painted | None = self.ours.recv() if self.ours.poll(min(LOOK, max(0.0, left))) else None
            except (EOFError, OSError):
                raise self.failed(DIED) from None
            if answer is None and left <= 0:
                break
            if answer is None:
                self._check_works(wait)
            elif answer.error is not None and answer.final:
                raise self.failed(answer.error)
            else:
                self.owed -= 1
                finished.append(answer)
        if patience and self.owed:
            raise self.failed(f"{self.owed} not finished after {patience:.0f} seconds")
        return finished

    def failed(self, reason: str) -> RuntimeError:
        if self.process is not None:
            kill([self.process])
        self.close()
        return RuntimeError(reason)

    def close(self) -> None:
        """Tell it nothing more, at which it ends."""
        with contextlib.suppress(queue.Full):  # it hangs, and nothing will be taken from there
            self.orders.put_nowait(None)


def forked(work: Callable[..., None], *arguments: Any) -> Any:
    """A process that begins as a copy of this one, without threads: of the pools that it may need, OpenCV's is emptied
    first, which would otherwise wait for threads that are not there."""
    cv2 = sys.modules.get("cv2")
    threads = 1 if cv2 is None else cv2.getNumThreads()
    if cv2 is not None:
        cv2.setNumThreads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: nothing that they hold is used there
        process = fork(work, *arguments)
    if cv2 is not None:
        cv2.setNumThreads(threads)
    return process
