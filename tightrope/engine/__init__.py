"""How work is executed: collecting, differentiating, stepping; randomness and state."""

from .agreement import broadcast_after_work
from .distributed import all_gather, all_reduce_max, all_reduce_sum, any_rank, world
from .guard import Guard, guarded, unguarded
from .health import health
from .noise import Noise, draw_noise, stream, stream_seed
from .optimize import Optimizer
from .precision import Precision
from .recorded_policy import why_as_written
from .runtime import Accelerate, Mode, Runtime, Unit, choose_runtime, chosen_mode, run_as
from .state import Snapshot, State
from .statistics import (
    advantage_scales,
    explained_variance,
    masked_mean,
    masked_moments,
    merge,
    moments,
    running_mask,
    timestep_mean,
    update_statistics,
)
from .streams import apart
from .threads import choose_threads, cores, shared_cores, threads, waits_asleep

__all__ = [
    "Accelerate",
    "Guard",
    "Mode",
    "Noise",
    "Optimizer",
    "Precision",
    "Runtime",
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
    "choose_runtime",
    "choose_threads",
    "chosen_mode",
    "cores",
    "draw_noise",
    "explained_variance",
    "guarded",
    "health",
    "masked_mean",
    "masked_moments",
    "merge",
    "moments",
    "run_as",
    "running_mask",
    "shared_cores",
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
