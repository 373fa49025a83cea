"""Who is told how a run goes, and what they are told of it beforehand."""

from __future__ import annotations

import platform
from dataclasses import asdict
from pathlib import Path

import torch

from ..engine import State, world
from ..envs.host import HostEnv
from ..errors import plain
from ..output import print_line
from ..version import __version__
from ..view import About, Audience, Onlooker, Progress, Report, RolloutVideo
from ..view.sinks import TRACKERS, Options, Sink
from .build import traits_of
from .config import Config
from .directory import RunDirectory
from .given import short_name
from .plan import Plan
from .reports import found
from .target import target_of


def invited(config: Config, run: RunDirectory | None, quiet: bool) -> list[Onlooker]:
    """The audience that the settings ask for."""
    everyone = Audience([])
    if run is not None and config.run.video_every != 0:  # first: what it writes, the others are told of
        everyone.onlookers.append(rollout_video(config, run, quiet, everyone))
    if not quiet:
        everyone.onlookers.append(Progress())
    everyone.onlookers += trackers(config, quiet)
    if run is not None:  # last: it shows what others have made
        everyone.onlookers.append(Report(lambda run_dir: found(run_dir, config)))
    return everyone.onlookers


def rollout_video(config: Config, run: RunDirectory, quiet: bool, everyone: Audience) -> RolloutVideo:
    """Videos of training in the run's directory."""

    def written(path: Path, step: int) -> None:
        everyone.tell("video", path, step)

    def say(line: str) -> None:
        if not quiet:
            print_line(plain(line))

    return RolloutVideo(run.path / "videos", config.run.video_every, written, say)


def trackers(config: Config, quiet: bool) -> list[Sink]:
    """Those that the settings name, each once."""
    run = config.run
    say = (lambda line: None) if quiet else print_line
    options = Options(run.project, run.entity, run.run_name, run.watch, run.tags, say)
    return [TRACKERS[name](options) for name in dict.fromkeys(run.log)]


def about(state: State, config: Config, plan: Plan, run: RunDirectory | None) -> About:
    """What there is to know of a run before it starts, or goes on."""
    env, device = state.env, state.env.device
    facts = {
        "tightrope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} ({platform.machine()})",
        "parameters": f"{plan.parameters:,}",
    }
    return About(
        title=plain(f"{short_name(config.env)} {config.algo}"),
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
