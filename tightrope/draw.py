"""Draw pictures in world coordinates (x to the right, y up) with OpenCV, and combine them in grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ACCENT", "BACKGROUND", "CAPTION_HEIGHT", "INK", "MUTED", "PINK", "WARM", "Canvas", "blank", "captioned_grid",
    "cell_scale", "draw_observations", "grid", "render_scale", "shrink", "stretched", "text_width", "tint", "upscaled", "write",
]  # fmt: skip

BACKGROUND = (250, 250, 247)  # the palette of all environments, RGB
INK = (38, 43, 54)
MUTED = (196, 199, 204)
ACCENT = (38, 103, 179)
WARM = (214, 122, 46)
PINK = (255, 128, 171)
GRID_LINE = (226, 227, 224)

Point = tuple[float, float]
Color = tuple[int, int, int]
SHIFT = 4  # fractional bits of a coordinate
UNITS = 1 << SHIFT
FAR = 1 << 14  # pixels: keeps a far-away point inside OpenCV's fixed-point range
SMALL, FINE = 16.0, 8  # pixels of the radius of a small disc, and parts of a pixel between its places
HALO = 0.6  # pixels by which OpenCV's soft edges lie outside of the shape they belong to
FONT_HEIGHT = 22  # pixels of OpenCV's plain font at scale 1
CAPTION_HEIGHT, CAPTION_SIZE, CAPTION_MARGIN = 24, 12, 6  # pixels
_times: ContextVar[int] = ContextVar("times", default=1)


class Drawable(Protocol):
    """An environment that draws observations."""

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray: ...


def _cv2() -> Any:
    import cv2

    return cv2


@contextmanager
def render_scale(times: int) -> Iterator[None]:
    """Inside, every canvas is `times` times as wide and high; lines stay sharp."""
    before = _times.set(times)
    try:
        yield
    finally:
        _times.reset(before)


def nothing(canvas: Canvas) -> None:
    """An empty backdrop."""


class Canvas:
    """One frame. `span` world units fill its width; `center` is the world point in the middle of the picture.

    `backdrop` draws what never moves. It is called once; later canvases of the same kind start from a copy.
    """

    def __init__(
        self,
        width: int,
        height: int,
        span: float,
        center: Point = (0.0, 0.0),
        backdrop: Callable[[Canvas], None] = nothing,
    ) -> None:
        self.times = _times.get()
        width, height = width * self.times, height * self.times
        self.scale = width / span
        self.origin = ((width - 1) / 2 - center[0] * self.scale, (height - 1) / 2 + center[1] * self.scale)
        self.pixels = _backdrop(width, height, span, center, self.times, backdrop).copy()

    @property
    def frame(self) -> np.ndarray:
        """(H, W, 3) uint8."""
        return self.pixels

    def _pixel(self, point: Point) -> tuple[int, int]:
        x, y = self.origin[0] + point[0] * self.scale, self.origin[1] - point[1] * self.scale
        if not (-FAR < x < FAR and -FAR < y < FAR):
            x, y = max(-FAR, min(FAR, x)), max(-FAR, min(FAR, y))
        return round(x * UNITS), round(y * UNITS)

    def _pixels(self, points: Sequence[Point]) -> list[np.ndarray]:
        return [np.array([self._pixel(p) for p in points], np.int32)]

    def line(self, start: Point, end: Point, color: Color, width: float) -> None:
        """A straight bar of that width with square ends."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        length = math.hypot(dx, dy)
        if not 0 < length < math.inf:
            return
        half = max(width / 2 - HALO / self.scale, 0.0) / length
        side = (-dy * half, dx * half)
        corners = [(p[0] + s * side[0], p[1] + s * side[1]) for p, s in ((start, 1), (end, 1), (end, -1), (start, -1))]
        self.polygon(corners, color)

    def path(self, points: Sequence[Point], color: Color, width: float) -> None:
        """A smooth curve through many points."""
        cv2 = _cv2()
        thickness = max(1, round(width * self.scale))
        cv2.polylines(self.pixels, self._pixels(points), False, color, thickness, cv2.LINE_AA, SHIFT)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        pixels = radius * self.scale
        if pixels >= SMALL:
            cv2 = _cv2()
            cv2.circle(self.pixels, self._pixel(center), round((pixels - HALO) * UNITS), color, -1, cv2.LINE_AA, SHIFT)
        elif pixels > 0:
            self._small_disc(center, pixels, color)

    def _small_disc(self, center: Point, radius: float, color: Color) -> None:
        x, y = self._pixel(center)
        step = UNITS // FINE
        left, top, share = x // UNITS, y // UNITS, _share(x % UNITS // step, y % UNITS // step, radius)
        reach = len(share) // 2
        a, b = max(0, top - reach), max(0, left - reach)
        part = self.pixels[a : max(0, top + reach + 1), b : max(0, left + reach + 1)]
        if part.size:
            rows, columns, _ = part.shape
            a, b = a - (top - reach), b - (left - reach)
            share = share[a : a + rows, b : b + columns]
            part += ((np.array(color, np.int32) - part) * share >> 8).astype(
                np.uint8
            )  # negative differences wrap around

    def arc(self, center: Point, radius: float, start: float, end: float, color: Color, width: float) -> None:
        """From angle `start` to angle `end`, in radians, anticlockwise from the x axis."""
        angles = np.linspace(start, end, 24).tolist()
        self.path([(center[0] + radius * math.cos(a), center[1] + radius * math.sin(a)) for a in angles], color, width)

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        cv2 = _cv2()
        cv2.fillPoly(self.pixels, self._pixels(points), color, cv2.LINE_AA, SHIFT)

    def box(self, center: Point, width: float, height: float, color: Color) -> None:
        (x, y), w, h = center, width / 2 - HALO / self.scale, height / 2 - HALO / self.scale
        self.polygon([(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)], color)

    def text(self, words: str, corner: tuple[int, int], color: Color, size: int = 11) -> None:
        """`corner` is the left end of the baseline, in pixels of the frame from its top left."""
        write(self.pixels, words, (corner[0] * self.times, corner[1] * self.times), color, size * self.times)


