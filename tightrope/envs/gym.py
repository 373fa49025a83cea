"""Gymnasium's environments: an id, an environment, a factory of environments, or a ready vector environment.

Single environments are stepped one after the other in this process (GymEnv). A vector environment, in other processes or
of its own making, is driven through its own interface (GymVectorEnv), and whichever auto-reset it declares is converted:

    same-step   final observations are in the infos
    disabled    finished rows are reset by mask in the same step
    next-step   likewise where the engine can reset some of its rows (Gymnasium's own two); where it cannot, the row that
                only resets is marked as not real, and nothing learns from it
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import multiprocessing
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from ..draw import shrink
from ..errors import EnvError, UsageError, near_matches
from .host import Answer, HostEnv, path_of
from .options import EnvOptions
from .spaces import Array, action, chosen, fits, observation, stacked

Factory = Callable[[bool], "gymnasium.Env[Any, Any]"]  # called with whether it will be asked to draw
VectorFactory = Callable[[int], VectorEnv]  # called with the number of environments
ALIASES = {"LunarLanderContinuous-v3": ("LunarLander-v3", {"continuous": True})}
EXTRAS = {
    "mujoco": "mujoco",
    "box2d": "box2d",
    "ale_py": "atari",
    "pygame": "box2d",
}  # package named in an error -> extra
WORKER_LOST = (BrokenPipeError, ConnectionResetError, EOFError)


class GymEnv(HostEnv):
    """N single Gymnasium environments, stepped one after the other."""

    backend = "gymnasium"

    def __init__(
        self, factory: Factory, num_envs: int, device: str | torch.device, name: str, drawn: bool = False
    ) -> None:
        self.name, self._factory, self._drawn = name, factory, drawn
        self.envs = [factory(drawn) for _ in range(max(num_envs, 1))]
        one = self.envs[0]
        self._describe(observation(one.observation_space), action(one.action_space), num_envs, device)
        self.solved_at = None if one.spec is None else one.spec.reward_threshold

    def _restart(self, seeds: Array | None) -> Array:
        given = [None] * self.num_envs if seeds is None else [int(seed) for seed in seeds]
        return self._rows([self._begin(i, seed) for i, seed in enumerate(given)])

    def _advance(self, action: Array) -> Answer:
        shown: list[Any] = []
        rows: list[int] = []
        finals: list[Any] = []
        reward = np.empty(self.num_envs, np.float32)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            try:
                obs, paid, terminated[i], truncated[i], _ = env.step(action[i])
                reward[i] = float(paid)
            except Exception as error:
                raise failed(self.name, i, action, error) from error
            if terminated[i] or truncated[i]:
                rows.append(i)
                finals.append(copy.deepcopy(obs))  # the reset may write into the same array
                obs = self._begin(i)
            shown.append(obs)
        obs = self._rows(shown)
        final_obs = self._rows(finals, rows) if rows else obs[:0]
        return Answer(obs, reward, terminated, truncated, np.array(rows, np.int64), final_obs)

    def _begin(self, row: int, seed: int | None = None) -> Any:
        """The first observation of a new episode of one environment."""
        try:
            answer = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise failed(self.name, row, None, error) from error
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise failed(self.name, row, None, "it returns an observation alone, not (observation, info)")
        return answer[0]

    def _rows(self, singles: list[Any], rows: list[int] | None = None) -> Array:
        """Observations of single environments as rows; those of the wrong shape are named."""
        space = self._observation.space
        try:
            batch = self._observation.rows(stacked(space, singles))
        except (ValueError, TypeError, KeyError, IndexError):
            batch = None
        if batch is None or batch.shape[1:] != self.observation.shape:
            wrong = next((i for i, one in enumerate(singles) if not fits(space, one)), 0)
            row = wrong if rows is None else rows[wrong]
            what = (
                f"shape {np.shape(singles[wrong])}" if isinstance(space, gymnasium.spaces.Box) else repr(singles[wrong])
            )
            raise EnvError(
                f"env {self.name!r} number {row} shows {what}, which is not in {space}: `tightrope check` it"
            )
        return batch

    def _twin(self, num_envs: int, drawn: bool) -> Self:
        return type(self)(self._factory, num_envs, self.device, self.name, drawn)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """The environments as they are now: Gymnasium draws states, not observations."""
        if not self._drawn:
            raise UsageError(f"env {self.name!r} cannot be drawn from observations alone: use agent.record(path)")
        try:
            frames: list[Any] = [env.render() for env in self.envs[: len(obs)]]
        except Exception as error:
            raise UsageError(f"env {self.name!r} cannot be drawn here: {one_line(error)}") from None
        if any(not isinstance(frame, np.ndarray) for frame in frames):
            raise UsageError(f"env {self.name!r} does not draw itself: give it render_mode 'rgb_array'")
        return np.stack([shrink(frame) for frame in frames])

    def close(self) -> None:
        for env in self.envs:
            env.close()


class GymVectorEnv(HostEnv):
    """A Gymnasium vector environment. `again` makes another of the same kind, where that is possible."""

    backend = "gymnasium"

    def __init__(
        self, engine: VectorEnv, device: str | torch.device, name: str, again: VectorFactory | None = None
    ) -> None:
        self.name, self.engine, self._again = name, engine, again
        mode = engine.metadata.get("autoreset_mode")
        if mode is None:
            raise UsageError(
                f"vector env {name!r} does not say how it resets: set metadata['autoreset_mode'] to a member of "
                "gymnasium.vector.AutoresetMode"
            )
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            raise UsageError(
                f"vector env {name!r} declares autoreset_mode {mode!r}: give a member of gymnasium.vector.AutoresetMode"
            ) from None
        own = type(engine) is SyncVectorEnv or (type(engine) is AsyncVectorEnv and engine.shared_memory)
        self._resets_rows = self._mode is AutoresetMode.DISABLED or own
        self.skips = self._mode is AutoresetMode.NEXT_STEP and not self._resets_rows
        spaces = observation(engine.single_observation_space), action(engine.single_action_space)
        self._describe(*spaces, engine.num_envs, device)
        self._pending = np.zeros(self.num_envs, bool)  # rows whose next step will only reset them
        self.solved_at = getattr(engine.spec, "reward_threshold", None)

    def _restart(self, seeds: Array | None) -> Array:
        self._pending[:] = False
        per_row = isinstance(self.engine.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        given: Any = None if seeds is None else [int(s) for s in seeds] if per_row else int(seeds[0])
        obs, _ = self._ask(lambda: self.engine.reset(seed=given), None)
        return self._observation.rows(obs)

    def _advance(self, action: Array) -> Answer:
        shown, reward, terminated, truncated, info = self._ask(lambda: self.engine.step(action), action)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        reward, done = np.asarray(reward, np.float32), terminated | truncated
        real = None
        if self.skips:
            real = ~self._pending
            reward, terminated, truncated, done = reward * real, terminated & real, truncated & real, done & real
            self._pending = done
        obs, rows = self._observation.rows(shown), np.flatnonzero(done)
        final_obs = obs[rows]
        if len(rows) and self._mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_rows(info, rows)
        elif len(rows) and self._resets_rows:
            fresh, _ = self._ask(lambda: self.engine.reset(options={"reset_mask": done}), action)
            obs = obs.copy()
            obs[rows] = self._observation.rows(fresh)[rows]
        return Answer(obs, reward, terminated, truncated, rows, final_obs, real)

    def _final_rows(self, info: Mapping[str, Any], rows: Array) -> Array:
        """The last observations of finished episodes: one object per row, or a batch of which these rows count."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise EnvError(f"vector env {self.name!r} resets in the same step but gives no info['final_obs']")
        space = self._observation.space
        singles = isinstance(final, np.ndarray) and final.dtype == object
        return self._observation.rows(stacked(space, list(final[rows])) if singles else chosen(space, final, rows))

    def _ask(self, question: Callable[[], Any], action: Array | None) -> Any:
        """The engine's answer, or an error that says which environment failed on what; then no process is left."""
        try:
            return question()
        except WORKER_LOST as error:
            lost = [i for i, process in enumerate(self._processes()) if died(process)]
            self._kill()
            raise failed(self.name, lost[0] if lost else None, action, "its process died") from error
        except Exception as error:
            row = next(
                (i for i, pipe in enumerate(getattr(self.engine.unwrapped, "parent_pipes", [])) if pipe is None), None
            )
            self._kill()
            raise failed(self.name, row, action, error) from error

    def _processes(self) -> list[Any]:
        return list(getattr(self.engine.unwrapped, "processes", []))

    def _kill(self) -> None:
        for process in self._processes():
            process.kill()
            process.join()
        if self._processes():
            self.engine.unwrapped.closed = True  # nothing is left to close, and closing would wait for answers

    def _twin(self, num_envs: int, drawn: bool) -> Any:
        """For evaluation and drawing. Gymnasium's own are taken apart, so that processes are not needed for that."""
        fns = getattr(self.engine, "env_fns", None)  # of a wrapped one nothing is known of what the wrapper does
        if fns:
            return GymEnv(lambda drawn: in_drawing_mode(fns[0](), drawn), num_envs, self.device, self.name, drawn)
        if self._again is None:
            raise UsageError(
                f"vector env {self.name!r} cannot be copied, which scoring needs: give a factory of it instead, a function "
                "of num_envs"
            )
        return type(self)(self._again(num_envs), self.device, self.name, self._again)

    def close(self) -> None:
        if not getattr(self.engine.unwrapped, "closed", False):
            self.engine.close()

    def __del__(self) -> None:
        if hasattr(self, "engine"):
            self._kill()


