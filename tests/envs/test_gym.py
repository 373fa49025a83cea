"""Gymnasium's environments in every form they come in: each row is what the plain environment would have said."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from test_contract import CHECKS, DRAWING, OUTSIDE, random_actions, refusal, run
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms.ppo import phase
from tightrope.engine import draw_noise, stream_seed
from tightrope.envs import make
from tightrope.envs.adapters import spaces
from tightrope.envs.adapters.gym import from_object
from tightrope.envs.adapters.host import row_seeds
from tightrope.envs.adapters.space_members import stacked
from tightrope.errors import EnvError, UsageError
from tightrope.processes import alive
from tightrope.types import Box

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*(Received the following error|Traceback|Raising the last exception)(.|\n)*"),
]
SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
WALK, SMALL_RUN = "Walk-v0", dict(num_steps=8, total_timesteps=64, hidden_sizes=(8,), num_minibatches=2, device="cpu")


# environments to test with -------------------------------------------------------------------------------------------

PLACE = gs.Box(-np.inf, np.inf, (2,))
SHOWN = {  # ways to show where the walker is and how long it has walked
    "vector": (PLACE, lambda at, age: np.array([at, age], np.float32)),
    "dict": (
        gs.Dict({"place": PLACE, "side": gs.Discrete(2, start=3)}),
        lambda at, age: {"place": np.array([at, age], np.float32), "side": 3 + int(at > 0)},
    ),
    "tuple": (
        gs.Tuple([gs.MultiBinary(3), gs.Box(-np.inf, np.inf, (1,), np.float64)]),
        lambda at, age: (np.array([at > 0, at > 1, age % 2], np.int8), np.array([at])),
    ),
    "int": (gs.Discrete(100, start=-50), lambda at, age: int(10 * at)),
    "picture": (
        gs.Box(0, 255, (36, 40, 3), np.uint8),
        lambda at, age: np.full((36, 40, 3), (int(30 * at) + 128, age % 256, 7), np.uint8),
    ),
}


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a line that ends too far out; starts and gusts of wind are random, the pay is where one is."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    action_space = gs.Discrete(3)

    def __init__(self, kind: str = "vector", limit: int | None = None, render_mode: str | None = None) -> None:
        self.observation_space, self.show = SHOWN[kind]
        self.limit, self.render_mode = limit, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.age = float(self.np_random.uniform(-1, 1)), 0
        return self.show(self.at, self.age), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.at += int(action) - 1 + 0.1 * float(self.np_random.normal())
        self.age += 1
        late = self.limit is not None and self.age >= self.limit
        return self.show(self.at, self.age), self.at, abs(self.at) > 2, late, {}

    def render(self) -> Any:
        return np.full((64, 64, 3), 128 + int(20 * self.at), np.uint8) if self.render_mode == "rgb_array" else None


class Rows(VectorEnv[Any, Any, Any]):
    """A vector environment of someone's own making: one seed for all rows, none can be reset alone.

    What it says in a row that it only resets is nonsense, which nobody may take for a step.
    """

    def __init__(
        self, num_envs: int, kind: str = "vector", limit: int | None = None, mode: Any = NEXT, key: str = "final_obs"
    ) -> None:
        self.num_envs, self.mode, self.key = num_envs, mode, key
        self.metadata = {"autoreset_mode": mode} if mode is not None else {}
        self.walks = [Walk(kind, limit) for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = SHOWN[kind][0], Walk.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.over = np.zeros(num_envs, bool)

    def batch(self, singles: list[Any]) -> Any:
        space = self.single_observation_space
        return concatenate(space, singles, create_empty_array(space, len(singles)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert not options
        self.over[:] = False
        return self.batch([w.reset(seed=None if seed is None else seed + i)[0] for i, w in enumerate(self.walks)]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        shown, finals, pay, ends, cuts = [], [], [], [], []
        for i, walk in enumerate(self.walks):
            if self.over[i] and self.mode is NEXT:
                obs, reward, terminated, truncated, self.over[i] = walk.reset()[0], 1e3, True, True, False
                final = obs
            else:
                obs, reward, terminated, truncated, _ = walk.step(actions[i])
                final, self.over[i] = obs, terminated or truncated
                if self.over[i] and self.mode is SAME:
                    obs, _ = walk.reset()
            for column, value in zip(
                (shown, finals, pay, ends, cuts), (obs, final, reward, terminated, truncated), strict=True
            ):
                column.append(value)
        info = {self.key: self.batch(finals), f"_{self.key}": self.over.copy()} if self.mode is SAME else {}
        return self.batch(shown), np.array(pay), np.array(ends), np.array(cuts), info


if WALK not in gymnasium.registry:
    gymnasium.register(WALK, Walk, max_episode_steps=50)


def at_most(limit: int | None, kind: str = "vector") -> Callable[[], Walk]:
    return lambda: Walk(kind, limit)


def by_id(num_envs: int, kind: str, limit: int | None, **options: Any) -> Any:
    return make(WALK, num_envs, max_episode_steps=limit, backend="gymnasium", env_kwargs={"kind": kind}, **options)


def vector(cls: type[Any], mode: AutoresetMode, num_envs: int, kind: str, limit: int | None, **settings: Any) -> Any:
    return from_object(cls([at_most(limit, kind)] * num_envs, autoreset_mode=mode, **settings), num_envs)


def rows(mode: AutoresetMode, num_envs: int, kind: str, limit: int | None) -> Any:
    return from_object(lambda num_envs: Rows(num_envs, kind, limit, mode), num_envs)


def of_class(num_envs: int, kind: str, limit: int | None) -> Any:
    class Limited(Walk):
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__(kind, limit, render_mode)

    return from_object(Limited, num_envs)


FORMS: dict[str, Callable[[int, str, int | None], Any]] = {
    "id": by_id,
    "id in processes": partial(by_id, vectorization_mode="async"),
    "class": of_class,
    "factory": lambda n, kind, limit: from_object(at_most(limit, kind), n),
    "instance": lambda n, kind, limit: from_object(Walk(kind, limit), n),
    "instance with spec": lambda n, kind, limit: from_object(
        gymnasium.make(WALK, kind=kind, max_episode_steps=-1 if limit is None else limit), n
    ),
    "sync same-step": partial(vector, SyncVectorEnv, SAME),
    "sync next-step": partial(vector, SyncVectorEnv, NEXT),
    "sync disabled": partial(vector, SyncVectorEnv, DISABLED),
    "async same-step": partial(vector, AsyncVectorEnv, SAME),
    "async next-step": partial(vector, AsyncVectorEnv, NEXT),
    "async disabled": partial(vector, AsyncVectorEnv, DISABLED),
    "own same-step": partial(rows, SAME),
    "own next-step": partial(rows, NEXT),
}
IN_PROCESSES = [name for name in FORMS if "async" in name or "processes" in name]
every_form = pytest.mark.parametrize("form", list(FORMS))


def made(form: str, num_envs: int, max_episode_steps: int | None = None, seed: int = 0, kind: str = "vector") -> Any:
    env = FORMS[form](num_envs, kind, max_episode_steps)
    env.seed(seed)
    return env


def ppo(env: Any, num_envs: int = 4, **settings: Any) -> tr.PPO:
    fixed = {} if hasattr(env, "num_envs") else {"num_envs": num_envs}
    return tr.PPO(env, **{**SMALL_RUN, **fixed, **settings})


# the contract --------------------------------------------------------------------------------------------------------

# who makes an engine chooses its size; what we make is tested below
INAPPLICABLE = {*OUTSIDE, *DRAWING, "step_reads_nothing_on_the_host", "bad_sizes_are_refused"}
CONTRACT = {name: check for check in CHECKS if (name := check.__name__[6:]) not in INAPPLICABLE}
SLOW = {"reset_restarts_unfinished_episodes", "spawn_is_independent", "finished_episodes", "seeds"}  # in many processes
ABOUT_OBSERVATIONS = ["shapes_dtypes_and_device", "fields_share_no_memory", "nothing_returned_is_an_alias"]


SAME_KIND = ("class", "factory", "instance with spec")  # as id and instance once they are made


@pytest.mark.parametrize("form", [name for name in FORMS if not name.startswith("async") and name not in SAME_KIND])
@pytest.mark.parametrize("check", list(CONTRACT))
def test_contract(check: str, form: str) -> None:
    if check in SLOW and form in IN_PROCESSES:
        pytest.skip("many processes; see test_every_row_is_the_true_one")
    CONTRACT[check](partial(made, form))


@pytest.mark.parametrize("kind", ["dict", "tuple", "int"])
@pytest.mark.parametrize("form", ["id", "sync next-step", "own same-step", "own next-step"])
@pytest.mark.parametrize("check", ABOUT_OBSERVATIONS)
def test_contract_of_other_observations(check: str, form: str, kind: str) -> None:
    CONTRACT[check](partial(made, form, kind=kind))


def cartpole(num_envs: int, max_episode_steps: int | None = None, seed: int = 0) -> Any:
    options = dict(max_episode_steps=max_episode_steps, vectorization_mode="vector_entry_point", backend="gymnasium")
    env = make("CartPole-v1", num_envs, **options)
    env.seed(seed)
    return env


@pytest.mark.parametrize("check", list(CONTRACT))
def test_contract_of_an_entry_point(check: str) -> None:
    CONTRACT[check](cartpole)


def test_bad_sizes_are_refused_in_every_form() -> None:
    for form in ("id", "class", "factory", "instance"):
        assert "num_envs 0" in refusal(FORMS[form], 0, "vector", None)
    for form in FORMS:
        assert "num_envs 0" in refusal(FORMS[form](1, "vector", None).spawn, 0, seed=0), form


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
@pytest.mark.parametrize("settings", [{"num_envs": 0}, {"num_envs": 2, "max_episode_steps": 0}], ids=["rows", "steps"])
def test_bad_sizes_are_refused_in_every_mode(mode: str, settings: dict[str, Any]) -> None:
    setting = next(reversed(settings))
    assert f"{setting} 0" in refusal(make, "CartPole-v1", backend="gymnasium", vectorization_mode=mode, **settings)


# every row against plain environments --------------------------------------------------------------------------------


def seeds_of(form: str, seed: int, num_envs: int) -> list[int]:
    """What each row is seeded with: an engine of someone's own takes one seed and counts on from it."""
    each = [int(s) for s in row_seeds(seed, num_envs)]
    return [each[0] + i for i in range(num_envs)] if form.startswith("own") else each


