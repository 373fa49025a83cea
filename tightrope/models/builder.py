"""Build a policy for a pair of spaces."""

from __future__ import annotations

from torch import nn

from ..errors import UsageError
from ..types import Box, Discrete, MultiDiscrete, Spec
from .action_mask import ActionMask, mask_columns, without_mask
from .actor_critic import ActorCritic, CategoricalHead, GaussianHead, Head, MultiCategoricalHead, NetworkConfig
from .memory import MEMORIES, Memory, RecurrentTrunk, memory_for
from .networks import Custom, Trunk, real_numbers, sees_images, trunk_for
from .normalizer import ObservationNormalizer
from .recurrent import RecurrentActorCritic


def actor_critic(
    observation: Spec, action: Spec, config: NetworkConfig, critic: bool = True, network: nn.Module | None = None,
    memory: type[Memory] | None = None,
) -> ActorCritic:  # fmt: skip
    """Build the network for a pair of spaces. A user's `network` becomes the trunk of both actor and critic; a user's `memory`
    is used where the settings name it."""

    seen, columns = without_mask(observation, action), mask_columns(observation, action)

    def trunk() -> Trunk:
        return trunk_for(seen, config.hidden_sizes, config.activation)

    actor = trunk() if network is None else Custom(network, seen)
    shared = config.share_trunk or sees_images(seen) or network is not None
    own = None if not critic else actor if shared else trunk()
    real, action_mask = real_numbers(observation), None
    if columns is not None:
        real[columns], action_mask = False, ActionMask(observation, action, columns)
    normalizer = ObservationNormalizer(real) if config.norm_obs and real.any() else None
    if config.memory is None:
        return ActorCritic(actor, own, head_for(action, actor.out_features, config), normalizer, action_mask)
    kind = MEMORIES.get(config.memory, memory)
    if kind is None:
        raise UsageError(f"memory {config.memory} is a class of your own: give it as memory=...")

    def remembering(trunk: Trunk) -> RecurrentTrunk:
        return RecurrentTrunk(trunk, memory_for(kind, trunk.out_features, config.memory_size, config.memory_layers))

    acting = remembering(actor)
    valuing = None if own is None else acting if own is actor else remembering(own)
    head = head_for(action, acting.out_features, config)
    return RecurrentActorCritic(acting, valuing, head, observation, normalizer, action_mask)


def head_for(action: Spec, in_features: int, config: NetworkConfig) -> Head:
    """Build the policy head for an action space."""
    if isinstance(action, Discrete):
        return CategoricalHead(in_features, action)
    if isinstance(action, MultiDiscrete):
        return MultiCategoricalHead(in_features, action)
    if isinstance(action, Box) and action.dtype.is_floating_point:
        return GaussianHead(in_features, action, config.log_std == "state", config.log_std_init)
    raise UsageError(f"actions of {action} are not supported: give Discrete, MultiDiscrete or a Box of real numbers")
