"""Environments that live on the device as tensors, adapters for those of other engines, and the ids they go by."""

from . import classic
from .classic import *  # noqa: F403
from .registry import ENVS, EnvOptions, choose, make, register
from .tensor import TensorEnv

__all__ = ["ENVS", "EnvOptions", "TensorEnv", "choose", "make", "register"]
__all__ += classic.__all__
