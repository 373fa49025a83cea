"""Atari through ale-py: the contract, and every row against engines that do not reset themselves and the plain emulator."""

import importlib.util
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from test_contract import DRAWING, OUTSIDE, Factory, checks_but, lockstep, random_actions, run, same

import tightrope as tr
from tightrope.envs.adapters import ale
from tightrope.envs.adapters.ale import AleEnv
from tightrope.envs.adapters.atari import FIRE, TWO_PLAYER, Rules, find_rom, installed_roms, presses_fire, title
from tightrope.envs.adapters.host import row_seeds
from tightrope.envs.registry import EnvOptions
from tightrope.envs.step_arrays import Array
from tightrope.errors import UsageError

ale_py = pytest.importorskip("ale_py")
AtariVectorEnv = pytest.importorskip("ale_py.vector_env").AtariVectorEnv

# engines to test with ------------------------------------------------------------------------------------------------


class Shelf:
    """Engines by size, used again when nobody holds them: making one takes 0.1 s a row. A seed makes them as new."""

    def __init__(self, rom: str) -> None:
        self.rom, self.free = rom, defaultdict(list)
        self.source = cache(lambda: ale.ADAPTER.from_id(f"{title(rom)}-v5", 1, "cpu", EnvOptions()))

    def __call__(self, seeds: Array) -> Any:
        free = self.free[len(seeds)]
        return Borrowed(free.pop() if free else self.source()._factory(seeds), free)


class Borrowed:
    """An engine that goes back to its shelf; it keeps what it last said."""

    def __init__(self, engine: Any, shelf: list[Any]) -> None:
        self.engine, self.shelf, self.info = engine, shelf, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def reset(self, **given: Any) -> tuple[Array, dict[str, Array]]:
        obs, self.info = self.engine.reset(**given)
        return obs, self.info

    def recv(self) -> Any:
        *answer, self.info = self.engine.recv()
        return (*answer, self.info)

    def __del__(self) -> None:
        self.shelf.append(self.engine)


SHELF = {rom: Shelf(rom) for rom in ("breakout", "space_invaders")}
PLAIN = Rules(clip_reward=False, life_is_episode=False)


def made(num_envs: int, limit: int = 27_000, rom: str = "breakout", rules: Rules = Rules(), seed: int = 0) -> AleEnv:  # noqa: B008
    source = SHELF[rom].source()
    env = AleEnv(
        SHELF[rom], (source._observation, source._action), num_envs, "cpu", f"{title(rom)}-v5", limit, rules, fires=True
    )
    env.seed(seed)
    return env


class Emulator:
    """One game on the plain emulator, without any engine."""

    def __init__(self, rom: str) -> None:
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(str(roms.get_rom_path(rom)))
        self.actions = self.ale.getMinimalActionSet()

    def start(self, frames: int) -> None:
        """A new game, `frames` frames on: FIRE, then no-ops."""
        self.ale.reset_game()
        for frame in range(frames):
            self.ale.act(ale_py.Action.NOOP if frame else ale_py.Action.FIRE)

    def step(self, action: int) -> tuple[float, bool]:
        """(reward, whether the game is over) of an action held for 4 frames."""
        reward = 0.0
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            if self.ale.game_over():
                break
        return reward, self.ale.game_over()


# the contract --------------------------------------------------------------------------------------------------------


def factory(num_envs: int, max_episode_steps: int | None = None, seed: int = 0) -> AleEnv:
    if num_envs < 1 or max_episode_steps == 0:
        return ale.ADAPTER.from_id("Breakout-v5", num_envs, "cpu", EnvOptions(max_episode_steps=max_episode_steps))
    return made(num_envs, max_episode_steps or 27_000, seed=seed)


# bytes have no extremes; three checks are made below with fewer rows, of which each takes 0.2 s to make and seed
@checks_but(*OUTSIDE, DRAWING[1], "truncates_exactly_at_the_limit", "finished_episodes", "spawn_is_independent")
def test_contract(check: Callable[[Factory], None]) -> None:
    few = lambda num_envs, **given: factory(min(num_envs, 2), **given)  # noqa: E731
    check(factory if check.__name__ == "check_shapes_dtypes_and_device" else few)


def test_spawn_is_independent() -> None:
    env, twin = made(1, limit=5, seed=1), made(1, limit=5, seed=1)
    actions = random_actions(env, 8)
    child = env.spawn(2, seed=9)
    assert type(child) is type(env)
    assert (child.num_envs, child.action, child.observation) == (2, env.action, env.observation)
    first = run(child, random_actions(child, 8))
    assert child.finished_episodes()[0] == 2
    assert env.finished_episodes()[0] == 0
    assert same(run(env, actions), run(twin, actions))
    assert same(run(made(2, limit=5, seed=9), random_actions(child, 8)), first)


# every row against engines that do not reset themselves --------------------------------------------------------------


