"""Draw and encode videos of rollouts in another process, so that training does not wait.

On Linux the process is forked: it has a copy of any environment and imports nothing again. It does not use the device, and runs
at a lower priority. On other systems it is a thread. Training waits for a slow renderer as long as it draws frames; a renderer
that hangs is abandoned.
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
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...draw import captioned_grid, cell_scale, draw_observations, render_scale
from ...files import Place
from ...processes import LOOK, Wait, fork, kill, standing_still
from ...types import Env
from ..callback import failure_text
from .mp4 import Video, phase_range, write_video_page

FLASH = (0.65, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # how pink a cell is after the frame in which its episode failed
NICENESS = 10
PARTIAL_VIDEO = re.compile(r"\.\d+\.mp4(\.[0-9a-f]+)?\.tmp")  # names of unfinished videos
DIED = "the process that draws has died"
HANG_SECONDS = 20.0  # without a frame, after which the renderer is given up
STOPPED_SECONDS = 2.0  # without a frame, if its process is stopped


class PhaseFrames(NamedTuple):
    """The data of one phase for a video."""

    obs: np.ndarray  # (T, K, ...)
    action: np.ndarray  # (T, K, ...) in the environment's form
    done: np.ndarray  # (T, K) bool
    phase: int
    steps: int  # of all environments, before it
    steps_a_frame: int
    final: np.ndarray  # (E, ...) the last observation of each episode that ended, in the order of `done`


class RenderedVideo(NamedTuple):
    """The renderer's answer."""

    path: Path
    steps: int
    error: str | None = None
    final: bool = False  # whether there will be no further video after that error


class Order(NamedTuple):
    """Phases to add to a video. With a `name` the video is complete."""

    number: int  # of the video
    phases: list[PhaseFrames]
    name: str = ""
    steps: int = 0


class Cells:
    """What the pictures of a phase need to know of the frames before it."""

    def __init__(self, count: int) -> None:
        self.since_end = np.full(count, len(FLASH))  # frames since an episode failed: -1 in that frame
        self.failed: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # last observation and action, to be shown next


def phase_pictures(env: Env, frames: PhaseFrames, title: str, cells: Cells) -> Iterator[np.ndarray]:
    """The cells of a phase, side by side. After its episode a cell shows for one frame how it failed, in place of the
    first frame of the next episode, and then turns pink."""
    final = iter(frames.final)
    for t, (seen, taken, done) in enumerate(zip(frames.obs, frames.action, frames.done, strict=True)):
        obs, action = seen.copy(), taken.copy()
        for k, (last_obs, last_action) in cells.failed.items():
            obs[k], action[k] = last_obs, last_action
        with render_scale(cell_scale(len(done))):
            drawn = draw_observations(env, torch.from_numpy(obs), torch.from_numpy(action))
        pink = [FLASH[k] if 0 <= k < len(FLASH) else 0.0 for k in cells.since_end]
        words = f"phase {frames.phase}   {frames.steps + t * frames.steps_a_frame:,} steps"
        yield captioned_grid(drawn, pink, words, title)
        cells.since_end = np.where(done, -1, cells.since_end + 1)
        cells.failed = {int(k): (next(final), taken[k]) for k in np.flatnonzero(done)}


class Film:
    """One unfinished video, of consecutive phases."""

    def __init__(self, place: Place, env: Env, title: str, fps: int, pulse: np.ndarray) -> None:
        self.env, self.title, self.pulse = env, title, pulse
        self.cells: Cells | None = None
        self.phases: list[int] = []
        self.video = Video(place, fps, threads=1).__enter__()  # the other cores are for training

    def add(self, frames: PhaseFrames) -> None:
        self.phases.append(frames.phase)
        self.cells = self.cells or Cells(frames.obs.shape[1])
        for picture in phase_pictures(self.env, frames, self.title, self.cells):
            self.video.add(picture)
            self.pulse[0] = time.monotonic()

    def finish(self, place: Place) -> None:
        """Finish the video under this name, and write a page beside it that names its phases."""
        self.video.place = place
        self.video.__exit__(None)
        write_video_page(place, f"{self.title}, {phase_range(self.phases[0], self.phases[-1])}")

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self.video.__exit__(RuntimeError)


