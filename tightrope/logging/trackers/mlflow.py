"""MLflow, through its own client: the server, database or folder that MLFLOW_TRACKING_URI names, or MLflow's own default.

Numbers go out in batches, a few seconds apart. A point cannot be taken back, so after a resume phases that are there already
are not sent again.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path, PurePosixPath
from typing import Any

from . import identity
from .tags import Scalars
from .tracker import Ending, Tracker, TrackerOptions, model_files
from .watch import Histogram

PACE = 2.0  # seconds between batches
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # that it takes at a time
LONGEST = 500  # characters of a parameter that every store takes
EXPERIMENT = "tightrope"
FOLDERS_OFF = "this version keeps runs in a folder only with MLFLOW_ALLOW_FILE_STORE=true; sqlite:///mlflow.db works"
CHATTY = ("mlflow.store", "alembic")  # what says how a database is made, in the middle of our progress
STATUS: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    name, package = "MLflow", "mlflow"

    def __init__(self, options: TrackerOptions) -> None:
        super().__init__(options)
        self.unsent: list[Any] = []
        self.sent_at = 0.0
        self.sent_phase = 0.0  # the newest that the tracker has

    def open(self) -> None:
        import mlflow

        os.environ.setdefault(
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true"
        )  # we say it, where someone wants to hear it
        hush()
        uri = mlflow.get_tracking_uri()
        check_reachable(uri)
        try:
            self.client = mlflow.MlflowClient()
            run = self._found() or self._created()
        except mlflow.MlflowException as error:
            raise RuntimeError(FOLDERS_OFF if "MLFLOW_ALLOW_FILE_STORE" in str(error) else str(error)) from None
        self.id = run.info.run_id
        identity.remember(self.about.run_dir, self.package, self.id)
        self._log_parameters(run.data.params)
        tag = next(iter(self.named({"step": 0, "phase": 0})))
        self.sent_phase = run.data.metrics.get(tag, 0.0)
        page = f"/#/experiments/{run.info.experiment_id}/runs/{self.id}"
        is_server = uri.startswith("http")
        self.options.say(f"mlflow: {without_password(uri)}{page}" if is_server else f"mlflow: run {self.id} in {uri}")

    def _found(self) -> Any:
        """The tracker's run that this one goes on with."""
        from mlflow.exceptions import MlflowException

        run_id = identity.known(self.about.run_dir).get(self.package)
        if run_id is None:
            return None
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self.options.say(f"mlflow: run {run_id} is not there, a new one begins")
            return None
        if run.info.lifecycle_stage == "deleted":
            self.options.say(f"mlflow: run {run_id} was deleted, a new one begins")
            return None
        self.client.update_run(run_id, status="RUNNING")
        return run

    def _created(self) -> Any:
        project = self.options.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self.client.get_experiment_by_name(project)
        number = self.client.create_experiment(project) if experiment is None else experiment.experiment_id
        notes = {"mlflow.note.content": "\n\n".join(self.about.plan), "mlflow.source.name": "tightrope"}
        return self.client.create_run(number, run_name=self.run_name, tags=notes)

    def _log_parameters(self, there: dict[str, str]) -> None:
        """A parameter is fixed once it is there: what a resume changed is a tag."""
        from mlflow.entities import Param, RunTag

        wanted = {name: str(value)[:LONGEST] for name, value in self.parameters.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in there]
        changed = {name: value for name, value in wanted.items() if there.get(name, value) != value}
        tags = [RunTag(f"changed/{k}", f"{v} from step {self.about.steps}") for k, v in changed.items()]
        for i in range(0, max(len(new), 1), MOST_PARAMETERS):
            self.client.log_batch(
                self.id, params=new[i : i + MOST_PARAMETERS], tags=tags[: 0 if i else MOST_PARAMETERS]
            )

    def scalars(self, row: dict[str, Any], seconds: float) -> None:
        self._add(self.named(row), row["step"], row["phase"], seconds)

    def score(self, numbers: Scalars, step: int, seconds: float) -> None:
        self._add(numbers, step, self.sent_phase + 1, seconds)  # new, whatever has been sent

    def histograms(self, found: dict[str, Histogram], step: int, phase: int) -> None:
        """It has none: the length of each vector instead."""
        norms = {f"{name}/norm": float((h.values**2).sum() ** 0.5) for name, h in found.items()}
        self._add(norms, step, phase, time.time())

    def _add(self, numbers: Scalars, step: int, phase: float, seconds: float) -> None:
        from mlflow.entities import Metric

        if phase <= self.sent_phase:
            return
        self.unsent += [Metric(tag, x, int(seconds * 1000), step) for tag, x in numbers.items()]
        if time.monotonic() - self.sent_at >= PACE or len(self.unsent) >= MOST_METRICS:
            self._send()

    def _send(self) -> None:
        while self.unsent:
            self.client.log_batch(self.id, metrics=self.unsent[:MOST_METRICS])
            self.unsent = self.unsent[MOST_METRICS:]
        self.sent_at = time.monotonic()

    def film(self, path: Path, step: int) -> None:
        self.client.log_artifact(self.id, str(path), "videos")

    def close(self, ending: Ending, model: Path | None) -> None:
        self._send()
        if model is not None:
            for name, file in model_files(model).items():
                self.client.log_artifact(self.id, str(file), str(PurePosixPath("model", name).parent))
        self.client.set_terminated(self.id, STATUS[ending])


def hush() -> None:
    """Warnings alone, of loggers to which nobody has given a level."""
    if "MLFLOW_LOGGING_LEVEL" in os.environ:
        return
    for logger in map(logging.getLogger, CHATTY):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def check_reachable(uri: str) -> None:
    """ConnectionError for a server that is not there, at once: the client would try for minutes."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    where = urlsplit(uri)
    if where.scheme not in ("http", "https") or where.hostname is None or getproxies():
        return
    port = where.port or (443 if where.scheme == "https" else 80)
    try:
        socket.create_connection((where.hostname, port), timeout=5).close()
    except OSError as error:
        raise ConnectionError(f"{without_password(uri)} cannot be reached: {error.strerror or error}") from None


def without_password(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
