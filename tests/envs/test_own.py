"""What an environment keeps besides its state comes back as it was, and no name from a file stands for anything else."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.envs.own import KINDS, Randomness, changed, own, put_back, written
from tightrope.envs.tensor import BASE


@pytest.mark.parametrize("env_id", tr.envs.ENVS)
def test_our_own_environments_keep_nothing_besides_their_state(env_id: str) -> None:
    env = tr.envs.ENVS[env_id](4)
    env.reset(seed=0)
    for _ in range(3):
        env.step(torch.zeros(4, *env.action.shape, dtype=env.action.dtype))
    assert {*env.state_dict()} == {"state", "clock", "running_return", "finished", "generator"}
    assert {*vars(env)} >= BASE


VALUES: dict[str, Any] = dict(
    tensor=torch.randn(3), whole=torch.tensor(3), flag=torch.tensor(True), half=torch.zeros(2, dtype=torch.bfloat16),
    number=7, truth=True, real=0.1, endless=float("inf"), nothing=float("nan"), array=np.arange(6.0).reshape(2, 3),
    scalar=np.float32(0.1), count=np.int64(4),
)  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_kind_come_back(name: str) -> None:
    env, other = tr.envs.CartPole(2), tr.envs.CartPole(2)
    env.mine = VALUES[name]  # type: ignore[attr-defined]
    other.load_state_dict(env.state_dict())
    again = other.mine  # type: ignore[attr-defined]
    assert type(again) is type(VALUES[name])
    assert again is not VALUES[name] or isinstance(again, (bool, int))
    np.testing.assert_array_equal(*(torch.as_tensor(x).float().numpy() for x in (again, VALUES[name])))


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
def test_random_generators_go_on(name: str) -> None:
    env, other = tr.envs.CartPole(2), tr.envs.CartPole(2)
    env.rng, other.rng = generators()[name], generators()[name]  # type: ignore[attr-defined]
    env.reset()
    drawn(env.rng)  # type: ignore[attr-defined]
    other.load_state_dict(env.state_dict())
    assert [drawn(other.rng) for _ in range(3)] == [drawn(env.rng) for _ in range(3)]  # type: ignore[attr-defined]


def test_only_what_has_changed_since_the_first_reset_is_kept() -> None:
    env = tr.envs.CartPole(2)
    env.fixed, env.moving = torch.ones(2), torch.ones(2)  # type: ignore[attr-defined]
    env.reset()
    env.moving += 1  # type: ignore[attr-defined]
    env.reset()
    assert [name for name in env.state_dict() if name.startswith("own.")] == ["own.tensor.moving"]


def test_a_tensor_is_written_into_where_it_is() -> None:
    env = tr.envs.CartPole(2)
    env.mine = held = torch.zeros(2)  # type: ignore[attr-defined]
    put_back(env, {"tensor.mine": torch.ones(2)}, BASE)
    assert held.tolist() == [1, 1]


def test_a_copy_shares_nothing_that_is_kept() -> None:
    env = tr.envs.CartPole(2)
    env.tensor, env.array, env.log = torch.zeros(2), np.zeros(2), []  # type: ignore[attr-defined]
    vars(env).update(generators())
    twin: Any = env.spawn(3, seed=0)
    before = own(env, BASE)
    twin.tensor += 1
    twin.array += 1
    for name in generators():
        drawn(getattr(twin, name))
    assert not changed(own(env, BASE), before)
    assert twin.log is env.log  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "tensor.step", "tensor.state", "tensor.generator", "tensor.__class__", "tensor.__dict__", "tensor.no name",
        "tensor.", "tensor", "pickle.x", "number._few", "tensor.observation",
    ],
)  # fmt: skip
def test_a_name_that_stands_for_something_else_is_refused(name: str) -> None:
    env = tr.envs.CartPole(2)
    before = dict(vars(env))
    with pytest.raises(RuntimeError):
        put_back(env, {name: torch.zeros(2)}, BASE)
    assert vars(env).keys() == before.keys()


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.name not in ("tensor", "array", "number")])
def test_a_state_that_is_none_is_refused(kind: str) -> None:
    env = tr.envs.CartPole(2)
    for content in (b"", b"{}", b"[" * 100_000, b"[3, [1], null]", b'{"bit_generator": "PCG64"}'):
        if kind != "torch":  # which takes its own size alone
            with pytest.raises(RuntimeError):
                put_back(env, {f"{kind}.rng": torch.tensor(list(content), dtype=torch.uint8)}, BASE)


def test_what_is_of_no_kind_is_not_written() -> None:
    for value in ([1], {"a": 1}, "text", None, np.array(["text"]), 2**70, object()):
        assert written(value) is None


def test_streams_that_were_drawn_from_go_back() -> None:
    env = tr.envs.CartPole(2)
    vars(env).update(generators())
    assert Randomness(env).back()
    for draw in (random.random, np.random.rand, lambda: torch.rand(()), lambda: drawn(vars(env)["pcg"])):
        randomness = Randomness(env)
        first = float(draw())
        assert not randomness.back()
        assert float(draw()) == first
