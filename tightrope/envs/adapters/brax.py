"""Environments written in JAX with Brax's interface: Brax's own and those of MuJoCo Playground.

    brax/ant, brax/hopper, ...        any name of brax.envs, its own names (`ant`) also without the prefix
    playground/CartpoleBalance, ...   any name of Playground's registry

N copies are stepped by one compiled function that keeps what Brax's training wrappers lose: the true final observation, the
difference between an end and a time limit, and a fresh start for every episode. Arrays go to torch and back by DLPack. With
JAX_COMPILATION_CACHE_DIR set to a folder, the next process compiles in a fraction of the time.
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ...errors import UsageError, check_positive, near_matches, one_line
from ...types import Box, Step
from ..registry import EnvOptions, id_or_path
from .pictures import Camera, camera_for, choose_opengl

Array = Any  # of JAX, whose types are there only where JAX is

NAMES = (
    "ant", "fast", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum",
    "inverted_pendulum", "pusher", "reacher", "swimmer", "walker2d",
)  # fmt: skip
PHYSICS = ("spring", "positional", "generalized", "mjx")  # of Brax, the fastest first
ALIGNMENT = 64  # bytes: a view into the middle of a tensor is not something XLA can take as it is
NEVER = 2**31 - 1  # steps
TIME_LIMIT = 1000  # of Brax's tasks, which leave it to the trainer


class JaxState(NamedTuple):
    """Everything that is kept between two steps, as JAX arrays."""

    state: Any  # of the environment, each leaf (N, ...)
    key: Array  # of the random stream that start states come from
    clock: Array  # (N,) int32
    running_return: Array  # (N,)
    finished: Array  # (3, N) episodes, their returns, their lengths


class JaxEnv:
    """N copies of an environment with Brax's interface: reset(rng) -> state, step(state, action) -> state.

    Of observations that are a dictionary, the entry "state" is used. Start states come from a JAX random stream of its own.
    """

    backend = "brax"
    noise_size = 0
    capturable = False  # JAX launches work of its own, which a CUDA graph of torch cannot hold
    resumable = True
    skips = drawable = False
    pace, groups = 30, 0

    def __init__(
        self,
        env: Any,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        check_positive("max_episode_steps", max_episode_steps)
        self.name, self.env, self.device = name or id_or_path(env), env, torch.device(device)
        self._camera: Camera | None = None
        self._jax = import_package("jax", self.name)
        self._jax_device = jax_device(self._jax, self.device)
        self._begin, self._advance = compile_functions(self._jax, env, branching=self.device.type == "cpu")
        self._set_time_limit(max_episode_steps)
        self.action = Box((env.action_size,), low=-1.0, high=1.0)
        self._allocate(num_envs, seed)

    def _set_time_limit(self, steps: int | None) -> None:
        """Truncate episodes after so many steps. A traced argument, so changing it does not recompile."""
        self.max_episode_steps = steps
        self._limit = self._jax.device_put(np.int32(NEVER if steps is None else steps), self._jax_device)

    def _allocate(self, num_envs: int, seed: int) -> None:
        check_positive("num_envs", num_envs)
        self.num_envs = num_envs
        self._running, obs = self._initial(self._key(seed))
        self.observation = Box(tuple(obs.shape[1:]))

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        begun, obs = self._initial(self._running.key if seed is None else self._key(seed))
        self._running = begun._replace(finished=self._running.finished)
        return from_dlpack(obs)

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, the next one starts in the same step."""
        on_host = self.device.type == "cpu"  # where JAX reads a NumPy view faster
        actions = action.detach().numpy() if on_host else self._array(action)
        self._running, step = self._advance(self._running, actions, self._limit)
        return Step(*map(from_dlpack, step))

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = from_dlpack(self._running.finished).sum(1)
        self._running = self._running._replace(finished=self._array(torch.zeros(3, self.num_envs, device=self.device)))
        return totals

    seed = reset

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """Another environment of the same kind and settings, with state and random stream of its own."""
        twin = copy.copy(self)  # shares what is compiled already
        twin._allocate(num_envs, seed)
        twin._camera = camera_for(self.env, self.name) if drawn else None
        return twin

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        """The environments as they are now: MuJoCo draws states, not observations."""
        if self._camera is None:
            raise UsageError(f"env {self.name!r} cannot be drawn from observations alone: use agent.record(path)")
        state = self._running.state
        brax = hasattr(state, "pipeline_state")
        arrays = (state.pipeline_state.q, state.pipeline_state.qd) if brax else (state.data.qpos, state.data.qvel)
        rows = zip(*map(np.asarray, arrays), strict=True)
        return np.stack([self._camera.picture(*row) for row, _ in zip(rows, obs, strict=False)])

    def state_dict(self) -> dict[str, Tensor]:
        """Every array of the state by its path, such as state.pipeline_state.q; random keys as signed integers."""
        leaves, _ = self._jax.tree_util.tree_flatten_with_path(self._running)
        return {self._name(path): as_signed(from_dlpack(leaf).clone()) for path, leaf in leaves}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        def loaded(path: object, leaf: Array) -> Array:
            saved, mine = state.get(self._name(path)), from_dlpack(leaf)
            like = as_signed(mine)
            if saved is None or (saved.shape, saved.dtype) != (like.shape, like.dtype):
                found = "is missing" if saved is None else f"has shape {tuple(saved.shape)} and type {saved.dtype}"
                raise RuntimeError(f"env {self._name(path)} {found}, expected {tuple(like.shape)} and {like.dtype}")
            return self._array(saved.to(self.device, copy=True).view(mine.dtype))

        self._running = self._jax.tree_util.tree_map_with_path(loaded, self._running)

    def close(self) -> None:
        if self._camera is not None:
            self._camera.close()

    # between torch and JAX -------------------------------------------------------------------------------------------

    def _array(self, tensor: Tensor) -> Array:
        """A JAX array over the tensor's memory; JAX waits for the work that torch has queued."""
        tensor = tensor.detach().contiguous()
        return self._jax.dlpack.from_dlpack(tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone())

    def _initial(self, key: Array) -> tuple[JaxState, Array]:
        """New episodes and their observations. On a GPU this waits for torch: JAX may take memory that torch has freed but
        still reads. A step need not wait, since its action comes from torch."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self._begin(key, self.num_envs)

    def _key(self, seed: int) -> Array:
        """A random key from all bits of the seed, of which JAX's own function drops half."""
        key = np.random.SeedSequence(seed).generate_state(self._jax.eval_shape(self._jax.random.PRNGKey, 0).size)
        return self._jax.device_put(key, self._jax_device)

    def _name(self, path: object) -> str:
        return str(self._jax.tree_util.keystr(path, simple=True, separator="."))


