"""The base of every environment that lives on the device as tensors.

It owns what all environments share: the clock, same-step auto-reset with the true final observation, seeding, episode
statistics, state in place. An environment is then a handful of small pure methods over a state tensor of shape (N, S):

    initial(noise) -> state            uniform noise of shape (N, noise_size) to start states
    advance(state, action) -> state    the physics
    observe(state) -> obs
    reward(state, action, next_state) -> (N,)
    terminated(state) -> (N,) bool
    draw(obs, action) -> frames

Reward shaping overrides one of them. Nothing here reads a tensor on the host, so a step can be captured in a CUDA graph.
At its first reset an environment's methods are tried once (see `trial`); one that works in place is called on copies.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, checked_seed
from ..types import Spec, Step
from .attributes import First, copy_to, put_back, saved, snapshot
from .recorded_step import MOST_ROWS, ArrayStep, array_step
from .step_arrays import Array, ArrayStepper, StepArrays
from .trial import try_methods
from .validate import called, check_choices, check_defined, check_state, name_of_method

BASE = frozenset((  # attributes of every environment; what else an instance has is its own
    "device", "num_envs", "generator", "state", "clock", "_running_return", "_finished", "_few", "_array_step", "_at_first",
    "_in_place", "_to_go_back",
))  # fmt: skip
SKIPPED = BASE | {"observation", "action"}


class TensorEnv:
    """N environments as rows of one state tensor.

    A subclass sets `observation` and `action` and, where the defaults do not fit, `noise_size` (uniform numbers per start
    state, 1), `time_limit` (steps after which an episode is truncated, None), `solved_at`, `pure` and `pace`.
    """

    observation: Spec
    action: Spec
    noise_size: int = 1
    time_limit: ClassVar[int | None] = None  # steps after which an episode is truncated
    solved_at: ClassVar[float | None] = None  # greedy return that counts as solved, where there is one
    pure: ClassVar[bool] = True  # False where equations also keep or count something, and must run once a step
    solved_by_surviving: ClassVar[bool] = False  # True where not terminating is all there is to it
    pace: ClassVar[int] = 30  # steps that a video shows in a second, real time where there is such a thing
    backend: ClassVar[str] = "tensor"
    capturable = True
    resumable = True
    skips = False
    groups = 0
    _array_step: ArrayStep | None = None
    _at_first: First | None = None  # how it looked when it was first reset
    _rebuilt: ClassVar = frozenset(("_array_step", "_at_first"))  # not kept where it is a part of another

    def __init__(
        self,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if max_episode_steps is not None and max_episode_steps < 1:
            raise UsageError(f"max_episode_steps {max_episode_steps} is not positive: give at least 1")
        self.device = torch.device(device)
        self.max_episode_steps = max_episode_steps if max_episode_steps is not None else self.time_limit
        if not isinstance(self.max_episode_steps, (int, type(None))):
            raise UsageError(
                f"{type(self).__name__}.time_limit {self.time_limit!r} is not a number of steps: give an int or None"
            )
        self._in_place: frozenset[str] | None = None  # methods to call on copies; None before they were tried
        self._allocate(num_envs, seed)

    def _allocate(self, num_envs: int, seed: int) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs {num_envs} is not positive: give at least 1")
        self.num_envs = num_envs
        self.generator = torch.Generator(self.device).manual_seed(checked_seed(seed))
        self.clock = torch.zeros(num_envs, dtype=torch.int32, device=self.device)
        self._running_return = torch.zeros(num_envs, device=self.device)
        self._finished = torch.zeros(3, num_envs, device=self.device)  # episodes, their returns, their lengths
        check_defined(self, "initial")
        start = check_state(self, called(self, "initial", self._noise()))
        self.state = start.detach().clone(memory_format=torch.contiguous_format)  # nobody else's memory
        self._few = self.pure and self.device.type == "cpu" and num_envs <= MOST_ROWS
        self._array_step = None
        self._at_first = None
        self._to_go_back = False  # whether a state is for this process alone

    def _noise(self) -> Tensor:
        if not isinstance(self.noise_size, int) or self.noise_size < 0:
            raise UsageError(
                f"{type(self).__name__}.noise_size {self.noise_size!r} is no number: set it to the columns of noise that "
                "initial uses, 0 or more"
            )
        return torch.rand(self.num_envs, self.noise_size, generator=self.generator, device=self.device)

    # what an environment defines -------------------------------------------------------------------------------------

    def initial(self, noise: Tensor) -> Tensor:
        """Start states (N, S) from uniform numbers in [0, 1) of shape (N, noise_size)."""
        raise NotImplementedError

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        """The states after one step, of the shape of `state`."""
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        """Observations (N, ...) of states; by default the states themselves."""
        return state

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        """The reward of each step, float32 of shape (N,)."""
        raise NotImplementedError

    def terminated(self, state: Tensor) -> Tensor:
        """Whether the task is over in these states, bool of shape (N,); by default never. The clock is not your concern."""
        return torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        """Frames of observations for videos, uint8 of shape (N, height, width, 3)."""
        raise UsageError(f"{type(self).__name__} does not draw itself: give it a draw(obs, action) method")

    @property
    def drawable(self) -> bool:
        return type(self).draw is not TensorEnv.draw

    def _overrides(self, name: str) -> bool:
        """Whether the environment has a method of its own of that name."""
        return name in vars(self) or getattr(type(self), name) is not getattr(TensorEnv, name)

    # what the base does ----------------------------------------------------------------------------------------------

    def try_methods(self) -> frozenset[str]:
        """Try every method once; returns the names of those that work in place. A mistake is a UsageError of one line."""
        if self._in_place is None:
            self._in_place = try_methods(self)
        return self._in_place

    def _apply(self, name: str, *given: Tensor) -> Tensor:
        """One of the methods above, on copies if it works in place: others read what it is given, and keep what it returns."""
        result: Tensor
        if self._in_place is None or name in self._in_place:
            result = getattr(self, name)(*(x.clone() for x in given))
            return result.clone()
        if torch.compiler.is_compiling():
            return getattr(self, name)(*given)
        before = [version(x) for x in given]
        result = getattr(self, name)(*given)
        if before != [version(x) for x in given]:
            raise UsageError(
                f"{name_of_method(self, name)} writes into a tensor it is given, which it did not do when it was first tried: "
                "return a new tensor"
            )
        return result

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        self.try_methods()
        if self._at_first is None:
            self._at_first = First(self, SKIPPED)
        if seed is not None:
            self.generator.manual_seed(checked_seed(seed))
        state = self._apply("initial", self._noise() if noise is None else noise)
        self.state.copy_(state)
        self.clock.zero_()
        self._running_return.zero_()
        self._doubt()
        return self._shown(state.clone())

    def _shown(self, state: Tensor) -> Tensor:
        """What is observed of a state. Looked at where that costs no wait for a device; there, networks find what is wrong."""
        obs = self._apply("observe", state)
        if self.device.type == "cpu" and not torch.compiler.is_compiling():
            check_choices(self, obs)
        return obs

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, start the next one from `noise` in the same step."""
        noise = self._noise() if noise is None else noise
        if self._in_place is None and not (torch.compiler.is_compiling() or captures(self.device)):
            self.try_methods()
        if self._few and not torch.compiler.is_compiling():
            answer = self._on_arrays(action, noise)
            if answer is not None:
                return answer.step
        old_state = self.state.clone()  # so that nothing handed out can be an alias of the state kept
        next_state = self._apply("advance", old_state, action)
        reward = self._apply("reward", old_state, action, next_state)
        terminated = self._apply("terminated", next_state)
        self.clock += 1
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
            done = terminated
        else:
            done = terminated | (self.clock >= self.max_episode_steps)
            truncated = done & ~terminated
        self._count(reward, done)
        final_obs = self._shown(next_state)  # while the clock is that of the episodes that end
        fresh = self._apply("initial", noise)
        state = torch.where(done.unsqueeze(-1), fresh, next_state)
        self.state.copy_(state)
        self.clock *= ~done
        return Step(self._shown(state), reward, terminated, truncated, final_obs)

    def in_arrays(self) -> ArrayStepper | None:
        """How to step over arrays, for one rollout; None where rows are many or someone has a step of his own."""
        if not self._few or getattr(self.step, "__func__", None) is not TensorEnv.step:
            return None
        self._doubt()
        return self._answer

    def _answer(self, action: Array, noise: Array) -> StepArrays:
        step = self._array_step
        if self._few and step is not None and step.trusted:
            try:
                return step(action, noise)
            except Exception:  # nothing has been changed, and a true mistake will show again
                self._few = False
        given = torch.from_numpy(action), torch.from_numpy(noise)
        return self._on_arrays(*given) or StepArrays.from_step(self.step(*given))

    def _on_arrays(self, action: Tensor, noise: Tensor) -> StepArrays | None:
        """The step over arrays, which is quicker where rows are few; None for an environment that has none.

        What was recorded stands for the equations until an attribute is set. What else they may read, such as the class,
        may have changed whenever an episode or a rollout begins.
        """
        step = self._array_step
        try:
            if self._few and (step is None or not (step.trusted or step.holds(self.state, action, noise))):
                self._array_step = step = array_step(self, action, noise)
                self._few = step is not None
            with np.errstate(all="ignore"):  # what is not finite is for the learner to report
                return step(action.numpy(), noise.numpy()) if self._few and step is not None else None
        except Exception:  # nothing has been changed, and a true mistake will show again
            self._few = False
            return None

    def _doubt(self) -> None:
        """Let the next step over arrays be held to the equations."""
        step: ArrayStep | None = vars(self).get("_array_step")
        if step is not None:
            step.trusted = False

    _restored = _doubt  # called when its attributes were put back as a part of another object

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in ("_few", "_array_step", "_at_first", "_in_place", "_to_go_back"):
            self._doubt()

    def _count(self, reward: Tensor, done: Tensor) -> None:
        self._running_return += reward
        self._finished[0] += done
        self._finished[1].addcmul_(self._running_return, done)
        self._finished[2].addcmul_(self.clock, done)
        self._running_return *= ~done

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = self._finished.sum(1)
        self._finished.zero_()
        return totals

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """Another environment of the same kind and settings, with state and random stream of its own."""
        twin = copy.copy(self)
        copy_to(twin, self, SKIPPED)
        twin._allocate(num_envs, seed)
        return twin

    def state_dict(self) -> dict[str, Tensor]:
        """Its state, and what a subclass keeps besides it and has changed since it was first reset."""
        mine = {
            "state": self.state.clone(),
            "clock": self.clock.clone(),
            "running_return": self._running_return.clone(),
            "finished": self._finished.clone(),
            "generator": self.generator.get_state(),
        }
        if self._to_go_back:
            return mine | snapshot(self, SKIPPED, self._at_first)
        return mine | saved(self, SKIPPED, self._at_first)

    def snapshot(self) -> dict[str, Tensor]:
        """The same with all that is kept, changed or not, to go back to: on a device, to compare would be to wait."""
        self._to_go_back = True
        try:
            return self.state_dict()
        finally:
            self._to_go_back = False

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go back to what `state_dict` returned."""
        if state["state"].shape != self.state.shape:
            raise RuntimeError(f"env state has shape {tuple(state['state'].shape)}, expected {tuple(self.state.shape)}")
        self.state.copy_(state["state"])
        self.clock.copy_(state["clock"])
        self._running_return.copy_(state["running_return"])
        self._finished.copy_(state["finished"])
        if state["generator"].numel() == self.generator.get_state().numel():  # not so between kinds of device
            self.generator.set_state(state["generator"].cpu())
        put_back(self, state, SKIPPED, self._at_first)
        self._doubt()

    def close(self) -> None:
        """Nothing to release: the tensors go with the object."""


def version(tensor: Tensor) -> int:
    """How often a tensor has been written to."""
    return 0 if tensor.is_inference() else tensor._version


def captures(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
