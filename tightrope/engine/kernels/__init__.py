"""PPO's learning and acting as a few Triton kernels, for small networks on CUDA.

A minibatch is then three launches: the gradient of actor and critic, the sum of its parts, clipping and Adam. They hold the
same equations as `engine.closed_form`, and are tested against autograd like it.
"""

from .fused import FusedGradient, FusedPolicy, clip_and_adam, fused_policy, fused_standardized
from .layout import Launch, fits, has_device, has_fused

__all__ = [
    "FusedGradient", "FusedPolicy", "Launch", "clip_and_adam", "fits", "fused_policy", "fused_standardized",
    "has_device", "has_fused",
]  # fmt: skip
