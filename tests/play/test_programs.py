"""Programs of torch functions do what the functions do, and what cannot be recorded is named."""

import json
from typing import Any

import pytest
import torch
from play_cases import CASES, REFUSED, ROW

from tightrope.play.agreement import Replay
from tightrope.play.emitted import record
from tightrope.play.program import Attribute, Constant, expression_value
from tightrope.recording import Unrecordable


@pytest.mark.parametrize("name", CASES)
def test_a_program_does_what_its_function_does(name: str) -> None:
    function, other = CASES[name], ROW.flip(-1) * 1.7
    program = record(lambda x: {"out": function(x)}, {"x": ROW.clone()})
    replay = Replay(program)
    for row in (ROW, other, ROW):  # nothing is left over from an earlier run
        wanted, got = function(row.clone()), replay({"x": row})["out"]
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-6, equal_nan=True)
    json.dumps(program.as_json(), allow_nan=False)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_named(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(Unrecordable, match=words):
        record(lambda x: {"out": function(x)}, {"x": ROW.clone()})


def test_what_no_output_needs_is_left_out() -> None:
    def function(x: torch.Tensor) -> dict[str, torch.Tensor]:
        x.sin().cos()
        return {"out": x + 1}

    program = record(function, {"x": ROW.clone()})
    assert [each.kernel for each in program.operations] == ["add"]


def test_numbers_are_rounded_to_the_type_that_torch_computes_in() -> None:
    boundary = torch.tensor([[2.4]])  # above 2.4 in double precision, equal to it in float32
    program = record(lambda x: {"out": x > 2.4}, {"x": boundary.clone()})
    assert not Replay(program)({"x": boundary})["out"].item()
    assert not (boundary > 2.4).item()


def test_attributes_are_followed_through_arithmetic() -> None:
    table: dict[float, Any] = {}
    a, b = Attribute(3.0001, "a", table), Attribute(0.5002, "b", table)
    program = record(lambda x: {"out": x * (2 * a - b) / (a**2 + 1) + -b}, {"x": ROW.clone()}, table)
    assert program.attributes == {"a", "b"}
    found = [x for each in program.operations for x in each.arguments if isinstance(x, Constant)]
    values = {"a": 5.0, "b": -2.0}
    assert sorted(expression_value(x.expression, values) for x in found) == [2.0, 12.0, 26.0]
    got = Replay(program)({"x": ROW}, values)["out"]
    torch.testing.assert_close(got, ROW * 12.0 / 26.0 + 2.0)
