"""Python entry points of the Triton kernels: a gradient, an optimizer step, and a policy that acts and evaluates actions.

Triton is imported on first use. No function reads a tensor on the host, so CUDA graphs can capture all of them.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor

from ...functional import PPOLoss, PPOTerms
from ...models import ActorCritic
from ...types import Batch
from ..optimize import BETAS, EPS, Optimizer
from ..precision import KernelPrecision
from .layout import TERMS, Launch, Layout, fits, has_device, launch_for, normalizer_moments

SUM_BLOCK, SUM_ROWS = 32, 64
ADAM_BLOCK, ADAM_CHUNK = 256, 1024
STANDARDIZE_BLOCK = 2048


class FusedGradient:
    """The gradient of PPOLoss for one policy in two kernels, called with a loss and a batch.

    `squares` holds the squared norm of each block of the last gradient, for `clip_and_adam`.
    """

    def __init__(
        self,
        policy: ActorCritic,
        optimizer: Optimizer,
        precision: KernelPrecision = "fp32",
        launch: Launch | None = None,
    ) -> None:
        self.flat, self.grad, self.launch = optimizer.flat, optimizer.grad, launch
        self.constants = Layout.of(policy, optimizer.parameters).constants(precision, self.flat.device)
        self.mean, self.variance = normalizer_moments(policy, self.flat)
        self.size = self.flat.numel()
        self.stride = -(-(self.size + len(TERMS)) // SUM_BLOCK) * SUM_BLOCK
        self.squares = torch.zeros(self.stride // SUM_BLOCK, device=self.flat.device)

    @torch.no_grad()
    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        from .learn import gradient_kernel
        from .optimizer_step import sum_kernel

        rows, clip, bonus = len(batch), loss.clip_coef, loss.ent_coef
        stored, bonus_stored = (isinstance(x, Tensor) and x.device == self.flat.device for x in (clip, bonus))
        programs, block, warps = self.launch or launch_for(rows, self.flat.device, learning=True)
        parts = torch.empty(programs, self.stride, device=self.flat.device)
        terms = torch.empty(len(TERMS), device=self.flat.device)  # the kernels write all of them
        columns = (batch.action, batch.log_prob, batch.value, batch.advantage, batch.target)
        gradient_kernel[programs, 2](
            batch.obs.contiguous(), self.mean, self.variance, *(column.contiguous() for column in columns),
            clip if stored else float(clip), float(loss.vf_coef), bonus if bonus_stored else float(bonus), self.flat, parts,
            rows, SIZE=self.size, STRIDE=self.stride, CLIP_IS_STORED=stored, BONUS_IS_STORED=bonus_stored,
            CLIP_VALUE=loss.clip_vloss, BLOCK=block,
            **self.constants, num_warps=warps, num_stages=1,
        )  # fmt: skip
        sum_kernel[self.squares.numel(),](
            parts, self.grad, terms, self.squares, programs,
            SIZE=self.size, STRIDE=self.stride, TERMS=len(TERMS), ROWS=SUM_ROWS, BLOCK=SUM_BLOCK,
        )  # fmt: skip
        return PPOTerms(*terms.unbind())


@torch.no_grad()
def clip_and_adam(
    optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None = None, *, squares: Tensor
) -> Tensor:
    """Do the same as `clipped_adam` in one kernel: clip the gradient, take one Adam step, return the norm before clipping.

    `squares` are those of the FusedGradient that wrote the gradient. The flat gradient stays unclipped.
    """
    from .optimizer_step import adam_kernel

    o, size = optimizer, optimizer.flat.numel()
    norm = torch.empty((), device=o.flat.device)
    adam_kernel[-(-size // ADAM_BLOCK),](
        o.flat, o.grad, o.first_moment, o.second_moment, o.step_count, o.learning_rate,
        o.step_count if stopped is None else stopped, squares, norm, o.arrivals, max_grad_norm or 0.0, squares.numel(),
        SIZE=size, BETA1=BETAS[0], BETA2=BETAS[1], LOG_BETA1=math.log(BETAS[0]), LOG_BETA2=math.log(BETAS[1]), EPS=EPS,
        CLIPS=max_grad_norm is not None, STOPS=stopped is not None, CHUNK=ADAM_CHUNK, BLOCK=ADAM_BLOCK,
    )  # fmt: skip
    return norm


@torch.no_grad()
def fused_standardized(x: Tensor, eps: float = 1e-8) -> Tensor:
    """`standardize(x, *moments(x))` in two kernels."""
    from .optimizer_step import moments_kernel, standardize_kernel

    x, out, blocks = x.contiguous(), torch.empty_like(x), -(-x.numel() // STANDARDIZE_BLOCK)
    means, squares = torch.empty(2, blocks, device=x.device)
    moments_kernel[blocks,](x, means, squares, x.numel(), BLOCK=STANDARDIZE_BLOCK)
    standardize_kernel[blocks,](
        x, means, squares, out, x.numel(), eps, BLOCK=STANDARDIZE_BLOCK, BLOCKS=1 << (blocks - 1).bit_length()
    )
    return out


class FusedPolicy:
    """A policy that acts, or evaluates actions, in one kernel. Its parameters are in the optimizer's buffer `flat`."""

    evaluates_in_act = False
    choose = None  # it cannot act on NumPy arrays

    def __init__(
        self, policy: ActorCritic, flat: Tensor, precision: KernelPrecision = "fp32", launch: Launch | None = None
    ) -> None:
        self.flat, self.launch, self.head = flat, launch, policy.head
        self.layout = Layout.of(policy, list(policy.parameters()))
        self.constants = self.layout.constants(precision, self.flat.device)
        self.mean, self.variance = normalizer_moments(policy, self.flat)

    @torch.no_grad()
    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Sample an action for each observation (N, ...), with the noise that the distribution's `sample` takes. Returns the
        actions to learn from and those for the environment."""
        from .act import act_kernel

        rows = obs.shape[0]
        action = torch.empty_like(noise, dtype=torch.float32 if self.layout.GAUSSIAN else torch.int64)
        programs, block, warps = self.launch or launch_for(rows, self.flat.device)
        act_kernel[programs,](
            obs.contiguous(), self.mean, self.variance, noise.contiguous(), self.flat, action, rows,
            BLOCK=block, **self.constants, num_warps=warps, num_stages=1,
        )  # fmt: skip
        return action, self.head.to_env(action)

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action and the value of each observation."""
        log_prob, value = torch.empty(2, obs.shape[0], device=obs.device)
        self._evaluate(obs, action.contiguous(), log_prob, value, columns=2)
        return log_prob, value

    def value(self, obs: Tensor) -> Tensor:
        """Return the value of each observation."""
        value = torch.empty(obs.shape[0], device=obs.device)
        # only the second column uses action and log_prob
        self._evaluate(obs, self.flat, value, value, columns=1)
        return value

    @torch.no_grad()
    def _evaluate(self, obs: Tensor, action: Tensor, log_prob: Tensor, value: Tensor, columns: int) -> None:
        from .act import evaluate_kernel

        rows = obs.shape[0]
        programs, block, warps = self.launch or launch_for(rows, self.flat.device)
        evaluate_kernel[programs, columns](
            obs.contiguous(), self.mean, self.variance, action, self.flat, log_prob, value, rows,
            BLOCK=block, **self.constants, num_warps=warps, num_stages=1,
        )  # fmt: skip


def fused_policy(policy: ActorCritic, precision: KernelPrecision) -> FusedPolicy | None:
    """Return the policy as kernels, or None if they do not handle it or its parameters are not in one buffer."""
    parameters = list(policy.parameters())
    starts = [0, *accumulate(p.numel() for p in parameters)]
    if not has_device(parameters[0].device) or not fits(policy):
        return None
    first = parameters[0].data
    laid_out = all(
        p.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and p.storage_offset() == start
        for p, start in zip(parameters, starts, strict=False)
    )
    return FusedPolicy(policy, first.as_strided((starts[-1],), (1,), 0), precision) if laid_out else None
