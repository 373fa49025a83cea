"""Masks, memory, heads and observation groups in every combination, against a policy written out step by step.

The reference slices observations by hand, runs a memory one step at a time with its state set to zero at resets, removes
forbidden options from torch's own distributions, and adds up the parts of a hybrid action. Autograd does the rest.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tightrope.engine import Optimizer, Runtime
from tightrope.engine.optimize import autograd
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.models.action_mask import options
from tightrope.sequences import Sequences, SequenceTrajectories, sequences_of_rows
from tightrope.types import Batch, Box, Composite, Discrete, MultiDiscrete, Spec, Trajectories

CHOICE, SEVERAL, TORQUE = Discrete(3), MultiDiscrete((2, 3)), Box((2,), -1.0, 1.0)
HYBRID = Composite((("kind", CHOICE), ("force", TORQUE)), conditions=(("force", "kind", (0, 2)),))
HEADS: dict[str, Spec] = {"choice": CHOICE, "several": SEVERAL, "torque": TORQUE, "hybrid": HYBRID}
SEEN, HIDDEN, N, T = 3, 2, 4, 5
CASES = [
    case
    for case in itertools.product(HEADS, (False, True), (None, "gru", "lstm", "mingru"), (False, True))
    if not (case[0] == "torque" and case[1])  # there is nothing to forbid
]
FIRST = torch.zeros(N, T)
FIRST[0, 0] = FIRST[1, 2] = FIRST[2, 4] = FIRST[3, 1] = FIRST[3, 2] = 1


def a_policy(action: Spec, masked: bool, memory: str | None, grouped: bool) -> ActorCritic:
    parts: list[tuple[str, Spec]] = [("speed", Box((SEEN,))), ("truth", Box((HIDDEN,)))]
    parts += [("action_mask", Box((sum(options(action)),), 0.0, 1.0))] if masked else []
    groups: dict[str, Any] = {"actor_obs": ("speed",)} if grouped else {}
    torch.manual_seed(0)
    config = NetworkConfig(hidden_sizes=(8,), memory=memory, memory_size=6, norm_obs=True, **groups)
    policy = actor_critic(Composite(tuple(parts)), action, config)
    with torch.no_grad():
        for parameter in policy.parameters():  # away from zero biases and a flat head
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert policy.normalizer is not None
    policy.normalizer.merge(torch.randn(50, *policy.normalizer.mean.shape) * 2 + 1)
    return policy


def a_batch(policy: ActorCritic, action: Spec, masked: bool, trajectories: bool) -> Any:
    """A minibatch of N sequences of T steps, or of N T rows without memory."""
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(N * T, SEEN + HIDDEN, generator=generator)
    if masked:
        mask = (torch.rand(N * T, sum(options(action)), generator=generator) < 0.5).float()
        ends = [0, *torch.tensor(options(action)).cumsum(0).tolist()]
        for start in ends[:-1]:
            mask[:, start] = 1  # something is allowed
        obs = torch.cat([obs, mask], 1)
    if policy.memory_rows is not None:
        state = torch.randn(N * T, policy.memory_rows.state_size, generator=generator)
        obs = policy.memory_rows.join(obs, FIRST.flatten(), state * (1 - FIRST.flatten())[:, None])
    seen = obs if policy.memory_rows is None else sequences_of_rows(obs.view(N, T, -1), policy.memory_rows.state_size)
    with torch.no_grad():
        distribution, value = policy(seen)
        taken = distribution.sample(policy.head.noise((N * T,), generator))
        numbers = torch.randn(4, N * T, generator=generator)
        log_prob = distribution.log_prob(taken) + 0.4 * numbers[0]
    columns = [seen, taken, log_prob, value + 0.4 * numbers[1], numbers[2], numbers[3]]
    if trajectories:
        kind: Any = Trajectories if policy.memory_rows is None else SequenceTrajectories
        return kind(*columns, torch.rand(N * T, generator=generator) < 0.8)
    return (Batch if policy.memory_rows is None else Sequences)(*columns)


# the reference ----------------------------------------------------------------------------------------------------------------


class ByHand:
    """The same parameters as a policy, used step by step."""

    def __init__(self, policy: ActorCritic, action: Spec, masked: bool, grouped: bool) -> None:
        self.policy, self.action, self.masked, self.grouped = policy, action, masked, grouped
        self.memory_rows = policy.memory_rows

    def __call__(self, rows: Tensor) -> tuple[Any, Tensor]:
        if self.memory_rows is None:
            features = self.networks(rows, None)[0]
        else:
            width, features = self.memory_rows.width, []
            for sequence in rows:
                state = sequence[:, width + 1 :].flatten()[: self.memory_rows.state_size]
                for row in sequence:
                    state = torch.zeros_like(state) if row[width] == 1 else state
                    found, state = self.networks(row[None, :width], state[None])
                    state = state[0]
                    features.append(found)
            features = [torch.cat([pair[i] for pair in features]) for i in (0, 1)]  # type: ignore[assignment]
        acting, valuing = features
        numbers = rows.reshape(-1, rows.shape[-1])[:, SEEN + HIDDEN :]
        return Reference(self, acting, numbers), self.policy.value_head(valuing).squeeze(-1)  # type: ignore[misc]

    def networks(self, rows: Tensor, state: Tensor | None) -> tuple[list[Tensor], Any]:
        """The features of actor and critic, and the next state of both memories."""
        normalizer: Any = self.policy.normalizer
        shift, scale = normalizer.mean[: SEEN + HIDDEN], (normalizer.variance[: SEEN + HIDDEN] + 1e-8).sqrt()
        obs = ((rows[:, : SEEN + HIDDEN] - shift) / scale).clamp(-10, 10)
        shown = [obs[:, :SEEN] if self.grouped else obs, obs]
        trunks: list[Any] = [self.policy.actor, self.policy.critic]
        if state is None:
            return [self.mlp(trunk, x) for trunk, x in zip(trunks, shown, strict=True)], None
        features, following = [], []
        for trunk, x, before in zip(trunks, shown, state.chunk(2, 1), strict=True):
            out, after = trunk.memory.step(self.mlp(trunk.trunk, x), before)
            features.append(out)
            following.append(after)
        return features, torch.cat(following, 1)

    def mlp(self, trunk: Any, x: Tensor) -> Tensor:
        layers = [module for module in trunk.modules() if isinstance(module, nn.Linear)]
        for layer in layers:
            x = torch.tanh(nn.functional.linear(x, layer.weight, layer.bias))
        return x


class Reference:
    """The distribution of actions by torch's own classes."""

    def __init__(self, by_hand: ByHand, features: Tensor, mask: Tensor) -> None:
        self.action, head = by_hand.action, by_hand.policy.head
        self.mask = mask if by_hand.masked else None
        self.features = features
        parts = self.action.parts if isinstance(self.action, Composite) else (("", self.action),)
        heads = list(head.heads) if isinstance(self.action, Composite) else [head]  # type: ignore[arg-type]
        self.leaves, start = [], 0
        for (_, part), leaf in zip(parts, heads, strict=True):
            counts = options(part)
            piece = None if self.mask is None else self.mask[:, start : start + sum(counts)]
            self.leaves.append(self.distribution(leaf, part, piece))
            start += sum(counts)

    def distribution(self, head: Any, part: Spec, mask: Tensor | None) -> list[torch.distributions.Distribution]:
        if isinstance(part, Box):
            return [torch.distributions.Normal(head.mean(self.features), head.log_std.exp())]
        logits, counts, found = head.logits(self.features), options(part), []
        widest = max(counts)
        allowed = [None] * len(counts) if mask is None else mask.split(list(counts), 1)
        for k, count in enumerate(counts):
            own = logits[:, k * widest : k * widest + count]
            if allowed[k] is not None:
                own = own.masked_fill(allowed[k] == 0, -torch.inf)  # type: ignore[operator]
            found.append(torch.distributions.Categorical(logits=own))
        return found

    def sums(self, action: Tensor, entropy: bool) -> Tensor:
        """The log-probabilities of all parts that count, or their entropies, added."""
        rows, start, total = action.reshape(len(action), -1), 0, torch.zeros(len(action))
        parts = self.action.parts if isinstance(self.action, Composite) else (("", self.action),)
        for (name, part), leaves in zip(parts, self.leaves, strict=True):
            size = len(leaves) if not isinstance(part, Box) else part.shape[0]
            piece, start = rows[:, start : start + size], start + size
            if isinstance(part, Box):
                normal: Any = leaves[0]
                added = (normal.entropy() if entropy else normal.log_prob(piece)).sum(-1)
            else:
                columns: list[Any] = [
                    entropy_of(leaf) if entropy else leaf.log_prob(x) for leaf, x in zip(leaves, piece.T, strict=True)
                ]
                added = torch.stack(columns).sum(0)
            if name == "force":
                added = torch.where((rows[:, 0] == 0) | (rows[:, 0] == 2), added, 0.0)
            total = total + added
        return total

    def log_prob(self, action: Tensor) -> Tensor:
        return self.sums(action, entropy=False)

    def entropy(self, action: Tensor) -> Tensor:
        return self.sums(action, entropy=True)


