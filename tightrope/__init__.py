"""Tightrope: policy-gradient reinforcement learning in PyTorch that is exact, fast and a joy to read.

import tightrope as tr
agent = tr.PPO("CartPole-v1")
agent.learn()
print(agent.evaluate(episodes=100))
"""

from typing import Any

from . import algorithms, draw, engine, envs, functional, models, types
from .agent import PPO, VPG, Agent
from .errors import NotFinite, UsageError
from .runs.evaluate import Evaluation
from .saved import load
from .version import __version__

__all__ = [
    "PPO",
    "VPG",
    "Agent",
    "Evaluation",
    "NotFinite",
    "UsageError",
    "__version__",
    "algorithms",
    "draw",
    "engine",
    "envs",
    "functional",
    "load",
    "models",
    "types",
]


def __getattr__(name: str) -> Any:
    from .runs.names import FUNCTIONS, here_called

    foreign = here_called(name, FUNCTIONS)
    raise AttributeError(f"module 'tightrope' has no {name!r}" + (f": {foreign}" if foreign else ""))
