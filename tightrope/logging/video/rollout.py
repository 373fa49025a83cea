"""Videos of training: the first sixteen environments in the rollouts.

A video shows several consecutive phases, so that it is long enough to watch. Copies of the last phases stay on the device and
move to the host only when a video is due. The settings and the plan alone determine which videos are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...errors import warn
from ...files import Place
from ..callback import Callback, RunInfo, StateView, TrainingResult
from .renderer import Order, PhaseFrames, RenderedVideo, Renderer

MAX_CELLS = 16
MIN_FRAMES, MAX_FRAMES = 96, 500  # of a video, if phases allow
MAX_BYTES = 64 << 20  # of the observations in a video, and of those that wait to be drawn
MAX_AHEAD = 16  # videos or phases that wait to be drawn
DIVISOR = 4  # by default videos are due at total/4 steps, total/16, and so on
MIN_GAP = 4  # lengths of a video between two videos, by default
LAST_VIDEO_SECONDS = 30.0  # that the end of training waits for the last videos
MAX_FPS = 30


class StoredPhase(NamedTuple):
    """A copy of a phase, on the device."""

    obs: Tensor  # (T, K, ...)
    action: Tensor  # (T, K, ...)
    done: Tensor  # (T, K)
    final_obs: Tensor  # (T, K, ...) where an episode ended
    phase: int
    steps: int  # before it

    def frames(self, state: StateView) -> PhaseFrames:
        """What a video shows of it, on the host, with actions in the environment's form."""
        every = stride(state)
        action = state.policy.head.to_env(self.action[::every])
        obs, taken, done = (x.detach().cpu().numpy() for x in (self.obs[::every], action, self.done))
        when = np.where(done, np.arange(len(done))[:, None], -1)
        when = np.maximum.reduceat(when, range(0, len(done), every))  # the last end between one frame and the next
        frame, cell = np.nonzero(when >= 0)
        final = self.final_obs.cpu().numpy()[when[frame, cell], cell]
        return PhaseFrames(obs, taken, when >= 0, self.phase, self.steps, every * state.env.num_envs, final)


