"""Films of the policy while it trains, where observations alone cannot be drawn: Gymnasium, MuJoCo, EnvPool, Brax.

Each film is a greedy episode in an environment of its own, played and drawn by a forked process, so that training does not wait
and a renderer that fails or hangs costs only the film. Brax, whose JAX must not be forked, is filmed between two phases. No
number of training depends on it.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from ..engine import State, isolated_rng, stream_seed, threads
from ..envs.adapters.host import HostEnv
from ..errors import UsageError, warn
from ..files import Place
from ..logging import Callback, RolloutVideo, RunInfo, StateView, TrainingResult
from ..logging.callback import failure_text
from ..logging.video.mp4 import write_video_page
from ..logging.video.renderer import NICENESS, forked
from ..logging.video.rollout import video_stem
from ..models import ActorCritic
from ..processes import kill
from ..types import Env
from .video import Shot, film

MOMENTS = (1 / 16, 1 / 4, 1 / 2)  # of a run, by default, besides its beginning and its end
FPS, MAX_FRAMES = 30, 600
DRAWING_SECONDS = 8.0  # of one film, after which it ends
LIMIT_SECONDS = 60.0  # after which the process that draws is given up
LAST_SECONDS = 30.0  # that the end of training waits for the last films


class PendingFilm(NamedTuple):
    """A film that is being made."""

    path: Path
    steps: int
    process: BaseProcess
    answer: Connection  # receives why there is no film; nothing if there is one
    began: float


def video_callback(
    state: State, env: Env, folder: Path, every: int | None, written: Callable[[Path, int], None], say: Callable[[str], None]
) -> Callback:  # fmt: skip
    """The callback that makes the videos of a run: of its rollouts, where these can be drawn, otherwise films. `env` is the
    environment of evaluations."""
    filmed = isinstance(env, HostEnv) or getattr(env, "backend", None) == "brax"
    if filmed and not state.env.drawable:
        return TrainingFilms(state, env, folder, every, written, say)
    return RolloutVideo(folder, every, written, say)


class TrainingFilms(Callback):
    """Writes videos/phase0000.mp4 of the untrained policy, then a film every so many phases and one of the trained policy; with
    `every` None, a few over the run. `written(path, step)` is called for each; `say` gets a line if there can be none."""

    name, may_fail = "video", True

    def __init__(
        self, state: State, env: Env, folder: Path, every: int | None, written: Callable[[Path, int], None],
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.state, self.env, self.folder, self.every = state, env, folder, every
        self.written, self.say = written, say
        self.film: PendingFilm | None = None
        self.filmed: int | None = None  # the phase of the newest film
        self.due = self.failed = False
        daemon = multiprocessing.current_process().daemon  # which has no children
        self.forks = sys.platform == "linux" and isinstance(env, HostEnv) and not daemon

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total, self.steps = about.title, about.total_steps, about.steps
        if self.state.phase == 0:
            self.start()

    def on_update(self, state: StateView) -> None:
        before, self.steps = self.steps, state.steps
        moments = [moment * self.total for moment in MOMENTS]
        passed = self.forks and any(before < moment <= state.steps for moment in moments)  # otherwise training waits
        self.due = self.due or (passed if self.every is None else state.phase % self.every == 0)
        self.collect()
        if self.due and self.film is None:
            self.start()

    def on_trained(self, state: StateView) -> None:
        """Film the trained policy while it is scored."""
        if self.filmed != state.phase:
            self.collect(LAST_SECONDS)
            self.start()

    def on_end(self, result: TrainingResult) -> None:
        if result.error is None:
            self.on_trained(result.state)
        self.collect(LAST_SECONDS)
        if self.film is not None:
            kill([self.film.process])

    def start(self) -> None:
        """Begin a film of the present policy."""
        if self.failed:
            return
        state, self.due = self.state, False
        self.filmed, path = state.phase, self.folder / f"{video_stem(state.phase)}.mp4"
        title = f"{self.title}, {'untrained' if state.phase == 0 else 'greedy'}, phase {state.phase:,}"
        seed = stream_seed(state.seed, "film")  # the same start each time, so that films compare
        if not self.forks:
            reason = film_error(state.policy, self.env, path, seed, title)
            self.finish(path, state.steps, reason)
            return
        policy = copy.deepcopy(state.policy).cpu() if self.env.device.type != "cpu" else state.policy
        receive, send = multiprocessing.Pipe(duplex=False)
        process = forked(film_process, send, policy, self.env, path, seed, title)
        send.close()
        self.film = PendingFilm(path, state.steps, process, receive, time.monotonic())

    def collect(self, seconds: float = 0.0) -> None:
        """Take the film that is being made if it is ready, or within `seconds`."""
        if (film := self.film) is None:
            return
        film.process.join(seconds)
        if film.process.is_alive():
            if time.monotonic() - film.began < LIMIT_SECONDS and not seconds:
                return
            kill([film.process])
            reason = f"drawing took more than {time.monotonic() - film.began:.0f} s"
        else:
            try:
                reason = film.answer.recv() if film.answer.poll() else "the process that draws has died"
            except EOFError:
                reason = "the process that draws has died"
        film.answer.close()
        self.film = None
        self.finish(film.path, film.steps, reason)

    def finish(self, path: Path, steps: int, reason: str) -> None:
        if not reason:
            self.written(path, steps)
        elif path.parent.is_dir():  # the first film was there: a later one may be again
            warn(f"{path} could not be written ({reason})")
        else:
            self.failed = True
            self.say(f"no videos of training: {reason}")


def film_process(send: Connection, policy: ActorCritic, env: HostEnv, path: Path, seed: int, title: str) -> None:
    """Make a film in a process that was forked from the trainer. What libraries print there is not for the user."""
    os.nice(NICENESS)
    with open(os.devnull, "w") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    torch.set_num_threads(1)  # the trainer's threads are not here
    env.device = torch.device("cpu")
    send.send(film_error(policy, env, path, seed, title))
    send.close()


def film_error(policy: ActorCritic, env: Env, path: Path, seed: int, title: str) -> str:
    """Write a film of one greedy episode, or of as much of it as the limits allow. Returns why there is none, or ''."""
    try:
        place = Place.of(path.parent) / path.name
        with torch.no_grad(), threads(1), isolated_rng(seed, env.device):
            shot, env = Shot(fps=FPS), env.spawn(1, seed, drawn=True)
            film(policy, env, place, seed, shot, title, MAX_FRAMES, DRAWING_SECONDS, encoder_threads=1)
        write_video_page(Place.of(path), title)
    except Exception as error:
        return str(error) if isinstance(error, UsageError) else failure_text(error)
    return ""
