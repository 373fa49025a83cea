"""A run's directory as the process that trains it sees it: what it has written there, and what it could not write."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import activity
from ..engine import State, world
from ..engine.distributed import broadcast_from_rank0, gather_to_rank0, keep_for_restart, kept_for_restart
from ..engine.heartbeat import restart_notice
from ..errors import UsageError, warn
from ..files import Place
from ..view import MetricsFile
from .checkpoint import CONFIG, Checkpoint, newest_serial
from .config import Config
from .given import can_be_named, is_path
from .lock import locked
from .persistence import rank_state, save_checkpoint, save_config

METRICS = "metrics.jsonl"
RUN_DIR = "run_dir"  # the name under which ranks that are restarted find it


class RunDirectory:
    """Where one run lives. Trouble with the disk is said once and does not stop training; `trouble` is what it is."""

    def __init__(
        self, path: Path, checkpoint: Checkpoint | None = None, new: bool = False, say: Callable[[str], None] = warn
    ) -> None:
        """`checkpoint` is the one that the run goes on from; `new` if there must be no run yet."""
        self.path, self.new, self.say = path.absolute(), new, say
        self.serial = newest_serial(path)  # of what has been written there as far as we know
        self.log_bytes = 0 if checkpoint is None else int(checkpoint.manifest["log_bytes"])
        self.saved_steps = None if checkpoint is None else checkpoint.steps
        self.saved_at = time.perf_counter()
        self.metrics: MetricsFile | None = None
        self.folder: int | Path = self.path  # the directory itself, whatever its name leads to
        self.trouble: str | None = None  # with checkpoints
        self.log_trouble = False

    @contextmanager
    def opened(self, config: Config) -> Iterator[None]:
        """Ours alone to write to, with the settings and the metrics that belong to where the run stands."""
        with self.ours():
            keep_for_restart(RUN_DIR, str(self.path))  # whoever is started in our place goes on here
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
    def ours(self) -> Iterator[None]:
        """Locked, and nobody else has begun or continued a run there meanwhile."""
        missing = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for made in missing:
                Place(made.parent).sync()
        except OSError as error:
            raise UsageError(f"run_dir {self.path} cannot be made: {reason(error)}") from None
        with locked(self.path):
            if self.new and (Place(self.path) / CONFIG).exists():
                raise UsageError(already_a_run(self.path))
            if newest_serial(self.path) > self.serial:
                raise UsageError(f"run_dir {self.path} has been trained further meanwhile: load it again")
            self.new = False
            yield

    @property
    def seconds_since_saving(self) -> float:
        return time.perf_counter() - self.saved_at

    def log(self, row: dict[str, Any]) -> None:
        """A row for the metrics file, now or when the disk takes it."""
        assert self.metrics is not None
        try:
            self.metrics.write(row)
            self.log_trouble = False
        except OSError as error:
            if not self.log_trouble:
                self.say(f"{self.path / METRICS} cannot be written ({reason(error)}): training goes on, rows are kept")
            self.log_trouble = True

    def save(self, state: State, config: Config, score: float | None = None) -> None:
        """A checkpoint of the state; if the disk does not take it, the last one stays. All ranks hear of it."""
        with activity.during("saving a checkpoint"):
            self._save(state, config, score, gather_to_rank0(b"")[1:])
        broadcast_from_rank0(lambda: (self.trouble or "").encode())

    def _save(self, state: State, config: Config, score: float | None, others: list[bytes]) -> None:
        assert self.metrics is not None
        self.saved_at = time.perf_counter()
        try:
            self.check_is_there()
            log_bytes = self.metrics.sync()  # before what counts on it
            keep = config.run.keep_checkpoints
            self.serial = save_checkpoint(self.path, state, config, others, keep=keep, score=score, log_bytes=log_bytes)
        except OSError as error:
            if self.trouble is None:
                self.say(f"{self.path} cannot be saved to ({reason(error)}): training goes on, {self.newest}")
            self.trouble = reason(error)
            return
        if self.trouble is not None:
            self.say(f"{self.path} can be saved to again")
        self.trouble, self.log_bytes, self.saved_steps = None, log_bytes, state.steps

    def check_is_there(self) -> None:
        """That the directory has not gone, nor another run's taken its place."""
        if not os.path.samestat(os.stat(self.path), os.stat(self.folder)):
            raise FileNotFoundError(errno.ENOENT, "it was removed, and another directory has its name")

    def save_apart(self, state: State, config: Config) -> None:
        """A checkpoint while no training is under way; an agent that was only saved there makes room."""
        ours = self.saved_steps is not None
        if not ours and (Place(self.path) / METRICS).exists():
            raise UsageError(f"path {self.path} holds a run that was trained there: give another directory")
        with self.ours():
            try:
                save_config(self.path, config)
                keep = config.run.keep_checkpoints if ours else 1
                self.serial = save_checkpoint(self.path, state, config, keep=keep, log_bytes=self.log_bytes)
            except OSError as error:
                raise UsageError(f"path {self.path} cannot be written: {reason(error)}") from None
        self.saved_steps = state.steps

    @property
    def newest(self) -> str:
        """What there is, in words."""
        if self.saved_steps is None:
            return "nothing is saved yet"
        if not newest_serial(self.path):
            return "and what was saved is no longer there"
        return f"the newest checkpoint is that of {self.saved_steps:,} steps"

    def after_a_loss(self, config: Config) -> str:
        """What follows when another rank is lost, in words."""
        if self.saved_steps is None:
            return f"{restart_notice()}; nothing is saved yet"
        return f"{restart_notice()}; `{resume_command(self.path, config)}` goes on from {self.saved_steps:,} steps"

    def left(self, state: State) -> str:
        """What a training that broke off has left behind, in words."""
        kept = f"what was learned in {state.steps:,} steps is in {self.path}"
        return kept if self.trouble is None else self.complaint(state)

    def complaint(self, state: State) -> str:
        """That the end of a training could not be saved."""
        return (
            f"the end of training, {state.steps:,} steps, is not saved in {self.path} ({self.trouble}): {self.newest}"
        )


