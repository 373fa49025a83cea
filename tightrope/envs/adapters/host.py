"""The base of engines that run outside torch and speak NumPy: it reads and writes their spaces, copies each step to the
device once, counts episodes, and names the environment that failed.

An engine defines `_reset(seeds)`, `_recv()` and `_spawn(num_envs, drawn)`, and `_send(action)` if it works in the background.
Everything it returns is in Tightrope's one convention: same-step auto-reset with the true final observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from ... import activity
from ...errors import EnvError, UsageError, check_positive, checked_seed, one_line
from ...types import Spec, Step
from ..step_arrays import Array, ArrayStepper, DeviceBuffer, StepArrays

if TYPE_CHECKING:
    from .space_members import Space
    from .spaces import ActionWriter, ObservationReader


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
    game_limit: int | None = None  # steps after which a game is cut that would go on
    first_row = 0  # the number of the first row, where these environments are rows of something larger
    info: Mapping[str, Any] = MappingProxyType({})  # of the last reset or step, where the engine has one
    _started = False
    _unread = False  # whether a step was sent and not yet received
    _sent: Array  # the actions sent last
    _buffer: DeviceBuffer | None = None  # where steps arrive on the device; made with the first one
    _seeds: Array | None  # for the next reset; None: the random streams go on

    def _set_spaces(
        self, observation: ObservationReader, action: ActionWriter, num_envs: int, device: str | torch.device
    ) -> None:
        """Called once by each constructor: the spaces, the number of rows and where tensors live."""
        check_positive("num_envs", num_envs)
        self._observation, self._action = observation, action
        self.observation, self.action = observation.spec, action.spec
        self.num_envs, self.device = num_envs, torch.device(device)
        self._return = np.zeros(num_envs)
        self._taken = 0  # steps of every row
        self._began = np.zeros(num_envs, np.int64)  # `_taken` before each episode's first step
        self._totals = np.zeros(3)  # episodes, their returns, their lengths
        self.seed(0)

    # what an engine defines ------------------------------------------------------------------------------------------

    def _reset(self, seeds: Array | None) -> Array:
        """Start every environment anew, from these seeds if there are any; returns rows of observations."""
        raise NotImplementedError

    def _send(self, action: Array) -> None:
        """Start the step, if the engine works in the background."""

    def _recv(self) -> StepArrays:
        """The step that the actions `_sent` lead to."""
        raise NotImplementedError

    def _spawn(self, num_envs: int, drawn: bool) -> Self:
        """Another engine of the same kind."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Leave no process behind: environments of the same batch have failed."""

    # what the base does ----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        self._discard_unread()
        self._started = True
        if seed is not None:
            self.seed(seed)
        self._return[:], self._began[:] = 0.0, self._taken
        seeds, self._seeds = self._seeds, None
        with activity.during("resetting its environments"):
            return self._tensor(self._reset(seeds))

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, the next one starts in the same step."""
        self.send(action)
        obs, reward, terminated, truncated, final_obs, real = self.recv()
        real = None if real is None else real.clone()
        return Step(obs.clone(), reward.clone(), terminated.clone(), truncated.clone(), final_obs.clone(), real)

    def send(self, action: Tensor, group: int = 0) -> None:
        """Start a step of every environment. `recv` returns it."""
        self._send_arrays(action.cpu().numpy())

    def recv(self, group: int = 0) -> Step:
        """The step sent last. The next `recv` overwrites it; `final_obs` may be `obs` itself."""
        return self._to_device(self._recv_arrays())

    def in_arrays(self) -> ArrayStepper | None:
        """A function that steps over arrays, for callers who copy what they keep; None where a device needs tensors."""
        return self._step_arrays if self.device.type == "cpu" else None

    def _step_arrays(self, action: Array, noise: Array) -> StepArrays:
        self._send_arrays(action)
        return self._recv_arrays()

    def _send_arrays(self, action: Array) -> None:
        self._discard_unread()
        if not self._started:
            self.reset()
        self._sent = self._action.batch(action)
        self._send(self._sent)
        self._unread = True

    def _recv_arrays(self) -> StepArrays:
        self._unread = False
        before = activity.begin(activity.STEPPING)
        arrays = self._recv()
        activity.begin(*before)
        self._count(arrays)
        return arrays

    def _discard_unread(self) -> None:
        """Receive a step that nobody came for, as when a rollout was broken off: an engine must not be sent to twice."""
        if self._unread:
            self.recv()

    def _to_device(self, arrays: StepArrays) -> Step:
        """Tensors on the device; final observations are copied only where they differ from `obs`."""
        if self._buffer is None or self._buffer.device != self.device:
            self._buffer = DeviceBuffer(arrays.arrays, self.device)
        obs, reward, terminated, truncated, *real = self._buffer(arrays.arrays)
        final_obs = obs
        if len(arrays.rows):
            final_obs = obs.clone()
            final_obs[self._tensor(arrays.rows)] = self._tensor(arrays.final_obs)
        return Step(obs, reward, terminated, truncated, final_obs, *real)

    def _tensor(self, array: Array) -> Tensor:
        """A copy on the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(array.copy())
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def _read(self, obs: object, rows: Array | list[int] | None = None) -> Array:
        """Rows of the engine's observations. A value outside its space is an EnvError with the environment's number;
        `rows` are these numbers if not all environments are there."""
        from .spaces import NotInSpace

        try:
            return self._observation.rows(obs)
        except NotInSpace as error:
            row = self.first_row + int(error.row if rows is None else rows[error.row])
            raise EnvError(f"env {self.name!r} number {row} shows {error.reason}: `tightrope check` it") from None

    def failure(self, row: int | None, action: Array | None, cause: Exception | str) -> EnvError:
        """The error for one environment; `action` is the whole batch, or None at a reset."""
        number = "" if row is None else f" number {self.first_row + row}"
        action = action if action is None or row is None else action[row]
        when = "at its reset" if action is None else f"on action {np.asarray(action).tolist()}"
        reason = cause if isinstance(cause, str) else f"{type(cause).__name__}: {one_line(cause)}"
        return EnvError(f"env {self.name!r}{number} failed {when}: {reason}")

    def _count(self, arrays: StepArrays) -> None:
        score = arrays.reward if arrays.score is None else arrays.score
        self._taken += 1
        if arrays.real is None:
            self._return += score
        else:
            self._return += np.where(arrays.real, score, 0.0)
            self._began += ~arrays.real
        over = arrays.over
        if over is None and len(arrays.rows):
            over = arrays.terminated | arrays.truncated
        if over is not None and over.any():
            self._totals += [over.sum(), self._return[over].sum(), (self._taken - self._began[over]).sum()]
            self._return[over], self._began[over] = 0.0, self._taken

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = torch.tensor(self._totals, dtype=torch.float32, device=self.device)
        self._totals[:] = 0.0
        return totals

    def seed(self, seed: int, first: int = 0) -> None:
        """Let the next reset start from this seed, as the environments from number `first` on of a larger batch."""
        self._seeds = row_seeds(checked_seed(seed), first + self.num_envs)[first:]

    @property
    def steps_taken(self) -> int:
        """Steps of all environments together since they were made."""
        return self._taken * self.num_envs

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """Another environment of the same kind and settings, with random streams of its own; `drawn` if it must draw."""
        twin = self._spawn(num_envs, drawn)
        twin.seed(seed)
        return twin

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        single = "give a factory of single ones that draw"
        fix = single if self.backend == "gymnasium" else "record it with backend gymnasium"
        raise UsageError(f"env {self.name!r} cannot be drawn in this form: {fix}")

    def encode(self, obs: object) -> tuple[Tensor, bool]:
        """(rows, whether it was a single one) of observations in the form of the environment's own space."""
        from .space_members import has_shape_of, shape_mismatch, space_text, stacked
        from .spaces import NotInSpace

        space = self._observation.space
        if isinstance(obs, Tensor):
            obs = obs.cpu().numpy()
        single, reason = has_shape_of(space, obs), shape_mismatch(space, obs)
        try:
            rows = self._observation.rows(stacked(space, [obs]) if single else obs) if reason is None else None
        except NotInSpace as error:
            raise UsageError(str(error)) from None
        except (KeyError, TypeError, ValueError, IndexError):
            rows = None
        if rows is None or not len(rows) or rows.shape[1:] != self.observation.shape:
            raise UsageError(
                f"an observation does not fit{'' if reason is None else f', {reason}'}: give one member of "
                f"{space_text(space)}, or a batch of them"
            )
        return self._tensor(rows), single

    def decode(self, action: Tensor) -> Array:
        """Actions in the form of the environment's own space."""
        return self._action.batch(action.cpu().numpy())

    def state_dict(self) -> dict[str, Tensor]:
        return {}  # see `resumable`

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


