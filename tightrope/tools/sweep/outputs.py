"""Write the files of a sweep: the best settings for `train --config`, and a page with Optuna's plots and every trial."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from ...errors import UsageError, printable
from ...files import write_file
from ...logging.report import html, write_page
from ...logging.report.html import NO_NUMBER, format_number, section, short_value, table, text
from ...training.config import Config, config_classes, plain
from ...training.run_directory import reason
from ...types import Settings
from .slots import OWN, SCORES, WORKER, TrialSlots, outcome_of
from .worker import Objective

BEST, PAGE = "best.yaml", "sweep.html"
REFRESH_SECONDS = 30.0  # between pages while the sweep runs
MAX_TRIALS = 500  # in the table
MAX_SLICE_PLOTS, MAX_PARALLEL_AXES = 16, 8
NOTHING_YET = "<p>No trial has come to its end yet.</p>"
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
            write_page(self.folder / PAGE, sweep_page(self, best, status))
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
        scores = ", ".join(f"{score:.6g}" for score in seed_scores(trial))
        title = f"# Trial {trial.number} of {self.slots.study.study_name}: score {trial.value:.6g}, the mean over seeds"
        own = f" {own}." if (own := own_score(trial)) else ""
        return f"{title} ({scores}).{own}\n# {self.train_best_command} --seed 1\n{yaml.safe_dump(settings, sort_keys=False)}"


# trials -----------------------------------------------------------------------------------------------------------------


def score_of_trial(trial: FrozenTrial) -> float | None:
    return trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None


def seed_scores(trial: FrozenTrial) -> list[float]:
    return [float(score) for score in trial.user_attrs.get(SCORES, [])]


def own_score(trial: FrozenTrial) -> str:
    """The score in the task's own unit, if it has one."""
    return printable(str(trial.user_attrs.get(OWN, "")))[:40]


def seconds_of(trial: FrozenTrial) -> float | None:
    """How long a trial took; None if it has not ended."""
    start, end = trial.datetime_start, trial.datetime_complete
    with suppress(TypeError):  # not written by Optuna: only one has a time zone
        return (end - start).total_seconds() if start and end else None
    return None


def worker_name(trial: FrozenTrial) -> str:
    worker = trial.user_attrs.get(WORKER) or {}
    return f"{worker.get('host', '?')} {worker.get('pid', '')}" if worker else ""


def order_of_worth(trial: FrozenTrial) -> tuple[bool, bool, bool, float]:
    """The best trial first, trials that were done again last."""
    score = score_of_trial(trial)
    return trial.state == TrialState.FAIL, trial.state != TrialState.COMPLETE, score is None, -(score or 0.0)


# the page ---------------------------------------------------------------------------------------------------------------


def sweep_page(outputs: SweepOutputs, best: FrozenTrial | None, status: str) -> str:
    """The whole page in one file. It contains no password."""
    study, config, drawn = outputs.slots.study, outputs.config, list[Settings]()
    plots = [] if best is None else [*study_plots(study, list(outputs.objective.space))]
    overview = cards([plot for plot in plots if not plot.is_slice], study, drawn)
    slices = cards([plot for plot in plots if plot.is_slice], study, drawn)
    note = "Drawn by Optuna. Drag to zoom, double-click to see everything." if overview else ""
    each = "Score over each setting, the most important first."
    trials = outputs.slots.trials()
    sub = f'{text(study.study_name)} · written {html.now()} <span id="age"></span>'
    pill, tiles = (status, html.status_words(status)), "\n" + sweep_tiles(outputs, trials, best)
    parts = [
        html.page_header(config.env, f"{config.algo.upper()} sweep", sub, pill, tiles),
        "<main>",
        best_settings(outputs, best),
        section("study", "The study", html.figures(overview) if overview else NOTHING_YET, note),
        section("slices", "One setting at a time", html.figures(slices), each) if slices else "",
        trial_table(outputs.objective, trials, best),
        searched(outputs),
        "</main>",
        html.footer("A trial's score is the mean of its seeds' last greedy evaluations."),
    ]
    return html.document(f"{config.env} {config.algo} sweep", parts, drawn, status == "running")


