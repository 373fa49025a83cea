"""Find, verify and read checkpoints; `saving` writes them. Tensors are safetensors, the rest is JSON.

RUN/config.yaml                                 every setting, for people
RUN/checkpoints/latest                          name and manifest hash of the newest checkpoint; loading does not follow it
RUN/checkpoints/0007-steps-98304/               the seventh checkpoint, after 98,304 steps:
    manifest.json          version of the writer, settings, spaces of the network and of an environment outside torch,
                           size and SHA-256 of each file, SHA-256 of the manifest
    model.safetensors      networks and normalizers, which acting needs
    training.safetensors   the rest of the state: optimizer, environments, random streams
    rank-0001.safetensors  the state of rank 1, where several ranks trained the run

Loading takes the checkpoint with the highest serial number that verifies; damaged ones are named and skipped. A file may come
from a stranger: its size, hash and manifest are checked before any content is used, and loading a file runs no code.
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

from ..engine import world
from ..errors import UsageError, one_line, plural, warn
from ..files import Place, Unreadable, address, canonical, digest, read_canonical
from ..version import __version__
from .config import Config, config_from

SCHEMA = 1
CONFIG, CHECKPOINTS, LATEST, MANIFEST = "config.yaml", "checkpoints", "latest", "manifest.json"
MODEL, TRAINING = "model.safetensors", "training.safetensors"
NAME = re.compile(r"(\d{4,12})-steps-(\d{1,18})")
MAX_FILE_BYTES = 1 << 40
MAX_MANIFEST_BYTES = 1 << 22  # enough for 30,000 ranks
MAX_HEADER_BYTES = 1 << 20  # of a safetensors file: the names and shapes of its tensors
MAX_COMPLAINTS = 3  # warnings about damaged checkpoints
LOOKS = 10  # attempts while a training process prunes checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. Its files stay open, so that they can be read after a training process has pruned it."""

    place: Place
    manifest: dict[str, Any]
    descriptors: dict[str, int] = field(default_factory=dict, compare=False)  # open files that this rank reads, by name

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
        """The number of ranks whose state was saved; 0 if the state of each rank was left out."""
        return int(self.manifest.get("ranks", 1))

    def misfit(self, reason: object) -> UsageError:
        return UsageError(f"the checkpoint in {self.path} does not fit the settings: {reason}")

    @contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of the checkpoint; an error while reading becomes a UsageError."""
        try:
            with open(self.descriptors[name], "rb", closefd=False) as file:
                file.seek(0)
                yield file
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            raise UsageError(f"{self.path / name} is not a file of tensors: {one_line(error)}") from None

    def shapes(self, name: str) -> dict[str, list[int]]:
        """The shapes of the tensors in a file, by name. Only the header is read."""
        with self.opened(name) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:  # parsing takes many times its size in memory
                raise ValueError(f"its header has {length:,} bytes, more than the limit of {MAX_HEADER_BYTES:,}")
            with safe_open(address(file, self.place / name), "pt") as tensors:
                return {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors in a file, by name."""
        self.shapes(name)
        with self.opened(name) as file:
            return load(file.read())


def files_of(rank: int) -> list[str]:
    """The names of the files that a rank reads to resume."""
    return [MODEL, TRAINING] if rank == 0 else [MODEL, TRAINING, f"rank-{rank:04d}.safetensors"]


def verify(place: Place) -> Checkpoint:
    """Open a checkpoint and check the size and hash of its files; `Unreadable` names the first damage."""
    checkpoint, ours = Checkpoint(place, read_manifest(place)), files_of(world().rank)
    files = checkpoint.manifest["files"]
    for name in files if world().is_rank0 else [name for name in ours if name in files]:  # rank 0 checks all files
        with (place / name).open(files[name]["size"]) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != files[name]["sha256"]:
                raise Unreadable(f"{name} is damaged (its SHA-256 differs)")
            if name in ours:
                checkpoint.descriptors[name] = os.dup(file.fileno())
    return checkpoint


def read_manifest(place: Place) -> dict[str, Any]:
    """Read and check the manifest of a checkpoint; `Unreadable` says what is wrong with it."""
    manifest = read_canonical(place / MANIFEST, MAX_MANIFEST_BYTES)
    schema, versions = manifest.get("schema"), manifest.get("versions")
    if schema != SCHEMA:
        writer = versions.get("tightrope") if isinstance(versions, dict) else None
        by = f"schema {str(schema)[:20]!r} of tightrope {str(writer)[:20]}"
        raise Unreadable(f"{MANIFEST} has {by}; this is tightrope {__version__}, which reads schema {SCHEMA}")
    if manifest != with_hash({k: v for k, v in manifest.items() if k != "sha256"}):
        raise Unreadable(f"{MANIFEST} is damaged (its SHA-256 differs)")
    if (problem := manifest_problem(manifest)) is not None:
        raise Unreadable(f"{MANIFEST} {problem}")
    if manifest["name"] != place.name:
        raise Unreadable(f"it is a copy of {manifest['name']}")
    return manifest


