"""Forms of action masks that are easily taken for another."""

import numpy as np
import pytest

from tightrope.errors import UsageError
from tightrope.models.action_mask import mask_rows
from tightrope.types import Box, Composite, Discrete, MultiDiscrete

ARM = Composite((("kind", Discrete(3)), ("arm/grip", Discrete(2)), ("arm/force", Box((1,)))))


def test_as_many_rows_as_choices_are_rows() -> None:
    rows = mask_rows([[1, 1, 1, 1], [1, 0, 1, 0]], MultiDiscrete((2, 2)), 2)
    assert rows.tolist() == [[1, 1, 1, 1], [1, 0, 1, 0]]
    parts = mask_rows(([1, 0], [0, 1]), MultiDiscrete((2, 2)))
    assert parts.tolist() == [[1, 0, 0, 1]]


def test_none_allows_everything_inside() -> None:
    assert mask_rows({"kind": [0, 1, 0], "arm": None}, ARM).tolist() == [[0, 1, 0, 1, 1]]
    assert mask_rows({"kind": None, "arm": {"grip": np.array([0, 1])}}, ARM).tolist() == [[1, 1, 1, 0, 1]]
    with pytest.raises(UsageError, match="mask has a part 'leg': the choices are kind, arm/grip"):
        mask_rows({"kind": [0, 1, 0], "leg": None}, ARM)
