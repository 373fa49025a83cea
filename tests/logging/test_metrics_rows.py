"""metrics.jsonl as others read it."""

import json
import os
from pathlib import Path

import pytest

from tightrope.files import Place
from tightrope.logging import MetricsFile


def test_a_row_is_a_line_of_json_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(Place.of(path))
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
        file = MetricsFile(Place(tmp_path) / "metrics.jsonl")
        file.write({"step": step})
        file.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    file = MetricsFile(Place(tmp_path) / "metrics.jsonl")
    row = {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 0.5, "e": "text", "f": 3}
    file.write(row)
    file.close()
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"a": null, "b": null, "c": null, "d": 0.5, "e": "text", "f": 3}\n'
    assert row["b"] == float("inf"), "the caller's row was changed"


ROWS = [b'{"step": %d, "phase": %d}\n' % (10 * i, i) for i in range(1, 6)]  # of one length


@pytest.mark.parametrize("lost", [1, 5, len(ROWS[0]), len(ROWS[0]) + 3, len(b"".join(ROWS))])
def test_a_file_that_is_too_short_is_cut_to_whole_rows_and_said_to_be(lost: int, tmp_path: Path) -> None:
    whole = b"".join(ROWS)
    (tmp_path / "metrics.jsonl").write_bytes(whole[: len(whole) - lost])
    said: list[str] = []
    file = MetricsFile(Place(tmp_path) / "metrics.jsonl", len(whole), said.append)
    file.write({"step": 48, "phase": 6})
    file.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    left = (len(whole) - lost) // len(ROWS[0])
    assert [row["phase"] for row in rows] == [*range(1, left + 1), 6]
    assert len(said) == 1
    assert (f"the last one is of phase {left}" if left else "there is none") in said[0]


def test_what_is_cut_in_the_middle_of_a_row_is_cut_to_its_beginning(tmp_path: Path) -> None:
    """Somebody has changed the file: the checkpoint's size is in the middle of a row."""
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(ROWS))
    said: list[str] = []
    MetricsFile(Place(tmp_path) / "metrics.jsonl", 3 * len(ROWS[0]) + 4, said.append).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(ROWS[:3])
    assert "the last one is of phase 3" in said[0]


def test_a_file_that_is_long_enough_is_cut_in_silence(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(ROWS) + b'{"half')
    said: list[str] = []
    MetricsFile(Place(tmp_path) / "metrics.jsonl", 3 * len(ROWS[0]), said.append).close()
    MetricsFile(Place(tmp_path) / "metrics.jsonl", None, said.append).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(ROWS[:3])
    assert said == []


def test_half_a_row_at_the_end_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(ROWS[0] + b'{"step": 16, "ph')
    file = MetricsFile(Place(tmp_path) / "metrics.jsonl")
    file.write({"step": 16})
    file.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == ROWS[0] + b'{"step": 16}\n'


def test_a_snapshot_made_of_hard_links_keeps_its_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(ROWS))
    os.link(tmp_path / "metrics.jsonl", tmp_path / "snapshot")
    file = MetricsFile(Place(tmp_path) / "metrics.jsonl", 2 * len(ROWS[0]))
    file.write({"step": 0})
    file.close()
    assert (tmp_path / "snapshot").read_bytes() == b"".join(ROWS)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(ROWS[:2]) + b'{"step": 0}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "snapshot"]
