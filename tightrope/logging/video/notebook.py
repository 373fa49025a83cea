"""A clip of the last rollout in a notebook, over the curve of returns, renewed while training runs."""

from __future__ import annotations

import base64
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...draw import ACCENT, INK, MUTED, Canvas, text_width
from ..callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from .mp4 import Clip, Video
from .renderer import Cells, PhaseFrames, phase_pictures
from .rollout import max_rows, store_phase, stride

PICTURE_SECONDS = 1.5  # between two clips
SHARE = 10  # times as long as a clip took to make, until the next one
CLIP_FRAMES = 90  # of a clip, at most
CURVE_WIDTH, CURVE_HEIGHT = 640, 120  # pixels
MARGIN, BOTTOM, TOP = 8, 16, 94  # pixels, from below
SCALE_SIZE = 11  # of the text, in pixels
MAX_POINTS = 512


class NotebookPicture(Callback):
    """Outside a notebook it only prints a line."""

    name, may_fail = "live picture", True

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.handle: Any = None
        self.due = 0.0
        self.points: list[tuple[float, float]] = []  # steps, return

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total, self.steps = about.title, about.total_steps, about.steps
        self.clip: Clip | None = None  # of a recent rollout
        if in_notebook():
            self.handle = ipython().display(self.page(), display_id=True)
        else:
            self.say("live=True shows nothing here: it needs a notebook")

    def on_phase(self, row: MetricsRow) -> None:
        if "charts/episodic_return" in row:
            self.points.append((row["step"], row["charts/episodic_return"]))
            if len(self.points) > MAX_POINTS:
                self.points = self.points[::2]

    def on_update(self, state: StateView) -> None:
        before, self.steps = self.steps, state.steps
        if self.handle is None or time.monotonic() < self.due:
            return
        began = time.monotonic()
        taken = (state.steps - before) // state.env.num_envs  # a rollout may have ended early
        if state.env.drawable and taken:
            rows = min(taken, max_rows(state), CLIP_FRAMES * stride(state))
            self.clip = clip_of(state, store_phase(state, rows, before).frames(state), self.title)
        self.handle.update(self.page())
        self.due = time.monotonic() + max(PICTURE_SECONDS, SHARE * (time.monotonic() - began))

    def on_end(self, result: TrainingResult) -> None:
        if self.handle is not None:
            self.handle.update(self.page())

    def page(self) -> Any:
        """HTML with the clip, if there is one, over the curve."""
        above = "" if self.clip is None else f"{self.clip._repr_html_()}<br>"
        return ipython().HTML(f"{above}{curve_image(curve_frame(self.points, self.total, CURVE_WIDTH))}")


def clip_of(state: StateView, frames: PhaseFrames, title: str) -> Clip:
    """A phase as a video in memory, in which a cell turns pink when its episode has failed."""
    cells = Cells(frames.obs.shape[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        with Video(path, max(1, state.env.pace // stride(state)), threads=1) as video:
            for picture in phase_pictures(state.env, frames, title, cells):
                video.add(picture)
        return Clip(path.read_bytes(), video.frames)


def ipython() -> Any:
    """IPython's module for display, imported when it is needed."""
    return importlib.import_module("IPython.display")


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


def curve_frame(points: list[tuple[float, float]], total: int, width: int) -> np.ndarray:
    """Returns over the steps of the whole run, with the lowest and the highest value at the right."""
    canvas = Canvas(width, CURVE_HEIGHT, span=width, center=(width / 2, CURVE_HEIGHT / 2))
    canvas.line((MARGIN, MARGIN), (width - MARGIN, MARGIN), MUTED, 2)
    finite = [(x, y) for x, y in points if np.isfinite(y)]
    if finite:
        low, high = min(y for _, y in finite), max(y for _, y in finite)
        right = width - MARGIN
        for height, value in {BOTTOM: low, TOP: high}.items() if high > low else [(BOTTOM, low)]:
            left = width - MARGIN - text_width(f"{value:,.1f}", SCALE_SIZE)
            canvas.text(f"{value:,.1f}", (left, CURVE_HEIGHT - height + SCALE_SIZE // 3), INK, SCALE_SIZE)
            right = min(right, left - MARGIN)
        room = (high - low) or 1.0
        path = [(MARGIN + x / total * (right - MARGIN), BOTTOM + (y - low) / room * (TOP - BOTTOM)) for x, y in finite]
        canvas.path(path, ACCENT, 2)
        canvas.text(f"return {finite[-1][1]:,.1f}", (MARGIN, 16), ACCENT, 12)
    return canvas.frame


def curve_image(frame: np.ndarray) -> str:
    """A frame as an HTML image."""
    import cv2

    data = base64.b64encode(cv2.imencode(".png", frame[..., ::-1])[1].tobytes()).decode()
    return f'<img alt="the return over steps" style="max-width: 100%" src="data:image/png;base64,{data}">'
