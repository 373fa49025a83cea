"""Make Gymnasium environments from an id, an environment, a factory, or a vector environment."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from ...errors import UsageError, near_matches, one_line
from ..arguments import creator_of, make_with_arguments
from ..registry import EnvOptions, VectorizationMode, Wrap, gymnasium_ids, id_or_path, module_and_name
from .actions import declared_conditions
from .groups import in_groups
from .gym_single import Factory, GymEnv, SingleEnv, in_drawing_mode, mask_source, signature_parameters, with_masks
from .gym_vector import GymVectorEnv
from .gym_workers import Workers
from .host import HostEnv
from .pictures import choose_opengl, quieten_warnings

ALIASES = {"LunarLanderContinuous-v3": ("LunarLander-v3", {"continuous": True})}
EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "ale_py": "atari", "pygame": "box2d"}  # by the package an error names


class GymnasiumAdapter:
    """Makes environments by their ids."""

    def provides(self, env_id: str) -> bool:
        """Whether Gymnasium has such an id. The module of module:Name-v0 must be imported already: the name may be a file's."""
        module, name = module_and_name(ALIASES.get(env_id, (env_id, {}))[0])
        if module and module not in sys.modules:
            return False
        return name in gymnasium.registry or name in gymnasium_ids()

    def from_id(self, env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
        """The environment that Gymnasium has under an id."""
        base, _ = ALIASES.get(env_id, (env_id, {}))
        if base.startswith("ALE/") or base.endswith("NoFrameskip-v4"):
            raise UsageError(f"env {env_id!r} is prepared by backend ale or envpool; for its raw frames give a factory")
        entry_point = getattr(gymnasium_ids().get(base), "entry_point", None)
        if str(entry_point).startswith("gymnasium.envs.mujoco"):
            choose_opengl()
            quieten_warnings()
        limit = options.max_episode_steps
        kwargs = {**options.env_kwargs, **({} if limit is None else {"max_episode_steps": limit})}

        def factory(drawn: bool) -> SingleEnv:
            rendering = {"render_mode": "rgb_array"} if drawn else {}
            one = made_by_id(env_id, kwargs, gymnasium.make, disable_env_checker=True, **rendering)
            return in_wrappers(one, options.wrappers)

        if options.vectorization_mode != "vector_entry_point":
            return singles(factory, num_envs, device, env_id, options.vectorization_mode)
        if options.wrappers:
            raise UsageError("wrappers are for single environments: give vectorization_mode sync or async")

        def vector(count: int) -> VectorEnv:
            mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
            return made_by_id(env_id, kwargs, gymnasium.make_vec, num_envs=count, vectorization_mode=mode)

        return GymVectorEnv(vector(num_envs), device, env_id, vector)


ADAPTER = GymnasiumAdapter()


def made_by_id(env_id: str, env_kwargs: Mapping[str, Any], make: Callable[..., Any], **settings: Any) -> Any:
    """What `make`, a function of Gymnasium, returns for an id. A wrong argument of the environment is a UsageError."""
    base, preset = ALIASES.get(env_id, (env_id, {}))
    maker = functools.partial(creator_of, base)

    def one() -> object:
        return make(base, **settings, **{**preset, **env_kwargs})

    return checked_make(env_id, lambda: make_with_arguments(env_id, one, maker, env_kwargs))


def in_wrappers(env: SingleEnv, wrappers: Sequence[Wrap]) -> SingleEnv:
    """The environment inside its wrappers, the first of them innermost."""
    for wrap in wrappers:
        try:
            outer = wrap(env)
        except Exception as error:
            raise UsageError(
                f"wrapper {id_or_path(wrap)!r} fails: {type(error).__name__}: {one_line(error)}"
            ) from error
        if not isinstance(outer, gymnasium.Env):
            wrong = f"wrapper {id_or_path(wrap)!r} returns a {type(outer).__name__}, not a Gymnasium environment"
            raise UsageError(f"{wrong}: let it return the environment that it gets, wrapped")
        env = outer
    return env


def singles(factory: Factory, num_envs: int, device: str | torch.device, name: str, mode: VectorizationMode) -> HostEnv:
    """Single environments, stepped in turn or each in a process of its own."""
    make: Callable[..., HostEnv] = in_processes if mode == "async" else GymEnv
    return make(factory, num_envs, device, name)


def in_processes(factory: Factory, num_envs: int, device: str | torch.device, name: str) -> HostEnv:
    """Single environments, each in a process of its own."""

    def workers(count: int) -> GymVectorEnv:
        declared: list[object] = []  # by the environment that Gymnasium makes in this process, too

        def make_one() -> SingleEnv:
            env = exposed(factory(False))
            declared.append(declared_conditions(env))
            return env

        try:
            engine = Workers(make_one, count, name)
            engine.factory = factory
        except OSError as error:  # of the system: what a constructor raises comes as UsageError
            raise UsageError(
                f"vectorization_mode 'async' cannot start its processes ({one_line(error)}): it needs room in shared "
                "memory (/dev/shm); make some, or give sync"
            ) from None
        engine.action_conditions = declared[0]
        return GymVectorEnv(engine, device, name)

    return in_groups(workers, num_envs, device)


def exposed(env: SingleEnv) -> SingleEnv:
    """An environment whose observations have its action masks, if it has some."""
    return with_masks(env, mask_source(env))


def from_object(
    env: Any, num_envs: int, device: str | torch.device = "cpu", options: EnvOptions | None = None
) -> HostEnv:
    """An environment, a class or factory of environments (single, or vectors by num_envs), or a vector environment."""
    name, options = id_or_path(env), options or EnvOptions()
    mode, kwargs, limit = options.vectorization_mode, options.env_kwargs, options.max_episode_steps
    single = not isinstance(env, VectorEnv) and "num_envs" not in signature_parameters(env)
    if mode == "vector_entry_point" or (mode != "sync" and not single):
        raise UsageError(f"vectorization_mode {mode!r} is for ids and single environments, not for {name}: drop it")
    if options.wrappers and not single:
        raise UsageError(f"wrappers are for single environments, and {name} makes vectors of them: wrap it yourself")
    if isinstance(env, VectorEnv):
        spec = env.spec
        return GymVectorEnv(env, device, name, None if spec is None else lambda count: gymnasium.make_vec(spec, count))
    if not single and limit is not None:
        raise UsageError(
            f"max_episode_steps {limit} is not for vector environments: let {name} truncate episodes itself"
        )
    if not single:

        def vector(count: int) -> VectorEnv:
            several = checked_make(name, lambda: env(num_envs=count, **kwargs))
            if not isinstance(several, VectorEnv):
                raise UsageError(f"env {name!r} takes num_envs but gives a single environment: rename that parameter")
            return several

        return GymVectorEnv(vector(num_envs), device, name, vector)

    def factory(drawn: bool) -> SingleEnv:
        if isinstance(env, gymnasium.Env):
            return in_wrappers(fresh_copy(env, drawn), options.wrappers)
        one = checked_make(name, lambda: make_with_arguments(name, lambda: env(**kwargs), lambda: env, kwargs))
        if isinstance(one, VectorEnv):
            raise UsageError(f"env {name!r} gives vector environments: let it take num_envs, or give one of them")
        one = in_drawing_mode(one, drawn, functools.partial(env, **kwargs))
        return in_wrappers(one if limit is None else gymnasium.wrappers.TimeLimit(one, limit), options.wrappers)

    return singles(factory, num_envs, device, name, mode)


def fresh_copy(env: SingleEnv, drawn: bool) -> SingleEnv:
    """A new environment like this one: made from its spec, or copied if that is not possible."""
    if env.spec is not None:
        spec = env.spec
        changes: dict[str, Any] = {"render_mode": "rgb_array"} if drawn else {}
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return gymnasium.make(spec, **changes)
    try:
        twin = copy.deepcopy(env)
    except Exception:
        raise UsageError(
            f"env {id_or_path(env)!r} cannot be copied, and several are needed: give a factory instead, such as its class"
        ) from None
    return in_drawing_mode(twin, drawn)


def checked_make(name: str, make: Callable[[], Any]) -> Any:
    """Call `make` and return its environment; any failure is a UsageError of one line."""
    try:
        env = make()
    except gymnasium.error.DependencyNotInstalled as error:
        extra = next((extra for package, extra in EXTRAS.items() if package in str(error).lower()), None)
        hint = f'pip install "tightrope[{extra}]"' if extra else one_line(error)
        raise UsageError(f"env {name!r} needs a package that is not installed: {hint}") from None
    except gymnasium.error.UnregisteredEnv:
        raise UsageError(f"unknown env {name!r}.{near_matches(name, gymnasium_ids())}") from None
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"env {name!r} cannot be made: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(env, (gymnasium.Env, VectorEnv)):
        fix = "return one, or give a tensor environment itself or its class instead of a function"
        raise UsageError(f"env {name!r} is not a Gymnasium environment but a {type(env).__name__}: {fix}")
    return env
