"""Someone who is told how a run goes: a progress bar, a video, a report page, a tracker. None of them can change a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ..output import print_line
from ..types import Env, Rollout


@dataclass(frozen=True)
class Target:
    """A return from which on a task counts as solved."""

    value: float
    source: str  # who says so, as a sentence without its full stop
    published: bool = True  # False where it is only what our preset reaches


@dataclass(frozen=True)
class About:
    """What is known of a run before it starts, or goes on."""

    title: str  # such as "CartPole-v1 ppo"
    settings: dict[str, Any]
    plan: list[str]  # in words
    steps: int  # of environments, at the start
    total_steps: int  # and at the end
    run_dir: Path | None = None
    facts: dict[str, str] = field(default_factory=dict)  # versions, device, number of parameters
    steps_taken: Callable[[], int] | None = None  # by all environments so far, where that can be known within a phase
    target: Target | None = None
    traits: dict[str, Any] = field(default_factory=dict)  # of the environment, as far as defaults depend on them


class Shown(Protocol):
    """What there is to be seen of a run's state."""

    @property
    def phase(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def env(self) -> Env: ...
    @property
    def policy(self) -> Any: ...  # the network
    @property
    def optimizer(self) -> Any: ...  # with the last gradient
    @property
    def rollout(self) -> Rollout: ...
    @property
    def obs(self) -> Tensor: ...  # (N, ...) what the environments show now
    @property
    def solved(self) -> bool: ...


class Onlooker:
    """Each method may be left as it is."""

    name = "an onlooker"

    def begin(self, about: About) -> None:
        """Training starts, or goes on."""

    def phase(self, state: Shown) -> None:
        """A phase has been run; its rollout is overwritten by the next."""

    def row(self, row: dict[str, Any]) -> None:
        """The metrics of a phase, on a device a phase later."""

    def evaluating(self, over: int, episodes: int) -> None:
        """An evaluation that takes a while has so many of its episodes behind it."""

    def video(self, path: Path, step: int) -> None:
        """A video has been written."""

    def over(self, state: Shown) -> None:
        """No phase follows. What was learned is saved, and is now scored: `scored` and `end` come later."""

    def scored(self, score: dict[str, Any]) -> None:
        """What the trained agent scored: a row of evaluation, at the last step."""

    def end(self, state: Shown) -> None:
        """Training has ended, one way or another; nothing is told after this."""


class Audience:
    """Everyone who watches. Who fails says so once and leaves; training goes on."""

    def __init__(self, onlookers: list[Onlooker]) -> None:
        self.onlookers = onlookers

    def tell(self, what: str, *words: Any) -> None:
        for onlooker in list(self.onlookers):
            if onlooker not in self.onlookers:  # it failed at something another one said meanwhile
                continue
            try:
                getattr(onlooker, what)(*words)
            except Exception as error:
                self.onlookers.remove(onlooker)
                reason = in_words(error)
                print_line(f"warning: {onlooker.name} failed and is left out from here on: {reason}", error=True)


def in_words(error: Exception) -> str:
    """One line: the type, without which many a message says nothing, and the message. A plain RuntimeError is its message,
    which somebody has written to be read."""
    words = " ".join(str(error).split())[:200]
    if not words:
        return type(error).__name__
    return words if type(error) is RuntimeError else f"{type(error).__name__}: {words}"