# ways in -------------------------------------------------------------------------------------------------------------


def known(env_id: str) -> bool:
    """Whether Gymnasium has such an id."""
    base = ALIASES.get(env_id, (env_id, {}))[0]
    return base in gymnasium.registry or base in register_ale()


def register_ale() -> Mapping[str, Any]:
    """Gymnasium's ids with those of ale-py, if that is installed."""
    try:
        import ale_py
    except ImportError:
        return gymnasium.registry
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)
    return gymnasium.registry


def from_id(env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
    """The environment Gymnasium has under an id."""
    base, preset = ALIASES.get(env_id, (env_id, {}))
    entry_point = getattr(register_ale().get(base), "entry_point", None)
    if str(entry_point).startswith("gymnasium.envs.mujoco"):
        quieten_mujoco()
    kwargs: dict[str, Any] = {**preset, **options.env_kwargs}
    if options.max_episode_steps is not None:
        kwargs["max_episode_steps"] = options.max_episode_steps

    def factory(drawn: bool) -> gymnasium.Env[Any, Any]:
        rendering: dict[str, Any] = {"render_mode": "rgb_array"} if drawn else {}
        return made(env_id, lambda: gymnasium.make(base, disable_env_checker=True, **kwargs, **rendering))

    if options.vectorization_mode == "sync":
        return GymEnv(factory, num_envs, device, env_id)
    if options.vectorization_mode == "async":
        return in_processes(factory, num_envs, device, env_id)

    def vector(count: int) -> VectorEnv:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        return made(env_id, lambda: gymnasium.make_vec(base, count, mode, **kwargs))

    return GymVectorEnv(vector(num_envs), device, env_id, vector)


def quieten_mujoco() -> None:
    """MuJoCo writes each warning of each copy to the terminal and to a log file in the working directory. Say each once, and
    leave out what is said of Gymnasium's own model files, which no user can mend."""
    try:
        import mujoco
    except ImportError:  # said by Gymnasium, when the environment is made
        return
    if mujoco.get_mju_user_warning() is not None:
        return
    said: set[str] = set()

    def say(message: str) -> None:
        if "deprecated" not in message and message not in said:
            said.add(message)
            print(f"mujoco: {message}", file=sys.stderr)

    mujoco.set_mju_user_warning(say)


def in_processes(factory: Factory, num_envs: int, device: str | torch.device, name: str) -> GymVectorEnv:
    """Single environments, each in a process of its own."""

    def in_worker() -> gymnasium.Env[Any, Any]:
        if multiprocessing.parent_process() is not None:  # Ctrl-C is for the trainer, which finishes its phase
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return factory(False)

    # not same-step: there a worker may reset into the very array that it is about to send as the final observation
    return GymVectorEnv(AsyncVectorEnv([in_worker] * num_envs, autoreset_mode=AutoresetMode.DISABLED), device, name)


def from_object(env: Any, num_envs: int, device: str | torch.device = "cpu", mode: str = "sync") -> HostEnv:
    """An environment, a class or factory of environments (single, or vectors by num_envs), or a vector environment."""
    name = path_of(env)
    single = not isinstance(env, VectorEnv) and "num_envs" not in parameters(env)
    if mode == "vector_entry_point" or (mode != "sync" and not single):
        raise UsageError(f"vectorization_mode {mode!r} is for ids and single environments, not for {name}: drop it")
    if isinstance(env, VectorEnv):
        again = None
        spec = env.spec
        if spec is not None:
            again = lambda count: gymnasium.make_vec(spec, count)  # noqa: E731
        return GymVectorEnv(env, device, name, again)
    if not single:
        return GymVectorEnv(env(num_envs=num_envs), device, name, lambda count: env(num_envs=count))

    def factory(drawn: bool) -> gymnasium.Env[Any, Any]:
        if isinstance(env, gymnasium.Env):
            return copied(env, drawn)
        one = made(name, env)
        if isinstance(one, VectorEnv):
            raise UsageError(f"env {name!r} gives vector environments: let it take num_envs, or give one of them")
        return in_drawing_mode(one, drawn, env)

    return in_processes(factory, num_envs, device, name) if mode == "async" else GymEnv(factory, num_envs, device, name)


def copied(env: gymnasium.Env[Any, Any], drawn: bool) -> gymnasium.Env[Any, Any]:
    """A fresh environment like the one given: made again from its spec, otherwise copied."""
    if env.spec is not None:
        spec = env.spec
        changes: dict[str, Any] = {"render_mode": "rgb_array"} if drawn else {}
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return made(spec.id, lambda: gymnasium.make(spec, **changes))
    try:
        twin = copy.deepcopy(env)
    except Exception:
        raise UsageError(
            f"env {path_of(env)!r} cannot be copied, and several are needed: give a factory instead, such as its class"
        ) from None
    return in_drawing_mode(twin, drawn)


def in_drawing_mode(
    env: gymnasium.Env[Any, Any], drawn: bool, factory: Callable[..., Any] | None = None
) -> gymnasium.Env[Any, Any]:
    """The environment, told to draw where it can be told."""
    if not drawn or env.render_mode == "rgb_array":
        return env
    if factory is not None and "render_mode" in parameters(factory):
        env.close()
        return factory(render_mode="rgb_array")
    if env.spec is not None:
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return gymnasium.make(env.spec, render_mode="rgb_array")
    return env


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def made(name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns; Gymnasium's complaints become one line."""
    try:
        env = make()
    except gymnasium.error.DependencyNotInstalled as error:
        extra = next((extra for package, extra in EXTRAS.items() if package in str(error).lower()), None)
        hint = f'pip install "tightrope[{extra}]"' if extra else one_line(error)
        raise UsageError(f"env {name!r} needs a package that is not installed: {hint}") from None
    except gymnasium.error.UnregisteredEnv:
        raise UsageError(f"unknown env {name!r}.{near_matches(name, register_ale())}") from None
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise UsageError(f"env {name!r} cannot be made: {one_line(error)}") from None
    if not isinstance(env, (gymnasium.Env, VectorEnv)):
        raise UsageError(f"env {name!r} is not a Gymnasium environment but a {type(env).__name__}")
    return env


def failed(name: str, row: int | None, action: Array | None, cause: Exception | str) -> EnvError:
    """The error for row `row` of `name`; `action` is the whole batch, or None at a reset."""
    which = "" if row is None else f" number {row}"
    given = action if action is None or row is None else action[row]
    when = "at its reset" if given is None else f"on action {np.asarray(given).tolist()}"
    words = cause if isinstance(cause, str) else f"{type(cause).__name__}: {one_line(cause)}"
    return EnvError(f"env {name!r}{which} failed {when}: {words}")


def died(process: Any) -> bool:
    process.join(timeout=0.5)
    return process.exitcode not in (None, 0)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
