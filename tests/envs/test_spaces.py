"""Every space of Gymnasium that is supported comes through as numbers and goes back as a member; the others are refused."""

import itertools
import math
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st
from test_contract import refusal

from tightrope.envs import CartPole
from tightrope.envs.adapters.actions import action_writer, writer_of
from tightrope.envs.adapters.space_members import bound, described, has_shape_of, space_text, stacked, take_rows
from tightrope.envs.adapters.spaces import observation_reader, reader_of, space_of
from tightrope.errors import EnvError
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Box, Composite, Discrete, MultiDiscrete, Spec

INF = float("inf")


def pixels(*shape: int) -> gs.Box:
    return gs.Box(0, 255, shape, np.uint8)


def image(*shape: int) -> Box:
    return Box(shape, 0, 255, torch.uint8)


# what each space must be read as: the spec, and from one member the numbers
PLAIN: dict[str, tuple[gs.Space, Spec | None, Any]] = {
    "scalar": (gs.Box(-1, 1, ()), None, lambda x: x),  # its spec may be () or (1,)
    "vector": (gs.Box(-INF, INF, (3,)), Box((3,)), lambda x: x),
    "matrix": (gs.Box(-2, 2, (2, 3)), Box((2, 3)), lambda x: x),
    "float64": (gs.Box(-1e3, 1e3, (3,), np.float64), Box((3,)), lambda x: x),
    "float16": (gs.Box(-1, 1, (3,), np.float16), Box((3,)), lambda x: x),
    "int32": (gs.Box(-1000, 1000, (4,), np.int32), Box((4,)), lambda x: x),
    "int8": (gs.Box(-128, 127, (4,), np.int8), Box((4,)), lambda x: x),
    "bool": (gs.Box(0, 1, (5,), bool), Box((5,)), lambda x: x),
    "bytes that are no pixels": (gs.Box(0, 100, (40, 40), np.uint8), Box((40, 40)), lambda x: x),
    "bytes in a row": (pixels(7), Box((7,), 0.0, 1.0), lambda x: x / 255),
    "small picture": (pixels(35, 80, 3), Box((35, 80, 3), 0.0, 1.0), lambda x: x / 255),
    "small grey picture": (pixels(84, 35), Box((84, 35), 0.0, 1.0), lambda x: x / 255),
    "grey": (pixels(36, 40), image(1, 36, 40), lambda x: x[None]),
    "colour last": (pixels(40, 37, 3), image(3, 40, 37), lambda x: x.transpose(2, 0, 1)),
    "grey last": (pixels(40, 37, 1), image(1, 40, 37), lambda x: x.transpose(2, 0, 1)),
    "colour with transparency": (pixels(40, 37, 4), image(4, 40, 37), lambda x: x.transpose(2, 0, 1)),
    "colour first": (pixels(3, 40, 37), image(3, 40, 37), lambda x: x),
    "stack of frames": (pixels(4, 36, 36), image(4, 36, 36), lambda x: x),
    "stack of many frames": (pixels(9, 40, 36), image(9, 40, 36), lambda x: x),
    "stack of colour frames": (
        pixels(4, 40, 37, 3),
        image(12, 40, 37),
        lambda x: np.concatenate([frame.transpose(2, 0, 1) for frame in x]),
    ),
    "stack of grey frames": (pixels(4, 40, 37, 1), image(4, 40, 37), lambda x: x[..., 0]),
    "stack of frames, colour first": (pixels(4, 3, 40, 37), image(12, 40, 37), np.concatenate),
    "stack of float frames": (
        gs.Box(0, 1, (2, 40, 37, 3)),
        Box((6, 40, 37), 0.0, 1.0),
        lambda x: np.concatenate(np.moveaxis(x, -1, 1)),
    ),
    "voxels": (pixels(40, 40, 40, 3), Box((40, 40, 40, 3), 0.0, 1.0), lambda x: x / 255),
    "stack of small frames": (pixels(4, 20, 20, 3), Box((4, 20, 20, 3), 0.0, 1.0), lambda x: x / 255),
    "discrete": (gs.Discrete(4), Discrete(4), lambda x: x),
    "discrete from 5": (gs.Discrete(4, start=5), Discrete(4), lambda x: x - 5),
    "discrete from -2": (gs.Discrete(4, start=-2), Discrete(4), lambda x: x + 2),
    "multidiscrete": (gs.MultiDiscrete([2, 5, 3]), MultiDiscrete((2, 5, 3)), lambda x: x),
    "multidiscrete 2-D": (
        gs.MultiDiscrete([[2, 5], [3, 4]], start=[[1, -1], [0, 7]]),
        MultiDiscrete((2, 5, 3, 4)),
        lambda x: (x - np.array([[1, -1], [0, 7]])).flatten(),
    ),
    "multibinary": (gs.MultiBinary(4), Box((4,), 0.0, 1.0), lambda x: x),
    "multibinary 2-D": (gs.MultiBinary((2, 3)), Box((2, 3), 0.0, 1.0), lambda x: x),
}
NESTED = gs.Dict(
    {
        "z": gs.Box(-1, 1, (2, 2)),
        "eye": pixels(36, 40, 3),
        "hand": gs.Tuple(
            [gs.Discrete(3, start=4), gs.Dict({"grip": gs.MultiBinary(2), "on": gs.MultiDiscrete([2, 3])})]
        ),
        "thumbnail": pixels(4, 4),
    }
)
every_space = pytest.mark.parametrize("name", list(PLAIN))


