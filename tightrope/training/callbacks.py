"""The callbacks that a run's settings imply, and what all callbacks are told at the start."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch

from ..engine import State, world
from ..envs.adapters.host import HostEnv
from ..errors import printable
from ..logging import Callback, ConsoleLogger, ReportWriter, RolloutVideo, RunInfo
from ..logging.trackers import TRACKERS, Tracker, TrackerOptions
from ..output import print_line
from ..version import __version__
from .build import traits_of
from .config import Config
from .directory import RunDirectory
from .plan import Plan
from .reports import found
from .target import target_of
from .user_objects import short_name


def built_in_callbacks(
    config: Config, run: RunDirectory | None, quiet: bool, call: Callable[..., None]
) -> list[Callback]:
    """Videos, the progress line, trackers and the report. `call` tells all callbacks of a video."""
    made: list[Callback] = []
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: print_line(printable(line)))

    if run is not None and config.run.video_every != 0:  # first: others are told what it has written
        made.append(RolloutVideo(run.path / "videos", config.run.video_every, partial(call, "on_video"), say))
    if not quiet:
        made.append(ConsoleLogger())
    made += trackers(config, quiet)
    if run is not None:  # last: it shows what others have made
        made.append(ReportWriter(lambda run_dir: found(run_dir, config)))
    return made


def trackers(config: Config, quiet: bool) -> list[Tracker]:
    """Those that the settings name, each once."""
    run = config.run
    say = (lambda line: None) if quiet else print_line
    options = TrackerOptions(run.project, run.entity, run.run_name, run.watch, run.tags, say)
    return [TRACKERS[name](options) for name in dict.fromkeys(run.log)]


def run_info(state: State, config: Config, plan: Plan, run: RunDirectory | None) -> RunInfo:
    """What there is to know of a run before it starts, or goes on."""
    env, device = state.env, state.env.device
    facts = {
        "tightrope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} ({platform.machine()})",
        "parameters": f"{plan.parameters:,}",
    }
    return RunInfo(
        title=printable(f"{short_name(config.env)} {config.algo}"),
        settings=config.flat(),
        plan=plan.lines(),
        steps=state.steps,
        total_steps=state.steps + plan.steps,
        run_dir=None if run is None else run.path,
        facts=facts,
        steps_taken=(lambda: env.steps_taken * world().size) if isinstance(env, HostEnv) else None,
        target=target_of(config, state.env),
        traits=asdict(traits_of(state.env)),
    )
