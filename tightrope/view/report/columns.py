"""The metrics of a run as one array per tag. Rows may lack tags and hold null; columns are as long as there are rows."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]


class Columns:
    """Eight bytes a number, so that a run of a hundred thousand phases can be kept while it goes on."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.count = 0
        self.numbers: dict[str, array[float]] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        for tag, value in row.items():
            column = self.numbers.setdefault(tag, array("d"))
            column.extend([math.nan] * (self.count - len(column)))
            column.append(number(value))
        self.count += 1

    def __getitem__(self, tag: str) -> np.ndarray:
        """NaN in the rows that have no such number."""
        column = np.full(self.count, math.nan)
        found = self.numbers.get(tag, ())
        column[: len(found)] = found
        return column

    def __contains__(self, tag: str) -> bool:
        return bool(np.isfinite(self[tag]).any())

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
    """NaN for whatever is none."""
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.nan
    return math.nan


def read_rows(path: Path) -> Iterator[Row]:
    """The whole rows of a metrics file; one that is being written, or is no row, is passed over."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except FileNotFoundError:
        return
