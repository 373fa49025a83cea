"""Tensor environments, which run on the device, adapters for environments of other libraries, and the ids of both."""

from . import classic
from .classic import *  # noqa: F403
from .registry import ENVS, EnvOptions, choose, make, register
from .tensor import TensorEnv

__all__ = ["ENVS", "EnvOptions", "TensorEnv", "choose", "make", "register"]
__all__ += classic.__all__
