"""How work is executed: collecting, differentiating, stepping; randomness and state."""

from .accelerate import Accelerate, Execution, Mode, Unit, capturable, chosen_mode, compilable
from .agreement import broadcast_after_work
from .collect import collect, final_values
from .device import reads_are_free
from .distributed import all_gather, all_reduce_max, all_reduce_sum, any_rank, world
from .guard import Guard, guarded, unguarded
from .health import health
from .noise import Noise, draw_noise, stream, stream_seed
from .optimize import Optimizer, gradient, halted, optimize
from .precision import Precision
from .recorded_policy import why_as_written
from .state import Snapshot, State
from .statistics import (
    advantage_scales,
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
from .streams import apart
from .threads import choose_threads, cores, shared_cores, threads, waits_asleep

__all__ = [
    "Accelerate",
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
    "all_gather",
    "all_reduce_max",
    "all_reduce_sum",
    "any_rank",
    "apart",
    "broadcast_after_work",
    "capturable",
    "choose_threads",
    "chosen_mode",
    "collect",
    "compilable",
    "cores",
    "draw_noise",
    "explained_variance",
    "final_values",
    "gradient",
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
    "threads",
    "timestep_mean",
    "unguarded",
    "update_statistics",
    "waits_asleep",
    "why_as_written",
    "world",
]
