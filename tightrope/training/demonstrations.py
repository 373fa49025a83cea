"""Demonstrations to imitate: rollouts of a teacher, or observations and actions from a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import read_array
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from ..engine import State, draw_noise, isolated_rng, stream_seed
from ..envs.adapters.host import HostEnv
from ..envs.step_arrays import Array
from ..envs.validate import in_short
from ..envs.with_memory import with_memory, without_memory
from ..errors import UsageError, one_line, plural
from ..models import ActorCritic
from ..models.action_mask import options
from ..models.actor_critic import GaussianHead
from ..models.memory import MemoryRows
from ..models.recurrent import RecurrentActorCritic
from ..types import Composite, Env, Rollout
from .build import check_memory
from .config import Config
from .policy import load_policy
from .predict import completed, encoded

FILES = (".npz", ".safetensors")
FEWEST_ROWS = 20


@dataclass(frozen=True)
class Demonstrations:
    """Rows, one environment after the other. With `rollout` come rewards and ends of episodes, to learn values from. For a
    student with memory, `rollout` has the rows of its memory, and `obs` and `action` are sequences (M, L, ...) of them."""

    obs: Tensor  # (M, ...)
    action: Tensor  # (M, ...) as a policy samples them
    rollout: Rollout | None = None
    last_obs: Tensor | None = None  # (N, ...) after the rollout


def is_file(source: object) -> bool:
    return isinstance(source, (str, Path)) and Path(source).suffix in FILES


# a teacher ------------------------------------------------------------------------------------------------------------------


def teacher_of(source: object, env: Env) -> ActorCritic:
    """The network of a run, an agent or a loaded policy, on the device of `env`; UsageError unless it fits this environment."""
    if isinstance(source, (str, Path)):
        source = load_policy(source, device=env.device)
    theirs: Env | None = getattr(source, "_env", None) or getattr(getattr(source, "state", None), "env", None)
    network = getattr(source, "network", None) or getattr(source, "policy", None)
    if theirs is None or not isinstance(network, ActorCritic):
        shown, files = " ".join(str(source).split())[:60], " or ".join(FILES)
        raise UsageError(f"teacher {shown!r} is invalid: give a run, an agent, a policy, or a {files} file")
    theirs, env = without_memory(theirs), without_memory(env)
    for name in ("observation", "action"):
        there, here = getattr(theirs, name), getattr(env, name)
        if there != here:
            shown = f"{name}s of {in_short(there)}, and the student's environment has {in_short(here)}"
            fix = (
                "let the environment show both, and give the student actor_obs"
                if name == "observation"
                else "change one"
            )
            raise UsageError(
                f"the teacher has {shown}{' of another kind' * (in_short(there) == in_short(here))}: {fix}"
            )
    return network if next(network.parameters()).device == env.device else network.to(env.device)


@torch.no_grad()
def watched(state: State, config: Config, teacher: ActorCritic, steps: int) -> Demonstrations:
    """Let a teacher act in fresh copies of the environments for `steps` steps in all, sampling actions as in training."""
    length = 1 if state.policy.memory_rows is None else config.algorithm.num_steps
    num_steps = -(-steps // (state.env.num_envs * length)) * length
    try:
        check_memory(config, num_steps * state.env.num_envs, state.env)
    except UsageError:
        raise UsageError(f"steps {steps:,} do not fit into memory: lower them") from None
    seed = stream_seed(config.run.seed, "imitate")
    with isolated_rng(seed, state.env.device), state.runtime.arithmetic():
        env = with_memory(without_memory(state.env).spawn(state.env.num_envs, seed), teacher.memory_rows)
        try:
            obs, rollout = env.reset(seed=seed), Rollout.allocate(num_steps, env)
            noise = draw_noise(env, teacher.head.noise, num_steps, (1, 1), seed, 0)
            last, _ = state.runtime.collect(env, teacher, rollout, obs, noise)
        finally:
            env.close()
    last, rollout = last.clone(), without_states(rollout, teacher)
    last = last if teacher.memory_rows is None else teacher.memory_rows.observed(last)
    if state.policy.memory_rows is None:
        return Demonstrations(rows_of(rollout, rollout.obs), rows_of(rollout, rollout.action), rollout, last)
    rollout, last = with_states(rollout, state.policy.memory_rows), state.policy.memory_rows.start(last)
    obs, action = (sequences_of(column, length) for column in (rollout.obs, rollout.action))
    return Demonstrations(obs, action, rollout, last)


def without_states(rollout: Rollout, teacher: ActorCritic) -> Rollout:
    """A rollout with the observations of the environment, from one with the rows of a teacher's memory."""
    rows = teacher.memory_rows
    if rows is None:
        return rollout
    shape = *rollout.reward.shape, *rows.observation.shape
    obs, final_obs = (rows.observed(x.flatten(0, 1)).view(shape) for x in (rollout.obs, rollout.final_obs))
    return replace(rollout, obs=obs, final_obs=final_obs)


