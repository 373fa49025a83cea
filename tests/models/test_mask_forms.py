"""Forms of action masks that are easily taken for another."""

import numpy as np
import pytest

from tightrope.errors import UsageError
from tightrope.models.action_mask import mask_rows, plain_mask
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


CHOICES, BITS = MultiDiscrete((2, 3)), [0, 1, 1, 0, 1]
USUAL = [
    BITS,
    tuple(BITS),
    [True, *BITS[1:]],
    *(np.array(BITS, kind) for kind in "?bBhilLefd"),
    np.repeat(BITS, 2)[::2],
]
OTHERS = [
    [BITS], np.array([BITS]), ([0, 1], [1, 0, 1]), (np.array([0, 1]), np.array([1, 0, 1])), [0.0, 1.0, 1.0, 0.0, 1.0],
    np.array(BITS, object), np.array([-0.0, 1, 1, 0, 1]),
]  # fmt: skip
REFUSED = [
    [0, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1], [2, 1, 1, 1, 1], [-1, 1, 1, 1, 1], [256, 1, 1, 1, 1], 5,
    np.array([0.5, 1, 1, 1, 1]), np.array([np.nan, 1, 1, 1, 1]), np.array([-1, 1, 1, 1, 1], np.int8), np.zeros(5, bool),
    "11111", np.full(5, 257), np.array(list("11111")), np.ones(5, complex), None,
]  # fmt: skip


@pytest.mark.parametrize("given", USUAL, ids=repr)
def test_a_mask_in_a_usual_form_is_read_as_any_other(given: object) -> None:
    found = plain_mask(given, CHOICES)
    assert found is not None
    assert found.dtype == np.int8
    assert found.tolist() == mask_rows(given, CHOICES)[0].tolist()
    assert not np.may_share_memory(found, np.asarray(given))


@pytest.mark.parametrize("given", OTHERS, ids=repr)
def test_a_mask_in_another_form_is_left_to_the_slower_way(given: object) -> None:
    assert plain_mask(given, CHOICES) is None
    assert mask_rows(given, CHOICES).tolist() == [BITS]


@pytest.mark.parametrize("given", REFUSED, ids=repr)
def test_a_wrong_mask_is_left_to_what_names_the_mistake(given: object) -> None:
    assert plain_mask(given, CHOICES) is None
    with pytest.raises(UsageError, match="mask"):
        mask_rows(given, CHOICES)
