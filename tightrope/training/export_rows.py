"""Test observations for an exported policy: of short episodes, and random ones of similar scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..envs.with_memory import with_memory
from ..errors import EnvError, UsageError
from ..models import ActorCritic
from ..types import Composite, Discrete, Env, MultiDiscrete, Spec

ROWS, STEPS = 4, 16  # environments and steps of the test episodes
SPREAD = 3.0  # of random observations, in standard deviations of those seen


@torch.no_grad()
def example_rows(policy: ActorCritic, env: Env, seed: int) -> Tensor:
    """Test observations (rows, ...) as the policy reads them, on the CPU. Half come from short episodes with sampled actions,
    if the environment can be copied; the others are random."""
    spec = env.observation if policy.memory_rows is None else policy.memory_rows.spec
    generator = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    try:
        twin = with_memory(env.spawn(ROWS, seed), policy.memory_rows)
        obs = twin.reset(seed=seed)
        noise = torch.Generator(obs.device).manual_seed(seed)
        for _ in range(STEPS):
            seen.append(obs.cpu().clone().to(spec.dtype))
            obs = twin.step(policy.act(obs, policy.head.noise((ROWS,), noise))[1]).obs
        twin.close()
    except (UsageError, EnvError):  # the environment cannot be copied or run here
        seen = []
    like = torch.cat(seen) if seen else torch.zeros(ROWS * STEPS, *spec.shape)
    rows = torch.cat([*seen, policy.valid_rows(random_rows(spec, like.float(), generator))])
    return rows[torch.randperm(len(rows), generator=generator)]


def random_rows(spec: Spec, like: Tensor, generator: torch.Generator) -> Tensor:
    """As many random rows as `like` has. Continuous values spread around those in `like`; choices and pixels are uniform."""
    count = len(like)
    if isinstance(spec, Composite):
        pieces = torch.split(like, [math.prod(part.shape) for _, part in spec.parts], dim=1)
        shaped = [(part, x.reshape(count, *part.shape)) for (_, part), x in zip(spec.parts, pieces, strict=True)]
        drawn = [random_rows(part, x, generator) for part, x in shaped]
        return torch.cat([rows.reshape(count, -1).to(spec.dtype) for rows in drawn], dim=1)
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (count,), generator=generator)
    if isinstance(spec, MultiDiscrete):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in spec.n], 1)
    if spec.dtype == torch.uint8:
        return torch.randint(256, (count, *spec.shape), generator=generator, dtype=torch.uint8)
    std = like.std(0)
    return like.mean(0) + SPREAD * torch.randn(like.shape, generator=generator) * torch.where(std > 0, std, 1.0)