def entropy_of(choice: Any) -> Tensor:
    """The entropy over the options that are allowed."""
    allowed = choice.logits > -torch.inf
    log = torch.where(allowed, choice.logits, 0.0)
    return -(torch.where(allowed, log.exp(), 0.0) * log).sum(-1)


@pytest.mark.parametrize(("head", "masked", "memory", "grouped"), CASES)
def test_gradients_of_every_combination(head: str, masked: bool, memory: str | None, grouped: bool) -> None:
    action = HEADS[head]
    policy = a_policy(action, masked, memory, grouped)
    reference, optimizer = ByHand(policy, action, masked, grouped), Optimizer(policy)
    recorded = Runtime()
    for loss in (PPOLoss(0.2, 0.5, 0.01, True), VPGLoss(True, 0.3, 0.5, 0.01)):
        batch = a_batch(policy, action, masked, trajectories=isinstance(loss, VPGLoss))
        expected_terms = torch.stack([*autograd(loss, reference, batch, optimizer)])
        expected = optimizer.grad.clone()
        assert expected.norm() > 1e-3
        for gradient in (
            lambda loss, batch: autograd(loss, policy, batch, optimizer),
            lambda loss, batch: recorded.backward(loss, policy, batch, optimizer),
        ):
            optimizer.grad.fill_(torch.nan)
            terms = torch.stack([*gradient(loss, batch)])
            torch.testing.assert_close(terms, expected_terms, rtol=1e-4, atol=1e-5)
            assert (optimizer.grad - expected).norm() < 1e-4 * expected.norm()
        if grouped:
            check_actor_is_blind(policy, batch)


def check_actor_is_blind(policy: ActorCritic, batch: Any) -> None:
    """What only the critic sees changes values and no distribution."""
    other = batch.obs.clone()
    other[..., SEEN : SEEN + HIDDEN] += 1
    with torch.no_grad():
        (before, value), (after, changed) = policy(batch.obs), policy(other)
    assert torch.equal(before.log_prob(batch.action), after.log_prob(batch.action))
    assert not torch.allclose(value, changed)