def assert_lockstep(env: Any, walks: list[Any], seeds: list[int], steps: int, seed: int) -> Counter[str]:
    """Every field of every row is what a plain environment says that is stepped and reset by hand."""
    read = spaces.observation_reader(walks[0].observation_space)
    one = lambda obs: torch.from_numpy(read.rows(stacked(read.space, [obs])))[0]  # noqa: E731
    starts = [walk.reset(seed=s)[0] for walk, s in zip(walks, seeds, strict=True)]
    assert torch.equal(env.reset(seed=seed), torch.stack([one(start) for start in starts]))
    seen: Counter[str] = Counter()
    resetting = [False] * len(walks)
    for action in random_actions(env, steps, seed=1):
        step = env.step(action)
        native = env.decode(action)
        assert (step.valid is None) == (not env.skips)
        for i, walk in enumerate(walks):
            if env.skips and resetting[i]:
                obs, reward, terminated, truncated, real = walk.reset()[0], 0.0, False, False, False
            else:
                (obs, reward, terminated, truncated, _), real = walk.step(native[i]), True
            final, done = obs, terminated or truncated
            if done and not env.skips:
                obs, _ = walk.reset()
            resetting[i] = done
            assert torch.equal(step.obs[i], one(obs))
            assert torch.equal(step.final_obs[i], one(final))
            assert step.reward[i] == np.float32(reward)
            assert step.terminated[i] == terminated
            assert step.truncated[i] == (truncated and not terminated)
            assert step.valid is None or step.valid[i] == real
            seen[
                "both" if terminated and truncated else "terminated" if terminated else "truncated" if done else "on"
            ] += 1
            seen["fake"] += not real
    return seen


def lockstep_of_three(env: Any) -> None:
    assert_lockstep(env, [Walk("vector", 4) for _ in range(3)], seeds_of("", 5, 3), 30, seed=5)


