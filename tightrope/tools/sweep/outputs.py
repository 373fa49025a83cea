"""Write the files of a sweep: the best settings for `train --config`, and a page with Optuna's plots."""

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

from ...errors import UsageError, printable
from ...files import write_file
from ...logging.report import write_page
from ...logging.report.sweep import SweepFigure, SweepRecord, TrialRow, sweep_page
from ...training.config import Config, config_classes
from ...training.run_directory import reason
from ...types import Settings
from .slots import OWN, SCORES, WORKER, TrialSlots, outcome_of
from .worker import Objective

BEST, PAGE = "best.yaml", "sweep.html"
REFRESH_SECONDS = 30.0  # between pages while the sweep runs
MAX_SLICE_PLOTS, MAX_PARALLEL_AXES = 16, 8
PLOT_COLORS = {"blue": "#3b82c4", "orange": "#e08a2e", "red": "#d64550", "green": "#3a9d5d", "gray": "#8a8f99"}
ENDS = (154, 163, 178), (224, 112, 31)  # grey and orange
SCALE = [[i, "rgb({}, {}, {})".format(*color)] for i, color in enumerate(ENDS)]


@dataclass
class SweepOutputs:
    """Keeps the files of a sweep up to date."""

    folder: Path
    objective: Objective
    slots: TrialSlots
    config: Config  # the settings before the search
    fixed: list[str]  # settings that the user chose
    storage: str  # without a password
    due: float = 0.0

    def refresh(self) -> None:
        """Write the files if they are old. An error is ignored here; the last write reports it."""
        if time.monotonic() >= self.due:
            with suppress(UsageError):
                self.write("running")
            self.due = time.monotonic() + REFRESH_SECONDS

    def write(self, status: str) -> None:
        best = self.slots.best()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if best is not None:
                write_file(self.folder / BEST, self.preset(best).encode("utf-8", "backslashreplace"))
            write_page(self.folder / PAGE, sweep_page(self.page_data(best, status)))
        except OSError as error:
            raise UsageError(f"sweep_dir {self.folder} cannot be written: {reason(error)}") from None
        except RuntimeError as error:  # no plotly
            raise UsageError(str(error)) from None

    @property
    def train_best_command(self) -> str:
        """The command that trains with the best settings, with permission to import the code that they name."""
        names = (self.config.env, self.config.run.train_env or "", self.config.network.network or "")
        modules = sorted({name.rpartition(":")[0] for name in names} - {""})
        allowed = ["--allow-import", *modules] if modules else []
        return shlex.join(["tightrope", "train", "--config", str(self.folder / BEST), *allowed])

    def preset(self, trial: FrozenTrial) -> str:
        """All settings of the algorithm and the network as YAML, independent of the presets of later versions."""
        config = self.config.changed(**self.objective.settings(trial.params))
        algorithm, network, _ = config_classes(config.algo)
        names = [field.name for part in (algorithm, network) for field in fields(part)]
        names += [name for name in self.fixed if name not in ("seed", "eval_episodes")]
        flat = config.to_flat_dict()
        names += ["train_env"] if flat["train_env"] is not None else []
        settings = {"env": config.env, "algo": config.algo, **{name: flat[name] for name in names}}
        scores = ", ".join(f"{score:.6g}" for score in trial.user_attrs.get(SCORES, []))
        title = f"# Trial {trial.number} of {self.slots.study.study_name}: score {trial.value:.6g}, the mean over seeds"
        own = f" {printable(str(trial.user_attrs[OWN]))[:40]}." if OWN in trial.user_attrs else ""
        return f"{title} ({scores}).{own}\n# {self.train_best_command} --seed 1\n{yaml.safe_dump(settings, sort_keys=False)}"

    def page_data(self, best: FrozenTrial | None, status: str) -> SweepRecord:
        """The data of the sweep's page."""
        objective, defaults = self.objective, self.config.to_flat_dict()
        row = None if best is None else trial_row(best, objective)
        return SweepRecord(
            env=self.config.env, algo=self.config.algo, name=self.slots.study.study_name, status=status,
            done=self.slots.done(), wanted=self.slots.count, seeds=list(objective.seeds),
            steps=int(defaults["total_timesteps"]), storage=self.storage, command=self.train_best_command, best=row,
            settings=[] if row is None else [(name, value, defaults[name]) for name, value in row.settings.items()],
            trials=[trial_row(trial, objective) for trial in self.slots.trials()],
            figures=[] if best is None else list(study_figures(self.slots.study, list(objective.space))),
            searched=[(name, json.dumps(dimension.as_yaml())) for name, dimension in objective.space.items()],
        )  # fmt: skip


