"""Rows of metrics as columns, whatever the rows hold."""

import math
from pathlib import Path

import numpy as np

from tightrope.view.report.columns import Columns, read_rows


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
    assert list(read_rows(path)) == [{"step": 1}, {"step": 2}]
    assert list(read_rows(tmp_path / "none")) == []
