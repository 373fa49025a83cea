"""Draws and encodes videos of rollouts in another process, so that training does not wait.

On Linux the process is forked: it has the environment, whatever it is, and imports nothing again. It uses neither the device
nor anything that the trainer holds, and runs at a lower priority. Elsewhere it is a thread. Training waits for a slow renderer
as long as it draws; one that hangs is given up.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...draw import captioned_grid, cell_scale, enlarged
from ...files import Place
from ...processes import LOOK, Wait, fork, kill, standing_still
from ...types import Env
from ..callback import failure_text
from .mp4 import Video, phase_range, write_video_page

FLASH = (0.65, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # how pink a cell is in the frames after the end of an episode
NICENESS = 10
PARTIAL_VIDEO = re.compile(r"\.\d+\.mp4(\.[0-9a-f]+)?\.tmp")  # names of unfinished videos
DIED = "the process that draws has died"
HANG_SECONDS = 20.0  # without a frame, after which the renderer is given up
STOPPED_SECONDS = 2.0  # without a frame, if its process is stopped


class PhaseFrames(NamedTuple):
    """What a video shows of one phase."""

    obs: np.ndarray  # (T, K, ...)
    action: np.ndarray  # (T, K, ...) in the environment's form
    done: np.ndarray  # (T, K) bool
    phase: int
    steps: int  # of all environments, before it
    steps_a_frame: int


class RenderedVideo(NamedTuple):
    """The renderer's answer."""

    path: Path
    steps: int
    error: str | None = None
    final: bool = False  # whether there will be no further video after that error


Order = tuple[int, PhaseFrames | tuple[str, int]]  # number of a video; a phase of it, or its name and steps


class Film:
    """One unfinished video, of consecutive phases."""

    def __init__(self, place: Place, env: Env, title: str, fps: int, pulse: np.ndarray) -> None:
        self.env, self.title, self.pulse = env, title, pulse
        self.since_end: np.ndarray | None = None  # (K,) frames
        self.phases: list[int] = []
        self.video = Video(place, fps, threads=1).__enter__()  # the other cores are for training

    def add(self, frames: PhaseFrames) -> None:
        self.phases.append(frames.phase)
        count = frames.obs.shape[1]
        if self.since_end is None:
            self.since_end = np.full(count, len(FLASH))
        for t, (obs, action, done) in enumerate(zip(frames.obs, frames.action, frames.done, strict=True)):
            with enlarged(cell_scale(count)):
                cells = self.env.draw(torch.from_numpy(obs), torch.from_numpy(action))
            pink = [FLASH[k] if k < len(FLASH) else 0.0 for k in self.since_end]
            words = f"phase {frames.phase}   {frames.steps + t * frames.steps_a_frame:,} steps"
            self.video.add(captioned_grid(cells, pink, words, self.title))
            self.pulse[0] = time.monotonic()
            self.since_end = np.where(done, 0, self.since_end + 1)

    def close(self, place: Place) -> None:
        """Finish the video under that name, with a page that says which phases it shows."""
        self.video.place = place
        self.video.__exit__(None)
        write_video_page(place, f"{self.title}, {phase_range(self.phases[0], self.phases[-1])}")

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self.video.__exit__(RuntimeError)


def render_videos(orders: Connection, env: Env, folder: Place, title: str, fps: int, pulse: np.ndarray) -> None:
    """Serve orders until the pipe is closed: (number of a video, a phase of it) or (number, its name and steps). An error of
    the disk costs one video, any other error ends rendering. `pulse` holds the time of the last frame."""
    films: dict[int, Film] = {}
    lost: dict[int, str] = {}  # videos that could not be written, and why
    path, steps = folder.path, 0
    try:
        remove_unfinished(folder)
        while True:
            number, order = orders.recv()
            pulse[0] = time.monotonic()
            try:
                if isinstance(order, PhaseFrames):
                    if number not in lost:
                        if number not in films:
                            folder.mkdir()  # but not the run's directory, which a user may have removed
                            films[number] = Film(folder / f"{number}.mp4", env, title, fps, pulse)
                        films[number].add(order)
                    continue
                name, steps = order
                path = (folder / f"{name}.mp4").path
                if number not in lost:
                    films.pop(number).close(folder / f"{name}.mp4")
            except OSError as error:
                lost[number] = failure_text(error)
                if number in films:
                    films.pop(number).abandon()
                if isinstance(order, PhaseFrames):
                    continue
            orders.send(RenderedVideo(path, steps, lost.pop(number, None)))
    except EOFError:
        pass
    except Exception as error:
        with contextlib.suppress(OSError):
            orders.send(RenderedVideo(path, steps, failure_text(error), final=True))
    for film in films.values():
        film.abandon()


