"""PPO's learning and acting as Triton kernels, for multilayer perceptrons on CUDA.

Small networks take three launches for a minibatch: the gradients of actor and critic, the sum of their parts, then clipping and
Adam (fused.py). For wider ones each layer is a kernel (trunk.py), under PPO's loss (wide.py) or any other. This package is the
only second writing of the loss and its gradient; a run compares it with autograd before it uses it, and so do tests.
"""

from .fused import FusedGradient, FusedPolicy, clip_and_adam, fused_policy, fused_standardized
from .layout import Launch, fits, has_device, known_network
from .trunk import fuse_trunks, plain_trunks
from .wide import WideGradient, gradient_class

__all__ = [
    "FusedGradient", "FusedPolicy", "Launch", "WideGradient", "clip_and_adam", "fits", "fuse_trunks", "fused_policy",
    "fused_standardized", "gradient_class", "has_device", "known_network", "plain_trunks",
]  # fmt: skip
