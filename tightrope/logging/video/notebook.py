"""A picture in a notebook that changes while training runs: what the environments show now, over the returns so far."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...draw import ACCENT, INK, MUTED, Canvas, width_of
from ..callback import Callback, RunInfo, StateView, TrainingResult
from .cells import together

SECONDS = 0.5  # between two pictures
CELLS = 16
WIDTH, HEIGHT = 640, 120  # of the picture with the curve, in pixels
MARGIN, BOTTOM, TOP = 8, 16, 94  # where the curve is in it, from below
SMALL = 11  # letters of its scale
MOST_POINTS = 512


class NotebookPicture(Callback):
    """Outside a notebook there is nothing to show it in, which is said once."""

    name = "live picture"
    may_fail = True

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.say = say
        self.handle: Any = None
        self.shown = 0.0  # when
        self.points: list[tuple[float, float]] = []  # steps, return

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total = about.title, about.total_steps
        if in_notebook():
            self.handle = ipython().display(picture_of(together_with(None, self.points, self.total)), display_id=True)
        else:
            self.say("live=True is for a notebook: this is none, so nothing is shown")

    def on_phase(self, row: dict[str, Any]) -> None:
        if "charts/episodic_return" in row:
            self.points.append((row["step"], row["charts/episodic_return"]))
            if len(self.points) > MOST_POINTS:
                self.points = self.points[::2]

    def on_update(self, state: StateView) -> None:
        if self.handle is not None and time.monotonic() - self.shown >= SECONDS:
            self.show(state)
            self.shown = time.monotonic()

    def on_end(self, result: TrainingResult) -> None:
        if self.handle is not None:
            self.show(result.state)

    def show(self, state: StateView) -> None:
        cells = None
        if state.env.drawable:
            frames = state.env.draw(state.obs[:CELLS].cpu())
            words = f"phase {state.phase}   {state.steps:,} steps"
            cells = together(frames, [0.0] * len(frames), words, self.title)
        self.handle.update(picture_of(together_with(cells, self.points, self.total)))


def ipython() -> Any:
    """What IPython displays with."""
    return importlib.import_module("IPython.display")


def in_notebook() -> bool:
    """Whether the code runs in a kernel that shows pictures."""
    shell = sys.modules.get("IPython")
    running = None if shell is None else shell.get_ipython()
    return running is not None and hasattr(running, "kernel")


def together_with(cells: np.ndarray | None, points: list[tuple[float, float]], total: int) -> np.ndarray:
    """The environments over the curve of their returns."""
    below = curve(points, total, WIDTH if cells is None else cells.shape[1])
    return below if cells is None else np.concatenate([cells, below])


def curve(points: list[tuple[float, float]], total: int, width: int) -> np.ndarray:
    """Returns over the steps of the whole run, with the lowest and the highest beside it."""
    canvas = Canvas(width, HEIGHT, span=width, center=(width / 2, HEIGHT / 2))
    canvas.line((MARGIN, MARGIN), (width - MARGIN, MARGIN), MUTED, 2)
    finite = [(x, y) for x, y in points if np.isfinite(y)]
    if finite:
        low, high = min(y for _, y in finite), max(y for _, y in finite)
        right = width - MARGIN - scale(canvas, low, high)
        room = (high - low) or 1.0
        path = [(MARGIN + x / total * (right - MARGIN), BOTTOM + (y - low) / room * (TOP - BOTTOM)) for x, y in finite]
        canvas.path(path, ACCENT, 2)
        canvas.text(f"return {finite[-1][1]:,.1f}", (MARGIN, 16), ACCENT, 12)
    return canvas.frame


def scale(canvas: Canvas, low: float, high: float) -> int:
    """The two ends of the curve's range at the right, level with it; returns how wide they are."""
    labels = {BOTTOM: f"{low:,.1f}"} | ({TOP: f"{high:,.1f}"} if high > low else {})
    wide = max(width_of(words, SMALL) for words in labels.values())
    for height, words in labels.items():
        corner = canvas.frame.shape[1] - MARGIN - width_of(words, SMALL), HEIGHT - height + SMALL // 3
        canvas.text(words, corner, INK, SMALL)
    return wide + MARGIN


def picture_of(frame: np.ndarray) -> Any:
    """What IPython shows of a frame."""
    import cv2

    return ipython().Image(data=cv2.imencode(".png", frame[..., ::-1])[1].tobytes(), format="png")
