"""Environments that a user passes as objects, classes, factories or import paths (module:Class), and the rules for imports.

A path is imported if the user gives it, never because a file names it: code named by a saved run must be imported already,
and code named by a settings file must be allowed on the command line.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..engine import world
from ..envs import ENVS as TENSOR_ENVS
from ..envs import EnvOptions, TensorEnv
from ..envs.registry import (
    BACKENDS,
    check_constructed,
    construct,
    id_or_path,
    import_module_of,
    module_and_name,
    working_directory_on_path,
)
from ..errors import UsageError, one_line
from ..types import Env, Settings
from .config import Config
from .function_trial import try_function
from .own_code import NAMES, OwnFunction, Wrapper, functions_of
from .settings import device_name, name_of_device, resolve_device, several, suits_cpu


def implements_env(env: object) -> bool:
    """Whether an object implements our Env protocol."""
    return not isinstance(env, type) and all(hasattr(env, name) for name in ("spawn", "finished_episodes", "num_envs"))


def check_env_object(env: object) -> None:
    if isinstance(env, TensorEnv):
        check_constructed(env)
    if not implements_env(env) and not callable(env) and not (hasattr(env, "reset") and hasattr(env, "step")):
        raise UsageError(f"env {env!r} is invalid: give an id, a Gymnasium environment or factory, or a TensorEnv")


def from_user(env: Any, config: Config, num_envs: int) -> Env:
    """Convert a user's environment to our Env protocol: a TensorEnv or its class, or anything of Gymnasium's."""
    run, limit = config.run, config.run.max_episode_steps
    if implements_env(env):
        return env
    if isinstance(env, type) and issubclass(env, TensorEnv):
        return construct(env, num_envs, resolve_device(run.device), limit, env_kwargs=run.env_kwargs)
    from ..envs.adapters.gym import from_object

    settings: Settings = {"vectorization_mode": run.vectorization_mode, "env_kwargs": run.env_kwargs}
    options = EnvOptions(max_episode_steps=limit, wrappers=functions_of(run.wrappers), **settings)
    made = from_object(env, num_envs, resolve_device(run.device), options)
    if run.device == "auto" and suits_cpu(made):
        made.device = torch.device("cpu")
    return made


def settings_fixed_by(env: Any, settings: Settings) -> Settings:
    """The settings that follow from an environment given as an object; UsageError if a setting contradicts it."""
    check_env_object(env)
    if settings.get("wrappers") and (implements_env(env) or (isinstance(env, type) and issubclass(env, TensorEnv))):
        raise UsageError(f"wrappers are for environments of Gymnasium, and {name_of(env)} is none: drop them")
    fixed: Settings = {"train_env": None}
    limit = None
    if not callable(env):
        fixed |= {"env_kwargs": {}, "max_episode_steps": None}
    if hasattr(env, "num_envs") and not isinstance(env, type):
        fixed["num_envs"] = env.num_envs * world().size
    if implements_env(env):
        limit = getattr(env, "max_episode_steps", None)
        fixed |= {"device": name_of_device(env.device), "max_episode_steps": limit}
    if "device" in settings:
        settings = {**settings, "device": device_name(settings["device"])}
        if settings["device"] == "cuda" and str(fixed.get("device")).startswith("cuda"):  # cuda stands for any GPU
            del settings["device"]
    for name, value in fixed.items():
        if settings.get(name, value) not in (value, "auto"):
            raise UsageError(f"{name} {settings[name]!r} is not the {value!r} of the env given: drop one of them")
    if limit is not None and limit == getattr(env, "time_limit", None):
        fixed["max_episode_steps"] = None
    return fixed


def ancestor_of(env: object) -> str | None:
    """The id of the nearest registered base class of an environment, whose preset is then used; None without one."""
    spec = None if isinstance(env, type) else getattr(env, "spec", None)  # on a wrapper class, spec is a property
    if spec is not None:
        return str(spec.id)
    ids = {cls: env_id for env_id, cls in TENSOR_ENVS.items()}
    return next((ids[cls] for cls in type(env).__mro__ if cls in ids), None)


def name_of(env: Any) -> str:
    """The id of an environment's class, or module:Class where it has none."""
    if implements_env(env) and isinstance(getattr(env, "name", None), str):
        return str(env.name)
    for env_id, cls in TENSOR_ENVS.items():
        if cls is type(env) or cls is env:
            return env_id
    return id_or_path(env)


def is_import_path(env: str) -> bool:
    """Whether a name is module:Class rather than an id."""
    return ":" in env and not re.search(r"-v\d+$", env)  # Gymnasium's own module:Name-v0 is an id


def short_name(env: str) -> str:
    """The class name alone, from module:Class or __main__:function.<locals>.Class."""
    return env.rpartition(":")[2].rpartition(".")[2] if is_import_path(env) else env


def has_id(env: str) -> bool:
    """Whether a backend, installed or not, has an environment of that name."""
    if env in TENSOR_ENVS:
        return True
    return not is_import_path(env) and any(engine.provides(env) for engine in BACKENDS.values())


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


