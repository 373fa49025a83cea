"""The directory of a run in training: its lock, metrics file and checkpoints, and what happens if the disk fails."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import activity
from ..engine import State, world
from ..engine.distributed import broadcast_from_rank0, gather_to_rank0, keep_for_restart, kept_for_restart
from ..engine.heartbeat import restart_notice
from ..errors import UsageError, warn
from ..files import Place, Unreadable
from ..logging import MetricsFile
from .checkpoint_reader import CONFIG, Checkpoint, newest_serial, not_a_run
from .commands import resume_command
from .config import Config, config_from
from .lock import locked
from .saving import rank_state, save_checkpoint, save_config
from .settings import MAX_SETTINGS_BYTES, read_settings

METRICS = "metrics.jsonl"
RUN_DIR = "run_dir"  # the key of the path that is kept for restarted ranks


class RunDirectory:
    """The directory of one run. A disk error is reported once and does not stop training; `trouble` is its reason."""

    def __init__(
        self, path: Path, checkpoint: Checkpoint | None = None, new: bool = False, say: Callable[[str], None] = warn
    ) -> None:
        """`checkpoint`: the run resumes from it. `new`: there must be no run in the directory yet."""
        self.path, self.new, self.say = path.absolute(), new, say
        self.serial = newest_serial(path)  # of the newest checkpoint known to this process
        self.log_bytes = 0 if checkpoint is None else int(checkpoint.manifest["log_bytes"])
        self.saved_steps = None if checkpoint is None else checkpoint.steps
        self.saved_at = time.perf_counter()
        self.metrics: MetricsFile | None = None
        self.folder: int | Path = self.path  # a descriptor while open: the path may be replaced meanwhile
        self.trouble: str | None = None  # why the last checkpoint could not be written
        self.log_trouble = False

    @contextmanager
    def opened(self, config: Config) -> Iterator[None]:
        """Lock the directory, write the settings, and truncate the metrics file to its length at the checkpoint."""
        with self.locked():
            keep_for_restart(RUN_DIR, str(self.path))  # a restarted job resumes here
            try:
                save_config(self.path, config)
                self.metrics = MetricsFile(Place(self.path) / METRICS, self.log_bytes, self.say)
            except OSError as error:
                named = error.filename and error.errno in (errno.EINVAL, errno.ELOOP)
                which = f"{Path(error.filename).name}: " if named else ""
                raise UsageError(f"run_dir {self.path} cannot be written: {which}{reason(error)}") from None
            self.saved_at = time.perf_counter()
            try:
                with Place(self.path).directory_fd() as folder:
                    self.folder = self.path if folder is None else folder
                    yield
            finally:
                self.metrics.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create and lock the directory; UsageError if another process has trained there since `serial` was read."""
        missing = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for created in missing:
                Place(created.parent).sync()
        except OSError as error:
            raise UsageError(f"run_dir {self.path} cannot be made: {reason(error)}") from None
        with locked(self.path):
            if self.new and (Place(self.path) / CONFIG).exists():
                raise UsageError(already_a_run(self.path))
            if newest_serial(self.path) > self.serial:
                raise UsageError(f"run_dir {self.path} was trained further by another process: load it again")
            self.new = False
            yield

    @property
    def seconds_since_saving(self) -> float:
        return time.perf_counter() - self.saved_at

    def log(self, row: dict[str, float]) -> None:
        """Write a row to the metrics file. If the disk fails, the row is kept and written later."""
        assert self.metrics is not None
        try:
            self.metrics.write(row)
            self.log_trouble = False
        except OSError as error:
            if not self.log_trouble:
                self.say(
                    f"{self.path / METRICS} cannot be written ({reason(error)}): training continues, rows are kept"
                )
            self.log_trouble = True

    def write_config(self, config: Config) -> None:
        """Write settings that were changed during training."""
        try:
            save_config(self.path, config)
        except OSError as error:
            self.say(f"{self.path / CONFIG} cannot be written ({reason(error)}): the next checkpoint has the settings")

    def save(self, state: State, config: Config, score: float | None = None) -> None:
        """Write a checkpoint. If the disk fails, the last one stays, and all ranks learn of it."""
        assert self.metrics is not None
        with activity.during("saving a checkpoint"):
            others, keep = gather_to_rank0(b"")[1:], config.run.keep_checkpoints
            self.saved_at = time.perf_counter()
            try:
                self.check_is_there()
                size = self.metrics.sync()  # before the checkpoint, which records its length
                self.serial = save_checkpoint(self.path, state, config, others, keep=keep, score=score, log_bytes=size)
            except OSError as error:
                if self.trouble is None:
                    self.say(f"{self.path} cannot be saved to ({reason(error)}): training continues, {self.newest}")
                self.trouble = reason(error)
            else:
                if self.trouble is not None:
                    self.say(f"{self.path} can be saved to again")
                self.trouble, self.log_bytes, self.saved_steps = None, size, state.steps
        broadcast_from_rank0(lambda: (self.trouble or "").encode())

    def check_is_there(self) -> None:
        """Raise OSError if the directory was removed or replaced."""
        if not os.path.samestat(os.stat(self.path), os.stat(self.folder)):
            raise FileNotFoundError(errno.ENOENT, "it was replaced by another directory")

    def save_now(self, state: State, config: Config) -> None:
        """Write a checkpoint outside of training. An agent saved there before is replaced, a trained run is not."""
        is_ours = self.saved_steps is not None
        if not is_ours and (Place(self.path) / METRICS).exists():
            raise UsageError(f"path {self.path} holds a run that was trained there: give another directory")
        with self.locked():
            try:
                save_config(self.path, config)
                keep = config.run.keep_checkpoints if is_ours else 1
                self.serial = save_checkpoint(self.path, state, config, keep=keep, log_bytes=self.log_bytes)
            except OSError as error:
                raise UsageError(f"path {self.path} cannot be written: {reason(error)}") from None
        self.saved_steps = state.steps

    @property
    def newest(self) -> str:
        """A clause that names the newest checkpoint."""
        if self.saved_steps is None:
            return "nothing is saved yet"
        if not newest_serial(self.path):
            return "but its checkpoints were removed"
        return f"the newest checkpoint has {self.saved_steps:,} steps"

    def lost_rank_advice(self, config: Config) -> str:
        """The advice after the loss of another rank."""
        if self.saved_steps is None:
            return f"{restart_notice()}; nothing is saved yet"
        return f"{restart_notice()}; `{resume_command(self.path, config)}` resumes from {self.saved_steps:,} steps"

    def left(self, state: State) -> str:
        """A clause about the last checkpoint, for the error that ended training."""
        kept = f"the state after {state.steps:,} steps is saved in {self.path}"
        return kept if self.trouble is None else self.complaint(state)

    def complaint(self, state: State) -> str:
        """The message if the end of training could not be saved."""
        end = f"the end of training, {state.steps:,} steps"
        return f"{end}, is not saved in {self.path} ({self.trouble}): {self.newest}"


