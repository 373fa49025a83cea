"""EnvPool: the contract, and every row against pools of one that are only reset when told to, and the plain emulator."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import skip_file_without
from test_contract import DRAWING, OUTSIDE, Factory, checks, checks_but, lockstep, random_actions, run

from tightrope.envs.adapters import envpool as ours
from tightrope.envs.adapters.atari import FIRE, title
from tightrope.envs.adapters.envpool import EnvPoolEnv
from tightrope.envs.adapters.host import row_seeds
from tightrope.envs.registry import EnvOptions
from tightrope.envs.step_arrays import Array
from tightrope.errors import UsageError

skip_file_without("envpool")


class Watched:
    """A pool that keeps what it last said, at a reset and at a step."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.info, self.start = pool, {}, {}

    def reset(self, rows: Array | None = None) -> Any:
        obs, info = self.pool.reset(rows)
        self.start = {k: np.copy(v) for k, v in info.items()}
        return obs, info

    def send(self, action: Array) -> None:
        self.pool.send(action)

    def recv(self) -> Any:
        *answer, info = self.pool.recv()
        self.info = {k: np.copy(v) for k, v in info.items()}
        return (*answer, info)


def made(env_id: str, num_envs: int, max_episode_steps: int | None = None, seed: int = 0, **options: Any) -> Any:
    env: Any = ours.ADAPTER.from_id(env_id, num_envs, "cpu", EnvOptions(max_episode_steps=max_episode_steps, **options))
    factory = env._factory
    env._factory = lambda seeds: Watched(factory(seeds))
    env.seed(seed)
    return env


# the contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Hopper-v5"])
@checks_but(*OUTSIDE, *DRAWING)
def test_contract(check: Callable[[Factory], None], env_id: str) -> None:
    check(partial(made, env_id))


# a game takes 0.1 s to make, and the rest is the same for all
@checks(lambda name: name in ("writing_into_results_changes_nothing", "fields_share_no_memory", "frames"))
def test_contract_of_a_game(check: Callable[[Factory], None]) -> None:
    check(lambda num_envs, **given: made("Breakout-v5", min(num_envs, 2), **given))


# every row against pools of one --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize(
    ("env_id", "limit", "steps"),
    [("CartPole-v1", 21, 400), ("Hopper-v5", 18, 200), ("LunarLander-v3", 75, 400), ("Breakout-v5", 150, 450)],
)
def test_every_row_is_the_true_one(env_id: str, limit: int, steps: int) -> None:
    """Nothing is lost, added or shown too late; what ends by itself at the time limit has ended by itself."""
    import envpool

    game = env_id == "Breakout-v5"
    seeds = row_seeds(4, 2 if game else 6)
    alone = [envpool.make_gymnasium(env_id, num_envs=1, seed=int(seed), max_episode_steps=10_000) for seed in seeds]
    env = made(env_id, len(seeds), limit, seed=4)
    seen = lockstep(env, alone, [pool.reset() for pool in alone], limit, steps, clipped=game)
    wanted = {"CartPole-v1": "both over late", "Hopper-v5": "both over late", "Breakout-v5": "over late lost"}
    assert all(seen[kind] for kind in wanted.get(env_id, "over late").split()), seen


# games ---------------------------------------------------------------------------------------------------------------


def start_like(emulator: Any, ram: Array) -> None:
    """A new game on the plain emulator, brought to the same state: no-ops, then FIRE."""
    from ale_py import Action

    emulator.ale.reset_game()
    for _ in range(31):
        state = emulator.ale.cloneState()
        emulator.ale.act(Action.FIRE)
        if np.array_equal(emulator.ale.getRAM(), ram):
            return
        emulator.ale.restoreState(state)
        emulator.ale.act(Action.NOOP)
    raise AssertionError("no start leads there")


@pytest.mark.parametrize("scoring", [False, True], ids=["training", "scoring"])
def test_scores_are_those_of_the_plain_emulator(scoring: bool) -> None:
    """Byte for byte the same memory after each step: a lost life costs neither a frame nor a reward."""
    from test_ale import Emulator

    env, emulator = made("SpaceInvaders-v5", 1, seed=3, scoring=scoring), Emulator("space_invaders")
    env.reset()
    start_like(emulator, env.engine.start["ram"][0])
    score, length, games, deaths, rewards, lost = 0.0, 0, 0, 0, set(), False
    for action in random_actions(env, 900, seed=3):
        before = emulator.ale.lives()
        step = env.step(action)
        reward, over = emulator.step(FIRE if lost else int(action))
        lost = not over and 0 < emulator.ale.lives() < before
        assert np.array_equal(env.engine.info["ram"][0], emulator.ale.getRAM())
        score, length, deaths = score + reward, length + 1, deaths + lost
        rewards.add(reward)
        assert step.reward == (reward if scoring else np.sign(reward))
        assert step.terminated == (over or (lost and not scoring))
        assert env.finished_episodes().tolist() == ([1, score, length] if over else [0, 0, 0])
        if over:
            score, length, games = 0.0, 0, games + 1
            start_like(emulator, env.engine.start["ram"][0])
    assert games >= 1
    assert deaths >= 2
    assert {0.0, 5.0, 10.0} <= rewards


