"""Several environments in one picture: a cell for each, thin lines between them, words below."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...draw import INK, PINK, blank, tint, width_of, write

EDGE = (226, 227, 224)
STRIP = 24  # pixels of the line of words
WORDS, MARGIN = 12, 6  # their size, and what is left around them


def columns_for(count: int) -> int:
    """Of a grid that is about as wide as it is high."""
    return math.ceil(math.sqrt(count))


def enlargement(count: int) -> int:
    """How many times larger each of a few pictures may be than one of sixteen."""
    return max(1, 4 // columns_for(count))


def together(cells: Sequence[np.ndarray] | np.ndarray, pink: Sequence[float], left: str, right: str = "") -> np.ndarray:
    """Cells (K, H, W, 3) in a grid, each as pink as it is told (0 to 1), over a line of words."""
    height, width, _ = cells[0].shape
    columns = columns_for(len(cells))
    rows = -(-len(cells) // columns)
    picture = blank(rows * height + STRIP, columns * width)
    for i, (cell, strength) in enumerate(zip(cells, pink, strict=True)):
        row, column = divmod(i, columns)
        place = picture[row * height : (row + 1) * height, column * width : (column + 1) * width]
        place[:] = cell
        if strength > 0:
            tint(place, PINK, strength)
    for row in range(1, rows + 1):
        picture[row * height - 1] = EDGE
    for column in range(1, columns):
        picture[: rows * height, column * width - 1] = EDGE
    caption(picture, left, right)
    return picture


def caption(picture: np.ndarray, left: str, right: str = "") -> None:
    """Words in the lowest pixels of a picture, of which the right ones give way where it is too narrow for both."""
    height, width, _ = picture.shape
    size = fitting(left, width - 2 * MARGIN)
    write(picture, left, (MARGIN, height - MARGIN - 2), INK, size)
    start = width - MARGIN - width_of(right, size)
    if right and MARGIN + width_of(left, size) + 20 < start:
        write(picture, right, (start, height - MARGIN - 2), INK, size)


def fitting(words: str, width: int) -> int:
    """The size at which words are no wider than that."""
    return next((size for size in range(WORDS, 6, -1) if width_of(words, size) <= width), 6)
