"""The checker: every kind of broken environment is found, by exactly its name; sound ones have nothing to hide."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from tightrope.envs import TensorEnv
from tightrope.envs.checker import CheckReport, check
from tightrope.envs.checker.values import global_streams
from tightrope.errors import UsageError
from tightrope.types import Box, Discrete, Step

quick = partial(check, steps=200)
MODES = list(AutoresetMode)


@pytest.fixture(autouse=True)
def short_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.envs.checker.env_under_test.TRACE_STEPS", 25)


def found(report: CheckReport, *levels: str) -> set[tuple[str, str]]:
    return {(f.level, f.check) for f in report.findings if f.level in (levels or ("error", "warning", "note"))}


def expected(names: str) -> set[tuple[str, str]]:
    """{("error", "both flags")} for "error both flags"."""
    return {tuple(name.split(" ", 1)) for name in names.split(", ") if name}


# single environments -------------------------------------------------------------------------------------------------


class Walk(gymnasium.Env):
    """Sound: a random walk that ends where it leaves the road. Broken by replacing what it returns or how it begins."""

    observation_space: gs.Space = gs.Box(-10, 10, (2,), np.float32)
    action_space: gs.Space = gs.Discrete(2)

    def __init__(self) -> None:
        self.x, self.t = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.begin()
        return self.opened(self.seen(), {})

    def begin(self) -> None:
        self.x, self.t = self.np_random.uniform(-1, 1, 2), 0

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x = self.x * [1.0, 0.9] + self.push(action) + self.noise()
        ended = abs(self.x[0]) > 2
        return self.answer(self.seen(), float(1 - abs(self.x[0])), bool(ended), self.t >= 40 and not ended, {})

    def push(self, action: Any) -> Any:
        return [0.2 * float(np.sum(action)) - 0.1, 0.0]

    def noise(self) -> Any:
        return self.np_random.normal(0, 0.3, 2)

    def seen(self) -> Any:
        return self.x.astype(np.float32)

    def opened(self, obs: Any, info: Any) -> Any:
        return obs, info

    def answer(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, info


def walk(**changes: Any) -> type[Walk]:
    return type("Broken", (Walk,), changes)


def answering(obs=None, reward=None, terminated=None, truncated=None, info=None) -> type[Walk]:
    """A walk of which some answers go through a function of (self, answer)."""
    changes = (obs, reward, terminated, truncated, info)
    keep = lambda self, value: value  # noqa: E731

    def answer(self: Walk, *values: Any) -> Any:
        return tuple((change or keep)(self, value) for change, value in zip(changes, values, strict=True))

    return walk(answer=answer)


def pushed(push: Callable[[Any, Any], Any], space: gs.Space) -> type[Walk]:
    return walk(push=push, action_space=space)


def shaking(self: Walk, action: np.ndarray) -> Any:
    action *= 0.5
    return [float(action[0]) * 0.1, 0.0]


def timid(self: Walk, action: np.ndarray) -> Any:
    if abs(action[0]) == 1.0:
        raise ValueError("too strong")
    return [0.0, 0.0]


def own(seed: Callable[[Walk], int | None]) -> dict[str, Any]:
    """With a generator of its own, seeded in its own way at every reset."""

    def begin(self: Walk) -> None:
        self.own = np.random.default_rng(seed(self))
        self.x, self.t = self.own.uniform(-1, 1, 2), 0

    return {"begin": begin, "noise": lambda self: self.own.normal(0, 0.3, 2)}


class SeededOnce(Walk):
    """Takes seeds, but goes back to the last one at every reset."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.last = getattr(self, "last", 0) if seed is None else seed
        return super().reset(seed=self.last)


class OldReset(Walk):
    def reset(self) -> Any:
        return super().reset(seed=3)


