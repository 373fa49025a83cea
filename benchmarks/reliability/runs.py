"""What the scripts of this folder train, and what must hold of its directory at any moment."""

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from tightrope.files import Place
from tightrope.training.checkpoint import CHECKPOINTS, MODEL, NAME, TRAINING, Checkpoint, pointer_problem, verify

SMALL = "--num-envs 3 --num-steps 8 --hidden-sizes 8 --max-episode-steps 20 --device cpu --threads 1 --save-seconds 0 --seed 7"
PPO = "--num-minibatches 2 --update-epochs 2 --norm-obs --norm-reward"
RUNS = {
    "PPO, CartPole": f"CartPole-v1 {SMALL} {PPO}",
    "PPO, Pendulum, evaluations": f"Pendulum-v1 {SMALL} {PPO} --eval-every 48 --eval-episodes 2",
    "VPG, CartPole, evaluations": f"CartPole-v1 --algo vpg {SMALL} --eval-every 72 --eval-episodes 2 --keep-checkpoints 2",
    "VPG, Acrobot, one kept": f"Acrobot-v1 --algo vpg {SMALL} --baseline critic --keep-checkpoints 1",
}
PHASE = 24  # steps


def training(name: str, run: Path, phases: int) -> list[str]:
    """The arguments that begin a run of so many phases."""
    return ["train", *RUNS[name].split(), "--total-timesteps", str(phases * PHASE), "--run-dir", str(run)]


def checkpoints(run: Path) -> list[str]:
    """The names of a run's checkpoints, newest first."""
    try:
        names = [path.name for path in (run / CHECKPOINTS).iterdir()]
    except FileNotFoundError:
        return []
    return sorted((name for name in names if NAME.fullmatch(name)), key=serial, reverse=True)


def serial(name: str) -> int:
    return int(name.split("-")[0])


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics, apart from what is of the clock."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "charts/SPS")} for row in found]


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """Every tensor's bytes, apart from what is of the clock."""
    found = {**load_file(checkpoint / MODEL), **load_file(checkpoint / TRAINING)}
    return {name: value.tobytes() for name, value in found.items() if name != "run.seconds"}


def check_all_is_whole(run: Path) -> Checkpoint | None:
    """Every checkpoint that has a checkpoint's name is whole and the pointer is right; returns the newest one."""
    if not (run / CHECKPOINTS).exists():
        return None
    assert pointer_problem(Place(run) / CHECKPOINTS) is None, pointer_problem(Place(run) / CHECKPOINTS)
    found = [verify(Place(run) / CHECKPOINTS / name) for name in checkpoints(run)]
    return found[0] if found else None


def check_no_row_is_missing(run: Path, newest: Checkpoint, expected: list[dict[str, Any]]) -> None:
    """The metrics up to a checkpoint are those of the run that nothing happened to."""
    content = (run / "metrics.jsonl").read_bytes()[: newest.manifest["log_bytes"]]
    assert len(content) == newest.manifest["log_bytes"], "the metrics are shorter than the checkpoint says"
    assert content.endswith(b"\n"), "a row is torn"
    assert content.count(b"\n") == newest.manifest["phase"]
    for line, row in zip(content.splitlines(), expected, strict=False):
        found = json.loads(line)
        assert found | {"time": 0, "charts/SPS": 0} == row | {"time": 0, "charts/SPS": 0}, found


def check_same_numbers(run: Path, reference: Path) -> None:
    """The same of a run whose last evaluation a signal ended: it is made on resume, which takes a row and, if it is the best, a
    checkpoint more."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows(run):
        merged.setdefault(row["phase"], {}).update(row)
    assert list(merged.values()) == rows(reference), "the metrics differ"
    mine, theirs = (tensors(path / CHECKPOINTS / checkpoints(path)[0]) for path in (run, reference))
    assert mine == theirs, f"{[k for k in mine if mine[k] != theirs.get(k)]} differ"


def check_same_end(run: Path, reference: Path, tidy: bool = True) -> None:
    """A run that was interrupted has ended as the one that was not, bit for bit. Not `tidy` after a kill at the end of the very
    last save, when nobody is left to drop the oldest checkpoint."""
    extra = {*checkpoints(run)} - {*checkpoints(reference)}
    assert {*checkpoints(reference)} <= {*checkpoints(run)}, (checkpoints(run), checkpoints(reference))
    assert len(extra) <= (0 if tidy else 1), extra
    assert rows(run) == rows(reference), "the metrics differ"
    for name in checkpoints(reference):
        mine, theirs = (tensors(path / CHECKPOINTS / name) for path in (run, reference))
        assert mine == theirs, f"{name}: {[k for k in mine if mine[k] != theirs.get(k)]} differ"
    names = {path.name for path in (run / CHECKPOINTS).iterdir()} - {*checkpoints(run)}
    assert names == {"latest"} or not tidy, f"left over: {names}"
