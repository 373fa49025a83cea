"""Which networks the kernels know, how their parameters lie in memory, and how a piece of work is cut into programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...functional import PPOLoss
from ...models import ActorCritic
from ...models.actor_critic import GaussianHead
from ..closed_form import is_written_out
from ..precision import KernelPrecision

SPLITS = {
    "fp32": "bf16x6",
    "tf32": "bf16x3",
}  # products of bfloat16 pieces: as exact as float32, and more exact than tf32
MOST_INPUTS, MOST_UNITS, MOST_OUTPUTS = 63, 64, 32  # what fits on chip
HOPPER = (9, 0)  # the compute capability the kernels were written and measured for
INTERPRETED_PROCESSORS = 2  # stands for a device's multiprocessors where Triton's interpreter runs the kernels


def has_fused(loss: object, policy: nn.Module) -> bool:
    """Whether this loss of this policy can be differentiated, and the step taken, by the kernels, here and now."""
    return type(loss) is PPOLoss and fits(policy) and has_device(next(policy.parameters()).device)


def fits(policy: nn.Module) -> bool:
    """Whether it is a network the kernels know: an actor and a critic on trunks of their own, both with two hidden layers,
    all of one width of at most 64, with one activation, tanh or relu; at most 63 inputs; at most 32 actions to choose from,
    or dimensions of a Gaussian with a free deviation. All of it float32 and all of it trained."""
    if not is_written_out(policy) or policy.critic is policy.actor:
        return False
    trunks = linears(policy.actor), linears(policy.critic)
    if any(len(trunk) != 2 for trunk in trunks) or activation(policy.actor) is not activation(policy.critic):
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
    """Whether Triton is there and the device is one the kernels fit."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) == HOPPER


def linears(trunk: Any) -> list[nn.Linear]:
    return [part for part in trunk if isinstance(part, nn.Linear)]


def activation(trunk: Any) -> type[nn.Module]:
    return type(trunk[2])


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
    def of(cls, policy: ActorCritic, parameters: Sequence[Tensor]) -> Layout:
        ends = accumulate(p.numel() for p in parameters)
        start = {p: end - p.numel() for p, end in zip(parameters, ends, strict=True)}

        def at(layer: nn.Linear) -> int:
            assert start[layer.bias] == start[layer.weight] + layer.weight.numel()
            return start[layer.weight]

        actor, critic, output = linears(policy.actor), linears(policy.critic), policy_output(policy)
        assert isinstance(policy.value_head, nn.Linear)
        return cls(
            ACTOR_1=at(actor[0]),
            ACTOR_2=at(actor[1]),
            HEAD=at(output),
            CRITIC_1=at(critic[0]),
            CRITIC_2=at(critic[1]),
            VALUE_HEAD=at(policy.value_head),
            LOG_STD=start[policy.head.log_std] if isinstance(policy.head, GaussianHead) else 0,
            IN=actor[0].in_features,
            WIDTH=actor[0].out_features,
            OUT=output.out_features,
            PAD_IN=padded(actor[0].in_features + 1),  # with room for a constant
            PAD_WIDTH=padded(actor[0].out_features),
            PAD_OUT=padded(output.out_features),
            RELU=activation(policy.actor) is nn.ReLU,
            GAUSSIAN=isinstance(policy.head, GaussianHead),
            NORMALIZE=policy.normalizer is not None,
        )

    def constants(self, precision: KernelPrecision, device: torch.device) -> dict[str, Any]:
        """By name, as every kernel takes them. The interpreter multiplies nothing but float32."""
        return asdict(self) | {"PRECISION": SPLITS[precision] if device.type == "cuda" else "ieee"}


def padded(size: int) -> int:
    """The next power of two that tensor cores accept."""
    return max(16, 1 << (size - 1).bit_length())


class Launch(NamedTuple):
    """How many programs share the rows, and how many rows and warps each takes at a time."""

    programs: int
    block: int
    warps: int


def launch_for(rows: int, device: torch.device, learning: bool = False) -> Launch:
    """A fixed rule, found by measurement and not by the clock, so that sums are always taken in the same order: tiles as
    large as registers allow, and two programs a multiprocessor. Learning leaves a row of partial sums for each program,
    so that two pay only where there is much to do."""
    processors = multiprocessors(device)
    block = 64 if rows > 32 * processors else 32
    tiles = -(-rows // block)
    return Launch(min(processors if learning and tiles < 16 * processors else 2 * processors, tiles), block, 4)


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
