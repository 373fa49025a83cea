"""Arguments of methods and constructors: which ones they take, and the error for another."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ..errors import UsageError, near_matches

Made = TypeVar("Made")
GIVEN = ("self", "render_mode", "num_envs", "device", "max_episode_steps", "seed")  # parameters that Tightrope gives


def accepted_arguments(maker: Callable[..., object]) -> tuple[list[str], bool]:
    """(the names of the arguments that a constructor or function takes by keyword, whether it may take others)."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):
        return [], True
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in GIVEN]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def takes_arguments(method: Callable[..., object], arguments: tuple[object, ...]) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # its signature cannot be read
        return True
    return True


def unknown_argument(env: str, maker: Callable[..., object], name: str) -> UsageError:
    """The error for an argument that an environment does not take. It lists those that it takes."""
    known, open_ended = accepted_arguments(maker)
    takes = ", ".join(known) + (" and perhaps others" if open_ended else "")
    also = f" It takes {takes}" if known else " It takes none"
    return UsageError(f"env_kwargs {name!r} is not an argument of {env}.{near_matches(name, known)}{also}")


def check_arguments_of(
    env: str, maker: Callable[..., object], env_kwargs: Mapping[str, object], env_id: str | None = None
) -> None:
    """Raise UsageError for an argument that a tensor environment's constructor does not take. Gymnasium's environment under the
    same id may take it."""
    known, open_ended = accepted_arguments(maker)
    for name in env_kwargs:
        if name not in known and (not open_ended or name in GIVEN):
            error = unknown_argument(env, maker, name)
            if env_id is not None and name in arguments_in_gymnasium(env_id):
                raise UsageError(f"{error}. Gymnasium's {env_id} takes it: give backend gymnasium")
            raise error


def arguments_in_gymnasium(env_id: str) -> list[str]:
    """The arguments of Gymnasium's environment under an id; none if it has no such id."""
    import gymnasium

    return accepted_arguments(creator_of(env_id))[0] if env_id in gymnasium.registry else []


def creator_of(env_id: str) -> Callable[..., object]:
    """The class or function that makes the environment that Gymnasium has under an id."""
    import gymnasium

    entry_point = gymnasium.spec(env_id).entry_point
    if isinstance(entry_point, str):
        return gymnasium.envs.registration.load_env_creator(entry_point)
    return entry_point or gymnasium.make


def make_with_arguments(
    env: str, make: Callable[[], Made], maker: Callable[[], Callable[..., object]], env_kwargs: Mapping[str, object]
) -> Made:
    """Call `make`. If it fails because of an unknown argument, raise UsageError; `maker` finds the constructor then."""
    try:
        return make()
    except TypeError as error:
        match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if match is None or match[1] not in env_kwargs:
            raise
        raise unknown_argument(env, maker(), match[1]) from None
