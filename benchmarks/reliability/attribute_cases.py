"""Kinds of attributes that an environment of one's own may hold, each changed and used in every step.

`start` is called by the constructor, `step` once a step; what `step` returns decides the reward, to the last bit.
"""

import collections
import datetime
import enum
import io
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

import tightrope as tr

Start, Step = Callable[[Any], None], Callable[[Any], Any]


class Case(NamedTuple):
    kind: str
    start: Start
    step: Step


class Light(enum.Enum):
    RED = 1
    GREEN = 2


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Robot:
    speed: float = 0.0
    path: list[int] = field(default_factory=list)
    arm: np.ndarray = field(default_factory=lambda: np.zeros(3))


@dataclass(frozen=True)
class Goal:
    at: int


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 0, np.zeros(2)


class Inner:
    """An environment that another one wraps."""

    def __init__(self) -> None:
        self.count, self.rng, self.clock = 0, np.random.default_rng(3), torch.zeros(2)

    def step(self) -> Any:
        self.count += 1
        self.clock += 0.5
        return self.count, self.rng.random(), self.clock.tolist()


class Wrapper:
    def __init__(self, env: Any) -> None:
        self.env, self.steps = env, 0

    def step(self) -> Any:
        self.steps += 1
        return self.steps, self.env.step()


class Wide(list):  # type: ignore[type-arg]
    pass


def replaced(kind: str, first: Any, after: Callable[[Any], Any]) -> Case:
    """An attribute that is bound to another value in every step."""

    def start(env: Any) -> None:
        env.x = first() if callable(first) else first

    def step(env: Any) -> Any:
        env.x = after(env.x)
        return env.x

    return Case(kind, start, step)


def changed(
    kind: str, make: Callable[[], Any], change: Callable[[Any], Any], look: Callable[[Any], Any] = lambda x: x
) -> Case:
    """An attribute that stays the same object and is changed in place; `change` may return what was drawn."""

    def start(env: Any) -> None:
        env.x = make()

    def step(env: Any) -> Any:
        return change(env.x), look(env.x)

    return Case(kind, start, step)


def drawn(kind: str, make: Callable[[], Any], draw: Callable[[Any], Any]) -> Case:
    """An attribute of which only what is drawn from it is seen."""
    return changed(kind, make, draw, look=lambda x: None)


def lazy(kind: str, make: Callable[[], Any], change: Callable[[Any], Any], there: bool = True) -> Case:
    """An attribute that is made in the first step: None before, or not there at all."""

    def start(env: Any) -> None:
        if there:
            env.x = None

    def step(env: Any) -> Any:
        if getattr(env, "x", None) is None:
            env.x = make()
        return change(env.x), env.x

    return Case(kind, start, step)


def views(kind: str, make: Callable[[], tuple[Any, Any]], later: bool = False) -> Case:
    """Two attributes that share memory, made by the constructor or in the first step."""

    def start(env: Any) -> None:
        if not later:
            env.x, env.y = make()

    def step(env: Any) -> Any:
        if not hasattr(env, "y"):
            env.x, env.y = make()
        env.x[0] += 1  # seen through the other
        env.y *= 1.5
        return env.x, env.y

    return Case(kind, start, step)


def bump(array: Any) -> None:
    array += 1


def start_two_names(env: Any) -> None:
    env.x = env.y = []


def two_names(env: Any) -> Any:
    env.x.append(len(env.y))
    return env.x, env.y


def start_network(env: Any) -> None:
    env.x = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(env.x.weight, 0.5)
    torch.nn.init.constant_(env.x.bias, 0.1)
    env.y = torch.optim.Adam(env.x.parameters(), lr=0.1)


def network(env: Any) -> Any:
    with torch.enable_grad():
        loss = env.x(torch.ones(1, 2)).sum()
        env.y.zero_grad()
        loss.backward()
    env.y.step()
    return loss.detach().item()


def start_own_names(env: Any) -> None:
    env._Walk__hidden, env.limit = 0, 5  # a class has the second as well


