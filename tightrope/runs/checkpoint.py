"""Checkpoints: safetensors for tensors, JSON for everything else, a SHA-256 for every byte. None of them can run code.

RUN/config.yaml                                 every setting, for people
RUN/checkpoints/latest                          the name of the newest checkpoint and its manifest's hash
RUN/checkpoints/0007-steps-98304/               the seventh, after 98,304 steps:
    manifest.json          what wrote it, the settings, the spaces (the network's, and the environment's own where it runs
                           outside torch), size and hash of each file, and its own hash
    model.safetensors      networks and normalizers: what acting needs
    training.safetensors   everything else that makes the run
    rank-0001.safetensors  what is another rank's own of it, where several trained it together

A checkpoint is written under another name, waited for until the disk has it, then renamed: under its own name it is whole. What
is read is checked first, all of it. The newest whole one is taken; one that is not is named and passed over.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from ..engine import State, cores, world
from ..envs.adapters.host import HostEnv
from ..envs.attributes import unsaved_warning
from ..errors import UsageError, warn
from ..files import Place, Unreadable, address, canonical, digest, read_canonical, remove_leftovers
from ..types import Composite, Env, Spec
from ..version import __version__
from .config import Config, configure

SCHEMA = 1
CONFIG, CHECKPOINTS, LATEST, MANIFEST = "config.yaml", "checkpoints", "latest", "manifest.json"
MODEL, TRAINING = "model.safetensors", "training.safetensors"
NAME = re.compile(r"(\d{4,12})-steps-(\d{1,18})")
MOST_SERIAL = 10**12 - 1  # that a name has room for
MOST_BYTES = 1 << 40  # of a file, whatever a manifest says
ENVS = "run.envs"  # where what is each rank's own was left out: as many zeros as there were environments
MOST_MANIFEST = 1 << 22  # bytes: of some 30,000 ranks
UNFINISHED, LEAVING = ".new-", ".old-"  # names that no reader looks at


@dataclass(frozen=True)
class Checkpoint:
    """One that has been looked at: every file has the size and the hash that its manifest says."""

    place: Place
    manifest: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.place.path

    @property
    def serial(self) -> int:
        return int(self.manifest["serial"])

    @property
    def steps(self) -> int:
        return int(self.manifest["steps"])

    @property
    def config(self) -> Config:
        return configured(self.manifest["config"], self.path / MANIFEST)

    @property
    def ranks(self) -> int:
        """How many trained it; 0 if what is each one's own was left out."""
        return int(self.manifest.get("ranks", 1))

    def tensors(self, rank: int = 0) -> dict[str, Tensor]:
        """All of its tensors that concern a rank, by dotted name."""
        return {name: tensor for file in files_of(rank) for name, tensor in self.read(file).items()}

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors in one of its files."""
        try:
            return load((self.place / name).read(MOST_BYTES))
        except (SafetensorError, Unreadable, KeyError, ValueError, RuntimeError) as error:
            raise UsageError(f"{self.path / name} is not a file of tensors: {one_line(error)}") from None

    def shapes(self, name: str) -> dict[str, list[int]]:
        """What is in one of its files, of which the header alone is read."""
        place = self.place / name
        with place.open(MOST_BYTES) as opened, safe_open(address(opened, place), "pt") as file:
            return {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118


# writing -------------------------------------------------------------------------------------------------------------


def save_config(run_dir: Path, config: Config) -> None:
    (Place(run_dir) / CONFIG).write(yaml.safe_dump(config.flat(), sort_keys=False).encode())


def files_of(rank: int) -> list[str]:
    """The files that a rank goes on from."""
    return [MODEL, TRAINING] if rank == 0 else [MODEL, TRAINING, f"rank-{rank:04d}.safetensors"]


def on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.cpu().contiguous() for k, v in tensors.items()}


def own_part(state: State) -> bytes:
    """What is this rank's own of the state."""
    return save(on_cpu({k: v for k, v in state.state_dict().items() if k.startswith(state.OWN)}))