class RolloutVideo(Callback):
    """Writes videos/phase0050.mp4 every so many phases and at the end; with `every` None, a few over the whole run.

    `written(path, step)` is called for each video. `say` gets one line if the environments cannot be drawn.
    """

    name, may_fail = "video", True

    def __init__(
        self, folder: Path, every: int | None, written: Callable[[Path, int], None], say: Callable[[str], None] = print
    ) -> None:
        self.folder, self.every, self.written, self.say = folder, every, written, say
        self.kept: deque[StoredPhase] | None = None  # the last phases
        self.rows = 0  # steps of a phase that are kept
        self.renderer: Renderer | None = None
        self.numbers = count(1)  # of the next video
        self.last: int | None = None  # number of the video of the last phases, near the end
        self.complete = False  # whether the last video has been ordered
        self.shown = 0  # last phase in a video
        self.undrawable = False  # whether the environments cannot be drawn from observations
        self.missed = False  # whether the last video could not be written

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total = about.title, about.total_steps
        self.env = str(about.settings.get("env", self.title.split()[0]))
        self.began = self.steps = about.steps

    def on_update(self, state: StateView) -> None:
        if self.undrawable or self.cannot_draw(state):
            return
        if self.renderer is not None and self.renderer.pending:
            self.report(self.renderer.finished())
        steps_before, self.steps = self.steps, state.steps
        taken = (state.steps - steps_before) // state.env.num_envs  # a rollout may have ended early
        if taken < 1:
            return
        if self.kept is None:
            self.rows = max_rows(state)
            self.kept = deque(maxlen=self.phases_to_keep(state))
        self.kept.append(store_phase(state, min(taken, self.rows), steps_before))
        left = (self.total - state.steps) // (state.steps - steps_before)
        if self.is_due(state.phase, steps_before) and not (self.last is not None and left == 0):
            self.make_video(state)
        self.approach_the_end(state, left)

    def on_trained(self, state: StateView) -> None:
        """Finish the last video while the agent is scored."""
        if self.kept is None or self.complete:
            return
        self.complete = True
        if self.last is not None and self.renderer is not None:
            self.renderer.send(Order(self.last, [], video_stem(state.phase), state.steps))
        elif self.shown != state.phase and (self.every is not None or self.full):
            self.make_video(state)

    def on_end(self, result: TrainingResult) -> None:
        self.on_trained(result.state)
        if self.renderer is not None:
            self.report(self.renderer.finished(LAST_VIDEO_SECONDS))
            self.renderer.request_stop()

    def cannot_draw(self, state: StateView) -> bool:
        """Whether these environments cannot be drawn from observations."""
        if not state.env.drawable:
            self.undrawable = True
            self.say(
                f"no videos of training: {self.env} does not draw itself: give it a method scene(obs, action) or draw"
            )
        return self.undrawable

    # which videos ----------------------------------------------------------------------------------------------------------

    def phases_to_keep(self, state: StateView) -> int:
        enough = -(-MIN_FRAMES * stride(state) // self.rows)
        return min(enough, self.every or enough)

    @property
    def full(self) -> bool:
        return self.kept is not None and len(self.kept) == self.kept.maxlen

    def is_due(self, phase: int, steps_before: int) -> bool:
        if self.every is not None:
            return phase % self.every == 0
        assert self.kept is not None
        if not self.full:
            return False
        if self.began == 0 and self.shown == 0:
            return True
        apart = phase - self.shown >= MIN_GAP * len(self.kept)  # in a short run drawing would take half of the time
        return apart and passed(self.steps, steps_before, self.total)

    # making them -----------------------------------------------------------------------------------------------------------

    def make_video(self, state: StateView) -> None:
        """A video of all phases that are kept."""
        assert self.kept is not None
        renderer, phases = self.running_renderer(state), [kept.frames(state) for kept in self.kept]
        renderer.send(Order(next(self.numbers), phases, video_stem(state.phase), state.steps))
        self.shown = state.phase

    def approach_the_end(self, state: StateView, left: int) -> None:
        """Draw the last video phase by phase, so that the end of training does not wait for it."""
        assert self.kept is not None
        if self.last is None and left == (self.kept.maxlen or 0) - 1 > 0:
            self.last = next(self.numbers)
        if self.last is not None:
            self.running_renderer(state).send(Order(self.last, [self.kept[-1].frames(state)]))

    def running_renderer(self, state: StateView) -> Renderer:
        if self.renderer is None:
            size = self.kept[-1].obs.nbytes * (self.kept.maxlen or 1) if self.kept else 1  # of the longest video
            ahead = max(1, min(MAX_AHEAD, MAX_BYTES // max(size, 1)))
            fps = state.env.pace // stride(state)
            self.renderer = Renderer(state.env, Place.of(self.folder), self.title, fps, ahead)
        return self.renderer

    def report(self, found: list[RenderedVideo]) -> None:
        for path, steps, error, _ in found:
            if error is None:
                self.written(path, steps)
            elif not self.missed:
                warn(f"{path} could not be written ({error}); the next video is tried all the same")
            self.missed = error is not None


def stride(state: StateView) -> int:
    """The n for which every n-th step is shown: 1, unless there are more than MAX_FPS steps per second."""
    return -(-state.env.pace // MAX_FPS)


def video_stem(phase: int) -> str:
    """The name of a phase's video, without its suffix."""
    return f"phase{phase:04d}"


def max_rows(state: StateView) -> int:
    """How many steps of a phase a video can show."""
    obs = state.rollout.obs[:, :MAX_CELLS]
    both = 2 * obs[0].numel() * obs.element_size()  # what was seen, and how episodes ended
    return max(1, min(len(obs), MAX_FRAMES, MAX_BYTES // both))


def store_phase(state: StateView, rows: int, steps_before: int) -> StoredPhase:
    """A copy of what the first environments did: the next phase overwrites the rollout."""
    rollout = state.rollout
    done = rollout.terminated[:rows, :MAX_CELLS] | rollout.truncated[:rows, :MAX_CELLS]
    obs, action, final_obs = (x[:rows, :MAX_CELLS].clone() for x in (rollout.obs, rollout.action, rollout.final_obs))
    return StoredPhase(obs, action, done, final_obs, state.phase, steps_before)


def passed(steps: int, before: int, total: int) -> bool:
    """Whether total/4 steps were just passed, or total/16, and so on."""
    mark = total / DIVISOR
    while mark > steps:
        mark /= DIVISOR
    return before < mark
