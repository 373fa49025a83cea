"""Execution of runs: rollouts, gradients, optimizer steps, randomness, state, CUDA graphs and ranks."""

from .across_ranks import (
    advantage_scales,
    broadcast_after_work,
    check_same_settings,
    masked_moments,
    merge,
    moments,
    update_statistics,
)  # fmt: skip
from .distributed import all_gather, all_reduce_max, all_reduce_sum, any_rank, world
from .guard import Guard, under_guard, unguarded
from .metrics import health
from .noise import Noise, draw_noise, initialising, isolated_rng, stream, stream_seed
from .optimize import Optimizer
from .precision import Precision
from .recorded import COMPILED_C, COMPILED_VERSION
from .rollout_policy import why_not_recorded
from .runtime import Accelerate, Mode, Runtime, choose_runtime, chosen_mode
from .state import Snapshot, State
from .threads import choose_threads, cores, shared_cores, threads, waits_asleep
from .units import Unit, run_as

__all__ = [
    "COMPILED_C",
    "COMPILED_VERSION",
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
    "broadcast_after_work",
    "check_same_settings",
    "choose_runtime",
    "choose_threads",
    "chosen_mode",
    "cores",
    "draw_noise",
    "health",
    "initialising",
    "isolated_rng",
    "masked_moments",
    "merge",
    "moments",
    "run_as",
    "shared_cores",
    "stream",
    "stream_seed",
    "threads",
    "under_guard",
    "unguarded",
    "update_statistics",
    "waits_asleep",
    "why_not_recorded",
    "world",
]  # fmt: skip