@every_form
@pytest.mark.parametrize("kind", list(SHOWN))
def test_every_row_is_the_true_one(form: str, kind: str) -> None:
    """Nothing is lost, added or shown too late; what ends by itself on the last step has ended by itself."""
    num_envs, limit = 3, 4
    env = FORMS[form](num_envs, kind, limit)
    walks = [Walk(kind, limit) for _ in range(num_envs)]
    seen = assert_lockstep(env, walks, seeds_of(form, 5, num_envs), 60, seed=5)
    assert all(seen[what] for what in ("both", "terminated", "truncated", "on")), seen
    assert bool(seen["fake"]) == env.skips == (form == "own next-step")
    env.close()


SETTINGS: list[tuple[Any, dict[str, Any]]] = [
    *((cls, {"copy": False}) for cls in (SyncVectorEnv, AsyncVectorEnv)),
    *((cls, {"observation_mode": (batch_space(PLACE, 3), PLACE)}) for cls in (SyncVectorEnv, AsyncVectorEnv)),
    (AsyncVectorEnv, {"shared_memory": False}),
]


@pytest.mark.parametrize("mode", [SAME, NEXT, DISABLED])
@pytest.mark.parametrize(
    ("cls", "settings"), SETTINGS, ids=lambda x: next(iter(x)) if isinstance(x, dict) else x.__name__
)
def test_every_row_is_the_true_one_whatever_the_engine_is_set_to(cls: Any, mode: Any, settings: Any) -> None:
    env = vector(cls, mode, 3, "vector", 4, **settings)
    lockstep_of_three(env)
    env.close()


@pytest.mark.parametrize("mode", [SAME, NEXT, DISABLED])
def test_a_wrapped_engine_is_driven_as_the_wrapper_wants(mode: Any) -> None:
    inner = SyncVectorEnv([at_most(4)] * 3, autoreset_mode=mode)
    env = from_object(gymnasium.wrappers.vector.TransformReward(inner, lambda reward: reward), 3)
    assert env.skips == (mode is NEXT), "a wrapper may not pass on a reset of some rows"
    lockstep_of_three(env)


class InPlace(Walk):
    """Shows the same array every time, written anew."""

    def __init__(self, kind: str = "vector", limit: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(kind, limit, render_mode)
        buffer = np.zeros(2, np.float32)
        self.show = lambda at, age: np.copyto(buffer, [at, age]) or buffer


class ReadOnly(Rows):
    """Hands out arrays that nobody may write, as JAX does."""

    def batch(self, singles: list[Any]) -> Any:
        rows = super().batch(singles)
        rows.flags.writeable = False
        return rows


@pytest.mark.parametrize(
    "env",
    [
        lambda: from_object(lambda: InPlace("vector", 4), 3),
        lambda: make("InPlace-v0", 3, backend="gymnasium", vectorization_mode="async"),
        lambda: vector_of(InPlace, SyncVectorEnv, NEXT),
        lambda: vector_of(InPlace, AsyncVectorEnv, NEXT),
        lambda: vector_of(InPlace, SyncVectorEnv, DISABLED),
        lambda: vector_of(InPlace, AsyncVectorEnv, DISABLED),
    ],
    ids=["factory", "id in processes", "sync next-step", "async next-step", "sync disabled", "async disabled"],
)
def test_an_environment_may_use_one_buffer_for_all_it_shows(env: Callable[[], Any], own_ids: None) -> None:
    gymnasium.register("InPlace-v0", InPlace, kwargs={"limit": 4})
    lockstep_of_three(env())


@pytest.mark.parametrize("shown", [np.array([1 / 3, 5e-324]), np.array([2**60 + 2**36 + 1, -3]), [0.1, 2]])
def test_single_observations_are_converted_as_a_batch_is(shown: Any) -> None:
    def walk() -> Walk:
        made = Walk("vector", 4)
        made.show = lambda at, age: shown
        return made

    env = from_object(walk, 2)
    read = spaces.observation_reader(walk().observation_space)
    expected = torch.from_numpy(read.rows(stacked(read.space, [shown, shown])))
    assert torch.equal(env.reset(seed=1), expected)
    assert torch.equal(env.step(random_actions(env, 1)[0]).obs, expected)


def vector_of(walk: type[Walk], cls: type[Any], mode: AutoresetMode) -> Any:
    return from_object(cls([lambda: walk("vector", 4)] * 3, autoreset_mode=mode), 3)


def test_an_engine_may_hand_out_arrays_that_cannot_be_written() -> None:
    env = from_object(ReadOnly(3, limit=4), 3)
    obs = env.reset(seed=1)
    obs.fill_(7)  # what we hand out can be
    assert all(step.obs.isfinite().all() and (step.obs != 7).any() for step in run(env, random_actions(env, 10)))


def test_an_engine_with_a_dense_final_observation_under_its_old_name() -> None:
    env = from_object(Rows(3, "dict", 4, SAME, key="final_observation"), 3)
    assert_lockstep(env, [Walk("dict", 4) for _ in range(3)], seeds_of("own", 5, 3), 30, seed=5)


def test_an_engine_that_keeps_its_final_observations_to_itself_is_an_error() -> None:
    env = from_object(Rows(3, limit=4, mode=SAME, key="other"), 3)
    env.reset(seed=1)
    with pytest.raises(EnvError, match="final_obs"):
        run(env, random_actions(env, 10))


def test_an_engine_that_does_not_say_how_it_resets_is_refused() -> None:
    message = refusal(from_object, Rows(3, mode=None), 3)
    assert "autoreset_mode" in message
    assert "Rows" in message


@pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])
def test_an_engine_may_say_how_it_resets_in_words(mode: str) -> None:
    engine = Rows(3)
    engine.metadata = {"autoreset_mode": mode}
    assert from_object(engine, 3).skips == (mode == NEXT.value)


# steps that are not real ---------------------------------------------------------------------------------------------


