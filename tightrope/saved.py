"""What was saved comes back: an agent from a run's directory, whoever wrote it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from .agent import AGENTS, Agent
from .engine import world
from .engine.distributed import join
from .envs.registry import BACKENDS
from .errors import UsageError, one_line
from .models import NetworkConfig
from .runs.build import per_rank_config
from .runs.checkpoint import CONFIG
from .runs.config import Config
from .runs.devices import available, device_name, name_of_device, resolve_device
from .runs.directory import directory
from .runs.given import (
    Network,
    check_env_object,
    has_id,
    imported,
    is_ours,
    is_path,
    name_of,
    named_by_file,
    needs_import,
)
from .runs.policy import Policy, loaded
from .runs.recover import LOOKS, check_plausible, find, found_by_first, load_config, restore
from .types import Settings

MOST_SHOWN = 4  # settings in one line


def load(
    path: str | Path,
    env: Any = None,
    checkpoint: str = "last",
    network: Network | None = None,
    **settings: Any,
) -> Agent:
    """Load an agent. From its newest checkpoint a run continues where it was: `learn` writes to its directory.

    Args:
        path: Directory of a run, or what `save` wrote.
        env: The environment, if it is one of your own: its class, an instance, or module:Class.
        checkpoint: last, best, or the name of one.
        network: The network, if it is one of your own.
        settings: Settings to change.
    """
    path, made_for = Path(path), None
    join()
    for left in reversed(range(1 if world().is_distributed else LOOKS)):  # ranks look together, once
        found = found_by_first(path, checkpoint)
        try:
            env = named(env, found.config) if isinstance(env, str) else env
            config = adapted(found.config, settings, env)
            check_kept(found.config.flat(), config.flat())
            check_plausible(found, config)
            if config != made_for:  # made once: the less time between looking and reading, the better
                agent, made_for = made(config, path, env, network), config
            restore(agent.state, found)
            break
        except UsageError:
            if not left or found.path.exists():  # otherwise dropped meanwhile by who trains it: look again
                raise
    agent.loaded = found
    agent.notes = surprises(found.config, settings, env)
    if checkpoint == "last" and found.path != path:
        agent.notes += edits(path, found.config, config)
        agent.run = directory(path, found)
    return agent


def load_policy(
    path: str | Path, checkpoint: str = "last", network: Network | None = None, device: str | torch.device = "cpu"
) -> Policy:
    """Load a policy to act where its environment is not: neither the environment nor its package is imported.

    Args:
        path: Directory of a run, or what `save` wrote.
        checkpoint: last, best, or the name of one.
        network: The network, if it is one of your own.
        device: Where it computes.
    """
    path, where = Path(path), resolve_device(device_name(device))
    for left in reversed(range(LOOKS)):
        found = find(path, checkpoint)
        try:
            config = found.config
            check_plausible(found, config)
            if config.network.network is not None and network is None:
                network = named_by_file(config.network.network, path, "has a network of your own,", "network")
            return loaded(found, config, network, where)
        except UsageError:
            if not left or found.path.exists():  # otherwise dropped meanwhile by who trains it: look again
                raise
    raise AssertionError("unreachable")


def named(env: str, config: Config) -> Any:
    """What a user's words for an environment mean: module:Class of one's own, or the run's own id, which says nothing new."""
    if is_path(env):
        return imported(env)
    if env != config.env:
        raise UsageError(
            f"env {env!r} is not {config.env!r}, on which the run was trained: give it to evaluate(env=...)"
        )
    return None


def begin_anew(path: Path, env: Any = None, network: Network | None = None, **settings: Any) -> Agent:
    """The agent of a run that was stopped before its first checkpoint: its settings, from the beginning."""
    join()
    config = load_config(path)
    agent = made(adapted(config, settings, env), path, env, network)
    agent.notes = surprises(config, settings, env)
    agent.run = directory(path)
    return agent


def surprises(saved: Config, settings: Settings, env: Any) -> list[str]:
    """What going on with a run does that whoever goes on with it may not expect."""
    lines = []
    if env is not None and (name := name_of(env)) != saved.env:
        lines.append(f"the run was trained on {saved.env} so far, and goes on with {name}")
    run = saved.run
    if run.log and "log" not in settings:
        where = [f"{word} {value}" for word, value in (("project", run.project), ("entity", run.entity)) if value]
        named = ", ".join(run.log) + (f" ({', '.join(where)})" if where else "")
        lines.append(
            f"the run reports to {named}, because its saved settings say so: give log, such as --log none, to change it"
        )
    return lines


