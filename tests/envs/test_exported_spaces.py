"""What a graph does to observations and actions is what is done to arrays, and the way back ends where it began."""

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from test_spaces import ACTIONS, INF, NESTED, PLAIN, members, pixels

from tightrope.envs import CartPole
from tightrope.envs.adapters.space_members import stacked
from tightrope.envs.adapters.spaces import action_writer, observation_reader
from tightrope.envs.adapters.spaces_only import described, reader_of, space_of, writer_of
from tightrope.types import Box, Composite, Discrete, MultiDiscrete

OBSERVATIONS: dict[str, gs.Space] = {
    **{name: space for name, (space, *_) in PLAIN.items()},
    "uint16": gs.Box(0, 1000, (4,), np.uint16),
    "dict of one": gs.Dict({"only": gs.Box(-1, 1, (2, 2), np.float64)}),
    "nested": NESTED,
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_are_read_as_arrays_are_and_shown_again(name: str) -> None:
    space = OBSERVATIONS[name]
    reader = observation_reader(space)
    rows = torch.from_numpy(reader.rows(stacked(space, members(space, 6, seed=3))))
    shown = reader.show(rows.numpy())
    again = reader.traced([torch.from_numpy(piece) for piece in shown])
    assert again.dtype == rows.dtype
    assert torch.equal(again, rows)
    assert np.array_equal(reader.rows(reader.nested(shown)), rows)
    for part, piece in zip(reader.parts, shown, strict=True):
        assert piece.dtype == part.space.dtype
        assert all(part.space.contains(np.asarray(one, piece.dtype)) for one in piece)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_are_written_as_arrays_are(name: str) -> None:
    writer = action_writer(ACTIONS[name][0])
    spec = writer.spec
    if isinstance(spec, Box):
        action = torch.randn(6, *spec.shape) * 3
    else:
        action = torch.stack([torch.randint(n, (6,)) for n in np.atleast_1d(spec.n)], 1).reshape(6, *spec.shape)
    want, got = writer.batch(action.numpy()), writer.traced(action).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_what_a_tensor_environment_shows_and_takes_is_not_changed() -> None:
    env = CartPole(3)
    obs, action = env.reset(seed=0), torch.tensor([0, 1, 1])
    assert torch.equal(reader_of(env).traced([obs]), obs)
    assert np.array_equal(reader_of(env).show(obs.numpy()), [obs])
    assert torch.equal(writer_of(env).traced(action), action)


def test_names_are_those_of_the_policys_spec() -> None:
    reader = observation_reader(NESTED)
    assert [part.name for part in reader.parts] == [name for name, _ in reader.spec.parts]
    assert [part.name for part in observation_reader(OBSERVATIONS["vector"]).parts] == ["obs"]
    assert [part.name for part in observation_reader(OBSERVATIONS["dict of one"]).parts] == ["only"]


def test_our_own_specs_have_gymnasiums_names() -> None:
    assert space_of(Discrete(3)) == gs.Discrete(3)
    assert space_of(MultiDiscrete((2, 3))) == gs.MultiDiscrete([2, 3])
    assert space_of(Box((2, 1), (-1.0, -2.0), 4.0)) == gs.Box(np.array([[-1], [-2]], np.float32), np.float32(4), (2, 1))
    assert space_of(Box((3, 40, 40), 0, 255, torch.uint8)) == pixels(3, 40, 40)
    assert space_of(Composite((("a", Discrete(2)), ("b", Box((2, 2)))))) == gs.Box(-INF, INF, (5,))


def test_a_space_in_words_has_nothing_that_json_lacks() -> None:
    assert described(gs.Box(np.array([-1, -INF]), np.array([1, INF]), dtype=np.float64)) == {
        "space": "Box", "shape": [2], "dtype": "float64", "low": [-1.0, None], "high": [1.0, None],
    }  # fmt: skip
    assert described(gs.Box(-INF, 1, (2,)))["low"] is None
    assert described(gs.Discrete(3, start=-1)) == {
        "space": "Discrete", "shape": [], "dtype": "int64", "n": 3, "start": -1,
    }  # fmt: skip
    assert described(gs.MultiBinary(2)) == {"space": "MultiBinary", "shape": [2], "dtype": "int8"}


def test_numbers_outside_an_engines_bounds_are_shown_as_they_are() -> None:
    rows = np.array([[-3.0, 5.0]], np.float32)
    (shown,) = observation_reader(gs.Box(0, 1, (2,), np.float64)).show(rows)
    np.testing.assert_array_equal(shown, rows)
