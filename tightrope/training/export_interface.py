"""The interface of an exported policy: its inputs, its outputs, and observations to test it with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..envs.adapters.host import HostEnv
from ..envs.step_arrays import Array
from ..envs.with_memory import with_memory
from ..errors import EnvError, UsageError
from ..models import ActorCritic, Categorical, Gaussian, Hybrid
from ..models.action_mask import ACTION_MASK, OBSERVATION
from ..models.actor_critic import Distribution, GaussianHead
from ..models.hybrid import HybridHead
from ..models.observation_groups import group_of, is_inside, names_of
from ..types import Composite, Discrete, Env, MultiDiscrete, Spec
from .predict import actor_names

if TYPE_CHECKING:
    from ..envs.adapters.actions import ActionWriter
    from ..envs.adapters.spaces import ObservationReader

ROWS, STEPS = 4, 16  # environments and steps of the test episodes
SPREAD = 3.0  # of random observations, in standard deviations of those seen

# inputs -----------------------------------------------------------------------------------------------------------------


class ActorInputs:
    """Reads the parts of observations that the actor needs into rows, in which the others are 0."""

    def __init__(self, policy: ActorCritic, env: Env) -> None:
        from ..envs.adapters.spaces import OBS

        self.env, self.spec, self.reader = env, env.observation, reader_by_parts(policy, env)
        needed, grouped = actor_names(policy, env), group_of(policy.actor) is not None
        names = [OBSERVATION if part.name == OBS else part.name for part in self.reader.parts]
        self.used = [not grouped or name in needed or is_inside(name, ACTION_MASK) for name in names]
        self.parts = tuple(part for part, used in zip(self.reader.parts, self.used, strict=True) if used)
        self.has_value = policy.critic is not None and {*names_of(policy.critic, self.spec)} <= {*needed}

    def traced(self, obs: Sequence[Tensor]) -> Tensor:
        """Batches of the parts to rows, as tensors."""
        given, count = iter(obs), obs[0].shape[0]
        every = (
            next(given) if used else torch.zeros(count, *(part.space.shape or ()))
            for part, used in zip(self.reader.parts, self.used, strict=True)
        )
        return self.reader.traced([*every])

    def show(self, rows: Array) -> list[Array]:
        """Rows to a batch of each part."""
        return [batch for batch, used in zip(self.reader.show(rows), self.used, strict=True) if used]

    def rows(self, shown: Sequence[Array]) -> Tensor:
        """Batches of the parts to rows, by the environment's own conversion."""
        nothing = self.reader.show(np.zeros((len(shown[0]), *self.spec.shape), np.float32))
        given = iter(shown)
        every = [next(given) if used else batch for batch, used in zip(nothing, self.used, strict=True)]
        if isinstance(self.env, HostEnv):
            return self.env.encode(self.env._observation.nested(every))[0].cpu()
        if len(every) == 1:
            return torch.from_numpy(every[0])
        return torch.cat([torch.from_numpy(batch).reshape(len(batch), -1).float() for batch in every], 1)


def reader_by_parts(policy: ActorCritic, env: Env) -> ObservationReader:
    """The reader of an environment's observations. That of a tensor environment has one part, or with groups one for each."""
    from ..envs.adapters.spaces import OBS, ObservationReader, Part, reader_of, space_of

    reader, spec = reader_of(env), env.observation
    if isinstance(env, HostEnv) or group_of(policy.actor) is None or not isinstance(spec, Composite):
        return reader
    named = ((OBS if name == OBSERVATION else name, part) for name, part in spec.parts)
    return ObservationReader(reader.space, spec, tuple(Part(name, name, space_of(part), part) for name, part in named))


# outputs ----------------------------------------------------------------------------------------------------------------


def action_outputs(policy: ActorCritic) -> tuple[str, ...]:
    """The names of the actions: one, or one for each part of a hybrid action."""
    head = policy.head
    return tuple(f"action/{name}" for name in head.names) if isinstance(head, HybridHead) else ("action",)


