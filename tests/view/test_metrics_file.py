"""metrics.jsonl as others read it."""

import json
from pathlib import Path

import pytest

from tightrope.view import MetricsFile


def test_a_row_is_a_line_of_json_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "metrics.jsonl"
    file = MetricsFile(path)
    for i in range(3):
        file.write({"step": i, "losses/value_loss": i / 3})
        lines = path.read_text().splitlines()
        assert json.loads(lines[-1]) == {"step": i, "losses/value_loss": i / 3}
        assert len(lines) == i + 1
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write({"step": 4})


def test_rows_are_appended_to_what_is_there(tmp_path: Path) -> None:
    for step in (1, 2):
        file = MetricsFile(tmp_path / "metrics.jsonl")
        file.write({"step": step})
        file.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    row = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.5, "e": "text", "f": 3}
    file.write(row)
    file.close()
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"a": null, "b": null, "c": null, "d": 0.5, "e": "text", "f": 3}\n'
    assert row["b"] == float("inf"), "the caller's row was changed"