class NonZeroRankDirectory(RunDirectory):
    """The same as a rank sees it that is not the first: it hands over what is its own, and the first one writes."""

    @contextmanager
    def opened(self, config: Config) -> Iterator[None]:
        yield

    @property
    def seconds_since_saving(self) -> float:
        return 0.0  # the first rank's clock decides

    def log(self, row: dict[str, Any]) -> None:
        pass

    def save(self, state: State, config: Config, score: float | None = None) -> None:
        gather_to_rank0(rank_state(state))
        self.trouble = broadcast_from_rank0(lambda: b"").decode() or None
        if self.trouble is None:
            self.saved_steps = state.steps

    def save_apart(self, state: State, config: Config) -> None:
        pass


def directory(path: Path, checkpoint: Checkpoint | None = None, new: bool = False) -> RunDirectory:
    """A run's directory as this rank sees it."""
    return (RunDirectory if world().is_rank0 else NonZeroRankDirectory)(path, checkpoint, new)


def reason(error: OSError) -> str:
    return error.strerror or str(error)


def resume_command(path: Path, config: Config, *flags: str) -> str:
    """What to type to go on with a run; in Python where no command could name its environment or its network."""
    nameless = "<locals>" in config.env or config.env.startswith("__main__:")
    network = config.network.network
    if nameless or (network is not None and not can_be_named(network)):
        own = ", env=..." * (nameless or is_path(config.env)) + ", network=..." * (network is not None)
        return f'tr.load("{path}"{own}).learn()'
    words = ["tightrope", "resume", str(path)]
    words += ["--env", config.env] if is_path(config.env) else []
    words += ["--network", network] if network is not None else []
    return shlex.join([*words, *flags])


def already_a_run(path: Path) -> str:
    return f"run_dir {path} already holds a run: `tightrope resume {path}` goes on with it, or give another directory"


def begun_before(run_dir: Path | None) -> Path | None:
    """The run that this job has begun already, if torchrun has restarted it since: in that directory, if one is given."""
    begun = kept_for_restart(RUN_DIR)
    if begun is None or (run_dir is not None and run_dir.absolute() != Path(begun)):
        return None
    return Path(begun)


def new_run_dir(run_dir: Path | None, config: Config) -> Path:
    """Where a new run will live, for all ranks; refused if a run lives there already. Creates nothing."""
    return Path(os.fsdecode(broadcast_from_rank0(lambda: os.fsencode(place_for(run_dir, config)))))


def place_for(run_dir: Path | None, config: Config) -> Path:
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
        raise UsageError(
            f"run_dir {str(run_dir)[:60]} will not do ({error.strerror}): give another directory"
        ) from None
    if not nearest.is_dir():
        raise UsageError(f"run_dir {run_dir} will not do, {nearest} is a file: give a directory")
    if not os.access(nearest, os.W_OK):
        raise UsageError(f"run_dir {run_dir} cannot be made, {nearest} is read-only: give another directory")
    return run_dir
