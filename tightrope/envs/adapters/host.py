"""The base class of adapters for simulators outside torch, which use NumPy arrays on the host.

It converts observations and actions, copies each step to the device once, counts episodes, and names an environment that fails.
A subclass defines `_reset(seeds)`, `_recv()` and `_spawn(num_envs, drawn)`, and `_send(action)` if the simulator works in the
background. All steps follow one convention: same-step auto-reset with the true final observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from ... import activity
from ...errors import EnvError, MaskError, UsageError, check_positive, checked_seed, one_line
from ...types import Composite, Spec, Step
from ..step_arrays import Array, ArrayStepper, StepArrays, StepTransferBuffer

if TYPE_CHECKING:
    from .actions import ActionWriter, Conditions
    from .space_members import Observation, Space
    from .spaces import ObservationReader


class HostEnv:
    """N environments of a simulator that runs outside torch, on the host."""

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
    game_limit: int | None = None  # steps after which an unfinished game is cut off
    first_row = 0  # the number of the first row, if these are part of a larger batch
    info: Mapping[str, Any] = MappingProxyType({})  # of the last reset or step, if the simulator has one
    _started = False
    _unread = False  # whether a step was sent and not yet received
    _sent: Array  # the actions sent last
    _buffer: StepTransferBuffer | None = None  # receives steps on the device; made at the first step
    _seeds: Array | None  # for the next reset; None to continue the random streams

    def _set_spaces(
        self,
        observation: ObservationReader,
        action: ActionWriter,
        num_envs: int,
        device: str | torch.device,
    ) -> None:
        """Set the spaces, the number of rows and the device. Each constructor calls this once."""
        check_positive("num_envs", num_envs)
        self._observation, self._action = observation, action
        self.observation, self.action = observation.spec, action.spec
        self.num_envs, self.device = num_envs, torch.device(device)
        self._return = np.zeros(num_envs)
        self._taken = 0  # steps of every row
        self._began = np.zeros(num_envs, np.int64)  # `_taken` before each episode's first step
        self._totals = np.zeros(3)  # episodes, their returns, their lengths
        self.seed(0)

    # defined by a subclass -------------------------------------------------------------------------------------------

    def _reset(self, seeds: Array | None) -> Array:
        """Reset every environment, with these seeds if given, and return rows of observations."""
        raise NotImplementedError

    def _send(self, action: Array) -> None:
        """Start the step, if the simulator works in the background."""

    def _recv(self) -> StepArrays:
        """Finish the step with the actions `_sent` and return it."""
        raise NotImplementedError

    def _spawn(self, num_envs: int, drawn: bool) -> Self:
        """A new adapter of the same kind."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """End all processes after a failure in the same batch."""

    # shared methods --------------------------------------------------------------------------------------------------

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
        obs, reward, terminated, truncated, final_obs, valid = self.recv()
        valid = None if valid is None else valid.clone()
        return Step(obs.clone(), reward.clone(), terminated.clone(), truncated.clone(), final_obs.clone(), valid)

    def send(self, action: Tensor, group: int = 0) -> None:
        """Start a step of every environment. `recv` returns it."""
        self._send_arrays(action.cpu().numpy())

    def recv(self, group: int = 0) -> Step:
        """Receive the step that was sent. The next `recv` overwrites it; `final_obs` may be `obs` itself."""
        return self._to_device(self._recv_arrays())

    def in_arrays(self) -> ArrayStepper | None:
        """A function that steps over arrays, which the next call overwrites; None if the device is not the CPU."""
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
        """Receive a pending step, left by an interrupted rollout: a simulator must not be sent two steps."""
        if self._unread:
            self.recv()

    def _to_device(self, arrays: StepArrays) -> Step:
        """Copy a step to tensors on the device; final observations only if they differ from `obs`."""
        if self._buffer is None or self._buffer.device != self.device:
            self._buffer = StepTransferBuffer(arrays.arrays, self.device)
        obs, reward, terminated, truncated, *valid = self._buffer(arrays.arrays)
        final_obs = obs
        if len(arrays.rows):
            final_obs = obs.clone()
            final_obs[self._tensor(arrays.rows)] = self._tensor(arrays.final_obs)
        return Step(obs, reward, terminated, truncated, final_obs, *valid)

    def _tensor(self, array: Array) -> Tensor:
        """A copy on the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(array.copy())
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def _read(self, obs: object, rows: Array | list[int] | None = None) -> Array:
        """Convert observations to rows, those numbered `rows` or all. EnvError names the one with a value outside its space."""
        try:
            return self._observation.rows(obs)
        except Exception as error:
            from .spaces import NotInSpace  # here: in every step it would take a while

            if not isinstance(error, NotInSpace):
                raise
            row = self.first_row + int(error.row if rows is None else rows[error.row])
            raise EnvError(f"env {self.name!r} number {row} shows {error.reason}: `tightrope check` it") from None

    def failure(self, row: int | None, action: Observation | None, cause: Exception | str) -> EnvError:
        """The error for one environment; `action` is the whole batch, or None at a reset."""
        from .space_members import as_lists

        number = "" if row is None else f" number {self.first_row + row}"
        action = action if action is None or row is None else self._action.member(action, row)
        when = "at its reset" if action is None else f"on action {as_lists(action)}"
        reason = str(cause) if isinstance(cause, (str, MaskError)) else f"{type(cause).__name__}: {one_line(cause)}"
        return EnvError(f"env {self.name!r}{number} failed {when}: {reason}")

    def _count(self, arrays: StepArrays) -> None:
        score = arrays.reward if arrays.score is None else arrays.score
        self._taken += 1
        if arrays.valid is None:
            self._return += score
        else:
            self._return += np.where(arrays.valid, score, 0.0)
            self._began += ~arrays.valid
        ended = arrays.terminated | arrays.truncated if len(arrays.rows) else None
        over = ended if arrays.over is None else arrays.over
        if over is not None and over.any():
            self._totals += [over.sum(), self._return[over].sum(), (self._taken - self._began[over]).sum()]
            self._return[over], self._began[over] = 0.0, self._taken

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = torch.tensor(self._totals, dtype=torch.float32, device=self.device)
        self._totals[:] = 0.0
        return totals

    def seed(self, seed: int, first: int = 0) -> None:
        """Set the seed of the next reset. `first` is the number of the first environment within a larger batch."""
        self._seeds = row_seeds(checked_seed(seed), first + self.num_envs)[first:]

    @property
    def steps_taken(self) -> int:
        """Steps of all environments together since they were made."""
        return self._taken * self.num_envs

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """A new environment of the same kind and settings, with its own random streams; `drawn` if it must draw."""
        twin = self._spawn(num_envs, drawn)
        if isinstance(self.action, Composite):  # whose conditions a vector environment alone may have
            twin._action, twin.action = self._action, self.action
        twin.seed(seed)
        return twin

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        fixes = {"gymnasium": "give a factory of single ones that draw"}
        fix = fixes.get(self.backend, "record it with backend gymnasium")
        raise UsageError(f"env {self.name!r} cannot be drawn in this form: {fix}")

    def encode(self, obs: object) -> tuple[Tensor, bool]:
        """Convert observations of the environment's own space to (rows, whether it was a single observation)."""
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

    def decode(self, action: Tensor) -> Observation:
        """Convert actions to the environment's own space."""
        return self._action.batch(action.cpu().numpy())

    def state_dict(self) -> dict[str, Tensor]:
        return {}  # see `resumable`

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

    def close(self) -> None: ...


class SpacesOnlyEnv(HostEnv):
    """A stand-in with the spaces of an environment outside torch, which cannot be run here."""

    backend = "none"

    def __init__(
        self, name: str, observation: Space, action: Space, device: torch.device, conditions: Conditions = ()
    ) -> None:
        from .actions import action_writer
        from .spaces import observation_reader

        self.name = name
        self._set_spaces(observation_reader(observation), action_writer(action, conditions), 1, device)

    def _reset(self, seeds: Array | None) -> NoReturn:
        raise not_loaded(self.name)

    def _spawn(self, num_envs: int, drawn: bool) -> NoReturn:
        raise not_loaded(self.name)


class SpacesOnlyTensorEnv:
    """A stand-in with the spaces of a tensor environment, which cannot be run here."""

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