class SpacesOnlyEnv(HostEnv):
    """The spaces of an environment that runs outside torch, where it cannot be run."""

    backend = "none"

    def __init__(self, name: str, observation: Space, action: Space, device: torch.device) -> None:
        from .spaces import action_writer, observation_reader

        self.name = name
        self._set_spaces(observation_reader(observation), action_writer(action), 1, device)

    def _reset(self, seeds: Array | None) -> NoReturn:
        raise not_loaded(self.name)

    def _spawn(self, num_envs: int, drawn: bool) -> NoReturn:
        raise not_loaded(self.name)


class SpacesOnlyTensorEnv:
    """The spaces of an environment that takes and returns tensors, where it cannot be run."""

    def __init__(self, name: str, observation: Spec, action: Spec, device: torch.device) -> None:
        self.name, self.observation, self.action, self.device = name, observation, action, device

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> NoReturn:
        raise not_loaded(self.name)


def not_loaded(name: str) -> UsageError:
    return UsageError(f"env {name!r} cannot be run: only its spaces were loaded. Give one with tr.load(path, env=...)")


def row_seeds(seed: int, count: int) -> Array:
    """Independent 31-bit seeds, one per environment: seeds 1 and 2 share no stream."""
    words = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return (words >> np.uint64(33)).astype(np.int64)
