"""Saving a run's state as a checkpoint, and restoring it.

A checkpoint is written under another name, synced to the disk, then renamed: under its own name it is complete. Nothing is
allocated because a file says so: what a checkpoint would build is compared with what it holds.
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

from ..engine import State, world
from ..engine.distributed import broadcast_from_rank0
from ..envs.adapters.host import HostEnv
from ..envs.attribute_kinds import MAX_BYTES as MAX_ATTRIBUTE_BYTES
from ..envs.attributes import unsaved_warning
from ..errors import UsageError, one_line, plural, printable, warn
from ..files import Place, Unreadable, canonical, digest, remove_leftovers
from ..types import Composite, Env, Settings, Spec
from ..version import __version__
from .checkpoint import (
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
    check_is_run,
    config_from,
    files_of,
    find,
    list_checkpoints,
    newest_serial,
    not_a_run,
    read_manifest,
    with_hash,
)
from .config import Config
from .settings import MOST_BYTES as MOST_SETTINGS
from .settings import read_settings

MAX_SERIAL = 10**12 - 1  # the largest that a checkpoint's name has room for
ENVS = "run.envs"  # stands for the state of each rank where it was left out: one zero per environment
UNFINISHED, LEAVING = ".new-", ".old-"  # prefixes of directories that no reader looks at
FRESH_EPISODES = "episodes start afresh, and so does what the environment keeps in attributes"

# writing --------------------------------------------------------------------------------------------------------------


def save_config(run_dir: Path, config: Config) -> None:
    (Place(run_dir) / CONFIG).write(yaml.safe_dump(config.flat(), sort_keys=False).encode())


def rank_state(state: State) -> bytes:
    """The part of the state that differs from rank to rank, as a file of tensors."""
    return save({k: v.cpu().contiguous() for k, v in state.state_dict().items() if k.startswith(state.own())})


def save_checkpoint(
    run_dir: Path, state: State, config: Config, others: Sequence[bytes] = (), *, keep: int, score: float | None = None,
    log_bytes: int = 0,
) -> int:  # fmt: skip
    """Write the newest checkpoint of a run, prune old ones, and return its serial number.

    `others` are the other ranks' `rank_state`; without them, one of several ranks leaves out its own. `score` is that of an
    evaluation just made, `log_bytes` the length of the metrics file at this moment.
    """
    folder = Place(run_dir) / CHECKPOINTS
    folder.mkdir()  # but not the run's directory: if that is gone, somebody removed it
    remove_partial(folder)
    serial = min(newest_serial(run_dir) + 1, MAX_SERIAL)
    name = f"{serial:04d}-steps-{state.steps}"
    ranks = 1 + len(others) if 1 + len(others) == world().size else 0
    tensors = {k: v.cpu().contiguous() for k, v in state.state_dict().items() if ranks or not k.startswith(state.own())}
    if not ranks:
        tensors[ENVS] = torch.zeros(config.algorithm.num_envs, dtype=torch.uint8)
    entries = [name.removeprefix("env.") for name in tensors if name.startswith("env.")]
    if line := unsaved_warning(state.env, entries):
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
        "versions": {"tightrope": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.flat(),
        "observation": spec_to_json(state.env.observation), "action": spec_to_json(state.env.action),
        "spaces": engine_spaces(state.env),
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
    folder.parent.sync()  # which has the names of this folder and of the metrics file
    (folder / LATEST).write(canonical({"checkpoint": name, "sha256": digest(manifest)}))
    prune(folder, keep)
    return serial


def remove_partial(folder: Place) -> None:
    """Remove what was being written or pruned when a process died."""
    for name in folder.names():
        if name.startswith((UNFINISHED, LEAVING)):
            (folder / name).remove()
    remove_leftovers(folder / LATEST)
    remove_leftovers(folder.parent / CONFIG)


def prune(folder: Place, keep: int) -> None:
    """Keep the newest checkpoints that look complete and the one with the best score. Damaged ones do not count: they go once
    as many good ones are newer."""
    places = list_checkpoints(folder.parent.path)
    complete = [place for place in places if looks_complete(place)]
    best = best_first(complete)[:1]
    for place in places[places.index(complete[keep - 1]) + 1 :] if len(complete) >= keep else []:
        if place not in best:
            place.rename(LEAVING + place.name).remove()  # so that no reader meets half of it


def looks_complete(place: Place) -> bool:
    """Whether a checkpoint's manifest is as it was written and its files have their sizes; their content is not read."""
    try:
        files = read_manifest(place)["files"]
    except Unreadable:
        return False
    return all((info := (place / file).info()) and info.st_size == entry["size"] for file, entry in files.items())


