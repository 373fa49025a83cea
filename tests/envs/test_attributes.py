"""What an environment keeps besides its state comes back as it was or is named, and nothing from a file stands for more."""

from __future__ import annotations

import json
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.envs.attribute_writer import class_name
from tightrope.envs.attributes import first_record, load_attributes, unsaved_warning
from tightrope.envs.random_streams import GeneratorSnapshot
from tightrope.envs.tensor import BASE_ATTRIBUTES, UNSAVED

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "reliability"))

from attribute_cases import CASES
from attributes import outcome, quick_outcome

NAMED = {  # every other kind is kept
    "dataclass made later", "structured array", "numpy Generator made later", "Generator that spawns", "datetime",
    "views of one tensor, made later", "sparse tensor", "function, bound to another", "generator of a function", "iterator",
    "open file", "closure", "lock in an object", "set of objects", "more values than are kept",
}  # fmt: skip
KINDS = {case.kind: case for case in CASES}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_attribute_is_kept_or_named(kind: str) -> None:
    assert quick_outcome(KINDS[kind])[0] == ("named" if kind in NAMED else "kept")


@pytest.mark.parametrize(
    "kind",
    ["views of one array", "network and optimizer", "sparse tensor"],  # the rest without training, above
)
def test_a_resumed_run_is_the_uninterrupted_one_or_the_first_save_says_what_is_not_kept(kind: str) -> None:
    found, said = outcome(KINDS[kind])
    assert found == ("named" if kind in NAMED else "kept")
    assert ("not saved with the run: attribute `x` of Walk (" in said) == (kind in NAMED)


@pytest.mark.parametrize("env_id", tr.envs.ENVS)
def test_our_own_environments_keep_nothing_besides_their_state(env_id: str) -> None:
    env = tr.envs.ENVS[env_id](4)
    env.reset(seed=0)
    for _ in range(3):
        env.step(torch.zeros(4, *env.action.shape, dtype=env.action.dtype))
    state = env.state_dict()
    assert {*state} == {"state", "clock", "running_return", "finished", "generator"}
    assert unsaved_warning(env, state) is None
    assert {*vars(env)} >= BASE_ATTRIBUTES


def with_attributes(**values: Any) -> Any:
    env = tr.envs.CartPole(2)
    vars(env).update(values)
    env.reset()
    return env


