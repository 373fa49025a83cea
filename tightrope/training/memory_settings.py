"""The setting `memory`: a user's own class, and what a memory needs of the other settings."""

from __future__ import annotations

from typing import cast

from torch import nn

from ..algorithms import OnPolicyConfig
from ..algorithms.common import divides
from ..engine import world
from ..envs.registry import id_or_path
from ..errors import UsageError
from ..models.memory import MEMORIES, Memory
from ..types import Env
from .user_objects import imported, in_memory


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


def check_sequences(share: OnPolicyConfig, env: Env) -> None:
    """Raise UsageError if minibatches cannot be whole sequences of environments, as a memory needs them."""
    if env.skips and world().is_distributed:
        raise UsageError(
            "memory on several ranks needs an env that resets within a step: give autoreset_mode SAME_STEP"
        )
    if share.epoch_settings:
        whole = "num_envs (with memory, minibatches are all steps of some environments)"
        divides(share, share.epoch_settings[1], whole, share.num_envs)
