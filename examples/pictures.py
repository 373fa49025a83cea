"""A helper of the notebooks, not an example: charts, maps, tables and film strips as SVG, PNG and HTML, shown offline."""

from __future__ import annotations

import base64
import io
import math
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path

import cv2
import numpy as np

import tightrope as tr
from tightrope.draw import CAPTION_HEIGHT
from tightrope.logging import Clip, Video
from tightrope.training.video import HOLD

WIDTH, HEIGHT = 640, 300
LEFT, TOP, BOTTOM = 56, 36, 44  # what is left around the axes
LETTER = 7.5  # pixels of a letter of a label
FEW = 60  # points of a curve that are marked
COLORS = ("#2667b3", "#d67a2e", "#3a8f5c", "#b0406f", "#7a5bb5", "#262b36")
FAINT, INK, GRID, PAPER = "#a8adb5", "#262b36", "#e4e4df", "#fafaf7"


@dataclass(frozen=True, repr=False)
class Svg:
    """A drawing that a notebook shows."""

    body: str
    width: int = WIDTH
    height: int = HEIGHT
    says: str = "a picture"

    def _repr_svg_(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>{self.body}</svg>'
        )

    def __repr__(self) -> str:
        return self.says


@dataclass(frozen=True, repr=False)
class Png:
    """Pixels (H, W, 3) that a notebook shows."""

    frame: np.ndarray

    def _repr_png_(self) -> bytes:
        return cv2.imencode(".png", self.frame[..., ::-1])[1].tobytes()

    def __repr__(self) -> str:
        return "a picture"


@dataclass(frozen=True, repr=False)
class Table:
    """Rows by name; every row has the same columns."""

    rows: dict[str, dict[str, str]]

    def _repr_html_(self) -> str:
        columns = next(iter(self.rows.values()))
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row.values())
            + "</tr>"
            for name, row in self.rows.items()
        )
        return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        return "\n".join(f"{name}: " + ", ".join(f"{k} {v}" for k, v in row.items()) for name, row in self.rows.items())


# charts ----------------------------------------------------------------------------------------------------------------


def lines(curves: dict, title: str, x: str = "", y: str = "", faint: tuple[str, ...] = (), zero: bool = True) -> Svg:
    """Curves by name, each (x, y). Where y has a row per seed, the line is their mean and the band goes from the lowest to
    the highest. Curves named in `faint` are there for comparison."""
    data = {name: (np.asarray(a, float), np.atleast_2d(np.asarray(b, float))) for name, (a, b) in curves.items()}
    every = np.concatenate([b.ravel() for _, b in data.values()])
    end = WIDTH - 24 - LETTER * max(map(len, data))  # the names stand to the right of the curves
    across = Axis.over(np.concatenate([a for a, _ in data.values()]), LEFT, end)
    up = Axis.over(np.append(every, 0.0) if zero else every, HEIGHT - BOTTOM, TOP)
    body = [frame(across, up, title, x, y)]
    color = dict(zip([name for name in data if name not in faint], COLORS, strict=False))
    labels = []
    for name, (a, b) in sorted(data.items(), key=lambda item: item[0] not in faint):
        ink = color.get(name, FAINT)
        if len(b) > 1:
            edge = [*zip(a, b.max(0), strict=True), *zip(a[::-1], b.min(0)[::-1], strict=True)]
            body.append(f'<polygon points="{points(edge, across, up)}" fill="{ink}" opacity="0.15"/>')
        path = points(zip(a, b.mean(0), strict=True), across, up)
        body.append(f'<polyline points="{path}" fill="none" stroke="{ink}" stroke-width="2" stroke-linejoin="round"/>')
        if len(a) <= FEW:
            dots = "".join(f"M{across(i)} {up(j)}h0" for i, j in zip(a, b.mean(0), strict=True))
            body.append(f'<path d="{dots}" stroke="{ink}" stroke-width="6" stroke-linecap="round"/>')
        labels.append((up(b.mean(0)[-1]), name, ink))
    for height, name, ink in apart(labels):
        body.append(text(end + 10, height + 4, name, fill=ink, weight=600))
    return Svg("".join(body), says=f"a chart of {', '.join(data)}: {title}")


@dataclass(frozen=True)
class Axis:
    """From numbers to pixels."""

    low: float
    high: float
    start: float
    end: float
    step: float

    @classmethod
    def over(cls, numbers: np.ndarray, start: float, end: float) -> Axis:
        low, high = float(numbers.min()), float(numbers.max())
        low = 0.0 if 0 < low < high / 10 else low
        rough = ((high - low) or 1.0) / 5
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n >= rough * 0.999)
        return cls(low, high if high > low else low + 1.0, start, end, step)

    def __call__(self, number: float) -> float:
        return round(self.start + (number - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        first = math.ceil(self.low / self.step - 1e-9)
        return [n * self.step for n in range(first, math.floor(self.high / self.step + 1e-9) + 1)]


def frame(across: Axis, up: Axis, title: str, x: str, y: str) -> str:
    """What is behind the curves."""
    parts = [text(LEFT, 20, title, size=14, weight=600)]
    for tick in up.ticks:
        parts.append(f'<path d="M{across.start} {up(tick)}H{across.end}" stroke="{GRID}"/>')
        parts.append(text(across.start - 8, up(tick) + 4, f"{tick:g}", anchor="end"))
    for tick in across.ticks:
        parts.append(
            text(across(tick), up.start + 18, f"{tick:,g}" if tick < 1e4 else f"{tick / 1e3:g}k", anchor="middle")
        )
    parts.append(f'<path d="M{across.start} {up.start}H{across.end}" stroke="{FAINT}"/>')
    parts.append(text((across.start + across.end) / 2, up.start + 36, x, anchor="middle"))
    middle = (up.start + up.end) / 2
    parts.append(text(14, middle, y, anchor="middle", turn=f"rotate(-90 14 {middle})"))
    return "".join(parts)


def text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    size: int = 12,
    weight: int = 400,
    fill: str = INK,
    turn: str = "",
) -> str:
    turned = f' transform="{turn}"' if turn else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}"{turned}>'
        f"{escape(words)}</text>"
    )