def texts_of(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return json.loads(bytes(state["own"].tolist()))["values"]


# what is kept -----------------------------------------------------------------------------------------------------------


def test_only_what_has_changed_since_the_first_reset_is_kept() -> None:
    env = with_attributes(fixed=torch.ones(2), moving=torch.ones(2), words=["a"], f=len)
    env.moving += 1
    env.reset()
    assert [*texts_of(env.state_dict())] == ["moving"]


def test_what_was_changed_in_place_is_filled_and_what_was_replaced_is_replaced() -> None:
    def env() -> Any:
        return with_attributes(a=torch.zeros(2), b=np.zeros(2), c=[0], d=torch.zeros(2), e=np.zeros(2), f=[0])

    trained, again = env(), env()
    trained.a += 1
    trained.b += 1
    trained.c.append(1)
    trained.d, trained.e, trained.f = torch.ones(2), np.ones(2), [0, 1]
    before = {name: getattr(again, name) for name in "abcdef"}
    again.load_state_dict(trained.state_dict())
    assert [getattr(again, name) is before[name] for name in "abcdef"] == [True, True, True, False, False, False]
    assert all(list(getattr(again, name)) == list(getattr(trained, name)) for name in "abcdef")
    assert before["d"].tolist() == [0, 0] == before["e"].tolist()  # others may hold them, such as a class
    assert before["f"] == [0]


def test_a_snapshot_brings_back_what_was_replaced_since() -> None:
    env = with_attributes(a=[1], b=np.zeros(2))
    env.c = {"new": deque([1], maxlen=2)}
    kept = env.snapshot()
    env.a, env.b, env.c = [2], env.b + 1, None
    env.load_state_dict(kept)
    assert (env.a, env.b.tolist(), env.c) == ([1], [0, 0], {"new": deque([1], maxlen=2)})
    assert env.c["new"].maxlen == 2


def test_a_copy_shares_nothing_that_is_kept() -> None:
    values, array = torch.zeros(4), np.zeros(4)
    env = with_attributes(
        tensor=torch.zeros(2),
        values=values,
        part=values[1:],
        array=array,
        slice=array[1:],
        log=[[1]],
        rngs=[np.random.default_rng(1)],
        it=(x for x in [1]),
    )
    twin: Any = env.spawn(3, seed=0)
    before = first_record(env, UNSAVED)
    twin.tensor += 1
    twin.values += 1
    twin.array += 1
    assert twin.part.tolist() == twin.slice.tolist() == [1, 1, 1], "views of one memory stay so"
    twin.log[0].append(2)
    twin.rngs[0].random()
    assert not first_record(env, UNSAVED).changed_since(before)
    assert twin.it is env.it, "what cannot be copied is shared"


def test_a_large_array_that_a_fresh_environment_does_not_have_is_resumed(tmp_path: Path) -> None:
    case = KINDS["array made later"]._replace(step=big_array)
    assert outcome(case)[0] == "kept"


def big_array(env: Any) -> float:
    if not hasattr(env, "x"):
        env.x = np.zeros(1_000_000)
    env.x += 1
    return float(env.x[-1])


# what is named ----------------------------------------------------------------------------------------------------------


def test_what_is_not_kept_is_named_once() -> None:
    env = with_attributes(a=iter([1]), b=[iter([2])])
    line = unsaved_warning(env, env.state_dict())
    assert line is not None
    assert "attribute `a` of CartPole (list_iterator), attribute `b` of CartPole (list_iterator)" in line
    assert "\n" not in line
    assert unsaved_warning(env, env.state_dict()) is None
    env.later = iter([3])
    assert "`later`" in (unsaved_warning(env, env.state_dict()) or "")


def test_functions_that_capture_nothing_that_changes_are_not_mentioned() -> None:
    scale, weights = 2.0, [1.0]
    still = {
        "a": lambda x: x * scale,
        "b": len,
        "c": torch.vmap(torch.sum),
        "d": random.random,
        "e": np.tanh,
        "f": json,
    }
    env = with_attributes(**still, g=lambda x: x * weights[0])
    env.h = env.step
    assert [*(unsaved_warning(env, env.state_dict()) or "").split("`")[1::2]] == ["g", "h"]


def test_what_state_dict_has_an_entry_for_is_left_to_it() -> None:
    class Mine(tr.envs.CartPole):
        def state_dict(self) -> dict[str, torch.Tensor]:
            return super().state_dict() | {"tape": torch.tensor(3)}

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            super().load_state_dict(state)
            self.tape = iter(range(int(state["tape"]), 9))

    env, again = Mine(2), Mine(2)
    for one in (env, again):
        one.tape = iter(range(9))
        one.reset()
    state = env.state_dict()
    assert unsaved_warning(env, state) is None
    again.load_state_dict(state)
    assert next(again.tape) == 3
    env.load_state_dict(env.snapshot())


def test_many_names_are_one_line() -> None:
    env = with_attributes(**{f"a{i}": iter([]) for i in range(40)})
    line = unsaved_warning(env, env.state_dict()) or ""
    assert "`a11`" in line
    assert "and 28 more" in line


# what a stranger may write ----------------------------------------------------------------------------------------------


def forged(values: Any, **tensors: Any) -> dict[str, torch.Tensor]:
    """A state with these values."""
    text = torch.tensor(list(json.dumps({"values": values, "gone": []}).encode()), dtype=torch.uint8)
    return {"own": text} | {f"own.{name}": x for name, x in tensors.items()}


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "state",
        "generator",
        "__class__",
        "__dict__",
        "no name",
        "",
        "_uses_arrays",
        "observation",
        "device",
        "drawable",
    ],
)
def test_a_name_that_stands_for_something_else_is_refused(name: str) -> None:
    env = tr.envs.CartPole(2)
    before = dict(vars(env))
    with pytest.raises(RuntimeError):
        load_attributes(env, forged({name: 3}), UNSAVED)
    assert vars(env).keys() == before.keys()


