"""Environments, networks and memories that a user passes as objects, classes, functions or import paths (module:Class)."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ..engine import world
from ..envs import ENVS as TENSOR_ENVS
from ..envs import EnvOptions, TensorEnv
from ..envs.registry import BACKENDS, check_constructed, construct, id_or_path, module_and_name
from ..errors import UsageError, one_line
from ..models.memory import MEMORIES, Memory
from ..types import Env, Settings
from .config import Config
from .own_code import (
    NAMES,
    functions_of,
    imported,
    in_memory,
    is_import_path,
    only_in_its_script,
    short_name,
    with_own_code,
)
from .settings import device_name, name_of_device, resolve_device, several, suits_cpu

Network = type[nn.Module] | Callable[[], nn.Module] | str | nn.Module  # a class, a function, module:Class, an instance

# environments -----------------------------------------------------------------------------------------------------------


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
    fixed: Settings = {"train_env": settings.get("train_env")}  # not that of a preset
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


def has_id(env: str) -> bool:
    """Whether a backend, installed or not, has an environment of that name."""
    if env in TENSOR_ENVS:
        return True
    return not is_import_path(env) and any(engine.provides(env) for engine in BACKENDS.values())


def check_command(env: str) -> str:
    """The command that checks an environment, or the line of Python where a command cannot import it."""
    if is_import_path(env) and only_in_its_script(env):
        name = short_name(env)
        return f"tightrope.envs.checker.check({'the factory' if '<' in name else name}).lines()"
    return f"`tightrope check {env}`"


def named_by_user(env: str | None, what: str = "env") -> Any:
    """Import the class of module:Class. For Gymnasium's module:Name-v0, import the module and return None."""
    if env is not None and is_import_path(env):
        return imported(env, what)
    module, _ = module_and_name(env or "", what)
    if module:
        imported(f"{module}:__name__", what)
    return None


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


def import_own_code(config: Config, given: Collection[str] = ("wrappers", "functions")) -> Config:
    """`with_own_code` for the settings that the user gave, by name: `functions` for all, or the name of one, such as gae. What
    only a saved run names is not imported."""
    run, added = config.run, dict[str, Any]()
    if run.wrappers and "wrappers" in given:
        added["wrappers"] = run.wrappers
    if wanted := tuple(one for one in run.functions if one.name in given or "functions" in given):
        added["functions"] = wanted
    if not added:
        return config
    found = with_own_code(added)
    by_name = {one.name: one for one in (*run.functions, *found.pop("functions", ()))}
    return config.changed(**found, functions=tuple(by_name.values()))


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


def named_by_file(path: str, source: object, what: str, argument: str) -> Any:
    """The object that a saved run names by its import path, if imported already; otherwise UsageError asks for it."""
    found = already_here(path)
    if found is not None and issubclass(found, nn.Module) == (argument == "network"):
        return found
    name = path.partition(":")[2]
    if only_in_its_script(path):
        hidden = f"{source} {what} {name}, which was defined in a script, notebook or function"
        raise UsageError(f"{hidden}: define it again and pass it, tr.load(path, {argument}=...)")
    hint = (
        f"or --{argument.replace('_', '-')} {path}"
        if argument != "network"
        else f"or, for a class, --{argument} {path}"
    )
    raise UsageError(f"{source} {what} {path}: pass it, tr.load(path, {argument}=...) {hint}")


# networks ---------------------------------------------------------------------------------------------------------------


def network_for(config: Config, path: Path, network: Network | None) -> Network | None:
    """The user's network of a run: the one given, or the class if it is imported already."""
    if config.network.network is None or network is not None:
        return network
    return named_by_file(config.network.network, path, "has a network of your own,", "network")


def network_path(network: Network) -> str:
    """The name of a user's network, module:Class or module:function, for the settings."""
    if isinstance(network, str):
        if not is_import_path(network):
            raise UsageError(f"network {network!r} is not module:Class: without one, it is chosen from the spaces")
        return network
    if not callable(network):
        raise UsageError(f"network {network!r} is not an nn.Module: give its class, or an instance of one")
    return id_or_path(type(network) if isinstance(network, nn.Module) else network)


def own_network(network: Network) -> nn.Module:
    """Make a user's network for one agent.

    A class (or module:Class) is created without arguments and a function is called, so that the weights follow the seed. An
    instance is copied with its weights; training does not change the original.
    """
    if isinstance(network, nn.Module):
        return copy_of(network)
    made_by = network_class(network) if isinstance(network, str) else network
    try:
        made = made_by()
    except (TypeError, ValueError, RuntimeError) as error:
        wrong = f"network {network!r} cannot be made with no arguments: {one_line(error)}"
        raise UsageError(f"{wrong}. Give a function that makes it, such as lambda: Net(64)") from None
    return made if isinstance(made_by, type) else copy_of(made)  # a function may return the same network each time


def network_class(path: str) -> type[nn.Module]:
    """Import the network class of module:Class. Functions are refused: a name never causes a call of one."""
    found = imported(path, "network")
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    raise UsageError(f"network {path!r} is not a class of nn.Module: give one, or a function in Python, network=...")


def copy_of(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except Exception as error:  # whatever its members raise
        wrong = f"network {type(network).__name__} cannot be copied, and each agent trains a copy"
        raise UsageError(f"{wrong}: {one_line(error)}. Give its class instead") from None


def can_be_named(network: str) -> bool:
    """Whether --network can recreate this network: not if a function or arguments made it."""
    found = in_memory(network)
    imported_already = network.partition(":")[0] in sys.modules
    if only_in_its_script(network):
        return False
    if imported_already and not (isinstance(found, type) and issubclass(found, nn.Module)):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return True
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


# memories -----------------------------------------------------------------------------------------------------------------


def memory_setting(given: object) -> object:
    """The setting for a memory that a user gave, where it is a class: module:Class."""
    if isinstance(given, nn.Module):
        raise UsageError(
            f"memory {type(given).__name__} is an object: give its class, which is made with (features, size)"
        )
    return id_or_path(given) if isinstance(given, type) else given


def import_memory(path: str | None) -> None:
    """Import the module of a memory that the user named as module:Class."""
    if path is not None and path not in MEMORIES and in_memory(path) is None:
        imported(path, "memory")


def own_memory(path: str | None) -> type[Memory] | None:
    """A user's class of memory, if the settings name one. It must be imported already: a file may name it."""
    if path is None or path in MEMORIES:
        return None
    found = in_memory(path)
    if found is None:
        raise UsageError(
            f"memory {path} is a class of your own, at the top level of a module: import it first, or give --memory {path}"
        )
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise UsageError(
            f"memory {path} is not a class of nn.Module: give one with the methods of tr.models.memory.Memory"
        )
    return cast(type[Memory], found)
