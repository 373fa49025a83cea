"""Act with a trained policy: from observations of an environment to actions for it.

`Policy` is loaded without its environment; the checkpoint has the spaces that it needs.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import torch
from torch import Tensor

from ..engine import stream_seed
from ..engine.noise import initialising
from ..envs.adapters.host import HostEnv, SpacesOnlyEnv, SpacesOnlyTensorEnv
from ..envs.step_arrays import MAX_SPACE_SIZE
from ..envs.validate import in_short
from ..errors import UsageError, one_line, warn
from ..models import ActorCritic, actor_critic
from ..models.action_mask import ACTION_MASK, MISSING_MASK, ActionMask, check_one_mask, mask_rows
from ..models.hybrid_spec import flat_parts
from ..models.networks import is_image
from ..types import Box, Composite, Discrete, Env, MultiDiscrete, Spec
from .checkpoint_reader import MAX_HEADER_BYTES, MODEL, TRAINING, Checkpoint
from .config import Config
from .export import Exported, export_policy
from .names import known_arguments, missing_member
from .user_objects import Network, own_network

if TYPE_CHECKING:
    import gymnasium

NEED_ENV = ("learn", "evaluate", "record", "show", "save")  # methods that only an agent has
DTYPES = {str(kind): kind for kind in (torch.float32, torch.float64, torch.int64, torch.uint8)}


@torch.no_grad()
def predict(policy: ActorCritic, env: Env, obs: Any, deterministic: bool = True, mask: object = None) -> Any:
    """The action for one observation or a batch, in the form of the spaces of `env`; a tensor for a tensor."""
    given, obs, as_tensor = obs, without_info(env, obs), isinstance(obs, Tensor)
    if policy.action_mask is not None:
        if given is not obs and mask is None:
            mask = given[1].get(ACTION_MASK)
        obs = with_action_mask(policy.action_mask, env, obs, mask)
    elif mask is not None:
        raise UsageError("mask is given, and this policy was trained without action masks: drop it")
    batch, single = encoded(env, obs)
    if policy.action_mask is not None:
        mask_rows(
            policy.action_mask(batch)[1].cpu(), env.action, len(batch)
        )  # which refuses a mask that allows nothing
    distribution = policy.distribution(batch)
    if deterministic:
        action = distribution.mode()
    else:
        generator = torch.Generator(batch.device).manual_seed(int(torch.randint(2**62, ())))
        action = distribution.sample(policy.head.noise((len(batch),), generator))
    action = policy.head.to_env(action)
    if isinstance(env.action, Composite):
        from ..envs.adapters.hybrid_writer import hybrid_action

        return hybrid_action(env, action, as_tensor, single)
    array = env.decode(action) if isinstance(env, HostEnv) else action.cpu().numpy()
    if as_tensor:
        members = torch.as_tensor(array, device=action.device) if isinstance(env, HostEnv) else action
        return members[0] if single else members
    if not single:
        return array
    return int(array[0]) if isinstance(env.action, Discrete) else array[0]


def without_info(env: Env, obs: Any) -> Any:
    """The observation itself, also if the (observation, info) of a Gymnasium reset is given."""
    if not isinstance(obs, tuple) or len(obs) != 2 or not isinstance(obs[1], dict):
        return obs
    if isinstance(env, HostEnv) and isinstance(getattr(env._observation.space, "spaces", None), tuple):
        from ..envs.adapters.space_members import has_shape_of

        # an observation that ends in a Dict
        return obs if has_shape_of(env._observation.space, obs) or not isinstance(obs[0], tuple) else obs[0]
    return obs[0]


def with_action_mask(split: ActionMask, env: Env, obs: object, mask: object) -> object:
    """An observation that has an action mask: its own, or `mask`."""
    if isinstance(env, HostEnv):
        from ..envs.adapters.gym_masks import with_mask_entry

        return with_mask_entry(env._observation.space, env.action, obs, mask)
    given, whole, seen = torch.as_tensor(obs, device=env.device), env.observation.shape, split.seen.shape
    if whole in (tuple(given.shape), tuple(given.shape[1:])):
        check_one_mask(mask)
        return given
    if seen not in (tuple(given.shape), tuple(given.shape[1:])):
        raise UsageError(f"an observation of shape {tuple(given.shape)} does not fit: give {seen}, or a batch of them")
    if mask is None:
        raise UsageError(MISSING_MASK)
    single = tuple(given.shape) == seen
    rows = given.reshape(1 if single else len(given), -1).float()
    allowed = mask_rows(mask.cpu() if isinstance(mask, Tensor) else mask, env.action, len(rows))
    joined = [rows[:, : split.start], torch.tensor(allowed).to(rows), rows[:, split.start :]]
    return torch.cat(joined, 1)[0] if single else torch.cat(joined, 1)


def encoded(env: Env, obs: Any) -> tuple[Tensor, bool]:
    """(rows for the network, whether a single observation was given)."""
    if isinstance(env, HostEnv):
        return env.encode(obs)
    spec = env.observation
    try:
        given = torch.as_tensor(obs, device=env.device)
        batch = given.to(spec.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"an observation cannot be converted to numbers of shape {spec.shape}: {one_line(error)}"
        ) from None
    if not spec.dtype.is_floating_point and not torch.equal(batch.to(given.dtype), given):
        raise UsageError(f"an observation is not in {in_short(spec)}: give whole numbers")
    single = batch.shape == spec.shape
    batch = batch[None] if single else batch
    if batch.shape[1:] != spec.shape:
        shape = tuple(batch.shape)
        raise UsageError(f"an observation of shape {shape} does not fit: give {spec.shape}, or a batch of them")
    return batch, single


class Policy:
    """A trained policy without its environment. `tr.load_policy` makes it."""

    def __init__(self, network: ActorCritic, env: Env, config: Config, checkpoint: Checkpoint) -> None:
        self.network, self.config, self.steps = network, config, checkpoint.steps
        self.path = checkpoint.path
        self._env = env

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observation space, as a Gymnasium space."""
        from ..envs.adapters.spaces import reader_of

        return reader_of(self._env).space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space, as a Gymnasium space."""
        from ..envs.adapters.hybrid_writer import writer_of

        return writer_of(self._env).space

    @known_arguments
    def predict(self, obs: Any, deterministic: bool = True, mask: object = None) -> Any:
        """The action for one observation or a batch; an array for an array, a tensor for a tensor. The (observation, info) of
        `env.reset()` may be given too. `mask` has a 1 for each allowed option, where observations do not hold masks."""
        return predict(self.network, self._env, obs, deterministic, mask)

    def export(self, path: str | Path) -> Exported:
        """Write the greedy policy to an ONNX file, if onnxruntime agrees with torch on random observations."""
        about = {"env": self.config.env, "algo": self.config.algo, "steps": self.steps}
        return export_policy(self.network, self._env, Path(path), stream_seed(self.config.run.seed, "export"), about)

    def _refuse(self, name: str, *_: object, **__: object) -> NoReturn:
        missing = f"the environment {self.config.env}, but this policy was loaded without it"
        raise UsageError(f"{name} needs {missing}: use tr.load(path, env=...)")

    def close(self) -> None:
        """Do nothing: there is no environment to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in NEED_ENV:
                return partial(self._refuse, name)
            raise missing_member("Policy", name)

    def __repr__(self) -> str:
        return f"Policy({self.config.env!r}, {self.config.algo}, steps={self.steps:,})"


