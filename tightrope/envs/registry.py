"""Make environments by their ids: Tightrope's own from `ENVS`, all others from the fastest backend that is installed.

A new environment needs one class and one line in `ENVS`, or a call of `register`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch

from ..errors import UsageError, check_positive, near_matches
from ..types import Env
from . import classic
from .arguments import check_arguments_of, takes_arguments
from .tensor import TensorEnv

BackendName = Literal["auto", "tensor", "gymnasium", "envpool", "ale", "brax"]
VectorizationMode = Literal["sync", "async", "vector_entry_point"]
Wrap = Callable[[Any], object]  # takes an environment of Gymnasium and returns one

ENVS: dict[str, type[TensorEnv]] = {
    "CartPole-v1": classic.CartPole,
    "EasyCart-v0": classic.EasyCart,
    "SpinCart-v0": classic.SpinCart,
    "DanceCart-v0": classic.DanceCart,
    "Pendulum-v1": classic.Pendulum,
    "MountainCar-v0": classic.MountainCar,
    "MountainCarShaped-v0": classic.MountainCarShaped,
    "Acrobot-v1": classic.Acrobot,
    "CartDoublePendulum-v0": classic.CartDoublePendulum,
    "CartPoleNoVelocity-v0": classic.CartPoleNoVelocity,
    "PendulumNoVelocity-v0": classic.PendulumNoVelocity,
    **{f"{probe.__name__}-v0": probe for probe in classic.PROBES},
}


def register(env_id: str, env: type[TensorEnv]) -> None:
    """Give an environment class an id, so that commands, presets and saved runs can name it."""
    if env_id in ENVS and ENVS[env_id] is not env:
        raise UsageError(f"env id {env_id!r} is taken by {ENVS[env_id].__name__}: choose another")
    ENVS[env_id] = env


def tensor_env_class(env_id: str) -> type[TensorEnv]:
    """The class registered under an id."""
    if env_id not in ENVS:
        raise UsageError(f"unknown tensor env {env_id!r}.{near_matches(env_id, ENVS)} `tightrope envs` lists them")
    return ENVS[env_id]


def construct(
    kind: type[TensorEnv], *arguments: Any, env_kwargs: Mapping[str, Any] | None = None, env_id: str | None = None
) -> TensorEnv:
    """Make an environment of a class with (num_envs, device, max_episode_steps) and, if its constructor takes one, a seed.
    `env_kwargs` are further arguments of its constructor."""
    check_arguments_of(kind.__name__, kind, env_kwargs or {}, env_id)
    make = functools.partial(kind, **env_kwargs or {})
    arguments = arguments if takes_arguments(make, arguments) else arguments[:3]
    wanted = "num_envs=1, device='cpu', max_episode_steps=None"
    if not takes_arguments(make, arguments):
        raise UsageError(
            f"{kind.__name__}.__init__ does not take (num_envs, device, max_episode_steps): write "
            f"`def __init__(self, {wanted})` and pass them to super().__init__, or give an environment instead of the class"
        )
    return check_constructed(make(*arguments))


def check_constructed(env: TensorEnv) -> TensorEnv:
    """Return the environment; UsageError if its constructor did not call super().__init__."""
    if "state" not in vars(env):
        words = f"{type(env).__name__}.__init__ does not call super().__init__"
        raise UsageError(f"{words}: end it with super().__init__(num_envs, device, max_episode_steps)")
    return env


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """Options of `make`."""

    max_episode_steps: int | None = None  # truncate after this many steps instead of the environment's own limit
    vectorization_mode: VectorizationMode = (
        "sync"  # of Gymnasium: in turn, in processes, or the environment's own vector class
    )
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # for the environment's constructor
    wrappers: tuple[Wrap, ...] = ()  # applied to each environment of Gymnasium, the first one innermost
    scoring: bool = False  # for evaluation: whole games and raw rewards, where training sees something else


# backends ------------------------------------------------------------------------------------------------------------


class Adapter(Protocol):
    """Makes the environments of one backend by their ids."""

    def provides(self, env_id: str) -> bool: ...
    def from_id(self, env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> SeededEnv: ...


class SeededEnv(Env, Protocol):
    """An Env with random streams of its own."""

    def seed(self, seed: int) -> object: ...


@dataclass(frozen=True)
class Backend:
    """A library that runs environments. Its adapter is imported when needed."""

    name: str
    package: str  # the package to import
    extra: str  # the extra of Tightrope that installs it

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    @property
    def adapter(self) -> Adapter:
        module = "gym" if self.name == "gymnasium" else self.name
        return importlib.import_module(f"{__package__}.adapters.{module}").ADAPTER

    def provides(self, env_id: str) -> bool:
        return self.adapter.provides(env_id)


# in the order in which `auto` prefers them
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("brax", "brax", "brax"),  # ids such as brax/ant and playground/CartpoleBalance
        Backend("ale", "ale_py", "atari"),
        Backend("envpool", "envpool", "envpool"),
        Backend("gymnasium", "gymnasium", ""),
    )
}


class Choice(NamedTuple):
    """The backend that runs an environment, and the reason for it."""

    backend: str
    reason: str


def choose(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The backend for an id; UsageError names what is missing if there is none.

    With arguments for the constructor, `auto` tries EnvPool last, since its arguments have other names.
    """
    if backend not in get_args(BackendName):
        raise UsageError(f"backend {backend!r} is not a choice: give one of {', '.join(get_args(BackendName))}")
    if backend == "tensor" or (backend == "auto" and env_id in ENVS):
        tensor_env_class(env_id)
        return Choice("tensor", "it runs on the device")
    if backend != "auto":
        chosen = BACKENDS[backend]
        if not chosen.installed:
            raise not_installed(chosen, env_id)
        if not chosen.provides(env_id):
            raise UsageError(f"backend {backend} has no env {env_id!r}: give another id, or backend auto")
        return Choice(backend, "set by backend")
    uninstalled = []
    for candidate in sorted(BACKENDS.values(), key=lambda one: with_arguments and one.name == "envpool"):
        if not candidate.installed:
            uninstalled.append(candidate)
        elif candidate.provides(env_id):
            faster = next((other.name for other in uninstalled if other.provides(env_id)), None)
            reason = f"{faster} is not installed" if faster else "the fastest backend installed that has it"
            if with_arguments and candidate.name == "gymnasium":
                reason = "the arguments are for its constructor"
            return Choice(candidate.name, reason)
    for candidate in uninstalled:
        if candidate.provides(env_id):
            raise not_installed(candidate, env_id)
    raise unknown_env(env_id)