class Poison(VectorEnv[Any, Any, Any]):
    """Episodes of 3 steps. What is shown and paid where it only resets itself would ruin every statistic."""

    metadata = {"autoreset_mode": NEXT}  # noqa: RUF012
    single_observation_space, single_action_space = gs.Box(-np.inf, np.inf, (1,)), gs.Discrete(2)

    def __init__(self, num_envs: int, length: int = 3) -> None:
        self.num_envs, self.length = num_envs, length
        self.observation_space, self.action_space = (
            batch_space(s, num_envs) for s in (self.single_observation_space, self.single_action_space)
        )
        self.clock = np.arange(num_envs) % length  # rows out of step with each other

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.clock = np.arange(self.num_envs) % self.length
        return self.shown(), {}

    def shown(self) -> Any:
        return np.where(self.clock == self.length, 1e6, self.clock)[:, None].astype(np.float32)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        fake = self.clock == self.length
        self.clock = np.where(fake, 0, self.clock + 1)
        done = self.clock == self.length
        return self.shown(), np.where(fake, 1e6, 1.0 + done), done | fake, np.zeros(self.num_envs, bool), {}


def test_nothing_learns_from_a_step_that_is_not_real() -> None:
    agent = ppo(Poison(4), num_steps=12, total_timesteps=48, norm_obs=True, norm_reward=True)
    agent.learn(quiet=True)
    rollout, policy = agent.state.rollout, agent.policy
    assert rollout.skips
    clock = (torch.arange(12)[:, None] + torch.arange(4) % 3) % 4  # 0, 1, 2, then the step that only resets
    assert torch.equal(rollout.valid, clock != 3)
    assert not (rollout.done & ~rollout.valid).any()
    assert not rollout.reward[~rollout.valid].any()
    assert (rollout.obs[~rollout.valid] == 1e6).all(), "the poison is there"

    batch = rollout.batch(rollout.value, rollout.value)
    assert len(batch) == rollout.valid.sum() == 36
    assert torch.equal(batch.obs[:, 0], clock[clock != 3].float())
    assert policy.normalizer.count == 36
    torch.testing.assert_close(policy.normalizer.mean, torch.ones(1), rtol=0, atol=0.1)
    assert policy.normalizer.variance < 1
    expected = []
    for column in range(4):
        running = 0.0
        for t in range(12):
            if clock[t, column] < 3:  # paid 1, 1 and 2
                running = (2 if clock[t, column] == 2 else 1) + agent.config.algorithm.gamma * running
                expected.append(running)
            if clock[t, column] == 2:
                running = 0.0
    scaler = policy.reward_scaler
    assert scaler.count == 36
    assert float(scaler.mean) == pytest.approx(np.mean(expected), rel=1e-4)
    assert float(scaler.variance) == pytest.approx(np.var(expected), rel=1e-3)


def test_after_a_reset_of_all_every_step_is_real() -> None:
    env = from_object(Poison(4), 4)
    for _ in range(2):
        env.reset(seed=1)
        first, second = run(env, random_actions(env, 2))
        assert first.valid.all()
        assert second.valid.tolist() == [True, True, False, True]
        assert first.terminated.tolist() == [False, False, True, False]
    env.reset()
    env.step(random_actions(env, 1)[0])  # the third is about to reset itself
    env.reset()
    assert env.step(random_actions(env, 1)[0]).valid.all()


def test_a_step_that_is_not_real_is_part_of_no_episode() -> None:
    env = from_object(Poison(4), 4)
    env.reset(seed=1)
    steps = run(env, random_actions(env, 13))
    done = torch.stack([step.terminated for step in steps])
    count, total, length = env.finished_episodes().tolist()
    cut_short = [0.0, 1.0, 2.0, 0.0]  # steps that the first episode of each row lacks
    assert count == done.sum()
    assert length == 3 * count - sum(cut_short)
    assert total == 4 * count - sum(cut_short)


def test_vpg_learns_nothing_from_a_step_that_is_not_real() -> None:
    settings = dict(num_steps=6, total_timesteps=96, hidden_sizes=(8,), device="cpu", norm_obs=True)
    agent = tr.VPG(Poison(4), **settings, full_reset=False, baseline="none")
    agent.learn(quiet=True)
    assert agent.policy.normalizer.mean < 3
    assert agent.policy.normalizer.variance < 3
    assert all(p.isfinite().all() for p in agent.policy.parameters())


def test_the_reward_that_is_reported_is_that_of_real_steps() -> None:
    agent = ppo(Poison(4), num_steps=12, total_timesteps=48)
    config = agent.config.algorithm
    noise = draw_noise(agent.state.env, agent.policy.head.noise, 12, (config.update_epochs, 48), 1, 0)
    metrics = phase(agent.state, config, noise)
    rollout = agent.state.rollout
    assert float(metrics.reward) == pytest.approx(float(rollout.reward[rollout.valid].mean()))


def test_minibatches_may_be_more_than_there_are_real_steps(capsys: pytest.CaptureFixture[str]) -> None:
    agent = ppo(Poison(2, length=1), num_steps=2, num_minibatches=4, total_timesteps=40).learn(quiet=True)
    assert all(p.isfinite().all() for p in agent.policy.parameters())
    assert "nan" not in capsys.readouterr().err
    assert "num_steps 1 is too few" in refusal(ppo, Poison(2, length=1), num_steps=1, num_minibatches=1)


# seeds ---------------------------------------------------------------------------------------------------------------


@every_form
def test_seeds_give_each_row_a_stream_of_its_own(form: str) -> None:
    env = FORMS[form](3, "vector", 4)
    starts = {seed: env.reset(seed=seed) for seed in (1, 2, 3)}
    places = torch.cat([start[:, 0] for start in starts.values()])
    assert len(places.unique()) == 9, "two rows or two seeds share a stream"
    assert torch.equal(env.reset(seed=2), starts[2])
    following = env.reset()
    assert not torch.isin(following[:, 0], places).any(), "a reset without a seed starts over"
    walks = [Walk() for _ in range(3)]
    for walk, seed in zip(walks, seeds_of(form, 2, 3), strict=True):
        walk.reset(seed=seed)
    assert torch.equal(following, torch.stack([torch.from_numpy(walk.reset()[0]) for walk in walks]))
    env.close()


def test_seeds_next_to_each_other_have_nothing_in_common() -> None:
    seeds = [set(row_seeds(seed, 64).tolist()) for seed in range(20)]
    assert all(len(one) == 64 for one in seeds)
    assert len(set.union(*seeds)) == 20 * 64
    assert all(0 <= s < 2**31 for one in seeds for s in one)
    assert row_seeds(3, 4).tolist() == row_seeds(3, 8)[:4].tolist(), "a row's seed depends on how many there are"


