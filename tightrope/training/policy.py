"""Act with a trained policy: from observations of an environment to actions for it.

`Policy` is loaded without its environment; the checkpoint has the spaces that it needs.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import torch

from ..engine import stream_seed
from ..engine.noise import initialising
from ..envs.adapters.host import SpacesOnlyEnv, SpacesOnlyTensorEnv
from ..envs.step_arrays import MAX_SPACE_SIZE
from ..errors import UsageError, one_line, warn
from ..models import ActorCritic
from ..models.action_mask import without_mask
from ..models.hybrid_spec import flat_parts
from ..models.networks import is_image
from ..models.observation_groups import group_spec, observation_groups
from ..types import Bound, Box, Composite, Discrete, Env, MultiDiscrete, Spec
from .build import new_network
from .checkpoint_reader import MAX_HEADER_BYTES, MODEL, TRAINING, Checkpoint, find
from .config import Config
from .export import Exported, export_policy
from .names import known_arguments, missing_member
from .predict import predict
from .saving import check_plausible
from .settings import device_name, resolve_device
from .user_objects import Network, network_for

if TYPE_CHECKING:
    import gymnasium

NEED_ENV = ("learn", "evaluate", "record", "show", "save")  # methods that only an agent has
DTYPES = {str(kind): kind for kind in (torch.float32, torch.float64, torch.int64, torch.uint8)}


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
        from ..envs.adapters.actions import writer_of

        return writer_of(self._env).space

    @known_arguments
    def predict(self, obs: Any, state: Any = None, deterministic: bool = True, mask: object = None) -> Any:
        """The action for one observation or a batch; an array for an array, a tensor for a tensor. The (observation, info) of
        `env.reset()` may be given too. `mask` has a 1 for each allowed option, where observations do not hold masks. A policy
        with memory returns (action, state): give the state with the next observation, and None when an episode starts."""
        return predict(self.network, self._env, obs, state, deterministic, mask)

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


def load_policy(
    path: str | Path, checkpoint: str = "last", network: Network | None = None, device: str | torch.device = "cpu"
) -> Policy:
    """Load a policy without its environment: neither the environment nor its package is imported.

    Args:
        path: Directory of a run or of a saved agent.
        checkpoint: last, best, or the name of a checkpoint.
        network: The network, if it is your own.
        device: Torch device of the policy.
    """
    path, where = Path(path), resolve_device(device_name(device))
    found = find(path, checkpoint)
    config = found.config
    check_plausible(found, config)
    network = network_for(config, path, network)
    try:  # sizes are checked first: nothing larger than the files is allocated
        env = spaces_only_env(found, config, where)
        check_size(found, config, env)
        with initialising(0):  # initial weights, replaced below
            policy = new_network(config, env, network)
        expected = sum(tensor.nbytes for tensor in policy.state_dict().values())
        if found.manifest["files"][MODEL]["size"] > 2 * expected + MAX_HEADER_BYTES:
            raise ValueError(f"{MODEL} is far larger than a network with these settings")
        tensors = found.read(MODEL)
        policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in tensors.items()})
    except (KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise found.misfit(one_line(error)) from None
    return Policy(policy.to(where).eval(), env, config, found)


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
    try:
        kind = words["kind"]
        if kind == "Discrete":
            return Discrete(sizes_from_json([words["n"]])[0])
        if kind == "MultiDiscrete" and words["n"]:
            return MultiDiscrete(sizes_from_json(words["n"]))
        if kind == "Box":
            shape, dtype = sizes_from_json(words["shape"]), DTYPES[words["dtype"]]
            return Box(shape, bound_from_json(words["low"], shape), bound_from_json(words["high"], shape), dtype)
        if kind == "Composite":
            parts = tuple((str(name), spec_from_json(part)) for name, part in words["parts"])
            if parts and not any(isinstance(part, Composite) for _, part in parts):
                return Composite(parts, conditions=conditions_from_json(words.get("conditions", [])))
    except (KeyError, TypeError):  # an entry is missing or of another kind
        pass
    raise ValueError("the description of a space is not valid")


def sizes_from_json(numbers: object) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not all(type(number) is int and number > 0 for number in numbers):
        raise ValueError("a space has no valid sizes")
    return tuple(numbers)


def bound_from_json(bound: object, shape: tuple[int, ...]) -> Bound:
    """One bound, or one for each entry of a Box."""
    if not isinstance(bound, list):
        return float(str(bound))
    if len(bound) != math.prod(shape):
        raise ValueError("a space has a wrong number of bounds")
    return tuple(float(str(each)) for each in bound)


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
    seen, network = without_mask(env.observation, env.action), config.network
    groups = observation_groups(seen, network.actor_obs, network.critic_obs)
    read = 0 if network.network is not None else least_weights(group_spec(seen, groups.actor))
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
