"""Save the state of a run as a checkpoint, and restore it; `checkpoint_reader` describes the files and finds them.

A checkpoint is written to a temporary directory, synced to the disk and then renamed, so that a directory with the name of a
checkpoint is complete.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import torch
import yaml
from safetensors.torch import save

from ..engine import COMPILED_C, COMPILED_VERSION, Runtime, State, world
from ..engine.distributed import broadcast_from_rank0
from ..envs.adapters.host import HostEnv
from ..envs.attribute_writer import MAX_BYTES as MAX_ATTRIBUTE_BYTES
from ..envs.attributes import unsaved_warning
from ..envs.with_memory import without_memory
from ..errors import UsageError, one_line, plural, warn
from ..files import Place, Unreadable, canonical, digest, remove_leftovers
from ..models.hybrid_spec import flat_action
from ..recording import turned_off
from ..types import Composite, Env, Settings, Spec
from ..version import __version__
from .checkpoint_reader import (
    CHECKPOINTS,
    CONFIG,
    LATEST,
    MANIFEST,
    MAX_HEADER_BYTES,
    MODEL,
    SCHEMA,
    TRAINING,
    Checkpoint,
    best_first,
    files_of,
    find,
    list_checkpoints,
    newest_serial,
    read_manifest,
    with_hash,
)
from .config import Config

MAX_SERIAL = 10**12 - 1  # the longest serial number that a checkpoint's name may have
ENVS_KEY = "run.envs"  # replaces the state of each rank where it is left out: a tensor with one zero per environment
UNFINISHED, LEAVING = ".new-", ".old-"  # prefixes of directories being written or removed, which readers skip


def save_config(run_dir: Path, config: Config) -> None:
    (Place(run_dir) / CONFIG).write(yaml.safe_dump(config.saved(), sort_keys=False).encode())


def rank_state(state: State) -> bytes:
    """The part of the state that differs between ranks, as the content of a safetensors file."""
    return save(
        {k: v.cpu().contiguous() for k, v in state.state_dict().items() if k.startswith(state.per_rank_prefixes())}
    )


def save_checkpoint(
    run_dir: Path, state: State, config: Config, others: Sequence[bytes] = (), *, keep: int, score: float | None = None,
    log_bytes: int = 0,
) -> int:  # fmt: skip
    """Write a checkpoint, prune old ones, and return the serial number of the new one.

    Args:
        others: `rank_state` of every other rank. If one of several ranks saves without them, its own is left out too.
        keep: Number of checkpoints that pruning leaves.
        score: Mean return of the evaluation at this point, if it was the best so far.
        log_bytes: Length of the metrics file at this point.
    """
    folder = Place(run_dir) / CHECKPOINTS
    folder.mkdir()  # the run's directory is not recreated: if it is missing, somebody removed it
    remove_partial(folder)
    serial = min(newest_serial(run_dir) + 1, MAX_SERIAL)
    name = f"{serial:04d}-steps-{state.steps}"
    ranks = 1 + len(others) if 1 + len(others) == world().size else 0
    own = state.per_rank_prefixes()
    tensors = {k: v.cpu().contiguous() for k, v in state.state_dict().items() if ranks or not k.startswith(own)}
    if not ranks:
        tensors[ENVS_KEY] = torch.zeros(config.algorithm.num_envs, dtype=torch.uint8)
    entries = [name.removeprefix("env.") for name in tensors if name.startswith("env.")]
    env = without_memory(state.env)
    if line := unsaved_warning(env, entries):
        warn(line)
    files = {
        MODEL: save({k: v for k, v in tensors.items() if k.startswith("policy.")}),
        TRAINING: save({k: v for k, v in tensors.items() if not k.startswith("policy.")}),
        **{files_of(rank)[-1]: part for rank, part in enumerate(others, 1)},
    }
    manifest = canonical(with_hash({
        "schema": SCHEMA,
        "name": name, "serial": serial, "steps": state.steps, "phase": state.phase,
        "score": score, "log_bytes": log_bytes, **({} if ranks == 1 else {"ranks": ranks}),
        "versions": {
            "tightrope": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "compiled": COMPILED_VERSION,
        },
        "runtime": state.runtime.describe(),
        "config": config.saved(),
        "observation": spec_to_json(env.observation), "action": spec_to_json(flat_action(env.action)),
        "spaces": host_spaces_to_json(env),
        "files": {file: {"size": len(content), "sha256": digest(content)} for file, content in files.items()},
    }))  # fmt: skip
    new = folder / f"{UNFINISHED}{name}"
    try:
        new.mkdir(new=True)
        for file, content in {**files, MANIFEST: manifest}.items():
            (new / file).create(content)
        new.sync()
        new.rename(name)
    except BaseException:
        new.remove()
        raise
    folder.sync()
    folder.parent.sync()  # the run's directory, which lists this folder and the metrics file
    (folder / LATEST).write(canonical({"checkpoint": name, "sha256": digest(manifest)}))
    prune(folder, keep)
    return serial


def remove_partial(folder: Place) -> None:
    """Remove files and directories that a killed process left half written or half pruned."""
    for name in folder.names():
        if name.startswith((UNFINISHED, LEAVING)):
            (folder / name).remove()
    remove_leftovers(folder / LATEST)
    remove_leftovers(folder.parent / CONFIG)


def prune(folder: Place, keep: int) -> None:
    """Remove all checkpoints but the `keep` newest that look complete and the one with the best score. A damaged checkpoint is
    removed once `keep` complete ones are newer."""
    places = list_checkpoints(folder.parent.path)
    complete = [place for place in places if looks_complete(place)]
    best = best_first(complete)[:1]
    for place in places[places.index(complete[keep - 1]) + 1 :] if len(complete) >= keep else []:
        if place not in best:
            place.rename(LEAVING + place.name).remove()  # renamed first: no reader sees a half-removed checkpoint


def looks_complete(place: Place) -> bool:
    """Whether a checkpoint's manifest verifies and its files have the sizes listed there. File contents are not hashed."""
    try:
        files = read_manifest(place)["files"]
    except Unreadable:
        return False
    return all((info := (place / file).info()) and info.st_size == entry["size"] for file, entry in files.items())


def spec_to_json(spec: Spec) -> Settings:
    if isinstance(spec, Composite):
        conditions = (
            {"conditions": [[*names, list(values)] for *names, values in spec.conditions]} if spec.conditions else {}
        )
        return {"kind": "Composite", "parts": [[name, spec_to_json(part)] for name, part in spec.parts], **conditions}
    values = {k: str(v) if isinstance(v, (float, torch.dtype)) else v for k, v in asdict(spec).items()}
    return {"kind": type(spec).__name__, **{k: list(map(str, v)) if k in ("low", "high") and isinstance(v, tuple) else v
                                            for k, v in values.items()}}  # fmt: skip


def host_spaces_to_json(env: Env) -> Settings | None:
    """The Gymnasium spaces of an environment outside torch, so that its policy can be loaded without it; otherwise None."""
    if not isinstance(env, HostEnv):
        return None
    from ..envs.adapters.space_members import spaces_to_json

    return spaces_to_json(env)


# back into a state ------------------------------------------------------------------------------------------------------


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
