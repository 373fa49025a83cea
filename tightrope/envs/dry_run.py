"""Take two steps of a tensor environment at its first reset, on a copy with few rows and without side effects.

The dry run finds mistakes (see `validate`) and methods that work in place, which `TensorEnv` then calls with copies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UsageError
from ..models.action_mask import next_allowed, options
from ..types import Box, Composite, Discrete, MultiDiscrete, Spec
from . import validate
from .mask_checks import check_masks, with_parts
from .random_streams import GeneratorSnapshot, streams_lock
from .validate import TensorEnvLike, bitwise_equal

ROWS = (12, 24)  # of the copy: the first number that is not the environment's; both are multiples of 2, 3 and 4


class DryRun:
    """Calls the methods of a copy with copies of their arguments, and collects the names of those that work in place."""

    def __init__(self, twin: TensorEnvLike) -> None:
        self.twin, self.in_place = twin, set[str]()
        self.returned: list[tuple[str, Tensor]] = []  # kept, so that their memory is not reused

    def run(self, name: str, *arguments: Tensor) -> object:
        copies, before = [x.clone() for x in arguments], self.twin.state.clone()
        versions = [x._version for x in (*copies, self.twin.state)]
        result = validate.call_method(self.twin, name, *copies)
        after = [x._version for x in (*copies, self.twin.state)]
        changed = after[-1] != versions[-1] or not bitwise_equal(self.twin.state, before)
        if changed or shares_memory(result, self.twin.state):
            fix = "use its arguments, and return new tensors"
            raise validate.mistake(self.twin, name, "changes or returns self.state", fix)
        if after != versions or not all(map(bitwise_equal, copies, arguments)):
            self.in_place.add(name)
        if isinstance(result, Tensor):
            if any(name == earlier and shares_memory(result, memory) for earlier, memory in self.returned):
                self.in_place.add(name)
            self.returned.append((name, result))
            return result.clone()
        return result


def shares_memory(one: object, other: Tensor) -> bool:
    """Whether two tensors are views of the same memory."""
    if not isinstance(one, Tensor) or not one.numel() or one.device != other.device:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def random_action(spec: Spec, rows: int, generator: torch.Generator) -> Tensor:
    """Random valid actions, as from a policy."""
    if isinstance(spec, Composite):
        parts = [random_action(part, rows, generator) for _, part in spec.parts]
        return torch.cat([part.reshape(rows, -1).to(spec.dtype) for part in parts], 1)
    draw = torch.rand(rows, *spec.shape, generator=generator, device=generator.device)
    if isinstance(spec, (Discrete, MultiDiscrete)):
        return (draw * torch.as_tensor(spec.n, device=draw.device)).to(spec.dtype)
    if not isinstance(spec, Box):
        raise UsageError(f"action {validate.short_text(spec)} is not supported: use Box, Discrete or MultiDiscrete")
    low, high = (torch.as_tensor(bound, device=draw.device).expand(draw[0].numel()) for bound in (spec.low, spec.high))
    return torch.minimum(torch.maximum(2 * draw - 1, low.view(spec.shape)), high.view(spec.shape)).to(spec.dtype)


@torch.no_grad()
def try_methods(env: TensorEnvLike) -> frozenset[str]:
    """Call every method of an environment on a copy, and return the names of those that work in place.

    With `pure = False`, methods must run exactly once per step: they are not called, and count as working in place.
    """
    validate.check_spaces(env)
    for name in validate.REQUIRED:
        validate.check_defined(env, name)
    if not env.pure:
        return frozenset(validate.PARAMETERS)
    with streams_lock:
        randomness, on_cuda = GeneratorSnapshot(env), env.device.type == "cuda"
        cuda_stream = torch.cuda.get_rng_state(env.device) if on_cuda else None
        try:
            return try_on_copy(env)
        finally:
            randomness.restore()
            if cuda_stream is not None:
                torch.cuda.set_rng_state(cuda_stream, env.device)


def try_on_copy(env: TensorEnvLike) -> frozenset[str]:
    """Try few rows; if a method raises, try twice the environment's rows, since it may need a multiple of some number."""
    try:
        return try_two_steps(DryRun(env.spawn(ROWS[env.num_envs == ROWS[0]], 0)))
    except UsageError as error:
        if " raises " not in str(error):
            raise
        try:
            return try_two_steps(DryRun(env.spawn(2 * env.num_envs, 0)))
        except UsageError:
            raise error from None


def try_two_steps(dry_run: DryRun) -> frozenset[str]:
    """Take one step from each of two batches of start states."""
    twin, run = dry_run.twin, dry_run.run
    generator = torch.Generator(twin.device).manual_seed(0)
    for _ in range(2):
        noise = torch.rand(twin.num_envs, twin.noise_size, generator=generator, device=twin.device)
        state = validate.check_state(twin, run("initial", noise))
        twin.state.copy_(state)
        obs = validate.check_observation(twin, run("observe", state))
        validate.check_finite(twin, "observe", obs, "at reset")
        action = random_action(twin.action, twin.num_envs, generator)
        width, obs = obs[0].numel(), with_parts(twin, obs, run, state)
        if twin._privileged:
            validate.check_finite(twin, "privileged", obs[:, width:], "at reset")
        if twin._masked:
            check_masks(twin, obs.cpu(), UsageError)
            mask = obs[:, -sum(options(twin.action)) :].cpu().numpy()
            action = torch.from_numpy(next_allowed(action.cpu().numpy(), mask, twin.action)).to(twin.device)
        validate.check_choices(twin, obs.cpu(), UsageError, "initial")
        after = validate.check_next_state(twin, run("advance", state, action), state)
        reward = validate.check_column(twin, "reward", run("reward", state, action, after), torch.float32)
        validate.check_finite(twin, "reward", reward, "after the first step")
        validate.check_column(twin, "terminated", run("terminated", after), torch.bool)
        with_parts(twin, validate.check_observation(twin, run("observe", after)), run, after)
    return frozenset(dry_run.in_place)


def writes(tensor: Tensor) -> int:
    """The number of writes to a tensor so far."""
    return 0 if tensor.is_inference() else tensor._version


def is_capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
