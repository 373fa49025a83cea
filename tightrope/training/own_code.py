"""Code of the user's: import paths, wrappers of environments, and functions in place of an algorithm's.

A setting holds the import path of each, and the function itself once it is imported or given. A path is imported if the user
gives it, never because a file names it: code named by a saved run must be imported already, and code named by a settings file
must be allowed on the command line.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..engine.functions import Functions
from ..envs.registry import Wrap, id_or_path, module_and_name, working_directory_on_path
from ..errors import UsageError, near_matches, one_line
from ..types import Batch, Settings

NAMES = tuple(f.name for f in fields(Functions))
ROWS, STEPS, ENVS = 6, 3, 2  # sizes of the tensors on which a function is tried

# import paths -----------------------------------------------------------------------------------------------------------


def is_import_path(env: str) -> bool:
    """Whether a name is module:Class rather than an id."""
    return ":" in env and not re.search(r"-v\d+$", env)  # Gymnasium's own module:Name-v0 is an id


def short_name(env: str) -> str:
    """The class name alone, from module:Class or __main__:function.<locals>.Class."""
    return env.rpartition(":")[2].rpartition(".")[2] if is_import_path(env) else env


def only_in_its_script(path: str) -> bool:
    """Whether module:name is defined in a script, a notebook or inside a function."""
    module, _, name = path.partition(":")
    return module == "__main__" or "<" in name


def imported(path: str, what: str = "env") -> Any:
    """Import the class or function that a user named as module:name; UsageError if there is none."""
    module, name = module_and_name(path, what)
    try:
        with working_directory_on_path():
            return getattr(importlib.import_module(module), name)
    except Exception as error:
        if only_in_its_script(path):
            hidden = "is defined in a script, notebook or function, where a command cannot import it"
            raise UsageError(f"{what} {path!r} {hidden}: move it into a module, and give module:Class") from None
        raise UsageError(f"{what} {path!r} cannot be imported: {one_line(error)}. Give module:Class") from error


def in_memory(path: str) -> Any:
    """The object that module:Name refers to if the module is imported already; otherwise None."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):  # without getattr on a module, which may import another
        found = vars(found).get(part) if isinstance(found, ModuleType) else getattr(found, part, None)
    return found


def needs_import(env: str) -> bool:
    """Whether an id such as module:Name-v0 names a module that is not imported yet."""
    module, _ = module_and_name(env)
    return bool(module) and not is_import_path(env) and module not in sys.modules


# wrappers of environments, and functions in place of an algorithm's -----------------------------------------------------


@dataclass(frozen=True)
class Wrapper:
    """A wrapper of environments: a function or class that takes an environment and returns one."""

    path: str
    function: Wrap | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class OwnFunction:
    """A function and the name of the one that it replaces."""

    name: str
    path: str
    function: Callable[..., object] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}={self.path}"


def read_wrapper(value: object) -> Wrapper:
    """The wrapper that a value stands for: module:function as text, or the function itself."""
    if isinstance(value, Wrapper):
        return value
    if isinstance(value, str) and all(module_and_name(value, "wrappers")):
        return Wrapper(value)
    if callable(value):
        return Wrapper(id_or_path(value), value)
    raise UsageError(f"wrappers {value!r} is not module:function: give it as in mypackage.wrap:clip_reward")


def read_function(name: str, value: object) -> OwnFunction:
    """The function that stands for `name`: module:function as text, or the function itself."""
    if name not in NAMES:
        raise UsageError(f"functions has no {name!r}.{near_matches(name, NAMES)} Give one of: {', '.join(NAMES)}")
    if isinstance(value, OwnFunction):
        return value
    if isinstance(value, str) and all(module_and_name(value, name)):
        return OwnFunction(name, value)
    if callable(value):
        return OwnFunction(name, id_or_path(value), value)
    raise UsageError(f"{name} {value!r} is not a function: give one, or its name as module:function")


def read_functions(value: Iterable[object]) -> tuple[OwnFunction, ...]:
    """The value of the setting `functions`: name=module:function as text, or a mapping from names to functions."""
    if isinstance(value, Mapping):
        return tuple(read_function(str(name), one) for name, one in value.items())
    found = []
    for item in value:
        name, equals, path = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not equals and not isinstance(item, OwnFunction):
            raise UsageError(f"functions {item!r} is not name=module:function: give it as in gae=my_module:my_gae")
        found.append(item if isinstance(item, OwnFunction) else read_function(name, path))
    return tuple(found)


def functions_of(wrappers: Sequence[Wrapper]) -> tuple[Wrap, ...]:
    """The functions to apply to each environment; UsageError if one of a saved run was not given again."""
    for one in wrappers:
        if one.function is None:
            again = f"pass its wrappers again, tr.load(path, wrappers=[...]) or --wrappers {one}"
            raise UsageError(f"the run has wrapper {one}: {again}")
    return tuple(one.function for one in wrappers if one.function is not None)


def with_own_code(settings: Settings) -> Settings:
    """The settings with the wrappers and functions that the user named as module:function imported, and the functions tried."""
    added: Settings = {}
    if wrappers := settings.get("wrappers"):
        added["wrappers"] = tuple(imported_wrapper(one) for one in wrappers)
    if functions := settings.get("functions"):
        added["functions"] = tuple(imported_function(one) for one in functions)
    return {**settings, **added}


