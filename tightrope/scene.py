"""Pictures as data: lines, discs and polygons whose coordinates are numbers or tensors with one value per environment.

One scene describes the pictures of N environments. `raster` draws them as frames for videos; the page of `tightrope play`
computes the same coordinates in a browser. x is to the right and y up, in units of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from .draw import Canvas, Color, Point

__all__ = ["Curve", "Disc", "Line", "Polygon", "Rectangle", "Scene", "Shape"]

Number = float | Tensor  # a tensor has one value per environment, (N,)
At = tuple[Number, Number]
Points = Sequence[At]
Value = Callable[[Number], float]


@dataclass(frozen=True)
class Shape:
    """Something drawn in one colour, where `shown` (N,) is true."""

    color: Color = field(kw_only=True)
    shown: Tensor | bool = field(default=True, kw_only=True)

    def paint(self, canvas: Canvas, value: Value) -> None:
        """Draw it for one environment, in which numbers have these values."""
        raise NotImplementedError


@dataclass(frozen=True)
class Line(Shape):
    """A straight bar of that width with square ends."""

    start: At
    end: At
    width: Number

    def paint(self, canvas: Canvas, value: Value) -> None:
        (a, b), (c, d) = self.start, self.end
        canvas.line((value(a), value(b)), (value(c), value(d)), self.color, value(self.width))


@dataclass(frozen=True)
class Curve(Shape):
    """A smooth curve through many points."""

    points: Points
    width: Number

    def paint(self, canvas: Canvas, value: Value) -> None:
        canvas.path([(value(x), value(y)) for x, y in self.points], self.color, value(self.width))


@dataclass(frozen=True)
class Disc(Shape):
    center: At
    radius: Number

    def paint(self, canvas: Canvas, value: Value) -> None:
        x, y = self.center
        canvas.disc((value(x), value(y)), value(self.radius), self.color)


@dataclass(frozen=True)
class Polygon(Shape):
    points: Points

    def paint(self, canvas: Canvas, value: Value) -> None:
        canvas.polygon([(value(x), value(y)) for x, y in self.points], self.color)


@dataclass(frozen=True)
class Rectangle(Shape):
    """A rectangle around its centre."""

    center: At
    width: Number
    height: Number

    def paint(self, canvas: Canvas, value: Value) -> None:
        x, y = self.center
        canvas.box((value(x), value(y)), value(self.width), value(self.height), self.color)


@dataclass(frozen=True)
class Scene:
    """The pictures of N environments, `width` x `height` pixels in a video. `span` units of the world fill the width, and
    `center` is the point in the middle. Later shapes cover earlier ones."""

    width: int
    height: int
    span: float
    shapes: Sequence[Shape]
    center: Point = (0.0, 0.0)


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a shape, or of anything in it, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Shape):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))


def columns(scene: Scene) -> dict[int, int]:
    """The column of each tensor of a scene, by its id."""
    found: dict[int, int] = {}
    for tensor in tensors_in(scene.shapes):
        found.setdefault(id(tensor), len(found))
    return found


def coordinates(scene: Scene, rows: int) -> Tensor:
    """The tensors of a scene as columns (N, K)."""
    found = {id(tensor): tensor for tensor in tensors_in(scene.shapes)}
    if not found:
        return torch.zeros(rows, 0)
    return torch.stack([x.float().expand(rows) for x in found.values()], 1)


def raster(scene: Scene, rows: int) -> np.ndarray:
    """The frames (N, H, W, 3) of a scene. What never moves and lies below everything else is painted once."""
    moves = [next(tensors_in(shape), None) is not None for shape in scene.shapes]
    ground = moves.index(True) if True in moves else len(moves)
    backdrop, column = Ground(as_hashable(scene.shapes[:ground])), columns(scene)
    frames = []
    for row in coordinates(scene, rows).tolist():
        canvas = Canvas(scene.width, scene.height, scene.span, scene.center, backdrop)

        def value(number: Number, row: list[float] = row) -> float:
            return (
                number if type(number) is float else row[column[id(number)]] if isinstance(number, Tensor) else number
            )

        for shape in scene.shapes[ground:]:
            if value(shape.shown):
                shape.paint(canvas, value)
        frames.append(canvas.frame)
    return np.stack(frames)


@dataclass(frozen=True)
class Ground:
    """Shapes without tensors, as the backdrop of a canvas."""

    shapes: tuple[Shape, ...]

    def __call__(self, canvas: Canvas) -> None:
        for shape in self.shapes:
            if shape.shown:
                shape.paint(canvas, float)


def as_hashable(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes with their points in tuples."""
    return tuple(replace(x, points=tuple(x.points)) if isinstance(x, (Curve, Polygon)) else x for x in shapes)
