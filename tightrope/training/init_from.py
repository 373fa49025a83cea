"""Start a run from the networks and statistics of another run, where they fit. Everything else of the new run is new: settings,
optimiser, schedules, counters, environments."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from ..engine import State
from ..errors import UsageError, plural, printable
from ..models.normalizer import RunningMoments
from .build import find_on_all_ranks
from .checkpoint_reader import MODEL, Checkpoint

MAX_NAMED = 2  # tensors that a line names
Tensors = dict[str, Tensor]  # by name


def start_from(state: State, path: str | None) -> list[str]:
    """Copy the networks and statistics of the run in `path` into a new state, where names and shapes are the same. Returns
    lines that say what was taken and what was not: a heading, and one for each module."""
    if path is None:
        return []
    try:
        found = find_on_all_ranks(Path(path))
        saved = by_module(found.read(MODEL), "policy.")
    except UsageError as error:
        raise UsageError(f"init_from: {error}") from None
    own = by_module(state.policy.state_dict())
    if state.policy.critic is state.policy.actor:
        own.pop("critic", None)  # another name for the same tensors
    lines, weights = [heading(path, found)], 0
    for module, tensors in own.items():
        given = saved.pop(module, {})
        fitting = [name for name, tensor in tensors.items() if tensor_fits(tensor, given.get(name))]
        if isinstance(getattr(state.policy, module), RunningMoments):
            given = given if given.get("count", torch.zeros(1)).any() else {}  # no statistics were collected
            fitting = fitting if given and len(fitting) == len(tensors) else []  # a mean alone means nothing
        for name in fitting:
            if not given[name].isfinite().all():
                raise UsageError(f"init_from {path} is not finite in {module}.{name}: give an earlier checkpoint of it")
            tensors[name].copy_(given[name])
        weights += sum(tensors[name].dim() > 1 for name in fitting)
        lines.append(f"  {module}: {module_outcome(tensors, given, fitting)}")
    if not weights:
        why = "; ".join(line.strip() for line in lines[1:])
        raise UsageError(f"init_from {path} has no weights that fit: {why}. Drop it, or give a run with such a network")
    unused = [name for name in sorted(saved) if name != "critic" or state.policy.critic is None]
    return [*lines, *(f"  not used: {printable(', '.join(unused[:6]))}" for _ in unused[:1])]


def by_module(tensors: Tensors, prefix: str = "") -> dict[str, Tensors]:
    """Tensors by the module that holds them, such as actor, and by their name inside it. A trunk has the same names whether it
    sees a group of parts or everything, and whether a memory follows it or not."""
    found: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        module, _, inner = name.removeprefix(prefix).partition(".")
        found.setdefault(module, {})[re.sub(r"^(trunk\.)+", "", inner)] = tensor
    return found


def tensor_fits(tensor: Tensor, given: Tensor | None) -> bool:
    return given is not None and (given.shape, given.dtype) == (tensor.shape, tensor.dtype)


def heading(path: str, found: Checkpoint) -> str:
    settings = found.manifest["config"]
    what = f"{str(settings.get('algo'))[:40]} on {str(settings.get('env'))[:80]}"
    return printable(f"init_from {path}: {what} after {plural(found.steps, 'step')}")


def module_outcome(tensors: Tensors, given: Tensors, fitting: list[str]) -> str:
    """What became of a module, and why."""
    if len(fitting) == len(tensors):
        return "taken"
    if not given:
        return "new, the other run has none"
    reasons = [tensor_difference(name, tensors[name], given.get(name)) for name in tensors if name not in fitting]
    shown = [reason for reason in reasons if reason]
    more = f" and {plural(len(shown) - MAX_NAMED, 'more tensor')}" if len(shown) > MAX_NAMED else ""
    return f"{'taken but for' if fitting else 'new,'} {', '.join(shown[:MAX_NAMED])}{more}"


def tensor_difference(name: str, tensor: Tensor, given: Tensor | None) -> str:
    """How a tensor differs from that of the other run; empty if it does not."""
    if given is None:
        return f"{name} (not there)"
    return "" if tensor_fits(tensor, given) else f"{name} ({shape_text(tensor)} here, {shape_text(given)} there)"


def shape_text(tensor: Tensor) -> str:
    kind = "" if tensor.dtype == torch.float32 else f" {str(tensor.dtype).removeprefix('torch.')}"
    return (" x ".join(map(str, tensor.shape)) or "1") + kind