@pytest.mark.parametrize("scoring", [False, True], ids=["training", "scoring"])
def test_games_go_on_under_a_policy_that_never_fires(scoring: bool) -> None:
    env = made("Breakout-v5", 1, seed=2, scoring=scoring)
    env.reset()
    steps = run(env, torch.zeros(280, 1, dtype=torch.int64))
    assert env.finished_episodes()[0] >= 2
    assert sum(bool(step.terminated) for step in steps) >= (2 if scoring else 10)


class Script:
    """A pool in which the first game is over at once and the second loses a life at once."""

    def __init__(self) -> None:
        self.lives = [0, 2]

    def reset(self, rows: Array | None = None) -> Any:
        return np.zeros((1, 4, 84, 84), np.uint8), {"lives": np.array([3])}

    def send(self, action: Array) -> None: ...

    def recv(self) -> Any:
        left = self.lives.pop(0)
        flags = np.array([left == 0]), np.array([False])
        return np.zeros((1, 4, 84, 84), np.uint8), np.zeros(1, np.float32), *flags, {"lives": np.array([left])}


def test_a_life_lost_in_the_first_step_of_a_game() -> None:
    env = made("Pong-v5", 1)
    env._factory = lambda seeds: Script()
    env.reset()
    assert [bool(step.terminated) for step in run(env, random_actions(env, 2))] == [True, True]
    assert env.finished_episodes()[0] == 1


def test_games_are_drawn() -> None:
    env = made("ALE/Pong-v5", 2)
    assert env.draw(env.reset()).shape == (2, 160, 160, 3)
    with pytest.raises(UsageError, match="cannot be drawn"):
        EnvPoolEnv.draw(made("CartPole-v1", 1), torch.zeros(1, 4))


# seeds, threads and pools --------------------------------------------------------------------------------------------


def test_streams() -> None:
    env = made("CartPole-v1", 4, 3)

    def starts(env: Any, seed: int) -> torch.Tensor:
        return torch.stack([env.reset(seed=seed), *(step.obs for step in run(env, random_actions(env, 9)))], 1)

    one, two, again = starts(env, 1), starts(env, 2), starts(env, 1)
    assert torch.equal(one, again)
    assert len(torch.cat([one, two]).unique(dim=0)) == 8
    assert len(torch.cat([one, two])[:, 0].unique(dim=0)) == 8
    assert torch.equal(starts(env.spawn(4, seed=0), 1), one)
    first = env.reset(seed=1)
    assert not torch.equal(env.reset(), first)


def test_a_pool_is_made_when_there_are_seeds_and_closed_when_there_are_others() -> None:
    threads = lambda: len(os.listdir("/proc/self/task")) if Path("/proc/self/task").exists() else 0  # noqa: E731
    env = ours.ADAPTER.from_id("CartPole-v1", 4, "cpu", EnvOptions())
    before = threads()
    assert env.engine is None
    env.reset(seed=1)
    running = threads()
    env.reset(seed=2)
    assert threads() == running
    pool = env.engine
    env.reset()
    assert env.engine is pool
    del pool
    env.close()
    assert threads() == before


# ids and settings ----------------------------------------------------------------------------------------------------


def test_every_id_is_one_of_theirs() -> None:
    import envpool

    theirs = set(envpool.list_all_envs())
    assert theirs >= ours.TASKS
    assert all(ours.ADAPTER.provides(env_id) for env_id in ours.TASKS)
    games = {game: "".join(word.capitalize() for word in game.split("_")) + "-v5" for game in ours.ADAPTER.games}
    assert set(games.values()) == {
        name for name in theirs if envpool.registration.registry.specs[name][0] == "envpool.atari"
    }
    for game in games:
        assert all(ours.ADAPTER.provides(env_id) for env_id in (f"ALE/{title(game)}-v5", f"{title(game)}-v5"))
    env = ours.ADAPTER.from_id("TicTacToe3D-v5", 1, "cpu", EnvOptions())
    assert env.reset().shape == (1, 4, 84, 84)


def test_asking_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "envpool"]:
        monkeypatch.delitem(sys.modules, name)
    assert ours.ADAPTER.provides("HalfCheetah-v5")
    assert ours.ADAPTER.provides("Breakout-v5")
    assert not ours.ADAPTER.provides("Brekout-v5")
    assert "envpool" not in sys.modules


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("envpool", "envpool_assets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert ours.ADAPTER.provides("ALE/Breakout-v5")
    assert ours.ADAPTER.provides("HalfCheetah-v5")
    assert not ours.ADAPTER.provides("Brekout-v5")
    for env_id in ("ALE/Breakout-v5", "HalfCheetah-v5"):
        with pytest.raises(UsageError, match="cannot be made"):
            ours.ADAPTER.from_id(env_id, 1, "cpu", EnvOptions())


def test_options_of_a_task() -> None:
    env = ours.ADAPTER.from_id("CartPole-v1", 1, "cpu", EnvOptions())
    assert (env.max_episode_steps, env.solved_at, env._rules) == (500, 475.0, None)
    assert env.spawn(2, seed=1).solved_at == 475.0
    with pytest.raises(UsageError, match="Did you mean HalfCheetah-v5"):
        ours.ADAPTER.from_id("HalfCheeta-v5", 1, "cpu", EnvOptions())