class NonZeroRankDirectory(RunDirectory):
    """The run directory on ranks other than 0, which send their state to rank 0 and write nothing."""

    @contextmanager
    def opened(self, config: Config) -> Iterator[None]:
        yield

    @property
    def seconds_since_saving(self) -> float:
        return 0.0  # the clock of rank 0 decides

    def log(self, row: dict[str, float]) -> None:
        pass

    def write_config(self, config: Config) -> None:
        pass

    def save(self, state: State, config: Config, score: float | None = None) -> None:
        gather_to_rank0(rank_state(state))
        self.trouble = broadcast_from_rank0(lambda: b"").decode() or None
        if self.trouble is None:
            self.saved_steps = state.steps

    def save_now(self, state: State, config: Config) -> None:
        pass


def directory(path: Path, checkpoint: Checkpoint | None = None, new: bool = False) -> RunDirectory:
    """The run directory object for this rank."""
    return (RunDirectory if world().is_rank0 else NonZeroRankDirectory)(path, checkpoint, new)


def reason(error: OSError) -> str:
    return error.strerror or str(error)


def load_config(run_dir: Path) -> Config:
    """The settings of a run from its config.yaml."""
    place = Place(run_dir) / CONFIG
    if not place.exists():
        raise not_a_run(run_dir)
    try:
        content = place.read(MAX_SETTINGS_BYTES)
    except Unreadable as error:
        raise UsageError(f"{run_dir} is not a run: {error}") from None
    return config_from(read_settings(place.path, content), place.path)


def already_a_run(path: Path) -> str:
    return f"run_dir {path} already holds a run: `tightrope resume {path}` continues it, or give another directory"


def begun_before(run_dir: Path | None) -> Path | None:
    """The directory of the run that this job began before torchrun restarted it; None if `run_dir` is another one."""
    begun = kept_for_restart(RUN_DIR)
    if begun is None or (run_dir is not None and run_dir.absolute() != Path(begun)):
        return None
    return Path(begun)


def new_run_dir(run_dir: Path | None, config: Config) -> Path:
    """The directory for a new run, the same on all ranks; UsageError if it holds a run already. Nothing is created."""
    return Path(os.fsdecode(broadcast_from_rank0(lambda: os.fsencode(free_directory(run_dir, config)))))


def free_directory(run_dir: Path | None, config: Config) -> Path:
    if run_dir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        base = Path("runs") / f"{config.env.replace('/', '-')}__{config.algo}__{config.run.seed}__{stamp}"
        run_dir, attempt = base, 1
        while run_dir.exists():
            attempt += 1
            run_dir = base.with_name(f"{base.name}-{attempt}")
    try:
        if (Place(run_dir) / CONFIG).exists():
            raise UsageError(already_a_run(run_dir))
        nearest = next(p for p in (run_dir, *run_dir.absolute().parents) if p.exists())
    except OSError as error:
        raise UsageError(f"run_dir {str(run_dir)[:60]} is invalid ({error.strerror}): give another directory") from None
    if not nearest.is_dir():
        raise UsageError(f"run_dir {run_dir} is invalid, {nearest} is a file: give a directory")
    if not os.access(nearest, os.W_OK):
        raise UsageError(f"run_dir {run_dir} cannot be made, {nearest} is read-only: give another directory")
    return run_dir
