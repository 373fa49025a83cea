"""metrics.jsonl as others read it."""

import json
import os
from pathlib import Path

import pytest

from tightrope.files import Place
from tightrope.logging import MetricsFile


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


def test_rows_are_appended_to_what_is_there(path: Path) -> None:
    append(path, {"step": 1})
    append(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


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