def with_states(rollout: Rollout, rows: MemoryRows) -> Rollout:
    """A rollout with the rows of a student's memory, whose states are 0 until `remember` writes them."""
    first = torch.ones_like(rollout.reward)
    first[1:] = rollout.done[:-1]
    none = rollout.reward.new_zeros(rollout.reward.numel(), rows.state_size)

    def joined(obs: Tensor, first: Tensor) -> Tensor:
        return rows.join(obs.flatten(0, 1), first.flatten(), none).view(*obs.shape[:2], -1)

    final_obs = joined(rollout.final_obs, torch.zeros_like(first))
    return replace(rollout, obs=joined(rollout.obs, first), final_obs=final_obs)


@torch.no_grad()
def remember(policy: RecurrentActorCritic, rollout: Rollout, last_obs: Tensor) -> None:
    """Write into the rows of a rollout the states that the policy's memory has there."""
    size, shown = policy.memory_rows.state_size, [*rollout.obs, last_obs]
    for t, done in enumerate(rollout.done):
        state = policy.step(shown[t])[2]
        rollout.final_obs[t, :, -size:] = state
        shown[t + 1][:, -size:] = state * ~done.unsqueeze(1)


def sequences_of(column: Tensor, length: int) -> Tensor:
    """A column (T, N, ...) as sequences (N T / length, length, ...), one environment after the other."""
    return column.transpose(0, 1).reshape(-1, length, *column.shape[2:])


def rows_of(rollout: Rollout, column: Tensor) -> Tensor:
    """The valid rows of a column (T, N, ...), one environment after the other."""
    return column.transpose(0, 1).flatten(0, 1)[rollout.valid.T.flatten()]


# a file ---------------------------------------------------------------------------------------------------------------------


def recorded_in(path: Path, policy: ActorCritic, env: Env) -> Demonstrations:
    """Read rows of observations and actions. A Dict observation is stored as obs/KEY for each key; keys that the actor does not
    use may be missing."""
    arrays = arrays_in(path)
    nested: dict[str, object] = {}
    for name, array in arrays.items():
        *outer, last = name.split("/")
        place = nested
        for key in outer:
            inner = place.setdefault(key, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{path} has both {key} and {name}: keep one of them")
            place = inner
        place[last] = array
    taken = nested.get("action")
    if "obs" not in nested or not isinstance(taken, np.ndarray):
        raise UsageError(f"{path} has {', '.join(sorted(arrays)[:8]) or 'nothing'}: give arrays called obs and action")
    obs, single = encoded(env, completed(policy, env, nested["obs"]))
    action = raw_actions(taken, policy, env, path)
    if single or len(obs) != len(action) or len(obs) < FEWEST_ROWS:
        counts = f"{plural(1 if single else len(obs), 'observation')} and {plural(len(action), 'action')}"
        raise UsageError(f"{path} has {counts}: give as many of each, at least {FEWEST_ROWS}")
    if not obs.float().isfinite().all() or not action.float().isfinite().all():
        raise UsageError(f"{path} has numbers that are not finite: leave out these rows")
    return Demonstrations(obs, action)


def arrays_in(path: Path) -> Mapping[str, Array]:
    """The arrays of a .npz or .safetensors file. Neither can run code: arrays of objects are refused."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): array_in(archive, name) for name in archive.namelist()}
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error)}") from None


def array_in(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name) as file:
        array: Array = read_array(file, allow_pickle=False)
    return array


def raw_actions(action: Array, policy: ActorCritic, env: Env, path: Path) -> Tensor:
    """Actions of the environment as the policy samples them: choices count from 0, and bounds are -1 and 1."""
    if isinstance(env.action, Composite):
        raise UsageError(f"{path} cannot hold hybrid actions: give the directory of a run, whose agent then acts")
    writer = env._action if isinstance(env, HostEnv) else None
    space = (writer.space.shape or ()) if writer is not None else env.action.shape
    if action.dtype.kind not in "fiub" or action.shape[1:] != tuple(space):
        found = f"actions of shape {action.shape} and dtype {action.dtype}"
        raise UsageError(f"{path} has {found}: give numbers of shape (rows{''.join(f', {n}' for n in space)})")
    if isinstance(policy.head, GaussianHead):
        flat = torch.from_numpy(action.astype(np.float32)).reshape(len(action), -1).to(env.device)
        return (flat - policy.head.middle) / policy.head.half_range
    first = None if writer is None else writer.parts[0].start
    start = np.array(0) if first is None else first
    choices = (action.astype(np.int64) - start).reshape(len(action), *env.action.shape)
    if (
        (choices != action.reshape(choices.shape) - start).any()
        or (choices < 0).any()
        or (choices >= options(env.action)).any()
    ):
        raise UsageError(f"{path} has actions that are not in {in_short(env.action)}: leave out these rows")
    return torch.from_numpy(choices).to(env.device)
