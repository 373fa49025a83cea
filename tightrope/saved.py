"""Load an agent or a policy from a run's directory. The directory may come from a stranger."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from .agent import Agent, agent_class
from .engine import world
from .engine.distributed import join
from .envs.registry import BACKENDS
from .envs.validate import in_short
from .envs.with_memory import without_memory
from .errors import UsageError, one_line
from .models import NetworkConfig
from .models.hybrid_spec import flat_action, flat_parts
from .training import user_objects
from .training.build import per_rank_config
from .training.checkpoint_reader import CONFIG, Checkpoint
from .training.config import Config
from .training.own_code import imported, is_import_path, needs_import
from .training.policy import spec_from_json
from .training.run_directory import directory, load_config
from .training.saving import check_plausible, find_on_all_ranks, restore
from .training.settings import available, name_of_device
from .training.user_objects import Network, import_own_code, network_for
from .types import Env, Settings, Spec

MAX_SHOWN = 4  # settings named in one line


def load(
    path: str | Path, env: Any = None, checkpoint: str = "last", network: Network | None = None, **settings: Any
) -> Agent:
    """Load an agent. If it is loaded from the newest checkpoint, `learn` continues the run in its directory.

    Args:
        path: Directory of a run or of a saved agent.
        env: The environment, if it is your own: its class, an instance, or module:Class.
        checkpoint: last, best, or the name of a checkpoint.
        network: The network, if it is your own.
        settings: Settings to change.
    """
    path = Path(path)
    join()
    found = find_on_all_ranks(path, checkpoint)
    return agent_from(found, path, env, network, settings, resumes=checkpoint == "last" and found.path != path)


def agent_from(
    found: Checkpoint, path: Path, env: object, network: Network | None, settings: Settings, resumes: bool = True
) -> Agent:
    """The agent of a checkpoint in the run directory `path`. If it `resumes` the run, it trains there."""
    saved = found.config
    env = env_from_name(env, saved) if isinstance(env, str) else env
    config = for_this_machine(saved, settings, env, found.steps)
    check_kept(saved.to_flat_dict(), config.to_flat_dict())
    check_plausible(found, config)
    agent = new_agent(config, path, env, network)
    check_spaces_kept(found, without_memory(agent.state.env))
    restore(agent.state, found)
    agent.loaded = found
    agent.notes = load_notes(saved, settings, env)
    if resumes:
        agent.notes += ignored_edits(path, saved, config)
        agent.run = directory(path, found)
    return agent


def begin_anew(path: Path, env: Any = None, network: Network | None = None, **settings: Any) -> Agent:
    """A new agent with the settings of a run that was stopped before its first checkpoint."""
    join()
    config = load_config(path)
    agent = new_agent(for_this_machine(config, settings, env), path, env, network, new=True)
    agent.notes = load_notes(config, settings, env)
    agent.run = directory(path)
    return agent


def env_from_name(env: str, config: Config) -> Any:
    """Import the environment that a user names as module:Class; None if the name is the id of the run's environment."""
    if is_import_path(env):
        return imported(env)
    if env != config.env:
        raise UsageError(f"env {env!r} is not the run's {config.env!r}: to evaluate in it, use evaluate(env=...)")
    return None


def load_notes(saved: Config, settings: Settings, env: Any) -> list[str]:
    """Notes about a resumed run: another environment, and trackers that it logs to."""
    lines = []
    if env is not None and (name := user_objects.name_of(env)) != saved.env:
        lines.append(f"the run was trained on {saved.env} so far and continues on {name}")
    run = saved.run
    if run.log and "log" not in settings:
        where = [f"{word} {value}" for word, value in (("project", run.project), ("entity", run.entity)) if value]
        trackers = ", ".join(run.log) + (f" ({', '.join(where)})" if where else "")
        lines.append(f"the run logs to {trackers}, as saved in its settings: give log to change it, as in --log none")
    return lines


def ignored_edits(run_dir: Path, saved: Config, now: Config) -> list[str]:
    """A note about settings in config.yaml that differ from the checkpoint's and from those given now."""
    try:
        written, kept, used = (config.to_flat_dict() for config in (load_config(run_dir), saved, now))
    except UsageError as error:
        return [f"{error}. The settings of the checkpoint are used"]
    names = [name for name in written if written[name] != kept.get(name) and written[name] != used.get(name)]
    if not names:
        return []
    shown = ", ".join(f"{name} {written[name]} instead of {kept.get(name)}" for name in names[:MAX_SHOWN])
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return [
        f"{run_dir / CONFIG} has {shown}{more}, which is ignored and overwritten: the settings of the checkpoint are used. "
        "Pass changes as settings"
    ]