def compile_functions(jax: Any, env: Any, branching: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(begin, advance) of N environments. With `branching`, start states are computed only when an episode has ended;
    on a GPU that would make the host wait for the answer in every step."""
    jnp = jax.numpy

    def initial_states(key: Array, num_envs: int) -> object:
        state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)  # never weakly typed

    def observe(state: Any) -> Array:
        obs = state.obs
        if isinstance(obs, Mapping):
            if "state" not in obs:
                raise UsageError(
                    f"observations with the entries {', '.join(obs)} are not supported: one must be 'state'"
                )
            obs = obs["state"]
        return obs.astype(jnp.float32)

    def begin(key: Array, num_envs: int) -> tuple[JaxState, Array]:
        key, fresh = jax.random.split(key)
        state, zeros = initial_states(fresh, num_envs), jnp.zeros(num_envs)
        return JaxState(state, key, zeros.astype(jnp.int32), zeros, jnp.zeros((3, num_envs))), observe(state)

    def advance(running: JaxState, action: Array, limit: Array) -> tuple[JaxState, tuple[Array, ...]]:
        stepped = jax.vmap(env.step)(running.state, action)
        # the very types that came in: otherwise the next call is compiled anew
        state = jax.tree.map(lambda new, old: new.astype(old.dtype), stepped, running.state)
        clock, reward = running.clock + 1, state.reward.astype(jnp.float32)
        terminated = state.done.astype(bool)
        done = terminated | (clock >= limit)
        key, fresh = jax.random.split(running.key)

        def where_done(new: Array, old: Array) -> Array:
            return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        def restarted() -> object:
            return jax.tree.map(where_done, initial_states(fresh, len(done)), state)

        following = jax.lax.cond(done.any(), restarted, lambda: state) if branching else restarted()
        total = running.running_return + reward
        ended = jnp.stack([jnp.ones_like(total), total, clock.astype(total.dtype)])
        after = JaxState(
            state=following,
            key=key,
            clock=jnp.where(done, 0, clock),
            running_return=jnp.where(done, 0, total),
            finished=running.finished + jnp.where(done, ended, 0),
        )
        # every result has memory of its own, so what is handed out may be written into
        return after, (observe(following), reward, terminated, done & ~terminated, observe(state))

    return jax.jit(begin, static_argnums=1), jax.jit(advance)


def jax_device(jax: Any, device: torch.device) -> object:
    """JAX's device for torch's."""
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device.type} is not one that JAX environments run on: give cpu or cuda")
    try:
        return jax.devices("gpu" if device.type == "cuda" else "cpu")[device.index or 0]
    except RuntimeError:
        fix = f'it has {jax.default_backend()}): set device, or install another, such as pip install "jax[cuda12]"'
        raise UsageError(f"device {device.type} is not one that this JAX can use ({fix}") from None


def as_signed(tensor: Tensor) -> Tensor:  # every file format has signed types
    return tensor.view(torch.int32) if tensor.dtype == torch.uint32 else tensor


class BraxAdapter:
    """Makes environments by their ids."""

    def provides(self, env_id: str) -> bool:
        """Whether an id is one of Brax or Playground, decided without JAX."""
        return env_id.startswith(("brax/", "playground/")) or env_id in NAMES

    def from_id(self, env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> JaxEnv:
        """The environment behind an id. Brax's physics is env_kwargs' `backend`, spring unless given; Playground's env_kwargs
        are overrides of its configuration, in which `impl` is jax unless given."""
        suite, _, name = env_id.rpartition("/")
        make = from_playground if suite == "playground" else from_brax
        try:
            env, limit = make(env_id, name, options.env_kwargs)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"env {env_id!r} cannot be made: {one_line(error)}") from error
        limit = limit if options.max_episode_steps is None else options.max_episode_steps
        return JaxEnv(env, num_envs, device, limit, name=env_id)


def from_brax(env_id: str, name: str, kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """(environment, time limit)"""
    envs = import_package("brax.envs", env_id)
    if name not in envs._envs:
        raise UsageError(f"unknown env {env_id!r}.{near_matches(name, envs._envs)} Brax has: {', '.join(envs._envs)}")
    backend = kwargs.get("backend", "generalized" if name == "swimmer" else "spring")  # which cannot swim
    if backend not in PHYSICS:
        raise UsageError(f"backend {backend!r} is not a physics of Brax: give one of {', '.join(PHYSICS)}")
    return envs.get_environment(name, **{**kwargs, "backend": backend}), TIME_LIMIT


def from_playground(env_id: str, name: str, kwargs: Mapping[str, Any]) -> tuple[Any, int]:
    """(environment, time limit). An action_repeat in its configuration is for Playground's own trainer."""
    registry = import_package("mujoco_playground", env_id, extra="playground").registry
    if name not in registry.ALL_ENVS:
        raise UsageError(f"unknown env {env_id!r}.{near_matches(name, registry.ALL_ENVS)} Playground does not have it")
    config = registry.get_default_config(name)
    impl = {"impl": "jax"} if "impl" in config else {}
    return registry.load(name, config_overrides={**impl, **kwargs}), int(config.episode_length)


def import_package(name: str, env_id: str, extra: str = "brax") -> Any:
    """Import a module of an optional package; UsageError if it is not installed."""
    choose_opengl()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of a GPU that torch needs too
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        install = f'pip install "tightrope[{extra}]"'
        raise UsageError(f"env {env_id!r} needs a package that is not installed: {install}") from None


ADAPTER = BraxAdapter()
