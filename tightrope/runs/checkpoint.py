"""Saving and loading: YAML for settings, safetensors for tensors. Neither can run code.

RUN/config.yaml                      every setting
RUN/checkpoints/last.safetensors     the run's whole state
RUN/checkpoints/best.safetensors     the same, at the best evaluation, if there were any
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..engine import State
from ..errors import UsageError
from .config import Config, configure, read_settings

CONFIG, CHECKPOINTS = "config.yaml", "checkpoints"


def write_file(path: Path, content: bytes) -> None:
    """All of the content or nothing: written under another name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def save_config(run_dir: Path, config: Config) -> None:
    write_file(run_dir / CONFIG, yaml.safe_dump(config.flat(), sort_keys=False).encode())


def save_state(run_dir: Path, state: State, name: str = "last") -> None:
    tensors = {k: v.cpu().contiguous() for k, v in state.state_dict().items()}
    write_file(run_dir / CHECKPOINTS / f"{name}.safetensors", save(tensors))


def load_config(run_dir: Path) -> Config:
    if not (run_dir / CONFIG).is_file():
        raise UsageError(f"{run_dir} is not a run: it has no {CONFIG}. Give a directory that train or save wrote")
    flat = read_settings(run_dir / CONFIG)
    if not isinstance(flat.get("env"), str) or not isinstance(flat.get("algo"), str):
        raise UsageError(f"{run_dir / CONFIG} does not say which env and algo it is of")
    return configure(flat["env"], flat["algo"], flat, with_preset=False)


def load_tensors(run_dir: Path, name: str = "last") -> dict[str, Tensor]:
    path = run_dir / CHECKPOINTS / f"{name}.safetensors"
    if not path.is_file():
        raise UsageError(f"{run_dir} has no checkpoint {name!r}: {path} is not there")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged or not a checkpoint: {error}") from None


def restore(state: State, tensors: dict[str, Tensor], source: Path) -> None:
    """Put saved tensors into a freshly built state."""
    try:
        state.load_state_dict(tensors)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
        raise UsageError(f"the checkpoint in {source} does not fit the settings: {reason}") from None