def action_arrays(env: Env, action: Tensor) -> list[np.ndarray]:
    """Actions of the policy as the environment gets them: one array, or one for each part of a hybrid action."""
    from ..envs.adapters.actions import writer_of
    from ..envs.adapters.space_members import leaves

    writer = writer_of(env)
    return list(leaves(writer.space, writer.batch(action.numpy())))


def action_settings(policy: ActorCritic, writer: ActionWriter) -> object:
    """The action space for the metadata of the file."""
    from ..envs.adapters.space_members import described

    if not isinstance(writer.spec, Composite):
        return described(writer.space)
    pairs = zip(action_outputs(policy), writer.parts, strict=True)
    return [{"name": name, **described(part.space)} for name, part in pairs]


def other_outputs(policy: ActorCritic, distribution: Distribution, value: Tensor | None) -> dict[str, Tensor]:
    """The outputs besides the action, by name. A mean is in the environment's units and not clipped. `value` is None
    if there is no critic, or one that sees more."""
    outputs: dict[str, Tensor] = {}
    head = policy.head
    if isinstance(distribution, Hybrid) and isinstance(head, HybridHead):
        for name, leaf, part in zip(head.names, head.heads, distribution.parts, strict=True):
            outputs |= {f"{kind}/{name}": x for kind, x in parameters_of(leaf, part).items()}
    else:
        outputs |= parameters_of(head, distribution)
    return outputs if value is None else {**outputs, "value": value}


def parameters_of(head: torch.nn.Module, distribution: Distribution) -> dict[str, Tensor]:
    """The parameters of one plain distribution, by name."""
    if isinstance(distribution, Gaussian) and isinstance(head, GaussianHead):
        mean = torch.addcmul(head.middle, head.half_range, distribution.mean)
        std = (head.half_range * distribution.log_std.exp()).expand_as(mean)
        flat = len(head.shape) == 1
        return {k: v if flat else v.reshape(-1, *head.shape) for k, v in (("mean", mean), ("std", std))}
    return {"logits": distribution.logits} if isinstance(distribution, Categorical) else {}


# observations to test with ----------------------------------------------------------------------------------------------


@torch.no_grad()
def example_rows(policy: ActorCritic, env: Env, seed: int) -> Tensor:
    """Test observations (rows, ...) as the policy reads them, on the CPU. Half come from short episodes with sampled actions,
    if the environment can be copied; the others are random."""
    spec = env.observation if policy.memory_rows is None else policy.memory_rows.spec
    generator = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    try:
        twin = with_memory(env.spawn(ROWS, seed), policy.memory_rows)
        obs = twin.reset(seed=seed)
        noise = torch.Generator(obs.device).manual_seed(seed)
        for _ in range(STEPS):
            seen.append(obs.cpu().clone().to(spec.dtype))
            obs = twin.step(policy.act(obs, policy.head.noise((ROWS,), noise))[1]).obs
        twin.close()
    except (UsageError, EnvError):  # the environment cannot be copied or run here
        seen = []
    like = torch.cat(seen) if seen else torch.zeros(ROWS * STEPS, *spec.shape)
    rows = torch.cat([*seen, policy.valid_rows(random_rows(spec, like.float(), generator))])
    return rows[torch.randperm(len(rows), generator=generator)]


def random_rows(spec: Spec, like: Tensor, generator: torch.Generator) -> Tensor:
    """As many random rows as `like` has. Continuous values spread around those in `like`; choices and pixels are uniform."""
    count = len(like)
    if isinstance(spec, Composite):
        pieces = torch.split(like, [math.prod(part.shape) for _, part in spec.parts], dim=1)
        shaped = [(part, x.reshape(count, *part.shape)) for (_, part), x in zip(spec.parts, pieces, strict=True)]
        drawn = [random_rows(part, x, generator) for part, x in shaped]
        return torch.cat([rows.reshape(count, -1).to(spec.dtype) for rows in drawn], dim=1)
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (count,), generator=generator)
    if isinstance(spec, MultiDiscrete):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in spec.n], 1)
    if spec.dtype == torch.uint8:
        return torch.randint(256, (count, *spec.shape), generator=generator, dtype=torch.uint8)
    std = like.std(0)
    return like.mean(0) + SPREAD * torch.randn(like.shape, generator=generator) * torch.where(std > 0, std, 1.0)
