"""Links, pipes, devices and directories in the place of files that a run reads or writes, through `resume` and `report`."""

import importlib.util
import os
import shutil
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from attacks import SECONDS, Case, Skipped, attempt, copy_of_good_run

from tightrope.training.checkpoint_reader import CHECKPOINTS, LATEST, MODEL, NAME

Plant = Callable[[Path], object]  # puts something into a run; PID in a name is the process that does it
VICTIM, ELSEWHERE = "victim", "elsewhere"  # beside the run: a private key, and a directory that has it, too
KEY = "-----BEGIN PRIVATE KEY-----\n" + "precious" * 200 + "\n"
WRITTEN = (
    "metrics.jsonl", "scores.jsonl", ".lock", "config.yaml", "about.json", "report.html", "trackers.json",
    "videos/phase0001.mp4", "videos/phase0001.html", "videos/phase0002.mp4", "videos/phase0002.html", f"{CHECKPOINTS}/{LATEST}",
)  # fmt: skip
TEMPORARY = (
    "config.yaml.tmp", ".config.yaml.1.tmp", f"{CHECKPOINTS}/latest.tmp", f"{CHECKPOINTS}/.latest.PID.tmp",
    f"{CHECKPOINTS}/.new-0002-steps-48", f"{CHECKPOINTS}/.old-x", "trackers.json.tmp", ".about.json.PID.tmp",
    ".report.html.PID.tmp", "videos/.1.mp4.tmp", "videos/phase0002.mp4.tmp",
)  # fmt: skip
PIPE, ZERO, DEVICE, FOLDER = "a pipe", "a link to /dev/zero", "a device", "a directory"
CHECKPOINT_FILES = ("CHECKPOINT/manifest.json", f"CHECKPOINT/{MODEL}", "CHECKPOINT/training.safetensors")


def place_of(run: Path, name: str) -> Path:
    """Where it is, with nothing there."""
    if name.startswith("CHECKPOINT/"):
        newest = max(path.name for path in (run / CHECKPOINTS).iterdir() if NAME.fullmatch(path.name))
        name = name.replace("CHECKPOINT", f"{CHECKPOINTS}/{newest}")
    path = run / name.replace("PID", str(os.getpid()))
    path.parent.mkdir(exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def link(name: str) -> Plant:
    """A link to what is beside the run, in the place of a file or a directory."""
    target = VICTIM if Path(name).suffix or name.startswith((".", CHECKPOINTS)) else ELSEWHERE
    return lambda run: place_of(run, name).symlink_to(run.parent / target)


def device(path: Path) -> None:
    """As /dev/zero."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        raise Skipped("only root makes devices") from None


MAKE: dict[str, Callable[[Path], object]] = {
    PIPE: os.mkfifo,
    ZERO: lambda path: path.symlink_to("/dev/zero"),
    DEVICE: device,
    FOLDER: Path.mkdir,
}


def other_kind(name: str, kind: str) -> Plant:
    return lambda run: MAKE[kind](place_of(run, name))


def all_links() -> dict[str, Plant]:
    """By name."""
    return {name: link(name) for name in ("videos", *WRITTEN, *TEMPORARY)}


def all_other_kinds() -> dict[tuple[str, str], Plant]:
    """By name and kind."""
    return {(name, kind): other_kind(name, kind) for name in (*WRITTEN, *CHECKPOINT_FILES) for kind in MAKE}


def served(run: Path, name: str, plant: Plant) -> str:
    """Resume the run and report on it, with the same planted before each; returns what became of it."""

    def prepare() -> None:
        os.environ["WANDB_MODE"] = "offline"
        plant(run)

    further, seconds = ["--total-timesteps", "72", "--video-every", "1"], SECONDS
    if name.startswith("trackers"):
        if importlib.util.find_spec("wandb") is None:
            raise Skipped("wandb is not installed")
        further, seconds = [*further, "--log", "wandb"], 3 * SECONDS  # wandb starts a process of its own
    plant(run)  # so that it cannot be made here is seen here
    resumed = attempt("resume", run, *further, prepare=prepare, seconds=seconds)
    reported = attempt("report", run, prepare=prepare)
    words = {0: "served", 1: "not saved", 2: "refused"}
    return f"resume {words[resumed.code or 0]}, report {words[reported.code or 0]}"


def through_link(name: str, plant: Plant) -> Case:
    def case(path: Path) -> str:
        run, victim, elsewhere = copy_of_good_run(path), path / VICTIM, path / ELSEWHERE
        elsewhere.mkdir()
        for file in (victim, elsewhere / "phase0001.mp4"):
            file.write_text(KEY)
        outcome = served(run, name, plant)
        assert victim.read_text() == KEY, "the file that it leads to was changed"
        assert [file.name for file in elsewhere.iterdir()] == ["phase0001.mp4"], "files were made where it leads to"
        assert (elsewhere / "phase0001.mp4").read_text() == KEY, "a file where it leads to was changed"
        shown = [file for file in run.rglob("*") if file.is_file() and not file.is_symlink() and has_key(file)]
        assert not shown, f"{shown[0].name} has what it leads to"
        return outcome

    return case


def has_key(file: Path) -> bool:
    content = file.read_bytes()
    return KEY.encode() in content or b64encode(KEY.encode())[:400] in content


def links() -> dict[str, Case]:
    return {f"{name} is a link": through_link(name, plant) for name, plant in all_links().items()}


def other_kinds() -> dict[str, Case]:
    def planted(name: str, plant: Plant) -> Case:
        return lambda path: served(copy_of_good_run(path), name, plant)

    return {f"{name} is {kind}": planted(name, plant) for (name, kind), plant in all_other_kinds().items()}