@pytest.mark.parametrize("form", ["id", "instance", "sync next-step", "own next-step"])
def test_a_seed_given_at_making_is_that_of_the_first_reset(form: str) -> None:
    env, other = made(form, 3, seed=7), made(form, 3)
    assert torch.equal(env.reset(), other.reset(seed=7))
    assert torch.equal(made(form, 3, seed=8).spawn(2, seed=7).reset(), made(form, 2).reset(seed=7))


def test_training_does_not_depend_on_what_was_done_with_the_instance() -> None:
    used = gymnasium.make(WALK)
    used.reset(seed=5)
    used.step(1)
    one, other = ppo(used), ppo(gymnasium.make(WALK))
    assert torch.equal(one.state.obs, other.state.obs)
    assert used.unwrapped.age == 1, "the instance itself is left alone"


# time limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("limit", "expected"), [(None, 50), (7, 7)])
def test_max_episode_steps_takes_the_place_of_the_environments_own(limit: Any, expected: int, mode: str) -> None:
    options = dict(backend="gymnasium", vectorization_mode=mode, max_episode_steps=limit)
    env = make(WALK, 2, **options, env_kwargs={"kind": "vector"})
    env.reset(seed=1)
    still = [env.step(torch.ones(2, dtype=torch.int64)) for _ in range(expected)]
    late = [bool(step.truncated.all()) for step in still]
    assert late == [False] * (expected - 1) + [True]
    assert torch.equal(still[-1].final_obs[:, 1], torch.full((2,), float(expected)))
    env.close()


def test_max_episode_steps_of_an_entry_point() -> None:
    for limit in (None, 9):
        env = cartpole(2, limit)
        env.reset(seed=1)
        assert env.engine.unwrapped.max_episode_steps == (limit or 500)


def test_a_class_takes_arguments_and_a_time_limit_and_an_instance_does_not() -> None:
    agent = ppo(Walk, max_episode_steps=5, env_kwargs={"kind": "dict"})
    assert len(agent.state.env.observation.parts) > 1
    assert max(agent.evaluate(20).lengths) == 5
    for settings in ({"max_episode_steps": 5}, {"env_kwargs": {"kind": "dict"}}):
        assert next(iter(settings)) in refusal(ppo, Walk("vector", 20), **settings)
    assert "max_episode_steps" in refusal(ppo, lambda num_envs: Rows(num_envs), max_episode_steps=5)


def test_an_id_registered_by_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ids: None) -> None:
    monkeypatch.chdir(tmp_path)
    entry = "import gymnasium\ngymnasium.register('Elsewhere-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    Path("registers.py").write_text(entry)
    assert make("registers:Elsewhere-v0", 2, backend="gymnasium").reset().shape == (2, 4)
    assert "unknown env" in refusal(make, "registers:Other-v0")


def test_games_are_not_trained_on_raw_by_mistake() -> None:
    pytest.importorskip("ale_py")
    assert "backend ale" in refusal(make, "ALE/Pong-v5", backend="gymnasium")