def for_this_machine(config: Config, settings: Settings, env: Any, steps: int = 0) -> Config:
    """The settings of a run after some steps with the user's changes, and with a device and backend that are available here."""
    settings = dict(settings)
    if isinstance(settings.get("train_env"), type):
        settings["train_env"] = user_objects.name_of(settings["train_env"])
    if "env_kwargs" not in settings:
        check_arguments(config.run.env_kwargs)
    if user_objects.implements_env(env):
        settings.setdefault("device", name_of_device(env.device))
    if config.run.device not in ("auto", "cpu") and not available(config.run.device):
        settings.setdefault("device", "auto")
    if config.run.backend in BACKENDS and not BACKENDS[config.run.backend].installed:
        settings.setdefault("backend", "auto")
    if settings.get("device", config.run.device) != config.run.device:
        settings.setdefault("accelerate", "auto")
    if env is not None and user_objects.name_of(env) != config.env:
        settings.setdefault("train_env", None)  # it continues on the environment given
    changed = config.changed_after(steps, **settings)
    other = changed.run.train_env
    if "train_env" in settings:
        user_objects.named_by_user(other, "train_env")
    elif other is not None and (is_import_path(other) or needs_import(other)):
        user_objects.named_by_file(other, "the run", "was trained on", "train_env")
    return import_own_code(changed, {name.replace("-", "_") for name in settings})


def check_arguments(env_kwargs: Settings) -> None:
    """Raise UsageError for saved environment arguments that may open a window or a file; the user must pass them again."""
    for name, value in env_kwargs.items():
        if name == "render_mode" or any(names_file(name, text) for text in texts(value)):
            wrong = f"env_kwargs {name}={value!r} of the run may open a window or a file"
            raise UsageError(
                f"{wrong}: if you trust the run, pass them again, tr.load(path, env_kwargs={{...}}) or --env-kwargs"
            )


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    for item in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts(item)


def names_file(name: str, text: str) -> bool:
    """Whether an argument may name a file, judged by its own name, by the form of the text, or because the file exists."""
    by_name = re.search(r"(^|_)(file|filename|filepath|path|dir|directory|folder)s?(_|$)", name, re.IGNORECASE)
    by_form = re.search(r"[/\\:\0]|^[.~]|\.[A-Za-z]\w*$", text)
    return by_name is not None or by_form is not None or os.path.lexists(text)


def check_kept(before: Settings, after: Settings) -> None:
    """Raise UsageError if a setting changes the shape of the network or of the rollout."""
    network = (field.name for field in fields(NetworkConfig) if field.name != "network")
    for name in ("num_envs", "num_steps", "init_from", "baseline", *network):
        if after.get(name) != before.get(name):
            wrong = f"{name} {after[name]} cannot replace {before[name]} in a trained run"
            raise UsageError(f"{wrong}: drop it, or train a new run")


def check_spaces_kept(found: Checkpoint, env: Env) -> None:
    """Raise UsageError if an environment has other spaces than that of the checkpoint, as with other arguments or wrappers."""
    for name, here in (("observation", env.observation), ("action", flat_action(env.action))):
        with contextlib.suppress(ValueError):  # `restore` reports a checkpoint that is not valid
            there = spec_from_json(found.manifest.get(name))
            if sizes_of(there) != sizes_of(here):
                wrong = f"the environment has {name}s {in_short(here)}, and the run was trained with {in_short(there)}"
                raise found.misfit(f"{wrong}. Give its own env, env_kwargs and wrappers, or train a new run")


def sizes_of(spec: Spec) -> list[tuple[str, str]]:
    """The names, kinds and sizes of the parts of a space."""
    return [(name, in_short(part)) for name, part in flat_parts(spec)]


def new_agent(config: Config, path: Path, env: Any, network: Network | None, new: bool = False) -> Agent:
    """An untrained agent with the settings of a saved run, and with the environment and network that the user gave. `new` if it
    has no checkpoint yet, so that init_from applies."""
    env_is_users = env is not None
    if env_is_users:
        user_objects.check_env_object(env)
    elif needs_import(config.env) or not user_objects.has_id(config.env):  # an id may import its module
        env = user_objects.named_by_file(config.env, path, "was trained on", "env")
    network = network_for(config, path, network)
    count = per_rank_config(config.algorithm, world().size).num_envs
    if user_objects.implements_env(env) and env.num_envs != count:
        env = env.spawn(count, seed=0)  # the number of environments in training
    try:
        return agent_class(config.algo).made_of(config, env, network, new)
    except (NotImplementedError, AttributeError, TypeError) as error:
        if env_is_users:
            raise
        raise UsageError(f"{path} names {config.env}, which cannot be made: {one_line(error)}") from error