def points(pairs, across: Axis, up: Axis) -> str:
    return " ".join(f"{across(a)},{up(b)}" for a, b in pairs)


def apart(labels: list[tuple[float, str, str]], gap: float = 16) -> list[tuple[float, str, str]]:
    """The same labels, moved down as far as they must to be read."""
    placed: list[tuple[float, str, str]] = []
    for height, name, ink in sorted(labels):
        placed.append((max(height, placed[-1][0] + gap) if placed else height, name, ink))
    over = max(0.0, placed[-1][0] - (HEIGHT - BOTTOM)) if placed else 0.0
    return [(height - over, name, ink) for height, name, ink in placed]


# maps and films --------------------------------------------------------------------------------------------------------


def maps(functions: dict[str, np.ndarray], title: str, x: tuple[str, float, float], y: tuple[str, float, float]) -> Svg:
    """Numbers from 0 (orange) to 1 (blue) over two quantities, side by side over a scale of the colours; the first row of an
    array is the lowest."""
    side, gap, scale = 220, 70, TOP + 220 + BOTTOM + 26
    body = [
        text(LEFT, scale - 8, title, weight=600),
        image(tinted(np.linspace(0, 1, 65)[None], side)[:12], LEFT, scale),
        *(text(LEFT + side * i / 2, scale + 28, f"{i / 2:g}", anchor="middle") for i in range(3)),
    ]
    for i, (name, values) in enumerate(functions.items()):
        left = LEFT + i * (side + gap)
        across, up = Axis.over(np.array(x[1:]), left, left + side), Axis.over(np.array(y[1:]), TOP + side, TOP)
        body.append(frame(across, up, "", x[0], y[0] if i == 0 else ""))
        body.append(text(left, 22, name, size=14, weight=600))
        body.append(image(tinted(values[::-1], side), left, TOP))
    return Svg(
        "".join(body), LEFT + len(functions) * (side + gap), scale + 40, f"{title}: maps of {', '.join(functions)}"
    )


def tinted(values: np.ndarray, side: int) -> np.ndarray:
    """Numbers as colours, softly enlarged."""
    large = cv2.resize(values.astype(np.float32), (side, side), interpolation=cv2.INTER_LINEAR)[..., None]
    low, middle, high = (np.array(color, float) for color in (tr.draw.WARM, tr.draw.BACKGROUND, tr.draw.ACCENT))
    mixed = np.where(large < 0.5, low + (middle - low) * 2 * large, middle + (high - middle) * (2 * large - 1))
    return mixed.clip(0, 255).astype(np.uint8)


def strip(clip, every: int = 1, count: int = 8, columns: int = 4, width: int = 200) -> Svg:
    """Moments of a film that shows every so-many-th step, at equal distances, for where films do not play: read them row by
    row. The end, which a film holds for a while, is left out, and so are its words, which would be too small to read."""
    import av

    with av.open(io.BytesIO(clip.mp4)) as file:
        frames = [frame.to_ndarray(format="rgb24")[:-CAPTION_HEIGHT] for frame in file.decode(video=0)][:-HOLD]
    chosen = np.linspace(0, len(frames) - 1, count).round().astype(int)
    return panels([(f"step {i * every}", frames[i]) for i in chosen], columns, width)


def panels(pictures: list[tuple[str, np.ndarray]], columns: int, width: int) -> Svg:
    """Pictures (H, W, 3) of one size in rows, each framed and with words below it."""
    height, gap = round(width * pictures[0][1].shape[0] / pictures[0][1].shape[1]), 8
    body = []
    for i, (words, picture) in enumerate(pictures):
        left, top = gap + i % columns * (width + gap), gap + i // columns * (height + 3 * gap)
        small = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        body.append(image(small, left, top) + text(left + 2, top + height + 15, words))
    rows = -(-len(pictures) // columns)
    size = gap + columns * (width + gap), gap + rows * (height + 3 * gap)
    return Svg("".join(body), *size, f"moments: {', '.join(words for words, _ in pictures)}")


def image(pixels: np.ndarray, left: float, top: float) -> str:
    """Pixels (H, W, 3) in a drawing, with a frame around them: they may be as pale as the paper."""
    height, width, _ = pixels.shape
    place = f'x="{left}" y="{top}" width="{width}" height="{height}"'
    source = base64.b64encode(Png(pixels)._repr_png_()).decode()
    return f'<image {place} href="data:image/png;base64,{source}"/><rect {place} fill="none" stroke="{FAINT}"/>'


def film(frames, fps: int = 25) -> Clip:
    """Frames (H, W, 3) as a film that a notebook plays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "film.mp4")
        with Video(path, fps) as video:
            for frame in frames:
                video.add(frame)
        return Clip(path.read_bytes(), video.frames)
