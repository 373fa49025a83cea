"""Which run of a tracker belongs to a run."""

import json
from pathlib import Path

import pytest

from tightrope.logging.trackers.identity import known, remember


def test_ids_are_kept_by_tracker(tmp_path: Path) -> None:
    remember(tmp_path, "mlflow", "abc123")
    remember(tmp_path, "wandb", "x-1_y")
    remember(tmp_path, "mlflow", "def456")
    assert known(tmp_path) == {"mlflow": "def456", "wandb": "x-1_y"}
    assert [p.name for p in tmp_path.iterdir()] == ["trackers.json"]


def test_without_a_directory_nothing_is_kept() -> None:
    remember(None, "mlflow", "abc")
    assert known(None) == {}


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"wandb": 3}', '{"wandb": "../../etc"}', "[" * 100_000, "\x00"])
def test_a_file_of_somebody_else_s_knows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "trackers.json").write_text(content)
    assert known(tmp_path) == {}
    remember(tmp_path, "wandb", "abc")
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "abc"}
