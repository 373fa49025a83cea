"""Commands that resume a run or repeat it; lines of Python where a command cannot name its environment or the user's code."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..types import Settings
from .config import Config, configure
from .own_code import only_in_its_script, short_name
from .presets import NO_STOP, Traits
from .schedules import OF_THE_MACHINE, functions_in
from .user_objects import can_be_named, has_id


def is_nameless(env: str) -> bool:
    """Whether a command cannot name an environment."""
    return only_in_its_script(env) or not (":" in env or has_id(env))


def needs_python(config: Config, schedules: object) -> bool:
    """Whether a command cannot name all that belongs to a run; `schedules` are functions of the user's."""
    own = [one.path for one in config.run.wrappers] + [one.path for one in config.run.functions]
    own += named_classes(config).values()
    scripted, network = any(map(only_in_its_script, own)), config.network.network
    return bool(schedules or scripted or is_nameless(config.env) or (network is not None and not can_be_named(network)))


def named_classes(config: Config) -> dict[str, str]:
    """The settings that name code for which a saved run asks again, as module:Class or module:Name-v0."""
    named = {"memory": config.network.memory or "", "train_env": config.run.train_env or ""}
    return {name: path for name, path in named.items() if ":" in path}


def resume_command(path: Path, config: Config, *flags: str) -> str:
    """The command that resumes a run with some flags."""
    schedules = [name for name in functions_in(config.values()) if f"--{name.replace('_', '-')}" not in flags]
    env, network = config.env, config.network.network
    wrappers = [wrapper.path for wrapper in config.run.wrappers]
    if needs_python(config, schedules):
        own = [*schedules, *(one.name for one in config.run.functions)]
        given = {"env": is_nameless(env) or ":" in env, "network": network, "wrappers": wrappers} | named_classes(
            config
        )
        names = [name for name, value in given.items() if value] + own
        return f'tr.load("{path}"{"".join(f", {name}=..." for name in names)}).learn()'
    words = ["tightrope", "resume", str(path)]
    words += ["--env", env] if ":" in env else []
    words += ["--network", network] if network is not None else []
    words += [word for name, value in named_classes(config).items() for word in flag(name, value)]
    words += ["--wrappers", *wrappers] if wrappers else []
    words += ["--functions", *map(str, config.run.functions)] if config.run.functions else []
    return shlex.join([*words, *flags])


def usual_settings(config: Config, traits: Traits | None = None) -> Settings:
    """The settings of the run without any flag. Values that Tightrope chose count as defaults."""
    usual = configure(config.env, config.algo, {"defaults": config.run.defaults}, traits=traits).to_flat_dict()
    settings = config.to_flat_dict()
    if settings["total_timesteps"] != usual["total_timesteps"]:
        usual |= NO_STOP
    return usual | {name: settings[name] for name in OF_THE_MACHINE if usual[name] in (None, "auto")}


def command(config: Config, usual: Settings) -> str:
    """The command that repeats the run. It includes threads, since floating-point sums depend on their number."""
    named = {"seed": True, "threads": config.run.threads is not None, "defaults": config.run.defaults != "auto"}
    given = {k: v for k, v in config.to_flat_dict().items() if named.get(k) or v != usual[k]}
    schedules = {name: str(function) for name, function in functions_in(config.values()).items()}
    if needs_python(config, schedules):
        own = {name: short_name(path) for name, path in schedules.items()}
        own |= {} if config.network.network is None else {"network": short_name(config.network.network)}
        own["wrappers"] = f"[{', '.join(short_name(one.path) for one in config.run.wrappers)}]"
        own["functions"] = f"{{{', '.join(f'{one.name!r}: {short_name(one.path)}' for one in config.run.functions)}}}"
        env = short_name(config.env).rpartition(".")[2] if is_nameless(config.env) else repr(config.env)
        words = ", ".join(f"{name}={own.get(name, repr(value))}" for name, value in given.items())
        return f"tr.{config.algo.upper()}({env}, {words}).learn()"
    algo = [] if config.algo == "ppo" else ["--algo", config.algo]
    flags = [word for name, value in given.items() for word in flag(name, value)]
    return shlex.join(["tightrope", "train", config.env, *algo, *flags])


def flag(name: str, value: object) -> list[str]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", *(f"{key}={item}" for key, item in value.items())]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", "none" if value is None else str(value)]
