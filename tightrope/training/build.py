"""Build the state of a run from its configuration (environments, network, optimizer)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch

from ..algorithms import ALGORITHMS, OnPolicyConfig
from ..algorithms.common import divides
from ..engine import State, choose_runtime, isolated_rng, stream_seed, world
from ..engine.distributed import copy_from_rank0
from ..engine.noise import initialising
from ..envs import ENVS as TENSOR_ENVS
from ..envs import TensorEnv, choose, make
from ..envs.registry import Choice, import_module_of
from ..envs.training_warnings import find_time_limit
from ..envs.validate import check_spaces
from ..envs.with_memory import with_memory
from ..errors import UsageError
from ..models import ActorCritic, actor_critic
from ..types import Env, Settings
from .config import Config, RunConfig, configure, merged_layers
from .names import ENVS, here_called
from .own_code import functions_of, in_memory, is_import_path, with_own_code
from .presets import KIND_WORDS, Traits, kind_of, kind_settings, preset
from .settings import memory_of, name_of_device, resolve_device, suits_cpu
from .user_objects import (  # fmt: skip
    Network,
    ancestor_of,
    from_user,
    implements_env,
    name_of,
    named_by_user,
    own_memory,
    own_network,
)

RUN_SETTINGS = tuple(field.name for field in fields(RunConfig))


def check_env(env_id: str, backend: str = "auto") -> Choice:
    """The backend for an id that the user gave. Imports the module that an id such as module:Name-v0 names."""
    import_module_of(env_id)
    return backend_for(env_id, backend)


def backend_for(env_id: str, backend: str = "auto", with_arguments: bool = False) -> Choice:
    """The backend for an id; UsageError otherwise, also for ids of other libraries. Imports nothing: a file may name it."""
    foreign = here_called(env_id, ENVS)
    if foreign:
        raise UsageError(f"unknown env {env_id!r}: {foreign}")
    return choose(env_id, backend, with_arguments)


def training_env(path: str, run: RunConfig) -> Callable[..., object]:
    """The class or factory that train_env names. It must be imported already: a file may name it."""
    found: object = in_memory(path)
    if not callable(found):
        raise UsageError(f"train_env {path} is not a class at the top level of a module: give an id, or module:Class")
    if run.wrappers and isinstance(found, type) and issubclass(found, TensorEnv):
        raise UsageError(f"wrappers need an env of Gymnasium, and train_env {path} is none: drop one of them")
    return found


def make_env(config: Config, env_id: str, num_envs: int, scoring: bool = False) -> Env:
    """Make the environment with this id according to the settings; `scoring` if it is for evaluations."""
    run = config.run
    if is_import_path(env_id):
        return from_user(training_env(env_id, run), config, num_envs)
    # train_env may be one of ours
    wanted = run.backend if env_id == config.env or env_id not in TENSOR_ENVS else "auto"
    backend, _ = backend_for(env_id, wanted, run.adapts_env)
    if run.wrappers and backend == "tensor" and env_id != config.env:
        raise UsageError(f"wrappers need an env of Gymnasium, and train_env {env_id} is none: drop one of them")
    device = resolve_device(run.device)
    # evaluations only use copies of this environment, which need no processes
    mode = "sync" if scoring and run.vectorization_mode == "async" else run.vectorization_mode
    options: Settings = {"vectorization_mode": mode, "env_kwargs": run.env_kwargs, "scoring": scoring}
    options["wrappers"] = functions_of(run.wrappers)
    env = make(env_id, num_envs, device, run.max_episode_steps, backend=backend, **options)
    if run.device == "auto" and suits_cpu(env):
        env.device = torch.device("cpu")
    return env


def configured(env_id: str, algo: str, *layers: Settings) -> Config:
    """`configure` for a run of an id that is about to begin. Where the defaults follow the kind of environment, one is made to
    look at, and closed again."""
    settings = with_own_code(merged_layers(algo, *layers))
    if not follows_kind(env_id, algo, settings):
        return configure(env_id, algo, settings)
    run = run_settings(env_id, algo, settings)
    named_by_user(run.run.train_env, "train_env")
    with isolated_rng(stream_seed(run.run.seed, "look"), resolve_device(run.run.device)):
        env = make_env(run, run.run.train_env or env_id, 1)
        close_quietly(env)
    return configure_for(env, env_id, algo, settings)


def configured_with(given: Any, algo: str, *layers: Settings) -> tuple[Config, Any]:
    """Return the configuration, and the environment or factory the run should use. A class or a factory that is called
    to see the kind is called for the run itself, so that it makes `num_envs` of them and not one more."""
    settings, env_id, preset_env = with_own_code(merged_layers(algo, *layers)), name_of(given), ancestor_of(given)
    if not follows_kind(preset_env or env_id, algo, settings):
        return configure(env_id, algo, settings, preset_env=preset_env), given
    if implements_env(given):
        return configure_for(given, env_id, algo, settings, preset_env), given
    if not callable(given):  # a Gymnasium environment, which is looked at where it is
        from ..envs.adapters.actions import Shown

        return configure_for(Shown(given), env_id, algo, settings, preset_env), given
    run = run_settings(env_id, algo, settings)
    of_tensors = isinstance(given, type) and issubclass(given, TensorEnv)
    usual = kind_settings("discrete", algo, settings, Traits(on_device=of_tensors))
    num_envs: int = ({"num_envs": ALGORITHMS[algo].config.num_envs} | usual | settings)["num_envs"]
    count = max(num_envs // world().size, 1)
    with isolated_rng(stream_seed(run.run.seed, "setup", rank=world().rank), resolve_device(run.run.device)):
        env = from_user(given, run, count)
    try:
        config = configure_for(env, env_id, algo, settings, preset_env)
        if per_rank_config(config.algorithm, world().size).num_envs == count:
            return config, env
    except BaseException:
        close_quietly(env)
        raise
    close_quietly(env)  # its kind wants another number of them
    return config, given


def follows_kind(env_id: str, algo: str, settings: Settings) -> bool:
    """Whether the defaults of a run are those of its kind of environment."""
    wanted = settings.get("defaults", "auto")
    return wanted in KIND_WORDS or (wanted == "auto" and not preset(env_id, algo))


def run_settings(env_id: str, algo: str, settings: Settings) -> Config:
    """What decides how an environment is made."""
    return configure(env_id, algo, {k: v for k, v in settings.items() if k in RUN_SETTINGS}, with_preset=False)


def traits_of(env: Any) -> Traits:
    return Traits(limit if isinstance(limit := find_time_limit(env), int) else None, bool(env.capturable))


def configure_for(env: Any, env_id: str, algo: str, settings: Settings, preset_env: str | None = None) -> Config:
    """`configure` with the defaults that suit an environment: of its kind, unless the settings name one."""
    observation, action = getattr(env, "observation", None), getattr(env, "action", None)
    if observation is not None and action is not None:  # otherwise what is missing is said when it is built
        named = settings.get("defaults", "auto")
        settings = {**settings, "defaults": kind_of(observation, action) if named == "auto" else named}
    return configure(env_id, algo, settings, preset_env=preset_env, traits=traits_of(env))


def close_quietly(env: Env) -> None:
    """Close an environment and ignore errors: closing the run's own environments reports them."""
    with contextlib.suppress(Exception):
        env.close()