def members(space: gs.Space, count: int, seed: int = 0) -> list[Any]:
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def batched(space: gs.Space, singles: list[Any]) -> Any:
    """A batch as Gymnasium's own vector environments make it."""
    return concatenate(space, singles, create_empty_array(space, len(singles)))


def assert_same(left: Any, right: Any) -> None:
    """Nested dicts and tuples of arrays, entry by entry."""
    if isinstance(left, dict):
        assert set(left) == set(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert np.array_equal(left, right)


# observations --------------------------------------------------------------------------------------------------------


@every_space
def test_an_observation_becomes_the_numbers_it_holds(name: str) -> None:
    space, spec, numbers = PLAIN[name]
    read, singles = observation_reader(space), members(space, 5)
    assert spec is None or read.spec == spec
    assert math.prod(read.spec.shape) == max(math.prod(space.shape), 1)
    dtype = read.spec.dtype
    expected = torch.stack([torch.from_numpy(np.asarray(numbers(np.asarray(one)))).to(dtype) for one in singles])
    for batch in (batched(space, singles), stacked(space, singles)):
        rows = torch.from_numpy(read.rows(batch))
        assert (tuple(rows.shape), rows.dtype) == ((5, *read.spec.shape), read.spec.dtype)
        assert torch.equal(rows, expected.reshape(rows.shape))
    assert read.rows(batch).flags.c_contiguous
    alone = np.concatenate([read.rows(stacked(space, [one])) for one in singles])
    assert np.array_equal(alone, read.rows(batch))
    assert all(has_shape_of(read.space, one) for one in singles)
    assert not has_shape_of(read.space, batch), "one observation and a batch are not told apart"


def test_entries_of_pixels_are_told_by_their_bounds_each_of_them() -> None:
    high = np.full((40, 40), 255, np.uint8)
    high[3, 3] = 254
    assert observation_reader(gs.Box(np.zeros_like(high), high, dtype=np.uint8)).spec == Box((40, 40))


def test_parts_travel_as_one_row_and_come_back_exactly() -> None:
    read, singles = observation_reader(NESTED), members(NESTED, 4)
    names = [name for name, _ in read.spec.parts]
    assert sorted(names) == sorted(["z", "eye", "hand/0", "hand/1/grip", "hand/1/on", "thumbnail"])
    assert dict(read.spec.parts) == {
        "z": Box((2, 2)),
        "eye": image(3, 36, 40),
        "hand/0": Discrete(3),
        "hand/1/grip": Box((2,), 0.0, 1.0),
        "hand/1/on": MultiDiscrete((2, 3)),
        "thumbnail": Box((4, 4), 0.0, 1.0),
    }
    rows = torch.from_numpy(read.rows(batched(NESTED, singles)))
    assert rows.shape == (4, *read.spec.shape) == (4, 4 + 3 * 36 * 40 + 1 + 2 + 2 + 16)
    expected = {
        "z": [one["z"] for one in singles],
        "eye": [one["eye"].transpose(2, 0, 1) for one in singles],
        "hand/0": [np.asarray(one["hand"][0]) - 4 for one in singles],
        "hand/1/grip": [one["hand"][1]["grip"].astype(np.float32) for one in singles],
        "hand/1/on": [one["hand"][1]["on"] for one in singles],
        "thumbnail": [(one["thumbnail"] / 255).astype(np.float32) for one in singles],
    }
    for lead in ((4,), (2, 2)):  # a batch, and a rollout of (T, N)
        for name, part in read.spec.split(rows.view(*lead, -1)).items():
            spec = dict(read.spec.parts)[name]
            assert (tuple(part.shape), part.dtype) == ((*lead, *spec.shape), spec.dtype)
            assert np.array_equal(part.reshape(4, *spec.shape).numpy(), np.stack(expected[name])), name


@st.composite
def any_space(draw: Any, depth: int = 2) -> gs.Space:
    kinds = ["box", "int", "bytes", "discrete", "multidiscrete", "multibinary"] + ["dict", "tuple"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    if kind in ("box", "int", "bytes"):
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        dtype = {"box": draw(st.sampled_from([np.float32, np.float64])), "int": np.int32, "bytes": np.uint8}[kind]
        return gs.Box(0, 255, shape, dtype) if kind == "bytes" else gs.Box(-500, 500, shape, dtype)
    if kind == "discrete":
        return gs.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-9, 9)))
    if kind in ("multidiscrete", "multibinary"):
        shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
        if kind == "multibinary":
            return gs.MultiBinary(shape)
        count = math.prod(shape)
        n, start = (draw(st.lists(st.integers(*r), min_size=count, max_size=count)) for r in ((1, 6), (-5, 5)))
        return gs.MultiDiscrete(np.reshape(n, shape), start=np.reshape(start, shape))
    inner = draw(st.lists(any_space(depth=depth - 1), min_size=1, max_size=3))
    if kind == "tuple":
        return gs.Tuple(inner)
    keys = draw(st.permutations(["b", "a", "c"]))
    return gs.Dict(dict(zip(keys, inner, strict=False)))


