"""PPO on CartPole as pure torch functions: what graph.py and functional.py have in common.

T is time within a phase, N the number of environments, B a minibatch. The rules are Tightrope's: a truncated episode
bootstraps from its final observation, a terminated one from nothing, and the trace is cut at both.
"""

import argparse
import time
from collections.abc import Callable
from typing import Protocol

import recipe
import torch
from recipe import (
    FORCE,
    GRAVITY,
    HALF_LENGTH,
    LEAN,
    POLE_MASS,
    POLE_MOMENT,
    TAU,
    TIME_LIMIT,
    TOTAL_MASS,
    TRACK,
    Batch,
    Carts,
    Transition,
)
from torch import Tensor, nn

Network = Callable[[Tensor], Tensor]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PRECISION = {"fp32": "highest", "tf32": "high"}
PLAN = 100_000  # phases the learning rate anneals over: more than a measurement takes


def linear(rows: int, columns: int, gain: float) -> nn.Linear:
    layer = nn.Linear(rows, columns)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(outputs: int, gain: float) -> nn.Sequential:
    hidden = recipe.HIDDEN
    first, second = linear(4, hidden, 2**0.5), linear(hidden, hidden, 2**0.5)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), linear(hidden, outputs, gain)).to(DEVICE)


def start(num_envs: int) -> Carts:
    zeros = torch.zeros(num_envs, device=DEVICE)
    return Carts(fresh_states(num_envs), zeros.int(), zeros)


def fresh_states(*shape: int) -> Tensor:
    return torch.rand(*shape, 4, device=DEVICE) * 0.1 - 0.05


def advance(state: Tensor, action: Tensor) -> Tensor:
    x, v, theta, omega = state.unbind(-1)
    sin, cos = theta.sin(), theta.cos()
    push = (action * (2 * FORCE) - FORCE + POLE_MOMENT * omega * omega * sin) / TOTAL_MASS
    angular = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS / TOTAL_MASS * cos * cos))
    linear = push - POLE_MOMENT / TOTAL_MASS * angular * cos
    return torch.stack([x + TAU * v, v + TAU * linear, theta + TAU * omega, omega + TAU * angular], -1)


def act_and_step(actor: Network, carts: Carts, noise: Tensor, fresh: Tensor) -> tuple[Transition, Carts]:
    """`noise` (N,) uniform chooses the action, `fresh` (N, 4) is where episodes that end start anew."""
    log_probs = actor(carts.state).log_softmax(-1)
    action = (noise < log_probs[:, 1].exp()).long()
    log_prob = log_probs.gather(-1, action[:, None]).squeeze(-1)

    final_obs, reward = advance(carts.state, action), torch.ones_like(carts.total)
    clock, total = carts.clock + 1, carts.total + reward
    terminated = (final_obs[:, 0].abs() > TRACK) | (final_obs[:, 2].abs() > LEAN)
    done = terminated | (clock >= TIME_LIMIT)
    step = Transition(carts.state, action, log_prob, reward, terminated, done & ~terminated, final_obs, clock, total)
    return step, Carts(torch.where(done[:, None], fresh, final_obs), clock * ~done, total * ~done)


def collect(
    act: Callable[[Carts, Tensor, Tensor], tuple[Transition, Carts]], carts: Carts, num_steps: int
) -> tuple[Transition, Carts]:
    """A rollout of `act`, which is act_and_step of some actor, and the environments after it."""
    num_envs = len(carts.clock)
    noise = torch.rand(num_steps, num_envs, device=DEVICE)
    fresh, steps = fresh_states(num_steps, num_envs), []
    for t in range(num_steps):
        step, carts = act(carts, noise[t], fresh[t])
        steps.append(step)
    return Transition(*(torch.stack(column) for column in zip(*steps, strict=True))), carts


