"""Environments in groups: the same rows as without, whichever engine, and the contract; who failed; how answers travel."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from test_contract import DRAWING, OUTSIDE, Factory, checks_but, copied, random_actions, run, same, tensors

from tightrope.envs.adapters import groups as ours
from tightrope.envs.adapters.groups import Grouped, in_groups
from tightrope.envs.adapters.gym import from_object
from tightrope.envs.adapters.host import HostEnv
from tightrope.envs.registry import BACKENDS, EnvOptions
from tightrope.envs.step_arrays import StepTransferBuffer
from tightrope.errors import EnvError
from tightrope.processes import alive
from tightrope.types import Env

TASKS = {"envpool": "CartPole-v1", "ale": "Breakout-v5", "gymnasium": "Acrobot-v1"}
engines = pytest.mark.parametrize("backend", TASKS)


def plain(backend: str, num_envs: int, max_episode_steps: int | None = None, seed: int = 0) -> HostEnv:
    pytest.importorskip(BACKENDS[backend].package)
    mode: dict[str, Any] = {"vectorization_mode": "async"} if backend == "gymnasium" else {}
    options = EnvOptions(max_episode_steps=max_episode_steps, **mode)
    env: HostEnv = BACKENDS[backend].adapter.from_id(TASKS[backend], num_envs, "cpu", options)
    env.seed(seed)
    return env


def grouped(backend: str, num_envs: int, max_episode_steps: int | None = None, seed: int = 0) -> HostEnv:
    """In two groups, the first of which is the larger one if they cannot be equal."""
    if num_envs < 2:
        return plain(backend, num_envs, max_episode_steps, seed)
    env = Grouped([plain(backend, size, max_episode_steps) for size in (num_envs - num_envs // 2, num_envs // 2)])
    env.seed(seed)
    return env


@contextlib.contextmanager
def closing(*envs: Env) -> Iterator[None]:
    try:
        yield
    finally:
        for env in envs:
            env.close()


# the same as without -------------------------------------------------------------------------------------------------


@engines
def test_rows_are_those_of_the_env_without_groups(backend: str) -> None:
    one, two = plain(backend, 5, 9), grouped(backend, 5, 9)
    with closing(one, two):
        assert torch.equal(one.reset(seed=3), two.reset(seed=3))
        actions = random_actions(one, 22)
        steps = run(one, actions)
        assert sum(int((step.terminated | step.truncated).sum()) for step in steps) >= 10
        assert same(steps, run(two, actions))
        assert torch.equal(one.finished_episodes(), two.finished_episodes())
        assert not two.finished_episodes().any()


@engines
def test_groups_may_be_sent_and_received_in_any_order(backend: str) -> None:
    one, two = plain(backend, 4, 6), grouped(backend, 4, 6)
    with closing(one, two):
        one.reset(seed=3)
        two.reset(seed=3)
        actions = random_actions(one, 15)
        expected = run(one, actions)
        two.send(actions[0, :2], 0)
        seen: list[list[Any]] = [[], []]
        for t in range(15):
            two.send(actions[t, 2:], 1)
            seen[0].append(copied(two.recv(0)))
            if t < 14:
                two.send(actions[t + 1, :2], 0)
            seen[1].append(copied(two.recv(1)))
        for group, rows in enumerate((slice(0, 2), slice(2, 4))):
            assert same(seen[group], [type(step)(*(t[rows] for t in tensors(step))) for step in expected])
        # a step that nobody came for is dropped
        for env in (one, two):
            env.reset(seed=3)
        two.send(actions[0, :2], 0)
        two.send(actions[0, 2:], 1)
        assert same(run(one, actions)[1:], run(two, actions[1:]))
        two.send(actions[0, :2], 0)
        assert torch.equal(one.reset(seed=5), two.reset(seed=5))
        assert same(run(one, actions), run(two, actions))


@checks_but(*OUTSIDE, *DRAWING)
def test_contract(check: Callable[[Factory], None]) -> None:
    check(partial(grouped, "envpool"))


def test_a_spawned_one_has_no_groups_and_draws_as_its_rows_do() -> None:
    env = grouped("ale", 2)
    child = env.spawn(2, seed=1)
    with closing(env, child):
        assert (child.groups, env.groups, type(child)) == (1, 2, type(env.members[0]))
        obs = env.reset(seed=1)
        assert np.array_equal(env.draw(obs), child.draw(obs))


# how many ------------------------------------------------------------------------------------------------------------


def sized(device: str) -> Callable[[int], Any]:
    def make(count: int) -> HostEnv:
        env = plain("envpool", count)
        env.device = torch.device(device)
        return env

    return make


def test_two_groups_on_a_device_and_none_on_the_cpu() -> None:
    assert type(in_groups(sized("cpu"), 64, "cpu")) is not Grouped
    assert type(in_groups(sized("meta"), 2 * ours.SMALLEST_GROUP - 1, "meta")) is not Grouped
    env = in_groups(sized("meta"), 65, "meta")
    assert isinstance(env, Grouped)
    assert (env.groups, env.num_envs) == (2, 65)
    assert [member.num_envs for member in env.members] == [len(part) for part in torch.zeros(65).tensor_split(2)]
    env.device = torch.device("cpu")  # as of small networks, which are quicker there
    assert env.groups == 0
    assert env.step(random_actions(env, 1)[0]).obs.device.type == "cpu"


# who failed ----------------------------------------------------------------------------------------------------------


class Fragile(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 2:
            raise ZeroDivisionError("an axle broke")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def fragile() -> tuple[Grouped, list[int]]:
    env = Grouped([from_object(Fragile, 2, "cpu", EnvOptions(vectorization_mode="async")) for _ in range(2)])
    env.reset(seed=1)
    return env, [process.pid for member in env.members for process in member.engine.processes]


def gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def test_a_failure_names_the_row_among_all_and_leaves_no_process() -> None:
    env, workers = fragile()
    with pytest.raises(EnvError, match="number 3 failed on action 2: ZeroDivisionError: an axle broke"):
        env.step(torch.tensor([0, 1, 1, 2]))
    assert gone(workers)
    env.close()


def test_a_worker_that_dies_while_the_other_group_works() -> None:
    env, workers = fragile()
    env.send(torch.tensor([0, 1]), 0)
    os.kill(workers[2], signal.SIGKILL)
    env.members[1].engine.processes[0].join()
    with pytest.raises(EnvError, match="number 2 failed on action 1: its process died"):
        env.send(torch.tensor([1, 0]), 1)
    assert gone(workers)
    env.close()


def test_closing_while_a_group_works_leaves_no_process() -> None:
    env, workers = fragile()
    env.send(torch.tensor([0, 1]), 1)
    env.close()
    assert gone(workers)


@pytest.mark.parametrize("backend", ["ale", "envpool"])
def test_an_action_that_does_not_exist_is_named_by_its_row_among_all(backend: str) -> None:
    env = grouped(backend, 4)
    with closing(env):
        env.reset(seed=1)
        with pytest.raises(EnvError, match="number 3 failed on action 9: there are only actions 0 to"):
            env.step(torch.tensor([0, 1, 0, 9]))
        env.step(torch.tensor([0, 1, 0, 1]))  # goes on


# the way to a device -------------------------------------------------------------------------------------------------


def test_a_device_buffer_keeps_values_types_and_addresses() -> None:
    def arrays(seed: int) -> list[Any]:
        random = np.random.default_rng(seed)
        return [
            random.integers(0, 255, (3, 5, 7), np.uint8),  # of which no multiple is aligned
            random.normal(size=3).astype(np.float32),
            random.random(3) < 0.5,
            random.integers(0, 9, (3, 2)),
        ]

    landing = StepTransferBuffer(arrays(0), torch.device("cpu"))
    addresses = set()
    for seed in range(3):
        landed = landing(arrays(seed))
        addresses.add(tuple(tensor.data_ptr() for tensor in landed))
        for tensor, array in zip(landed, arrays(seed), strict=True):
            assert torch.equal(tensor, torch.from_numpy(array))
            assert tensor.is_contiguous()
    assert len(addresses) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["ale", "gymnasium"])
def test_on_a_device_all_is_as_on_the_host(backend: str) -> None:
    here, there = grouped(backend, 5, 9), grouped(backend, 5, 9)
    there.device = torch.device("cuda")
    with closing(here, there):
        assert torch.equal(here.reset(seed=3), there.reset(seed=3).cpu())
        actions = random_actions(here, 22)
        expected, steps = run(here, actions), run(there, actions.cuda())
        assert same(expected, [type(step)(*(t.cpu() for t in tensors(step))) for step in steps])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_a_group_answers_stays_where_it_is(device: str) -> None:
    env = grouped("envpool" if device == "cpu" else "ale", 4)
    env.device = torch.device(device)
    with closing(env):
        env.reset(seed=1)
        places: list[set[int]] = [set(), set()]
        for action in random_actions(env, 3):
            for group in (0, 1):
                env.send(action.view(2, 2)[group], group)
                places[group].add(env.recv(group).obs.data_ptr())
        assert len(places[0]) == len(places[1]) == 1
        assert places[0] != places[1]