def own_names(env: Any) -> Any:
    env._Walk__hidden += 1
    env.limit += 1
    return env._Walk__hidden, env.limit, env.doubled


def come_and_go(env: Any) -> Any:
    """An attribute that is deleted in one step and made in another."""
    if hasattr(env, "x"):
        del env.x
    else:
        env.x = 3
    return hasattr(env, "x")


def longer(env: Any) -> Any:
    env.max_episode_steps += 1
    return env.max_episode_steps


def closure() -> Callable[[], int]:
    held = [0]

    def count() -> int:
        held[0] += 1
        return held[0]

    return count


def numbers() -> Any:
    yield from itertools.count()


def file_with_lines() -> Any:
    """As `open` gives it, without a file that somebody has to close."""
    return io.TextIOWrapper(io.BytesIO("".join(f"{i}\n" for i in range(100_000)).encode()))


def inner_step(x: Any) -> Any:
    """Of a tensor environment inside another."""
    if x.clock.sum() == 0:
        x.reset(seed=1)
    return x.step(torch.zeros(2, dtype=torch.int64)).obs


def gymnasium_env() -> Any:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    return env


def gymnasium_step(x: Any) -> Any:
    obs, reward, terminated, truncated, _ = x.step(0)
    return obs, x.reset()[0] if terminated or truncated else reward


def dictionary_step(x: dict[Any, Any]) -> None:
    n = len(x)
    x.update({n: n * 0.5, str(n): [n], (n, "a"): {"deep": n}, None: n, 0.5: True})


def robot_step(x: Robot) -> None:
    x.speed += 0.1
    x.path.append(len(x.path))
    x.arm[1] += 1


def robots_step(x: list[Robot]) -> None:
    x.append(Robot(len(x) * 0.5))
    robot_step(x[0])


def structured() -> Any:
    return np.zeros(2, dtype=[("a", "<i4"), ("b", ">f8", (2,)), ("c", "U3")])


def structured_step(x: Any) -> None:
    x["a"] += 1
    x["b"][0] += 0.5
    x["c"] = str(int(x["a"][0]) % 7)


