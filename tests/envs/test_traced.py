"""What a graph does to observations and actions is what spaces.py does to them, and the way back ends where it began."""

from typing import Any

import gymnasium as gym
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch

from tightrope.envs.adapters.gym import from_object
from tightrope.envs.adapters.space_members import stacked
from tightrope.envs.adapters.spaces_only import described, space_of, writer_of
from tightrope.types import Box, Composite, Discrete, MultiDiscrete

INF = float("inf")


def pixels(*shape: int) -> gs.Box:
    return gs.Box(0, 255, shape, np.uint8)


OBSERVATIONS: dict[str, gs.Space] = {
    "scalar": gs.Box(-1, 1, ()),
    "vector": gs.Box(-INF, INF, (3,)),
    "matrix": gs.Box(-2, 2, (2, 3)),
    "float64": gs.Box(-1e3, 1e3, (3,), np.float64),
    "float16": gs.Box(-1, 1, (3,), np.float16),
    "int32": gs.Box(-1000, 1000, (4,), np.int32),
    "uint16": gs.Box(0, 1000, (4,), np.uint16),
    "bool": gs.Box(0, 1, (5,), bool),
    "bytes that are no pixels": gs.Box(0, 100, (40, 40), np.uint8),
    "bytes in a row": pixels(7),
    "small picture": pixels(35, 80, 3),
    "grey": pixels(36, 40),
    "colour last": pixels(40, 37, 3),
    "grey last": pixels(40, 37, 1),
    "colour first": pixels(3, 40, 37),
    "stack of frames": pixels(4, 36, 36),
    "stack of colour frames": pixels(4, 36, 37, 3),
    "stack of frames, colour first": pixels(2, 3, 36, 37),
    "stack of float frames": gs.Box(0, 1, (2, 40, 37, 3)),
    "discrete": gs.Discrete(4),
    "discrete from -2": gs.Discrete(4, start=-2, dtype=np.int32),
    "multidiscrete": gs.MultiDiscrete([2, 5, 3]),
    "multidiscrete 2-D": gs.MultiDiscrete([[2, 5], [3, 4]], start=[[1, -1], [0, 7]]),
    "multibinary": gs.MultiBinary(4),
    "multibinary 2-D": gs.MultiBinary((2, 3)),
    "dict of one": gs.Dict({"only": gs.Box(-1, 1, (2, 2), np.float64)}),
    "nested": gs.Dict(
        {
            "z": gs.Box(-1, 1, (2, 2)),
            "eye": pixels(36, 40, 3),
            "hand": gs.Tuple([gs.Discrete(3, start=4), gs.Dict({"grip": gs.MultiBinary(2), "x": gs.Box(-1, 1, ())})]),
            "thumbnail": pixels(4, 4),
        }
    ),
}
ACTIONS: dict[str, gs.Space] = {
    "discrete": gs.Discrete(4),
    "discrete from -2": gs.Discrete(4, start=-2, dtype=np.int32),
    "multidiscrete": gs.MultiDiscrete([2, 5, 3]),
    "multidiscrete 2-D": gs.MultiDiscrete([[2, 5], [3, 4]], start=[[1, -1], [0, 7]]),
    "multibinary 2-D": gs.MultiBinary((2, 3)),
    "box": gs.Box(-1, 1, (3,)),
    "float64 box": gs.Box(np.array([-0.1, -3]), np.array([0.1, INF]), dtype=np.float64),
    "float16 matrix": gs.Box(-1, 1, (2, 2), np.float16),
}


class Spaces(gym.Env):
    """Any pair of spaces; only what it is made of matters here."""

    def __init__(self, observation: gs.Space, action: gs.Space) -> None:
        self.observation_space, self.action_space = observation, action


def env_of(observation: gs.Space = ACTIONS["box"], action: gs.Space = ACTIONS["box"]) -> Any:
    return from_object(lambda: Spaces(observation, action), 1)


def batch_of(space: gs.Space, count: int) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(count)]


@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_observations_are_read_as_arrays_are_and_shown_again(name: str) -> None:
    space = OBSERVATIONS[name]
    env = env_of(space)
    given = stacked(space, batch_of(space, 6))
    rows, _ = env.encode(given)
    reader = env._observation
    shown = reader.show(rows.numpy())
    again = reader.traced([torch.from_numpy(piece) for piece in shown])
    assert again.dtype == rows.dtype
    assert torch.equal(again, rows)
    assert torch.equal(env.encode(reader.nested(shown))[0], rows)
    for part, piece in zip(reader.parts, shown, strict=True):
        assert piece.dtype == part.space.dtype
        assert all(part.space.contains(np.asarray(one, piece.dtype)) for one in piece)


@pytest.mark.parametrize("name", list(ACTIONS))
def test_actions_are_written_as_arrays_are(name: str) -> None:
    env = env_of(action=ACTIONS[name])
    spec = env.action
    if isinstance(spec, Box):
        action = torch.randn(6, *spec.shape) * 3
    else:
        action = torch.stack([torch.randint(n, (6,)) for n in np.atleast_1d(spec.n)], 1).reshape(6, *spec.shape)
    want = env.decode(action)
    got = writer_of(env).traced(action).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_names_are_those_of_the_policys_spec() -> None:
    env = env_of(OBSERVATIONS["nested"])
    assert [part.name for part in env._observation.parts] == [name for name, _ in env.observation.parts]
    assert [part.name for part in env_of(OBSERVATIONS["vector"])._observation.parts] == ["obs"]
    assert [part.name for part in env_of(OBSERVATIONS["dict of one"])._observation.parts] == ["only"]


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
    env = env_of(gs.Box(0, 1, (2,), np.float64))
    rows = np.array([[-3.0, 5.0]], np.float32)
    (shown,) = env._observation.show(rows)
    np.testing.assert_array_equal(shown, rows)