def spec_to_json(spec: Spec) -> Settings:
    if isinstance(spec, Composite):
        return {"kind": "Composite", "parts": [[name, spec_to_json(part)] for name, part in spec.parts]}
    values = {k: str(v) if isinstance(v, (float, torch.dtype)) else v for k, v in asdict(spec).items()}
    return {"kind": type(spec).__name__, **{k: list(map(str, v)) if k in ("low", "high") and isinstance(v, tuple) else v
                                            for k, v in values.items()}}  # fmt: skip


def engine_spaces(env: Env) -> Settings | None:
    """The spaces of an engine outside torch, from which a policy can be loaded without that engine."""
    if not isinstance(env, HostEnv):
        return None
    from ..envs.adapters.space_members import spaces_to_json

    return spaces_to_json(env)


# restoring ------------------------------------------------------------------------------------------------------------


def load_config(run_dir: Path) -> Config:
    """The settings of a run that has no checkpoint yet."""
    place = Place(run_dir) / CONFIG
    if not place.exists():
        raise not_a_run(run_dir)
    try:
        content = place.read(MOST_SETTINGS)
    except Unreadable as error:
        raise UsageError(f"{run_dir} is not a run: {error}") from None
    return config_from(read_settings(place.path, content), place.path)


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a run has any checkpoint yet."""
    check_is_run(run_dir)
    return bool(list_checkpoints(run_dir))


def find_on_all_ranks(run_dir: Path, which: str = "last") -> Checkpoint:
    """The checkpoint that the first rank finds. All ranks read it themselves."""
    if not world().is_distributed:
        return find(run_dir, which)
    name = broadcast_from_rank0(lambda: find(run_dir, which).path.name.encode()).decode()
    return find(run_dir, name)


def restore(state: State, checkpoint: Checkpoint) -> None:
    """Put a checkpoint into a freshly built state."""
    fresh = checkpoint.ranks != world().size
    files = files_of(0 if fresh else world().rank)
    parts = [*state.state_dict().values(), *getattr(state.env, "snapshot", dict)().values()]
    expected = (len(files) - 1) * sum(tensor.nbytes for tensor in parts)
    shapes = [item for file in files for item in checkpoint.shapes(file).items()]
    own = sum(math.prod(shape) for name, shape in shapes if name.startswith("env.own"))  # which env may not have yet
    size = sum(checkpoint.manifest["files"][file]["size"] for file in files)
    if size > 2 * expected + MAX_HEADER_BYTES + min(own, MAX_ATTRIBUTE_BYTES):
        raise checkpoint.misfit("it is far too large for them")
    tensors = {name: tensor for file in files for name, tensor in checkpoint.read(file).items()}
    try:
        state.load_state_dict(tensors, fresh)
    except (KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise checkpoint.misfit(one_line(error)) from None
    if (state.steps, state.phase) != (checkpoint.steps, checkpoint.manifest["phase"]):
        raise UsageError(f"the checkpoint in {checkpoint.path} disagrees with its manifest about steps and phases")


def check_plausible(checkpoint: Checkpoint, config: Config) -> None:
    """Refuse settings that would build something far larger than the checkpoint holds, before anything is built."""
    shapes, training = checkpoint.shapes(MODEL).values(), checkpoint.shapes(TRAINING)
    first = (training.get("run.obs" if checkpoint.ranks else ENVS) or [0])[0]
    if config.algorithm.num_envs != (envs := first * max(checkpoint.ranks, 1)):
        raise checkpoint.misfit(f"num_envs {config.algorithm.num_envs} is not its {envs}")
    phases, steps, saved = checkpoint.manifest["phase"], checkpoint.steps, checkpoint.config
    most = phases * saved.algorithm.batch_size
    if steps > most or (not saved.algorithm.by_trajectory and steps != most):  # others may end a phase early
        raise checkpoint.misfit(f"{plural(steps, 'step')} are not those of {plural(phases, 'phase')}")
    sizes = config.network.hidden_sizes if config.network.network is None else ()  # a network of the user's has none
    if len(sizes) > len(shapes) or sum(a * b for a, b in pairwise((1, *sizes, 1))) > sum(map(math.prod, shapes)):
        raise checkpoint.misfit(f"hidden_sizes {list(sizes)} are more than it has")


def resume_notes(checkpoint: Checkpoint, state: State) -> list[str]:
    """What to tell a user whose run goes on from a checkpoint."""
    lines = [f"going on from {checkpoint.path.name}"]
    then = printable(str(checkpoint.manifest["versions"].get("torch")))[:20]
    if then != torch.__version__[:20]:
        lines.append(f"note: saved under torch {then}, this is {torch.__version__}: last digits may differ")
    if checkpoint.ranks != world().size:
        many = plural(checkpoint.ranks, "rank") if checkpoint.ranks else "several ranks, one of which saved it"
        lines.append(f"note: saved by {many}, this is {world().size}: {FRESH_EPISODES}")
    elif state.phase and not state.env.resumable:
        lines.append(f"note: this environment cannot give its state back, so {FRESH_EPISODES}")
    return lines