def estimate(critic: Network, rollout: Transition, last_obs: Tensor) -> tuple[Batch, Tensor]:
    """Advantages and targets; one pass over the observations, one over the final ones. And the phase's diagnostics."""
    value = critic(torch.cat([rollout.obs, last_obs[None]])).squeeze(-1)  # (T + 1, N)
    value, following = value[:-1], value[1:]
    done = rollout.terminated | rollout.truncated
    next_value = torch.where(rollout.truncated, critic(rollout.final_obs).squeeze(-1), following)
    delta = rollout.reward + recipe.GAMMA * next_value * ~rollout.terminated - value
    decay = recipe.GAMMA * recipe.LAMBDA * ~done
    running, rows = torch.zeros_like(delta[0]), []
    for t in reversed(range(delta.shape[0])):
        running = delta[t] + decay[t] * running
        rows.append(running)
    advantage = torch.stack(rows[::-1])
    target = advantage + value
    explained = 1 - advantage.var(correction=0) / target.var(correction=0)
    episodes = torch.stack([done.sum(), (rollout.total * done).sum(), (rollout.clock * done).sum()])
    columns = (rollout.obs, rollout.action, rollout.log_prob, advantage, target)
    return Batch(*(column.flatten(0, 1) for column in columns)), torch.cat([explained[None], episodes])


def loss(actor: Network, critic: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    """What to minimise, and (policy loss, value loss, entropy, approximate KL, clip fraction)."""
    log_probs = actor(batch.obs).log_softmax(-1)
    log_ratio = log_probs.gather(-1, batch.action[:, None]).squeeze(-1) - batch.log_prob
    ratio = log_ratio.exp()
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - recipe.CLIP, 1 + recipe.CLIP) * advantage).mean()
    value_loss = 0.5 * (critic(batch.obs).squeeze(-1) - batch.target).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    approx_kl = (log_ratio.expm1() - log_ratio).mean()
    clip_fraction = ((ratio - 1).abs() > recipe.CLIP).float().mean()
    total = policy_loss + recipe.VALUE * value_loss - recipe.ENTROPY * entropy
    return total, torch.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction]).detach()


def minibatches(batch: Batch) -> list[Batch]:
    """One pass: disjoint, shuffled, equal parts of the batch, as slices of one shuffled copy."""
    order = torch.rand(len(batch.obs), device=DEVICE).argsort()
    columns = [column[order].chunk(recipe.MINIBATCHES) for column in batch]
    return [Batch(*parts) for parts in zip(*columns, strict=True)]


class Learner(Protocol):
    """What a script hands over to be captured and timed."""

    learning_rate: Tensor
    metrics: Tensor  # as named by recipe.METRICS, of the last phase

    def phase(self) -> None: ...


def captured(phase: Callable[[], None]) -> Callable[[], None]:
    """The replay of one phase as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            phase()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        phase()
    return graph.replay


def measure(
    name: str, learner: Callable[[int, int], Learner], num_envs: int, num_steps: int, precision: str,
    seconds: float, eager: bool,
) -> recipe.Result:  # fmt: skip
    """Set a learner up, time its steady state, and see how long its episodes have become."""
    torch.set_float32_matmul_precision(PRECISION[precision])
    torch.manual_seed(0)
    torch.compiler.reset()  # what was compiled for other sizes
    synchronize()  # the device itself is not a part of set-up
    began = time.perf_counter()
    it = learner(num_envs, num_steps)
    run, done = it.phase if eager else captured(it.phase), 0

    def anneal_and_run() -> None:
        nonlocal done
        it.learning_rate.fill_(recipe.WIDE_RATE * (1 - done / PLAN))
        run()
        done += 1

    for _ in range(2):
        anneal_and_run()
    synchronize()
    setup = time.perf_counter() - began
    per_phase = recipe.steady(anneal_and_run, synchronize, seconds)
    history = []
    for _ in range(recipe.LAST):
        anneal_and_run()
        history.append(it.metrics.tolist())
    episodes, _, lengths = torch.tensor(history)[:, -3:].sum(0).tolist()
    return recipe.result(name, (num_envs, num_steps), precision, setup, per_phase, episodes, lengths)


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def run(name: str, learner: Callable[..., Learner], args: argparse.Namespace) -> None:
    """Every measurement that the command line asks for."""
    if not args.eager and DEVICE.type != "cuda":
        raise SystemExit("a CUDA graph needs a CUDA device: add --eager to run without one")
    for num_envs, num_steps, precision in recipe.workloads(args):
        measure(name, learner, num_envs, num_steps, precision, args.seconds, args.eager).print()
