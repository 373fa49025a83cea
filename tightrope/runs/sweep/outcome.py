"""What a sweep leaves behind: the best settings as a file for `train --config`, and a page with Optuna's own plots."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from ...errors import UsageError
from ...files import write_file
from ...types import Settings
from ...view.report import write_page
from ...view.report.sweep import Drawn, SweepRecord, TrialRow, sweep_page
from ..config import Config, parts_of
from ..directory import reason
from .places import Places
from .records import OUTCOME, SCORES, WORKER
from .trial import Task

BEST, PAGE = "best.yaml", "sweep.html"
REFRESH = 30.0  # seconds between pages of a sweep under way
MOST_SLICES, MOST_AXES = 16, 8
COLORS = {"blue": "#3b82c4", "orange": "#e08a2e", "red": "#d64550", "green": "#3a9d5d", "gray": "#8a8f99"}
ENDS = (154, 163, 178), (224, 112, 31)  # grey and orange
SCALE = [[i, "rgb({}, {}, {})".format(*color)] for i, color in enumerate(ENDS)]


@dataclass
class Leaving:
    """Keeps the files of a sweep up to date."""

    folder: Path
    study: optuna.Study
    task: Task
    places: Places
    config: Config  # before anything was tried
    chosen: list[str]  # settings that the user fixed
    storage: str  # as it may be shown
    due: float = 0.0

    def now_and_then(self) -> None:
        """Trouble with them is no reason to stop a sweep; it will be said at the end."""
        if time.monotonic() >= self.due:
            with suppress(UsageError):
                self.write("running")
            self.due = time.monotonic() + REFRESH

    def write(self, status: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if (ours := self.places.best()) is not None:
                write_file(self.folder / BEST, self.preset(ours).encode("utf-8", "backslashreplace"))
            write_page(self.folder / PAGE, sweep_page(self.record(status)))
        except OSError as error:
            raise UsageError(f"sweep_dir {self.folder} cannot be written: {reason(error)}") from None
        except RuntimeError as error:  # no plotly
            raise UsageError(str(error)) from None

    @property
    def command(self) -> str:
        """What trains the best settings. Code that they name has to be allowed."""
        network = self.config.network.network or ""
        modules = {name.rpartition(":")[0] for name in (self.config.env, self.config.run.train_env or "", network)}
        allowed = ["--allow-import", *sorted(modules - {""})] if modules - {""} else []
        return shlex.join(["tightrope", "train", "--config", str(self.folder / BEST), *allowed])

    # the preset -------------------------------------------------------------------------------------------------------

    def preset(self, trial: FrozenTrial) -> str:
        """All settings of the algorithm and the network, so that no later version's preset shines through."""
        scores = ", ".join(f"{score:.6g}" for score in trial.user_attrs.get(SCORES, []))
        lines = [
            f"# Trial {trial.number} of {self.study.study_name}: score {trial.value:.6g}, the mean of seeds' ({scores}).",
            f"# {self.command} --seed 1",
        ]
        return "\n".join([*lines, yaml.safe_dump(self.settings(trial), sort_keys=False)])

    def settings(self, trial: FrozenTrial) -> Settings:
        config = self.config.changed(**self.task.tried_before(trial))
        algorithm, network, _ = parts_of(config.algo)
        names = [field.name for part in (algorithm, network) for field in fields(part)]
        names += [name for name in self.chosen if name not in names and name not in ("seed", "eval_episodes")]
        flat = config.flat()
        if flat["train_env"] is not None:
            names.append("train_env")
        return {"env": config.env, "algo": config.algo, **{name: flat[name] for name in dict.fromkeys(names)}}

    # the page ---------------------------------------------------------------------------------------------------------

    def record(self, status: str) -> SweepRecord:
        trials = self.places.trials()
        ours, usual = self.places.best(), self.config.flat()
        tried: Settings = {} if ours is None else plain_lists(self.task.tried_before(ours))
        return SweepRecord(
            env=self.config.env,
            algo=self.config.algo,
            name=self.study.study_name,
            status=status,
            done=self.places.done(),
            wanted=self.places.count,
            seeds=list(self.task.seeds),
            steps=int(usual["total_timesteps"]),
            storage=self.storage,
            command=self.command,
            best=None if ours is None else row(ours, self.task),
            settings=[(name, value, usual[name]) for name, value in tried.items()],
            trials=[row(trial, self.task) for trial in trials if trial.state != TrialState.WAITING],
            figures=[] if ours is None else list(figures(self.study, list(self.task.space))),
            searched=[(name, json.dumps(where.data())) for name, where in self.task.space.items()],
        )