CASES = [
    replaced("int", 0, lambda x: x + 1),
    replaced("int of 2^63 and more", 2**63, lambda x: x * 3),
    replaced("bool", False, lambda x: not x),
    replaced("float", 0.1, lambda x: x * 1.1),
    replaced("nan, inf, -0.0", 0.0, lambda x: -x if x == 0 else float("nan") if x > 0 else float("-inf")),
    replaced("complex", 1 + 2j, lambda x: x * (0.5 - 1j)),
    replaced("str", "", lambda x: x + "ä\ud800\0"),
    replaced("bytes", b"", lambda x: x + b"\x00\xff"),
    replaced("None, later a number", None, lambda x: 1 if x is None else x + 1),
    replaced("None, later a list", None, lambda x: [1] if x is None else [*x, 2]),
    replaced("tuple", (), lambda x: (*x[-5:], len(x))),
    replaced("named tuple", Point(0.0, 1.0), lambda x: Point(x.y, x.x + 0.5)),
    changed("list", list, lambda x: x.append(len(x) * 0.5)),
    changed("nested list", lambda: [[0], [1, [2]]], lambda x: x[1][1].append(len(x[0]))),
    Case("one list under two names", start_two_names, two_names),
    changed("subclass of list", Wide, lambda x: x.append(1)),
    changed("dict of many keys", dict, dictionary_step),
    changed("set", set, lambda x: x.add(len(x) * 7)),
    replaced("frozenset", frozenset(), lambda x: x | {len(x)}),
    changed("deque with maxlen", lambda: collections.deque(maxlen=3), lambda x: x.append(sum(x) + 1)),
    changed("Counter", collections.Counter, lambda x: x.update([sum(x.values()) % 3])),
    changed("defaultdict", lambda: collections.defaultdict(list), lambda x: x[len(x)].append(1)),
    changed("OrderedDict", lambda: collections.OrderedDict(a=1, b=2), lambda x: (x.move_to_end("a"), x.update(b=x["b"] + 1))),
    replaced("enum", Light.RED, lambda x: Light.GREEN if x is Light.RED else Light.RED),
    changed("dataclass", Robot, robot_step, vars),
    replaced("frozen dataclass", Goal(1), lambda x: Goal(x.at + 1)),
    changed("list of dataclasses", lambda: [Robot()], robots_step, lambda x: [vars(r) for r in x]),
    lazy("dataclass made later", Robot, lambda x: (robot_step(x), vars(x))[1]),
    changed("wrapped environment", lambda: Wrapper(Inner()), lambda x: x.step(), lambda x: x.steps),
    changed("tensor environment inside", lambda: tr.envs.CartPole(2, max_episode_steps=4), inner_step, lambda x: x.state),
    drawn("Gymnasium environment inside", gymnasium_env, gymnasium_step),
    Case("network and optimizer", start_network, network),
    changed("array in place", lambda: np.arange(4.0), bump),
    replaced("array replaced", lambda: np.arange(4.0), lambda x: np.append(x, len(x))),
    lazy("array made later", lambda: np.zeros((2, 3), np.int16), bump, there=False),
    views("views of one array", lambda: (x := np.arange(8.0), x[2:6].reshape(2, 2).T)),
    views("array and tensor of one memory", lambda: (x := torch.arange(4.0), x.numpy())),
    replaced("array of strings", lambda: np.array(["a", "b"]), lambda x: np.char.add(x, "c")),
    changed("structured array", structured, structured_step),
    replaced("numpy scalar", np.float32(0.1), lambda x: x * np.float32(1.1)),
    drawn("numpy Generator", lambda: np.random.default_rng(1), lambda x: x.random()),
    lazy("numpy Generator made later", lambda: np.random.default_rng(5), lambda x: x.random(), there=False),
    drawn("Generator that spawns", lambda: np.random.default_rng(1), lambda x: x.spawn(1)[0].random()),
    drawn("RandomState", lambda: np.random.RandomState(1), lambda x: x.normal()),
    drawn("random.Random", lambda: random.Random(1), lambda x: x.gauss(0, 1)),
    drawn("torch.Generator", lambda: torch.Generator().manual_seed(1), lambda x: float(torch.rand((), generator=x))),
    changed("tensor", lambda: torch.zeros(3), bump),
    replaced("tensor replaced", lambda: torch.zeros(3), lambda x: torch.cat([x[-4:], x[-1:] + 1])),
    views("views of one tensor", lambda: (x := torch.arange(8.0), x[:5])),
    views("views of one tensor, made later", lambda: (x := torch.arange(8.0), x[:5]), later=True),
    changed("bfloat16 tensor", lambda: torch.zeros(3, dtype=torch.bfloat16), bump),
    replaced("sparse tensor", lambda: torch.eye(2).to_sparse(), lambda x: (x * 1.5).coalesce()),
    replaced("datetime", datetime.datetime(2020, 1, 1), lambda x: x + datetime.timedelta(1)),
    Case("private, inherited and derived names", start_own_names, own_names),
    Case("attribute that comes and goes", lambda env: setattr(env, "x", 3), come_and_go),
    Case("max_episode_steps", lambda env: None, longer),
    Case("function, bound to another", lambda env: setattr(env, "x", max),
         lambda env: setattr(env, "x", sum if env.x is len else len) or env.x is len),
    drawn("generator of a function", numbers, next),
    drawn("iterator", lambda: iter(range(10_000)), next),
    drawn("open file", file_with_lines, lambda x: x.readline()),
    drawn("closure", closure, lambda x: x()),
    changed("lock in an object", threading.Event, lambda x: x.clear() if x.is_set() else x.set(), lambda x: x.is_set()),
    changed("set of objects", lambda: {Slotted()}, lambda x: x.add(Slotted()), len),
    changed("more values than are kept", lambda: [0] * 30_000, lambda x: x.append(1), len),
]  # fmt: skip
