"""Finds what is wrong with an environment before someone trains on it for a night: `check(target)` gives a `Report`.

Gymnasium's environments are looked at as they are, before an adapter converts anything; ours through the Env protocol. A
`Subject` plays an environment of one of these kinds and looks at the form of every answer; the checks below it compare
what it saw. Whatever the environment raises becomes a finding, and the other checks go on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ...errors import UsageError, raised
from ..adapters.gym import ALIASES, checked_make
from ..adapters.gym_envs import parameters
from ..attributes import SavedStreams
from ..registry import choose, construct, id_or_path, make
from ..tensor import TensorEnv
from ..validate import described
from .compare import bounds, drawing, hands, idle_actions, lasting, render, repeat, spawned, streams
from .report import Finding, Report
from .rows import Ours, Tensors, Vector
from .single import Single
from .subject import Broken, Subject
from .tally import play

__all__ = ["Finding", "Report", "check"]

ALL_SECONDS = 5.0  # after which no further check is begun
CHECKS: dict[str, Callable[[Subject], None]] = {
    "random play": play,
    "aliases and global streams": hands,
    "same seed": repeat,
    "other seeds": streams,
    "extreme actions": bounds,
    "one action for long": lasting,
    "actions after an end": idle_actions,
    "spawn": spawned,
    "draw": drawing,
    "render": render,
}
ONLY: dict[str, type[Subject]] = {"actions after an end": Vector, "spawn": Ours, "draw": Tensors, "render": Single}


def check(target: Any, *, steps: int = 4000, num_envs: int = 4, seed: int = 0, backend: str = "auto") -> Report:
    """Look for what is wrong with an environment, with at most `steps` random steps and for a few seconds.

    `target` is an id (made by `backend`), an environment, a vector environment, one of ours, or a class or factory of
    these; `num_envs` is for what can be made with a number of rows.
    """
    if not (isinstance(target, str) or callable(target) or hasattr(target, "step")):
        raise UsageError(f"env {target!r} is no environment: give an id, an environment, or a class or factory of one")
    report = Report(target if isinstance(target, str) else id_or_path(target))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own checks are said better below
        try:
            env = resolved(target, num_envs, seed, backend)
        except UsageError as error:
            if not (isinstance(target, type) and issubclass(target, TensorEnv)):
                raise
            mistake(report, error)
            return report
        except Exception as error:
            fix = "mend that line: a class or factory is called with nothing, or with num_envs"
            if isinstance(target, str):
                fix = "install what it needs, or give another id"
            report.add("error", "make", f"making it raises {raised(error)}", fix)
            return report
        streams = SavedStreams(env) if isinstance(env, TensorEnv) else None  # its checks seed global ones
        try:
            examine(env, report, steps, seed)
        finally:
            if streams is not None:
                streams.restore()
            if env is not target and hasattr(env, "close"):
                env.close()
    return report


def resolved(target: Any, num_envs: int, seed: int, backend: str) -> Any:
    """The environment that is meant."""
    if isinstance(target, str):
        engine = choose(target, backend).backend
        if engine != "gymnasium":
            return make(target, num_envs, seed=seed, backend=engine)
        base, kwargs = ALIASES.get(target, (target, {}))
        return checked_make(target, lambda: gymnasium.make(base, disable_env_checker=True, **kwargs))
    if not isinstance(target, type) and hasattr(target, "step"):
        return target
    if isinstance(target, type) and issubclass(target, TensorEnv):
        return construct(target, num_envs, "cpu", None)
    return target(num_envs=num_envs) if "num_envs" in parameters(target) else target()


def mistake(report: Report, error: UsageError) -> None:
    """A mistake in a method of a tensor environment, as a finding."""
    message, _, fix = str(error).rpartition(": ")
    report.add("error", "methods", message, fix)


def examine(env: Any, report: Report, steps: int, seed: int) -> None:
    """Every check, whatever the others find."""
    subject: Subject
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        report.add("error", "make", f"it is {described(env)}, without reset and step", "give an environment")
        return
    ours = all(hasattr(env, name) for name in ("spawn", "finished_episodes", "num_envs"))
    kind = Tensors if isinstance(env, TensorEnv) else Ours if ours else Vector if isinstance(env, VectorEnv) else Single
    done, unfinished, skipped, until = ["spaces"], [], [], time.perf_counter() + ALL_SECONDS
    try:
        subject = kind(env, report, steps, seed)
    except UsageError as error:
        mistake(report, error)
        return
    except Exception as error:
        fix = "set the spaces and, where there are several rows, num_envs in __init__"
        report.add("error", "spaces", f"what it is cannot be read: {raised(error)}", fix)
        return
    report.facts["engine"] = subject.engine
    for name, run in CHECKS.items():
        if not isinstance(subject, ONLY.get(name, Subject)):
            continue
        if time.perf_counter() > until:
            skipped.append(name)
            continue
        try:
            run(subject)
            done.append(name)
        except Broken:
            unfinished.append(name)
        except Exception as error:
            unfinished.append(name)
            fix = "mend the other errors first; if there are none, this is a bug of Tightrope's"
            report.add("error", name, f"this check cannot go on: {raised(error)}", fix)
        subject.lent = None
    report.facts |= {"checks": done, "unfinished": unfinished, "skipped": skipped}
