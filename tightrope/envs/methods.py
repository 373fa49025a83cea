"""Call the methods of a tensor environment, and explain their exceptions; add what they show besides observations.

At the first reset, a dry run takes two steps on a copy with few rows and without side effects. It finds mistakes (see
`validate`) and methods that work in place, which `TensorEnv` then calls with copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, raised
from ..models.action_mask import ACTION_MASK, OBSERVATION, append_mask, next_allowed, options, with_mask
from ..models.hybrid_spec import flat_action
from ..models.observation_groups import PRIVILEGED, append_privileged, with_privileged
from ..types import Box, Composite, Discrete, MultiDiscrete, Spec
from . import validate
from .arguments import takes_arguments
from .random_streams import GeneratorSnapshot, streams_lock
from .validate import ON_DEVICE, TensorEnvLike, bitwise_equal, mistake

PARAMETERS = {
    "initial": ("noise",),
    "advance": ("state", "action"),
    "reward": ("state", "action", "next_state"),
    "terminated": ("state",),
    "observe": ("state",),
    "action_mask": ("state",),
    "privileged": ("state",),
}
REQUIRED = {
    "initial": "it turns uniform noise (N, noise_size) into start states (N, S)",
    "advance": "it returns the next states, of the shape of state",
    "reward": "it returns one float32 number per row, shape (N,)",
}
ROWS = (12, 24)  # of the copy: the first number that is not the environment's; both are multiples of 2, 3 and 4


def check_numbers(env: TensorEnvLike) -> None:
    limit: object = env.max_episode_steps
    size: object = env.noise_size
    if not isinstance(limit, (int, type(None))):
        raise mistake(env, f"time_limit {limit!r}", "is not a number of steps", "give an int or None")
    if not isinstance(size, int) or size < 0:
        fix = "set it to the columns of noise that initial uses, 0 or more"
        raise mistake(env, f"noise_size {size!r}", "is invalid", fix)


def check_defined(env: TensorEnvLike, name: str) -> None:
    """Raise UsageError if the environment lacks this required method."""
    if not env._overrides(name):
        raise UsageError(f"{type(env).__name__} has no {name}: write {signature(name)}; {REQUIRED[name]}")


def signature(name: str) -> str:
    return f"`def {name}({', '.join(('self', *PARAMETERS[name]))})`"


def call_method(env: TensorEnvLike, name: str, *arguments: Tensor) -> object:
    """Call a method and return its result; an exception becomes a UsageError of one line."""
    try:
        return getattr(env, name)(*arguments_for(env, name, arguments))
    except UsageError:
        raise
    except Exception as error:
        raise explained(env, name, arguments, error) from None


def arguments_for(env: TensorEnvLike, name: str, arguments: Sequence[Tensor]) -> Sequence[Tensor | dict[str, Tensor]]:
    """The arguments as a method takes them: a hybrid action as a dict of its parts."""
    if name not in ("advance", "reward") or not isinstance(env.action, Composite):
        return arguments
    return arguments[0], env.action.split(arguments[1]), *arguments[2:]


def explained(env: TensorEnvLike, name: str, arguments: tuple[Tensor, ...], error: Exception) -> UsageError:
    """One line about an exception in a user's method, with the likely fix."""
    if isinstance(error, AttributeError) and error.obj is env:
        fix = "set it in __init__" if "state" in vars(env) else "set it before super().__init__()"
        return mistake(env, name, f"reads self.{error.name}, which is not set yet", fix)
    if isinstance(error, TypeError) and not takes_arguments(getattr(env, name), arguments):
        return mistake(env, name, f"does not take ({', '.join(PARAMETERS[name])})", f"write {signature(name)}")
    parts = [x if isinstance(x, dict) else {"": x} for x in arguments_for(env, name, arguments)]
    given = [{key: tuple(part.shape) for key, part in each.items()} for each in parts]
    shapes = ", ".join(f"{p} {each.get('', each)}" for p, each in zip(PARAMETERS[name], given, strict=True))
    fix = "fix that line"
    if name == "initial" and isinstance(error, (IndexError, ValueError, RuntimeError)):
        fix = f"noise has noise_size = {env.noise_size} columns; set noise_size to the number of columns it uses"
    if "same device" in str(error) or "on cpu" in str(error):
        fix = ON_DEVICE
    elif isinstance(error, RuntimeError) and "at non-singleton dimension 0" in str(error):
        fix = "use as many rows as it is given, for evaluation uses copies with other numbers of rows"
    return mistake(env, name, f"raises {raised(error)} on {shapes}", fix)


# privileged numbers and action masks, as parts of the observation --------------------------------------------------------


def declare_parts(env: Any, start: Tensor | None = None) -> None:
    """Add the privileged numbers and the action mask of an environment, where it has them, to its observation space. The number
    of privileged numbers is found out from start states. The parts of a nested action get joined names."""
    if start is not None:
        env._privileged = 0
        if env._overrides("privileged"):
            env._privileged = validate.check_privileged(env, call_method(env, "privileged", start)).shape[1]
    seen, action = getattr(env, "observation", None), getattr(env, "action", None)
    if isinstance(action, Composite) and (flat := flat_action(action)) is not action:
        vars(env).update(action=(action := flat))
    masked = env._masked and isinstance(action, Spec) and bool(options(action))
    added = [name for name, has in ((PRIVILEGED, env._privileged), (ACTION_MASK, masked)) if has]
    if not added or not isinstance(seen, Spec):
        return
    if isinstance(seen, Composite) and {*added} & dict(seen.parts).keys():  # of an earlier declaration
        parts = tuple((name, part) for name, part in seen.parts if name not in (PRIVILEGED, ACTION_MASK))
        seen = parts[0][1] if [name for name, _ in parts] == [OBSERVATION] else Composite(parts)
    shown = with_privileged(seen, env._privileged) if env._privileged else seen
    vars(env).update(_seen=seen, observation=with_mask(shown, action) if masked and action else shown)


def with_parts(env: TensorEnvLike, obs: Tensor, call: Callable[[str, Tensor], object], state: Tensor) -> Tensor:
    """Observations with the privileged numbers and action masks of these states. `call` calls a method by its name."""
    if env._privileged:
        obs = append_privileged(obs, validate.check_privileged(env, call("privileged", state)))
    return append_mask(obs, validate.check_mask(env, call("action_mask", state))) if env._masked else obs


# the dry run ------------------------------------------------------------------------------------------------------------


class DryRun:
    """Calls the methods of a copy with copies of their arguments, and collects the names of those that work in place."""

    def __init__(self, twin: TensorEnvLike) -> None:
        self.twin, self.in_place = twin, set[str]()
        self.returned: list[tuple[str, Tensor]] = []  # kept, so that their memory is not reused

    def run(self, name: str, *arguments: Tensor) -> object:
        copies, before = [x.clone() for x in arguments], self.twin.state.clone()
        versions = [x._version for x in (*copies, self.twin.state)]
        result = call_method(self.twin, name, *copies)
        after = [x._version for x in (*copies, self.twin.state)]
        changed = after[-1] != versions[-1] or not bitwise_equal(self.twin.state, before)
        if changed or shares_memory(result, self.twin.state):
            fix = "use its arguments, and return new tensors"
            raise mistake(self.twin, name, "changes or returns self.state", fix)
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
    for name in REQUIRED:
        check_defined(env, name)
    if not env.pure:
        return frozenset(PARAMETERS)
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
            validate.check_masks(twin, obs.cpu(), UsageError)
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