def not_installed(backend: Backend, env_id: str) -> UsageError:
    return UsageError(
        f'env {env_id!r} needs {backend.package}, which is not installed: pip install "tightrope[{backend.extra}]"'
    )


def gymnasium_ids() -> Mapping[str, Any]:
    """Gymnasium's ids with those of ale-py, if that is installed."""
    import gymnasium

    with contextlib.suppress(ImportError):
        import ale_py

        if "ALE/Pong-v5" not in gymnasium.registry:
            gymnasium.register_envs(ale_py)
    return gymnasium.registry


def unknown_env(env_id: str) -> UsageError:
    hint = near_matches(env_id, [*ENVS, *gymnasium_ids()])
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
    """Make `num_envs` copies of the environment with this id. Further options are those of `EnvOptions`."""
    check_positive("num_envs", num_envs)
    check_positive("max_episode_steps", max_episode_steps)
    import_module_of(env_id)
    name = choose(env_id, backend, bool(options.get("env_kwargs") or options.get("wrappers"))).backend
    mode = options.get("vectorization_mode", "sync")
    if mode not in get_args(VectorizationMode):
        raise UsageError(f"vectorization_mode {mode!r} is not a choice: give {', '.join(get_args(VectorizationMode))}")
    if mode != "sync" and name != "gymnasium":
        raise UsageError(f"vectorization_mode {mode!r} is for backend gymnasium, this is {name}: drop it")
    env_options = EnvOptions(max_episode_steps=max_episode_steps, **options)
    if env_options.wrappers and name != "gymnasium":
        raise UsageError(
            f"wrappers are for environments of Gymnasium, and {env_id} is by {name}: give backend gymnasium"
        )
    if name == "tensor":
        sizes = num_envs, device, max_episode_steps, seed
        return construct(tensor_env_class(env_id), *sizes, env_kwargs=env_options.env_kwargs, env_id=env_id)
    env = BACKENDS[name].adapter.from_id(env_id, num_envs, device, env_options)
    env.seed(seed)
    return env


# names that lead to a module -----------------------------------------------------------------------------------------


def module_and_name(path: str, what: str = "env") -> tuple[str, str]:
    """Split module:Class or Gymnasium's module:Name-v0 at the colon; the module is '' if there is no colon.

    All code that examines such a name before an import uses this function, so that it sees the module that is then imported.
    The module must have a name that an import statement could use.
    """
    module, colon, name = path.rpartition(":")
    if colon and not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{what} {path!r} is not a name: give an id, module:Name-v0 or module:Class")
    return module, name


def import_module_of(env_id: str) -> None:
    """Import the module of module:Name-v0, which registers the id. Only for names that the user gave."""
    module, _ = module_and_name(env_id)
    if module:
        with contextlib.suppress(ImportError), working_directory_on_path():
            importlib.import_module(module)


@contextlib.contextmanager
def working_directory_on_path() -> Iterator[None]:
    """Allow imports from the working directory, as `python -m` does."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())


def id_or_path(env: object) -> str:
    """The id of an environment if the id makes the same one, otherwise module:Class of the object, class or factory."""
    spec = getattr(env, "spec", None)
    if spec is not None and not isinstance(env, type) and is_as_registered(spec):
        return str(spec.id)
    kind = env if isinstance(env, type) or not hasattr(env, "reset") else type(getattr(env, "unwrapped", env))
    return f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def is_as_registered(spec: Any) -> bool:
    """Whether the id of a Gymnasium spec makes the same environment: no wrapper, argument or time limit was changed."""
    import gymnasium

    registered = gymnasium.registry.get(spec.id)
    if registered is None:
        return False
    kwargs = {k: v for k, v in spec.kwargs.items() if k not in ("render_mode", "num_envs", "vectorization_mode")}
    same_limit = spec.max_episode_steps == registered.max_episode_steps
    return kwargs == registered.kwargs and same_limit and not spec.additional_wrappers
