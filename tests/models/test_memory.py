"""Memories: each against torch's or a loop, sequences against single steps, and what a wrong one is answered with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from run_helpers import Decaying
from torch import Tensor, nn

from tightrope.errors import UsageError
from tightrope.models import NetworkConfig, actor_critic
from tightrope.models.memory import GRU, LSTM, MEMORIES, Memory, MinGRU, memory_for, scan
from tightrope.models.recurrent import RecurrentActorCritic
from tightrope.sequences import sequences_of_rows
from tightrope.types import Box, Discrete

KINDS = list(MEMORIES)


def some(kind: Any, layers: int = 1) -> Memory:
    torch.manual_seed(0)
    made = memory_for(MEMORIES.get(kind, kind), 5, 8, layers)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return made


@pytest.mark.parametrize(("ours", "theirs"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_the_equations_are_those_of_torch(ours: Any, theirs: Any) -> None:
    memory, expected = some(ours), theirs(5, 8, batch_first=True)
    names = {"weight_ih_l0": "inputs.weight", "bias_ih_l0": "inputs.bias", "weight_hh_l0": "recurrent.weight"}
    names["bias_hh_l0"] = "recurrent.bias"
    blocks = [0, 1, 3, 2] if ours is LSTM else [0, 1, 2]  # torch has the candidate of an LSTM before its last gate
    for theirs, mine in names.items():
        parts = memory.state_dict()[mine].chunk(len(blocks))
        getattr(expected, theirs).data.copy_(torch.cat([parts[i] for i in blocks]))
    x, state = torch.randn(3, 7, 5), torch.randn(3, memory.state_size)
    parts = [part[None].contiguous() for part in state.split(8, 1)]
    want, _ = expected(x, parts[0] if len(parts) == 1 else tuple(parts))
    torch.testing.assert_close(memory.unroll(x, state, torch.zeros(3, 7)), want)


def test_the_minimal_gru_is_its_definition() -> None:
    memory = some(MinGRU)
    assert isinstance(memory, MinGRU)
    x, state = torch.randn(3, 5), torch.randn(3, 8)
    write, new = torch.sigmoid(x @ memory.inputs.weight[:8].T + memory.inputs.bias[:8]), None
    new = x @ memory.inputs.weight[8:].T + memory.inputs.bias[8:]
    features, following = memory.step(x, state)
    torch.testing.assert_close(following, (1 - write) * state + write * new)
    torch.testing.assert_close(features, torch.tanh(memory.out(torch.cat([following, x], 1))))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 33])
def test_a_scan_is_its_loop(length: int) -> None:
    factor, added = torch.rand(2, length, 3, dtype=torch.float64), torch.randn(2, length, 3, dtype=torch.float64)
    factor[0, length // 2] = 0  # a reset
    state, states = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(length):
        state = factor[:, t] * state + added[:, t]
        states.append(state)
    torch.testing.assert_close(scan(factor, added), torch.stack(states, 1))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", [*KINDS, Decaying])
def test_a_sequence_is_its_steps_and_starts_anew_at_resets(kind: Any, layers: int) -> None:
    memory = some(kind, layers)
    x, state = torch.randn(4, 9, 5), torch.randn(4, memory.state_size)
    first = torch.zeros(4, 9)
    first[0, 3] = first[1, 0] = first[2, 5] = first[2, 6] = 1  # in the middle, at the start, twice
    unrolled, features = memory.unroll(x, state, first), []
    for t in range(9):
        state = torch.where(first[:, t, None] == 1, 0.0, state)
        out, state = memory.step(x[:, t], state)
        features.append(out)
    torch.testing.assert_close(unrolled, torch.stack(features, 1))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_sees_the_same_in_rows_and_in_sequences(kind: str, share: bool) -> None:
    torch.manual_seed(1)
    config = NetworkConfig(
        hidden_sizes=(16,), memory=kind, memory_size=8, memory_layers=2, share_trunk=share, norm_obs=True
    )
    policy = actor_critic(Box((3,)), Discrete(4), config)
    assert isinstance(policy, RecurrentActorCritic)
    assert policy.normalizer is not None
    policy.normalizer.merge(torch.randn(50, 3) * 3 + 1)
    assert policy.normalizer.mean.shape == (3,)  # flags and states are not normalised
    layout = policy.memory_rows
    assert layout.state_size == 8 * 2 * (2 if kind == "lstm" else 1) * (1 if share else 2)
    state, rows = torch.randn(5, layout.state_size), []
    first = (torch.rand(5, 6) < 0.3).float()
    for t in range(6):
        state = torch.where(first[:, t, None] == 1, 0.0, state)
        rows.append(layout.join(torch.randn(5, 3), first[:, t], state))
        state = policy.act(rows[-1])[1][:, 1:]
    sequences = torch.stack(rows, 1)
    single, value = policy(sequences.flatten(0, 1))
    sequences = sequences_of_rows(sequences, layout.state_size)
    assert sequences.shape[-1] == 4 + -(-layout.state_size // 6)  # later states are left out
    whole, values = policy(sequences)
    torch.testing.assert_close(whole.logits, single.logits)
    torch.testing.assert_close(values, value)
    torch.testing.assert_close(policy.value(sequences), values)
    torch.testing.assert_close(policy.distribution(sequences).logits, whole.logits)


class Wrong(Decaying):
    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().step(x, state)[0][:, :2], state


def test_wrong_memories_are_refused_in_one_line() -> None:
    for settings, words in {
        ("memory", "rnn"): "memory 'rnn' is unknown: give gru, lstm, mingru",
        ("memory_size", 0): "memory_size 0 is too small: give at least 1",
        ("memory_layers", 0): "memory_layers 0 is too small",
    }.items():
        with pytest.raises(UsageError, match=words):
            NetworkConfig(**dict([settings]))  # type: ignore[arg-type]
    config = NetworkConfig(memory="my:Own")
    with pytest.raises(UsageError, match="memory Wrong returns shapes"):
        actor_critic(Box((3,)), Discrete(2), config, memory=Wrong)
    with pytest.raises(UsageError, match="memory Linear cannot be made and called: AttributeError"):
        actor_critic(Box((3,)), Discrete(2), config, memory=nn.Linear)  # type: ignore[arg-type]
    assert actor_critic(Box((3,)), Discrete(2), config, memory=Decaying).memory_rows is not None
