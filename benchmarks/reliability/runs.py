"""What the scripts of this folder train, and what must hold of its directory at any moment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Process, nothing, until
from safetensors.numpy import load_file

from tightrope.files import Place
from tightrope.training.checkpoint_reader import CHECKPOINTS, MODEL, NAME, TRAINING, Checkpoint, pointer_problem, verify

SMALL = "--num-envs 3 --num-steps 8 --hidden-sizes 8 --max-episode-steps 20 --device cpu --threads 1 --save-seconds 0 --seed 7"
SMALL += " --eval-episodes 2"
PPO = "--num-minibatches 2 --update-epochs 2 --norm-obs --norm-reward"
CARTPOLE, PENDULUM = "PPO, CartPole", "PPO, Pendulum, evaluations"
RUNS = {
    CARTPOLE: f"CartPole-v1 {SMALL} {PPO}",
    PENDULUM: f"Pendulum-v1 {SMALL} {PPO} --eval-every 48",
    "VPG, CartPole, evaluations": f"CartPole-v1 --algo vpg {SMALL} --eval-every 72 --keep-checkpoints 2",
    "VPG, Acrobot, one kept": f"Acrobot-v1 --algo vpg {SMALL} --baseline critic --keep-checkpoints 1",
}
PHASE = 24  # steps
ENDLESS = 10**6  # phases


def training(name: str, run: Path, phases: int) -> list[str]:
    """The arguments that begin a run of so many phases."""
    return ["train", *RUNS[name].split(), "--total-timesteps", str(phases * PHASE), "--run-dir", str(run)]


def under_way(run: Path, saves: int = 1, prepare: Callable[[], None] = nothing) -> Process:
    """An endless training of CartPole that has saved so many checkpoints."""
    process = Process(*training(CARTPOLE, run, ENDLESS), prepare=prepare)
    until(lambda: len(checkpoints(run)) >= saves, process)
    return process


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


def check_phases(run: Path, phases: int | None = None) -> None:
    """The metrics have every phase once, so many of them."""
    found = [row["phase"] for row in rows(run)]
    assert found == list(range(1, (len(found) if phases is None else phases) + 1)), "the metrics have a gap or a double"


def check_all_is_whole(run: Path) -> Checkpoint | None:
    """Every checkpoint that has a checkpoint's name is whole and the pointer is right; returns the newest one."""
    if not (run / CHECKPOINTS).exists():
        return None
    assert pointer_problem(Place(run) / CHECKPOINTS) is None, pointer_problem(Place(run) / CHECKPOINTS)
    found = [verify(Place(run) / CHECKPOINTS / name) for name in checkpoints(run)]
    return found[0] if found else None


def newest_of(run: Path) -> Checkpoint:
    """The newest checkpoint of a run where all is whole."""
    newest = check_all_is_whole(run)
    assert newest is not None, "nothing is saved"
    return newest


def check_stopped(process: Process, run: Path, number: int, seconds: float = 120.0) -> Checkpoint:
    """It left by that signal's code, with everything saved."""
    output, newest = process.ends(128 + number, seconds), newest_of(run)
    assert f"stopped after {newest.steps:,} steps; `tightrope resume {run}` continues" in output, output
    return newest


def check_no_row_is_missing(run: Path, newest: Checkpoint, expected: list[dict[str, Any]]) -> None:
    """The metrics up to a checkpoint are those of the run that nothing happened to."""
    content = (run / "metrics.jsonl").read_bytes()[: newest.manifest["log_bytes"]]
    assert len(content) == newest.manifest["log_bytes"], "the metrics are shorter than the checkpoint says"
    assert content.endswith(b"\n"), "a row is torn"
    assert content.count(b"\n") == newest.manifest["phase"]
    for line, row in zip(content.splitlines(), expected, strict=False):
        found = json.loads(line)
        assert found | {"time": 0, "charts/SPS": 0} == row | {"time": 0, "charts/SPS": 0}, found


def check_same_tensors(mine: Path, theirs: Path) -> None:
    """Two checkpoints are the same, bit for bit."""
    found, expected = tensors(mine), tensors(theirs)
    assert found == expected, f"{mine.name}: {[k for k in found if found[k] != expected.get(k)]} differ"


def check_same_numbers(run: Path, reference: Path) -> None:
    """As check_same_end, of a run whose last evaluation a signal ended: it is made on resume, which takes a row and, if it is
    the best, a checkpoint more."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows(run):
        merged.setdefault(row["phase"], {}).update(row)
    assert list(merged.values()) == rows(reference), "the metrics differ"
    check_same_tensors(*(path / CHECKPOINTS / checkpoints(path)[0] for path in (run, reference)))


def check_same_end(run: Path, reference: Path, tidy: bool = True) -> None:
    """A run that was interrupted has ended as the one that was not, bit for bit. Not `tidy` after a kill at the end of the very
    last save, when nobody is left to drop the oldest checkpoint."""
    extra = {*checkpoints(run)} - {*checkpoints(reference)}
    assert {*checkpoints(reference)} <= {*checkpoints(run)}, (checkpoints(run), checkpoints(reference))
    assert len(extra) <= (0 if tidy else 1), extra
    assert rows(run) == rows(reference), "the metrics differ"
    for name in checkpoints(reference):
        check_same_tensors(run / CHECKPOINTS / name, reference / CHECKPOINTS / name)
    names = {path.name for path in (run / CHECKPOINTS).iterdir()} - {*checkpoints(run)}
    assert names == {"latest"} or not tidy, f"left over: {names}"
