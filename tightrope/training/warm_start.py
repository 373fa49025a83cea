"""What a new run starts from: a teacher that it imitates, or the networks and statistics of another run (`init_from`).

In imitation, a student learns a teacher's actions by maximum likelihood, and the values of what the teacher does. The teacher
may see more than the student. Everything that the student keeps is in its networks and statistics: the optimiser is reset
afterwards, so that training begins as with new networks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..engine import State, choose_threads, stream, threads, world
from ..errors import UsageError, plural, printable
from ..functional import (
    ImitationLoss,
    discounted_returns,
    explained_variance,
    linear,
    running_returns,
    successor_values,
)
from ..models.normalizer import RunningMoments
from ..models.recurrent import RecurrentActorCritic
from ..sequences import Sequences, sequences_of_rows
from ..types import Batch, Rollout
from .checkpoint_reader import MODEL, Checkpoint
from .config import Config
from .demonstrations import (
    Demonstrations,
    is_file,
    recorded_in,
    remember,
    rows_of,
    sequences_of,
    teacher_of,
    watched,
)
from .saving import find_on_all_ranks
from .settings import coerce

MINIBATCH, HELD_OUT = 128, 0.1  # rows of a minibatch; share of the rows, the last ones, that nothing is learned from
FEWEST_SEQUENCES = 4  # of a minibatch, with memory
MAX_NAMED = 2  # tensors that a line names
Tensors = dict[str, Tensor]  # by name


@dataclass(frozen=True)
class Imitation:
    """How well a student imitates, on rows that it has not learned from."""

    rows: int  # that it has learned from
    before: float  # negative log-likelihood of the actions
    after: float
    explained_variance: float | None  # of the values; None if they were not learned

    def __str__(self) -> str:
        values = (
            "" if self.explained_variance is None else f"; values explain {self.explained_variance:.2f} of the returns"
        )
        return f"negative log-likelihood {self.before:.3f} before, {self.after:.3f} after {self.rows:,} rows{values}"


def imitate(state: State, config: Config, source: object, steps: int, epochs: int, learning_rate: float) -> Imitation:
    """Train the networks of a new run to act as a teacher does. `source` is a run, an agent, a policy, or a file."""
    steps, epochs = coerce("steps", steps, int), coerce("epochs", epochs, int)
    learning_rate = coerce("learning_rate", learning_rate, float)
    for name, number in {"steps": steps, "epochs": epochs, "learning_rate": learning_rate}.items():
        if not number > 0:
            raise UsageError(f"{name} {number} is not positive: give a number above 0")
    if world().is_distributed:
        raise UsageError("imitation runs in one process: start it without torchrun")
    if state.steps:
        raise UsageError(f"this agent has been trained for {state.steps:,} steps: let a new one imitate")
    if isinstance(source, (str, Path)) and is_file(source):
        if state.policy.memory_rows is not None:
            wrong = f"memory {config.network.memory!r} needs to know where episodes start, and {source} does not say it"
            raise UsageError(f"{wrong}: give a run or an agent as the teacher")
        shown = recorded_in(Path(source), state.policy, state.env)
    else:
        shown = watched(state, config, teacher_of(source, state.env), steps)
    obs = shown.obs if state.policy.memory_rows is None else shown.obs.flatten(0, 1)
    state.runtime.update_statistics(state.policy, obs[:, None])
    student = Student(state, config, shown)
    before = student.likelihood()
    with threads(config.run.threads or choose_threads(state.policy, MINIBATCH)):
        for epoch in range(epochs):
            student.learn(linear(learning_rate, 0.0, epoch, epochs), epoch)
    optimizer = state.optimizer
    for tensor in (optimizer.first_moment, optimizer.second_moment, optimizer.step_count, optimizer.learning_rate):
        tensor.zero_()
    after = student.likelihood()
    if not math.isfinite(after):
        raise UsageError(
            f"imitation ended at the negative log-likelihood {after}: lower its learning_rate {learning_rate}"
        )
    rows = student.learned * (1 if state.policy.memory_rows is None else config.algorithm.num_steps)
    return Imitation(rows, before, after, student.explained())


class Student:
    """A policy that learns from demonstrations: from rows, or with memory from sequences of rows."""

    def __init__(self, state: State, config: Config, shown: Demonstrations) -> None:
        self.state, self.algorithm, self.shown = state, config.algorithm, shown
        self.learned = len(shown.obs) - max(1, int(HELD_OUT * len(shown.obs)))  # rows, or sequences
        self.has_values = config.algorithm.has_critic and shown.rollout is not None
        self.loss = ImitationLoss(config.algorithm.vf_coef if self.has_values else 0.0)
        self.reward = None if shown.rollout is None else self.scaled(shown.rollout)

    def scaled(self, rollout: Rollout) -> Tensor:
        """The rewards as training will see them."""
        if not getattr(self.algorithm, "norm_reward", False):
            return rollout.reward
        nothing, scaler = torch.zeros_like(rollout.reward[0]), self.state.policy.reward_scaler
        returns, _ = running_returns(rollout.reward, rollout.done, nothing, self.algorithm.gamma)
        self.state.runtime.merge(scaler, returns.flatten(), rollout.valid.flatten())
        scaled: Tensor = scaler(rollout.reward)
        return scaled

    @torch.no_grad()
    def batch(self) -> Batch:
        """All rows. Returns of episodes that did not end go on with the student's own value, so that targets change as it
        learns. So do the states of its memory."""
        rollout, last_obs, policy = self.shown.rollout, self.shown.last_obs, self.state.policy
        if isinstance(policy, RecurrentActorCritic) and rollout is not None and last_obs is not None:
            remember(policy, rollout, last_obs)
        if not self.has_values or rollout is None or self.reward is None or last_obs is None:
            return self.arranged()
        value = policy.value(rollout.obs.flatten(0, 1)).view_as(rollout.value)
        final_value = self.state.runtime.final_values(policy, rollout)
        next_value = successor_values(value, policy.value(last_obs), rollout.done, final_value)
        ends = rollout.terminated, rollout.done
        target = discounted_returns(self.reward, *ends, next_value, self.algorithm.gamma)
        return self.arranged(value, target)

    def arranged(self, value: Tensor | None = None, target: Tensor | None = None) -> Batch:
        """A batch of all rows, or sequences, with these columns (T, N)."""
        shown, length = self.shown, self.algorithm.num_steps
        zeros = torch.zeros(shown.action.shape[:1] if self.in_rows else shown.action.shape[:2], device=shown.obs.device)
        rows = self.state.policy.memory_rows
        if rows is None or shown.rollout is None:
            columns = [
                zeros if x is None or shown.rollout is None else rows_of(shown.rollout, x) for x in (value, target)
            ]
            return Batch(shown.obs, shown.action, zeros, columns[0], zeros, columns[1])
        columns = [zeros if x is None else sequences_of(x, length) for x in (value, target)]
        obs = sequences_of(shown.rollout.obs, length)  # with the states that its memory has now
        obs = sequences_of_rows(obs, rows.state_size)
        return Sequences(obs, shown.action, zeros, columns[0], zeros, columns[1])

    @property
    def in_rows(self) -> bool:
        return self.state.policy.memory_rows is None

    def learn(self, learning_rate: float, epoch: int) -> None:
        """Take one pass over the rows to learn from."""
        state, batch = self.state, self.batch().take(slice(self.learned))
        state.optimizer.learning_rate.fill_(learning_rate)
        device = batch.obs.device
        keys = torch.rand(1, len(batch), generator=stream(device, state.seed, "imitate", epoch), device=device)
        size = MINIBATCH if self.in_rows else max(MINIBATCH // self.algorithm.num_steps, FEWEST_SEQUENCES)
        with state.runtime.arithmetic():
            for minibatch in batch.minibatches(max(1, len(batch) // size), batch.order(keys)):
                state.runtime.backward(self.loss, state.policy, minibatch, state.optimizer)
                state.runtime.step(state.optimizer, None)

    @torch.no_grad()
    def likelihood(self) -> float:
        """The mean negative log-likelihood of the actions that were held out."""
        held = self.batch().take(slice(self.learned, None)).flat()
        return -float(self.state.policy.distribution(held.obs).log_prob(held.action).mean())

    def explained(self) -> float | None:
        """The explained variance of the values that were held out."""
        if not self.has_values:
            return None
        held = self.batch().take(slice(self.learned, None)).flat()
        return float(explained_variance(held.value, held.target))


# another run's weights --------------------------------------------------------------------------------------------------


def start_from(state: State, path: str | None) -> list[str]:
    """Copy the networks and statistics of the run in `path` into a new state, where names and shapes are the same. Returns
    lines that say what was taken and what was not: a heading, and one for each module."""
    if path is None:
        return []
    try:
        found = find_on_all_ranks(Path(path))
        saved = by_module(found.read(MODEL), "policy.")
    except UsageError as error:
        raise UsageError(f"init_from: {error}") from None
    own = by_module(state.policy.state_dict())
    if state.policy.critic is state.policy.actor:
        own.pop("critic", None)  # another name for the same tensors
    lines, weights = [heading(path, found)], 0
    for module, tensors in own.items():
        given = saved.pop(module, {})
        fitting = [name for name, tensor in tensors.items() if tensor_fits(tensor, given.get(name))]
        if isinstance(getattr(state.policy, module), RunningMoments):
            given = given if given.get("count", torch.zeros(1)).any() else {}  # no statistics were collected
            fitting = fitting if given and len(fitting) == len(tensors) else []  # a mean alone means nothing
        for name in fitting:
            if not given[name].isfinite().all():
                raise UsageError(f"init_from {path} is not finite in {module}.{name}: give an earlier checkpoint of it")
            tensors[name].copy_(given[name])
        weights += sum(tensors[name].dim() > 1 for name in fitting)
        lines.append(f"  {module}: {module_outcome(tensors, given, fitting)}")
    if not weights:
        why = "; ".join(line.strip() for line in lines[1:])
        raise UsageError(f"init_from {path} has no weights that fit: {why}. Drop it, or give a run with such a network")
    unused = [name for name in sorted(saved) if name != "critic" or state.policy.critic is None]
    return [*lines, *(f"  not used: {printable(', '.join(unused[:6]))}" for _ in unused[:1])]


def by_module(tensors: Tensors, prefix: str = "") -> dict[str, Tensors]:
    """Tensors by the module that holds them, such as actor, and by their name inside it. A trunk has the same names whether it
    sees a group of parts or everything, and whether a memory follows it or not."""
    found: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        module, _, inner = name.removeprefix(prefix).partition(".")
        found.setdefault(module, {})[re.sub(r"^(trunk\.)+", "", inner)] = tensor
    return found


def tensor_fits(tensor: Tensor, given: Tensor | None) -> bool:
    return given is not None and (given.shape, given.dtype) == (tensor.shape, tensor.dtype)


def heading(path: str, found: Checkpoint) -> str:
    settings = found.manifest["config"]
    what = f"{str(settings.get('algo'))[:40]} on {str(settings.get('env'))[:80]}"
    return printable(f"init_from {path}: {what} after {plural(found.steps, 'step')}")


def module_outcome(tensors: Tensors, given: Tensors, fitting: list[str]) -> str:
    """What became of a module, and why."""
    if len(fitting) == len(tensors):
        return "taken"
    if not given:
        return "new, the other run has none"
    reasons = [tensor_difference(name, tensors[name], given.get(name)) for name in tensors if name not in fitting]
    shown = [reason for reason in reasons if reason]
    more = f" and {plural(len(shown) - MAX_NAMED, 'more tensor')}" if len(shown) > MAX_NAMED else ""
    return f"{'taken but for' if fitting else 'new,'} {', '.join(shown[:MAX_NAMED])}{more}"


def tensor_difference(name: str, tensor: Tensor, given: Tensor | None) -> str:
    """How a tensor differs from that of the other run; empty if it does not."""
    if given is None:
        return f"{name} (not there)"
    return "" if tensor_fits(tensor, given) else f"{name} ({shape_text(tensor)} here, {shape_text(given)} there)"


def shape_text(tensor: Tensor) -> str:
    kind = "" if tensor.dtype == torch.float32 else f" {str(tensor.dtype).removeprefix('torch.')}"
    return (" x ".join(map(str, tensor.shape)) or "1") + kind
