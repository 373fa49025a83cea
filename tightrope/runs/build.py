"""From a configuration to a state that can be trained: environments, network, optimiser, all seeded."""

from __future__ import annotations

import contextlib
import math
from dataclasses import fields
from typing import Any

import torch

from ..algorithms import ALGORITHMS
from ..algorithms.vpg import VPGConfig
from ..engine import Execution, State, Unit, apart, chosen_mode, stream_seed, world
from ..engine.ranks import as_first
from ..engine.streams import initialising
from ..envs import ENVS as TENSOR_ENVS
from ..envs import TensorEnv, choose, make
from ..envs.engines import Choice
from ..envs.importing import import_module_of
from ..envs.notes import time_limit
from ..envs.validate import check_spaces
from ..errors import UsageError
from ..models import actor_critic
from ..types import Env, Settings, Spec
from .config import Config, RunConfig, configure, merged_layers
from .devices import memory_of, name_of_device, resolve_device, suits_cpu
from .given import Network, from_user, import_training_env, is_ours, is_path, own_network
from .names import ENVS, here_called
from .presets import MANY, kind_of, preset
from .shares import share_of

RUN_SETTINGS = tuple(field.name for field in fields(RunConfig))


def check_env(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The engine for an id that the user gave, whose module is imported where it names one."""
    import_module_of(env_id)
    return engine_for(env_id, backend, with_arguments)


def engine_for(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The engine for an id, or an error that knows the ids of other libraries too. Imports nothing: it may be a file's."""
    foreign = here_called(env_id, ENVS)
    if foreign:
        raise UsageError(f"unknown env {env_id!r}: {foreign}")
    return choose(env_id, backend, with_arguments)


def make_env(config: Config, env_id: str, num_envs: int, scoring: bool = False) -> Env:
    """The environment with that id as the settings want it; `scoring` for evaluation."""
    run = config.run
    wanted = run.backend if env_id == config.env or env_id not in TENSOR_ENVS else "auto"  # a shaped env may be ours
    backend, _ = engine_for(env_id, wanted, bool(run.env_kwargs))
    device = resolve_device(run.device)
    # only copies of the scoring one are used, and these need no processes
    mode = "sync" if scoring and run.vectorization_mode == "async" else run.vectorization_mode
    options: Settings = {"vectorization_mode": mode, "env_kwargs": run.env_kwargs, "scoring": scoring}
    env = make(env_id, num_envs, device, run.max_episode_steps, backend=backend, **options)
    if run.device == "auto" and suits_cpu(env):
        env.device = torch.device("cpu")
    return env


def configured(env_id: str, algo: str, *layers: Settings, given: Any = None, preset_env: str | None = None) -> Config:
    """`configure`, for a run that is about to begin: where there is no preset, one environment is made to see of what kind it
    is, and the defaults of that kind are the first layer. `given` is the environment where that is an object."""
    settings = merged_layers(algo, *layers)
    if settings.get("defaults", "auto") != "auto" or preset(preset_env or env_id, algo):
        return configure(env_id, algo, settings, preset_env=preset_env)
    import_training_env(settings.get("train_env"))
    of_run = {name: value for name, value in settings.items() if name in RUN_SETTINGS}
    look = configure(env_id, algo, of_run, with_preset=False)
    with apart(stream_seed(look.run.seed, "look"), resolve_device(look.run.device)):
        observation, action, limit, on_device = seen(look, given, settings.get("num_envs", MANY))
    if observation is None or action is None:
        return configure(env_id, algo, settings, preset_env=preset_env)  # what is missing is said when it is built
    found: Settings = {"num_envs": MANY} if on_device and algo == "ppo" else {}
    if algo == "vpg" and isinstance(limit, int) and limit < VPGConfig.num_steps:
        found["num_steps"] = limit  # whole episodes, and nothing behind their ends
    found |= settings | {"defaults": kind_of(observation, action)}
    return configure(env_id, algo, found, preset_env=preset_env)


def seen(config: Config, given: Any, many: int) -> tuple[Spec | None, Spec | None, Any, bool]:
    """(what an environment shows, what it takes, its time limit, whether it is made of tensors). What is ready is only looked
    at; of an id, a class or a factory one copy is made, or `many` where they are rows of a tensor."""
    if given is not None and not callable(given) and not is_ours(given):
        from ..envs import spaces

        single = "single_" if hasattr(given, "num_envs") else ""
        shown, taken = (getattr(given, f"{single}{name}_space") for name in ("observation", "action"))
        return spaces.observation(shown).spec, spaces.action(taken).spec, time_limit(given), False
    if given is None:
        env = make_env(config, config.run.train_env or config.env, 1)
    else:
        of_tensors = isinstance(given, type) and issubclass(given, TensorEnv)
        env = from_user(given, config, many if of_tensors else 1)
    if env is not given:
        with contextlib.suppress(Exception):  # said, if at all, when the run's own environments are closed
            env.close()
    return getattr(env, "observation", None), getattr(env, "action", None), time_limit(env), env.capturable


def settled(config: Config, state: State) -> Config:
    """The settings with every choice made that was left to us, so that a saved run keeps to it."""
    chosen: Settings = {"device": name_of_device(state.env.device), "accelerate": state.execution.mode}
    if not is_path(config.env) and config.run.backend == "auto":
        backend, _ = engine_for(config.env, with_arguments=bool(config.run.env_kwargs))
        chosen |= {} if backend == "tensor" else {"backend": backend}
    return config.changed(**chosen)


def build(config: Config, env: Env | None = None, network: Network | None = None) -> State:
    """A state before its first phase. `env` stands in for the configured training environment, `network` for the trunk."""
    try:
        return _build(config, env, network)
    except (RuntimeError, MemoryError) as error:
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        sizes = f"num_envs {config.algorithm.num_envs} x num_steps {config.algorithm.num_steps}"
        raise UsageError(
            f"{sizes} with hidden_sizes {list(config.network.hidden_sizes)} does not fit into memory: lower them"
        ) from None


def check_memory(config: Config, batch_size: int, env: Env) -> None:
    """Refuse rollouts that no memory of this machine could hold, before any of it is taken."""
    sizes = [2 * math.prod(env.observation.shape) * env.observation.dtype.itemsize]
    sizes += [math.prod(env.action.shape) * env.action.dtype.itemsize, 5 * 4]
    needed, there = batch_size * sum(sizes), memory_of(env.device)
    if needed > there:
        rows = f"num_envs {config.algorithm.num_envs} x num_steps {config.algorithm.num_steps}"
        raise UsageError(f"{rows} needs {needed / 2**30:,.0f} GiB, {env.device} has {there / 2**30:,.0f}: lower them")


def _build(config: Config, env: Env | None, network: Network | None) -> State:
    share = share_of(config.algorithm, world().size)
    if env is None:
        env = make_env(config, config.run.train_env or config.env, share.num_envs)
    if isinstance(env, TensorEnv):
        check_spaces(env)  # its methods are tried at its first reset
    if env.skips and config.algorithm.num_steps < 2:  # all of it may be rows that only reset
        raise UsageError("num_steps 1 is too few for an env whose resets take a step of their own: give at least 2")
    updates = getattr(share, "num_minibatches", 1)
    if env.skips and world().talks and share.num_envs * (share.num_steps // 2) < updates:
        raise UsageError(
            f"num_minibatches {updates} may be more than the rows that a rank has to learn from, since resets take a step of "
            f"their own: give at most {share.num_envs * (share.num_steps // 2)}"
        )
    check_memory(config, share.batch_size, env)
    if hasattr(env, "gamma"):  # a potential's discount is the learner's
        env.gamma = config.algorithm.gamma
    with initialising(stream_seed(config.run.seed, "network")):
        trunk = None if network is None else own_network(network)
        has_critic = config.algorithm.has_critic
        policy = actor_critic(env.observation, env.action, config.network, has_critic, trunk)
    policy.to(env.device).eval()  # for good: a policy that drops out or renormalises has no ratio
    as_first(*(x.data for x in policy.parameters()), *policy.buffers())  # whatever a network of one's own draws from
    state: State = ALGORITHMS[config.algo].start(env, policy, config.algorithm, config.run.seed)
    unit: Unit = "phase" if env.capturable else "part"
    mode = chosen_mode(config.run.accelerate, env.device)
    state.execution = Execution(mode, unit, config.run.precision, env.device)
    return state
