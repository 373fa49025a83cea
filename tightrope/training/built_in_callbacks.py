"""The callbacks that the settings of a run imply: videos, the progress line, trackers and the report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..engine import State
from ..logging import Callback, ConsoleLogger, ReportWriter
from ..logging.trackers import TRACKERS, TrackerOptions
from ..types import Env
from .config import Config
from .films import video_callback
from .reports import files_in
from .run_directory import RunDirectory


def built_in_callbacks(
    state: State, score_env: Env, config: Config, run: RunDirectory | None, quiet: bool, say: Callable[[str], None],
    call: Callable[..., None], report: bool = True,
) -> list[Callback]:  # fmt: skip
    """The callbacks for videos, the progress line, trackers and the report. `call` calls a method of all callbacks."""
    made: list[Callback] = []
    settings = config.run
    if run is not None and settings.video_every != 0:  # first: other callbacks are told of its videos
        folder, told = run.path / "videos", partial(call, "on_video")
        made.append(video_callback(state, score_env, folder, settings.video_every, told, say))
    if not quiet:
        made.append(ConsoleLogger())
    names = settings.project, settings.entity, settings.run_name
    options = TrackerOptions(*names, settings.watch, settings.tags, say)
    made += [TRACKERS[name](options) for name in dict.fromkeys(settings.log)]
    if run is not None and report:  # last: it shows the results of the others
        made.append(ReportWriter(lambda run_dir: files_in(run_dir, config)))
    return made
