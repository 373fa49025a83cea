"""Statistics of a phase, as the runtime computes them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..functional import collected_mask, explained_variance, masked_mean
from . import across_ranks, distributed
from .estimates_in_c import explained_variance_in_c, masked_mean_in_c, sums_in_c


class Statistics:
    """Statistics over all ranks; a single process sends no message, and with compiled recordings uses C functions."""

    compiles_recordings: bool

    all_reduce_sum = staticmethod(distributed.all_reduce_sum)
    all_reduce_max = staticmethod(distributed.all_reduce_max)
    any_rank = staticmethod(distributed.any_rank)
    moments = staticmethod(across_ranks.moments)
    masked_moments = staticmethod(across_ranks.masked_moments)
    advantage_scales = staticmethod(across_ranks.advantage_scales)
    merge = staticmethod(across_ranks.merge)
    update_statistics = staticmethod(across_ranks.update_statistics)

    @property
    def uses_c(self) -> bool:
        return self.compiles_recordings and not distributed.world().is_distributed

    def masked_mean(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the mean over the entries where the mask is True."""
        return masked_mean_in_c(x, mask) if self.uses_c else masked_mean(x, mask, across_ranks.sum_over_ranks)

    def explained_variance(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the share of the target's variance that the prediction explains."""
        if self.uses_c:
            return explained_variance_in_c(prediction, target)
        return explained_variance(prediction, target, across_ranks.variance, distributed.all_reduce_max)

    def sums(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the sum of each tensor on this rank, see `across_ranks.sums`."""
        return sums_in_c(tensors) if self.compiles_recordings else across_ranks.sums(tensors)

    @staticmethod
    def collected_mask(terminated: Tensor, fraction: float | None) -> Tensor:
        """Mark the steps up to the one at which that fraction of all ranks' environments has terminated. (T, 1)"""
        ranks = distributed.world().size if distributed.world().is_distributed else 1
        return collected_mask(terminated, fraction, across_ranks.sum_over_ranks, ranks)
