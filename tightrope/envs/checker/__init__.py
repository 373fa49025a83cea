"""Find mistakes in an environment before training on it: `check(target)` returns a `CheckReport`.

Gymnasium environments are checked directly, without an adapter; ours through the Env protocol. An `EnvUnderTest` wraps an
environment, plays it, and checks the form of all return values; the checks in `CHECKS` compare the results. An exception in the
environment becomes a finding, and the other checks continue.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ...errors import UsageError, raised
from ..adapters.gym import exposed, in_wrappers, made_by_id
from ..adapters.gym_single import signature_parameters
from ..arguments import make_with_arguments
from ..random_streams import GeneratorSnapshot
from ..registry import Wrap, choose, construct, id_or_path, make
from ..tensor import TensorEnv
from ..validate import describe_value
from . import trajectories
from .env_under_test import CheckAborted, CheckFinding, CheckReport, EnvUnderTest
from .gym_under_test import SingleUnderTest, VectorUnderTest
from .protocol_under_test import ProtocolUnderTest, TensorUnderTest
from .random_play import forbidden_actions, play_at_random

__all__ = ["CheckFinding", "CheckReport", "check"]

TOTAL_SECONDS = 5.0  # after which no further check starts
CHECKS: dict[str, tuple[Callable[[Any], None], type[EnvUnderTest]]] = {  # by name: the check, and for which kind
    "random play": (play_at_random, EnvUnderTest),
    "aliases and global streams": (trajectories.aliases_and_streams, EnvUnderTest),
    "same seed": (trajectories.same_seed, EnvUnderTest),
    "other seeds": (trajectories.different_seeds, EnvUnderTest),
    "extreme actions": (trajectories.extreme_actions, EnvUnderTest),
    "one action for long": (trajectories.held_actions, EnvUnderTest),
    "actions after an end": (trajectories.actions_after_end, VectorUnderTest),
    "spawn": (trajectories.spawned_copy, ProtocolUnderTest),
    "draw": (trajectories.drawing, TensorUnderTest),
    "forbidden actions": (forbidden_actions, SingleUnderTest),
}


def check(
    target: object, *, steps: int = 4000, num_envs: int = 4, seed: int = 0, backend: str = "auto",
    env_kwargs: Mapping[str, object] | None = None, wrappers: Sequence[Wrap] = (),
) -> CheckReport:  # fmt: skip
    """Check an environment, with at most `steps` random steps and for a few seconds.

    `target` is an id (made by `backend`), a Gymnasium environment or vector environment, an Env of ours, or a class or factory
    of these. `num_envs` is the number of rows, if it can be chosen. `env_kwargs` are arguments of its constructor, `wrappers`
    are applied to an environment of Gymnasium, the first one innermost.
    """
    if not (isinstance(target, str) or callable(target) or hasattr(target, "step")):
        raise UsageError(f"env {target!r} is invalid: give an id, an environment, or a class or factory of one")
    report = CheckReport(target if isinstance(target, str) else id_or_path(target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own checks, which this report covers
        try:
            made = env_to_check(target, num_envs, seed, backend, env_kwargs or {})
            env = wrapped(made, wrappers, target)
        except UsageError as error:
            if not (isinstance(target, type) and issubclass(target, TensorEnv)):
                raise
            report.add_usage_error("error", "methods", error)
            return report
        except Exception as error:
            fix = "fix that line: a class or factory is called with nothing, or with num_envs"
            if isinstance(target, str):
                fix = "install what it needs, or give another id"
            report.add("error", "make", f"making it raises {raised(error)}", fix)
            return report
        streams = GeneratorSnapshot(env) if isinstance(env, TensorEnv) else None  # its checks seed the global ones
        try:
            run_checks(env, report, steps, seed)
        finally:
            if streams is not None:
                streams.restore()
            if env is not target and hasattr(env, "close"):
                env.close()
    return report


def env_to_check(target: Any, num_envs: int, seed: int, backend: str, env_kwargs: Mapping[str, Any]) -> object:
    """The environment to check, made with these arguments."""
    if isinstance(target, str):
        chosen = choose(target, backend, bool(env_kwargs)).backend
        if chosen != "gymnasium":
            return make(target, num_envs, seed=seed, backend=chosen, env_kwargs=env_kwargs)
        return made_by_id(target, env_kwargs, gymnasium.make, disable_env_checker=True)
    if not isinstance(target, type) and hasattr(target, "step"):
        if env_kwargs:
            raise UsageError("env_kwargs are for an id, a class or a factory, and this is an environment: drop them")
        return target
    if isinstance(target, type) and issubclass(target, TensorEnv):
        return construct(target, num_envs, "cpu", None, env_kwargs=env_kwargs)
    rows = {"num_envs": num_envs} if "num_envs" in signature_parameters(target) else {}
    return make_with_arguments(id_or_path(target), lambda: target(**rows, **env_kwargs), lambda: target, env_kwargs)


def wrapped(env: object, wrappers: Sequence[Wrap], target: object) -> object:
    """The environment inside its wrappers; UsageError for an environment that takes none."""
    if wrappers and not isinstance(env, gymnasium.Env):
        fix = "give backend gymnasium" if isinstance(target, str) else "drop them"
        raise UsageError(f"wrappers are for single environments of Gymnasium, and {id_or_path(env)} is none: {fix}")
    return in_wrappers(env, wrappers) if isinstance(env, gymnasium.Env) else env


def wrapper_class_for(env: object) -> type[EnvUnderTest]:
    if isinstance(env, TensorEnv):
        return TensorUnderTest
    if all(hasattr(env, name) for name in ("spawn", "finished_episodes", "num_envs")):
        return ProtocolUnderTest
    return VectorUnderTest if isinstance(env, VectorEnv) else SingleUnderTest


def run_checks(env: object, report: CheckReport, steps: int, seed: int) -> None:
    """Run every check that applies; one failing check does not stop the others."""
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        report.add("error", "make", f"it is {describe_value(env)}, without reset and step", "give an environment")
        return
    if isinstance(env, gymnasium.Env):
        env = exposed(env)
    done, unfinished, skipped, until = ["spaces"], [], [], time.perf_counter() + TOTAL_SECONDS
    try:
        tested = wrapper_class_for(env)(env, report, steps, seed)
    except UsageError as error:
        report.add_usage_error("error", "methods", error)
        return
    except Exception as error:
        fix = "set the spaces and, where there are several rows, num_envs in __init__"
        report.add("error", "spaces", f"its spaces cannot be read: {raised(error)}", fix)
        return
    report.facts["engine"] = tested.engine
    for name, (run, kind) in CHECKS.items():
        if not isinstance(tested, kind):
            continue
        if time.perf_counter() > until:
            skipped.append(name)
            continue
        try:
            run(tested)
            done.append(name)
        except CheckAborted:
            unfinished.append(name)
        except Exception as error:
            unfinished.append(name)
            fix = "fix the other errors first; if there are none, this is a bug in Tightrope"
            report.add("error", name, f"this check cannot continue: {raised(error)}", fix)
        tested.returned = None
    report.facts |= {"checks": done, "unfinished": unfinished, "skipped": skipped}
