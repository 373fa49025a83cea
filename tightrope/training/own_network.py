"""Networks and memories that a user passes as objects, classes or import paths (module:Class)."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import cast

from torch import nn

from ..envs.registry import id_or_path
from ..errors import UsageError, one_line
from ..models.memory import MEMORIES, Memory
from .user_objects import imported, in_memory, is_import_path, only_in_its_script

Network = type[nn.Module] | Callable[[], nn.Module] | str | nn.Module  # a class, a function, module:Class, an instance


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
