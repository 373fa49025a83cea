"""Collect the data of a report page from the directories of runs, and write the page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import UsageError, printable, raised, warn
from ..files import Place, Unreadable
from ..logging import RunInfo, Target, finite, first_phase
from ..logging.metrics import Columns, as_float, read_rows
from ..logging.report import (
    ABOUT,
    LISTED,
    REPORT,
    CheckpointSummary,
    RunFiles,
    RunRecord,
    RunStatus,
    ScoreRecord,
    VideoFile,
    comparison_page,
    run_page,
    status_by_steps,
    status_if_target_reached,
    write_page,
)
from ..types import Settings
from .checkpoint_reader import MANIFEST, age, list_checkpoints, score_of
from .commands import command, usual_settings
from .config import Config
from .evaluate import Evaluation
from .lock import is_locked
from .own_code import short_name
from .plan import target_of
from .presets import Traits
from .run_directory import METRICS, load_config, reason
from .schedules import change_lines

Item = TypeVar("Item")
Made = TypeVar("Made")
SCORES, VIDEOS, PLAY = "scores.jsonl", "videos", "play.json"
MAX_SCORES_BYTES = 1 << 24  # bytes
MAX_PLAY_BYTES = 1 << 26
MAX_COUNT = 2**62  # steps or episodes


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run, or of several side by side, and return its path."""
    one, *others = {run.resolve(): run for run in runs}.values()  # each directory once
    path = out or (Path("comparison.html") if others else one / REPORT)
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"out {path} is not a page: give a name that ends in .html")
    beside, record = path.absolute().parent, None if others else gathered(one)
    try:
        beside.mkdir(parents=True, exist_ok=True)
        write_page(path, run_page(record, beside) if record else compared_on_one_page([one, *others], beside))
    except OSError as error:
        raise UsageError(f"out {path} cannot be written: {reason(error)}") from None
    except RuntimeError as error:  # no plotly
        raise UsageError(str(error)) from None
    return path


def without_errors(make: Callable[[Item], Made], items: dict[Path, Item]) -> dict[Path, Made]:
    """Apply a function to the item of each run. Runs that fail are left out with a warning: `runs/*` may match others."""
    made = {}
    for run, item in items.items():
        try:
            made[run] = make(item)
        except UsageError as error:
            warn(f"left out: {error}")
        except Exception as error:  # the other runs are still shown
            warn(f"left out: {run} cannot be read: {raised(error)}")
    if not made:
        raise UsageError(f"none of these {len(items)} directories is a trained run: give some, as in runs/*")
    return made


def compared_on_one_page(runs: Sequence[Path], beside: Path) -> str:
    """The page of several runs; those that cannot be read or shown are left out."""
    records = without_errors(gathered, {run: run for run in runs})
    try:
        return comparison_page([*records.values()], beside)
    except (RuntimeError, OSError):
        raise
    except Exception:
        good = without_errors(lambda record: comparison_page([record], beside), records)
        return comparison_page([records[run] for run in good], beside)


def gathered(run_dir: Path) -> RunRecord:
    """Read everything that a report shows from a run's directory."""
    config = load_config(run_dir)
    run = Place(run_dir)
    if not (run / METRICS).exists():
        raise UsageError(f"{run_dir} has no {METRICS} to report: give a run that was trained")
    try:
        columns = Columns(read_rows(run / METRICS))
    except (Unreadable, OSError) as error:
        raise UsageError(f"{run_dir} cannot be reported: {error}") from None
    told = remembered(run_dir)
    plan = [str(line) for line in told.get("plan", [])]
    plan += [line for line in change_lines(config.changes) if line not in plan]
    about = RunInfo(
        title=f"{short_name(config.env)} {config.algo}", settings=config.to_flat_dict(), run_dir=run_dir,
        plan=plan, steps=0, total_steps=config.algorithm.total_timesteps,
        facts={str(name): str(value) for name, value in told.get("facts", {}).items()},
        target=read_target(told["target"]) if "target" in told else target_of(config),
        unit=read_unit(told),
    )  # fmt: skip
    return RunRecord(about, columns, status(run_dir, config, columns), files_in(run_dir, config))