def edits(run_dir: Path, saved: Config, now: Config) -> list[str]:
    """That config.yaml says something else than the checkpoint, and no setting given now agrees with it."""
    try:
        there, kept, used = (config.flat() for config in (load_config(run_dir), saved, now))
    except UsageError as error:
        return [f"{error}. The settings of the checkpoint count"]
    found = [name for name in there if there[name] != kept.get(name) and there[name] != used.get(name)]
    if not found:
        return []
    shown = ", ".join(f"{name} {there[name]} instead of {kept.get(name)}" for name in found[:MOST_SHOWN])
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return [
        f"{run_dir / CONFIG} says {shown}{more}, which changes nothing and is overwritten: the settings of the checkpoint "
        "count. Give what is to change as a setting"
    ]


def adapted(config: Config, settings: Settings, env: Any) -> Config:
    """The settings of a run as this machine can serve them."""
    settings = dict(settings)
    if "env_kwargs" not in settings:
        check_arguments(config.run.env_kwargs)
    if is_ours(env):
        settings.setdefault("device", name_of_device(env.device))
    if config.run.device not in ("auto", "cpu") and not available(config.run.device):
        settings.setdefault("device", "auto")
    if config.run.backend in BACKENDS and not BACKENDS[config.run.backend].installed:
        settings.setdefault("backend", "auto")
    if settings.get("device", config.run.device) != config.run.device:
        settings.setdefault("accelerate", "auto")
    return config.changed(**settings)


def check_arguments(env_kwargs: Settings) -> None:
    """Refuse arguments of an environment that open windows or files, as long as only a file says so."""
    for name, value in env_kwargs.items():
        if name == "render_mode" or any(names_file(name, text) for text in texts(value)):
            raise UsageError(
                f"env_kwargs {name}={value!r} of the run opens what a file may not name: if it is yours, pass them again, "
                f"tr.load(path, env_kwargs={{...}})"
            )


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        yield value
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


def names_file(name: str, text: str) -> bool:
    """Whether an argument may lead to a file: by its own name, by the form of the text, or because there is one."""
    by_name = re.search(r"(^|_)(file|filename|filepath|path|dir|directory|folder)s?(_|$)", name, re.IGNORECASE)
    by_form = re.search(r"[/\\:\0]|^[.~]|\.[A-Za-z]\w*$", text)
    return by_name is not None or by_form is not None or os.path.lexists(text)


def check_kept(before: Settings, after: Settings) -> None:
    """Refuse settings that what was trained cannot take on."""
    for name in ("num_envs", "num_steps", *(field.name for field in fields(NetworkConfig) if field.name != "network")):
        if after[name] != before[name]:
            raise UsageError(
                f"{name} {after[name]} is not the {before[name]} of the run, which it keeps: drop it, or train a new one"
            )


def made(config: Config, path: Path, env: Any, network: Network | None) -> Agent:
    """An untrained agent with the settings of a saved run, and with the user's own code if the user gave it."""
    env_is_users = env is not None
    if env_is_users:
        check_env_object(env)
    elif needs_import(config.env) or not has_id(config.env):  # in this order: to ask for an id may import its module
        env = named_by_file(config.env, path, "was trained on", "env")
    if config.run.train_env is not None and (is_path(config.run.train_env) or needs_import(config.run.train_env)):
        raise UsageError(f"{path} was trained on {config.run.train_env}, which a file may not import: import it first")
    if config.network.network is not None and network is None:
        network = named_by_file(config.network.network, path, "has a network of your own,", "network")
    count = per_rank_config(config.algorithm, world().size).num_envs
    if is_ours(env) and env.num_envs != count:
        env = env.spawn(count, seed=0)  # as many as were trained on
    try:
        agent = AGENTS[config.algo].__new__(AGENTS[config.algo])
        agent._setup(config, env, network)  # not as a user's settings, which may import
        return agent
    except (NotImplementedError, AttributeError, TypeError) as error:
        if env_is_users:
            raise
        raise UsageError(f"{path} names {config.env}, which cannot be made: {one_line(error)}") from error
