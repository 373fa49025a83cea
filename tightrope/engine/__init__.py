"""How work is executed: collecting, differentiating, stepping; randomness and state."""

from .accelerate import Accelerate, Execution, Mode, Unit, capturable, chosen_mode, compilable
from .agreement import Agreement, told_by_first_at_work
from .collect import collect, final_values
from .device import reads_are_free
from .distributed import (
    advantage_scales,
    anywhere,
    explained_variance,
    masked_mean,
    masked_moments,
    merge,
    moments,
    running_mask,
    standardized,
    timestep_mean,
    update_statistics,
)
from .guard import Guard, guarded, unguarded
from .health import health
from .noise import Noise, draw_noise, stream, stream_seed
from .optimize import Optimizer, gradient, halted, optimize
from .precision import Precision
from .ranks import gathered, greatest, summed, world
from .snapshot import Snapshot
from .state import State
from .streams import apart
from .threads import choose_threads, cores, shared_cores, threads, waits_asleep

__all__ = [
    "Accelerate",
    "Agreement",
    "Execution",
    "Guard",
    "Mode",
    "Noise",
    "Optimizer",
    "Precision",
    "Snapshot",
    "State",
    "Unit",
    "advantage_scales",
    "anywhere",
    "apart",
    "capturable",
    "choose_threads",
    "chosen_mode",
    "collect",
    "compilable",
    "cores",
    "draw_noise",
    "explained_variance",
    "final_values",
    "gathered",
    "gradient",
    "greatest",
    "guarded",
    "halted",
    "health",
    "masked_mean",
    "masked_moments",
    "merge",
    "moments",
    "optimize",
    "reads_are_free",
    "running_mask",
    "shared_cores",
    "standardized",
    "stream",
    "stream_seed",
    "summed",
    "threads",
    "timestep_mean",
    "told_by_first_at_work",
    "unguarded",
    "update_statistics",
    "waits_asleep",
    "world",
]
