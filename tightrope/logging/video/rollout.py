"""Videos of training: what the first sixteen environments did in rollouts that were collected anyway.

A video shows a few phases in a row, as many as make a clip worth watching. The last phases are kept at hand, where they are;
only when a video is due do they leave the device. Which videos there are follows from the settings and the plan alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...errors import warn
from ...files import Place
from ..callback import Callback, RunInfo, StateView, TrainingResult
from .renderer import Glimpse, Painted, Painter

CELLS = 16
FEWEST, MOST = 96, 500  # frames of a video, where phases allow
MOST_BYTES = 64 << 20  # of the observations in one
APART = 4  # unless asked for otherwise, videos are due at this part of the run, at this part of that, and so on
BETWEEN = 4  # times the length of a video from one to the next, unless asked for otherwise
PATIENCE = 30.0  # seconds that the end of training waits for the last videos
FPS = 30  # at most


class Kept(NamedTuple):
    """A phase, on its device."""

    obs: Tensor  # (T, K, ...)
    action: Tensor  # (T, K, ...)
    done: Tensor  # (T, K)
    phase: int
    steps: int  # before it

    def glimpse(self, state: StateView) -> Glimpse:
        """What a video shows of it, on the host, with actions as the environment was given them."""
        every = stride(state)
        action = state.policy.head.to_env(self.action[::every])
        obs, given, done = (x.detach().cpu().numpy() for x in (self.obs[::every], action, self.done))
        ended = np.logical_or.reduceat(done, range(0, len(done), every))  # between one frame and the next
        return Glimpse(obs, given, ended, self.phase, self.steps, every * state.env.num_envs)


class RolloutVideo(Callback):
    """Writes videos/phase0050.mp4 every so many phases and at the end; with `every` None, a few that show the run.

    `written(path, step)` is called for each that is there; `say` is told, once, if these environments cannot be drawn.
    """

    name = "video"
    may_fail = True

    def __init__(
        self, folder: Path, every: int | None, written: Callable[[Path, int], None], say: Callable[[str], None] = print
    ) -> None:
        self.folder, self.every, self.written, self.say = folder, every, written, say
        self.kept: deque[Kept] | None = None  # the last phases, once it is known how long they are
        self.rows = 0  # of each of them, at most
        self.painter: Painter | None = None
        self.numbers = 0  # of videos begun
        self.last: int | None = None  # the number of the one that shows the end, once that is near
        self.complete = False  # whether the one that shows the end has been ordered
        self.shown = 0  # phase up to which there are videos
        self.blind = False  # whether observations are not enough
        self.missed = False  # whether the disk did not take the last one

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total = about.title, about.total_steps
        self.env = str(about.settings.get("env", self.title.split()[0]))  # by its whole name
        self.began = self.steps = about.steps

    def on_update(self, state: StateView) -> None:
        if self.blind or self.cannot_see(state):
            return
        if self.painter is not None and self.painter.owed:
            self.tell(self.painter.painted())
        steps_before, self.steps = self.steps, state.steps
        taken = (state.steps - steps_before) // state.env.num_envs  # a rollout may have ended early
        if taken < 1:
            return
        if self.kept is None:
            self.rows = rows_of(state)
            self.kept = deque(maxlen=self.phases_at_hand(state))
        self.kept.append(keep(state, min(taken, self.rows), steps_before))
        left = (self.total - state.steps) // (state.steps - steps_before)
        if self.is_due(state.phase, steps_before) and not (self.last is not None and left == 0):
            self.film(state)
        self.approach_the_end(state, left)

    def on_trained(self, state: StateView) -> None:
        """The last video can be finished while the agent is scored."""
        if self.kept is None or self.complete:
            return
        self.complete = True
        if self.last is not None and self.painter is not None:
            self.painter.finish(self.last, name_of(state.phase), state.steps)
        elif self.shown != state.phase and (self.every is not None or self.full):
            self.film(state)

    def on_end(self, result: TrainingResult) -> None:
        self.on_trained(result.state)
        if self.painter is not None:
            self.tell(self.painter.painted(PATIENCE))
            self.painter.close()

    def cannot_see(self, state: StateView) -> bool:
        """Whether these environments draw states, not observations."""
        if not state.env.drawable:
            self.blind = True
            self.say(f"no videos of training: {self.env} {self.remedy(state)}")
        return self.blind

    def remedy(self, state: StateView) -> str:
        """What is missing for a video, and what to do."""
        env = self.env
        if getattr(state.env, "backend", None) == "tensor":
            return "does not draw itself: give it a draw(obs, action) method"
        command = f"`tightrope record {self.folder.parent} --out video.mp4`"
        condition = ""
        if ":" in env and not re.search(r"-v\d+$", env):  # module:Class, which no run remembers how to make
            command = f"{command[:-1]} --env {env}`"
            condition = " if its render() returns an rgb_array"
        if "<locals>" in env or env.startswith("__main__:"):  # which no command could name
            command = f'`tr.load("{self.folder.parent}", env=...).record("video.mp4")`'
        return f"cannot be drawn from observations alone; {command} shows what was learned{condition}"

    # when ------------------------------------------------------------------------------------------------------------

    def phases_at_hand(self, state: StateView) -> int:
        enough = -(-FEWEST * stride(state) // self.rows)
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
        apart = phase - self.shown >= BETWEEN * len(self.kept)  # in a short run drawing would be half of the work
        return apart and passed(self.steps, steps_before, self.total)

    # how -------------------------------------------------------------------------------------------------------------

    def film(self, state: StateView) -> None:
        """A video of all that is at hand."""
        assert self.kept is not None
        painter, number = self.at_work(state), self.number()
        for kept in self.kept:
            painter.show(number, kept.glimpse(state))
        painter.finish(number, name_of(state.phase), state.steps)
        self.shown = state.phase

    def approach_the_end(self, state: StateView, left: int) -> None:
        """Show the last video as it happens, where it spans several phases, so that nobody waits for it at the end."""
        assert self.kept is not None
        if self.last is None and left == (self.kept.maxlen or 0) - 1 > 0:
            self.at_work(state)
            self.last = self.number()
        if self.last is not None:
            self.at_work(state).show(self.last, self.kept[-1].glimpse(state))

    def at_work(self, state: StateView) -> Painter:
        if self.painter is None:
            self.painter = Painter(state.env, Place.of(self.folder), self.title, state.env.pace // stride(state))
        return self.painter

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def tell(self, painted: list[Painted]) -> None:
        for path, steps, error, _ in painted:
            if error is None:
                self.written(path, steps)
            elif not self.missed:
                warn(f"{path} could not be written ({error}); the next video is tried all the same")
            self.missed = error is not None


def stride(state: StateView) -> int:
    """Every how-many-th step is shown: all, unless so many make a second that nobody could see them."""
    return -(-state.env.pace // FPS)


def name_of(phase: int) -> str:
    return f"phase{phase:04d}"


def rows_of(state: StateView) -> int:
    """Steps of one phase that a video can show."""
    obs = state.rollout.obs[:, :CELLS]
    return max(1, min(len(obs), MOST, MOST_BYTES // (obs[0].numel() * obs.element_size())))


def keep(state: StateView, rows: int, steps_before: int) -> Kept:
    """A copy of what the first environments did; the next phase overwrites the rollout."""
    rollout = state.rollout
    done = rollout.terminated[:rows, :CELLS] | rollout.truncated[:rows, :CELLS]
    obs, action = rollout.obs[:rows, :CELLS].clone(), rollout.action[:rows, :CELLS].clone()
    return Kept(obs, action, done, state.phase, steps_before)


def passed(steps: int, before: int, total: int) -> bool:
    """Whether a quarter of the run was just passed, or a quarter of that, and so on."""
    mark = total / APART
    while mark > steps:
        mark /= APART
    return before < mark
