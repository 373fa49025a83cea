"""Tightrope: policy-gradient reinforcement learning in PyTorch that is exact, fast and a joy to read.

import tightrope as tr
agent = tr.PPO("CartPole-v1")
agent.learn()
print(agent.evaluate(episodes=100))

Names are imported when they are first used: `tightrope --help` needs no torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if "torch" not in sys.modules:  # which reads it once: see engine/threads.py
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from . import algorithms, draw, engine, envs, exercises, functional, models, scene, types
    from .agent import PPO, VPG, Agent
    from .errors import EnvError, ExportError, NotFinite, UsageError
    from .logging.callback import Callback, StopTraining
    from .population.population import Population
    from .saved import load
    from .training.evaluate import Evaluation
    from .training.policy import Policy, load_policy

__all__ = [
    "PPO",
    "VPG",
    "Agent",
    "Callback",
    "EnvError",
    "Evaluation",
    "ExportError",
    "NotFinite",
    "Policy",
    "Population",
    "StopTraining",
    "UsageError",
    "__version__",
    "algorithms",
    "draw",
    "engine",
    "envs",
    "exercises",
    "functional",
    "load",
    "load_policy",
    "models",
    "scene",
    "types",
]

PACKAGES = ("algorithms", "draw", "engine", "envs", "exercises", "functional", "models", "scene", "types")
HOMES = {
    "agent": ("PPO", "VPG", "Agent"),
    "errors": ("EnvError", "ExportError", "NotFinite", "UsageError"),
    "logging.callback": ("Callback", "StopTraining"),
    "training.evaluate": ("Evaluation",),
    "training.policy": ("Policy", "load_policy"),
    "population.population": ("Population",),
    "saved": ("load",),
}


def __getattr__(name: str) -> Any:
    if name in PACKAGES:
        return import_module(f".{name}", __name__)
    for module, names in HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return found
    from .training.names import FUNCTIONS, here_called

    foreign = here_called(name, FUNCTIONS)
    raise AttributeError(f"module 'tightrope' has no {name!r}" + (f": {foreign}" if foreign else ""))


def __dir__() -> list[str]:
    return sorted(__all__)
