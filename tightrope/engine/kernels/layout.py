"""Which networks the kernels know, how their parameters lie in memory, and how a piece of work is cut into programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...functional import PPOLoss
from ...models import ActorCritic
from ...models.actor_critic import GaussianHead
from ..closed_form import is_written_out

Precision = Literal["fp32", "tf32"]
INPUT_PRECISION = {"fp32": "tf32x3", "tf32": "tf32"}  # three tensor-core products make one of float32's accuracy
MOST_INPUTS, MOST_UNITS, MOST_OUTPUTS = 64, 128, 32
OLDEST = (8, 0)  # compute capability: tensor cores that take float32
INTERPRETED_PROCESSORS = 2  # stands for a device's multiprocessors where Triton's interpreter runs the kernels


def has_fused(loss: object, policy: nn.Module) -> bool:
    """Whether this loss of this policy can be differentiated, and the step taken, by the kernels, here and now."""
    return type(loss) is PPOLoss and fits(policy) and has_device(next(policy.parameters()).device)


def fits(policy: nn.Module) -> bool:
    """Whether it is a network the kernels know: an actor and a critic on trunks of their own, both with two hidden layers,
    all of one width of at most 128 (64 is the fast case), with one activation, tanh or relu; at most 64 inputs; at most 32
    actions to choose from, or dimensions of a Gaussian with a free deviation. All of it float32 and all of it trained."""
    if not is_written_out(policy) or policy.critic is policy.actor:
        return False
    trunks = linears(policy.actor), linears(policy.critic)
    if any(len(trunk) != 2 for trunk in trunks) or type(policy.actor[2]) is not type(policy.critic[2]):
        return False
    widths = {layer.out_features for trunk in trunks for layer in trunk}
    return (
        len(widths) == 1
        and max(widths) <= MOST_UNITS
        and trunks[0][0].in_features <= MOST_INPUTS
        and policy_output(policy).out_features <= MOST_OUTPUTS
        and (policy.normalizer is None or policy.normalizer.real is None)
        and all(layer.bias is not None for trunk in trunks for layer in trunk)
        and all(p.requires_grad and p.dtype == torch.float32 for p in policy.parameters())
    )


@cache
def has_device(device: torch.device) -> bool:
    """Whether Triton is there and has a device to compile for."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= OLDEST


def linears(trunk: Iterable[nn.Module]) -> list[nn.Linear]:
    return [part for part in trunk if isinstance(part, nn.Linear)]


def policy_output(policy: Any) -> nn.Linear:
    """The layer that gives the logits or the means."""
    return policy.head.mean if isinstance(policy.head, GaussianHead) else policy.head.logits


@dataclass(frozen=True)
class Layout:
    """A policy as the kernels see it, under the names of their compile-time constants.

    First where each layer's weight starts in the flat buffer, with its bias right behind; then sizes, plain and padded.
    """

    ACTOR_1: int
    ACTOR_2: int
    HEAD: int
    CRITIC_1: int
    CRITIC_2: int
    VALUE_HEAD: int
    LOG_STD: int
    IN: int
    WIDTH: int
    OUT: int
    PAD_IN: int
    PAD_WIDTH: int
    PAD_OUT: int
    RELU: bool
    GAUSSIAN: bool
    NORMALIZE: bool

    @classmethod
    def of(cls, policy: ActorCritic, parameters: list[nn.Parameter]) -> Layout:
        ends = accumulate(p.numel() for p in parameters)
        start = {p: end - p.numel() for p, end in zip(parameters, ends, strict=True)}

        def at(layer: nn.Linear) -> int:
            assert start[layer.bias] == start[layer.weight] + layer.weight.numel()
            return start[layer.weight]

        actor, critic, output = linears(policy.actor), linears(policy.critic), policy_output(policy)  # type: ignore[arg-type]
        sizes = actor[0].in_features, actor[0].out_features, output.out_features
        assert isinstance(policy.value_head, nn.Linear)
        return cls(
            *map(at, (*actor, output, *critic, policy.value_head)),
            start[policy.head.log_std] if isinstance(policy.head, GaussianHead) else 0,
            *sizes,
            *(max(16, 1 << (size - 1).bit_length()) for size in sizes),
            RELU=isinstance(policy.actor[2], nn.ReLU),  # type: ignore[index]
            GAUSSIAN=isinstance(policy.head, GaussianHead),
            NORMALIZE=policy.normalizer is not None,
        )

    def constants(self, precision: Precision) -> dict[str, Any]:
        return asdict(self) | {"PRECISION": INPUT_PRECISION[precision]}


class Launch(NamedTuple):
    """How many programs share the rows, and how many rows and warps each takes at a time."""

    programs: int
    block: int
    warps: int


def launch_for(rows: int, width: int, device: torch.device) -> Launch:
    """A fixed rule, so that sums are always taken in the same order: one program a multiprocessor, with tiles as large as
    registers allow but no larger than leaves each of them something to do."""
    processors = multiprocessors(device)
    block = 64 if width <= 64 else 32
    while block > 16 and -(-rows // block) * 2 <= processors:
        block //= 2
    return Launch(min(processors, -(-rows // block)), block, 4)


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def normalizer_moments(policy: ActorCritic, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the observations; any pointers will do where nothing is normalised."""
    if policy.normalizer is None:
        return otherwise, otherwise
    return policy.normalizer.mean, policy.normalizer.variance
