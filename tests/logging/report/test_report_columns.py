"""Rows of metrics as columns, whatever the rows hold."""

import math
import tracemalloc
from pathlib import Path

import numpy as np

from tightrope.files import Place
from tightrope.logging.metrics import MAX_LINE, MAX_TAGS, Columns, read_rows


def test_a_column_is_as_long_as_there_are_rows() -> None:
    columns = Columns([{"step": 1}, {"step": 2, "a": 0.5}, {"step": 3}])
    np.testing.assert_array_equal(columns["a"], [math.nan, 0.5, math.nan])
    np.testing.assert_array_equal(columns["never"], [math.nan] * 3)
    assert "a" in columns
    assert "never" not in columns


def test_a_curve_has_the_rows_that_have_both_numbers() -> None:
    columns = Columns(
        [{"step": 1, "a": None}, {"step": 2, "a": 5}, {"a": 6}, {"step": 4, "a": "7"}, {"step": 5, "a": 8.0}]
    )
    step, value = columns.curve("a")
    assert step.tolist() == [2, 5]
    assert value.tolist() == [5, 8]
    assert columns.last("a") == 8
    assert columns.last("never") is None


def test_what_is_no_number_is_none() -> None:
    row = {"step": 1, "a": [1], "b": {}, "c": 10**400, "d": math.inf, "e": True}
    columns = Columns([row])
    assert [tag in columns for tag in "abcde"] == [False, False, False, False, True]


def test_rows_are_read_past_what_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n[1, 2]\nnonsense\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 2}\n{"step": 3, "a"')
    assert list(read_rows(Place.of(path))) == [{"step": 1}, {"step": 2}]
    assert list(read_rows(Place(tmp_path) / "none")) == []


def test_memory_follows_the_numbers_and_not_the_tags_times_the_rows(tmp_path: Path) -> None:
    """One new tag a row: a dense column for each would be 200 MB."""
    tracemalloc.start()
    columns = Columns({f"tag/{i}": 1.0} for i in range(5_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert columns.count == 5_000
    assert columns["tag/4999"][4999] == 1.0
    assert np.isnan(columns["tag/4999"][:4999]).all()
    assert peak < 10e6


def test_there_is_a_limit_to_tags() -> None:
    columns = Columns([{"step": 1}, {f"tag/{i}": 1.0 for i in range(2 * MAX_TAGS)}, {"step": 2}])
    assert len(columns.tags) == MAX_TAGS
    assert columns.last("step") == 2


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n"' + b"x" * (3 * MAX_LINE) + b'"\n{"step": 2}\n')
    assert list(read_rows(Place.of(path))) == [{"step": 1}, {"step": 2}]
