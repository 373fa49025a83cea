"""How work is executed: collecting, differentiating, stepping; randomness and state."""

from .collect import collect, final_values
from .device import reads_are_free
from .distributed import masked_moments, moments
from .noise import Noise, draw_noise, stream, stream_seed
from .optimize import Optimizer, gradient, halted, optimize
from .state import State
from .threads import choose_threads, cores, threads

__all__ = [
    "Noise",
    "Optimizer",
    "State",
    "choose_threads",
    "collect",
    "cores",
    "draw_noise",
    "final_values",
    "gradient",
    "halted",
    "masked_moments",
    "moments",
    "optimize",
    "reads_are_free",
    "stream",
    "stream_seed",
    "threads",
]
