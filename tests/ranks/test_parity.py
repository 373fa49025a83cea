"""Two ranks with half of the data each compute what one computes from all of it."""

from __future__ import annotations

from typing import Any

import pytest

from .launcher import results


@pytest.fixture(scope="module")
def both() -> list[dict[str, Any]]:
    return results("parity_worker.py")


def test_statistics_gradients_and_whole_phases_are_those_of_one_rank(both: list[dict[str, Any]]) -> None:
    names = {"ppo discrete gradient", "vpg box gradient", "normalizer", "standardized", "ppo phase 0.0001"}
    for row in both:
        assert names <= row["found"].keys()
        assert max(row["found"].values()) < 1e-5, row["found"]


def test_there_was_something_to_compare(both: list[dict[str, Any]]) -> None:
    for row in both:
        assert min(row["moved"].values()) > 1e-3, row["moved"]