@lru_cache(maxsize=1024)
def _share(x: int, y: int, radius: float) -> np.ndarray:
    """How much of each pixel around its centre a disc covers, of 256; its centre is x and y FINEths of a pixel further.
    (OpenCV gives small circles four or twelve corners.)"""
    reach = math.ceil(radius) + 1
    along = np.arange(-reach, reach + 1)
    distance = np.hypot(along[:, None] - y / FINE, along - x / FINE)
    return np.rint((radius + 0.5 - distance).clip(0, 1) * 256).astype(np.int32)[..., None]


@lru_cache(maxsize=32)
def _backdrop(
    width: int, height: int, span: float, center: Point, times: int, paint: Callable[[Canvas], None]
) -> np.ndarray:
    if paint is nothing:
        return _plain(height, width, BACKGROUND)
    with render_scale(times):
        canvas = Canvas(width // times, height // times, span, center)
    paint(canvas)
    return canvas.pixels


def write(frame: np.ndarray, words: str, corner: tuple[int, int], color: Color, size: int = 11) -> None:
    """Words on a frame (H, W, 3), `size` pixels high; `corner` is the left end of their baseline."""
    cv2 = _cv2()
    font, scale, thickness = cv2.FONT_HERSHEY_SIMPLEX, size / FONT_HEIGHT, max(1, round(size / 12))
    cv2.putText(frame, words, corner, font, scale, color, thickness, cv2.LINE_AA)


def text_width(words: str, size: int) -> int:
    """The width of the text that `write` draws, in pixels."""
    cv2 = _cv2()
    return int(cv2.getTextSize(words, cv2.FONT_HERSHEY_SIMPLEX, size / FONT_HEIGHT, max(1, round(size / 12)))[0][0])


@lru_cache(maxsize=16)
def _plain(height: int, width: int, color: Color) -> np.ndarray:
    return np.full((height, width, 3), color, np.uint8)


def blank(height: int, width: int, color: Color = BACKGROUND) -> np.ndarray:
    """A frame of one colour. (NumPy takes ten times as long to fill one with three numbers as to copy it.)"""
    return _plain(height, width, color).copy()


def tint(frame: np.ndarray, color: Color, strength: float) -> None:
    """Mix a colour into a frame, in place."""
    frame[:] = _cv2().addWeighted(frame, 1 - strength, _plain(*frame.shape[:2], color), strength, 0)


def draw_observations(env: Drawable, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
    """The frames that an environment draws of these observations."""
    return env.draw(*drawn_arguments(env, obs, action))


def drawn_arguments(env: Drawable, obs: Tensor, action: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What `draw` and `scene` are given: observations without action masks and privileged numbers, a hybrid action split."""
    split = getattr(getattr(env, "action", None), "split", None)
    if split is not None and action is not None:
        action = split(action)
    seen = getattr(env, "_seen", None)
    if seen is not None:
        obs = obs[:, : math.prod(seen.shape)].reshape(-1, *seen.shape).to(seen.dtype)
    return obs, action


def grid(frames: np.ndarray, columns: int = 4) -> np.ndarray:
    """(K, H, W, 3) frames as one picture, row by row; missing cells are left in the background colour."""
    count, height, width, _ = frames.shape
    picture = blank(-(-count // columns) * height, columns * width)
    for i, frame in enumerate(frames):
        row, column = i // columns * height, i % columns * width
        picture[row : row + height, column : column + width] = frame
    return picture


def stretched(frame: np.ndarray, side: int) -> np.ndarray:
    """Grey pixels (H, W) as a square frame (side, side, 3) with sharp pixels."""
    cv2 = _cv2()
    side *= _times.get()
    large = tuple(-(-side // length) * length for length in frame.shape[::-1])  # whole pixels, then a little less
    sharp = cv2.resize(frame, large, interpolation=cv2.INTER_NEAREST)
    return np.asarray(cv2.cvtColor(cv2.resize(sharp, (side, side), interpolation=cv2.INTER_AREA), cv2.COLOR_GRAY2RGB))


def upscaled(frame: np.ndarray) -> np.ndarray:
    """A frame (H, W, 3) enlarged by the factor of `render_scale`, with sharp pixels."""
    times = _times.get()
    return frame.repeat(times, 0).repeat(times, 1)


def shrink(frame: np.ndarray, height: int = 160) -> np.ndarray:
    """A frame (H, W, 3) no higher than `height` (times the factor of `render_scale`), both sides even."""
    rows = min(frame.shape[0], height * _times.get()) // 2 * 2
    columns = max(2, round(frame.shape[1] * rows / frame.shape[0] / 2) * 2)
    return _cv2().resize(np.ascontiguousarray(frame), (columns, rows), interpolation=_cv2().INTER_AREA)


def grid_columns(count: int) -> int:
    """Columns of a grid that is about as wide as it is high."""
    return math.ceil(math.sqrt(count))


def cell_scale(count: int) -> int:
    """The scale of each of `count` frames in a grid, relative to a grid of sixteen."""
    return max(1, 4 // grid_columns(count))


def captioned_grid(
    cells: Sequence[np.ndarray] | np.ndarray, pink: Sequence[float], left: str, right: str = ""
) -> np.ndarray:
    """Frames (K, H, W, 3) in a grid, thin lines between them, over a line of text. `pink` tints each of them, from 0 to 1."""
    frames, columns = np.array(cells), grid_columns(len(cells))
    for frame, strength in zip(frames, pink, strict=True):
        if strength > 0:
            tint(frame, PINK, strength)
    picture = grid(frames, columns)
    _, height, width, _ = frames.shape
    picture[height - 1 :: height] = GRID_LINE
    for column in range(1, columns):
        picture[:, column * width - 1] = GRID_LINE
    picture = np.concatenate([picture, blank(CAPTION_HEIGHT, picture.shape[1])])
    caption(picture, left, right)
    return picture


def caption(picture: np.ndarray, left: str, right: str = "") -> None:
    """Text at the bottom of a picture. The text on the right is dropped if there is no room for both."""
    height, width, _ = picture.shape
    size = caption_size(left, width - 2 * CAPTION_MARGIN)
    write(picture, left, (CAPTION_MARGIN, height - CAPTION_MARGIN - 2), INK, size)
    start = width - CAPTION_MARGIN - text_width(right, size)
    if right and CAPTION_MARGIN + text_width(left, size) + 20 < start:
        write(picture, right, (start, height - CAPTION_MARGIN - 2), INK, size)


def caption_size(words: str, width: int) -> int:
    """The largest font size at which the text is at most `width` pixels wide."""
    return next((size for size in range(CAPTION_SIZE, 6, -1) if text_width(words, size) <= width), 6)