def test_every_row_is_the_true_one() -> None:
    """Each game in an engine of its own that is only reset when told to: nothing is lost, added or shown too late."""
    alone = [AtariVectorEnv("breakout", 1, reward_clipping=False) for _ in range(2)]
    starts = [engine.reset(seed=int(seed)) for engine, seed in zip(alone, row_seeds(4, 2), strict=True)]
    seen = lockstep(made(2, limit=170, seed=4), alone, starts, limit=170, steps=450, clipped=True)
    assert all(seen[kind] for kind in ("over", "late", "lost")), seen


@pytest.mark.parametrize("rules", [Rules(), PLAIN], ids=["training", "scoring"])
def test_scores_are_those_of_the_plain_emulator(rules: Rules) -> None:
    env, emulator = made(1, rom="space_invaders", rules=rules, seed=1), Emulator("space_invaders")
    env.reset()
    emulator.start(int(env.engine.info["episode_frame_number"][0]))
    score, length, games, rewards, ends, lost = 0.0, 0, 0, set(), 0, False
    for action in random_actions(env, 900, seed=1):
        step, before = env.step(action), emulator.ale.lives()
        reward, over = emulator.step(FIRE if lost else int(action))
        lost = not over and emulator.ale.lives() < before
        score, length = score + reward, length + 1
        rewards.add(reward)
        assert step.reward == (reward if rules is PLAIN else np.sign(reward))
        assert env.finished_episodes().tolist() == ([1, score, length] if over else [0, 0, 0])
        ends += int(step.terminated)
        if rules is PLAIN:
            assert step.terminated == over
        if over:
            assert step.terminated
            emulator.start(int(env.engine.info["episode_frame_number"][0]))
            score, length, games = 0.0, 0, games + 1
        assert emulator.ale.getEpisodeFrameNumber() == env.engine.info["episode_frame_number"][0]
        assert emulator.ale.lives() == env.engine.info["lives"][0]
    assert games >= 1
    assert {0.0, 5.0, 10.0} <= rewards
    assert ends == games if rules is PLAIN else ends >= 3 * games


# lives ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [Rules(), PLAIN], ids=["training", "scoring"])
def test_games_go_on_under_a_policy_that_never_fires(rules: Rules) -> None:
    env = made(1, rules=rules, seed=2)
    env.reset()
    steps = run(env, torch.zeros(280, 1, dtype=torch.int64))
    assert env.finished_episodes()[0] >= 2
    lost = [bool(step.terminated) for step in steps]
    assert sum(lost) >= (10 if rules.life_is_episode else 2)


class Presses:
    """An engine that notes what it is sent, and says what lives its players have left."""

    def __init__(self, *lives: list[int]) -> None:
        self.lives, self.sent = [np.array(row) for row in lives], []

    def reset(self, **_: Any) -> tuple[Array, dict[str, Array]]:
        return np.zeros((2, 4, 84, 84), np.uint8), {"lives": self.lives[0]}

    def send(self, action: Array) -> None:
        self.sent.append(action.tolist())

    def recv(self) -> Any:
        over = self.lives[len(self.sent)] > self.lives[len(self.sent) - 1]
        obs, info = np.zeros((2, 4, 84, 84), np.uint8), {"lives": self.lives[len(self.sent)]}
        return obs, np.zeros(2, np.int32), over, np.zeros(2, bool), {**info, "final_obs": obs}


@pytest.mark.parametrize(("fires", "first"), [(True, FIRE), (False, 3)])
def test_fire_is_pressed_once_for_each_further_life(fires: bool, first: int) -> None:
    env = made(2)
    env.engine, env._fires = Presses([3, 3], [3, 2], [3, 2], [1, 1], [3, 0], [3, 3], [3, 3]), fires
    env.reset(seed=0)
    run(env, torch.full((6, 2), 3))
    assert env.engine.sent == [[3, 3], [3, first], [3, 3], [first, first], [3, 3], [3, 3]]
    env.engine = Presses([3, 3], [2, 2], [2, 2])
    env.reset()
    env.step(torch.tensor([3, 3]))
    env.reset()
    env.engine.sent.clear()
    env.step(torch.tensor([3, 3]))
    assert env.engine.sent == [[3, 3]], "a new game has no life to begin"


def test_games_without_a_fire_button() -> None:
    for rom in ale.ADAPTER.games:
        actions = [action.name for action in Emulator(rom).actions]
        assert presses_fire(rom, {}) == ("FIRE" in actions and rom not in ("backgammon", "video_checkers")), rom
        assert not presses_fire(rom, {}) or actions[FIRE] == "FIRE", rom
    assert presses_fire("pacman", {"full_action_space": True})
    assert not presses_fire("breakout", {"use_fire_reset": False})


