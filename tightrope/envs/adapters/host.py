"""The base of engines that run outside torch and speak NumPy: it reads and writes their spaces, moves each array to the
device once, counts episodes, and names the environment that failed.

An engine defines `_restart(seeds)`, `_recv()` and `_twin(num_envs, drawn)`, and `_send(action)` if it works while nobody
waits for it; everything it returns is in Tightrope's one convention: same-step auto-reset with the true final observation.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from ... import activity
from ...errors import EnvError, UsageError, checked_seed
from ...types import Step
from ..options import Array
from ..step_arrays import Answer, ArrayStepper
from .transfer import Landing

if TYPE_CHECKING:
    from .spaces import Action, Observation


class HostEnv:
    """N environments of an engine that lives on the host."""

    backend: str
    name: str
    num_envs: int
    noise_size = 0
    capturable = False
    resumable = False
    skips = False
    drawable = False
    pace = 30
    groups = 1
    solved_at: float | None = None
    first_row = 0  # where these environments are rows of something larger, the number of the first
    info: Mapping[str, Any] = MappingProxyType({})  # that of the last reset, where the engine has such a thing
    _started = False
    _waiting = False  # whether there is an answer that nobody has come for
    _given: Array  # the actions sent last
    _landing: Landing | None = None  # where answers arrive, once there was one
    _seeds: Array | None  # for the next reset; None: the streams go on

    def _describe(self, observation: Observation, action: Action, num_envs: int, device: str | torch.device) -> None:
        """Say what the spaces are and where tensors live."""
        if num_envs < 1:
            raise UsageError(f"num_envs {num_envs} is not positive: give at least 1")
        self._observation, self._action = observation, action
        self.observation, self.action = observation.spec, action.spec
        self.num_envs, self.device = num_envs, torch.device(device)
        self._return = np.zeros(num_envs)
        self._taken = 0  # steps since there were any
        self._began = np.zeros(num_envs, np.int64)  # the step before each episode's first
        self._totals = np.zeros(3)  # episodes, their returns, their lengths
        self.seed(0)

    # what an engine defines ------------------------------------------------------------------------------------------

    def _restart(self, seeds: Array | None) -> Array:
        """Start every environment anew, from these seeds if given; returns rows of observations."""
        raise NotImplementedError

    def _send(self, action: Array) -> None:
        """Let the engine begin, if it works by itself."""

    def _recv(self) -> Answer:
        """What came of the actions `_given`."""
        raise NotImplementedError

    def _twin(self, num_envs: int, drawn: bool) -> Self:
        """Another engine of the same kind."""
        raise NotImplementedError

    # what the base does ----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        self._settle()
        self._started = True
        if seed is not None:
            self.seed(seed)
        self._return[:], self._began[:] = 0.0, self._taken
        seeds, self._seeds = self._seeds, None
        with activity.during("resetting its environments"):
            return self._tensor(self._restart(seeds))

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, the next one starts in the same step."""
        self.send(action)
        obs, reward, terminated, truncated, final_obs, real = self.recv()
        real = None if real is None else real.clone()
        return Step(obs.clone(), reward.clone(), terminated.clone(), truncated.clone(), final_obs.clone(), real)

    def send(self, action: Tensor, group: int = 0) -> None:
        """Let every environment take its action. What comes of it is for `recv`."""
        self._give(action.cpu().numpy())

    def recv(self, group: int = 0) -> Step:
        """What came of the actions sent last, until it is overwritten by the next `recv`. `final_obs` may be `obs` itself."""
        return self._landed(self._answered())

    def in_arrays(self) -> ArrayStepper | None:
        """How to step over arrays, for those who copy what they keep; None where a device wants tensors."""
        return self._answer if self.device.type == "cpu" else None

    def _answer(self, action: Array, noise: Array) -> Answer:
        self._give(action)
        return self._answered()

    def _give(self, action: Array) -> None:
        self._settle()
        if not self._started:
            self.reset()
        self._given = self._action.batch(action)
        self._send(self._given)
        self._waiting = True

    def _answered(self) -> Answer:
        self._waiting = False
        before = activity.begin(activity.STEPPING)
        answer = self._recv()
        activity.begin(*before)
        self._count(answer)
        return answer

    def _settle(self) -> None:
        """Drop an answer that nobody came for, as when a rollout was broken off: an engine must not be sent to twice."""
        if self._waiting:
            self.recv()

    def _landed(self, answer: Answer) -> Step:
        """An answer as tensors on the device; final observations are copied only where they are others."""
        if self._landing is None or self._landing.device != self.device:
            self._landing = Landing(answer.arrays, self.device)
        obs, reward, terminated, truncated, *real = self._landing(answer.arrays)
        final_obs = obs
        if len(answer.rows):
            final_obs = obs.clone()
            final_obs[self._tensor(answer.rows)] = self._tensor(answer.final_obs)
        return Step(obs, reward, terminated, truncated, final_obs, *real)

    def _tensor(self, array: Array) -> Tensor:
        """A copy on the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(array.copy())
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _read(self, obs: Any, rows: Array | list[int] | None = None) -> Array:
        """What the engine shows as rows; a choice that its space does not have is named, with the environment's number.
        `rows` are the numbers of the environments if not all are there."""
        from .spaces import NotInSpace

        try:
            return self._observation.rows(obs)
        except NotInSpace as error:
            row = self.first_row + int(error.row if rows is None else rows[error.row])
            raise EnvError(f"env {self.name!r} number {row} shows {error.words}: `tightrope check` it") from None

    def failure(self, row: int | None, action: Array | None, cause: Exception | str) -> EnvError:
        """The error for one environment; `action` is the whole batch, or None at a reset."""
        which = "" if row is None else f" number {self.first_row + row}"
        given = action if action is None or row is None else action[row]
        when = "at its reset" if given is None else f"on action {np.asarray(given).tolist()}"
        words = cause if isinstance(cause, str) else f"{type(cause).__name__}: {one_line(cause)}"
        return EnvError(f"env {self.name!r}{which} failed {when}: {words}")

    def _abandon(self) -> None:
        """Leave no process behind: environments that belong with these have failed."""

    def _count(self, answer: Answer) -> None:
        score = answer.reward if answer.score is None else answer.score
        self._taken += 1
        if answer.real is None:
            self._return += score
        else:
            self._return += np.where(answer.real, score, 0.0)
            self._began += ~answer.real
        over = answer.over
        if over is None and len(answer.rows):
            over = answer.terminated | answer.truncated
        if over is not None and over.any():
            self._totals += [over.sum(), self._return[over].sum(), (self._taken - self._began[over]).sum()]
            self._return[over], self._began[over] = 0.0, self._taken

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = torch.tensor(self._totals, dtype=torch.float32, device=self.device)
        self._totals[:] = 0.0
        return totals

    def seed(self, seed: int, first: int = 0) -> None:
        """Let the next reset start from this seed, the environments as numbers `first` and up of those that it serves."""
        self._seeds = spread(checked_seed(seed), first + self.num_envs)[first:]

    @property
    def steps_taken(self) -> int:
        """Steps of all environments together since they were made."""
        return self._taken * self.num_envs

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """Another environment of the same kind and settings, with random streams of its own; `drawn` if it must draw."""
        twin = self._twin(num_envs, drawn)
        twin.seed(seed)
        return twin

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        elsewhere = (
            "give a factory of single ones that draw"
            if self.backend == "gymnasium"
            else "record it with backend gymnasium"
        )
        raise UsageError(f"env {self.name!r} cannot be drawn in this form: {elsewhere}")

    def encode(self, obs: Any) -> tuple[Tensor, bool]:
        """(rows, whether it was a single one) of observations as the environment itself would hand them out."""
        from .spaces import NotInSpace, fits, misfit, space_in_words, stacked

        space = self._observation.space
        if isinstance(obs, Tensor):
            obs = obs.cpu().numpy()
        single = self._observation.holds(obs)
        try:
            rows = self._observation.rows(stacked(space, [obs]) if single else obs)
            fitting = rows.shape[1:] == self.observation.shape and fits(space, obs if single else first(obs))
        except NotInSpace as error:
            raise UsageError(str(error)) from None
        except (KeyError, TypeError, ValueError, IndexError):
            fitting = False
        if not fitting:
            why = misfit(space, obs)
            raise UsageError(
                f"an observation does not fit{'' if why is None else f', {why}'}: give one member of {space_in_words(space)}, "
                "or a batch of them"
            )
        return self._tensor(rows), single

    def decode(self, action: Tensor) -> Array:
        """Actions as the environment's own space has them."""
        return self._action.batch(action.cpu().numpy())

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing can be put back: see `resumable`."""

    def close(self) -> None:
        """Release what the engine holds."""


def first(batch: Any) -> Any:
    """The first member of a batch."""
    if isinstance(batch, dict):
        return {k: first(v) for k, v in batch.items()}
    if isinstance(batch, tuple):
        return tuple(first(v) for v in batch)
    return np.asarray(batch)[0]


def path_of(env: Any) -> str:
    """A registered environment's id if that makes the same, otherwise module:Class of an environment, class or factory."""
    spec = getattr(env, "spec", None)
    if spec is not None and not isinstance(env, type) and as_registered(spec):
        return str(spec.id)
    kind = env if isinstance(env, type) or not hasattr(env, "reset") else type(getattr(env, "unwrapped", env))
    return f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__qualname__)}"


def as_registered(spec: Any) -> bool:
    """Whether an environment is what its id makes: no wrapper, argument or time limit of one's own."""
    import gymnasium

    registered = gymnasium.registry.get(spec.id)
    if registered is None:
        return False
    own = {k: v for k, v in spec.kwargs.items() if k not in ("render_mode", "num_envs", "vectorization_mode")}
    same_limit = spec.max_episode_steps == registered.max_episode_steps
    return own == registered.kwargs and same_limit and not spec.additional_wrappers


@contextlib.contextmanager
def working_directory_on_path() -> Iterator[None]:
    """Modules in the working directory can be imported, as under `python -m`."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())


def spread(seed: int, count: int) -> Array:
    """Independent 31-bit seeds, one per environment: seeds 1 and 2 share no stream."""
    words = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return (words >> np.uint64(33)).astype(np.int64)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
