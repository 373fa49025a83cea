"""A picture in a notebook that changes while training runs: the environments, over the curve of their returns."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...draw import ACCENT, INK, MUTED, Canvas, captioned_grid, draw_observations, text_width
from ..callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from .rollout import MAX_CELLS

PICTURE_SECONDS = 0.5  # between two pictures
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
        self.shown_at = 0.0
        self.points: list[tuple[float, float]] = []  # steps, return

    def on_start(self, about: RunInfo) -> None:
        self.title, self.total = about.title, about.total_steps
        if in_notebook():
            self.handle = ipython().display(notebook_image(curve_frame([], self.total, CURVE_WIDTH)), display_id=True)
        else:
            self.say("live=True shows nothing here: it needs a notebook")

    def on_phase(self, row: MetricsRow) -> None:
        if "charts/episodic_return" in row:
            self.points.append((row["step"], row["charts/episodic_return"]))
            if len(self.points) > MAX_POINTS:
                self.points = self.points[::2]

    def on_update(self, state: StateView) -> None:
        if self.handle is not None and time.monotonic() - self.shown_at >= PICTURE_SECONDS:
            self.show(state)
            self.shown_at = time.monotonic()

    def on_end(self, result: TrainingResult) -> None:
        if self.handle is not None:
            self.show(result.state)

    def show(self, state: StateView) -> None:
        above = np.empty((0, CURVE_WIDTH, 3), np.uint8)
        if state.env.drawable:
            frames = draw_observations(state.env, state.obs[:MAX_CELLS].cpu())
            words = f"phase {state.phase}   {state.steps:,} steps"
            above = captioned_grid(frames, [0.0] * len(frames), words, self.title)
        below = curve_frame(self.points, self.total, above.shape[1])
        self.handle.update(notebook_image(np.concatenate([above, below])))


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


def notebook_image(frame: np.ndarray) -> Any:
    """A frame as an image for IPython."""
    import cv2

    return ipython().Image(data=cv2.imencode(".png", frame[..., ::-1])[1].tobytes(), format="png")
