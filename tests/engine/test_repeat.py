"""Updates that one C function makes, beside the same updates one by one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine import Runtime
from tightrope.engine.repeat import Repetition
from tightrope.functional import PPOLoss
from tightrope.types import Batch

pytestmark = pytest.mark.usefixtures("c_compiler")
SMALL: dict[str, Any] = dict(
    num_envs=4, num_steps=32, num_minibatches=4, update_epochs=3, hidden_sizes=(8, 8), learning_rate=0.01, seed=3,
    total_timesteps=128 * 4, device="cpu", anneal_clip=False,
)  # fmt: skip


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.relu(self.first(x))))


def mild_surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_coef: float | Tensor) -> Tensor:
    return 0.7 * ((log_prob - old_log_prob).exp() * advantage).mean()


def by_hand(batch: Batch, count: int, order: Tensor) -> Iterator[Batch]:
    for rows in order:
        yield from (batch.take(part) for part in rows.split(len(batch) // count))


def trained(runtime: Runtime, cls: type[tr.Agent], env: str, **settings: Any) -> list[Tensor]:
    """Everything that a short run leaves behind."""
    agent, found = cls(env, **settings), list[Tensor]()
    agent.state.runtime = runtime
    for metrics in ALGORITHMS[agent.algo].loop(agent.state, agent.config.algorithm):
        found += [*metrics.terms, metrics.grad_norm]
    o = agent.state.optimizer
    return [*found, o.flat, o.first_moment, o.second_moment, o.step_count, *agent.state.policy.buffers()]


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many updates each call of the C function has made, besides the first of a phase."""
    original, made = Repetition.fill, list[int]()

    def fill(self: Repetition, start: int, count: int, table: int | None = None) -> int:
        taken = original(self, start, count, table)
        made.extend([taken] if start else [])
        return taken

    monkeypatch.setattr(Repetition, "fill", fill)
    return made


CASES: list[tuple[str, type[tr.Agent], dict[str, Any], bool]] = [  # and whether updates are repeated
    ("CartPole-v1", tr.PPO, {}, True),
    ("CartPole-v1", tr.PPO, dict(norm_adv=False, clip_vloss=True, max_grad_norm=None), True),
    ("CartPole-v1", tr.PPO, dict(target_kl=1e-3), True),
    ("CartPole-v1", tr.PPO, dict(target_kl=1e-20), True),
    ("CartPole-v1", tr.PPO, dict(ent_coef="linear(0.1, 0)", anneal_clip=True), True),
    ("Pendulum-v1", tr.PPO, dict(norm_obs=True, norm_reward=True, log_std="state"), True),
    ("CartPole-v1", tr.PPO, dict(memory="gru", memory_size=5), True),
    ("CartPole-v1", tr.PPO, dict(hidden_sizes=None, network=Own), True),
    ("CartPole-v1", tr.PPO, dict(clipped_surrogate=mild_surrogate), True),
    ("CartPole-v1", tr.PPO, dict(minibatches=by_hand), False),
    ("CartPole-v1", tr.PPO, dict(num_minibatches=1, update_epochs=1), False),
    ("CartPole-v1", tr.VPG, dict(use_importance_weights=True, rollout_uses=2, num_batches=2), False),
]


@pytest.mark.parametrize(("env", "cls", "settings", "repeats"), CASES)
def test_repeated_updates_have_the_bits_of_single_ones(
    env: str, cls: type[tr.Agent], settings: dict[str, Any], repeats: bool, repeated: list[int]
) -> None:
    ours = {
        k: v for k, v in SMALL.items() if cls is tr.PPO or k not in ("num_minibatches", "update_epochs", "anneal_clip")
    }
    ours = {k: v for k, v in (ours | settings).items() if v is not None}
    single = trained(Runtime(compiles_recordings=True, watcher=lambda *_: None), cls, env, **ours)
    assert not repeated
    together = trained(Runtime(compiles_recordings=True), cls, env, **ours)
    assert bool(repeated) == repeats
    assert len(single) == len(together)
    assert all(map(torch.equal, single, together))


def test_a_stop_drops_the_update_that_causes_it(repeated: list[int]) -> None:
    trained(Runtime(compiles_recordings=True), tr.PPO, "CartPole-v1", **SMALL, target_kl=1e-4)
    assert len(repeated) == 4
    assert any(made < 11 for made in repeated)


# updates that do more -------------------------------------------------------------------------------------------------


