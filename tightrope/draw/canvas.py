"""A picture in world coordinates: x to the right, y up. Drawn twice as large by OpenCV, then shrunk, which smooths edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .colors import BACKGROUND

Point = tuple[float, float]
Color = tuple[int, int, int]
SUPERSAMPLE = 2
SHIFT = 4  # fractional bits of a coordinate
FAR = 1 << 14  # pixels: keeps a far-away point inside OpenCV's fixed-point range
FONT_HEIGHT = 22  # pixels of OpenCV's plain font at scale 1


def _cv2() -> Any:
    import cv2

    return cv2


class Canvas:
    """One frame. `span` world units fill its width; `center` is the world point in the middle of the picture."""

    def __init__(self, width: int, height: int, span: float, center: Point = (0.0, 0.0)) -> None:
        self.size = (width, height)
        self.large = np.full((height * SUPERSAMPLE, width * SUPERSAMPLE, 3), BACKGROUND, np.uint8)
        self.scale = SUPERSAMPLE * width / span
        middle = ((SUPERSAMPLE * width - 1) / 2, (SUPERSAMPLE * height - 1) / 2)
        self.origin = (middle[0] - center[0] * self.scale, middle[1] + center[1] * self.scale)

    @property
    def frame(self) -> np.ndarray:
        """(H, W, 3) uint8."""
        cv2 = _cv2()
        return np.asarray(cv2.resize(self.large, self.size, interpolation=cv2.INTER_AREA))

    def _pixel(self, point: Point) -> tuple[int, int]:
        x, y = self.origin[0] + point[0] * self.scale, self.origin[1] - point[1] * self.scale
        return tuple(round(max(-FAR, min(FAR, v)) * (1 << SHIFT)) for v in (x, y))  # type: ignore[return-value]

    def _pixels(self, points: Sequence[Point]) -> list[np.ndarray]:
        return [np.array([self._pixel(p) for p in points], np.int32)]

    def line(self, start: Point, end: Point, color: Color, width: float) -> None:
        """A straight bar of that width with square ends."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = math.hypot(dx, dy)
        if not 0 < length < math.inf:
            return
        side = (-dy / length * width / 2, dx / length * width / 2)
        corners = [(p[0] + s * side[0], p[1] + s * side[1]) for p, s in ((start, 1), (end, 1), (end, -1), (start, -1))]
        self.polygon(corners, color)

    def path(self, points: Sequence[Point], color: Color, width: float) -> None:
        """A smooth curve through many points."""
        cv2 = _cv2()
        thickness = max(1, round(width * self.scale))
        cv2.polylines(self.large, self._pixels(points), False, color, thickness, cv2.LINE_AA, SHIFT)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        cv2 = _cv2()
        pixels = round(radius * self.scale * (1 << SHIFT))
        cv2.circle(self.large, self._pixel(center), pixels, color, -1, cv2.LINE_AA, SHIFT)

    def arc(self, center: Point, radius: float, start: float, end: float, color: Color, width: float) -> None:
        """From angle `start` to angle `end`, in radians, anticlockwise from the x axis."""
        angles = np.linspace(start, end, 24)
        self.path([(center[0] + radius * math.cos(a), center[1] + radius * math.sin(a)) for a in angles], color, width)

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        cv2 = _cv2()
        cv2.fillPoly(self.large, self._pixels(points), color, cv2.LINE_AA, SHIFT)

    def box(self, center: Point, width: float, height: float, color: Color) -> None:
        (x, y), w, h = center, width / 2, height / 2
        self.polygon([(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)], color)

    def text(self, words: str, corner: tuple[int, int], color: Color, size: int = 11) -> None:
        """`corner` is the left end of the baseline, in pixels of the frame from its top left."""
        cv2 = _cv2()
        at = (corner[0] * SUPERSAMPLE, corner[1] * SUPERSAMPLE)
        cv2.putText(
            self.large,
            words,
            at,
            cv2.FONT_HERSHEY_SIMPLEX,
            SUPERSAMPLE * size / FONT_HEIGHT,
            color,
            SUPERSAMPLE,
            cv2.LINE_AA,
        )


def grid(frames: np.ndarray, columns: int = 4) -> np.ndarray:
    """(K, H, W, 3) frames as one picture, row by row; missing cells are left in the background colour."""
    count, height, width, _ = frames.shape
    rows = -(-count // columns)
    cells = np.full((rows * columns, height, width, 3), BACKGROUND, np.uint8)
    cells[:count] = frames
    cells = cells.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    return cells.reshape(rows * height, columns * width, 3)


def shrink(frame: np.ndarray, height: int = 160) -> np.ndarray:
    """A frame (H, W, 3) no higher than `height`, both sides even."""
    rows = min(frame.shape[0], height) // 2 * 2
    columns = max(2, round(frame.shape[1] * rows / frame.shape[0] / 2) * 2)
    return _cv2().resize(np.ascontiguousarray(frame), (columns, rows), interpolation=_cv2().INTER_AREA)
