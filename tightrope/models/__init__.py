"""Networks, distributions, and the ActorCritic that joins them."""

from .actor_critic import ActorCritic, NetworkConfig
from .builder import actor_critic
from .distributions import Categorical, Gaussian, MultiCategorical
from .hybrid import Hybrid
from .networks import MLP, NatureCNN

__all__ = [
    "MLP", "ActorCritic", "Categorical", "Gaussian", "Hybrid", "MultiCategorical", "NatureCNN", "NetworkConfig",
    "actor_critic",
]  # fmt: skip
