"""MLflow, through its own client: the server, database or folder that MLFLOW_TRACKING_URI names, or MLflow's own default.

Metrics are sent in batches, a few seconds apart. A point cannot be taken back, so phases that MLflow has already are not sent
again after a resume.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .tracker import Ending, Scalars, Tracker, TrackerOptions, model_files, save_id, saved_ids

BATCH_SECONDS = 2.0  # between two batches
MAX_METRICS, MAX_PARAMETERS = 1000, 100  # per request
MAX_PARAMETER_LENGTH = 500  # characters of a parameter, in every kind of store
EXPERIMENT = "tightrope"
FOLDERS_OFF = "this version keeps runs in a folder only with MLFLOW_ALLOW_FILE_STORE=true; sqlite:///mlflow.db works"
CHATTY_LOGGERS = ("mlflow.store", "alembic")  # they report the creation of a database into our progress line
STATUS: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    name, package = "MLflow", "mlflow"

    def __init__(self, options: TrackerOptions) -> None:
        super().__init__(options)
        self.unsent: list[Any] = []
        self.sent_at = 0.0
        self.sent_phase = 0.0  # the newest phase that MLflow has

    def open(self) -> None:
        import mlflow

        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # we print it, unless quiet
        quiet_loggers()
        uri = mlflow.get_tracking_uri()
        check_reachable(uri)
        try:
            self.client = mlflow.MlflowClient()
            run = self._found() or self._created()
        except mlflow.MlflowException as error:
            raise RuntimeError(FOLDERS_OFF if "MLFLOW_ALLOW_FILE_STORE" in str(error) else str(error)) from None
        self.id = run.info.run_id
        save_id(self.info.run_dir, self.package, self.id)
        self._log_parameters(run.data.params)
        tag = next(iter(self.named({"step": 0, "phase": 0})))
        self.sent_phase = run.data.metrics.get(tag, 0.0)
        page = f"/#/experiments/{run.info.experiment_id}/runs/{self.id}"
        is_server = uri.startswith("http")
        self.options.say(f"mlflow: {without_password(uri)}{page}" if is_server else f"mlflow: run {self.id} in {uri}")

    def _found(self) -> Any:
        """MLflow's run to continue, if there is one."""
        from mlflow.exceptions import MlflowException

        run_id = saved_ids(self.info.run_dir).get(self.package)
        if run_id is None:
            return None
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            self.options.say(f"mlflow: run {run_id} does not exist, starting a new one")
            return None
        if run.info.lifecycle_stage == "deleted":
            self.options.say(f"mlflow: run {run_id} was deleted, starting a new one")
            return None
        self.client.update_run(run_id, status="RUNNING")
        return run

    def _created(self) -> Any:
        project = self.options.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self.client.get_experiment_by_name(project)
        number = self.client.create_experiment(project) if experiment is None else experiment.experiment_id
        notes = {"mlflow.note.content": "\n\n".join(self.info.plan), "mlflow.source.name": "tightrope"}
        return self.client.create_run(number, run_name=self.run_name, tags=notes)

    def _log_parameters(self, there: dict[str, str]) -> None:
        """MLflow never changes a parameter: a setting that a resume changed becomes a tag."""
        from mlflow.entities import Param, RunTag

        wanted = {name: str(value)[:MAX_PARAMETER_LENGTH] for name, value in self.parameters.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in there]
        changed = {name: value for name, value in wanted.items() if there.get(name, value) != value}
        tags = [RunTag(f"changed/{k}", f"{v} from step {self.info.steps}") for k, v in changed.items()]
        for i in range(0, max(len(new), 1), MAX_PARAMETERS):
            self.client.log_batch(self.id, params=new[i : i + MAX_PARAMETERS], tags=tags[: 0 if i else MAX_PARAMETERS])

    def histograms(self, values: dict[str, np.ndarray], step: int, phase: int) -> None:
        """MLflow has none: the norm of each tensor instead."""
        norms = {f"{name}/norm": float(np.linalg.norm(x)) for name, x in values.items()}
        self.scalars(norms, step, phase, time.time())

    def scalars(self, numbers: Scalars, step: int, phase: float, seconds: float) -> None:
        from mlflow.entities import Metric

        if phase <= self.sent_phase:
            return
        self.unsent += [Metric(tag, x, int(seconds * 1000), step) for tag, x in numbers.items()]
        if time.monotonic() - self.sent_at >= BATCH_SECONDS or len(self.unsent) >= MAX_METRICS:
            self._send()

    def _send(self) -> None:
        while self.unsent:
            self.client.log_batch(self.id, metrics=self.unsent[:MAX_METRICS])
            self.unsent = self.unsent[MAX_METRICS:]
        self.sent_at = time.monotonic()

    def video(self, path: Path, step: int) -> None:
        self.client.log_artifact(self.id, str(path), "videos")

    def close(self, ending: Ending, model: Path | None) -> None:
        self._send()
        if model is not None:
            for name, file in model_files(model).items():
                self.client.log_artifact(self.id, str(file), str(PurePosixPath("model", name).parent))
        self.client.set_terminated(self.id, STATUS[ending])


def quiet_loggers() -> None:
    """Set chatty loggers to warnings only, unless the user has given them a level."""
    if "MLFLOW_LOGGING_LEVEL" in os.environ:
        return
    for logger in map(logging.getLogger, CHATTY_LOGGERS):
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def check_reachable(uri: str) -> None:
    """ConnectionError at once if there is no server: the client would retry for minutes."""
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
