"""A picture in world coordinates: x to the right, y up, drawn with sub-pixel precision by OpenCV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .colors import BACKGROUND

Point = tuple[float, float]
Color = tuple[int, int, int]
SHIFT = 4  # fractional bits of a coordinate
FONT_HEIGHT = 22  # pixels of cv2's plain font at scale 1


def _cv2() -> Any:
    import cv2

    return cv2


class Canvas:
    """One frame. `span` world units fill its width; `center` is the world point in the middle of the picture."""

    def __init__(self, width: int, height: int, span: float, center: Point = (0.0, 0.0)) -> None:
        self.frame = np.full((height, width, 3), BACKGROUND, np.uint8)
        self.scale = width / span
        self.origin = (width / 2 - center[0] * self.scale, height / 2 + center[1] * self.scale)

    def _pixel(self, point: Point) -> tuple[int, int]:
        x, y = self.origin[0] + point[0] * self.scale, self.origin[1] - point[1] * self.scale
        limit = 1 << 14  # keeps a far-away point inside OpenCV's fixed-point range
        clamp = lambda v: max(-limit, min(limit, v)) if math.isfinite(v) else 0.0  # noqa: E731
        return round(clamp(x) * (1 << SHIFT)), round(clamp(y) * (1 << SHIFT))

    def line(self, start: Point, end: Point, color: Color, width: float) -> None:
        thickness = max(1, round(width * self.scale))
        cv2 = _cv2()
        cv2.line(self.frame, self._pixel(start), self._pixel(end), color, thickness, cv2.LINE_AA, SHIFT)

    def path(self, points: Sequence[Point], color: Color, width: float) -> None:
        cv2 = _cv2()
        pixels = np.array([self._pixel(p) for p in points], np.int32)
        cv2.polylines(self.frame, [pixels], False, color, max(1, round(width * self.scale)), cv2.LINE_AA, SHIFT)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        cv2 = _cv2()
        pixels = round(radius * self.scale * (1 << SHIFT))
        cv2.circle(self.frame, self._pixel(center), pixels, color, -1, cv2.LINE_AA, SHIFT)

    def arc(self, center: Point, radius: float, start: float, end: float, color: Color, width: float) -> None:
        """From angle `start` to angle `end`, in radians, anticlockwise from the x axis."""
        angles = np.linspace(start, end, 24)
        points = [(center[0] + radius * math.cos(a), center[1] + radius * math.sin(a)) for a in angles]
        self.path(points, color, width)

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        cv2 = _cv2()
        pixels = np.array([self._pixel(p) for p in points], np.int32)
        cv2.fillPoly(self.frame, [pixels], color, cv2.LINE_AA, SHIFT)

    def box(self, center: Point, width: float, height: float, color: Color) -> None:
        (x, y), w, h = center, width / 2, height / 2
        self.polygon([(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)], color)

    def text(self, words: str, corner: tuple[int, int], color: Color, size: int = 11) -> None:
        """`corner` is the left end of the baseline, in pixels from the top left."""
        cv2 = _cv2()
        cv2.putText(self.frame, words, corner, cv2.FONT_HERSHEY_SIMPLEX, size / FONT_HEIGHT, color, 1, cv2.LINE_AA)


def grid(frames: np.ndarray, columns: int = 4) -> np.ndarray:
    """(K, H, W, 3) frames as one picture, row by row; missing cells are left in the background colour."""
    count, height, width, _ = frames.shape
    rows = -(-count // columns)
    cells = np.full((rows * columns, height, width, 3), BACKGROUND, np.uint8)
    cells[:count] = frames
    cells = cells.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    return cells.reshape(rows * height, columns * width, 3)