def imported_wrapper(one: Wrapper) -> Wrapper:
    found = one.function or imported(one.path, "wrappers")
    if not callable(found):
        raise UsageError(f"wrappers {one.path!r} is not a function or class: give one that takes an environment")
    return Wrapper(one.path, found)


def imported_function(one: OwnFunction) -> OwnFunction:
    found = one.function or imported(one.path, one.name)
    if (wrong := complaint(one.name, found)) is not None:
        raise UsageError(f"{one.name} {one.path.rpartition(':')[2]} {wrong}")
    return OwnFunction(one.name, one.path, found)


# a trial on small tensors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """How an algorithm calls a function: its parameters, arguments for a trial, and the shape of the result."""

    parameters: str
    arguments: Callable[[], tuple[object, ...]] | None = None  # None: it is not tried before training
    result: tuple[int, ...] = ()


def over_time() -> Tensor:
    """Numbers of shape (T, N)."""
    return torch.linspace(-1, 1, STEPS * ENVS).view(STEPS, ENVS)


def never() -> Tensor:
    return torch.zeros(STEPS, ENVS, dtype=torch.bool)


def flat_column(gradient: bool = False) -> Tensor:
    """Numbers of shape (B,)."""
    return torch.linspace(-1, 0, ROWS, requires_grad=gradient)


def small_batch() -> Batch:
    rows = torch.arange(ROWS)
    return Batch(rows[:, None].float(), rows, *(rows.float() for _ in range(4)))


def two_orders() -> Tensor:
    return torch.arange(ROWS).repeat(2, 1)


RESULTS = {  # what a function returns, by its shape
    (): "one number, with shape ()",
    (ROWS,): f"one number for each row, ({ROWS},)",
    (STEPS, 1): f"one number for each step, (T, 1) = ({STEPS}, 1)",
    (STEPS, ENVS): f"one number for each step and environment, (T, N) = ({STEPS}, {ENVS})",
}
SIGNATURES = {
    "discounted_returns": Signature(
        "reward, terminated, done, next_value, gamma",
        lambda: (over_time(), never(), never(), over_time(), 0.9), (STEPS, ENVS),
    ),
    "timestep_mean": Signature("x, alive", lambda: (over_time(), ~never()), (STEPS, 1)),
    "importance_weights": Signature(
        "log_prob, old_log_prob, clamp", lambda: (flat_column(), flat_column(), 0.2), (ROWS,)
    ),
    "policy_gradient": Signature(
        "log_prob, advantage, weight, mask", lambda: (flat_column(True), flat_column(), flat_column().exp(), flat_column() < 0)
    ),
    "gae": Signature(
        "reward, value, next_value, terminated, done, gamma, gae_lambda",
        lambda: (over_time(), over_time(), over_time(), never(), never(), 0.9, 0.8), (STEPS, ENVS),
    ),
    "clipped_surrogate": Signature(
        "log_prob, old_log_prob, advantage, clip_coef", lambda: (flat_column(True), flat_column(), flat_column(), 0.2)
    ),
    "value_loss": Signature("value, target", lambda: (flat_column(True), flat_column())),
    "entropy_bonus": Signature("entropy", lambda: (flat_column(True),)),
    "minibatches": Signature("batch, count, order", lambda: (small_batch(), 2, two_orders())),
    "collect": Signature("env, policy, rollout, obs, noise"),
    "phase": Signature("state, config, noise"),
}  # fmt: skip


def complaint(name: str, function: object) -> str | None:
    """What is wrong with a function that stands for `name`, as the end of a sentence; None if nothing is."""
    signature = SIGNATURES[name]
    if not callable(function):
        return f"is a {type(function).__name__}: give a function of ({signature.parameters})"
    if not takes(function, len(signature.parameters.split(", "))):
        return f"does not take {signature.parameters}: define it with these parameters, in this order"
    if signature.arguments is None:
        return None
    try:
        result = function(*signature.arguments())
        if name == "minibatches":
            result = list(result)
    except Exception as error:
        return f"raises {type(error).__name__} on small tensors: {one_line(error)}"
    return wrong_result(signature, result) if name != "minibatches" else wrong_minibatches(result)


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many arguments by position."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        return True
    return True


def wrong_result(signature: Signature, result: object) -> str | None:
    wanted = RESULTS[signature.result]
    if not isinstance(result, Tensor):
        return f"returns {type_words(result)}: return {wanted}"
    if result.shape != signature.result:
        return f"returns shape {tuple(result.shape)}: return {wanted}"
    if not result.is_floating_point():
        return f"returns {str(result.dtype).removeprefix('torch.')}: return floats"
    return None


def wrong_minibatches(found: object) -> str | None:
    assert isinstance(found, list)
    bad = next((one for one in found if not isinstance(one, Batch)), None)
    if bad is not None:
        return f"yields {type_words(bad)}: yield parts of the batch, such as batch.take(rows)"
    return None if len(found) == 4 else f"yields {len(found)} minibatches for 2 orders of 2 each: yield 4"


def type_words(thing: object) -> str:
    return "nothing" if thing is None else f"a {type(thing).__name__}"
