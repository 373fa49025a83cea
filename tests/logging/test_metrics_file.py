"""metrics.jsonl as it is written, as others read it, and its rows as columns."""

import json
import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tightrope.files import Place
from tightrope.logging.metrics import MAX_LINE, MAX_TAGS, Columns, MetricsFile, read_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, row: dict[str, object], size: int | None = None) -> list[str]:
    """Open the file, write a row and close it; returns what was said."""
    said: list[str] = []
    file = MetricsFile(Place.of(path), size, said.append)
    file.write(row)
    file.close()
    return said


def test_a_row_is_a_line_of_json_as_soon_as_it_is_written(path: Path) -> None:
    file = MetricsFile(Place.of(path))
    for i in range(3):
        file.write({"step": i, "losses/value_loss": i / 3})
        lines = path.read_text().splitlines()
        assert json.loads(lines[-1]) == {"step": i, "losses/value_loss": i / 3}
        assert len(lines) == i + 1
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write({"step": 4})


def test_numbers_that_are_not_finite_become_null(path: Path) -> None:
    row = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.5, "e": "text", "f": 3}
    append(path, row)
    assert path.read_text() == '{"a": null, "b": null, "c": null, "d": 0.5, "e": "text", "f": 3}\n'
    assert row["b"] == float("inf"), "the caller's row was changed"


ROWS = [b'{"step": %d, "phase": %d}\n' % (10 * i, i) for i in range(1, 6)]  # of one length
WHOLE, LENGTH = b"".join(ROWS), len(ROWS[0])
CUT = {  # content, the checkpoint's size, rows that are left, whether some are said to be missing
    "a byte is lost": (WHOLE[:-1], len(WHOLE), 4, True),
    "a row is lost": (WHOLE[:-LENGTH], len(WHOLE), 4, True),
    "more than a row is lost": (WHOLE[: -LENGTH - 3], len(WHOLE), 3, True),
    "all is lost": (b"", len(WHOLE), 0, True),
    "somebody has changed the file": (WHOLE, 3 * LENGTH + 4, 3, True),
    "rows after the checkpoint": (WHOLE + b'{"half', 3 * LENGTH, 3, False),
    "all is there": (WHOLE, None, 5, False),
    "half a row at the end": (ROWS[0] + b'{"step": 16, "ph', None, 1, False),
}


@pytest.mark.parametrize(("content", "size", "left", "missing"), CUT.values(), ids=CUT)
def test_a_file_is_cut_to_whole_rows_and_what_is_missing_is_said(
    content: bytes, size: int | None, left: int, missing: bool, path: Path
) -> None:
    path.write_bytes(content)
    said = append(path, {"step": 48, "phase": 6}, size)
    assert path.read_bytes() == b"".join(ROWS[:left]) + b'{"step": 48, "phase": 6}\n'
    assert ["the last rows before the checkpoint are missing" in line for line in said] == [True] * missing


def test_a_snapshot_made_of_hard_links_keeps_its_rows(path: Path) -> None:
    path.write_bytes(WHOLE)
    snapshot = path.with_name("snapshot")
    os.link(path, snapshot)
    append(path, {"step": 0}, 2 * LENGTH)
    assert snapshot.read_bytes() == WHOLE
    assert path.read_bytes() == b"".join(ROWS[:2]) + b'{"step": 0}\n'
    assert sorted(one.name for one in path.parent.iterdir()) == ["metrics.jsonl", "snapshot"]


# columns --------------------------------------------------------------------------------------------------------------


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
    columns = Columns([{"step": 1, "a": [1], "b": {}, "c": 10**400, "d": math.inf, "e": True}])
    assert [tag in columns for tag in "abcde"] == [False, False, False, False, True]


def test_rows_are_read_past_what_is_broken(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\n[1, 2]\nnonsense\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"step": 2}\n"')
    with path.open("ab") as file:
        file.write(b"x" * (3 * MAX_LINE) + b'"\n{"step": 3}\n{"step": 4, "a"')  # a line too long to be read at once
    assert list(read_rows(Place.of(path))) == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert list(read_rows(Place(path.parent) / "none")) == []


def test_memory_follows_the_numbers_and_not_the_tags_times_the_rows() -> None:
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
