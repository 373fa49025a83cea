"""Checkpoints as somebody could write them who means harm: everything in them agrees, every hash is right."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from tightrope.files import canonical, digest
from tightrope.training.checkpoint_reader import CHECKPOINTS, LATEST, MANIFEST, MODEL, NAME, TRAINING, with_hash


def newest(run: Path) -> Path:
    return max(path for path in (run / CHECKPOINTS).iterdir() if NAME.fullmatch(path.name))


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / MANIFEST).read_bytes()))


def forge(run: Path, **changes: Any) -> None:
    """Put right the hashes of a checkpoint whose files have been changed, and change its manifest."""
    path = newest(run)
    manifest = manifest_of(path)
    manifest["files"] = {name: facts(path / name) for name in (MODEL, TRAINING)}
    manifest |= changes
    manifest = {k: v for k, v in manifest.items() if k != "sha256" and v is not REMOVED}
    (path / MANIFEST).write_bytes(canonical(with_hash(manifest)))
    point(run)


REMOVED = object()


def facts(file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def point(run: Path) -> None:
    path = newest(run)
    pointer = {"checkpoint": path.name, "sha256": digest((path / MANIFEST).read_bytes())}
    (run / CHECKPOINTS / LATEST).write_bytes(canonical(pointer))


def forge_config(run: Path, **changes: Any) -> None:
    forge(run, config={**manifest_of(newest(run))["config"], **changes})


def forge_tensors(run: Path, file: str, **changes: Any) -> None:
    """Change some tensors (None takes one away)."""
    path = newest(run) / file
    tensors = {**load_file(path), **changes}
    path.write_bytes(save({k: np.asarray(v) for k, v in tensors.items() if v is not None}))
    forge(run)


def forge_header(run: Path, file: str, header: bytes, length: int | None = None, body: int = 0) -> None:
    """A safetensors file of this header, which says it has another length perhaps, and of so many zeros (on no disk)."""
    path = newest(run) / file
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    with path.open("r+b") as content:
        content.truncate(8 + len(header) + body)
    forge(run)
