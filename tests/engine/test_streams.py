"""The process's random streams: a run's while it trains, its caller's again afterwards, also with several threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.engine.noise import Streams, _active, get_rng_state

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def not_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_active, "warned", False)


def now() -> dict[str, Tensor]:
    return get_rng_state(CPU)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Meets(gymnasium.Env[Any, Any]):
    """An environment whose first step waits for that of the other training."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    barrier: threading.Barrier
    draw: Callable[[Meets], float] = staticmethod(lambda env: 0.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        if self.taken == 1:
            self.barrier.wait(20)
        return np.zeros(2, np.float32), type(self).draw(self), False, self.taken == 8, {}


DRAWS: dict[str, tuple[Callable[[Any], float], bool]] = {
    "numpy": (lambda env: float(np.random.random()), True),
    "python": (lambda env: random.random(), True),
    "torch": (lambda env: float(torch.rand(())), True),
    "its own": (lambda env: float(env.np_random.random()), False),
    "nothing": (lambda env: 0.0, False),
}


@pytest.mark.parametrize("source", DRAWS)
def test_two_trainings_in_threads_that_share_a_generator_are_told(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, shared = DRAWS[source]
    kind = type("Kind", (Meets,), {"barrier": threading.Barrier(2), "draw": staticmethod(draw)})
    before = now()

    def train(seed: int) -> None:
        tr.PPO(kind, num_envs=1, num_steps=8, num_minibatches=1, total_timesteps=16, seed=seed).learn(quiet=True)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = [line for line in capsys.readouterr().err.splitlines() if "reproducible" in line]
    assert len(said) == shared, said
    assert equal(now(), before), "whoever called finds theirs untouched"


def test_one_training_after_the_other_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    class Alone(Meets):
        barrier = threading.Barrier(1)
        draw = staticmethod(lambda env: float(np.random.random()))

    def train() -> None:
        agent = tr.PPO(Alone, num_envs=1, num_steps=8, num_minibatches=1, total_timesteps=16, eval_every=8)
        agent.learn(quiet=True)
        agent.evaluate(2)

    in_thread(train)
    train()
    assert "reproducible" not in capsys.readouterr().err


def test_an_evaluation_beside_a_training_that_draws_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with Streams(1, CPU).activated():
        np.random.random()
        in_thread(lambda: tr.PPO("CartPole-v1", device="cpu").evaluate(1))
    assert capsys.readouterr().err.count("reproducible") == 1


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_streams_that_overlap_keep_to_themselves(first_ends_first: bool) -> None:
    before, one, two = now(), Streams(1, CPU), Streams(2, CPU)
    expected = [Streams(seed, CPU).state_dict() for seed in (1, 2)]
    first, second = one.activated(), two.activated()
    first.__enter__()
    in_thread(second.__enter__)
    assert equal(now(), expected[1])
    assert equal(one.state_dict(), expected[0])
    for context in (first, second) if first_ends_first else (second, first):
        in_thread(lambda leaving=context: leaving.__exit__(None, None, None))
    assert equal(now(), before)
    assert equal(one.state_dict(), expected[0])
    assert equal(two.state_dict(), expected[1])


def test_nested_streams_give_back_what_they_found() -> None:
    before, outer = now(), Streams(1, CPU)
    with outer.activated():
        random.random()
        middle = now()
        with Streams(2, CPU).activated():
            random.random()
            assert equal(outer.state_dict(), middle)
        assert equal(now(), middle)
    assert equal(now(), before)
    assert equal(outer.state_dict(), middle)


def test_agents_made_in_threads_at_once_have_the_weights_of_their_seeds() -> None:
    def weights(seed: int) -> Tensor:
        return tr.PPO("CartPole-v1", device="cpu", seed=seed, hidden_sizes=(256, 256)).state.optimizer.flat.clone()

    alone, found = {seed: weights(seed) for seed in range(4)}, {}
    barrier = threading.Barrier(4)

    def make(seed: int) -> None:
        barrier.wait(20)
        found[seed] = [weights(seed) for _ in range(3)]

    threads = [threading.Thread(target=make, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(x, alone[seed]) for seed, made in found.items() for x in made)
