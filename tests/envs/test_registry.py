"""Ids and what they name."""

import pytest

from tightrope.envs import ENVS, CartPole, EasyCart, TensorEnv, make, register, registry
from tightrope.errors import UsageError


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for env_id in list(ENVS):
        monkeypatch.setitem(ENVS, env_id, ENVS[env_id])


@pytest.mark.parametrize("env_id", list(ENVS))
def test_every_id_makes(env_id: str) -> None:
    env = make(env_id, num_envs=3, max_episode_steps=7, seed=5)
    assert type(env) is ENVS[env_id]
    assert isinstance(env, TensorEnv)
    assert (env.num_envs, env.max_episode_steps, env.device.type) == (3, 7, "cpu")
    assert env.generator.initial_seed() == 5
    assert make(env_id).max_episode_steps == ENVS[env_id].time_limit
    assert env.__doc__


def test_ids_of_the_specification() -> None:
    gymnasium = {"CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"}
    own = {
        "CartDoublePendulum-v0",
        "EasyCart-v0",
        "SpinCart-v0",
        "DanceCart-v0",
        *(f"Probe{i}-v0" for i in range(1, 6)),
    }
    assert gymnasium | own <= set(ENVS)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("cartpole-v1", "CartPole-v1"), ("Pendulm-v1", "Pendulum-v1"), ("acrobot", "Acrobot-v1")]
)
def test_an_unknown_id_suggests_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        make(wrong)
    message = str(error.value)
    assert "\n" not in message
    assert repr(wrong) in message
    assert "Did you mean" in message
    assert meant in message


def test_an_id_like_no_other_suggests_nothing() -> None:
    with pytest.raises(UsageError) as error:
        make("zzzz")
    assert "Did you mean" not in str(error.value)
    assert "'zzzz'" in str(error.value)


class Mine(CartPole):
    """One of a user's own."""


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVS, "Mine-v0", Mine)
    monkeypatch.delitem(ENVS, "Mine-v0")
    register("Mine-v0", Mine)
    assert type(make("Mine-v0", num_envs=2)) is Mine
    register("Mine-v0", Mine)  # again is harmless
    with pytest.raises(UsageError, match="Did you mean Mine-v0"):
        make("Mine-v1")


def test_a_taken_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'CartPole-v1'.*CartPole") as error:
        register("CartPole-v1", EasyCart)
    assert "\n" not in str(error.value)
    assert ENVS["CartPole-v1"] is CartPole


def test_tensor_env_class() -> None:
    assert registry.tensor_env_class("EasyCart-v0") is EasyCart
