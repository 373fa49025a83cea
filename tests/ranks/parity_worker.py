"""Run by two ranks: what they compute together from halves, the first one computes from the whole alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

import tightrope as tr
from tightrope import engine
from tightrope.algorithms import ALGORITHMS, common
from tightrope.engine import Optimizer, distributed
from tightrope.engine.functions import mean_over_ranks
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import NetworkConfig, actor_critic
from tightrope.models.normalizer import RunningMoments
from tightrope.types import Batch, Box, Composite, Discrete, Row, Trajectories

world = distributed.world()
agents: dict[str, type[tr.Agent]] = {"ppo": tr.PPO, "vpg": tr.VPG}
found: dict[str, float] = {}  # how far together and alone are apart
moved: dict[str, float] = {}  # how far learning has come, so that there is something to compare


def apart(a: Tensor, b: Tensor) -> float:
    """How far two tensors are apart, by the larger one's size."""
    return float((a.double() - b.double()).norm() / (b.double().norm() + 1e-12))


def compare(name: str, together: Any, alone: Callable[[], Any]) -> None:
    with as_the_only_one():
        expected = alone()
    found[name] = max(apart(a, b) for a, b in zip(flat(together), flat(expected), strict=True))


def flat(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


def mine(x: Tensor, sizes: tuple[int, int], dim: int = 0) -> Tensor:
    return torch.split(x, list(sizes), dim)[world.rank]


def statistics() -> None:
    torch.manual_seed(451)
    x, mask, died = torch.randn(10, 12) * 3 + 100, torch.rand(10, 12) < 0.6, torch.rand(10, 12) < 0.1
    halves = (5, 7)
    runtime = engine.Runtime()
    cases: dict[str, tuple[Tensor, ...]] = {
        "moments": (x,),
        "masked_moments": (x, mask),
        "masked_mean": (x, mask),
        "timestep_mean": (x, mask),
        "explained_variance": (x + torch.randn(10, 12), x),
    }
    for name, columns in cases.items():
        function = mean_over_ranks if name == "timestep_mean" else getattr(runtime, name)
        together = function(*(mine(column, halves, 1) for column in columns))
        compare(name, together, partial(function, *columns))
    standardized = runtime.standardized
    compare("standardized", standardized(mine(x, halves, 1)), lambda: mine(standardized(x), halves, 1))
    running = runtime.collected_mask(mine(died, (6, 6), 1), 0.3)
    compare("collected_mask", running.float(), lambda: runtime.collected_mask(died, 0.3).float())
    for sizes in ((12, 12), (11, 13)):  # equal minibatches, and such as differ by a row
        batch = Batch(*[torch.randn(sum(sizes), 1)] * 2, *[torch.randn(sum(sizes)) * 4 + 9 for _ in range(4)])
        part = batch.take(slice(0, sizes[0]) if world.rank == 0 else slice(sizes[0], None))
        order = part.order(torch.rand(2, 13, generator=torch.Generator().manual_seed(1)))
        pieces = [piece for row in part.advantage[order] for piece in row.split(part.sizes(3))]
        pairs = zip(engine.advantage_scales(part, 3, order), map(engine.moments, pieces), strict=True)
        found[f"scales {sizes}"] = max(apart(torch.stack(a), torch.stack(b)) for a, b in pairs if a is not None)
    rows, seen = torch.randn(40, 3) * 5 - 7, torch.rand(40) < 0.7
    merged, alone = RunningMoments((3,)), RunningMoments((3,))
    for part in (slice(0, 20), slice(20, 40)):
        engine.merge(merged, mine(rows[part], (8, 12)), mine(seen[part], (8, 12)))
        alone.merge(rows[part], seen[part])
    compare("normalizer", (merged.mean, merged.variance, merged.count), lambda: tuple(alone.buffers()))


def gradients() -> None:
    """PPO's and VPG's, of batches that do not split evenly."""
    torch.manual_seed(452)
    box = Box((2,), (-1.0, -1.0), (1.0, 1.0))
    both = Composite((("kind", Discrete(3)), ("amount", box)), conditions=(("amount", "kind", (0, 2)),))
    for kind, space in (("discrete", Discrete(3)), ("box", box), ("hybrid", both)):
        policy = actor_critic(Box((4,), -1.0, 1.0), space, NetworkConfig(norm_obs=True))
        optimizer = Optimizer(policy)
        obs = torch.randn(8, 8, 4)
        noise = policy.head.noise((64,), torch.Generator().manual_seed(1))
        with torch.no_grad():
            distribution, value = policy(obs.view(64, 4))
            action = distribution.sample(noise)
            log_prob = distribution.log_prob(action) + 0.3 * torch.randn(64)
        columns = obs.view(64, 4), action, log_prob, value + torch.randn(64), torch.randn(64), torch.randn(64)
        batch = Batch(*columns)
        share = batch.take(slice(0, 40) if world.rank == 0 else slice(40, 64))
        loss = PPOLoss(torch.tensor(0.2), 0.5, 0.01, clip_vloss=True)
        compare_gradients(f"ppo {kind}", loss, policy, optimizer, share, batch)
        lives = Trajectories(*(x.view(8, 8, *x.shape[1:]) for x in columns), alive=torch.rand(8, 8) < 0.5)
        loss_of_lives = VPGLoss(True, 0.2, 0.5, 0.01)
        part = lives.take(slice(0, 3) if world.rank == 0 else slice(3, 8)).flat()
        compare_gradients(f"vpg {kind}", loss_of_lives, policy, optimizer, part, lives.flat())


def compare_gradients(name: str, loss: Any, policy: Any, optimizer: Optimizer, share: Batch, whole: Batch) -> None:
    runtime = engine.Runtime()

    def of(batch: Batch) -> tuple[Tensor, ...]:
        terms = torch.stack([*runtime.backward(loss, policy, batch, optimizer)])
        return optimizer.grad.clone(), terms

    for again in ("", " again"):  # the second time without asking whether the closed form agrees
        compare(f"{name} gradient{again}", of(share), lambda: of(whole))


def learning(algo: str, settings: dict[str, Any], env: str = "CartPole-v1") -> None:
    """A whole phase's learning from one rollout: halves of it on two ranks against all of it on one."""
    settings = {"num_envs": 8, "num_steps": 16, "total_timesteps": 1280, "norm_obs": True, "device": "cpu", **settings}
    page = engine.unguarded(ALGORITHMS[algo].loop).__globals__
    with as_the_only_one():
        whole = agents[algo](env, **settings)
        state, config = whole.state, whole.config.algorithm
        noise = engine.draw_noise(state.env, state.policy.head.noise, 16, (1, 1), 451, 0)
        obs, _ = state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
        state.obs.copy_(obs)
    agent = agents[algo](env, **settings)
    part = slice(0, 4) if world.rank == 0 else slice(4, 8)
    before = state.optimizer.flat.clone()
    agent.state.policy.load_state_dict(state.policy.state_dict())
    for name in Row._fields:
        getattr(agent.state.rollout, name).copy_(getattr(state.rollout, name)[:, part])
    agent.state.obs.copy_(state.obs[part])
    schedule = page.get("schedule", common.schedule_settings)
    schedule(state, config)
    schedule(agent.state, agent.config.algorithm)
    rows = [agent.state.env.num_envs * 16 if algo == "ppo" else 4, 128 if algo == "ppo" else 8]
    passes = getattr(config, "update_epochs", getattr(config, "rollout_uses", 1))
    shuffles = [torch.rand(passes, n) for n in rows]

    def learned(state: Any, config: Any, shuffle: Tensor) -> tuple[Tensor, ...]:
        given = (shuffle, torch.zeros(3)) if algo == "ppo" else (16, shuffle, None)
        metrics = page["learn"](state, config, *given)
        numbers = [x.float() for x in (*metrics.terms, metrics.grad_norm, metrics.reward)]
        buffers = [x.float() for x in state.policy.buffers()]
        return state.optimizer.flat.clone(), torch.stack(numbers), *buffers

    words = [str(settings.get(name, "")) for name in ("target_kl", "baseline", "memory")]
    name = f"{algo} phase {''.join(words)}{env.removeprefix('CartPole-v1')}"
    together = learned(agent.state, agent.config.algorithm, shuffles[0])
    compare(name, together, lambda: learned(state, config, shuffles[1]))
    moved[algo] = apart(state.optimizer.flat, before)


@contextmanager
def as_the_only_one() -> Iterator[None]:
    """As if there were one rank in all, so that both have the same whole."""
    before, distributed._world = distributed._world, distributed.World()
    try:
        yield
    finally:
        distributed._world = before


def main() -> dict[str, dict[str, float]]:
    statistics()
    gradients()
    learning("ppo", {"num_minibatches": 1, "update_epochs": 3, "norm_reward": True})
    early_stop = {"target_kl": 1e-4, "learning_rate": 1e-2, "anneal_lr": False}
    learning("ppo", {"num_minibatches": 1, "update_epochs": 6, **early_stop})
    learning("ppo", {"num_minibatches": 1, "update_epochs": 3, "memory": "gru", "learning_rate": 3e-3})
    learning("vpg", {"baseline": "critic", "memory": "mingru"})
    learning("vpg", {"baseline": "timestep", "normalize_returns": True})
    learning("vpg", {"baseline": "critic", "rollout_uses": 2, "use_importance_weights": True})
    # of a policy whose critic sees more than its actor
    learning("ppo", {"num_minibatches": 1, "update_epochs": 3}, "PrivilegedProbe-v0")
    learning("vpg", {"baseline": "critic", "gamma": 0.9}, "PrivilegedProbe-v0")
    return {"found": found, "moved": moved}
