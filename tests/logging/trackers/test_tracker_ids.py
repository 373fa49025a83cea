"""Which run of a tracker belongs to a run."""

import json
from pathlib import Path

import pytest

from tightrope.logging.trackers.tracker import save_id, saved_ids


def test_ids_are_kept_by_tracker(tmp_path: Path) -> None:
    save_id(tmp_path, "mlflow", "abc123")
    save_id(tmp_path, "wandb", "x-1_y")
    save_id(tmp_path, "mlflow", "def456")
    assert saved_ids(tmp_path) == {"mlflow": "def456", "wandb": "x-1_y"}
    assert [p.name for p in tmp_path.iterdir()] == ["trackers.json"]


def test_without_a_directory_nothing_is_kept() -> None:
    save_id(None, "mlflow", "abc")
    assert saved_ids(None) == {}


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"wandb": 3}', '{"wandb": "../../etc"}', "[" * 100_000, "\x00"])
def test_a_file_of_somebody_else_s_knows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "trackers.json").write_text(content)
    assert saved_ids(tmp_path) == {}
    save_id(tmp_path, "wandb", "abc")
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "abc"}
