"""Finding a run's state again: the newest checkpoint that is whole, whatever has happened to the others.

A file may come from a stranger. Nothing is taken from one before its size, its hash and its manifest have been looked at,
nothing in it is run, and nothing is allocated because it says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..engine import State, world
from ..engine.distributed import broadcast_from_rank0
from ..envs.attributes import MAX_BYTES as MOST_OWN
from ..errors import UsageError, plain, plural, warn
from ..files import Place, Unreadable, digest, digest_of, read_canonical
from ..version import __version__
from .checkpoint import (
    CHECKPOINTS,
    CONFIG,
    ENVS,
    LATEST,
    MANIFEST,
    MODEL,
    MOST_BYTES,
    MOST_MANIFEST,
    NAME,
    SCHEMA,
    TRAINING,
    Checkpoint,
    by_score,
    configured,
    files_of,
    named,
    one_line,
    sealed,
)
from .config import Config
from .settings_file import MOST_BYTES as MOST_SETTINGS
from .settings_file import read_settings

MOST_RANKS = 1_000_000
MOST_COMPLAINTS = 3  # about checkpoints one by one
LOOKS = 10  # at a run whose checkpoints are dropped while they are read
AFRESH = "episodes start afresh, and so does what the environment keeps in attributes"
MOST_HEADER = 1 << 20  # bytes of names and shapes at the beginning of a file of tensors


def inspected(path: Place) -> Checkpoint:
    """A checkpoint with all of its files as they were written; otherwise `Unreadable` says what is not."""
    manifest = read_canonical(path / MANIFEST, MOST_MANIFEST)
    schema, versions = manifest.get("schema"), manifest.get("versions")
    if schema != SCHEMA:
        writer = versions.get("tightrope") if isinstance(versions, dict) else None
        raise Unreadable(
            f"{MANIFEST} has schema {str(schema)[:20]!r} and was written by tightrope {str(writer)[:20]}; "
            f"this is tightrope {__version__}, which reads schema {SCHEMA}"
        )
    if manifest != sealed({k: v for k, v in manifest.items() if k != "sha256"}):
        raise Unreadable(f"{MANIFEST} is not as it was written")
    if (complaint := malformed(manifest)) is not None:
        raise Unreadable(f"{MANIFEST} {complaint}")
    if manifest["name"] != path.name:
        raise Unreadable(f"it is a copy of {manifest['name']}")
    mine = manifest["files"] if world().is_rank0 else files_of(world().rank)  # the first rank looks at all of them
    for name in mine:
        facts = manifest["files"].get(name)
        if facts is not None and digest_of(path / name, facts["size"]) != facts["sha256"]:
            raise Unreadable(f"{name} is not as it was written (its SHA-256 differs)")
    return Checkpoint(path, manifest)


def malformed(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest that is, for all its hash can tell, as somebody wrote it."""
    counts = ("serial", "steps", "phase", "log_bytes")
    kinds = {"name": str, "config": dict, "files": dict, "versions": dict, **dict.fromkeys(counts, int)}
    for key, kind in kinds.items():
        if type(manifest.get(key)) is not kind:
            return f"does not say what its {key} is"
    if not NAME.fullmatch(manifest["name"]):
        return "names a checkpoint as none is named"
    ranks = manifest.get("ranks", 1)
    if type(ranks) is not int or not 0 <= ranks <= MOST_RANKS:
        return "counts ranks that nobody has"
    files, expected = manifest["files"], max(ranks, 1) + 1
    if len(files) != expected or {*files} != {file for rank in range(expected - 1) for file in files_of(rank)}:
        return f"names other files than {MODEL}, {TRAINING} and those of its ranks"
    for facts in manifest["files"].values():
        size = facts.get("size") if isinstance(facts, dict) else None
        if type(size) is not int or not 0 <= size <= MOST_BYTES:
            return "gives a file a size that none has"
        if not isinstance(facts.get("sha256"), str):
            return "gives a file no hash"
    if any(not 0 <= manifest[key] < 2**62 for key in counts):
        return "counts what cannot be counted"
    return None


