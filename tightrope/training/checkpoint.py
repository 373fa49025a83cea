"""Checkpoints: safetensors for tensors, JSON for everything else, a SHA-256 for every byte. None of them can run code.

RUN/config.yaml                                 every setting, for people
RUN/checkpoints/latest                          the name of the newest checkpoint and its manifest's hash
RUN/checkpoints/0007-steps-98304/               the seventh, after 98,304 steps:
    manifest.json          what wrote it, the settings, the spaces (the network's, and the environment's own where it runs
                           outside torch), size and hash of each file, and its own hash
    model.safetensors      networks and normalizers: what acting needs
    training.safetensors   everything else that makes the run
    rank-0001.safetensors  the state of another rank, where several trained it together

This module finds and reads them. A file may come from a stranger: nothing is used before its size, its hash and its manifest
have been checked. The newest complete checkpoint is used; damaged ones are named and skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from ..engine import cores, world
from ..errors import UsageError, one_line, plural, warn
from ..files import Place, Unreadable, address, canonical, digest, read_canonical
from ..version import __version__
from .config import Config, configure

SCHEMA = 1
CONFIG, CHECKPOINTS, LATEST, MANIFEST = "config.yaml", "checkpoints", "latest", "manifest.json"
MODEL, TRAINING = "model.safetensors", "training.safetensors"
NAME = re.compile(r"(\d{4,12})-steps-(\d{1,18})")
MAX_FILE_BYTES = 1 << 40  # whatever a manifest says
MAX_MANIFEST_BYTES = 1 << 22  # enough for 30,000 ranks
MAX_HEADER_BYTES = 1 << 20  # of names and shapes at the beginning of a file of tensors
MAX_COMPLAINTS, LOOKS = 3, 10  # lines about damaged checkpoints; tries where checkpoints are pruned while they are read


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have been verified. They are kept open, so that they stay readable when it is pruned."""

    place: Place
    manifest: dict[str, Any]
    descriptors: dict[str, int] = field(default_factory=dict, compare=False)  # of the files that this rank reads

    def __post_init__(self) -> None:
        weakref.finalize(self, lambda opened: [*map(os.close, opened.values())], self.descriptors)

    @property
    def path(self) -> Path:
        return self.place.path

    @property
    def steps(self) -> int:
        return int(self.manifest["steps"])

    @property
    def config(self) -> Config:
        return config_from(self.manifest["config"], self.path / MANIFEST)

    @property
    def ranks(self) -> int:
        """How many ranks it has the state of; 0 if that was left out."""
        return int(self.manifest.get("ranks", 1))

    def misfit(self, reason: object) -> UsageError:
        return UsageError(f"the checkpoint in {self.path} does not fit the settings: {reason}")

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """One of its files, to be read as tensors."""
        try:
            with open(self.descriptors[name], "rb", closefd=False) as file:
                file.seek(0)
                yield file
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            raise UsageError(f"{self.path / name} is not a file of tensors: {one_line(error)}") from None

    def shapes(self, name: str) -> dict[str, list[int]]:
        """The shapes of the tensors in one of its files, of which only the header is read."""
        with self.opened(name) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:  # it would take many times its size to read
                raise ValueError(f"its header has {length:,} bytes, more than the {MAX_HEADER_BYTES:,} it may have")
            with safe_open(address(file, self.place / name), "pt") as tensors:
                return {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors in one of its files."""
        self.shapes(name)
        with self.opened(name) as file:
            return load(file.read())


def files_of(rank: int) -> list[str]:
    """The files that a rank resumes from."""
    return [MODEL, TRAINING] if rank == 0 else [MODEL, TRAINING, f"rank-{rank:04d}.safetensors"]


def verify(place: Place) -> Checkpoint:
    """Open a checkpoint all of whose files are as they were written; otherwise `Unreadable` says what is not."""
    checkpoint, ours = Checkpoint(place, read_manifest(place)), files_of(world().rank)
    files = checkpoint.manifest["files"]
    for name in files if world().is_rank0 else [name for name in ours if name in files]:  # the first rank checks all
        with (place / name).open(files[name]["size"]) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != files[name]["sha256"]:
                raise Unreadable(f"{name} is not as it was written (its SHA-256 differs)")
            if name in ours:
                checkpoint.descriptors[name] = os.dup(file.fileno())
    return checkpoint


def read_manifest(place: Place) -> dict[str, Any]:
    """The manifest of a checkpoint, as it was written; otherwise `Unreadable` says what is wrong with it."""
    manifest = read_canonical(place / MANIFEST, MAX_MANIFEST_BYTES)
    schema, versions = manifest.get("schema"), manifest.get("versions")
    if schema != SCHEMA:
        writer = versions.get("tightrope") if isinstance(versions, dict) else None
        by = f"schema {str(schema)[:20]!r} of tightrope {str(writer)[:20]}"
        raise Unreadable(f"{MANIFEST} has {by}; this is tightrope {__version__}, which reads schema {SCHEMA}")
    if manifest != with_hash({k: v for k, v in manifest.items() if k != "sha256"}):
        raise Unreadable(f"{MANIFEST} is not as it was written")
    if (problem := manifest_problem(manifest)) is not None:
        raise Unreadable(f"{MANIFEST} {problem}")
    if manifest["name"] != place.name:
        raise Unreadable(f"it is a copy of {manifest['name']}")
    return manifest


def manifest_problem(manifest: dict[str, Any]) -> str | None:
    """What is wrong with a manifest whose hash is right, since anybody can write one."""
    counts = dict.fromkeys(("serial", "steps", "phase", "log_bytes", "ranks"), int)
    kinds = {"name": str, "config": dict, "files": dict, "versions": dict, **counts}
    manifest = {"ranks": 1, **manifest}
    for key, kind in kinds.items():
        if type(manifest.get(key)) is not kind or (kind is int and not 0 <= manifest[key] < 2**62):
            return f"has no valid {key}"
    files, ranks = manifest["files"], max(manifest["ranks"], 1)
    if len(files) != ranks + 1 or {*files} != {file for rank in range(ranks) for file in files_of(rank)}:
        return f"names other files than {MODEL}, {TRAINING} and those of its ranks"
    for name, entry in files.items():
        size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES or not isinstance(sha256, str):
            return f"has no valid size and hash of {name}"
    return None


def with_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own hash."""
    return {**manifest, "sha256": digest(canonical(manifest))}


def config_from(flat: dict[str, Any], source: Path) -> Config:
    """The settings that a run was saved with, without presets; errors name their source."""
    if not isinstance(flat.get("env"), str) or not isinstance(flat.get("algo"), str):
        raise UsageError(f"{source} does not say which env and algo it is of")
    if isinstance(flat.get("threads"), int):
        flat = {**flat, "threads": min(flat["threads"], cores())}  # it may have been written on a larger machine
    try:
        return configure(flat["env"], flat["algo"], flat, with_preset=False)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


# finding them ---------------------------------------------------------------------------------------------------------


def age(place: Place) -> tuple[int, int]:
    """(serial number, steps) from a checkpoint's name. The newest has the largest: serial numbers stop at their maximum."""
    match = NAME.fullmatch(place.name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def list_checkpoints(run_dir: Path) -> list[Place]:
    """The directories of a run that have a checkpoint's name, newest first. Links are left out: they may lead anywhere."""
    folder = Place(run_dir) / CHECKPOINTS
    try:
        return sorted((folder / name for name in folder.folders() if NAME.fullmatch(name)), key=age, reverse=True)
    except OSError:
        return []


def newest_serial(run_dir: Path) -> int:
    return max((age(place)[0] for place in list_checkpoints(run_dir)), default=0)


def score_of(place: Place) -> float | None:
    """The score that a checkpoint was kept for, if it was."""
    try:
        score = read_canonical(place / MANIFEST, MAX_MANIFEST_BYTES).get("score")
    except Unreadable:
        return None
    return float(score) if isinstance(score, (int, float)) else None


def best_first(places: list[Place]) -> list[Place]:
    """The checkpoints that have a score, the best first, the oldest first among equals."""
    scores = {place: score for place in places if (score := score_of(place)) is not None}
    return sorted(scores, key=lambda place: (-scores[place], age(place)))


def find(run_dir: Path, which: str = "last", say: Callable[[str], None] = warn) -> Checkpoint:
    """The newest complete checkpoint of a run (`last`), the one with the best score (`best`), or the one of that name.
    `run_dir` may be a checkpoint itself."""
    run = Place(run_dir)
    if (run / MANIFEST).exists():
        return find_exactly(run)
    check_is_run(run_dir)
    if which not in ("last", "best"):
        if not NAME.fullmatch(which):
            raise no_checkpoint(run_dir, which)
        return find_exactly(run / CHECKPOINTS / which, run_dir)
    for looks_left in reversed(range(LOOKS)):
        places, problems = list_checkpoints(run_dir), []
        if which == "best" and not (places := best_first(places)):
            raise UsageError(f"{run_dir} has no checkpoint 'best': it was trained without eval_every. Give 'last'")
        if not places:
            raise UsageError(f"{run_dir} has no checkpoint yet: `tightrope resume {run_dir}` begins it anew")
        if which == "last" and (problem := pointer_problem(run / CHECKPOINTS)) is not None:
            problems.append(f"{run_dir / CHECKPOINTS / LATEST} is damaged ({problem}); using ")
        for place in places:
            try:
                checkpoint = verify(place)
            except (Unreadable, OSError) as error:
                if looks_left and not place.exists():  # a process that trains has pruned it: there are newer ones
                    break
                problems.append(f"checkpoint {place.name}: {error}; using ")
            else:
                return with_warnings(checkpoint, problems, say)
        else:
            break
    shown = "; ".join(problem.removesuffix("; using ") for problem in problems[:MAX_COMPLAINTS])
    raise UsageError(f"{run_dir} has no good checkpoint. {shown}")


def with_warnings(checkpoint: Checkpoint, problems: list[str], say: Callable[[str], None]) -> Checkpoint:
    """Tell the user why this checkpoint is used and not a newer one."""
    if (more := len(problems) - MAX_COMPLAINTS) > 0:
        problems = [*problems[:MAX_COMPLAINTS], f"{plural(more, 'checkpoint')} more cannot be read either; using "]
    for problem in problems:
        say(f"{problem}{checkpoint.path.name} instead")
    return checkpoint


def find_exactly(place: Place, run_dir: Path | None = None) -> Checkpoint:
    """The checkpoint of that name and no other."""
    if not NAME.fullmatch(place.name) or not place.is_dir():
        raise no_checkpoint(run_dir or place.path, place.name)
    try:
        return verify(place)
    except (Unreadable, OSError) as error:
        raise UsageError(f"checkpoint {place} is damaged: {error}") from None


def no_checkpoint(run_dir: Path, name: str) -> UsageError:
    names = ", ".join(place.name for place in list_checkpoints(run_dir)[:20]) or "none"
    return UsageError(f"{run_dir} has no checkpoint {name!r}: it has {names}. Give 'last', 'best' or a name")


def pointer_problem(folder: Place) -> str | None:
    """What is wrong with `latest`. It may be missing or one checkpoint behind: a kill came before it was written."""
    if not (folder / LATEST).exists():
        return None
    try:
        pointer = read_canonical(folder / LATEST)
        place = folder / str(pointer.get("checkpoint"))
        if not NAME.fullmatch(place.name) or not place.is_dir():
            return "it points to nothing"
        same = digest((place / MANIFEST).read(MAX_MANIFEST_BYTES)) == pointer.get("sha256")
        return None if same else f"it is not of this run's {place.name}"
    except Unreadable as error:
        return str(error)


def check_is_run(run_dir: Path) -> None:
    folder = Place(run_dir) / CHECKPOINTS
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory of its own: a link could lead to another run")
    if not folder.is_dir() and not (folder.parent / CONFIG).exists():
        raise not_a_run(run_dir)


def not_a_run(path: Path) -> UsageError:
    if (Place(path) / MANIFEST).is_file():
        return UsageError(f"{path} is not a run but one of its checkpoints: give {path.absolute().parent.parent}")
    why = f"it has no {CONFIG}" if path.is_dir() else "it is a file" if path.exists() else "there is no such directory"
    return UsageError(f"{path} is not a run: {why}. Give a directory that train or save wrote")
