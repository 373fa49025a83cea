"""Who is told how a run goes, and what they are told of it beforehand."""

from __future__ import annotations

import platform
from functools import partial

import torch

from ..engine import State
from ..version import __version__
from ..view import About, Onlooker, Progress
from ..view.sinks import TRACKERS, Options, Sink
from .config import Config
from .directory import RunDirectory
from .plan import Plan


def invited(config: Config, run: RunDirectory | None, quiet: bool) -> list[Onlooker]:
    """The audience that the settings ask for."""
    progress = [] if quiet else [Progress()]
    return [*progress, *trackers(config, quiet)]  # trackers last: they are told of what the others made


def trackers(config: Config, quiet: bool) -> list[Sink]:
    """Those that the settings name, each once."""
    run = config.run
    say = (lambda line: None) if quiet else partial(print, flush=True)
    options = Options(run.project, run.entity, run.run_name, run.watch, run.tags, say)
    return [TRACKERS[name](options) for name in dict.fromkeys(run.log)]


def about(state: State, config: Config, plan: Plan, run: RunDirectory | None) -> About:
    """What there is to know of a run before it starts, or goes on."""
    device = state.env.device
    facts = {
        "tightrope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} ({platform.machine()})",
        "parameters": f"{plan.parameters:,}",
    }
    return About(
        title=f"{config.env} {config.algo}",
        settings=config.flat(),
        plan=plan.lines(),
        steps=state.steps,
        total_steps=state.steps + plan.steps,
        run_dir=None if run is None else run.path,
        facts=facts,
    )
