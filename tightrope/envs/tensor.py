"""The base class of tensor environments, which run on the device.

It handles what all of them share: the clock, same-step auto-reset with the true final observation, seeding, episode statistics
and the state tensor. An environment then consists of a few small pure methods over a state tensor of shape (N, S):

    initial(noise) -> state            uniform noise of shape (N, noise_size) to start states
    advance(state, action) -> state    the physics
    observe(state) -> obs
    reward(state, action, next_state) -> (N,)
    terminated(state) -> (N,) bool
    action_mask(state) -> (N, options) bool    if some actions are forbidden
    privileged(state) -> (N, K)                if the critic sees more than the actor
    scene(obs, action) -> Scene                for pictures; or draw(obs, action) -> frames, for videos only

Reward shaping overrides one of them. Nothing here reads a tensor on the host, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError, check_positive, checked_seed
from ..scene import Scene, raster
from ..types import Spec, Step
from . import methods, validate
from .attribute_writer import Writer
from .attributes import copy_attributes, first_record, load_attributes, save_attributes, snapshot_attributes
from .methods import is_capturing, try_methods, with_parts, writes
from .recorded_step import MAX_NUMPY_ROWS, RecordedStep, verified_step
from .step_arrays import Array, ArrayStepper, StepArrays
from .validate import check_masks

CACHES = frozenset(("_uses_arrays", "_recorded_step", "_first_record", "_in_place", "_for_snapshot"))
CACHES |= {"_masked", "_privileged", "_seen"}
SAVED = {"state": "state", "clock": "clock", "running_return": "_running_return", "finished": "_finished"}
BASE_ATTRIBUTES = CACHES | {"device", "num_envs", "generator", *SAVED.values()}
UNSAVED = BASE_ATTRIBUTES | {"observation", "action"}


class TensorEnv:
    """N environments as rows of one state tensor. A subclass sets `observation`, `action` and what is not as below."""

    observation: Spec
    action: Spec
    noise_size: int = 1
    time_limit: ClassVar[int | None] = None  # steps after which an episode is truncated
    solved_at: ClassVar[float | None] = None  # greedy return that counts as solved, if there is one
    pure: ClassVar[bool] = True  # False if methods have side effects and must run exactly once per step
    solved_by_surviving: ClassVar[bool] = False  # True if the task is not to terminate
    pace: ClassVar[int] = 30  # steps that a video shows in a second
    action_names: ClassVar[tuple[str, ...]] = ()  # of discrete actions, for `tightrope play`
    push: ClassVar[tuple[float, ...]] = ()  # what a push to the right adds to a state there
    backend: ClassVar[str] = "tensor"
    capturable, resumable, skips, groups, unit = True, True, False, 0, ""
    _recorded_step: RecordedStep | None = None
    _first_record: Writer | None = None  # its attributes at the first reset
    _masked, _privileged = False, 0  # whether observations hold an action mask, and how many privileged numbers
    _seen: Spec | None = None  # their space without them

    def __init__(
        self, num_envs: int = 1, device: str | torch.device = "cpu", max_episode_steps: int | None = None, seed: int = 0
    ) -> None:
        check_positive("max_episode_steps", max_episode_steps)
        self.device = torch.device(device)
        self.max_episode_steps = max_episode_steps if max_episode_steps is not None else self.time_limit
        methods.check_numbers(self)
        self._in_place: frozenset[str] | None = None  # methods to call with copies; None before the dry run
        self._allocate(num_envs, seed)

    def _allocate(self, num_envs: int, seed: int) -> None:
        check_positive("num_envs", num_envs)
        self.num_envs = num_envs
        self._masked, self._seen = self._overrides("action_mask"), None
        self.generator = torch.Generator(self.device).manual_seed(checked_seed(seed))
        self.clock = torch.zeros(num_envs, dtype=torch.int32, device=self.device)
        self._running_return = torch.zeros(num_envs, device=self.device)
        self._finished = torch.zeros(3, num_envs, device=self.device)  # episodes, their returns, their lengths
        methods.check_defined(self, "initial")
        start = validate.check_state(self, methods.call_method(self, "initial", self._noise()))
        methods.declare_parts(self, start.clone())
        self.state = start.detach().clone(memory_format=torch.contiguous_format)  # shared with nobody
        self._uses_arrays = self.pure and self.device.type == "cpu" and num_envs <= MAX_NUMPY_ROWS
        self._recorded_step = self._first_record = None
        self._for_snapshot = False  # whether snapshot calls state_dict

    def _noise(self) -> Tensor:
        return torch.rand(self.num_envs, self.noise_size, generator=self.generator, device=self.device)

    # what an environment defines -------------------------------------------------------------------------------------

    def initial(self, noise: Tensor) -> Tensor:
        """Start states (N, S) from uniform numbers in [0, 1) of shape (N, noise_size)."""
        raise NotImplementedError

    def advance(self, state: Tensor, action: Any) -> Tensor:
        """The states after one step, of the shape of `state`. Hybrid actions come as a dict of their parts."""
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        """Observations (N, ...) of states; by default the states themselves."""
        return state

    def reward(self, state: Tensor, action: Any, next_state: Tensor) -> Tensor:
        """The reward of each step, float32 of shape (N,)."""
        raise NotImplementedError

    def terminated(self, state: Tensor) -> Tensor:
        """Whether the task is over in these states, bool of shape (N,); by default never. Time limits are handled elsewhere."""
        return torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)

    def action_mask(self, state: Tensor) -> Tensor:
        """Which options are allowed, bool (N, options), those of several choices side by side; optional."""
        raise NotImplementedError

    def privileged(self, state: Tensor) -> Tensor:
        """What only the critic sees of these states, real numbers (N, K); optional."""
        raise NotImplementedError

    def scene(self, obs: Tensor, action: Any = None) -> Scene:
        """Pictures of observations as shapes (see `tightrope.scene`), for videos and for `tightrope play`."""
        raise UsageError(f"{type(self).__name__} does not draw itself: give it a method scene(obs, action) or draw")

    def draw(self, obs: Tensor, action: Any = None) -> np.ndarray:
        """Frames of observations for videos, uint8 of shape (N, height, width, 3); by default those of `scene`."""
        return raster(self.scene(obs, action), len(obs))

    @property
    def drawable(self) -> bool:
        return self._overrides("draw") or self._overrides("scene")

    def _overrides(self, name: str) -> bool:
        """Whether the environment defines this method itself."""
        return name in vars(self) or getattr(type(self), name) is not getattr(TensorEnv, name)

    def try_methods(self) -> frozenset[str]:
        """Do the dry run once; returns the names of methods that work in place. A mistake is a UsageError of one line."""
        if self._in_place is None:
            methods.check_numbers(self)  # which may have been set since it was made
            self._in_place = try_methods(self)
        return self._in_place

    def _apply(self, name: str, *arguments: Tensor) -> Tensor:
        """Call one of the methods above, with copies if it works in place."""
        result: Tensor
        if self._in_place is None or name in self._in_place:
            result = getattr(self, name)(*methods.arguments_for(self, name, [x.clone() for x in arguments]))
            return result.clone()
        if torch.compiler.is_compiling():
            return getattr(self, name)(*methods.arguments_for(self, name, arguments))
        before = [writes(x) for x in arguments]
        result = getattr(self, name)(*methods.arguments_for(self, name, arguments))
        if before != [writes(x) for x in arguments]:
            found = "writes into an argument, but did not in the dry run"
            raise validate.mistake(self, name, found, "return a new tensor")
        return result

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start a new episode in every environment and drop the current ones."""
        self.try_methods()
        if self._first_record is None:
            self._first_record = first_record(self, UNSAVED)
        if seed is not None:
            self.generator.manual_seed(checked_seed(seed))
        self.state.copy_(self._apply("initial", self._noise() if noise is None else noise))
        self.clock.zero_()
        self._running_return.zero_()
        self._unverify()
        return self._checked_observe(self.state.clone())

    def _show(self, state: Tensor) -> Tensor:
        """The observations of states, with privileged numbers and action masks where there are some."""
        return with_parts(self, self._apply("observe", state), self._apply, state)

    def _checked_observe(self, state: Tensor, final: bool = False) -> Tensor:
        """Observe a state. On the CPU, check discrete observations and masks; on a device, the guard of training does."""
        obs = self._show(state)
        if self.device.type == "cpu" and not torch.compiler.is_compiling():
            validate.check_choices(self, obs)
            if not final:
                check_masks(self, obs)
        return obs

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, start the next one from `noise` in the same step."""
        noise = self._noise() if noise is None else noise
        if self._in_place is None and not (torch.compiler.is_compiling() or is_capturing(self.device)):
            self.try_methods()
        replays = self._uses_arrays and not torch.compiler.is_compiling()
        if replays and (arrays := self._replay(action, noise)) is not None:
            return arrays.step
        old_state = self.state.clone()  # so that nothing returned is an alias of the state
        next_state = self._apply("advance", old_state, action)
        reward = self._apply("reward", old_state, action, next_state)
        terminated = self._apply("terminated", next_state)
        self.clock += 1
        limit = self.max_episode_steps
        done = terminated if limit is None else terminated | (self.clock >= limit)
        truncated = torch.zeros_like(terminated) if limit is None else done & ~terminated
        self._count(reward, done)
        final_obs = self._checked_observe(next_state, final=True)  # while the clock is that of the episodes that end
        state = torch.where(done.unsqueeze(-1), self._apply("initial", noise), next_state)
        self.state.copy_(state)
        self.clock *= ~done
        return Step(self._checked_observe(state), reward, terminated, truncated, final_obs)

    def in_arrays(self) -> ArrayStepper | None:
        """A function that steps over arrays, for one rollout; None with many rows or if a subclass overrides step."""
        if not self._uses_arrays or getattr(self.step, "__func__", None) is not TensorEnv.step:
            return None
        if self._recorded_step is not None:
            self._recorded_step.unverify_if_changed()
        return self._step_arrays

    def _step_arrays(self, action: Array, noise: Array) -> StepArrays:
        step = self._recorded_step
        if self._uses_arrays and step is not None and step.verified:
            try:
                return step(action, noise)
            except Exception:  # nothing has been changed, and the step over tensors will raise it again
                self._uses_arrays = False
        tensors = torch.from_numpy(action), torch.from_numpy(noise)
        return self._replay(*tensors) or StepArrays.from_step(self.step(*tensors))

    def _replay(self, action: Tensor, noise: Tensor) -> StepArrays | None:
        """Step with the recording of the methods, which is faster with few rows; None if there is none. It is verified again
        when an attribute was set, at each reset, and at a rollout if what its classes hold may have changed."""
        try:
            step = verified_step(self, action, noise)
            with np.errstate(all="ignore"):  # the guard of training reports numbers that are not finite
                return None if step is None else step(action.numpy(), noise.numpy())
        except Exception:  # nothing has been changed, and the step over tensors will raise it again
            self._uses_arrays = False
            return None

    def _unverify(self) -> None:
        """Verify the recording before its next use."""
        if (step := vars(self).get("_recorded_step")) is not None:
            step.verified = False

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in ("observation", "action"):
            methods.declare_parts(self)
        if name not in CACHES:
            self._unverify()

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
        """A new environment of the same class and settings, with its own state and random stream."""
        twin = copy.copy(self)
        copy_attributes(twin, self, UNSAVED)
        twin._allocate(num_envs, seed)
        return twin

    def state_dict(self) -> dict[str, Tensor]:
        """Its state, and the attributes of a subclass that have changed since the first reset."""
        mine = {name: getattr(self, attribute).clone() for name, attribute in SAVED.items()}
        mine["generator"] = self.generator.get_state()
        save = snapshot_attributes if self._for_snapshot else save_attributes
        return mine | save(self, UNSAVED, self._first_record)

    def snapshot(self) -> dict[str, Tensor]:
        """A state_dict for this process only, with all attributes, changed or not: comparing them would wait for a device."""
        self._for_snapshot = True
        try:
            return self.state_dict()
        finally:
            self._for_snapshot = False

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        if state["state"].shape != self.state.shape:
            raise RuntimeError(f"env state has shape {tuple(state['state'].shape)}, expected {tuple(self.state.shape)}")
        for name, attribute in SAVED.items():
            getattr(self, attribute).copy_(state[name])
        if state["generator"].numel() == self.generator.get_state().numel():  # they differ between kinds of device
            self.generator.set_state(state["generator"].cpu())
        load_attributes(self, state, UNSAVED, self._first_record)
        self._unverify()

    def close(self) -> None: ...
