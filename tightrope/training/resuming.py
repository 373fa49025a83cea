"""What is said when a run resumes: from which checkpoint, with which changes, what cannot be exact, or that it is complete."""

from __future__ import annotations

import torch

from ..algorithms.common import VARYING
from ..engine import COMPILED_C, State, world
from ..errors import plural, printable
from .checkpoint_reader import Checkpoint
from .config import Config
from .history import resumed_with
from .scoring import reached

FRESH_EPISODES = "episodes and the environment's attributes start afresh"


def resume_notes(checkpoint: Checkpoint, state: State, config: Config) -> list[str]:
    """Notes for the user about resuming from a checkpoint."""
    lines = [f"resuming from {checkpoint.path.name}"]
    algorithm = config.algorithm
    changes = config.changes[len(checkpoint.config.changes) :]
    lines += resumed_with(changes, any(map(algorithm.varies, VARYING)))
    if algorithm.anneal_lr and any(change.setting == "learning_rate" for change in changes):
        lines.append("note: anneal_lr decays learning_rate over the whole run: set anneal_lr false to keep it as given")
    then = printable(str(checkpoint.manifest["versions"].get("torch")))[:20]
    if then != torch.__version__[:20]:
        lines.append(f"note: saved under torch {then}, this is {torch.__version__}: last digits may differ")
    before, now = (COMPILED_C in str(x) for x in (checkpoint.manifest.get("runtime", ""), state.runtime.describe()))
    if before and not now and state.phase:
        how = "compiled C, and NumPy replays them here"
        lines.append(f"note: the recordings of this run were {how}: last digits may differ")
    if checkpoint.ranks != world().size:
        many = plural(checkpoint.ranks, "rank") if checkpoint.ranks else "several ranks without their states"
        lines.append(f"note: saved by {many}, this is {world().size}: {FRESH_EPISODES}")
    elif state.phase and not state.env.resumable:
        lines.append(f"note: the state of this environment cannot be saved, so {FRESH_EPISODES}")
    return lines


def nothing_to_do(state: State, config: Config, has_run: bool) -> str:
    """Why no phase is left to train, and how to train further."""
    score, goal, total = state.best_score, config.run.stop_at_return, config.algorithm.total_timesteps
    if reached(state, config):
        done = f"nothing to do: an evaluation returned {score:.2f}, and stop_at_return is {goal:g}"
        return f"{done}. Raise stop_at_return to train further"
    if state.solved:
        return f"nothing to do: the agent solved its task after {plural(state.steps, 'step')}"
    more = ". Raise --total-timesteps to train further" if has_run else ""
    return f"nothing to do: the agent has {state.steps:,} of {total:,} steps already; no whole phase is left{more}"