class Endless(Walk):
    """Nothing ends it."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


def test_episodes_that_nothing_ends_are_said_to_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.training.evaluate.MAX_HOST_EPISODE_STEPS", 30)
    result = ppo(Endless).evaluate(2)
    assert (result.unfinished, result.lengths) == (2, [30, 30])
    assert "2 of them cut off after 30 steps, set max_episode_steps" in str(result)
    assert "cut off" not in str(ppo(Walk).evaluate(2))


# workers -------------------------------------------------------------------------------------------------------------


class Fragile(Walk):
    """Action 2 is hard work; told so, it fails instead, or at its reset."""

    def __init__(self, fails_on: int = 99, fails_at_reset: int = 99) -> None:
        super().__init__()
        self.fails_on, self.fails_at_reset, self.resets = fails_on, fails_at_reset, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets > self.fails_at_reset:
            raise ValueError("it would\nnot start")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action == self.fails_on:
            raise ZeroDivisionError("an axle\nbroke, 100%")  # the percent sign is part of the traceback
        if action == 2:
            time.sleep(30)
        return super().step(action)


if "Fragile-v0" not in gymnasium.registry:
    gymnasium.register("Fragile-v0", Fragile)


def fragile(mode: str = "async", num_envs: int = 3, **env_kwargs: Any) -> Any:
    env = make("Fragile-v0", num_envs, backend="gymnasium", vectorization_mode=mode, env_kwargs=env_kwargs)
    env.reset(seed=1)
    return env


def pids(env: Any) -> list[int]:
    return [process.pid for process in env.engine.unwrapped.processes]


def failure(call: Callable[[], Any]) -> EnvError:
    with pytest.raises(EnvError) as error:
        call()
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize("when", ["at its reset", "between two steps", "during a step"])
def test_a_worker_that_dies_is_named_and_none_is_left(when: str) -> None:
    env = make("Fragile-v0", 3, backend="gymnasium", vectorization_mode="async")
    workers, action, call = pids(env), 2 if when == "during a step" else 1, lambda: env.reset(seed=1)
    if when != "at its reset":
        env.reset(seed=1)
        env.step(torch.tensor([0, 1, 1]))
        call = lambda: env.step(torch.tensor([0, action, 0]))  # noqa: E731
    killer = threading.Timer(0.3 if when == "during a step" else 0.0, os.kill, (workers[1], signal.SIGKILL))
    killer.start()
    if when != "during a step":
        killer.join()
    began, failed = time.perf_counter(), when if when == "at its reset" else f"on action {action}"
    error = failure(call)
    assert f"'Fragile-v0' number 1 failed {failed}: its process died" in str(error)
    assert error.__cause__ is not None
    assert time.perf_counter() - began < 10
    assert not any(alive(pid) for pid in workers)
    env.close()  # which must not hang, nor complain
    assert not set(workers) & {child.pid for child in multiprocessing.active_children()}


def test_a_worker_of_a_wrapped_engine_that_dies_is_named_and_none_is_left() -> None:
    engine = AsyncVectorEnv([Fragile] * 3)
    env = from_object(gymnasium.wrappers.vector.TransformReward(engine, lambda reward: reward), 3)
    env.reset(seed=1)
    workers = pids(env)
    try:
        os.kill(workers[1], signal.SIGKILL)
        error = failure(lambda: env.step(torch.tensor([0, 1, 0])))
        assert "number 1 failed on action 1" in str(error)
        assert not any(alive(pid) for pid in workers)
        env.close()
    finally:
        engine.closed = True
        for process in engine.processes:
            process.kill()
            process.join()


def test_closing_or_forgetting_leaves_no_process() -> None:
    env = fragile()
    workers = pids(env)
    assert all(alive(pid) for pid in workers)
    env.close()
    env.close()
    assert not any(alive(pid) for pid in workers)
    env = fragile()
    workers = pids(env)
    del env
    assert not any(alive(pid) for pid in workers)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_inside_an_environment_names_it_its_row_and_its_action(mode: str) -> None:
    env = fragile(mode, fails_on=2)
    workers = pids(env) if mode == "async" else []
    env.step(torch.tensor([0, 1, 1]))
    error = failure(lambda: env.step(torch.tensor([0, 1, 2])))
    assert "'Fragile-v0' number 2 failed on action 2: ZeroDivisionError: an axle broke, 100%" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert not any(alive(pid) for pid in workers)
    env.close()


@pytest.mark.parametrize("mode", [SAME, NEXT, DISABLED])
def test_an_error_inside_an_engine_names_it_and_its_actions(mode: Any) -> None:
    env = from_object(SyncVectorEnv([lambda: Fragile(fails_on=2)] * 3, autoreset_mode=mode), 3)
    env.reset(seed=1)
    error = failure(lambda: env.step(torch.tensor([0, 1, 2])))
    assert "SyncVectorEnv" in str(error)
    assert "[0, 1, 2]" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("resets", [0, 1], ids=["first", "in a step"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_at_a_reset_names_the_environment_too(mode: str, resets: int) -> None:
    options: Any = dict(vectorization_mode=mode, env_kwargs={"fails_at_reset": resets})
    env = make("Fragile-v0", 2, backend="gymnasium", **options)
    error = failure(lambda: [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(6)])
    assert "'Fragile-v0' number" in str(error)
    assert "ValueError: it would not start" in str(error)
    assert ("at its reset: " in str(error)) or resets
    assert isinstance(error.__cause__, ValueError)


# making them ---------------------------------------------------------------------------------------------------------


def test_the_continuous_lander_goes_by_its_old_name() -> None:
    pytest.importorskip("Box2D")
    env = make("LunarLanderContinuous-v3", 2, backend="gymnasium")
    assert env.action == Box((2,), -1.0, 1.0)
    assert env.name == "LunarLanderContinuous-v3"
    assert env.envs[0].unwrapped.continuous
    assert env.solved_at == 200
    env.reset(seed=1)
    assert env.step(torch.zeros(2, 2)).obs.shape == (2, 8)


def test_arguments_reach_the_environment() -> None:
    pytest.importorskip("Box2D")
    env = make("LunarLander-v3", 2, backend="gymnasium", env_kwargs={"gravity": -5.0, "continuous": True})
    assert all(e.unwrapped.gravity == -5.0 for e in env.envs)
    assert isinstance(env.action, Box)
    assert all(e.unwrapped.gravity == -5.0 for e in env.spawn(2, seed=1).envs), "a copy must be of the same kind"
    assert "graviti" in refusal(make, "LunarLander-v3", 1, backend="gymnasium", env_kwargs={"graviti": -5.0})


def test_a_mode_that_an_environment_has_not_is_refused() -> None:
    message = refusal(make, WALK, 2, backend="gymnasium", vectorization_mode="vector_entry_point")
    assert WALK in message
    assert "vector entry point" in message


def test_what_is_no_environment_is_refused() -> None:
    assert "dict" in refusal(from_object, dict, 2)
    assert "env 7 is invalid" in refusal(ppo, 7)


def test_a_factory_of_vector_environments_that_takes_no_number_is_refused() -> None:
    assert "num_envs" in refusal(from_object, lambda: Rows(4), 2)


class Locked(Walk):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_an_instance_that_cannot_be_copied_is_refused() -> None:
    message = refusal(from_object, Locked(), 2)
    assert "Locked" in message
    assert "factory" in message
    assert from_object(Locked, 2).reset(seed=1).shape == (2, 2)


class Louder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pays more. Its arguments are not recorded, as those of most people's wrappers are not."""

    def __init__(self, env: Any, factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return (obs, self.factor * reward, *rest)


@pytest.mark.parametrize("env", [lambda: gymnasium.make(WALK), Walk], ids=["with spec", "without"])
def test_an_instance_in_a_wrapper_of_ones_own_keeps_it(env: Callable[[], Any]) -> None:
    plain, loud = from_object(Walk, 2), from_object(Louder(env(), 10.0), 2)
    assert torch.equal(plain.reset(seed=1), loud.reset(seed=1))
    action = torch.tensor([0, 2])
    torch.testing.assert_close(loud.step(action).reward, 10 * plain.step(action).reward)


def test_wrappers_of_gymnasium_are_kept() -> None:
    wrapped = gymnasium.wrappers.RescaleObservation(
        gymnasium.make("MountainCarContinuous-v0", max_episode_steps=5), np.float32(0), np.float32(1)
    )
    env = from_object(wrapped, 2)
    obs = env.reset(seed=1)
    assert ((obs >= 0) & (obs <= 1)).all()
    steps = run(env, random_actions(env, 5))
    assert steps[-1].truncated.all()
    assert not steps[-2].truncated.any()


# agents --------------------------------------------------------------------------------------------------------------

GIVEN: dict[str, Callable[[], Any]] = {
    "class": lambda: Walk,
    "factory": lambda: at_most(20),
    "instance": lambda: Walk("vector", 20),
    "instance with spec": lambda: gymnasium.make(WALK),
    "sync": lambda: SyncVectorEnv([at_most(20)] * 4),
    "async": lambda: AsyncVectorEnv([at_most(20)] * 4),
    "vector factory": lambda: lambda num_envs: Rows(num_envs, limit=20),
    "id": lambda: WALK,
}
every_given = pytest.mark.parametrize("form", list(GIVEN))


@every_given
def test_every_form_is_trained_scored_saved_and_loaded(form: str, tmp_path: Path) -> None:
    given = GIVEN[form]()
    agent = ppo(given)
    assert agent.learn(quiet=True).steps == 64
    score = agent.evaluate(6)
    assert len(score.returns) == 6
    assert max(score.lengths) <= 50
    assert agent.evaluate(6) == score, "scoring is reproducible, and disturbs nothing"
    agent.save(tmp_path)
    if form not in ("id", "instance with spec"):
        assert "env=" in refusal(tr.load, tmp_path)
    loaded = tr.load(tmp_path, env=None if form == "id" else GIVEN[form]())
    assert loaded.steps == 64
    assert loaded.config.algorithm == agent.config.algorithm
    assert all(torch.equal(a, b) for a, b in zip(agent.policy.parameters(), loaded.policy.parameters(), strict=True))
    assert loaded.evaluate(6) == score
    loaded.learn(128, quiet=True)
    assert loaded.steps == 128
    for one in (agent, loaded):
        one.state.env.close()


def test_a_loaded_run_goes_on_in_fresh_episodes_and_unused_streams(tmp_path: Path) -> None:
    agent = ppo(WALK, backend="gymnasium")
    agent.learn(quiet=True)
    agent.save(tmp_path)
    loaded = tr.load(tmp_path)
    assert loaded.config.run.backend == "gymnasium"
    assert loaded.state.phase == agent.state.phase == 2
    assert not loaded.state.obs[:, 1].any(), "episodes under way cannot be put back"
    expected = make(WALK, 4, backend="gymnasium").reset(seed=stream_seed(1, "env", 2))
    assert torch.equal(loaded.state.obs, expected)
    assert not torch.equal(expected, ppo(WALK, backend="gymnasium").state.obs), "the run starts over"
    assert not loaded.state.discounted_return.any()
    shutil.copytree(tmp_path, tmp_path / "copy")
    again = tr.load(tmp_path / "copy")
    for one in (loaded, again):
        one.learn(128, quiet=True)
    assert all(torch.equal(a, b) for a, b in zip(again.policy.parameters(), loaded.policy.parameters(), strict=True))


def test_a_seed_gives_the_same_training_in_turn_and_in_processes() -> None:
    one, other, third = (
        ppo(WALK, backend="gymnasium", vectorization_mode=mode, seed=seed).learn(quiet=True)
        for mode, seed in (("sync", 3), ("async", 3), ("sync", 4))
    )
    assert all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True))
    assert not torch.equal(next(one.policy.parameters()), next(third.policy.parameters()))
    other.state.env.close()