class Updating:
    """A small agent, and the updates of one phase on random numbers."""

    def __init__(self, repeats: bool = True) -> None:
        agent = tr.PPO("CartPole-v1", **SMALL)
        self.state = state = agent.state
        state.runtime = Runtime(compiles_recordings=True, watcher=None if repeats else lambda *_: None)
        generator = torch.Generator().manual_seed(2)
        rows = torch.randn(6, 64, 4, generator=generator)
        action = torch.randint(2, (64,), generator=generator)
        batch = Batch(rows[0], action, *(rows[i, :, 0].contiguous() for i in range(1, 5)))
        state.optimizer.learning_rate.fill_(0.01)
        order = torch.stack([torch.randperm(64, generator=generator) for _ in range(2)])
        self.updates = state.runtime.updates(batch.minibatches(4, order))
        self.average = state.optimizer.flat.clone()

    def update(self, minibatch: Batch) -> tuple[Tensor, ...]:
        state, loss = self.state, PPOLoss(0.2, 0.5, 0.01, False)
        terms = state.runtime.backward(loss, state.policy, minibatch, state.optimizer)
        return *terms, state.runtime.step(state.optimizer, 0.5)


def with_average(given: Updating, minibatch: Batch) -> tuple[Tensor, ...]:
    numbers = given.update(minibatch)
    given.average.lerp_(given.state.optimizer.flat, 0.1)
    return *numbers, given.average.sum()


def with_a_look(given: Updating, minibatch: Batch) -> tuple[Tensor, ...]:
    numbers = given.update(minibatch)
    if float(numbers[0]) > 0:
        given.state.optimizer.learning_rate.mul_(0.5)
    return numbers


def with_numpy(given: Updating, minibatch: Batch) -> tuple[Tensor, ...]:
    minibatch.advantage = torch.from_numpy(minibatch.advantage.numpy().clip(-1, 1))
    return given.update(minibatch)


def with_a_vector(given: Updating, minibatch: Batch) -> tuple[Tensor, ...]:
    return *given.update(minibatch), minibatch.advantage.amax()


def with_a_marked_function(given: Updating, minibatch: Batch) -> tuple[Tensor, ...]:
    """The runtime runs another function meanwhile, as an algorithm's `estimate`."""
    given.state.runtime.run("part", lambda: None)
    return given.update(minibatch)


def made_by(
    update: Callable[[Updating, Batch], tuple[Tensor, ...]], repeats: bool = True
) -> tuple[int, list[Tensor], Tensor]:
    """The number of updates that ran as they are written, the means of what was logged, and the parameters afterwards."""
    given, count = Updating(repeats), 0
    for minibatch in given.updates:
        given.updates.add(*update(given, minibatch))
        count += 1
    return count, [*given.updates.means()], given.state.optimizer.flat.clone()


MORE = [with_average, with_a_look, with_numpy, with_a_vector, with_a_marked_function]


@pytest.mark.parametrize(("update", "written"), [*((f, 8) for f in MORE), (Updating.update, 1)])
def test_only_updates_that_call_c_functions_alone_are_repeated(
    update: Callable[[Updating, Batch], tuple[Tensor, ...]], written: int
) -> None:
    count, means, parameters = made_by(update)
    assert count == written
    count, expected, same = made_by(update, repeats=False)
    assert count == 8
    assert all(map(torch.equal, means, expected))
    assert torch.equal(parameters, same)


def test_minibatches_of_a_users_own_are_asked_for_one_after_the_other() -> None:
    seen: list[float] = []

    def watching(batch: Batch, count: int, order: Tensor) -> Iterator[Batch]:
        for minibatch in by_hand(batch, count, order):
            seen.append(float(agent.state.optimizer.flat.sum()))
            yield minibatch

    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.state.functions = agent.state.functions.with_own({"minibatches": watching})
    agent.state.runtime = Runtime(compiles_recordings=True)
    next(ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm))
    assert len({*seen}) == len(seen) == 12


@pytest.mark.parametrize("leaves", ["by an error", "by break"])
def test_a_loop_that_is_left_leaves_nothing_noted(leaves: str) -> None:
    given = Updating()

    def learn() -> None:
        for _ in given.updates:
            if leaves == "by break":
                break
            raise ArithmeticError

    kept = None  # the traceback, and with it the loop
    try:
        given.state.runtime.run("part", learn)
    except ArithmeticError as error:
        kept = error
    assert (kept is None) == (leaves == "by break")
    assert given.state.runtime.repeats.calls is None
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_noting_does_not_import_the_compiler_of_torch() -> None:
    """Which takes a second."""
    code = """
import sys
import torch
from tightrope.engine.repeat import Notes
with Notes() as notes:
    torch.zeros(3)
print(notes.complete, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