# from a checkpoint ---------------------------------------------------------------------------------------------------


def loaded(checkpoint: Checkpoint, config: Config, network: Network | None, device: torch.device) -> Policy:
    """Load the policy of a verified checkpoint. Sizes are checked first: nothing larger than its files is allocated."""
    try:
        env = spaces_only_env(checkpoint, config, device)
        check_size(checkpoint, config, env)
        trunk = None if network is None else own_network(network)
        with initialising(0):  # initial weights, replaced below
            policy = actor_critic(env.observation, env.action, config.network, config.algorithm.has_critic, trunk)
        expected = sum(tensor.nbytes for tensor in policy.state_dict().values())
        if checkpoint.manifest["files"][MODEL]["size"] > 2 * expected + MAX_HEADER_BYTES:
            raise ValueError(f"{MODEL} is far larger than a network with these settings")
        tensors = checkpoint.read(MODEL)
        policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in tensors.items()})
    except (KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise checkpoint.misfit(one_line(error)) from None
    return Policy(policy.to(device).eval(), env, config, checkpoint)


def spaces_only_env(checkpoint: Checkpoint, config: Config, device: torch.device) -> Env:
    """A stand-in for the environment, with the spaces that the checkpoint has."""
    from ..envs.adapters.space_members import space_from_json

    manifest = checkpoint.manifest
    spaces = manifest.get("spaces")
    if spaces is None:
        if "spaces" not in manifest and not any(name.startswith("env.") for name in checkpoint.shapes(TRAINING)):
            old = f"{checkpoint.path.name} was saved by an earlier version, without the environment's own spaces"
            warn(f"{old}: images are given with channels first, and discrete actions count from 0")
        shown, taken = spec_from_json(manifest.get("observation")), spec_from_json(manifest.get("action"))
        return cast(Env, SpacesOnlyTensorEnv(config.env, shown, taken, device))
    if not isinstance(spaces, dict):
        raise ValueError("its spaces are not valid")
    names = "observation", "action"
    shown_space, taken_space = (space_from_json(spaces.get(name)) for name in names)
    taken = spec_from_json(manifest.get("action"))
    conditions = taken.conditions if isinstance(taken, Composite) else ()
    env = SpacesOnlyEnv(config.env, shown_space, taken_space, device, conditions)
    for name in names:
        if getattr(env, name) != spec_from_json(manifest.get(name)):
            raise ValueError(f"its two descriptions of the {name} space differ")
    return env


def spec_from_json(words: Any) -> Spec:
    """Read a spec that `spec_to_json` wrote; ValueError for anything else."""
    if not isinstance(words, dict):
        raise ValueError("a space has no description")
    kind = words.get("kind")
    if kind == "Composite":
        parts = words.get("parts")
        if not isinstance(parts, list) or not all(isinstance(part, list) and len(part) == 2 for part in parts):
            raise ValueError("a space has no valid parts")
        inner = tuple((str(name), spec_from_json(part)) for name, part in parts)
        if not inner or any(isinstance(part, Composite) for _, part in inner):
            raise ValueError("a space has no valid parts")
        return Composite(inner, conditions=conditions_from_json(words.get("conditions", [])))
    n, shape, dtype = words.get("n"), words.get("shape"), DTYPES.get(str(words.get("dtype")))
    if kind == "Discrete" and type(n) is int and n > 0:
        return Discrete(n)
    if kind == "MultiDiscrete" and isinstance(n, list) and n and all(type(k) is int and k > 0 for k in n):
        return MultiDiscrete(tuple(n))
    if kind == "Box" and isinstance(shape, list) and all(type(k) is int and k > 0 for k in shape) and dtype:
        ends = []
        for end in (words.get("low"), words.get("high")):
            each = [float(str(bound)) for bound in (end if isinstance(end, list) else [end])]
            if isinstance(end, list) and len(each) != math.prod(shape):
                raise ValueError("a space has a wrong number of bounds")
            ends.append(tuple(each) if isinstance(end, list) else each[0])
        return Box(tuple(shape), ends[0], ends[1], dtype)
    raise ValueError("the description of a space is not valid")


def conditions_from_json(given: object) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Read the conditions of a hybrid action; ValueError for anything else. `check_hybrid` compares them with its parts."""
    found = []
    for condition in given if isinstance(given, list) else [given]:
        part, choice, values = condition if isinstance(condition, list) and len(condition) == 3 else (0, 0, 0)
        if not (isinstance(part, str) and isinstance(choice, str) and isinstance(values, list)):
            raise ValueError("a space has no valid conditions")
        found.append((part, choice, tuple(values)))
    return tuple(found)


def check_size(checkpoint: Checkpoint, config: Config, env: Env) -> None:
    """Raise UsageError if the network for these spaces would be far larger than the one in the checkpoint."""
    numbers = sum(map(math.prod, checkpoint.shapes(MODEL).values()))
    read = 0 if config.network.network is not None else least_weights(env.observation)
    written = 0
    for _, part in flat_parts(env.action):
        most = max(part.n) if isinstance(part, MultiDiscrete) else part.n if isinstance(part, Discrete) else 1
        written += math.prod(part.shape) * most
    largest = max(math.prod(env.observation.shape), math.prod(env.action.shape))
    if largest > MAX_SPACE_SIZE or max(read, written) > numbers:
        raise ValueError("its spaces are far larger than its network")


def least_weights(spec: Spec) -> int:
    """A lower bound on the number of weights of a network for these observations."""
    if isinstance(spec, Composite):
        return sum(least_weights(part) for _, part in spec.parts)
    if isinstance(spec, Discrete):
        return spec.n
    if isinstance(spec, MultiDiscrete):
        return max(sum(spec.n), len(spec.n) * max(spec.n) // 64)  # the size of an intermediate table
    return 16 * math.prod(spec.shape[1:]) if is_image(spec) else math.prod(spec.shape)
