"""PPO's learning and acting as Triton kernels, for multilayer perceptrons on CUDA.

Small networks take three launches for a minibatch: the gradients of actor and critic, the sum of their parts, then clipping and
Adam (fused.py). For wider ones each layer is a kernel (trunk.py), under PPO's loss (wide.py) or any other. This package is the
only second writing of the loss and its gradient; a run compares it with autograd before it uses it, and so do tests. A step of
a tensor environment becomes a kernel by being recorded (env_step.py). Orders of minibatches need no sort (orders.py).
"""

from .env_step import EnvSteps
from .fused import FusedGradient, FusedPolicy, clip_and_adam, fused_policy, fused_standardized
from .layout import Launch, fits, has_device, has_tensor_cores, known_network
from .orders import keyed_order, orders_agree
from .trunk import fuse_trunks, plain_trunks
from .wide import WideGradient, gradient_class

__all__ = [
    "EnvSteps", "FusedGradient", "FusedPolicy", "Launch", "WideGradient", "clip_and_adam", "fits", "fuse_trunks",
    "fused_policy", "fused_standardized", "gradient_class", "has_device", "has_tensor_cores", "keyed_order", "known_network",
    "orders_agree", "plain_trunks",
]  # fmt: skip
