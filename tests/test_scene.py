"""Scenes: shapes with a number per environment become the same pictures as on a canvas, and keep their numbers in order."""

import math

import numpy as np
import pytest
import torch

from tightrope.draw import ACCENT, BACKGROUND, INK, WARM, Canvas
from tightrope.scene import Curve, Disc, Line, Polygon, Rectangle, Scene, Shape, columns, coordinates, raster

X, Y = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.5, -0.5, 1.0])


def picture(*shapes: Shape) -> Scene:
    return Scene(60, 40, span=6.0, shapes=shapes, center=(0.2, 0.1))


def canvas() -> Canvas:
    return Canvas(60, 40, 6.0, (0.2, 0.1))


def test_every_shape_is_drawn_as_on_a_canvas() -> None:
    scene = picture(
        Line((-2.0, -1.0), (2.0, -1.0), 0.1, color=INK),
        Line((0.0, 0.0), (X, Y), 0.3, color=WARM),
        Disc((X, Y), 0.4, color=ACCENT),
        Rectangle((X, 0.0), 0.5, 0.3, color=INK),
        Polygon([(X, 1.0), (X + 0.5, 1.0), (X, 1.5)], color=WARM),
        Curve([(X, -1.0), (Y, 0.0), (1.0, Y)], 0.2, color=INK),
    )
    frames = raster(scene, 3)
    for frame, x, y in zip(frames, X.tolist(), Y.tolist(), strict=True):
        c = canvas()
        c.line((-2, -1), (2, -1), INK, 0.1)
        c.line((0, 0), (x, y), WARM, 0.3)
        c.disc((x, y), 0.4, ACCENT)
        c.box((x, 0), 0.5, 0.3, INK)
        c.polygon([(x, 1), (x + 0.5, 1), (x, 1.5)], WARM)
        c.path([(x, -1), (y, 0), (1, y)], INK, 0.2)
        assert np.array_equal(frame, c.frame)


def test_a_shape_is_shown_only_where_it_should_be() -> None:
    frames = raster(
        picture(Disc((X, 0.0), 0.4, color=INK, shown=X > -0.5), Disc((0.0, Y), 0.1, color=INK, shown=False)), 3
    )
    assert [(frame != BACKGROUND).any() for frame in frames] == [False, True, True]


def test_numbers_are_columns_one_for_each_tensor() -> None:
    scene = picture(Disc((X, Y), 0.4, color=INK, shown=X > 0), Line((X, 0.0), (0.0, Y), 0.1, color=INK))
    numbers = coordinates(scene, 3)
    column = columns(scene)
    assert numbers.shape == (3, len(column)) == (3, 3)
    assert torch.equal(numbers[:, column[id(X)]], X)
    assert torch.equal(numbers[:, column[id(Y)]], Y)
    assert coordinates(picture(Disc((0.0, 0.0), 1.0, color=INK)), 4).shape == (4, 0)


@pytest.mark.parametrize("far", [math.nan, math.inf, -1e30])
def test_numbers_that_are_nowhere(far: float) -> None:
    x = torch.tensor([far])
    assert raster(picture(Disc((x, 0.0), 0.4, color=INK), Line((x, 0.0), (0.0, x), 0.1, color=INK)), 1).shape == (
        1,
        40,
        60,
        3,
    )


@pytest.mark.parametrize("radius", [1.5, 2.3, 4.0, 9.5])
def test_small_discs_are_round(radius: float) -> None:
    """As far across in every direction, and as large as a circle."""
    c = Canvas(40, 40, 40.0)
    c.disc((0.3, -0.2), radius, (0, 0, 0))
    share = (BACKGROUND[0] - c.frame[..., 0].astype(float)) / BACKGROUND[0]
    rows, columns_ = np.indices(share.shape)
    x, y = columns_ - 19.5 - 0.3, rows - 19.5 - 0.2
    assert share.sum() == pytest.approx(math.pi * radius**2, rel=0.05)
    spread = [
        (share * (x * math.cos(a) + y * math.sin(a)) ** 2).sum() / share.sum() for a in np.linspace(0, math.pi, 7)
    ]
    assert max(spread) / min(spread) < 1.08