def trial_row(trial: FrozenTrial, objective: Objective) -> TrialRow:
    """The data of a trial on the page."""
    start, end, seconds = trial.datetime_start, trial.datetime_complete, None
    with suppress(TypeError):  # not written by Optuna: only one has a time zone
        seconds = (end - start).total_seconds() if start and end else None
    worker = trial.user_attrs.get(WORKER) or {}
    settings: Settings = objective.settings(trial.params)
    return TrialRow(
        number=trial.number,
        score=trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        complete=trial.state == TrialState.COMPLETE,
        failed=trial.state == TrialState.FAIL,
        how=outcome_of(trial),
        scores=[float(score) for score in trial.user_attrs.get(SCORES, [])],
        own=printable(str(trial.user_attrs.get(OWN, "")))[:40],
        settings={name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        seconds=seconds,
        worker=f"{worker.get('host', '?')} {worker.get('pid', '')}" if worker else "",
    )


# figures ----------------------------------------------------------------------------------------------------------------


def study_figures(study: optuna.Study, names: list[str]) -> Iterator[SweepFigure]:
    """Optuna's plots, without those that need more trials."""
    from optuna import visualization as v

    ranked = importance(study)
    order = [*ranked, *(name for name in names if name not in ranked)]
    plots: list[tuple[SweepFigure, Callable[..., Any]]] = [
        (SweepFigure("history", "Scores", "Each trial, and the best so far.", wide=True), v.plot_optimization_history),
        (SweepFigure("looks", "Evaluations", "During training; lines that end early were pruned."), v.plot_intermediate_values),
    ]  # fmt: skip
    if len(ranked) > 1:
        text = "Share in the difference between the best trials and the others (PED-ANOVA). Rough, with few trials."
        pair = partial(v.plot_contour, params=order[:2])
        plots.append((SweepFigure("importance", "What matters", text), v.plot_param_importances))
        plots.append((SweepFigure("pair", "The two that matter most", "Score over both."), pair))
    if len(names) > 1:
        text = "A line is a trial: the better, the more orange."
        parallel = partial(v.plot_parallel_coordinate, params=order[:MAX_PARALLEL_AXES])
        plots.append((SweepFigure("parallel", "Settings that go together", text, wide=True), parallel))
    plots.append((SweepFigure("timeline", "When", "Each trial, of every process.", wide=True), v.plot_timeline))
    plots += [
        (SweepFigure(f"slice-{name}", name, "", group="slices"), partial(v.plot_slice, params=[name]))
        for name in order[:MAX_SLICE_PLOTS]
    ]
    for about, plot in plots:
        if (figure := as_data(plot, study)) is not None:
            yield replace(about, figure=figure)


def importance(study: optuna.Study) -> dict[str, float]:
    """The importance of each setting; empty with too few trials."""
    with suppress(Exception):
        scores = {t.value for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(study, evaluator=evaluator) if len(scores) > 1 else {}
    return {}


def as_data(plot: Callable[..., Any], study: optuna.Study) -> Settings | None:
    """A figure as plain data in the style of the page; None if Optuna cannot plot these trials."""
    try:
        content = json.loads(plot(study).to_json())
    except Exception:
        return None
    for trace in content["data"]:
        recolor(trace)
    layout = {key: value for key, value in content["layout"].items() if key not in ("template", "title")}
    bars = any(trace["type"] == "bar" for trace in content["data"])  # they have numbers to their right
    return {"data": content["data"], "layout": layout | {"margin": {"r": 44 if bars else 10}}}


def recolor(trace: Settings) -> None:
    """Set colours that are visible on light and dark pages, and remove the colour bar."""
    shade = str(trace.get("line", {}).get("color", ""))
    if shade.startswith("rgb("):  # from almost white, the worst trial, to dark blue
        share = 1 - float(shade[4:].split(",")[0]) / 255
        mixed = [round(low + share * (high - low)) for low, high in zip(*ENDS, strict=True)]
        trace["line"]["color"] = "rgb({}, {}, {})".format(*mixed)
    if isinstance(marker := trace.get("marker"), dict):
        if isinstance(color := marker.get("color"), str):
            marker["color"] = PLOT_COLORS.get(color, color)
        elif color is not None and trace["type"] == "scatter":
            marker |= {"colorscale": SCALE, "reversescale": False, "showscale": False, "line": {"width": 0}}