def find(
    run_dir: Path, which: str = "last", say: Callable[[str], None] | None = None, looks: int = LOOKS
) -> Checkpoint:
    """The newest whole checkpoint of a run (`last`), the one with the best score (`best`), or the one of that name."""
    say = say or warn
    run = Place(run_dir)
    if (run / MANIFEST).exists():  # a checkpoint itself
        return the_one(run)
    check_is_run(run_dir)
    if which not in ("last", "best"):
        if not NAME.fullmatch(which):
            raise no_checkpoint(run_dir, which)
        return the_one(run / CHECKPOINTS / which, run_dir)
    paths = named(run_dir)
    if which == "best":
        paths = by_score(paths)
        if not paths:
            raise UsageError(f"{run_dir} has no checkpoint 'best': it was trained without eval_every. Give 'last'")
    if not paths:
        raise UsageError(f"{run_dir} has no checkpoint yet: `tightrope resume {run_dir}` begins it anew")
    pointer = pointer_complaint(run / CHECKPOINTS) if which == "last" else None
    complaints = []
    for path in paths:
        try:
            checkpoint = inspected(path)
        except Unreadable as error:
            if looks > 1 and not path.exists():  # dropped meanwhile, by a process that trains: there are newer ones
                return find(run_dir, which, say, looks - 1)
            complaints.append(f"{path.name}: {error}")
            continue
        if pointer is not None:
            say(f"{run_dir / CHECKPOINTS / LATEST} is damaged ({pointer}); using {path.name}, the newest that is whole")
        for complaint in complaints[:MOST_COMPLAINTS]:
            say(f"checkpoint {complaint}; using {path.name} instead")
        if (more := len(complaints) - MOST_COMPLAINTS) > 0:
            say(f"{plural(more, 'checkpoint')} more cannot be read either; using {path.name} instead")
        return checkpoint
    raise UsageError(f"{run_dir} has no good checkpoint. {'; '.join(complaints[:MOST_COMPLAINTS])}")


def found_by_first(run_dir: Path, which: str = "last") -> Checkpoint:
    """The same; of several ranks, the one that the first has found. All read it themselves."""
    if not world().is_distributed:
        return find(run_dir, which)
    name = broadcast_from_rank0(lambda: find(run_dir, which).path.name.encode()).decode()
    return find(run_dir, name)


def the_one(path: Place, run_dir: Path | None = None) -> Checkpoint:
    """The checkpoint of that name and no other."""
    if NAME.fullmatch(path.name) and path.is_dir():
        try:
            return inspected(path)
        except Unreadable as error:
            raise UsageError(f"checkpoint {path} is damaged: {error}") from None
    raise no_checkpoint(run_dir or path.path, path.name)


def no_checkpoint(run_dir: Path, name: str) -> UsageError:
    known = [place.name for place in named(run_dir)[:20]]
    there = f": it has {', '.join(known)}" if known else ""
    return UsageError(f"{run_dir} has no checkpoint {name!r}{there}. Give 'last', 'best' or a name")


def pointer_complaint(folder: Place) -> str | None:
    """What is wrong with the pointer to the newest checkpoint. One step behind is not: a kill came between."""
    if not (folder / LATEST).exists():  # the same, with the very first one
        return None
    try:
        pointer = read_canonical(folder / LATEST)
        name = str(pointer.get("checkpoint"))
        if not NAME.fullmatch(name) or not (folder / name).is_dir():
            return "it points to nothing"
        content = (folder / name / MANIFEST).read(MOST_MANIFEST)
        return None if digest(content) == pointer.get("sha256") else f"it is not of this run's {name}"
    except Unreadable as error:
        return str(error)


def check_is_run(run_dir: Path) -> None:
    run = Place(run_dir)
    folder = run / CHECKPOINTS
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} is not a directory of its own: a link could lead to another run's, which is not ours"
        )
    if folder.is_dir() or (run / CONFIG).exists():
        if (folder / "last.safetensors").exists():
            raise UsageError(
                f"{run_dir} was written by a development version from before checkpoints had manifests: train it anew"
            )
        return
    raise not_a_run(run_dir)


