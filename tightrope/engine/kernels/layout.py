"""Which networks the kernels handle, where their parameters are in the flat buffer, and how many programs to launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from ...functional import PPOLoss
from ...models import MLP, ActorCritic
from ...models.actor_critic import CategoricalHead, GaussianHead, MultiCategoricalHead
from ..precision import KernelPrecision

# a float32 is split into bfloat16; six products of the parts are as accurate as float32, three more accurate than tf32
SPLITS = {"fp32": "bf16x6", "tf32": "bf16x3"}
TERMS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
)  # of PPOTerms, as the kernels compute them
MAX_INPUTS, MAX_UNITS, MAX_OUTPUTS, MAX_WIDTH = 63, 64, 32, 512  # limits of on-chip memory
ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu", nn.SiLU: "silu", nn.GELU: "gelu",
}  # fmt: skip
HOPPER = (9, 0)  # compute capability that the kernels are tuned and measured for
INTERPRETED_PROCESSORS = 2  # number of multiprocessors assumed when Triton's interpreter runs the kernels


def known_loss(loss: object) -> bool:
    """Whether the kernels compute this loss: with the terms and functions that it has by default."""
    if type(loss) is not PPOLoss:
        return False
    return all(getattr(loss, field.name) is field.default for field in fields(loss) if callable(field.default))


def known_network(policy: nn.Module) -> TypeGuard[ActorCritic]:
    """Whether the kernels compute the gradient for this kind of policy: multilayer perceptrons of one activation with biases,
    at most 512 units wide, under categorical heads, with or without action masks, or a Gaussian head with a free log_std. A
    head has at most 32 outputs, for each choice. All parameters are float32 and trained."""
    if type(policy) is not ActorCritic:
        return False
    trunks = policy.actor, policy.critic
    gaussian = type(policy.head) is GaussianHead and policy.head.log_std_layer is None
    return (
        (gaussian or type(policy.head) in (CategoricalHead, MultiCategoricalHead))
        and all(type(trunk) is MLP and not list(trunk[0].parameters()) for trunk in trunks)
        and len(names := {activation(part) for trunk in trunks for part in list(trunk)[2::2]}) == 1  # type: ignore[arg-type]
        and None not in names
        and all(layer.bias is not None for trunk in trunks for layer in linears(trunk))
        and all(layer.out_features <= MAX_WIDTH for trunk in trunks for layer in linears(trunk))
        and head_shape(policy).options <= MAX_OUTPUTS
        and head_shape(policy).choices <= MAX_OUTPUTS
        and all(p.requires_grad and p.dtype == torch.float32 for p in policy.parameters())
    )


def fits(policy: nn.Module) -> bool:
    """Whether a known network fits into one kernel: separate trunks of two hidden layers of the same width, at most 64, with
    tanh or relu; one vector of at most 63 numbers as input; one choice without a mask, or a Gaussian."""
    if not known_network(policy) or policy.critic is policy.actor:
        return False
    if policy.action_mask is not None or isinstance(policy.head, MultiCategoricalHead):
        return False
    if any(type(encoder) is not nn.Flatten for encoder in (policy.actor[0], policy.critic[0])):  # type: ignore[index]
        return False
    trunks = linears(policy.actor), linears(policy.critic)
    return (
        all(len(trunk) == 2 for trunk in trunks)
        and activation_of(policy.actor) in ("tanh", "relu")
        and len(widths := {layer.out_features for trunk in trunks for layer in trunk}) == 1
        and max(widths) <= MAX_UNITS
        and trunks[0][0].in_features <= MAX_INPUTS
        and (policy.normalizer is None or policy.normalizer.real is None)
    )


@cache
def has_tensor_cores(device: torch.device) -> bool:
    """Whether Triton is installed and the device multiplies bfloat16 and tf32, as those of compute capability 8.0 and up do."""
    if device.type != "cuda" or torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def has_device(device: torch.device) -> bool:
    """Whether the device has the compute capability that the kernels of small networks are made for."""
    return has_tensor_cores(device) and torch.cuda.get_device_capability(device) == HOPPER


def linears(trunk: object) -> list[nn.Linear]:
    assert isinstance(trunk, nn.Sequential)
    return [part for part in trunk if isinstance(part, nn.Linear)]


def activation_of(trunk: object) -> str | None:
    assert isinstance(trunk, nn.Sequential)
    return activation(trunk[2])


def activation(module: nn.Module) -> str | None:
    """Return the name of an activation with its usual parameters, otherwise None."""
    unusual = getattr(module, "alpha", 1.0) != 1.0 or getattr(module, "approximate", "none") != "none"
    return None if unusual else ACTIVATIONS.get(type(module))


def policy_output(policy: Any) -> nn.Linear:
    """Return the layer that computes the logits or the means."""
    return policy.head.mean if isinstance(policy.head, GaussianHead) else policy.head.logits


class HeadShape(NamedTuple):
    choices: int
    options: int  # of each choice; a Gaussian's number of actions


def head_shape(policy: ActorCritic) -> HeadShape:
    head = policy.head
    if isinstance(head, MultiCategoricalHead):
        return HeadShape(head.choices, head.most)
    return HeadShape(1, policy_output(policy).out_features)


@dataclass(frozen=True)
class Layout:
    """The compile-time constants of the kernels for one policy.

    ACTOR_1 to LOG_STD are offsets in the flat buffer: each layer's weight, followed by its bias. The sizes follow, plain and
    padded, then the options.
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
            PAD_IN=padded(actor[0].in_features + 1),  # one more input: the constant 1
            PAD_WIDTH=padded(actor[0].out_features),
            PAD_OUT=padded(output.out_features),
            RELU=activation_of(policy.actor) == "relu",
            GAUSSIAN=isinstance(policy.head, GaussianHead),
            NORMALIZE=policy.normalizer is not None,
        )

    def constants(self, precision: KernelPrecision, device: torch.device) -> dict[str, Any]:
        """Return all constants by name. Triton's interpreter multiplies only in float32."""
        return asdict(self) | {"PRECISION": SPLITS[precision] if device.type == "cuda" else "ieee"}


def padded(size: int) -> int:
    """Return the next power of two, at least 16, the smallest size that tensor cores accept."""
    return max(16, 1 << (size - 1).bit_length())


class Launch(NamedTuple):
    """Number of programs, rows of a tile, and warps of a program."""

    programs: int
    block: int
    warps: int


def launch_for(rows: int, device: torch.device, learning: bool = False) -> Launch:
    """Choose tile size and number of programs from the number of rows alone, so that sums always have the same order.

    Tiles are as large as registers allow, with two programs per multiprocessor. When learning, each program leaves a row of
    partial sums to be added up, so a second program pays off only for large batches.
    """
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
    """Return mean and variance of the observations; `otherwise`, which is never read, if the policy does not normalise."""
    if policy.normalizer is None:
        return otherwise, otherwise
    return policy.normalizer.mean, policy.normalizer.variance