def resolved(config: Config, state: State) -> Config:
    """The settings with every 'auto' replaced by the choice made, so that a resumed run makes the same choice."""
    chosen: Settings = {"device": name_of_device(state.env.device), "accelerate": state.runtime.mode}
    if not is_import_path(config.env) and config.run.backend == "auto":
        backend, _ = backend_for(config.env, with_arguments=config.run.adapts_env)
        chosen |= {} if backend == "tensor" else {"backend": backend}
    return config.changed(**chosen)


def build(config: Config, env: Env | None = None, network: Network | None = None) -> State:
    """Build the state before the first phase. `env` is the user's own, `network` replaces the trunk."""
    try:
        return _build(config, env, network)
    except (RuntimeError, MemoryError) as error:
        if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
            raise
        sizes = f"{size_words(config)} with hidden_sizes {list(config.network.hidden_sizes)}"
        raise UsageError(f"{sizes} does not fit into memory: lower them") from None


def size_words(config: Config) -> str:
    return f"num_envs {config.algorithm.num_envs} x num_steps {config.algorithm.num_steps}"


def check_sequences(share: OnPolicyConfig, env: Env) -> None:
    """Raise UsageError if minibatches cannot be whole sequences of environments, as a memory needs them."""
    if env.skips and world().is_distributed:
        raise UsageError(
            "memory on several ranks needs an env that resets within a step: give autoreset_mode SAME_STEP"
        )
    if share.epoch_settings:
        whole = "num_envs (with memory, minibatches are all steps of some environments)"
        divides(share, share.epoch_settings[1], whole, share.num_envs)


