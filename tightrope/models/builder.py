"""Build a policy for a pair of spaces."""

from __future__ import annotations

from torch import nn

from ..errors import UsageError
from ..types import Box, Composite, Discrete, MultiDiscrete, Spec
from .action_mask import ActionMask, mask_columns, without_mask
from .actor_critic import ActorCritic, CategoricalHead, GaussianHead, Head, MultiCategoricalHead, NetworkConfig
from .hybrid import HybridHead
from .memory import MEMORIES, Memory, RecurrentTrunk, memory_for
from .networks import Custom, Trunk, real_numbers, sees_images, trunk_for
from .normalizer import ObservationNormalizer
from .observation_groups import GroupTrunk, check_own_trunks, group_spec, in_group, observation_groups
from .recurrent import RecurrentActorCritic


def actor_critic(
    observation: Spec, action: Spec, config: NetworkConfig, critic: bool = True, network: nn.Module | None = None,
    memory: type[Memory] | None = None,
) -> ActorCritic:  # fmt: skip
    """Build the network for a pair of spaces. A user's `network` becomes the trunk of both actor and critic; a user's `memory`
    is used where the settings name it."""

    seen, columns = without_mask(observation, action), mask_columns(observation, action)
    groups = observation_groups(seen, config.actor_obs, config.critic_obs)
    if critic:
        check_own_trunks(groups, config.share_trunk, network)
    elif config.critic_obs is not None:
        raise UsageError("critic_obs needs a critic, and this run has none: drop it, or give VPG baseline critic")

    def trunk(names: tuple[str, ...], network: nn.Module | None = None) -> Trunk | GroupTrunk:
        spec = group_spec(seen, names)
        inner = trunk_for(spec, config.hidden_sizes, config.activation) if network is None else Custom(network, spec)
        return in_group(inner, seen, names)

    actor = trunk(groups.actor, network)
    joint = config.share_trunk or sees_images(group_spec(seen, groups.actor)) or network is not None
    shared = joint and groups.actor == groups.critic
    own = None if not critic else actor if shared else trunk(groups.critic)
    real, action_mask = real_numbers(observation), None
    if columns is not None:
        real[columns], action_mask = False, ActionMask(observation, action, columns)
    normalizer = ObservationNormalizer(real) if config.norm_obs and real.any() else None
    if config.memory is None:
        return ActorCritic(actor, own, head_for(action, actor.out_features, config), normalizer, action_mask)
    kind = MEMORIES.get(config.memory, memory)
    if kind is None:
        raise UsageError(f"memory {config.memory} is a class of your own: give it as memory=...")

    def remembering(trunk: Trunk | GroupTrunk) -> RecurrentTrunk:
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
    if isinstance(action, Composite):
        return HybridHead(action, lambda part: head_for(part, in_features, config))
    raise UsageError(f"actions of {action} are not supported: give Discrete, MultiDiscrete or a Box of real numbers")