def test_a_run_is_not_loaded_with_a_vector_environment_of_another_size(tmp_path: Path) -> None:
    agent = ppo(SyncVectorEnv([Walk] * 4))
    agent.save(tmp_path)
    with contextlib.suppress(UsageError):
        loaded = tr.load(tmp_path, env=SyncVectorEnv([Walk] * 6))
        assert loaded.state.env.num_envs == loaded.config.algorithm.num_envs


@pytest.mark.parametrize(
    "env",
    [
        lambda: Louder(gymnasium.make(WALK), 10.0),
        lambda: gymnasium.make(WALK, limit=3),
        lambda: gymnasium.make(WALK, max_episode_steps=3),
    ],
    ids=["wrapper", "arguments", "time limit"],
)
def test_an_instance_that_is_not_what_its_id_makes_is_not_replaced_by_that(env: Any, tmp_path: Path) -> None:
    agent = ppo(env())
    agent.save(tmp_path)
    with contextlib.suppress(UsageError):  # which asks for it
        assert tr.load(tmp_path).evaluate(4) == agent.evaluate(4)
    assert tr.load(tmp_path, env=env()).evaluate(4) == agent.evaluate(4)


def test_there_are_as_many_workers_as_environments() -> None:
    before = set(multiprocessing.active_children())
    agent = ppo(WALK, 2, backend="gymnasium", vectorization_mode="async")
    assert len(set(multiprocessing.active_children()) - before) == 2
    agent.state.env.close()


def test_a_vector_environment_decides_how_many_there_are() -> None:
    assert ppo(SyncVectorEnv([Walk] * 4)).config.algorithm.num_envs == 4
    message = refusal(tr.PPO, SyncVectorEnv([Walk] * 4), **SMALL_RUN, num_envs=8)
    assert "num_envs 8" in message


def test_a_vector_environment_that_cannot_be_copied_is_trained_but_not_scored() -> None:
    agent = ppo(Rows(4, limit=20)).learn(quiet=True)
    assert "factory" in refusal(agent.evaluate, 2)


def test_scoring_on_an_environment_given() -> None:
    agent = ppo(Walk).learn(quiet=True)
    for env in (Walk, at_most(5), Walk("vector", 5), SyncVectorEnv([at_most(5)] * 3)):
        assert len(agent.evaluate(3, env=env).returns) == 3
    assert "other spaces" in refusal(agent.evaluate, 3, env=at_most(5, "dict"))


@pytest.mark.parametrize("form", [name for name in GIVEN if name != "vector factory"])
def test_every_form_that_draws_is_recorded(form: str, tmp_path: Path) -> None:
    agent = ppo(GIVEN[form](), **({"backend": "gymnasium"} if form == "id" else {}))
    path = (
        agent.record(tmp_path / "film.mp4", episodes=2).path if form in ("class", "instance with spec", "id") else None
    )
    if path is None:  # nobody can tell them to draw
        assert "draw" in refusal(agent.record, tmp_path / "film.mp4", episodes=2)
    else:
        assert path.stat().st_size > 500
    agent.state.env.close()


def test_an_environment_told_to_draw_is_recorded_in_every_form(tmp_path: Path) -> None:
    drawing = lambda: Walk("vector", 20, "rgb_array")  # noqa: E731
    for i, env in enumerate((drawing, drawing(), SyncVectorEnv([drawing] * 2))):
        assert ppo(env).record(tmp_path / f"{i}.mp4", episodes=2).path.stat().st_size > 500
    agent = ppo(WALK, 2, backend="gymnasium", vectorization_mode="async")
    assert agent.record(tmp_path / "film.mp4", episodes=2).path.stat().st_size > 500
    agent.state.env.close()


def test_frames_are_of_the_states_and_only_of_those_told_to_draw() -> None:
    env = by_id(3, "vector", None)
    obs = env.reset(seed=1)
    assert "record" in refusal(env.draw, obs)
    drawn = env.spawn(3, seed=1, drawn=True)
    obs = drawn.reset()
    frames = drawn.draw(obs)
    assert (frames.dtype, frames.shape[0], frames.shape[3]) == (np.uint8, 3, 3)
    assert frames[:, 0, 0, 0].tolist() == [128 + int(20 * e.unwrapped.at) for e in drawn.envs]
    assert len(drawn.draw(obs[:2])) == 2


