"""Pictures as data: lines, discs and polygons whose coordinates are numbers or tensors with one value per environment.

One scene describes the pictures of N environments. `raster` draws them as frames for videos; the page of `tightrope play`
computes the same coordinates in a browser. x is to the right and y up, in units of the world.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from .draw import Canvas, Color, Point
from .types import Settings

__all__ = ["Curve", "Disc", "Line", "Polygon", "Rectangle", "Scene", "Shape"]

Number = float | Tensor  # a tensor has one value per environment, (N,)
At = tuple[Number, Number]
Points = Sequence[At]
ShapeKind = TypeVar("ShapeKind", bound="Shape")


@dataclass(frozen=True)
class Shape:
    """Something drawn in one colour, where `shown` (N,) is true."""

    color: Color = field(kw_only=True)
    shown: Tensor | bool = field(default=True, kw_only=True)

    def paint(self, canvas: Canvas) -> None:
        """Draw it, once its numbers are those of one environment."""
        raise NotImplementedError


@dataclass(frozen=True)
class Line(Shape):
    """A straight bar of that width with square ends."""

    start: At
    end: At
    width: Number

    def paint(self, canvas: Canvas) -> None:
        canvas.line(as_point(self.start), as_point(self.end), self.color, float(self.width))


@dataclass(frozen=True)
class Curve(Shape):
    """A smooth curve through many points."""

    points: Points
    width: Number

    def paint(self, canvas: Canvas) -> None:
        canvas.path([*map(as_point, self.points)], self.color, float(self.width))


@dataclass(frozen=True)
class Disc(Shape):
    center: At
    radius: Number

    def paint(self, canvas: Canvas) -> None:
        canvas.disc(as_point(self.center), float(self.radius), self.color)


@dataclass(frozen=True)
class Polygon(Shape):
    points: Points

    def paint(self, canvas: Canvas) -> None:
        canvas.polygon([*map(as_point, self.points)], self.color)


@dataclass(frozen=True)
class Rectangle(Shape):
    """A rectangle around its centre."""

    center: At
    width: Number
    height: Number

    def paint(self, canvas: Canvas) -> None:
        canvas.box(as_point(self.center), float(self.width), float(self.height), self.color)


@dataclass(frozen=True)
class Scene:
    """The pictures of N environments, `width` x `height` pixels in a video. `span` units of the world fill the width, and
    `center` is the point in the middle. Later shapes cover earlier ones."""

    width: int
    height: int
    span: float
    shapes: Sequence[Shape]
    center: Point = (0.0, 0.0)


def as_point(place: At) -> Point:
    return float(place[0]), float(place[1])


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


def filled(shape: ShapeKind, values: Iterator[float]) -> ShapeKind:
    """The shape with the next values in place of its tensors."""

    def fill(value: object) -> object:
        if isinstance(value, Tensor):
            return next(values)
        return tuple(map(fill, value)) if isinstance(value, (tuple, list)) else value

    values_of: Settings = {each.name: fill(getattr(shape, each.name)) for each in fields(shape)}
    return replace(shape, **values_of)


def coordinates(scene: Scene, rows: int) -> Tensor:
    """The tensors of a scene as columns (N, K), in the order of `tensors_in`."""
    found = [tensor for shape in scene.shapes for tensor in tensors_in(shape)]
    return torch.stack([x.float().expand(rows) for x in found], 1) if found else torch.zeros(rows, 0)


def raster(scene: Scene, rows: int) -> np.ndarray:
    """The frames (N, H, W, 3) of a scene. What never moves and lies below everything else is painted once."""
    moves = [next(tensors_in(shape), None) is not None for shape in scene.shapes]
    ground = moves.index(True) if True in moves else len(moves)
    backdrop = Ground(tuple(filled(shape, iter(())) for shape in scene.shapes[:ground]))
    frames = []
    for row in coordinates(scene, rows).tolist():
        canvas, values = Canvas(scene.width, scene.height, scene.span, scene.center, backdrop), iter(row)
        for shape in scene.shapes[ground:]:
            one = filled(shape, values)
            if one.shown:
                one.paint(canvas)
        frames.append(canvas.frame)
    return np.stack(frames)


@dataclass(frozen=True)
class Ground:
    """Shapes without tensors, as the backdrop of a canvas."""

    shapes: tuple[Shape, ...]

    def __call__(self, canvas: Canvas) -> None:
        for shape in self.shapes:
            if shape.shown:
                shape.paint(canvas)
