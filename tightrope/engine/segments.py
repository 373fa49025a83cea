"""The gradient of a loss over long sequences on the CPU: segments of a few steps, one after the other.

A recording of whole sequences has some thirty calls for each step and layer. Long ones take longer to record and to compile
than they save, and each length would need its own. Segments need two recordings for all lengths: of the state after a segment,
and of a segment's gradient. States are computed forward, gradients backward, from the last segment to the first: each also
gives the derivative by the state before it. The result is the gradient of whole sequences, not a truncated one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..models.actor_critic import Distribution
from ..models.memory import MemoryRows, Stack
from ..models.recurrent import RecurrentActorCritic
from ..recording import RecordedFunction
from ..recording.recorder import tensors
from ..sequences import Sequences, with_first_state
from ..types import Trajectories, columns_of
from .recorded import TermsBuffer, agree, random_batch
from .update_in_c import Calls

STEPS = 16  # of a segment
LONG = 128  # steps, times layers of memory: with more, a recording of whole sequences has too many calls to be compiled
Loss = Callable[..., tuple[Tensor, object]]  # (policy, batch) to the loss and its terms


class Following:
    """A policy that keeps the state after the last row of the sequences that it has seen."""

    def __init__(self, policy: RecurrentActorCritic) -> None:
        self.policy, self.state = policy, torch.empty(0)

    def __call__(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        distribution, value, self.state = self.policy.step(obs)
        return distribution, value


class SegmentGradient:
    """The gradient of a loss that is a mean over the rows of sequences, or over those that are `alive`, in segments of time."""

    def __init__(
        self, gradient: Callable[..., object], loss: Loss, policy: RecurrentActorCritic, batch: Sequences, grad: Tensor,
        compiled: bool = False,
    ) -> None:  # fmt: skip
        """Record a segment of the form of `batch`, whose values do not matter."""
        self.rows, self.grad, kind = policy.memory_rows, grad, type(batch)
        self.alive = kind.__match_args__.index("alive") if isinstance(batch, Trajectories) else None
        parameters = [p for p in policy.parameters() if p.requires_grad]

        def segment(own: Tensor, state: Tensor, after: Tensor, share: Tensor, *others: Tensor) -> list[Tensor]:
            """The derivative by the state, and the terms; writes the gradient. `after` is the derivative by the next state."""
            follower, state = Following(policy), state.detach().requires_grad_()
            total, terms = loss(follower, kind(with_first_state(own, state), *others))
            total = share * total + (follower.state * after).sum()
            *grads, before = torch.autograd.grad(total, [*parameters, state], materialize_grads=True)
            torch.cat([g.flatten() for g in grads], out=grad)
            self.terms = TermsBuffer(terms)
            return [before, *self.terms.results()]

        def next_state(own: Tensor, state: Tensor) -> Tensor:
            return policy.step(with_first_state(own, state))[2]

        given, *others = columns_of(random_batch(batch, policy, 1))
        own, state = rows_and_state(given, self.rows)
        after, share = torch.zeros_like(state), torch.ones(1)
        self.segment = RecordedFunction(segment, [own, state, after, share, *others], writes=[grad], compiled=compiled)
        with torch.no_grad():
            self.next_state = RecordedFunction(next_state, [own, state], compiled=compiled)
        self.agrees = self.terms.scalar and self.terms.width > 0 and self._agrees(gradient, loss, policy, batch)

    def _agrees(
        self, gradient: Callable[..., object], loss: Loss, policy: RecurrentActorCritic, batch: Sequences
    ) -> bool:
        """Whether segments give the gradient of whole sequences. Where steps may be padding, the last segment has some."""
        length = 2 * STEPS if self.alive is None else 2 * STEPS + STEPS // 2
        other = random_batch(of_length(length, batch, policy), policy, 3)
        expected = [*tensors(gradient(loss, policy, other)), self.grad.clone()]
        self.grad.fill_(torch.nan)
        return agree([*tensors(self(columns_of(other))), self.grad], expected)

    @np.errstate(all="ignore")
    def __call__(self, columns: Sequence[Tensor], calls: Calls | None = None) -> object:
        """Write the gradient for a batch of these columns; returns the loss's terms."""
        obs, *others = columns
        own, state = rows_and_state(obs, self.rows)
        segments = [in_segments(torch.unflatten(x, 0, own.shape[:2])).flatten(1, 2).numpy() for x in others]
        rows, states = in_segments(own).numpy(), [state.numpy()]
        for each in rows[:-1]:
            states.append(self.next_state(each, states[-1])[0].copy())
        shares = np.full(len(rows), 1 / len(rows), np.float32)
        if self.alive is not None:
            alive = segments[self.alive - 1].sum(1)
            shares = (alive / max(1, alive.sum())).astype(np.float32)
        grad, after = self.grad.numpy(), np.zeros_like(states[0])
        total, terms = np.zeros_like(grad), np.zeros(self.terms.width, np.float32)
        for i in reversed(range(len(rows))):
            after, found = self.segment(rows[i], states[i], after, shares[i : i + 1], *(x[i] for x in segments))
            total += grad
            terms += found * shares[i]
        grad[:] = total
        return self.terms.fresh([terms])


def in_segments_faster(batch: Sequences, policy: RecurrentActorCritic, compiled: bool) -> bool:
    """Whether to learn from sequences in segments: if they are too long to be compiled, and if their length may change, as
    where rollouts end early. Memories that scan whole sequences have few calls: for them only compiled segments are faster."""
    trunks = [policy.actor, *([] if policy.critic in (None, policy.actor) else [policy.critic])]
    layers = [
        layer
        for trunk in trunks
        for layer in (trunk.memory.layers if isinstance(trunk.memory, Stack) else [trunk.memory])
    ]
    length, scans = batch.obs.shape[1], any(getattr(layer, "scans", False) for layer in layers)
    if isinstance(batch, Trajectories):
        return compiled or not scans
    return compiled and not scans and length * len(layers) > LONG and length % STEPS == 0


def of_length(length: int, batch: Sequences, policy: RecurrentActorCritic) -> Sequences:
    """Return as many sequences of another length, whose values do not matter."""
    own, state = rows_and_state(batch.obs, policy.memory_rows)
    obs = with_first_state(own[:, :1].expand(-1, length, -1), state)
    return type(batch)(obs, *(x[:1].expand(len(obs) * length, *x.shape[1:]) for x in columns_of(batch)[1:]))


def rows_and_state(obs: Tensor, rows: MemoryRows) -> tuple[Tensor, Tensor]:
    """Return sequences without states, and the states before their first row."""
    return obs[..., : rows.width + 1], rows.split_sequences(obs)[2]


def in_segments(x: Tensor) -> Tensor:
    """Return sequences (n, T, ...) as segments (T / STEPS, n, STEPS, ...), the last one padded with zeros."""
    count, length, *shape = x.shape
    if missing := -length % STEPS:
        x = torch.cat([x, x.new_zeros(count, missing, *shape)], 1)
    return torch.unflatten(x, 1, (-1, STEPS)).transpose(0, 1).contiguous()
