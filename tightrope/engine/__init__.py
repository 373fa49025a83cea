"""How work is executed: collecting, differentiating, stepping; randomness and state."""

from .accelerate import Accelerate, Execution, Mode, Unit, capturable, chosen_mode, compilable
from .collect import collect, final_values
from .device import reads_are_free
from .distributed import masked_moments, moments, standardized
from .health import health
from .noise import Noise, draw_noise, stream, stream_seed
from .optimize import Optimizer, gradient, halted, optimize
from .precision import Precision
from .snapshot import Snapshot
from .state import State
from .streams import apart
from .threads import choose_threads, cores, threads

__all__ = [
    "Accelerate",
    "Execution",
    "Mode",
    "Noise",
    "Optimizer",
    "Precision",
    "Snapshot",
    "State",
    "Unit",
    "apart",
    "capturable",
    "choose_threads",
    "chosen_mode",
    "collect",
    "compilable",
    "cores",
    "draw_noise",
    "final_values",
    "gradient",
    "halted",
    "health",
    "masked_moments",
    "moments",
    "optimize",
    "reads_are_free",
    "standardized",
    "stream",
    "stream_seed",
    "threads",
]
