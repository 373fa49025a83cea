"""Answers to what people know from elsewhere and an agent does not have: an attribute, or an argument of a method."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import UsageError, near_matches
from ..logging import Callback
from .config import settings_of
from .names import ARGUMENTS, ENVS, MEMBERS, SETTINGS, here_called

Method = TypeVar("Method", bound=Callable[..., Any])


def missing_member(owner: type, name: str) -> AttributeError:
    """The error for an attribute that an agent does not have."""
    hint = here_called(name, MEMBERS)
    return AttributeError(f"{owner.__name__} has no {name!r}" + (f": {hint}" if hint else ""), name=name)


def missing_of_policy(name: str) -> AttributeError:
    """The error for an attribute that a policy without its environment does not have."""
    hint = (here_called(name, MEMBERS) or "").replace("agent.predict", "policy.predict")
    hint = hint.replace("agent.policy.", "policy.network.").replace("tr.load(", "tr.load_policy(")
    agent = "; an agent, with its environment, comes from tr.load(path)" if "agent." in hint else ""
    return AttributeError(f"Policy has no {name!r}" + (f": {hint}{agent}" if hint else ""), name=name)


class AgentType(type):
    """The class of the classes of agents, for `PPO.load(path)` and its like."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            raise missing_member(cls, name)


def known_arguments(method: Method) -> Method:
    """An argument that the method does not take is one line: what it is called here, or where it belongs."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise UsageError(f"{method.__name__} has no argument {unknown!r}{answer(unknown, names, type(self))}")
        return method(self, *args, **given)

    return cast(Method, call)


def answer(name: str, names: list[str], agent: type[Any]) -> str:
    """What to give instead of an unknown argument: another of the method's, a setting, or nothing."""
    hint, other = here_called(name, ARGUMENTS), ARGUMENTS.get(name, "")
    if other.startswith(":") or other.partition(",")[0] in names:
        return f": {hint}"
    if not hasattr(agent, "algo"):  # a policy without its environment, which has no settings
        return f": {hint}" if hint else f".{near_matches(name, names)} It takes {', '.join(names)}"
    if name in settings_of(agent.algo):
        return f": it is a setting, give it to {agent.__name__}(...)"
    if name in SETTINGS:
        known = SETTINGS[name] in names or SETTINGS[name].startswith(":")
        return f": {here_called(name, SETTINGS)}{'' if known else f', a setting of {agent.__name__}(...)'}"
    return f": {hint}" if hint else f".{near_matches(name, names)} It takes {', '.join(names)}"


def one_too_many(env: Any, other: Any, name: str) -> str:
    """The line for PPO("MlpPolicy", env), and for other arguments that are not named."""
    if isinstance(env, str) and env in ENVS:  # a policy of Stable-Baselines3, or an env of another library
        return f"{env!r} before the env is one argument too many, {name}(env) is enough: {here_called(env, ENVS)}"
    return f"{other!r} is one argument too many: give the env alone and settings by name, {name}(env, seed=1)"


def check_run_dir(run_dir: Any) -> None:
    """Refuse what is no path: Stable-Baselines3 has a callback in its place."""
    if run_dir is not None and not isinstance(run_dir, (str, os.PathLike)):
        hint = f": {here_called('callback', ARGUMENTS)}" if callable(run_dir) else ": give a path"
        raise UsageError(f"run_dir {run_dir!r} is not a directory{hint}")


def check_callbacks(callbacks: Any) -> None:
    """Refuse what is no list of callbacks, such as a function or a class."""
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(each, Callback) for each in callbacks):
        raise UsageError(
            f"callbacks {callbacks!r} is invalid: give a list of objects whose class inherits from tr.Callback"
        )
