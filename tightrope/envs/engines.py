"""Which engine runs an environment: tensors on the device where we have it, otherwise the fastest one that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from ..errors import UsageError, near_matches
from ..types import Env
from . import registry
from .importing import import_module_of
from .options import EnvOptions, VectorizationMode
from .validate import construct

Backend = Literal["auto", "tensor", "gymnasium", "envpool", "ale", "brax"]


@dataclass(frozen=True)
class Engine:
    """A module of this room with `known(env_id)` and `from_id(env_id, num_envs, device, options)`."""

    name: str
    package: str  # what it imports
    extra: str  # what installs it

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def module(self) -> Any:
        return importlib.import_module(f"{__package__}.adapters.{'gym' if self.name == 'gymnasium' else self.name}")

    def knows(self, env_id: str) -> bool:
        return bool(self.module.known(env_id))


# in the order in which `auto` prefers them
ENGINES = {
    engine.name: engine
    for engine in (
        Engine("brax", "brax", "brax"),  # ids of its own: brax/ant, playground/CartpoleBalance
        Engine("ale", "ale_py", "atari"),
        Engine("envpool", "envpool", "envpool"),
        Engine("gymnasium", "gymnasium", ""),
    )
}


class Choice(NamedTuple):
    """The engine that runs an environment, and why it is this one."""

    backend: str
    why: str


def choose(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The engine for an id; a UsageError that says what is missing if there is none.

    With arguments for the environment's constructor, `auto` takes EnvPool last, which has names of its own for them.
    """
    if backend not in get_args(Backend):
        raise UsageError(f"backend {backend!r} is not a choice: give one of {', '.join(get_args(Backend))}")
    if backend == "tensor" or (backend == "auto" and env_id in registry.ENVS):
        registry.known(env_id)
        return Choice("tensor", "it lives on the device")
    if backend != "auto":
        engine = ENGINES[backend]
        if not engine.installed:
            raise missing(engine, env_id)
        if not engine.knows(env_id):
            raise UsageError(f"backend {backend} has no env {env_id!r}: give another id, or backend auto")
        return Choice(backend, "it was asked for")
    absent = []
    for engine in sorted(ENGINES.values(), key=lambda engine: with_arguments and engine.name == "envpool"):
        if not engine.installed:
            absent.append(engine)
        elif engine.knows(env_id):
            faster = next((other.name for other in absent if other.knows(env_id)), None)
            why = f"{faster} is not installed" if faster else "the fastest engine installed that has it"
            if with_arguments and engine.name == "gymnasium":
                why = "the arguments are for its constructor"
            return Choice(engine.name, why)
    for engine in absent:
        if engine.knows(env_id):
            raise missing(engine, env_id)
    raise unknown(env_id)


def missing(engine: Engine, env_id: str) -> UsageError:
    return UsageError(
        f'env {env_id!r} needs {engine.package}, which is not installed: pip install "tightrope[{engine.extra}]"'
    )


def unknown(env_id: str) -> UsageError:
    from .adapters.gym import register_ale

    hint = near_matches(env_id, [*registry.ENVS, *register_ale()])
    return UsageError(f"unknown env {env_id!r}.{hint} `tightrope envs` lists those with presets")


def make(
    env_id: str,
    num_envs: int = 1,
    device: str | torch.device = "cpu",
    max_episode_steps: int | None = None,
    seed: int = 0,
    backend: str = "auto",
    **options: Any,
) -> Env:
    """`num_envs` copies of the environment with that id. Further options are those of `EnvOptions`."""
    for name, value in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not positive: give at least 1")
    import_module_of(env_id)
    choice = choose(env_id, backend, bool(options.get("env_kwargs")))
    mode = options.get("vectorization_mode", "sync")
    if mode not in get_args(VectorizationMode):
        raise UsageError(f"vectorization_mode {mode!r} is not a choice: give {', '.join(get_args(VectorizationMode))}")
    if mode != "sync" and choice.backend != "gymnasium":
        raise UsageError(f"vectorization_mode {mode!r} is for backend gymnasium, this is {choice.backend}: drop it")
    if choice.backend == "tensor":
        asked = EnvOptions(**options)
        if asked.env_kwargs:
            raise UsageError(
                f"env_kwargs {dict(asked.env_kwargs)} are not for a tensor env: subclass it, or give backend gymnasium"
            )
        return construct(registry.known(env_id), num_envs, device, max_episode_steps, seed)
    asked = EnvOptions(max_episode_steps=max_episode_steps, **options)
    env: Any = ENGINES[choice.backend].module.from_id(env_id, num_envs, device, asked)
    env.seed(seed)
    return env
