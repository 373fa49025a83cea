"""Randomness as an argument.

All random numbers of a phase are drawn at its head from streams keyed by (seed, name, phase, rank). A phase is then a
deterministic function of its state and its noise, whichever way it is executed; a resumed run draws what the uninterrupted
one would have; and evaluation, with a stream name of its own, cannot disturb training.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import Env
from .distributed import world


class Noise(NamedTuple):
    """Everything random that happens in one phase."""

    start: Tensor  # (N, R) uniform, for a full reset at the head of the phase
    action: Tensor  # (T, N, ...) what the action distribution's `sample` consumes
    reset: Tensor  # (T, N, R) uniform, for environments whose episode ends
    shuffle: Tensor  # (passes, rows) uniform keys whose order is a permutation


def stream_seed(seed: int, name: str, phase: int = 0, rank: int = 0) -> int:
    """A 63-bit seed for one named stream; unrelated keys give unrelated streams."""
    digest = hashlib.blake2b(f"{seed}/{name}/{phase}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def stream(device: torch.device, seed: int, name: str, phase: int = 0, rank: int = 0) -> torch.Generator:
    """A generator at the start of one named stream."""
    return torch.Generator(device).manual_seed(stream_seed(seed, name, phase, rank))


ActionNoise = Callable[[tuple[int, ...], torch.Generator], Tensor]


def draw_noise(
    env: Env, action_noise: ActionNoise, num_steps: int, shuffle: tuple[int, int], seed: int, phase: int
) -> Noise:
    """The noise of phase number `phase` for this rank. `shuffle` is (passes over the data, rows to shuffle in each)."""
    rank = world().rank

    def uniform(name: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=stream(env.device, seed, name, phase, rank), device=env.device)

    return Noise(
        start=uniform("start", env.num_envs, env.noise_size),
        action=action_noise((num_steps, env.num_envs), stream(env.device, seed, "action", phase, rank)),
        reset=uniform("reset", num_steps, env.num_envs, env.noise_size),
        shuffle=uniform("shuffle", *shuffle),
    )