def plain_lists(settings: Settings) -> Settings:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def row(trial: FrozenTrial, task: Task) -> TrialRow:
    """A trial as a page shows it."""
    how = trial.user_attrs.get(OUTCOME) or {
        TrialState.COMPLETE: "complete",
        TrialState.PRUNED: f"given up at {trial.last_step} of {task.evaluations}",
        TrialState.RUNNING: "running",
    }.get(trial.state, "failed")
    began, ended = trial.datetime_start, trial.datetime_complete
    seconds = None
    with suppress(TypeError):  # one of them has a time zone, of which Optuna writes none
        seconds = (ended - began).total_seconds() if began and ended else None
    worker = trial.user_attrs.get(WORKER) or {}
    return TrialRow(
        number=trial.number,
        score=trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        complete=trial.state == TrialState.COMPLETE,
        failed=trial.state == TrialState.FAIL,
        how=str(how),
        scores=[float(score) for score in trial.user_attrs.get(SCORES, [])],
        settings=plain_lists(task.tried_before(trial)),
        seconds=seconds,
        worker=f"{worker.get('host', '?')} {worker.get('pid', '')}" if worker else "",
    )


def figures(study: optuna.Study, names: list[str]) -> Iterator[Drawn]:
    """Optuna's own plots. One that has too little to show is left out."""
    from optuna import visualization as v

    importance = important(study)
    ranked = [*importance, *(name for name in names if name not in importance)]
    plots: list[tuple[Drawn, Callable[[], Any]]] = [
        (Drawn("history", "Scores", "Each trial, and the best so far.", wide=True), lambda: v.plot_optimization_history(study)),
        (Drawn("looks", "On the way", "Evaluations in training; lines that end early were given up."),
         lambda: v.plot_intermediate_values(study)),
    ]  # fmt: skip
    if len(importance) > 1:
        says = "Share in the difference between the best trials and the others (PED-ANOVA). Rough, with few trials."
        plots += [
            (Drawn("importance", "What matters", says), lambda: v.plot_param_importances(study)),
            (
                Drawn("pair", "The two that matter most", "Score over both."),
                lambda: v.plot_contour(study, params=ranked[:2]),
            ),
        ]
    if len(names) > 1:
        says = "A line is a trial: the better, the more orange."
        plots.append((Drawn("parallel", "Settings that go together", says, wide=True),
                      lambda: v.plot_parallel_coordinate(study, params=ranked[:MOST_AXES])))  # fmt: skip
    plots.append((Drawn("timeline", "When", "Each trial, whoever did it.", wide=True), lambda: v.plot_timeline(study)))
    for name in ranked[:MOST_SLICES]:
        plots.append((Drawn(f"slice-{name}", name, "", group="slices"), partial(v.plot_slice, study, params=[name])))
    for about, draw in plots:
        if (content := drawn(draw)) is not None:
            yield replace(about, figure=content)


def important(study: optuna.Study) -> dict[str, float]:
    """Settings by what they matter; none where that cannot be told yet."""
    with suppress(Exception):
        ended = {t.value for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE}
        if len(ended) > 1:
            return optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
    return {}


def drawn(draw: Callable[[], Any]) -> dict[str, Any] | None:
    """A figure as plain data, without what the page says and colours itself."""
    try:
        content = json.loads(draw().to_json())
    except Exception:  # whatever a plot makes of trials that others have written
        return None
    for trace in content["data"]:
        recolor(trace)
    layout = {key: value for key, value in content["layout"].items() if key not in ("template", "title")}
    layout["margin"] = {
        "r": 44 if any(trace["type"] == "bar" for trace in content["data"]) else 10
    }  # bars have numbers behind them
    return {"data": content["data"], "layout": layout}


def recolor(trace: dict[str, Any]) -> None:
    """Colours that can be seen on light and on dark, and no scale that takes the place of the plot."""
    shade = str(trace.get("line", {}).get("color", ""))
    if shade.startswith("rgb("):  # from almost white, the worst trial, to dark blue
        share = 1 - float(shade[4:].split(",")[0]) / 255
        trace["line"]["color"] = "rgb({}, {}, {})".format(
            *(round(a + share * (b - a)) for a, b in zip(*ENDS, strict=True))
        )
    if isinstance(marker := trace.get("marker"), dict):
        if isinstance(color := marker.get("color"), str):
            marker["color"] = COLORS.get(color, color)
        elif color is not None and trace["type"] == "scatter":
            marker |= {"colorscale": SCALE, "reversescale": False, "showscale": False, "line": {"width": 0}}