def remembered(run_dir: Path) -> Settings:
    """What the training process wrote about the run; empty if the file is missing or damaged."""
    try:
        content = json.loads((Place(run_dir) / ABOUT).read())
    except (Unreadable, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    kinds = {"plan": list, "facts": dict, "target": dict | None, "traits": dict, "unit": str}
    return {k: content[k] for k, kind in kinds.items() if k in content and isinstance(content[k], kind)}


def read_unit(told: Settings) -> str:
    """The task's own unit, from a file whose content is not trusted."""
    return printable(str(told.get("unit", "")))[:40]


def read_target(told: object) -> Target | None:
    """The target of a run, from its file, whose content is not trusted."""
    if not isinstance(told, dict):
        return None
    value = told.get("value")
    if isinstance(value, bool) or not math.isfinite(as_float(value)):
        return None
    return Target(as_float(value), printable(str(told.get("source", "")))[:200], told.get("published") is not False)


def status(run_dir: Path, config: Config, columns: Columns) -> RunStatus:
    if is_locked(run_dir):
        return RunStatus("running")
    phase = int(columns.last("phase") or 0)
    if (Place(run_dir) / "crash" / f"phase-{phase + 1:06d}").is_dir():
        return RunStatus("not finite", f"phase {phase + 1}; the evidence is in {run_dir / 'crash'}")
    if config.algorithm.stops_when_solved and columns.last("charts/solved"):
        return RunStatus("solved")
    settings = config.to_flat_dict()
    return status_if_target_reached(columns, settings) or status_by_steps(
        int(columns.last("step") or 0), settings, run_dir
    )


def files_in(run_dir: Path, config: Config) -> RunFiles:
    """The files of a run that its page shows besides the metrics."""
    usual = usual_settings(config, read_traits(remembered(run_dir).get("traits", {})))
    return RunFiles(
        usual, command(config, usual), scores(run_dir), clips(run_dir), kept(run_dir), recorded_game(run_dir)
    )


def read_traits(told: Settings) -> Traits:
    """The traits of the environment that the defaults depended on, from a file whose content is not trusted."""
    limit = told.get("limit")
    return Traits(limit if type(limit) is int and 0 < limit < MAX_COUNT else None, told.get("on_device") is True)


# files in the directory ------------------------------------------------------------------------------------------------


def add_score(run_dir: Path, step: int, evaluation: Evaluation) -> None:
    """Append a score taken after training to the file in the run's directory; `Unreadable` if there is no regular file."""
    summary = {k: v for k, v in evaluation.as_dict().items() if k not in ("returns", "lengths")}
    summary["representative"] = evaluation.representative
    line = json.dumps(finite({"step": step, **summary}), allow_nan=False).encode() + b"\n"
    place = Place(run_dir) / SCORES
    before = place.read(MAX_SCORES_BYTES) if place.exists() else b""
    place.write(before + b"\n" * (before[-1:] not in (b"", b"\n")) + line)


def scores(run_dir: Path) -> list[ScoreRecord]:
    """Read the scores taken after training. Rows without a step and a finite mean, and unreadable files, are ignored."""
    try:
        found = map(score_in, read_rows(Place(run_dir) / SCORES, MAX_SCORES_BYTES))
        return [score for score in found if score is not None]
    except Unreadable:
        return []


def score_in(row: Settings) -> ScoreRecord | None:
    def count(name: str) -> int | None:
        value = row.get(name)
        return value if type(value) is int and 0 <= value < MAX_COUNT else None

    def measured(name: str) -> float | None:
        value = as_float(row.get(name))
        return value if math.isfinite(value) else None

    step, mean = count("step"), measured("mean")
    if step is None or mean is None or row.get("representative") is False:
        return None
    length, std, low, high = (measured(name) for name in ("mean_length", "std", "min", "max"))
    return ScoreRecord(step, mean, length, std, low, high, count("episodes"), measured("measured"), read_unit(row))


def clips(run_dir: Path) -> list[VideoFile]:
    """The videos of a run, ordered by the phase in names such as phase0050.mp4; other names come first. Of very many, some
    over the whole run."""
    folder = Place(run_dir) / VIDEOS
    try:
        places = [folder / name for name in folder.names() if name.endswith(".mp4")]
    except OSError:
        return []
    named = [(re.fullmatch(r"phase(\d{1,12})\.mp4", place.name, re.ASCII), place) for place in places]
    found = sorted(((int(match[1]) if match else None, place) for match, place in named), key=lambda one: one[0] or 0)
    count = min(len(found), LISTED)
    found = [found[round(i * (len(found) - 1) / max(count - 1, 1))] for i in range(count)]
    return [VideoFile(place, phase, None if phase is None else first_phase(place)) for phase, place in found]


def recorded_game(run_dir: Path) -> object:
    """What `tightrope play` recorded of this run; None if there is nothing, or nothing that can be read."""
    place = Place(run_dir) / PLAY
    try:
        found = json.loads(place.read(MAX_PLAY_BYTES)) if place.exists() else None
    except (Unreadable, ValueError, RecursionError):
        return None
    return finite(found) if isinstance(found, dict) else None


def kept(run_dir: Path) -> list[CheckpointSummary]:
    places = [place for place in list_checkpoints(run_dir)[:LISTED] if (place / MANIFEST).is_file()]
    return [CheckpointSummary(place.name, age(place)[1], score_of(place)) for place in places]
