"""Lines, discs, polygons and words land where they should, with soft edges; frames make grids."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tightrope.draw import (
    ACCENT,
    BACKGROUND,
    INK,
    WARM,
    Canvas,
    blank,
    grid,
    render_scale,
    shrink,
    stretched,
    text_width,
    tint,
    upscaled,
)

SIZE, SPAN = 100, 10.0  # 10 pixels to the unit


def canvas() -> Canvas:
    return Canvas(SIZE, SIZE, SPAN)


def pixel(c: Canvas, x: float, y: float) -> tuple[int, ...]:
    """The colour at a world point."""
    return tuple(c.frame[round(SIZE / 2 - y * 10), round(SIZE / 2 + x * 10)].tolist())


def inked(c: Canvas) -> np.ndarray:
    return (c.frame != BACKGROUND).any(-1)


def coverage(c: Canvas, color: tuple[int, ...]) -> np.ndarray:
    """How much of each pixel the colour fills, 0 to 1."""
    return (BACKGROUND[0] - c.frame[..., 0].astype(float)) / (BACKGROUND[0] - color[0])


def colours(c: Canvas) -> set[tuple[int, ...]]:
    return {tuple(colour) for colour in np.unique(c.frame.reshape(-1, 3), axis=0).tolist()}


def test_blank() -> None:
    c = Canvas(60, 40, SPAN)
    assert c.frame.shape == (40, 60, 3)
    assert c.frame.dtype == np.uint8
    assert colours(c) == {BACKGROUND}


Points = list[tuple[float, float]]
SHAPES: dict[str, tuple[Callable[[Canvas], None], Points, Points]] = {  # points inside, points outside
    "line": (
        lambda c: c.line((-3, 2), (3, 2), INK, 0.4),
        [(-2.9, 2), (0, 2), (2.9, 2)], [(-3.6, 2), (3.6, 2), (0, 2.5), (0, 1.5), (0, -2)],
    ),
    "disc": (lambda c: c.disc((1, -1), 2, INK), [(1, -1), (2.34, 0.34)], [(2.9, 0.9), (-1.2, -1), (1, 1.2)]),
    "polygon": (lambda c: c.polygon([(-3, -3), (3, -3), (-3, 3)], INK), [(-2, -2), (2, -2.9)], [(2, 2), (0.2, 0.2)]),
    "box": (lambda c: c.box((1, 1), 4, 2, INK), [(1, 1), (-0.8, 0.2), (2.8, 1.8)], [(-1.2, 1), (3.2, 1), (1, 2.2), (1, -0.2)]),
    "arc": (  # anticlockwise
        lambda c: c.arc((0, 0), 3, 0, math.pi / 2, INK, 0.3),
        [(3 * math.cos(a), 3 * math.sin(a)) for a in (0.1, 0.8, 1.5)], [(0, 0), (2, -2.2), (-2.2, 2), (-3, 0), (0, -3)],
    ),
    "path": (  # not closed
        lambda c: c.path([(-3, -3), (0, 3), (3, -3)], INK, 0.3), [(-1.5, 0), (1.5, 0), (0, 3)], [(0, -3), (0, 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("draw", "inside", "outside"), SHAPES.values(), ids=SHAPES)
def test_a_shape_is_where_it_should_be(draw: Callable[[Canvas], None], inside: Points, outside: Points) -> None:
    c = canvas()
    draw(c)
    assert [pixel(c, *point) for point in inside] == [INK] * len(inside)
    assert [pixel(c, *point) for point in outside] == [BACKGROUND] * len(outside)


def test_areas() -> None:
    c = canvas()
    c.disc((1, -1), 2, WARM)
    assert coverage(c, WARM).sum() == pytest.approx(math.pi * 20**2, rel=0.08)
    c = canvas()
    c.polygon([(-3, -3), (3, -3), (-3, 3)], ACCENT)
    assert coverage(c, ACCENT).sum() == pytest.approx(60 * 60 / 2, rel=0.08)


@pytest.mark.parametrize("pixels", [1, 2, 3, 5, 8])
def test_a_line_is_as_wide_as_asked(pixels: int) -> None:
    c = canvas()
    c.line((-3, 2), (3, 2), INK, pixels / 10)
    assert coverage(c, INK)[:, 50].sum() == pytest.approx(pixels, abs=1.0)


@pytest.mark.parametrize(("center", "row", "column"), [((0, 0), 20, 70), ((2, 3), 50, 50)])
def test_y_is_up_and_x_is_right(center: tuple[float, float], row: float, column: float) -> None:
    c = Canvas(SIZE, SIZE, SPAN, center)
    c.disc((2, 3), 0.5, ACCENT)
    rows, columns = np.nonzero(inked(c))
    assert (rows.mean(), columns.mean()) == pytest.approx((row, column), abs=0.6)


DRAWINGS = {
    "line": lambda c: c.line((-3, -2), (3, 1.3), INK, 0.3),
    "disc": lambda c: c.disc((0.33, 0.21), 2.2, INK),
    "polygon": lambda c: c.polygon([(-3, -2), (3, -1), (0, 3)], INK),
    "path": lambda c: c.path([(-3, -2), (3, -1), (0, 3)], INK, 0.3),
    "arc": lambda c: c.arc((0, 0), 3, 0, 2, INK, 0.2),
    "text": lambda c: c.text("Tightrope", (10, 50), INK, 14),
}
every_drawing = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS.keys())


@every_drawing
def test_edges_are_soft(draw) -> None:
    c = canvas()
    draw(c)
    between = {colour for colour in colours(c) if INK[0] < colour[0] < BACKGROUND[0]}
    assert len(between) > 3


def test_positions_are_finer_than_a_pixel() -> None:
    frames = []
    for shift in (0.0, 0.025, 0.05):
        c = canvas()
        c.disc((shift, 0), 1, INK)
        frames.append(c.frame)
    assert not np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[1], frames[2])


@pytest.mark.parametrize("far", [1e6, -1e30, math.inf, -math.inf, math.nan])
def test_far_away_and_nowhere(far: float) -> None:
    c = canvas()
    c.line((0, 0), (far, far), INK, 0.3)
    c.disc((far, 0), 1, INK)
    c.box((0, far), 1, 1, INK)
    c.path([(0, 0), (far, 1)], INK, 0.1)
    assert c.frame.shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("far", [1e6, -1e30, math.inf, -math.inf])
def test_what_is_far_away_is_not_seen(far: float) -> None:
    c = canvas()
    c.disc((far, 0), 1, INK)
    c.box((0, far), 1, 1, INK)
    assert not inked(c).any()


def test_a_line_to_far_away_keeps_its_direction() -> None:
    c = canvas()
    c.line((0, 0), (1e4, 0), INK, 0.5)
    assert pixel(c, 4.5, 0) == INK
    assert pixel(c, -1, 0) == BACKGROUND
    assert not inked(c)[:45].any()


def test_text() -> None:
    c = canvas()
    c.text("500", (20, 60), INK, 14)
    rows, columns = np.nonzero(inked(c))
    assert 18 <= columns.min() <= 24
    assert 57 <= rows.max() <= 62  # the baseline
    assert 8 <= rows.max() - rows.min() + 1 <= 18
    larger, other = canvas(), canvas()
    larger.text("500", (20, 60), INK, 28)
    other.text("300", (20, 60), INK, 14)
    assert inked(larger).sum() > inked(c).sum()
    assert not np.array_equal(other.frame, c.frame)


def numbered(count: int) -> np.ndarray:
    """Frames of 6 x 8 pixels, each of one grey."""
    return np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None] * 10, (count, 6, 8, 3))


@pytest.mark.parametrize(("count", "columns", "rows"), [(16, 4, 4), (5, 4, 2), (4, 2, 2)])
def test_a_grid_is_filled_row_by_row(count: int, columns: int, rows: int) -> None:
    picture = grid(numbered(count), columns)
    assert picture.shape == (6 * rows, 8 * columns, 3)
    assert picture.dtype == np.uint8
    for k in range(rows * columns):
        row, column = divmod(k, columns)
        cell = picture[6 * row : 6 * row + 6, 8 * column : 8 * column + 8]
        assert (cell == (10 * k if k < count else BACKGROUND)).all()


def test_pictures_at_a_larger_scale_are_the_same_and_sharper() -> None:
    def drawn() -> Canvas:
        c = Canvas(60, 40, SPAN, center=(1, 0))
        c.disc((1, 1), 1, ACCENT)
        c.text("7", (4, 36), INK, 12)
        return c

    small = drawn().frame
    with render_scale(3):
        large = drawn().frame
    assert large.shape == (120, 180, 3)
    assert Canvas(60, 40, SPAN).frame.shape == (40, 60, 3)  # only inside
    assert np.abs(shrink(large, 40).astype(int) - small).mean() < 4


def test_a_backdrop_is_painted_once_and_never_painted_over() -> None:
    painted = []

    def ground(c: Canvas) -> None:
        painted.append(c)
        c.line((-4, -2), (4, -2), INK, 1)

    first = Canvas(SIZE, SIZE, SPAN, backdrop=ground)
    first.disc((0, -2), 3, WARM)
    second = Canvas(SIZE, SIZE, SPAN, backdrop=ground)
    assert len(painted) == 1
    assert pixel(second, 0, -2) == INK
    assert pixel(second, 0, 0) == BACKGROUND


def test_tint_and_blank() -> None:
    frame = blank(10, 20)
    assert frame.shape == (10, 20, 3)
    tint(frame[:, :10], (0, 0, 0), 0.5)
    assert (frame[:, 10:] == BACKGROUND).all()
    assert np.abs(frame[0, 0].astype(int) - np.array(BACKGROUND) / 2).max() <= 1
    assert (blank(10, 20) == BACKGROUND).all()


def test_upscaled_pixels_stay_as_sharp_as_they_were() -> None:
    checks = np.indices((2, 4)).sum(0, dtype=np.uint8)[..., None].repeat(3, -1) % 2 * 255
    assert np.array_equal(upscaled(checks), checks)
    with render_scale(3):
        large = upscaled(checks)
    assert large.shape == (6, 12, 3)
    assert np.array_equal(large[1::3, 1::3], checks)
    assert np.array_equal(large[:3, :3], np.zeros((3, 3, 3)))


def test_grey_pixels_stay_apart_when_stretched() -> None:
    checks = (np.indices((84, 84)).sum(0) % 2 * 255).astype(np.uint8)
    picture = stretched(checks, 160)
    assert picture.shape == (160, 160, 3)
    assert np.ptp(picture) > 150
    assert text_width("phase 12", 12) > text_width("phase", 12) > text_width("phase", 8)
