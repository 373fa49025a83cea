"""What a runtime may execute as one CUDA graph.

An algorithm file marks these functions: `@run_as("phase")` a whole phase, `@run_as("part")` a part of it. A marked function is
executed by the runtime of its state, whether the loop or other code calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeVar

Unit = Literal["phase", "part"]
P = ParamSpec("P")
R = TypeVar("R")


class Executor(Protocol):
    """The part of a runtime that executes marked functions."""

    def run(self, unit: Unit, function: Callable[..., R], *args: object) -> R: ...
    def arithmetic(self) -> AbstractContextManager[None]: ...


class HasRuntime(Protocol):
    """The part of a run's state that `run_as` uses."""

    @property
    def runtime(self) -> Executor: ...


S = TypeVar("S", bound=HasRuntime)


def run_as(unit: Unit) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorate a function of a state so that the state's runtime executes it, if possible as a CUDA graph.

    On a device the function must not read tensors on the host, and must write the state's tensors in place.
    """

    def decorate(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(function)
        def call(state: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs:  # graphs take positional arguments only
                with state.runtime.arithmetic():
                    return function(state, *args, **kwargs)
            return state.runtime.run(unit, function, state, *args)

        return call

    return decorate