def leaves(space: gs.Space, obs: Any, path: str = "") -> dict[str, np.ndarray]:
    """Each part's numbers, by its path, written down independently of the reader."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        keys = list(space.spaces) if isinstance(space, gs.Dict) else range(len(space.spaces))
        return {
            k: v for key in keys for k, v in leaves(space[key], obs[key], f"{path}/{key}" if path else f"{key}").items()
        }
    value = np.asarray(obs)
    if isinstance(space, gs.Discrete | gs.MultiDiscrete):
        value = value - space.start
    if isinstance(space, gs.Box) and space.dtype == np.uint8:
        value = value / 255
    return {path: value.astype(np.float32)}


@given(any_space(), st.integers(0, 2**31), st.integers(1, 3))
def test_whatever_the_nesting_nothing_is_lost(space: gs.Space, seed: int, count: int) -> None:
    read, singles = observation_reader(space), members(space, count, seed)
    rows = read.rows(batched(space, singles))
    assert rows.shape == (count, *read.spec.shape)
    assert np.array_equal(rows, read.rows(stacked(space, singles)))
    assert all(has_shape_of(read.space, one) for one in singles)
    expected = [leaves(space, one) for one in singles]
    if isinstance(read.spec, Composite):
        parts = read.spec.split(torch.from_numpy(rows))
        assert list(parts) == list(expected[0])
    else:
        parts = {"": torch.from_numpy(rows)}
    for name, part in parts.items():
        assert np.array_equal(part.reshape(count, -1).numpy(), np.stack([one[name].flatten() for one in expected]))


@given(any_space(), st.integers(0, 2**31))
def test_batches_are_stacked_and_chosen_from_as_gymnasium_does(space: gs.Space, seed: int) -> None:
    singles = members(space, 4, seed)
    batch = batched(space, singles)
    assert_same(stacked(space, singles), batch)
    assert_same(take_rows(space, batch, np.array([3, 1])), stacked(space, [singles[3], singles[1]]))


STRUCTURE = gs.Dict({"a": gs.Box(-1, 1, (2,)), "b": gs.Tuple([gs.Discrete(3), gs.Discrete(3)])})
A, B = np.zeros(2), (1, 2)


def test_what_fits_has_the_structure_of_the_space() -> None:
    for fitting in ({"a": A, "b": B}, {"a": [0.0, 0.0], "b": [1, 2], "more": 3}):
        assert has_shape_of(STRUCTURE, fitting)
    wrong_parts = [
        {"a": A},
        {"a": np.zeros(3), "b": B},
        {"a": A, "b": (1,)},
        {"a": A, "b": (1, 2, 3)},
        {"a": A, "b": 7},
    ]
    for wrong in (*wrong_parts, {"a": [[1], [1, 2]], "b": B}, {"a": A, "b": np.zeros((2, 5))}, A, None, "ab"):
        assert not has_shape_of(STRUCTURE, wrong)


# actions -------------------------------------------------------------------------------------------------------------

ACTIONS: dict[str, tuple[gs.Space, Spec]] = {
    "discrete": (gs.Discrete(4), Discrete(4)),
    "discrete from 5": (gs.Discrete(4, start=5), Discrete(4)),
    "discrete of int32": (gs.Discrete(4, dtype=np.int32), Discrete(4)),
    "multidiscrete": (gs.MultiDiscrete([2, 4, 3]), MultiDiscrete((2, 4, 3))),
    "multidiscrete of int32": (gs.MultiDiscrete([2, 4, 3], dtype=np.int32), MultiDiscrete((2, 4, 3))),
    "multidiscrete 2-D": (gs.MultiDiscrete([[2, 4], [3, 1]], start=[[5, -1], [0, 2]]), MultiDiscrete((2, 4, 3, 1))),
    "multibinary": (gs.MultiBinary(3), MultiDiscrete((2, 2, 2))),
    "multibinary 2-D": (gs.MultiBinary((2, 2)), MultiDiscrete((2, 2, 2, 2))),
    "box": (gs.Box(-2, 2, (3,)), Box((3,), -2.0, 2.0)),
    "scalar box": (gs.Box(-2, 2, ()), Box((), -2.0, 2.0)),
    "matrix": (gs.Box(-2, 2, (2, 2)), Box((2, 2), -2.0, 2.0)),
    "each its bounds": (
        gs.Box(np.array([10, -INF], np.float32), np.array([30, 0.5], np.float32)),
        Box((2,), (10.0, -INF), (30.0, 0.5)),
    ),
    "unbounded": (gs.Box(-INF, INF, (2,)), Box((2,), -INF, INF)),
    "float64": (gs.Box(-2, 2, (2,), np.float64), Box((2,), -2.0, 2.0)),
    "float16": (gs.Box(-0.1, 0.3, (2,), np.float16), Box((2,), float(np.float16(-0.1)), float(np.float16(0.3)))),
}


def is_member(space: gs.Space, action: Any) -> bool:
    """Whether one row of a batch is a member; a row of scalars is one without its array."""
    return space.contains(np.asarray(action) if isinstance(space, gs.Box) else action)


@pytest.mark.parametrize("name", list(ACTIONS))
def test_what_the_policy_chooses_is_a_member_of_the_space(name: str) -> None:
    space, spec = ACTIONS[name]
    write = action_writer(space)
    assert write.spec == spec
    head = actor_critic(Box((1,)), spec, NetworkConfig()).head
    generator = torch.Generator().manual_seed(0)
    noise = head.noise((64,), generator)
    raw = 3 * noise if isinstance(spec, Box) else head(torch.zeros(64, 64)).sample(noise)
    batch = write.batch(head.to_env(raw).detach().numpy())
    assert (batch.shape, batch.dtype) == ((64, *space.shape), space.dtype)
    assert all(is_member(space, action) for action in batch)
    assert len(np.unique(batch.reshape(64, -1), axis=0)) > 3, "they are all the same"


AWKWARD = gs.Box(np.array([-0.1, 0.3]), np.array([0.1, 0.7]), dtype=np.float64)  # none of these is a float32


def test_bounds_that_float32_has_not_are_kept_too() -> None:
    write = action_writer(AWKWARD)
    head = actor_critic(Box((1,)), write.spec, NetworkConfig()).head
    raw = torch.tensor([[-9.0, -9.0], [9.0, 9.0]])
    assert all(AWKWARD.contains(action) for action in write.batch(head.to_env(raw).numpy()))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-5, 5)), min_size=1, max_size=4))
def test_every_choice_is_one_member_and_every_member_a_choice(sizes: list[tuple[int, int]]) -> None:
    n, start = zip(*sizes, strict=True)
    space = gs.MultiDiscrete(n, start=start)
    choices = np.array(list(itertools.product(*(range(k) for k in n))))
    written = action_writer(space).batch(choices)
    assert all(space.contains(action) for action in written)
    expected = itertools.product(*(range(first, first + k) for k, first in sizes))
    assert [tuple(action) for action in written] == list(expected)
    assert np.array_equal(observation_reader(space).rows(written), choices), "read back, it is what was written"


@given(st.integers(1, 9), st.integers(-9, 9))
def test_a_discrete_action_starts_where_the_space_does(n: int, start: int) -> None:
    space = gs.Discrete(n, start=start)
    written = action_writer(space).batch(np.arange(n))
    assert [int(action) for action in written] == list(range(start, start + n))
    assert np.array_equal(observation_reader(space).rows(written), np.arange(n))


def test_what_was_chosen_is_not_written_over() -> None:
    raw = np.array([0, 1, 2])
    action_writer(gs.Discrete(3, start=5)).batch(raw)[:] = 77
    assert raw.tolist() == [0, 1, 2]


def test_bounds_are_one_number_or_one_for_each() -> None:
    assert bound(np.full((2, 2), 3.0)) == 3.0
    assert bound(np.array([[1.0, 2.0], [3.0, 4.0]])) == (1.0, 2.0, 3.0, 4.0)
    assert bound(np.array([-INF, -INF])) == -INF


# refusals ------------------------------------------------------------------------------------------------------------


def complex_box() -> gs.Box:
    """As older versions of Gymnasium still made it."""
    space = gs.Box(-1, 1, (2,))
    space.dtype = np.dtype(np.complex64)
    return space


UNSUPPORTED = {
    "Text": gs.Text(5),
    "Graph": gs.Graph(gs.Box(-1, 1, (2,)), gs.Discrete(2)),
    "Sequence": gs.Sequence(gs.Discrete(3)),
    "OneOf": gs.OneOf([gs.Discrete(2), gs.Discrete(3)]),
    "complex64": complex_box(),
    "(0, 3)": gs.Box(-1, 1, (0, 3)),
    "empty Dict": gs.Dict({}),
    "empty Tuple": gs.Tuple(()),
    "MultiDiscrete": gs.MultiDiscrete([]),
}


def test_parts_of_one_name_are_refused() -> None:
    space = gs.Dict({"a/b": gs.Discrete(2), "a": gs.Dict({"b": gs.Discrete(3)})})
    assert "'a/b'" in refusal(observation_reader, space)


@pytest.mark.parametrize(("space", "wrong"), [(gs.Discrete(3, start=1), 4), (gs.MultiDiscrete([2, 3]), [1, 3])])
def test_choices_outside_the_space_are_an_error(space: gs.Space, wrong: Any) -> None:
    for inside, obs in ((space, np.array([wrong])), (gs.Dict({"x": space}), {"x": np.array([wrong])})):
        with pytest.raises(EnvError, match="is not in"):
            observation_reader(inside).rows(obs)


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_other_observations_are_refused_by_name(name: str) -> None:
    message = refusal(observation_reader, UNSUPPORTED[name])
    assert name in message
    assert message.startswith("observations ")
    assert ": give " in message
    inside = refusal(observation_reader, gs.Dict({"fine": gs.Discrete(2), "eye": gs.Tuple([UNSUPPORTED[name]])}))
    assert name in inside
    assert inside.startswith("observations 'eye' 0 "), "it says which part it is"


@pytest.mark.parametrize(
    ("space", "name"),
    [
        *(
            (UNSUPPORTED[name], name)
            for name in ("Text", "Graph", "Sequence", "OneOf", "(0, 3)", "complex64", "MultiDiscrete")
        ),
        (gs.Box(0, 5, (2,), np.int32), "int32"),
        (gs.Box(0, 255, (40, 40, 3), np.uint8), "uint8"),
        (gs.Box(0, 1, (2,), bool), "bool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_actions_are_refused_by_name(space: gs.Space, name: str) -> None:
    message = refusal(action_writer, space)
    assert name in message
    assert message.startswith("actions of ")
    assert ": give " in message


TINY32, MOST32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gs.Box(TINY32, MOST32, (11,), np.float64), "Box(-inf, inf, (11,), float64)"),  # as EnvPool has it
        (gs.Box(-MOST32, MOST32, (2,), np.float32), "Box(-inf, inf, (2,), float32)"),
        (gs.Box(0, MOST32, (2,), np.float32), "Box(0, 3.40282e+38, (2,), float32)"),
        (gs.Box(-1, 1, (2, 3)), "Box(-1, 1, (2, 3), float32)"),
        (gs.Box(np.array([-1.5, -MOST32]), np.array([1.5, MOST32]), dtype=np.float64),
         "Box([-1.5 -inf], [1.5 inf], (2,), float64)"),
        (gs.Box(np.arange(20.0), np.arange(20.0) + 1, dtype=np.float64),
         "Box([0 1 2 3 4 5 6 7 ...], [1 2 3 4 5 6 7 8 ...], (20,), float64)"),
        (gs.Box(0, 255, (3, 3), np.uint8), "Box(0, 255, (3, 3), uint8)"),
        (gs.Dict(a=gs.Discrete(3), b=gs.Tuple((gs.Box(-MOST32, MOST32, (1,)),))),
         "Dict('a': Discrete(3), 'b': Tuple(Box(-inf, inf, (1,), float32)))"),
    ],
)  # fmt: skip
def test_a_space_is_shown_with_bounds_that_mean_something(space: gs.Space[Any], words: str) -> None:
    assert space_text(space) == words


@pytest.mark.parametrize("space", [pixels(40, 40, 3), pixels(3), gs.Discrete(5), gs.MultiDiscrete([300, 300])], ids=str)
@pytest.mark.parametrize("value", [0.5, math.nan, 1.75])
def test_numbers_that_are_not_whole_are_named_where_whole_ones_belong(space: gs.Space[Any], value: float) -> None:
    rows = observation_reader(space).rows
    batch = np.ones((2, *space.shape))
    assert rows(batch).shape[0] == 2  # 1.0 is whole
    batch[1] = value
    with pytest.raises(EnvError, match=rf"an observation is {value:g}, which is not in ") as caught:
        rows(batch)
    assert caught.value.row == 1


def test_a_byte_does_not_wrap() -> None:
    rows = observation_reader(gs.Dict(image=pixels(40, 40, 3))).rows
    with pytest.raises(EnvError, match=r"an observation is 256 for 'image', which is not in Box\(0, 255"):
        rows({"image": np.full((1, 40, 40, 3), 256)})


# as graphs, and back ---------------------------------------------------------------------------------------------------

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
    want, got = writer.batch(action.numpy()), writer.traced(action)[0].numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_what_a_tensor_environment_shows_and_takes_is_not_changed() -> None:
    env = CartPole(3)
    obs, action = env.reset(seed=0), torch.tensor([0, 1, 1])
    assert torch.equal(reader_of(env).traced([obs]), obs)
    assert np.array_equal(reader_of(env).show(obs.numpy()), [obs])
    assert torch.equal(writer_of(env).traced(action)[0], action)


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