def render_videos(
    orders: queue.Queue[Order | None], answers: queue.Queue[RenderedVideo],
    env: Env, folder: Place, title: str, fps: int, pulse: np.ndarray,
) -> None:  # fmt: skip
    """Serve orders until one is None. An error of the disk costs one video, any other error ends rendering. `pulse` holds the
    time of the last frame."""
    films: dict[int, Film] = {}
    lost: dict[int, str] = {}  # videos that could not be written, and why
    try:
        remove_unfinished(folder)
        while (order := orders.get()) is not None:
            number, pulse[0] = order.number, time.monotonic()
            place = folder / f"{order.name}.mp4"
            try:
                if number not in lost:
                    if number not in films:
                        folder.mkdir()  # the run's directory is not recreated: a user may have removed it
                        films[number] = Film(folder / f"{number}.mp4", env, title, fps, pulse)
                    for phase in order.phases:
                        films[number].add(phase)
                    if order.name:
                        films.pop(number).finish(place)
            except OSError as error:
                lost[number] = failure_text(error)
                if number in films:
                    films.pop(number).abandon()
            if order.name:
                answers.put(RenderedVideo(place.path, order.steps, lost.pop(number, None)))
    except Exception as error:
        answers.put(RenderedVideo(folder.path, 0, failure_text(error), final=True))
    for film in films.values():
        film.abandon()


def remove_unfinished(folder: Place) -> None:
    """Remove unfinished videos of a killed run."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            if PARTIAL_VIDEO.fullmatch(name):
                (folder / name).remove()


def render_process(*arguments: Any) -> None:
    """`render_videos` in a process that was forked from the trainer."""
    os.nice(NICENESS)
    gc.freeze()  # garbage collection skips the trainer's objects
    torch.set_num_threads(1)  # the trainer's threads are not here
    import cv2

    cv2.setNumThreads(1)
    render_videos(*arguments)


class Renderer:
    """The trainer's side. A trainer that is more than `ahead` orders ahead waits, so that memory stays bounded."""

    def __init__(self, env: Env, folder: Place, title: str, fps: int, ahead: int) -> None:
        self.pending = 0  # videos without an answer
        self.pulse = np.frombuffer(mmap.mmap(-1, 8), np.float64)  # time of the last frame; the fork shares this memory
        in_process = sys.platform == "linux" and not multiprocessing.current_process().daemon  # which has no children
        try:
            new_queue: Any = multiprocessing.get_context("fork").Queue if in_process else queue.Queue
            self.orders, self.answers = new_queue(ahead), new_queue()
        except OSError:  # semaphores need a writable /dev/shm
            in_process, self.orders, self.answers = False, queue.Queue(ahead), queue.Queue()
        arguments = (self.orders, self.answers, env, folder, title, fps, self.pulse)
        self.worker: BaseProcess | threading.Thread
        if in_process:
            self.orders.cancel_join_thread()  # nobody waits at exit for a renderer that hangs
            self.worker = forked(render_process, *arguments)
        else:
            self.worker = threading.Thread(target=render_videos, args=arguments, daemon=True)
            self.worker.start()

    def send(self, order: Order) -> None:
        wait = Wait()
        while True:
            try:
                self.orders.put(order, timeout=LOOK)
                break
            except queue.Full:
                self._check_works(wait)
        self.pending += bool(order.name)

    def _check_works(self, wait: Wait) -> None:
        """Raise RuntimeError if the renderer has ended or hangs."""
        if not self.worker.is_alive():
            reasons = [answer.error for answer in iter(self._answer, None) if answer.final]
            raise self.failed(next(filter(None, reasons), DIED))
        late, pid = wait.over(HANG_SECONDS, float(self.pulse[0])), getattr(self.worker, "pid", 0)  # a thread has none
        if wait.seconds > STOPPED_SECONDS and standing_still(pid):
            raise self.failed("the process that draws is stopped")
        if late:
            raise self.failed(f"no frame was drawn in {wait.seconds:.0f} s")

    def _answer(self, seconds: float = 0.0) -> RenderedVideo | None:
        """The next answer, if it comes within `seconds`."""
        with contextlib.suppress(queue.Empty):
            answer: RenderedVideo = self.answers.get(seconds > 0, seconds)
            return answer
        return None

    def finished(self, seconds: float = 0.0) -> list[RenderedVideo]:
        """The finished videos; with `seconds`, wait for all, up to that long for each. Videos that could not be written have an
        error. RuntimeError if the renderer has failed."""
        found: list[RenderedVideo] = []
        began, wait = time.monotonic(), Wait()
        while self.pending:
            left = seconds - (time.monotonic() - began)
            answer = self._answer(min(LOOK, left))
            if answer is None:
                self._check_works(wait)
                if left <= 0:
                    break
            elif answer.final:
                raise self.failed(answer.error or DIED)
            else:
                self.pending -= 1
                found.append(answer)
                began = time.monotonic()
        if seconds and self.pending:
            raise self.failed(f"{self.pending} not finished after {seconds:.0f} seconds")
        return found

    def failed(self, reason: str) -> RuntimeError:
        if isinstance(self.worker, BaseProcess):
            kill([self.worker])
        self.request_stop()
        return RuntimeError(reason)

    def request_stop(self) -> None:
        """Queue the end marker: the renderer stops after the orders before it."""
        with contextlib.suppress(queue.Full):  # it hangs
            self.orders.put_nowait(None)


def forked(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """Fork a process. OpenCV's thread pool is emptied first: the fork would wait for threads that it does not have."""
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