def test_a_life_lost_at_the_time_limit_is_an_end() -> None:
    """Where both happen, the value of what follows is 0; the game is cut off all the same."""
    env = made(1, seed=9)
    env.reset()
    lengths = [t for t, action in enumerate(random_actions(env, 120, seed=9), 1) if env.step(action).terminated]
    env = made(1, limit=lengths[0], seed=9)
    env.reset()
    last = run(env, random_actions(env, 120, seed=9)[: lengths[0]])[-1]
    assert last.terminated
    assert not last.truncated
    assert not torch.equal(last.obs, last.final_obs)
    assert env.finished_episodes()[0] == 1


# seeds and threads ---------------------------------------------------------------------------------------------------


def starts(env: AleEnv, seed: int, count: int = 12) -> Array:
    """(count, N) frames played before each of many games is handed over: all that is random about them."""
    env.reset(seed=seed)
    frames = [env.engine.info["episode_frame_number"]]
    for _ in range(count):
        env.reset()
        frames.append(env.engine.info["episode_frame_number"])
    return np.stack(frames)


def test_streams() -> None:
    env = made(2)
    one, two, again = starts(env, 1), starts(env, 2), starts(env, 1)
    assert np.array_equal(one, again)
    streams = [tuple(column) for column in np.concatenate([one, two], axis=1).T]
    assert len(set(streams)) == 4
    assert np.array_equal(starts(env.spawn(2, seed=0), 1), one)


def test_close_ends_the_threads() -> None:
    threads = lambda: len(os.listdir("/proc/self/task")) if Path("/proc/self/task").exists() else 0  # noqa: E731
    before = threads()
    env = ale.ADAPTER.from_id("Breakout-v5", 2, "cpu", EnvOptions())
    env.reset(seed=1)
    env.close()
    assert threads() == before


# ids and settings ----------------------------------------------------------------------------------------------------


def test_every_game_is_found_by_the_id_that_gymnasium_has_for_it() -> None:
    gymnasium.register_envs(ale_py)
    registered = {name: spec.kwargs["game"] for name, spec in gymnasium.registry.items() if name.startswith("ALE/")}
    assert set(registered.values()) == set(ale_py.roms.get_all_rom_ids()) - TWO_PLAYER == set(ale.ADAPTER.games)
    for name, game in registered.items():
        for env_id in (name, name.removeprefix("ALE/"), f"{title(game)}NoFrameskip-v4"):
            assert ale.ADAPTER.provides(env_id)
            assert find_rom(env_id, ale.ADAPTER.games) == game


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert installed_roms("ale_py", "roms") == []
    assert ale.ADAPTER.provides("ALE/Breakout-v5")
    assert ale.ADAPTER.provides("BreakoutNoFrameskip-v4")
    assert not ale.ADAPTER.provides("HalfCheetah-v5")
    with pytest.raises(UsageError, match="not installed"):
        ale.ADAPTER.from_id("ALE/Breakout-v5", 1, "cpu", EnvOptions())
    spec = importlib.util.spec_from_file_location("tightrope.envs.adapters.ale_again", ale.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # imports nothing that is not there


def test_screens_in_colour_are_those_of_the_games_that_are_played() -> None:
    """With sticky actions, through resets by the game and by the clock: grey is what the player sees."""
    cv2 = pytest.importorskip("cv2")
    options = EnvOptions(max_episode_steps=170, env_kwargs={"repeat_action_probability": 0.25})
    env = ale.ADAPTER.from_id("Breakout-v5", 1, "cpu", options).spawn(3, seed=5, drawn=True)
    obs, ends = env.reset(), torch.zeros(2)
    for action in random_actions(env, 400):
        step = env.step(action)
        obs = step.obs
        ends += torch.stack([step.terminated.sum(), step.truncated.sum()])
        screens = env.draw(obs)
        assert screens.shape == (3, 210, 160, 3)
        for screen, stack in zip(screens, obs.numpy(), strict=True):
            grey = cv2.resize(cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)
            assert np.abs(grey.astype(int) - stack[-1]).max() <= 2
    assert (ends > 0).all()
    assert (screens.max(-1) != screens.min(-1)).mean() > 0.1  # colour
    env.close()


def test_pictures_show_the_newest_frame() -> None:
    env = made(1)
    obs = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    obs[1, 3, 42:] = 200
    frames = env.draw(obs)
    assert frames.shape == (2, 160, 160, 3)
    assert not frames[0].any()
    assert (frames[1, :79] == 0).all()
    assert (frames[1, 81:] == 200).all()


class Brightness(torch.nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.float().mean((2, 3))


def test_a_game_that_is_cut_at_its_limit_is_counted_and_said() -> None:
    settings: Any = dict(num_envs=2, max_episode_steps=20, network=Brightness)
    with tr.PPO("ALE/Pong-v5", backend="ale", device="cpu", **settings) as agent:
        score = agent.evaluate(3)
    assert (score.games_cut, score.lengths, score.unfinished) == (3, [20, 20, 20], 0)
    assert "3 of them cut at the limit of 20 steps" in str(score)
    assert score.as_dict()["games_cut"] == 3