class Uncut(Walk):
    """Its clock is not reset where an episode is under way."""

    over = True

    def seen(self) -> Any:
        return np.array([self.x[0], self.t / 40], np.float32)

    def begin(self) -> None:
        t = self.t
        super().begin()
        self.t = 0 if self.over else t

    def answer(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        self.over = terminated or truncated
        return obs, reward, terminated, truncated, info


def same_array(self: Walk) -> Any:
    self.__dict__.setdefault("buffer", np.zeros(2, np.float32))[:] = self.x
    return self.buffer


def stumble(self: Walk) -> Any:
    if self.t == 5:
        raise KeyError("stone")
    return Walk.noise(self)


def drop(self: Walk) -> None:
    raise RuntimeError("no road")


def ends_at(limit: int) -> type[Walk]:
    return answering(terminated=lambda self, _: self.t >= limit, truncated=lambda self, _: False)


nan_at_7 = lambda self, value: value * np.float32(np.nan if self.t == 7 else 1)  # noqa: E731
endless = {"terminated": lambda self, _: False, "truncated": lambda self, _: False}
still = {"begin": lambda self: self.__dict__.update(x=np.ones(2) * 0.1, t=0), "noise": lambda self: [0.05, 0.03]}
wide = gs.Box(-np.inf, np.inf, (2,), np.float32)

SINGLES: dict[str, tuple[Any, str]] = {
    "sound": (Walk, ""),
    # what is returned
    "old step": (walk(answer=lambda self, o, r, te, tr, i: (o, r, te or tr, i)), "error step"),
    "old step below a wrapper": (
        lambda: TimeLimit(walk(answer=lambda self, o, r, te, tr, i: (o, r, te or tr, i))(), 30), "error step"
    ),
    "six values": (walk(answer=lambda self, *values: (*values, 0)), "error step"),
    "no info from reset": (walk(opened=lambda self, obs, info: obs), "error reset"),
    "reset takes no seed": (OldReset, "error seed, warning seeds"),
    "info is None": (answering(info=lambda self, _: None), "error info"),
    "reset's info is a list": (walk(opened=lambda self, obs, info: (obs, [])), "error info"),
    "reward is None": (answering(reward=lambda self, _: None), "error reward"),
    "reward is an array": (answering(reward=lambda self, r: np.array([r])), "error reward"),
    "reward is a bool": (answering(reward=lambda self, r: r > 0), "warning reward"),
    "terminated is an int": (answering(terminated=lambda self, t: int(t)), "warning terminated"),
    "truncated is None": (answering(truncated=lambda self, t: t or None), "error truncated"),
    # observations
    "float64": (walk(seen=lambda self: self.x), "error dtype"),
    "shape": (walk(seen=lambda self: np.zeros(3, np.float32)), "error shape"),
    "list": (walk(seen=lambda self: [float(v) for v in self.x]), "warning structure"),
    "dict for a Box": (walk(seen=lambda self: {"x": self.x}), "error structure"),
    "missing key": (
        walk(observation_space=gs.Dict(a=gs.Box(-9, 9, (2,)), b=gs.Discrete(2)), seen=lambda self: {"a": Walk.seen(self)}),
        "error structure",
    ),
    "out of bounds": (walk(seen=lambda self: self.x.astype(np.float32) + 20), "warning bounds"),
    "not in Discrete": (walk(observation_space=gs.Discrete(3), seen=lambda self: int(self.t % 4)), "error bounds"),
    "float for Discrete": (walk(observation_space=gs.Discrete(2), seen=lambda self: float(self.t % 2)), "error dtype"),
    "nan": (answering(obs=nan_at_7), "error finite"),
    "infinite reward": (answering(reward=lambda self, r: r if self.t < 7 else np.inf), "error finite"),
    "nan reward": (answering(reward=lambda self, r: float(nan_at_7(self, np.float32(r)))), "error finite"),
    "alias": (walk(seen=same_array), "error alias"),
    "text": (walk(observation_space=gs.Text(3), seen=lambda self: "abc"), "error spaces"),
    "hybrid actions": (walk(action_space=gs.Dict(a=gs.Box(-1, 1, (2,))), push=lambda self, action: action["a"]), ""),
    "text actions": (walk(action_space=gs.Dict(a=gs.Text(2)), push=lambda self, action: [0, 0]), "error spaces"),
    # what is raised
    "step raises": (walk(noise=stumble), "error step"),
    "reset raises": (walk(begin=drop), "error reset"),
    "making raises": (walk(__init__=drop), "error make"),
    "no environment": (lambda: None, "error make"),
    # chance
    "unseeded": (walk(**own(lambda self: None)), "error determinism"),
    "deaf to seeds": (walk(**own(lambda self: 7)), "warning seeds"),
    "no chance at all": (walk(**still), "note seeds"),
    "back to the seed": (SeededOnce, "warning stream"),
    "numpy's global stream": (
        walk(noise=lambda self: (np.random.rand(), Walk.noise(self))[1]), "warning global stream"
    ),
    "python's global stream": (
        walk(begin=lambda self: (random.random(), Walk.begin(self))[1]), "warning global stream"
    ),
    "torch's global stream": (walk(noise=lambda self: (torch.rand(1), Walk.noise(self))[1]), "warning global stream"),
    "not reset in the middle": (Uncut, "error restart"),
    # time
    "clock": (ends_at(20), "warning clock"),
    "truly one step": (ends_at(1), ""),
    "endless": (answering(obs=lambda self, o: np.clip(o, -10, 10), **endless), "warning endless"),
    "endless but limited": (lambda: TimeLimit(answering(obs=lambda self, o: np.clip(o, -10, 10), **endless)(), 10**6), ""),
    "both flags": (answering(truncated=lambda self, t: t or abs(self.x[0]) > 2), "note both flags"),
    # actions
    "writes into the action": (pushed(shaking, gs.Box(-1, 1, (1,), np.float32)), "warning action"),
    "refuses the bound": (pushed(timid, gs.Box(-1, 1, (1,), np.float32)), "error step"),
    "start of Discrete": (pushed(lambda self, a: [[0, 0], [0.1, 0]][a - 5], gs.Discrete(2, start=5)), ""),
    "start not respected": (pushed(lambda self, a: {0: [0, 0], 1: [0.1, 0]}[int(a)], gs.Discrete(2, start=5)), "error step"),
    "unbounded": (pushed(lambda self, a: [0, 0], gs.Box(-np.inf, np.inf, (1,), np.float32)), "note action bounds"),
    "wide": (pushed(lambda self, a: [0, 0], gs.Box(-1e5, 1e5, (1,), np.float32)), "note action bounds"),
    # numbers
    "large rewards": (answering(reward=lambda self, r: 1e4 * r), "warning reward scale"),
    "no reward": (answering(reward=lambda self, r: 0.0), "warning no reward"),
    "constant reward": (answering(reward=lambda self, r: 1.0), "note constant reward"),
    "large observations": (
        walk(observation_space=wide, seen=lambda self: (self.x * 1e5).astype(np.float32)), "warning observation scale"
    ),
    "unequal observations": (
        walk(observation_space=wide, seen=lambda self: (self.x * [1, 1e-5]).astype(np.float32)),
        "warning observation scale",
    ),
    "constant entry": (walk(seen=lambda self: np.array([self.x[0], 1], np.float32)), "note constant entries"),
    "wrapped": (lambda: RecordEpisodeStatistics(Walk()), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLES)
def test_single(name: str) -> None:
    env, names = SINGLES[name]
    report = quick(env)
    assert found(report) == expected(names), "\n".join(report.lines())
    assert report.ok == ("error" not in names)
    assert all("\n" not in f.message + f.fix and f.fix for f in report.findings)


def leave(self: Walk) -> None:
    raise SystemExit(3)


def stateful(*answers: Any) -> Callable[..., Any]:
    """Another answer at every call."""
    count = iter(range(10**9))
    return lambda self, *given: answers[next(count) % len(answers)]


HOPELESS: dict[str, Any] = {
    "no spaces": walk(observation_space=None, action_space=None),
    "no action space": walk(action_space=None),
    "a space that is a class": walk(observation_space=gs.Box),
    "no metadata": walk(metadata=None, seen=lambda self: None),
    "everything is None": walk(opened=lambda self, *_: None, answer=lambda self, *_: None),
    "ragged": walk(seen=lambda self: [[1.0], [1.0, 2.0]]),
    "objects": walk(seen=lambda self: np.array([None, "a"], object)),
    "changing shapes": walk(seen=stateful(np.zeros(2, np.float32), np.zeros(3, np.float32), "x")),
    "changing answers": walk(answer=stateful((1, 2), [], None, (1, 2, 3, 4), (1, 2, 3, 4, 5), "five!")),
    "leaves": walk(noise=leave),
    "a duck": type(
        "Duck", (), {"reset": lambda self, seed=None: (0, {}), "step": lambda self, a: (0, 0.0, True, False, {})}
    ),
    "a vector without spaces": type("Bare", (VectorEnv,), {"num_envs": 2}),
    "a vector of the wrong size": lambda num_envs: type("Four", (Rows,), {"num_envs": 4})(SAME, SAME),
    "half of our protocol": type(
        "Half", (), dict.fromkeys(("spawn", "finished_episodes", "num_envs", "reset", "step"))
    ),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_nothing_breaks_the_checker(name: str) -> None:
    report = quick(HOPELESS[name])
    assert not report.ok
    assert not any("bug in Tightrope" in f.fix for f in report.findings), "\n".join(report.lines())
    assert report.lines()


def message_of(env: Any) -> str:
    (finding,) = quick(env).findings
    return finding.message


def test_messages_say_what_was_seen() -> None:
    line = stumble.__code__.co_firstlineno + 2
    assert f"KeyError: 'stone' (tests/envs/test_checker.py:{line})" in message_of(walk(noise=stumble))
    assert "on action" in message_of(walk(noise=stumble))
    assert f"test_checker.py:{drop.__code__.co_firstlineno + 1})" in message_of(walk(__init__=drop))
    assert "obs[0], is nan in row 0, " in message_of(answering(obs=nan_at_7))
    assert "old gym" in message_of(SINGLES["old step"][0])
    assert "after exactly 20 steps" in message_of(ends_at(20))
    assert "differs: " in message_of(walk(**own(lambda self: None)))
    assert "moves the global random stream of numpy" in message_of(SINGLES["numpy's global stream"][0])
    assert "reset in the middle" in message_of(Uncut)


def test_the_report_in_words() -> None:
    report = quick(answering(reward=lambda self, r: None, obs=nan_at_7))
    lines = report.lines()
    assert lines[0] == "test_checker:Broken"
    assert lines[-1] == "2 errors, 0 warnings, 0 notes. Fix the errors first."
    assert sum(line.strip().startswith("fix: ") for line in lines) == 2
    report = quick(Walk)
    assert report.lines()[-1].startswith("0 errors, 0 warnings, 0 notes.")
    facts = report.facts
    assert facts["steps"] == 200
    assert facts["shortest"] <= facts["episode_length"] <= facts["longest"] <= 40
    assert facts["reward_min"] < facts["reward_mean"] < facts["reward_max"] <= 1
    assert facts["steps_per_second"] > 100
    assert facts["unfinished"] == []
    assert {"random play", "same seed", "other seeds"} <= set(facts["checks"])


def test_a_slow_environment_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.envs.checker.random_play.PLAY_SECONDS", 0.1)
    monkeypatch.setattr("tightrope.envs.checker.env_under_test.TRACE_SECONDS", 0.01)
    report = check(walk(noise=lambda self: (time.sleep(0.005), Walk.noise(self))[1]))
    assert report.facts["stopped_early"]
    assert report.facts["steps"] < 100
    assert "its time was over" in "\n".join(report.lines())
    assert not found(report, "error", "warning")


def test_an_environment_given_is_left_open_and_one_made_is_closed() -> None:
    closed: list[Any] = []
    env = walk(close=lambda self: closed.append(self))()
    quick(env)
    assert env not in closed
    closed.clear()
    quick(type(env))
    assert len(closed) == 1


def test_what_is_no_environment_is_refused() -> None:
    for target in ("NoSuchEnv-v0", 3):
        with pytest.raises(UsageError, match="env"):
            check(target)


def test_nothing_global_is_touched() -> None:
    before = global_streams()
    quick(Walk)
    quick("CartPole-v1")
    assert global_streams() == before


# vector environments -------------------------------------------------------------------------------------------------


class Rows(VectorEnv):
    """Sound if `declared` is what it does: walks as one array, reset in any of the three ways."""

    single_observation_space = gs.Box(-10, 10, (2,), np.float32)
    single_action_space = gs.Discrete(2)
    num_envs = 3

    def __init__(self, declared: Any, does: AutoresetMode, paid: bool = True, final: bool = True) -> None:
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {} if declared is None else {"autoreset_mode": declared}
        self.does, self.paid, self.final = does, paid, final

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if mask.all():
            self.x, self.t, self.over = np.zeros((3, 2)), np.zeros(3, int), np.zeros(3, bool)
        self.restart(mask)
        return self.x.astype(np.float32), {}

    def restart(self, rows: np.ndarray) -> None:
        self.x[rows], self.t[rows] = self.np_random.uniform(-1, 1, (rows.sum(), 2)), 0

    def step(self, actions: np.ndarray) -> Any:
        idle = self.over & (self.does is AutoresetMode.NEXT_STEP)
        noise = self.np_random.normal(0, 0.3, (3, 2))
        self.x = np.where(idle[:, None], self.x, self.x * [1, 0.9] + noise + 0.1 * np.asarray(actions)[:, None])
        self.t += ~idle
        reward = np.where(idle, 0.0, 1 - abs(self.x[:, 0]) if self.paid else 0.0)
        terminated = ~idle & (abs(self.x[:, 0]) > 2)
        truncated = ~idle & (self.t >= 30) & ~terminated
        self.over = terminated | truncated
        info: dict[str, Any] = {}
        if self.does is AutoresetMode.SAME_STEP and self.over.any():
            info = {"final_obs": self.x.astype(np.float32)} if self.final else {}
            self.restart(self.over)
        self.restart(idle)
        return self.x.astype(np.float32), reward, terminated, truncated, info


class Copied(Rows):
    """All rows are the first one."""

    def restart(self, rows: np.ndarray) -> None:
        self.x[rows], self.t[rows] = self.np_random.uniform(-1, 1, 2), 0


class Deaf(Rows):
    """Resets every row, whatever the mask says."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return super().reset(seed=seed)


class Unreset(Rows):
    """Hands out the final observation, but goes on showing it."""

    def step(self, actions: np.ndarray) -> Any:
        obs, *others, info = super().step(actions)
        return info.get("final_obs", obs), *others, info


SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
VECTORS: dict[str, tuple[Any, str]] = {
    **{f"sound {mode.name}": (lambda mode=mode: Rows(mode, mode), "") for mode in MODES},
    "undeclared": (lambda: Rows(None, NEXT), "error autoreset"),
    "declares nonsense": (lambda: Rows("sometimes", NEXT), "error autoreset"),
    "SAME but NEXT": (lambda: Rows(SAME, NEXT), "error autoreset"),
    "SAME but no final_obs": (lambda: Rows(SAME, SAME, final=False), "error autoreset"),
    "NEXT but SAME": (lambda: Rows(NEXT, SAME), "error autoreset"),
    "NEXT but SAME without final_obs": (lambda: Rows(NEXT, SAME, final=False), "error autoreset"),
    "NEXT but SAME and never paid": (
        lambda: Rows(NEXT, SAME, paid=False, final=False), "error autoreset, warning no reward"
    ),
    "DISABLED but SAME": (lambda: Rows(DISABLED, SAME), "error autoreset"),
    "DISABLED but deaf": (lambda: Deaf(DISABLED, DISABLED), "error autoreset"),
    "SAME but shows the end": (lambda: Unreset(SAME, SAME), "error restart"),
    "rows alike": (lambda: Copied(SAME, SAME), "warning rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str) -> None:
    env, names = VECTORS[name]
    report = quick(env)
    assert found(report) == expected(names), "\n".join(report.lines())


def test_a_vector_with_wrong_batches() -> None:
    env = Rows(SAME, SAME)
    env.observation_space = env.single_observation_space
    assert ("error", "spaces") in found(quick(env))
    flat = type("Flat", (Rows,), {"step": lambda self, a: (r := Rows.step(self, a)) and (r[0], r[1][:, None], *r[2:])})
    assert found(quick(flat(NEXT, NEXT))) == {("error", "reward")}
    whole = type("Whole", (Rows,), {"step": lambda self, a: (r := Rows.step(self, a)) and (r[0].astype(float), *r[1:])})
    assert found(quick(whole(NEXT, NEXT))) == {("error", "dtype")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [Walk, lambda: RecordEpisodeStatistics(Walk())])
def test_gymnasiums_own_vectors_are_sound(make: Callable[[], gymnasium.Env], mode: AutoresetMode) -> None:
    report = quick(SyncVectorEnv([make] * 3, autoreset_mode=mode))
    assert found(report) == set(), "\n".join(report.lines())
    assert report.facts["episodes"] > 3


def test_vectors_of_gymnasium_by_id() -> None:
    for mode in ("sync", "vector_entry_point"):
        env = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode=mode)
        assert found(quick(env)) == {("note", "constant reward")}
        env.close()
    factory = lambda num_envs: gymnasium.make_vec("Blackjack-v1", num_envs)  # noqa: E731
    assert found(quick(factory), "error", "warning") == set()


# our own -------------------------------------------------------------------------------------------------------------


class Drift(TensorEnv):
    """Sound: a point that is blown off the road."""

    observation = Box((2,))
    action = Discrete(2)
    noise_size = 2
    time_limit = 30

    def initial(self, noise: torch.Tensor) -> torch.Tensor:
        return 2 * noise - 1

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return state * torch.tensor([1.1, 0.9]) + 0.1 * action[:, None]

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return 1 - next_state[:, 0].abs()

    def terminated(self, state: torch.Tensor) -> torch.Tensor:
        return state[:, 0].abs() > 2


def stepping(change: Callable[[Any, Step], Any], **others: Any) -> type[Drift]:
    return type(
        "Broken", (Drift,), {"step": lambda self, a, noise=None: change(self, Drift.step(self, a, noise)), **others}
    )


def kept(self: Any, step: Step) -> Step:
    if not hasattr(self, "buffer"):
        self.buffer = step.obs.clone()
    return step._replace(obs=self.buffer.copy_(step.obs))


def written(self: Any, action: torch.Tensor, noise: torch.Tensor | None = None) -> Step:
    return Drift.step(self, action.zero_(), noise)


def double(self: Drift) -> torch.Tensor:
    return 2 * TensorEnv.finished_episodes(self)


def sharing(self: Drift, num_envs: int, seed: int, drawn: bool = False) -> Drift:
    twin = TensorEnv.spawn(self, num_envs, seed)
    twin.generator = self.generator
    return twin


over = lambda step: step.terminated | step.truncated  # noqa: E731
TENSORS: dict[str, tuple[Any, str]] = {
    "sound": (Drift, ""),
    "instance": (Drift(5), ""),
    "both flags": (stepping(lambda self, s: s._replace(truncated=s.truncated | s.terminated)), "error both flags"),
    "not reset": (stepping(lambda self, s: s._replace(obs=s.final_obs.clone())), "error restart"),
    "another final_obs": (stepping(lambda self, s: s._replace(final_obs=s.final_obs + 1)), "error final_obs"),
    "shape": (stepping(lambda self, s: s._replace(reward=s.reward[:, None])), "error shape"),
    "dtype": (stepping(lambda self, s: s._replace(reward=s.reward.double())), "error dtype"),
    "gradient": (stepping(lambda self, s: s._replace(reward=s.reward.requires_grad_())), "error gradient"),
    "array": (stepping(lambda self, s: s._replace(obs=s.obs.numpy())), "error structure"),
    "device": (stepping(lambda self, s: s._replace(reward=s.reward.to("meta"))), "error device"),
    "no Step": (stepping(lambda self, s: tuple(s[:5])), "error step"),
    "alias": (stepping(kept), "error alias"),
    "writes into the action": (type("Broken", (Drift,), {"step": written}), "error action"),
    "counts twice": (type("Broken", (Drift,), {"finished_episodes": double}), "error statistics"),
    "spawn shares": (type("Broken", (Drift,), {"spawn": sharing}), "error spawn"),
    "spawn of the wrong size": (
        type("Broken", (Drift,), {"spawn": lambda self, n, seed, drawn=False: TensorEnv.spawn(self, 7, seed)}), "error spawn"
    ),
    "nan": (stepping(lambda self, s: s._replace(final_obs=s.final_obs / over(s).logical_not()[:, None])), "error finite"),
    "out of bounds": (type("Broken", (Drift,), {"observation": Box((2,), -1.0, 1.0)}), "warning bounds"),
    "not in Discrete": (
        type("Broken", (Drift,), {"observation": Discrete(2), "observe": lambda self, x: (x[:, 0] > 0).long() * 2}),
        "error methods",
    ),
    "nan while it goes on": (
        stepping(lambda self, s: s._replace(obs=s.obs * torch.nan, final_obs=s.obs * torch.nan)), "error finite"
    ),
    "nan reward": (
        type("Broken", (Drift,), {"reward": lambda s, a, b, c: torch.where(c[:, 0] > 1, torch.nan, 1.0)}), "error finite"
    ),
    "raises": (type("Broken", (Drift,), {"advance": lambda self, state, action: state @ action}), "error methods"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensor(name: str) -> None:
    env, names = TENSORS[name]
    report = quick(env)
    assert found(report) == expected(names), "\n".join(report.lines())


class Documented(Drift):
    """Every use that the documentation names: global streams, a generator of its own, attributes that change, and a list
    that it saves itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rng, self.steps, self.log = torch.Generator().manual_seed(3), torch.zeros(()), [0.0]
        super().__init__(*args, **kwargs)

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        gust = torch.rand(len(state), 1) + random.random() + np.random.rand()
        return super().advance(state, action) + 0.01 * gust + 0.01 * torch.rand(len(state), 1, generator=self.rng)

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.log.append(self.log[-1] + 1)
        return super().reward(state, action, next_state) + 1e-4 * (self.steps + self.log[-1])

    def state_dict(self) -> dict[str, torch.Tensor]:
        return super().state_dict() | {"log": torch.tensor(self.log)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state)
        self.log = state["log"].tolist()


def test_documented_uses_are_no_errors() -> None:
    before = global_streams()
    report = quick(Documented)
    assert found(report) == expected("note global stream"), "\n".join(report.lines())
    assert "torch" in report.findings[0].message
    assert global_streams() == before
    assert report.facts["unfinished"] == []


class Unsaved(Drift):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.numbers = iter(range(10**6))
        super().__init__(*args, **kwargs)

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return super().reward(state, action, next_state) + next(self.numbers)


def writing(self: Any, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return state.mul_(1.1)


ADVICE: dict[str, tuple[Any, str, str]] = {  # for tensor environments: what is found, and a word of the fix
    "in place": (type("Broken", (Drift,), {"advance": writing}), "note advance in place", "called on copies"),
    "an iterator": (Unsaved, "error determinism", "iterators, files and captured variables are not"),
    "no chance": (type("Broken", (Drift,), {"initial": lambda s, x: 0 * x}), "note seeds", "noise in initial"),
    "rows alike": (type("Broken", (Drift,), {"initial": lambda s, x: 0 * x + x[0]}), "warning rows", "noise in initial"),
    "endless": (
        type("Broken", (Drift,), {"time_limit": None, "terminated": TensorEnv.terminated}), "warning endless", "time_limit"
    ),
    "draws nothing": (type("Broken", (Drift,), {"draw": lambda s, obs, a=None: None}), "warning draw", "dtype uint8"),
    "attributes too late": (
        type("Broken", (Drift,), {"initial": lambda s, x: x * s.scale}), "error methods", "before super().__init__()"
    ),
    "reward (N, 1)": (type("Broken", (Drift,), {"reward": lambda s, a, b, c: c[:, :1]}), "error methods", "squeeze(-1)"),
    "no super().__init__()": (
        type("Broken", (Drift,), {"__init__": lambda s, *a, **k: None}), "error methods", "super().__init__("
    ),
    "raises later": (
        type("Broken", (Drift,), {"advance": lambda s, x, a: Drift.advance(s, x, a) if x.std() < 1 else x @ a}),
        "error step", "every action, from every state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_tensor_environments_get_advice_for_tensor_environments(name: str) -> None:
    env, finding, words = ADVICE[name]
    report = quick(env)
    (level, check_name) = next(iter(expected(finding)))
    (match,) = [f for f in report.findings if f.check == check_name]
    assert match.level == level
    assert words in match.fix
    text = "\n".join(report.lines())
    assert "np_random" not in text
    assert "gymnasium" not in text.lower()


def late_writing(self: Any, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return state.mul_(1.1) if (state.abs() > 1).any() else state * 1.1


def leaves(self: Any, state: torch.Tensor) -> torch.Tensor:
    return (state[:, 0].abs() * 5).long()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"advance": late_writing}, "Broken.advance writes into an argument"),
        ({"observation": Discrete(6), "observe": leaves}, "Broken.observe gives observation 6 for env number "),
    ],
)
def test_what_goes_wrong_later_is_said_of_the_users_method(changes: dict[str, Any], words: str) -> None:
    report = quick(type("Broken", (Drift,), changes))
    (finding,) = report.of("error")
    assert finding.message.startswith(words)
    assert ".py:" not in finding.message


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "DanceCart-v0", "Probe1-v0", "Probe3-v0", "Probe5-v0"]
)
def test_our_own_environments_are_sound(env_id: str) -> None:
    report = quick(env_id)
    assert found(report, "error") == set(), "\n".join(report.lines())
    assert found(report, "warning") <= {("warning", "no reward")}, "\n".join(report.lines())


# environments everyone knows -----------------------------------------------------------------------------------------

KNOWN = {
    "CartPole-v1": "", "MountainCar-v0": "", "MountainCarContinuous-v0": "", "Pendulum-v1": "", "Acrobot-v1": "",
    "Blackjack-v1": "", "FrozenLake-v1": "warning no reward", "Taxi-v4": "", "CliffWalking-v1": "warning endless",
    "LunarLander-v3": "", "LunarLanderContinuous-v3": "", "BipedalWalker-v3": "",
    "HalfCheetah-v5": "", "Hopper-v5": "", "Reacher-v5": "", "Humanoid-v5": "warning observation scale",
}  # fmt: skip
NEEDS = {"Lunar": "Box2D", "Biped": "Box2D", "HalfC": "mujoco", "Hoppe": "mujoco", "Reach": "mujoco", "Human": "mujoco"}


@pytest.mark.parametrize("env_id", KNOWN)
def test_known_environments_are_sound(env_id: str) -> None:
    if env_id[:5] in NEEDS:
        pytest.importorskip(NEEDS[env_id[:5]])
    report = quick(env_id, backend="gymnasium")
    assert report.has("endless") == (env_id == "CliffWalking-v1")
    assert found(report, "error", "warning") <= expected(KNOWN[env_id]), "\n".join(report.lines())
    assert report.facts["unfinished"] == []