def save_checkpoint(
    run_dir: Path,
    state: State,
    config: Config,
    others: Sequence[bytes] = (),
    *,
    keep: int,
    score: float | None = None,
    log_bytes: int = 0,
) -> int:
    """Write the newest checkpoint of a run, drop what is too old, and return its serial number.

    `others` are the other ranks' own parts; without them, one of several leaves out its own. `score` is that of an evaluation
    just made, `log_bytes` the length of the metrics file at this moment.
    """
    ranks = 1 + len(others) if 1 + len(others) == world().size else 0
    folder = Place(run_dir) / CHECKPOINTS
    folder.mkdir()  # but not the run's directory: if that has gone, someone wanted it so
    tidy(folder)
    serial = min(newest_serial(run_dir) + 1, MOST_SERIAL)
    name = f"{serial:04d}-steps-{state.steps}"
    placeholder = {} if ranks else {ENVS: torch.zeros(config.algorithm.num_envs, dtype=torch.uint8)}
    tensors = placeholder | on_cpu(
        {k: v for k, v in state.state_dict().items() if ranks or not k.startswith(state.OWN)}
    )
    entries = [name.removeprefix("env.") for name in tensors if name.startswith("env.")]
    if line := unsaved_warning(state.env, entries):
        warn(line)
    files = {
        MODEL: save({k: v for k, v in tensors.items() if k.startswith("policy.")}),
        TRAINING: save({k: v for k, v in tensors.items() if not k.startswith("policy.")}),
        **{files_of(rank)[-1]: part for rank, part in enumerate(others, 1)},
    }
    manifest = canonical(sealed({
        "schema": SCHEMA,
        "name": name, "serial": serial, "steps": state.steps, "phase": state.phase,
        "score": score, "log_bytes": log_bytes, **({} if ranks == 1 else {"ranks": ranks}),
        "versions": {"tightrope": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": config.flat(),
        "observation": described(state.env.observation), "action": described(state.env.action),
        "spaces": own_spaces(state.env),
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
    folder.parent.sync()  # which has the name of this folder, and of the metrics
    (folder / LATEST).write(canonical({"checkpoint": name, "sha256": digest(manifest)}))
    prune(folder, keep)
    return serial


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same with its own hash."""
    return {**manifest, "sha256": digest(canonical(manifest))}


def tidy(folder: Place) -> None:
    """Remove what was being written or dropped when a process died."""
    for name in folder.names():
        if name.startswith((UNFINISHED, LEAVING)):
            (folder / name).remove()
    remove_leftovers(folder / LATEST)
    remove_leftovers(folder.parent / CONFIG)


def prune(folder: Place, keep: int) -> None:
    """Keep the newest ones that look whole and the one with the best score. What is damaged takes nobody's place: it goes once
    as many good ones are newer."""
    paths = named(folder.parent.path)
    whole = [path for path in paths if looks_whole(path)]
    best = by_score(whole)[:1]
    for path in paths[paths.index(whole[keep - 1]) + 1 :] if len(whole) >= keep else []:
        if path not in best:
            path.rename(LEAVING + path.name).remove()  # so that no reader meets half of it


def looks_whole(path: Place) -> bool:
    """Whether a checkpoint's manifest is as it was written, and its files have their sizes; their content is not read."""
    try:
        manifest = read_canonical(path / MANIFEST, MOST_MANIFEST)
        if manifest != sealed({k: v for k, v in manifest.items() if k != "sha256"}) or manifest["name"] != path.name:
            return False
        sizes = {file: facts["size"] for file, facts in manifest["files"].items()}
        return all((info := (path / file).info()) and info.st_size == size for file, size in sizes.items())
    except (Unreadable, KeyError, TypeError, AttributeError):
        return False


def described(spec: Spec) -> dict[str, Any]:
    """A space in words that JSON has."""
    if isinstance(spec, Composite):
        return {"kind": "Composite", "parts": [[name, described(part)] for name, part in spec.parts]}
    values = {k: str(v) if isinstance(v, (float, torch.dtype)) else v for k, v in asdict(spec).items()}
    return {"kind": type(spec).__name__, **{k: list(map(str, v)) if k in ("low", "high") and isinstance(v, tuple) else v
                                            for k, v in values.items()}}  # fmt: skip


def own_spaces(env: Env) -> dict[str, Any] | None:
    """The spaces as an engine outside torch has them, from which a policy can be loaded without it."""
    if not isinstance(env, HostEnv):
        return None
    from ..envs.adapters.spaces_only import spaces_to_json

    return spaces_to_json(env)


def configured(flat: dict[str, Any], source: Path) -> Config:
    if not isinstance(flat.get("env"), str) or not isinstance(flat.get("algo"), str):
        raise UsageError(f"{source} does not say which env and algo it is of")
    if isinstance(flat.get("threads"), int):
        flat = {**flat, "threads": min(flat["threads"], cores())}  # it may have been written on a larger machine
    try:
        return configure(flat["env"], flat["algo"], flat, with_preset=False)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


# what is there --------------------------------------------------------------------------------------------------------


def number(path: Place) -> int:
    """The serial number in a checkpoint's name."""
    return age(path)[0]


def age(path: Place) -> tuple[int, int]:
    """Serial number and steps, by which the newest is known: numbers may have come to their end."""
    match = NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def named(run_dir: Path) -> list[Place]:
    """Every directory of a run that has a checkpoint's name, newest first. A link is none: it may lead anywhere."""
    folder = Place(run_dir) / CHECKPOINTS
    try:
        found = [folder / name for name in folder.folders() if NAME.fullmatch(name)]
    except OSError:
        return []
    return sorted(found, key=age, reverse=True)


def newest_serial(run_dir: Path) -> int:
    return max(map(number, named(run_dir)), default=0)


def by_score(paths: list[Place]) -> list[Place]:
    """Those that were kept for their score, the best first, of equals the first."""
    scores = {path: score for path in paths if (score := score_of(path)) is not None}
    return sorted(scores, key=lambda path: (-scores[path], number(path)))


def score_of(path: Place) -> float | None:
    """The score that a checkpoint was kept for, if it was."""
    try:
        score = read_canonical(path / MANIFEST, MOST_MANIFEST).get("score")
    except Unreadable:
        return None
    return float(score) if isinstance(score, (int, float)) else None


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
