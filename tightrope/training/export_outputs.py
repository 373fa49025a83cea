"""The outputs of an exported policy: actions and parameters of their distribution; of a hybrid action each part by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..models import ActorCritic, Categorical, Gaussian, Hybrid
from ..models.actor_critic import Distribution, GaussianHead
from ..models.hybrid import HybridHead
from ..types import Env

if TYPE_CHECKING:
    from ..envs.adapters.hybrid_writer import Writer


def action_outputs(policy: ActorCritic) -> tuple[str, ...]:
    """The names of the actions: one, or one for each part of a hybrid action."""
    head = policy.head
    return tuple(f"action/{name}" for name in head.names) if isinstance(head, HybridHead) else ("action",)


def action_arrays(env: Env, action: Tensor) -> list[np.ndarray]:
    """Actions of the policy as the environment gets them: one array, or one for each part of a hybrid action."""
    from ..envs.adapters.hybrid_writer import writer_of
    from ..envs.adapters.space_members import leaves

    writer = writer_of(env)
    return list(leaves(writer.space, writer.batch(action.numpy())))


def action_settings(policy: ActorCritic, writer: Writer) -> object:
    """The action space for the metadata of the file."""
    from ..envs.adapters.hybrid_writer import HybridWriter
    from ..envs.adapters.space_members import described

    if not isinstance(writer, HybridWriter):
        return described(writer.space)
    pairs = zip(action_outputs(policy), writer.writers, strict=True)
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
