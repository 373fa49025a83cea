"""The metrics of a run as one column per tag. Rows may lack tags and hold null; columns are as long as there are rows."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ...files import CHUNK, Place

Row = dict[str, Any]
MOST_BYTES = 1 << 30  # of a file of rows: over a million phases
MOST_LINE = CHUNK  # bytes of one row
MOST_TAGS = 10_000
LARGEST = 1e100  # what is beyond it, no metric is; its square is still a number


class Columns:
    """Sixteen bytes a number, so that a run of a hundred thousand phases can be kept while it goes on."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.count = 0
        self.numbers: dict[str, tuple[array[int], array[float]]] = {}  # rows that have a number, and which
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        for tag, value in row.items():
            if tag not in self.numbers and len(self.numbers) >= MOST_TAGS:
                continue
            rows, values = self.numbers.setdefault(tag, (array("q"), array("d")))
            rows.append(self.count)
            values.append(number(value))
        self.count += 1

    def __getitem__(self, tag: str) -> np.ndarray:
        """NaN in the rows that have no such number."""
        column = np.full(self.count, math.nan)
        if tag in self.numbers:
            rows, values = self.numbers[tag]
            column[np.frombuffer(rows, np.int64)] = np.frombuffer(values)
        return column

    def __contains__(self, tag: str) -> bool:
        return tag in self.numbers and bool(np.isfinite(np.frombuffer(self.numbers[tag][1])).any())

    @property
    def tags(self) -> list[str]:
        return list(self.numbers)

    def curve(self, tag: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of the rows that have both."""
        step, value = self["step"], self[tag]
        there = np.isfinite(step) & np.isfinite(value)
        return step[there], value[there]

    def last(self, tag: str) -> float | None:
        """The newest number there is."""
        values = self[tag]
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else None


def number(value: Any) -> float:
    """NaN for whatever is none, or is beyond all that a run could have measured."""
    return float(value) if isinstance(value, (int, float)) and -LARGEST < value < LARGEST else math.nan


def read_rows(place: Place, most: int = MOST_BYTES) -> Iterator[Row]:
    """The whole rows of a metrics file; one that is being written, or is no row, is passed over. `Unreadable` if it is not a
    regular file of a reasonable size; a file that is not there has no rows."""
    if not place.exists():
        return
    with place.open(most) as file:
        while line := file.readline(MOST_LINE):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield row