def check_memory(config: Config, batch_size: int, env: Env) -> None:
    """Raise UsageError if a rollout cannot fit into the memory of the device, before any is allocated."""
    sizes = [2 * math.prod(env.observation.shape) * env.observation.dtype.itemsize]
    sizes += [math.prod(env.action.shape) * env.action.dtype.itemsize, 5 * 4]
    needed, there = batch_size * sum(sizes), memory_of(env.device)
    if needed > there:
        gigabytes = f"{needed / 2**30:,.0f} GiB, {env.device} has {there / 2**30:,.0f}"
        raise UsageError(f"{size_words(config)} needs {gigabytes}: lower them")


def per_rank_config(algorithm: OnPolicyConfig, ranks: int) -> OnPolicyConfig:
    """The settings for one rank: an equal share of the environments and steps of the run."""
    if ranks == 1:
        return algorithm
    if algorithm.num_envs % ranks:
        below = algorithm.num_envs // ranks * ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        raise UsageError(f"num_envs {algorithm.num_envs} does not split evenly over {ranks} ranks: give {near}")
    try:
        num_envs = algorithm.num_envs // ranks
        return replace(algorithm, num_envs=num_envs, total_timesteps=algorithm.phases * num_envs * algorithm.num_steps)
    except UsageError as error:
        raise UsageError(f"on each of {ranks} ranks, with num_envs {num_envs}: {error}") from None


def new_network(config: Config, env: Env, network: Network | None) -> ActorCritic:
    """The untrained networks of a run for the spaces of an environment, with the user's own network and memory if any."""
    trunk, memory = None if network is None else own_network(network), own_memory(config.network.memory)
    return actor_critic(env.observation, env.action, config.network, config.algorithm.has_critic, trunk, memory)


def _build(config: Config, env: Env | None, network: Network | None) -> State:
    """Return the state before the first phase, with this rank's share of the environments."""
    share = per_rank_config(config.algorithm, world().size)
    if env is None or config.run.train_env is not None:
        env = make_env(config, config.run.train_env or config.env, share.num_envs)
    if isinstance(env, TensorEnv):
        check_spaces(env)  # its methods are checked at the first reset
    if env.skips and config.algorithm.num_steps < 2:  # otherwise a rollout may consist of resets only
        raise UsageError("num_steps 1 is too few for an env whose resets take a step of their own: give at least 2")
    updates, fewest = getattr(share, "num_minibatches", 1), share.num_envs * (share.num_steps // 2)
    if env.skips and world().is_distributed and fewest < updates:
        raise UsageError(f"num_minibatches {updates} may exceed the rows that a rank collects: give at most {fewest}")
    if config.network.memory is not None:
        check_sequences(share, env)
    if hasattr(env, "gamma"):  # reward shaping by a potential uses the discount of the learner
        env.gamma = config.algorithm.gamma
    with initialising(stream_seed(config.run.seed, "network")):
        policy = new_network(config, env, network)
    env = with_memory(env, policy.memory_rows)
    check_memory(config, share.batch_size, env)
    policy.to(env.device).eval()  # always: with dropout or batch norm in training mode, the policy ratio is undefined
    # a user's network may draw its weights from a stream that differs between ranks
    copy_from_rank0(*(x.data for x in policy.parameters()), *policy.buffers())
    calls = config.algorithm.phases * (config.algorithm.num_steps + config.algorithm.updates_per_phase)
    runtime = choose_runtime(config.run.accelerate, config.run.precision, env, calls)
    runtime.prepare(policy, env)
    state: State = ALGORITHMS[config.algo].start(env, policy, config.algorithm, config.run.seed, runtime)
    state.functions = state.functions.with_own(
        {f.name: f.function for f in config.run.functions if f.function is not None}
    )
    return state