def sweep_tiles(outputs: SweepOutputs, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> str:
    states, seconds = [trial.state for trial in trials], [seconds_of(trial) or 0.0 for trial in trials]
    early = sum(trial.state == TrialState.PRUNED and seconds_of(trial) is not None for trial in trials)
    workers = len({worker_name(trial) for trial in trials} - {""})
    seeds, steps = outputs.objective.seeds, int(outputs.objective.defaults["total_timesteps"])
    own = "" if best is None else own_score(best)
    which = "" if best is None else f"{text(own)}; " * bool(own) + f"trial {best.number}"
    return html.tiles([
        ("Best score", format_number(None if best is None else best.value), which),
        ("Trials", f"{outputs.slots.done():,}", f"of {outputs.slots.count:,}"),
        ("Given up early", f"{early:,}", "below the median, or diverged"),
        ("Done again", f"{states.count(TrialState.FAIL):,}", "stopped, or their process died"),
        ("Seeds per trial", f"{len(seeds)}", f"{steps:,} steps each"),
        ("Time", html.format_duration(sum(seconds)), f"of {workers} process{'es' if workers != 1 else ''}"),
    ])  # fmt: skip


def best_settings(outputs: SweepOutputs, best: FrozenTrial | None) -> str:
    if best is None:
        return section("best", "The best settings", NOTHING_YET)
    usual = outputs.config.to_flat_dict()
    found = {name: plain(value) for name, value in outputs.objective.settings(best.params).items()}
    rows = [[text(name), text(short_value(value)), text(short_value(usual[name]))] for name, value in found.items()]
    marked = [value != usual[name] for name, value in found.items()]
    content = html.settings_table("The best settings", ["setting", "best", "usual"], rows, marked)
    note = (
        f"Trial {best.number}; its seeds scored {', '.join(map(format_number, seed_scores(best)))}. The best of many is partly "
        "luck: train it with seeds that took no part before you believe the number."
    )
    return section("best", "The best settings", html.command_box(outputs.train_best_command) + content, note)


def trial_table(objective: Objective, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> str:
    ordered = sorted(trials, key=order_of_worth)
    head = ["trial", "score", "seeds", "how it ended", "time", *map(text, objective.space), "process"]
    rows = [trial_cells(objective, trial) for trial in ordered[:MAX_TRIALS]]
    content = table("Trials", head, rows, [best is not None and trial.number == best.number for trial in ordered])
    return section("trials", "Trials", content + html.more_note(len(ordered) - MAX_TRIALS, "the storage"))


def trial_cells(objective: Objective, trial: FrozenTrial) -> list[str]:
    score, own, how, seconds = score_of_trial(trial), own_score(trial), outcome_of(trial), seconds_of(trial)
    settings = objective.settings(trial.params)
    return [
        str(trial.number),
        format_number(score) + (f" ({text(own)})" if own and score is not None else ""),
        ", ".join(map(format_number, seed_scores(trial))) or NO_NUMBER,
        f'<span title="{text(how)}">{text(how if len(how) < 40 else how[:38] + "...")}</span>',
        NO_NUMBER if seconds is None else html.format_duration(seconds),
        *(text(short_value(settings[name])) if name in settings else NO_NUMBER for name in objective.space),
        text(worker_name(trial)),
    ]


def searched(outputs: SweepOutputs) -> str:
    rows = [[text(name), text(json.dumps(where.as_yaml()))] for name, where in outputs.objective.space.items()]
    seeds = " ".join(map(str, outputs.objective.seeds))
    facts = {"study": outputs.slots.study.study_name, "storage": outputs.storage, "seeds": seeds}
    space = html.settings_table("What was searched", ["setting", "where"], rows)
    return section("searched", "What was searched", f'{space}<div class="card main">{html.facts_list(facts)}</div>')


# figures ----------------------------------------------------------------------------------------------------------------


class StudyPlot(NamedTuple):
    """A plot that Optuna makes of a study."""

    name: str
    title: str
    says: str
    plot: Callable[..., Any]
    style: str = "tall"
    is_slice: bool = False


def cards(plots: Sequence[StudyPlot], study: optuna.Study, drawn: list[Settings]) -> list[str]:
    """The cards of plots, whose data are added to `drawn`; without those that need more trials."""
    found = []
    for name, title, says, plot, style, _ in plots:
        if (figure := as_data(plot, study)) is not None:
            found.append(html.figure(len(drawn), name, title, says, f"{title}: {says}", name, style))
            drawn.append({"figure": figure})
    return found


def study_plots(study: optuna.Study, names: list[str]) -> Iterator[StudyPlot]:
    from optuna import visualization as v

    ranked = importance(study)
    order = [*ranked, *(name for name in names if name not in ranked)]
    yield StudyPlot("history", "Scores", "Each trial, and the best so far.", v.plot_optimization_history, "wide")
    ends = "During training; lines that end early were pruned."
    yield StudyPlot("looks", "Evaluations", ends, v.plot_intermediate_values)
    if len(ranked) > 1:
        says = "Share in the difference between the best trials and the others (PED-ANOVA). Rough, with few trials."
        yield StudyPlot("importance", "What matters", says, v.plot_param_importances)
        pair = partial(v.plot_contour, params=order[:2])
        yield StudyPlot("pair", "The two that matter most", "Score over both.", pair)
    if len(names) > 1:
        parallel = partial(v.plot_parallel_coordinate, params=order[:MAX_PARALLEL_AXES])
        says = "A line is a trial: the better, the more orange."
        yield StudyPlot("parallel", "Settings that go together", says, parallel, "wide")
    yield StudyPlot("timeline", "When", "Each trial, of every process.", v.plot_timeline, "wide")
    for name in order[:MAX_SLICE_PLOTS]:
        yield StudyPlot(f"slice-{name}", name, "", partial(v.plot_slice, params=[name]), "", is_slice=True)


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