def only_in_its_script(path: str) -> bool:
    """Whether module:name is defined in a script, a notebook or inside a function."""
    module, _, name = path.partition(":")
    return module == "__main__" or "<" in name


def check_command(env: str) -> str:
    """The command that checks an environment, or the line of Python where a command cannot import it."""
    if is_import_path(env) and only_in_its_script(env):
        name = short_name(env)
        return f"tightrope.envs.checker.check({'the factory' if '<' in name else name}).lines()"
    return f"`tightrope check {env}`"


def named_by_user(env: str) -> Any:
    """Import the class of module:Class. For Gymnasium's module:Name-v0, import the module and return None."""
    if is_import_path(env):
        return imported(env)
    module, _ = module_and_name(env)
    if module:
        imported(f"{module}:__name__")
    return None


def import_training_env(train_env: str | None) -> None:
    """Import the module that the train_env of a user names, if it names one."""
    if isinstance(train_env, str) and not is_import_path(train_env):
        import_module_of(train_env)


def check_allowed(file: object, layer: Settings, flags: Settings, modules: Iterable[str]) -> None:
    """Refuse code that a settings file names, unless a flag names the same code or `modules` has its module."""
    given = {name.replace("-", "_"): value for name, value in layer.items()}
    named = [(name, str(given.get(name, ""))) for name in ("env", "train_env", "network", "memory")]
    named += [("wrappers", str(path)) for path in several(given.get("wrappers", []))]
    named += [("functions", str(path).partition("=")[2]) for path in several(given.get("functions", []))]
    named += [(name, str(given[name])) for name in NAMES if name in given]
    for name, path in named:
        module, _ = module_and_name(path, name) if name not in flags else ("", "")
        if module and module not in modules and path not in flags.values():
            wrong = f"config {file} names {name} {path}, which is code to import"
            raise UsageError(f"{wrong}: if you trust it, give --allow-import {module}")


def with_own_code(settings: Settings) -> Settings:
    """The settings with the wrappers and functions that the user named as module:function imported."""
    added: Settings = {}
    wrappers, functions = settings.get("wrappers", ()), settings.get("functions", ())
    if wrappers:
        added["wrappers"] = tuple(imported_wrapper(one) for one in wrappers)
    if functions:
        added["functions"] = tuple(imported_function(one) for one in functions)
    return {**settings, **added}


def imported_wrapper(one: Wrapper) -> Wrapper:
    found = one if one.function is not None else Wrapper(one.path, imported(one.path, "wrappers"))
    if not callable(found.function):
        raise UsageError(f"wrappers {one.path!r} is not a function or class: give one that takes an environment")
    return found


def imported_function(one: OwnFunction) -> OwnFunction:
    """The function, imported if it was named, after a trial on small tensors."""
    found = one if one.function is not None else OwnFunction(one.name, one.path, imported(one.path, one.name))
    try_function(found)
    return found


def import_own_code(config: Config, names: tuple[str, ...] = ("wrappers", "functions")) -> Config:
    """`with_own_code` for settings that a user gave."""
    given = {name: value for name in names if (value := getattr(config.run, name))}
    return config.changed(**with_own_code(given)) if given else config


def already_here(path: str) -> Any:
    """The class of module:Class if it is imported already and can be made from settings alone; otherwise None."""
    found, gymnasium = in_memory(path), sys.modules.get("gymnasium")
    if not isinstance(found, type):
        return None
    if issubclass(found, TensorEnv):
        return found if found.__init__ is TensorEnv.__init__ else None
    is_env = gymnasium and issubclass(found, gymnasium.Env) and not issubclass(found, gymnasium.Wrapper)
    if not issubclass(found, nn.Module) and not is_env:
        return None
    return None if [name for name in inspect.signature(found).parameters if name != "render_mode"] else found


def in_memory(path: str) -> Any:
    """The object that module:Name refers to if the module is imported already; otherwise None."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def named_by_file(path: str, source: object, what: str, argument: str) -> Any:
    """The object that a saved run names by its import path, if imported already; otherwise UsageError asks for it."""
    found = already_here(path)
    if found is not None and issubclass(found, nn.Module) == (argument == "network"):
        return found
    name = path.partition(":")[2]
    if only_in_its_script(path):
        hidden = f"{source} {what} {name}, which was defined in a script, notebook or function"
        raise UsageError(f"{hidden}: define it again and pass it, tr.load(path, {argument}=...)")
    hint = f"or --{argument} {path}" if argument != "network" else f"or, for a class, --{argument} {path}"
    raise UsageError(f"{source} {what} {path}: pass it, tr.load(path, {argument}=...) {hint}")


def needs_import(env: str) -> bool:
    """Whether an id such as module:Name-v0 names a module that is not imported yet."""
    module, _ = module_and_name(env)
    return bool(module) and not is_import_path(env) and module not in sys.modules