BYTES = torch.zeros(16, dtype=torch.uint8)
MT = {"bit_generator": "MT19937", "state": {"key": [0] * 624, "pos": 624}}
TWISTER, LEGACY = "numpy.random._mt19937.MT19937", "numpy.random.mtrand.RandomState"
LIVE = {"a": np.random.RandomState(1), "b": np.random.MT19937(1), "c": random.Random(1), "d": torch.Generator()}
BAD: dict[str, Any] = {
    "nothing": [], "unknown": ["pickle", "x"], "a method of the reader": ["load_into"], "dictionary": {"a": 1},
    "class by name": ["object", "os.system", True, {}, []], "enum by name": ["enum", "http.HTTPStatus", "OK"],
    "tuple by name": ["list", "os.stat_result", True, [1], None], "a class that is no list": ["list", "dict", False, [1], None],
    "path of nothing": ["same", "z"], "constant of nothing": ["constant"], "deep": ["list", "tuple", False, [["list"]], None],
    "key that is a list": ["dict", "dict", False, [["list", "list", False, [], None]], [1]],
    "more keys than values": ["dict", "dict", False, ["a", "b"], [1]], "state of nothing": ["state", "builtins.dict", 1],
    "objects": ["array", True, "a", "|O", [2]], "fields": ["array", True, "a", [["x", "|O"]], [2]],
    "more than there is": ["array", True, "a", "<f8", [3]], "no tensor": ["array", True, "b", "<f8", [1]],
    "no tensor either": ["tensor", True, "b", True, False], "a graph of integers": ["tensor", False, "a", True, True],
    "legacy from beyond": ["generator", LEGACY, True, {**MT, "state": {"key": [0] * 624, "pos": 10**6}}],
    "legacy short": ["generator", LEGACY, True, {**MT, "state": {"key": [0] * 3, "pos": 3}}],
    "MT19937 from before": ["generator", TWISTER, True, {**MT, "state": {"key": [0] * 624, "pos": -9}}],
    "MT19937 short": ["generator", TWISTER, True, {**MT, "state": {"key": [], "pos": 0}}],
    "python": ["generator", "random.Random", True, [3, [1], None]], "torch": ["generator", "torch._C.Generator", True, "xy"],
    "no class": ["generator", "Evil", True, {}], "number": ["complex", "a", "b"], "bytes": ["bytes", "zz"],
    "scalar": ["scalar", "<f8", "00"],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError):
        load_attributes(with_attributes(**LIVE), forged({"mine": BAD[name]}, a=BYTES), UNSAVED)


@pytest.mark.parametrize(
    "name", ["legacy from beyond", "legacy short", "MT19937 from before", "MT19937 short", "python", "torch"]
)
def test_a_position_that_is_none_is_refused_by_the_generator_that_is_there(name: str) -> None:
    env = with_attributes(mine=next(x for x in LIVE.values() if class_name(x) == BAD[name][1]))
    with pytest.raises(RuntimeError):
        load_attributes(env, forged({"mine": BAD[name]}), UNSAVED)


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b"3", b'{"values": 3, "gone": 3}', b"\xff"])
def test_a_text_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(RuntimeError):
        load_attributes(tr.envs.CartPole(2), {"own": torch.tensor(list(text), dtype=torch.uint8)}, UNSAVED)


def test_a_state_of_an_older_form_is_refused() -> None:
    with pytest.raises(RuntimeError, match="another version"):
        load_attributes(tr.envs.CartPole(2), {"own.tensor.mine": torch.zeros(2)}, UNSAVED)


def test_an_object_of_another_class_is_not_filled() -> None:
    env = with_attributes(robot=KINDS["dataclass"], light=None)
    with pytest.raises(RuntimeError):
        load_attributes(env, forged({"robot": ["object", "attribute_cases.Slotted", True, {"a": 1}, []]}), UNSAVED)


# random streams ---------------------------------------------------------------------------------------------------------


def generators() -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(1), "pcg": np.random.default_rng(1), "old": np.random.RandomState(1),
        "twister": np.random.Generator(np.random.MT19937(1)), "python": random.Random(1),
    }  # fmt: skip


def drawn(source: Any) -> float:
    if isinstance(source, torch.Generator):
        return float(torch.randn((), generator=source))
    return float(source.gauss(0, 1) if isinstance(source, random.Random) else source.normal())


@pytest.mark.parametrize("name", generators())
def test_streams_that_were_drawn_from_go_back(name: str) -> None:
    env = tr.envs.CartPole(2)
    vars(env).update(generators())
    assert GeneratorSnapshot(env).restore()
    for draw in (random.random, np.random.rand, lambda: torch.rand(()), lambda: drawn(vars(env)[name])):
        randomness = GeneratorSnapshot(env)
        first = float(draw())
        assert not randomness.restore()
        assert float(draw()) == first