def manifest_problem(manifest: dict[str, Any]) -> str | None:
    """The first invalid entry of a manifest, or None. A right hash proves nothing: anybody can compute one."""
    counts = dict.fromkeys(("serial", "steps", "phase", "log_bytes", "ranks"), int)
    kinds = {"name": str, "config": dict, "files": dict, "versions": dict, **counts}
    manifest = {"ranks": 1, **manifest}
    for key, kind in kinds.items():
        if type(manifest.get(key)) is not kind or (kind is int and not 0 <= manifest[key] < 2**62):
            return f"has no valid {key}"
    files, ranks = manifest["files"], max(manifest["ranks"], 1)
    if len(files) != ranks + 1 or {*files} != {file for rank in range(ranks) for file in files_of(rank)}:
        return f"does not list exactly {MODEL}, {TRAINING} and one file for each further rank"
    for name, entry in files.items():
        size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES or not isinstance(sha256, str):
            return f"has no valid size and hash of {name}"
    return None


def with_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own SHA-256 added."""
    return {**manifest, "sha256": digest(canonical(manifest))}


# finding a checkpoint ---------------------------------------------------------------------------------------------------------


def age(place: Place) -> tuple[int, int]:
    """(serial number, steps) from a checkpoint's name; the newest is the largest. Steps decide at the last serial number."""
    match = NAME.fullmatch(place.name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def list_checkpoints(run_dir: Path) -> list[Place]:
    """The checkpoint directories of a run, newest first. Links are ignored: they may lead outside of the run."""
    folder = Place(run_dir) / CHECKPOINTS
    try:
        return sorted((folder / name for name in folder.folders() if NAME.fullmatch(name)), key=age, reverse=True)
    except OSError:
        return []


def newest_serial(run_dir: Path) -> int:
    return max((age(place)[0] for place in list_checkpoints(run_dir)), default=0)


def score_of(place: Place) -> float | None:
    """The evaluation score in a checkpoint's manifest, if it has one."""
    try:
        score = read_canonical(place / MANIFEST, MAX_MANIFEST_BYTES).get("score")
    except Unreadable:
        return None
    return float(score) if isinstance(score, (int, float)) else None


def best_first(places: list[Place]) -> list[Place]:
    """The checkpoints that have a score, best first; of equal scores the oldest first."""
    scores = {place: score for place in places if (score := score_of(place)) is not None}
    return sorted(scores, key=lambda place: (-scores[place], age(place)))


def find(run_dir: Path, which: str = "last", say: Callable[[str], None] = warn) -> Checkpoint:
    """Find a checkpoint of a run and verify it: the newest that verifies (`last`), the best score (`best`), or a name.
    `run_dir` may also be the directory of a checkpoint. `say` gets a line for each damaged checkpoint."""
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
            raise UsageError(f"{run_dir} has no checkpoint yet: `tightrope resume {run_dir}` starts from the beginning")
        if which == "last" and (problem := pointer_problem(run / CHECKPOINTS)) is not None:
            problems.append(f"{run_dir / CHECKPOINTS / LATEST} is damaged ({problem})")
        for place in places:
            try:
                checkpoint = verify(place)
            except (Unreadable, OSError) as error:
                if looks_left and not place.exists():  # pruned by a training process: look again for newer ones
                    break
                problems.append(f"checkpoint {place.name}: {error}")
            else:
                warn_of_damage(problems, place.name, say)
                return checkpoint
        else:
            break
    raise UsageError(f"{run_dir} has no checkpoint that can be read. {'; '.join(problems[:MAX_COMPLAINTS])}")


def warn_of_damage(problems: list[str], used: str, say: Callable[[str], None]) -> None:
    shown, more = problems[:MAX_COMPLAINTS], len(problems) - MAX_COMPLAINTS
    for problem in [*shown, f"{plural(more, 'checkpoint')} more cannot be read either"] if more > 0 else shown:
        say(f"{problem}; using {used} instead")


def find_exactly(place: Place, run_dir: Path | None = None) -> Checkpoint:
    """Verify one checkpoint directory; there is no other to fall back on."""
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
    """What is wrong with `latest`, or None. A process killed while saving may leave `latest` missing or one behind."""
    if not (folder / LATEST).exists():
        return None
    try:
        pointer = read_canonical(folder / LATEST)
        place = folder / str(pointer.get("checkpoint"))
        if not NAME.fullmatch(place.name) or not place.is_dir():
            return "it names no checkpoint of this run"
        same = digest((place / MANIFEST).read(MAX_MANIFEST_BYTES)) == pointer.get("sha256")
        return None if same else f"its hash is not that of {place.name}"
    except Unreadable as error:
        return str(error)


def check_is_run(run_dir: Path) -> None:
    folder = Place(run_dir) / CHECKPOINTS
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a real directory: a link could lead to another run")
    if not folder.is_dir() and not (folder.parent / CONFIG).exists():
        raise not_a_run(run_dir)


def not_a_run(path: Path) -> UsageError:
    if (Place(path) / MANIFEST).is_file():
        return UsageError(f"{path} is a checkpoint, not a run: give {path.absolute().parent.parent}")
    why = f"it has no {CONFIG}" if path.is_dir() else "it is a file" if path.exists() else "there is no such directory"
    return UsageError(f"{path} is not a run: {why}. Give a directory that train or save wrote")


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a run has a checkpoint, damaged or not."""
    check_is_run(run_dir)
    return bool(list_checkpoints(run_dir))