def remove_unfinished(folder: Place) -> None:
    """Remove what a killed run has left."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            if PARTIAL_VIDEO.fullmatch(name):
                (folder / name).remove()


def render_process(ours: Connection, *rest: Any) -> None:
    """`render_videos` in a process that was forked from the trainer."""
    ours.close()  # otherwise the pipe stays open when the trainer ends
    os.nice(NICENESS)
    gc.freeze()  # garbage collection skips the trainer's objects
    torch.set_num_threads(1)  # the trainer's threads are not here
    import cv2

    cv2.setNumThreads(1)
    render_videos(*rest)


class Renderer:
    """The trainer's side. Its queue is short: a trainer that is too far ahead waits, so that memory stays bounded."""

    def __init__(self, env: Env, folder: Place, title: str, fps: int) -> None:
        self.ours, theirs = multiprocessing.Pipe()
        self.pending = 0  # videos without an answer
        self.pulse = np.frombuffer(mmap.mmap(-1, 8), np.float64)  # time of the last frame; the fork shares this memory
        arguments = (theirs, env, folder, title, fps, self.pulse)
        self.process: BaseProcess | None = None
        if sys.platform == "linux" and not multiprocessing.current_process().daemon:  # a daemon may not have children
            self.process = forked(render_process, self.ours, *arguments)
            theirs.close()
        else:
            threading.Thread(target=render_videos, args=arguments, daemon=True).start()
        self.orders: queue.Queue[Order | None] = queue.Queue(1)
        self.disconnected = False
        threading.Thread(target=self._deliver, name="tightrope-renderer", daemon=True).start()

    def _deliver(self) -> None:
        """On a thread of its own, since sending may block for ever."""
        try:
            while (order := self.orders.get()) is not None:
                self.ours.send(order)
            self.ours.close()  # which ends the renderer
        except OSError:
            self.disconnected = True

    def show(self, number: int, frames: PhaseFrames) -> None:
        """Add a phase to the video with that number."""
        self._send((number, frames))

    def finish(self, number: int, name: str, steps: int) -> None:
        """The video is complete."""
        self._send((number, (name, steps)))
        self.pending += 1

    def _send(self, order: Order) -> None:
        wait = Wait()
        while not self.disconnected:
            try:
                return self.orders.put(order, timeout=LOOK)
            except queue.Full:
                self._check_works(wait)
        self.finished()  # it may have said why
        raise self.failed(DIED)

    def _check_works(self, wait: Wait) -> None:
        """RuntimeError if it hangs."""
        late = wait.over(HANG_SECONDS, float(self.pulse[0]))
        if self.process is not None and standing_still(self.process.pid or 0) and wait.seconds > STOPPED_SECONDS:
            raise self.failed("the process that draws is stopped")
        if late:
            raise self.failed(f"no frame was drawn in {wait.seconds:.0f} s")

    def finished(self, seconds: float = 0.0) -> list[RenderedVideo]:
        """Videos that are finished, or all of them within so many seconds; those that could not be written have an error.
        RuntimeError if there will be no more."""
        found: list[RenderedVideo] = []
        began, wait = time.monotonic(), Wait()
        while True:
            left = seconds - (time.monotonic() - began) if self.pending else 0.0
            try:
                answer: RenderedVideo | None = self.ours.recv() if self.ours.poll(min(LOOK, max(0.0, left))) else None
            except (EOFError, OSError):
                raise self.failed(DIED) from None
            if answer is None and left <= 0:
                break
            if answer is None:
                self._check_works(wait)
            elif answer.error is not None and answer.final:
                raise self.failed(answer.error)
            else:
                self.pending -= 1
                found.append(answer)
        if seconds and self.pending:
            raise self.failed(f"{self.pending} not finished after {seconds:.0f} seconds")
        return found

    def failed(self, reason: str) -> RuntimeError:
        if self.process is not None:
            kill([self.process])
        self.close()
        return RuntimeError(reason)

    def close(self) -> None:
        """End the renderer once its queue is done."""
        with contextlib.suppress(queue.Full):  # it hangs
            self.orders.put_nowait(None)


def forked(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A forked process. It has no threads, so OpenCV's pool is emptied first: it would wait for threads that are not there."""
    cv2 = sys.modules.get("cv2")
    threads = 1 if cv2 is None else cv2.getNumThreads()
    if cv2 is not None:
        cv2.setNumThreads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking with threads: nothing that they hold is used
        process = fork(work, *arguments)
    if cv2 is not None:
        cv2.setNumThreads(threads)
    return process