def test_the_lander_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    agent = ppo("LunarLander-v3", backend="gymnasium", max_episode_steps=5)
    assert agent.record(tmp_path / "film.mp4", episodes=2).path.stat().st_size > 1000


class Invisible(Walk):
    metadata = {}  # noqa: RUF012

    def render(self) -> Any:
        raise NotImplementedError


def test_an_environment_that_cannot_draw_is_not_recorded(tmp_path: Path) -> None:
    assert "Invisible" in refusal(ppo(Invisible).record, tmp_path / "film.mp4", episodes=2)
    assert "drawn" in refusal(ppo(cartpole(4)).record, tmp_path / "film.mp4", episodes=2)
    assert not (tmp_path / "film.mp4").exists()


# predictions ---------------------------------------------------------------------------------------------------------

CHOICES = {
    "discrete": gs.Discrete(3),
    "discrete from 5": gs.Discrete(3, start=5),
    "multidiscrete": gs.MultiDiscrete([2, 3]),
    "multidiscrete 2-D": gs.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
    "multibinary": gs.MultiBinary(3),
    "box": gs.Box(np.array([10, -1], np.float32), np.array([30, 1], np.float32)),
    "matrix": gs.Box(-np.inf, np.inf, (2, 2)),
    "float64": gs.Box(-1, 1, (2,), np.float64),
}


def chooser(kind: str, choice: str) -> tr.PPO:
    class Choosing(Walk):
        action_space = CHOICES[choice]

        def __init__(self) -> None:
            super().__init__(kind)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return self.show(self.at, self.age), 0.0, False, False, {}

    agent = ppo(Choosing)
    for parameter in agent.policy.head.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return agent


def walked(kind: str, count: int) -> list[Any]:
    walk = Walk(kind)
    return [walk.reset(seed=seed)[0] for seed in range(count)]


@pytest.mark.parametrize("choice", list(CHOICES))
def test_predictions_are_members_of_the_action_space(choice: str) -> None:
    agent, space = chooser("vector", choice), CHOICES[choice]
    singles = walked("vector", 5)
    for deterministic in (True, False):
        for obs in singles:
            assert space.contains(agent.predict(obs, deterministic=deterministic))
        batch = agent.predict(np.stack(singles), deterministic=deterministic)
        assert len(batch) == 5
        assert batch.dtype == space.dtype
        assert all(space.contains(action) for action in batch)
    one_by_one = np.stack([agent.predict(obs) for obs in singles])
    np.testing.assert_allclose(one_by_one, agent.predict(np.stack(singles)), rtol=1e-5)
    agent.learn(quiet=True)  # the environment takes them too


@pytest.mark.parametrize("kind", list(SHOWN))
def test_a_batch_of_any_observations_is_predicted_as_in_training(kind: str) -> None:
    agent, singles = chooser(kind, "discrete from 5"), walked(kind, 6)
    batch = stacked(SHOWN[kind][0], singles)
    rows = torch.from_numpy(spaces.observation_reader(SHOWN[kind][0]).rows(batch))
    expected = agent.policy.distribution(rows).mode() + 5
    assert agent.predict(batch).tolist() == expected.tolist()


def test_a_network_of_ones_own_sees_batches_and_drops_nothing_out() -> None:
    class Strict(nn.Sequential):
        def forward(self, obs: Tensor) -> Tensor:
            assert obs.dim() == 2
            return super().forward(obs)

    agent = ppo(Walk, network=Strict(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))).learn(quiet=True)
    assert agent.evaluate(4, seed=3).returns == agent.evaluate(4, seed=3).returns
    obs = walked("vector", 1)[0]
    assert agent.predict(obs) == agent.predict(obs[None])[0]


def test_a_tensor_gives_a_tensor_of_members() -> None:
    agent = chooser("vector", "discrete from 5")
    action = agent.predict(torch.from_numpy(np.stack(walked("vector", 4))))
    assert isinstance(action, Tensor)
    assert all(int(a) in (5, 6, 7) for a in action)


class Wrapped(gymnasium.Wrapper):  # type: ignore[type-arg]
    """A wrapper that makes what it wraps."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))


def test_the_class_of_a_wrapper_is_a_factory_like_any_other() -> None:
    agent = tr.PPO(Wrapped, num_envs=2, num_steps=8, total_timesteps=32, num_minibatches=2).learn(quiet=True)
    assert agent.steps == 32


class Outside(gymnasium.Env[Any, Any]):
    """Its third copy shows a member that its space does not have, in its second step."""

    action_space = gs.Discrete(2)
    made = 0

    def __init__(self, space: gs.Space[Any], good: Any, bad: Any) -> None:
        self.observation_space, self.good, self.bad = space, good, bad
        self.number = Outside.made
        Outside.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.age = 0
        return self.good, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.bad if self.number == 2 and self.age == 2 else self.good, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (gs.Discrete(5, start=1), 1, 7, "7, which is not in Discrete(5, start=1)"),
        (gs.Discrete(5), 0, -1, "-1, which is not in Discrete(5)"),
        (gs.MultiDiscrete([2, 3]), np.array([0, 0]), np.array([0, 3]), "[0, 3], which is not in MultiDiscrete([2 3])"),
        (gs.Dict(a=gs.Discrete(3)), {"a": 0}, {"a": 3}, "3 for 'a', which is not in Discrete(3)"),
    ],
)
@pytest.mark.parametrize("form", ["single", "vector"])
def test_a_choice_outside_its_space_is_named_with_its_environment(
    space: gs.Space[Any], good: Any, bad: Any, words: str, form: str
) -> None:
    Outside.made = 0

    def one() -> Outside:
        return Outside(space, good, bad)

    env = from_object(one if form == "single" else SyncVectorEnv([one] * 4), 4)
    env.reset(seed=0)
    env.step(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(EnvError) as error:
        env.step(torch.zeros(4, dtype=torch.int64))
    assert f"number 2 shows {words}" in str(error.value)
    assert "\n" not in str(error.value)