def not_a_run(path: Path) -> UsageError:
    if (Place(path) / MANIFEST).is_file():
        return UsageError(f"{path} is not a run but one of its checkpoints: give {path.absolute().parent.parent}")
    why = f"it has no {CONFIG}" if path.is_dir() else "it is a file" if path.exists() else "there is no such directory"
    return UsageError(f"{path} is not a run: {why}. Give a directory that train or save wrote")


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a run has come as far as its first."""
    check_is_run(run_dir)
    return bool(named(run_dir))


def load_config(run_dir: Path) -> Config:
    """The settings of a run that has no checkpoint yet."""
    place = Place(run_dir) / CONFIG
    if not place.exists():
        raise not_a_run(run_dir)
    try:
        content = place.read(MOST_SETTINGS)
    except Unreadable as error:
        raise UsageError(f"{run_dir} is not a run: {error}") from None
    return configured(read_settings(place.path, content), place.path)


def restore(state: State, checkpoint: Checkpoint) -> None:
    """Put a checkpoint into a freshly built state."""
    fresh, rank = checkpoint.ranks != world().size, world().rank
    files = files_of(0 if fresh else rank)
    parts = [*state.state_dict().values(), *getattr(state.env, "snapshot", dict)().values()]
    expected = (len(files) - 1) * sum(tensor.nbytes for tensor in parts)
    there = sum(checkpoint.manifest["files"][file]["size"] for file in files)
    try:
        shapes = [each for file in files for each in checkpoint.shapes(file).items()]
    except (SafetensorError, Unreadable, OSError) as error:  # dropped meanwhile by who trains it, say
        raise UsageError(f"the checkpoint in {checkpoint.path} cannot be read: {one_line(error)}") from None
    own = [shape for name, shape in shapes if name.startswith("env.own")]
    if there > 2 * expected + MOST_HEADER + min(sum(map(math.prod, own)), MOST_OWN):  # which env may not have yet
        raise UsageError(f"the checkpoint in {checkpoint.path} does not fit the settings: it is far too large for them")
    tensors = checkpoint.tensors(0 if fresh else rank)
    try:
        state.load_state_dict(tensors, fresh)
    except (KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise UsageError(f"the checkpoint in {checkpoint.path} does not fit the settings: {reason}") from None
    if (state.steps, state.phase) != (checkpoint.steps, checkpoint.manifest["phase"]):
        raise UsageError(
            f"the checkpoint in {checkpoint.path} disagrees with its manifest about how far the run has come"
        )


def check_plausible(checkpoint: Checkpoint, config: Config) -> None:
    """Refuse settings that would build something far larger than the checkpoint holds, before anything is built."""
    try:
        for name in checkpoint.manifest["files"] if world().is_rank0 else (MODEL, TRAINING):
            check_header(checkpoint.place / name)
        shapes = checkpoint.shapes(MODEL).values()
        own = "run.obs" if checkpoint.ranks else ENVS
        envs = checkpoint.shapes(TRAINING)[own][0] * max(checkpoint.ranks, 1)
    except (SafetensorError, Unreadable, OSError, ValueError, IndexError, KeyError) as error:
        raise UsageError(f"{checkpoint.path} holds files that are not of tensors: {one_line(error)}") from None
    misfit = f"the checkpoint in {checkpoint.path} does not fit the settings"
    if config.algorithm.num_envs != envs:
        raise UsageError(f"{misfit}: num_envs {config.algorithm.num_envs} is not its {envs}")
    check_progress(checkpoint, misfit)
    sizes = config.network.hidden_sizes if config.network.network is None else ()  # which a user's own has none of
    numbers = sum(map(math.prod, shapes))
    if len(sizes) > len(shapes) or sum(a * b for a, b in pairwise((1, *sizes, 1))) > numbers:
        raise UsageError(f"{misfit}: hidden_sizes {list(sizes)} are more than it has")


def check_progress(checkpoint: Checkpoint, misfit: str) -> None:
    """Refuse steps that phases of the size that the settings say cannot have come to."""
    most = checkpoint.manifest["phase"] * checkpoint.config.algorithm.batch_size
    exact = checkpoint.config.algo == "ppo"  # others may end a phase early
    if checkpoint.steps > most or (exact and checkpoint.steps != most):
        raise UsageError(
            f"{misfit}: {plural(checkpoint.manifest['phase'], 'phase')} of num_envs x num_steps are not its "
            f"{plural(checkpoint.steps, 'step')}"
        )


def check_header(path: Place) -> None:
    """Refuse a list of tensors that is longer than any of ours, which would cost many times its size to read."""
    with path.open(MOST_BYTES) as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MOST_HEADER:
        raise Unreadable(f"{path.name} has a header of {size:,} bytes, more than the {MOST_HEADER:,} it may have")


def going_on(checkpoint: Checkpoint, state: State) -> list[str]:
    """What to know about a run that goes on from a checkpoint."""
    lines = [f"going on from {checkpoint.path.name}"]
    then = checkpoint.manifest["versions"].get("torch")
    if then != torch.__version__:
        lines.append(
            f"note: saved under torch {plain(str(then))[:20]}, this is {torch.__version__}: last digits may differ"
        )
    if checkpoint.ranks != world().size:
        many = plural(checkpoint.ranks, "rank") if checkpoint.ranks else "several ranks, one of which saved it"
        lines.append(f"note: saved by {many}, this is {world().size}: {AFRESH}")
    elif state.phase and not state.env.resumable:
        lines.append(f"note: this environment cannot give its state back, so {AFRESH}")
    return lines
