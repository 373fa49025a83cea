"""Load a checkpoint into a state: all of it to resume a run, or what fits of it to start a new one (`init_from`)."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ..algorithms.common import VARYING
from ..engine import COMPILED_C, COMPILED_VERSION, Runtime, State, world
from ..engine.distributed import broadcast_from_rank0
from ..envs.attribute_writer import MAX_BYTES as MAX_ATTRIBUTE_BYTES
from ..errors import UsageError, one_line, plural, printable
from ..models.normalizer import RunningMoments
from ..recording import turned_off
from .checkpoint_reader import MAX_HEADER_BYTES, MODEL, TRAINING, Checkpoint, files_of, find
from .checkpoint_writer import ENVS_KEY
from .config import Config
from .history import resumed_with
from .scoring import reached

FRESH_EPISODES = "episodes and the environment's attributes start afresh"
MAX_NAMED = 2  # tensors that a line names
Tensors = dict[str, Tensor]  # by name


def find_on_all_ranks(run_dir: Path, which: str = "last") -> Checkpoint:
    """The checkpoint that rank 0 finds; every rank opens and reads it itself."""
    if not world().is_distributed:
        return find(run_dir, which)
    found: list[Checkpoint] = []  # on rank 0

    def name_of_found() -> bytes:
        found.append(find(run_dir, which))
        return found[0].path.name.encode()

    name = broadcast_from_rank0(name_of_found).decode()
    return found[0] if found else find(run_dir, name)


def restore(state: State, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into a freshly built state. Its size is compared with the state before anything is allocated."""
    fresh = checkpoint.ranks != world().size
    files = files_of(0 if fresh else world().rank)
    parts = [*state.state_dict().values(), *getattr(state.env, "snapshot", dict)().values()]
    expected = (len(files) - 1) * sum(tensor.nbytes for tensor in parts)
    shapes = [item for file in files for item in checkpoint.shapes(file).items()]
    own = sum(math.prod(shape) for name, shape in shapes if name.startswith("env.own"))  # a fresh env may lack them
    size = sum(checkpoint.manifest["files"][file]["size"] for file in files)
    if size > 2 * expected + MAX_HEADER_BYTES + min(own, MAX_ATTRIBUTE_BYTES):
        raise checkpoint.misfit("it is far larger than a run with these settings")
    tensors = {name: tensor for file in files for name, tensor in checkpoint.read(file).items()}
    try:
        state.load_state_dict(tensors, fresh)
    except (KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise checkpoint.misfit(one_line(error)) from None
    if (state.steps, state.phase) != (checkpoint.steps, checkpoint.manifest["phase"]):
        raise UsageError(f"the checkpoint in {checkpoint.path} disagrees with its manifest about steps and phases")
    runtime, compiled = state.runtime, COMPILED_C in str(checkpoint.manifest.get("runtime", ""))
    if state.phase and runtime.records and compiled != runtime.compiles_recordings and not turned_off():
        state.runtime = Runtime(  # with the same bits as before, whatever the length of the run is now
            precision=runtime.precision, device=runtime.device, say=runtime.say, compiles_recordings=compiled
        )


def check_plausible(checkpoint: Checkpoint, config: Config) -> None:
    """Raise UsageError if the settings would build something far larger than the checkpoint, before building it."""
    shapes, training = checkpoint.shapes(MODEL).values(), checkpoint.shapes(TRAINING)
    first = (training.get("run.obs" if checkpoint.ranks else ENVS_KEY) or [0])[0]
    if config.algorithm.num_envs != (envs := first * max(checkpoint.ranks, 1)):
        raise checkpoint.misfit(f"num_envs is {config.algorithm.num_envs}, the checkpoint has {envs}")
    phases, steps, saved = checkpoint.manifest["phase"], checkpoint.steps, checkpoint.config
    most = phases * saved.algorithm.batch_size
    if steps > most or (not saved.algorithm.by_trajectory and steps != most):  # these may end a phase early
        raise checkpoint.misfit(f"{plural(phases, 'phase')} do not make {plural(steps, 'step')}")
    sizes = config.network.hidden_sizes if config.network.network is None else ()  # a user's network has none
    if len(sizes) > len(shapes) or sum(a * b for a, b in pairwise((1, *sizes, 1))) > sum(map(math.prod, shapes)):
        raise checkpoint.misfit(f"hidden_sizes {list(sizes)} are larger than its network")


# what is said about it ------------------------------------------------------------------------------------------------


def resume_notes(checkpoint: Checkpoint, state: State, config: Config) -> list[str]:
    """Notes for the user about resuming from a checkpoint."""
    lines = [f"resuming from {checkpoint.path.name}"]
    algorithm = config.algorithm
    changes = config.changes[len(checkpoint.config.changes) :]
    lines += resumed_with(changes, any(map(algorithm.varies, VARYING)))
    if algorithm.anneal_lr and any(change.setting == "learning_rate" for change in changes):
        lines.append("note: anneal_lr decays learning_rate over the whole run: set anneal_lr false to keep it as given")
    then = printable(str(checkpoint.manifest["versions"].get("torch")))[:20]
    if then != torch.__version__[:20]:
        lines.append(f"note: saved under torch {then}, this is {torch.__version__}: last digits may differ")
    before, now = (COMPILED_C in str(x) for x in (checkpoint.manifest.get("runtime", ""), state.runtime.describe()))
    if before and not now and state.phase:
        how = "compiled C, and NumPy replays them here"
        lines.append(f"note: the recordings of this run were {how}: last digits may differ")
    if before and now and state.phase and checkpoint.manifest["versions"].get("compiled") != COMPILED_VERSION:
        lines.append("note: an earlier version compiled the recordings of this run to other C: last digits may differ")
    if checkpoint.ranks != world().size:
        many = plural(checkpoint.ranks, "rank") if checkpoint.ranks else "several ranks without their states"
        lines.append(f"note: saved by {many}, this is {world().size}: {FRESH_EPISODES}")
    elif state.phase and not state.env.resumable:
        lines.append(f"note: the state of this environment cannot be saved, so {FRESH_EPISODES}")
    return lines


def nothing_to_do(state: State, config: Config, has_run: bool) -> str:
    """Why no phase is left to train, and how to train further."""
    score, goal, total = state.best_score, config.run.stop_at_return, config.algorithm.total_timesteps
    if reached(state, config):
        done = f"nothing to do: an evaluation returned {score:.2f}, and stop_at_return is {goal:g}"
        return f"{done}. Raise stop_at_return to train further"
    if state.solved:
        return f"nothing to do: the agent solved its task after {plural(state.steps, 'step')}"
    more = ". Raise --total-timesteps to train further" if has_run else ""
    return f"nothing to do: the agent has {state.steps:,} of {total:,} steps already; no whole phase is left{more}"


# the start of a new run -----------------------------------------------------------------------------------------------


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
