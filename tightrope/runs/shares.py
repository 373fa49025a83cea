"""One run over several ranks: settings are of the whole run, and each rank has an equal share of its environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import UsageError


def per_rank_config(algorithm: Any, ranks: int) -> Any:
    """The settings as one rank has them; refused where they do not split evenly, for then ranks would count differently."""
    if ranks == 1:
        return algorithm
    if algorithm.num_envs % ranks:
        below = algorithm.num_envs // ranks * ranks
        near = f"{below} or {below + ranks}" if below else f"{ranks}"
        raise UsageError(f"num_envs {algorithm.num_envs} does not split evenly over {ranks} ranks: give {near}")
    try:
        num_envs = algorithm.num_envs // ranks
        return replace(algorithm, num_envs=num_envs, total_timesteps=algorithm.phases * num_envs * algorithm.num_steps)
    except UsageError as error:
        raise UsageError(f"on each of {ranks} ranks, with num_envs {num_envs}: {error}") from None
