"""PPO's learning and acting as a few Triton kernels, for small networks on CUDA.

A minibatch takes three launches: the gradients of actor and critic, the sum of their parts, then clipping and Adam. The
equations are those of `engine/closed_form.py`, and tests compare the kernels with autograd.
"""

from .fused import FusedGradient, FusedPolicy, clip_and_adam, fused_policy, fused_standardized
from .layout import Launch, fits, has_device, has_fused

__all__ = [
    "FusedGradient", "FusedPolicy", "Launch", "clip_and_adam", "fits", "fused_policy", "fused_standardized",
    "has_device", "has_fused",
]  # fmt: skip
