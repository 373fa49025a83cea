"""A network in one line, such as 'actor 4 -> 64 tanh -> 64 tanh -> 2 (4,610 parameters); critic ...'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from torch import nn

from ..errors import plural
from .actor_critic import ActorCritic
from .memory import Memory
from .networks import ACTIVATIONS, Custom, OneHot

ACTIVATION_NAMES = {kind: name for name, kind in ACTIVATIONS.items()}


def network_summary(policy: ActorCritic) -> str:
    """The layers of actor and critic with their sizes and numbers of parameters."""
    if policy.critic is None or policy.value_head is None:
        return f"actor {chain_of(policy.actor, policy.head)}, no critic"
    if policy.critic is policy.actor:
        value = f"value {chain_of(policy.value_head)}"
        return f"shared {chain_of(policy.actor)}; actor {chain_of(policy.head)}; {value}"
    return f"actor {chain_of(policy.actor, policy.head)}; critic {chain_of(policy.critic, policy.value_head)}"


def chain_of(*modules: nn.Module) -> str:
    parameters = sum(p.numel() for module in modules for p in module.parameters())
    found: list[str] = []
    for layer in chain.from_iterable(map(layers, modules)):
        if layer in ACTIVATION_NAMES.values() and found:
            found[-1] += f" {layer}"
        elif not (layer.startswith("in ") and found):
            found.append(layer.removeprefix("in "))
    return f"{' -> '.join(found)} ({plural(parameters, 'parameter')})"


def layers(module: nn.Module) -> Iterator[str]:
    """The layers in the order in which they were made, each preceded by 'in' and the size of its input."""
    if isinstance(module, Custom):
        yield type(module.network).__name__
    elif isinstance(module, Memory):
        yield f"{type(module).__name__} {module.out_features}"
    elif isinstance(module, nn.Linear):
        yield from (f"in {module.in_features}", f"{module.out_features}")
    elif isinstance(module, nn.Conv2d):
        yield f"in {module.in_channels} channels"
        yield f"{module.out_channels} of {module.kernel_size[0]}x{module.kernel_size[1]} by {module.stride[0]}"
    elif isinstance(module, OneHot):
        yield f"in one-hot {module.out_features}"
    elif type(module) in ACTIVATION_NAMES:
        yield ACTIVATION_NAMES[type(module)]
    else:
        children: Iterable[nn.Module] = module.children()
        yield from chain.from_iterable(map(layers, children))
