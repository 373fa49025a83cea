"""Who is told how a run goes, and what they are told of it beforehand."""

from __future__ import annotations

import platform

import torch

from ..engine import State
from ..version import __version__
from ..view import About, Onlooker, Progress, Report
from .config import Config
from .directory import RunDirectory
from .plan import Plan
from .reports import found


def invited(config: Config, run: RunDirectory | None, quiet: bool) -> list[Onlooker]:
    """The audience that the settings ask for."""
    audience: list[Onlooker] = [] if quiet else [Progress()]
    if run is not None:
        audience.append(Report(lambda run_dir: found(run_dir, config)))  # last: it shows what others have made
    return audience


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
