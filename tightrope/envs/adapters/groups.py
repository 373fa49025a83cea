"""Split environments into groups with separate simulators: while the policy acts for one group, the others step.

Each row has the seed that it would have without groups, so its episodes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...errors import EnvError
from ...types import Step
from ..step_arrays import Array
from .host import HostEnv, row_seeds

SMALLEST_GROUP = 8  # environments: fewer do not keep the cores busy


def in_groups(make: Callable[[int], HostEnv], num_envs: int, device: str | torch.device) -> HostEnv:
    """Environments of an engine that works in the background, in two groups where that is faster; `make` takes their number.

    It is faster where a device runs the policy. On the CPU policy and engine share the cores, and acting twice on half
    the rows costs more than acting once.
    """
    if torch.device(device).type == "cpu" or num_envs < 2 * SMALLEST_GROUP:
        return make(num_envs)
    return Grouped([make(num_envs - num_envs // 2), make(num_envs // 2)])


class Grouped(HostEnv):
    """Several adapters of one kind as one environment; the rows of the first come first."""

    def __init__(self, members: Sequence[HostEnv]) -> None:
        self.members = members
        first, sizes = members[0], [member.num_envs for member in members]
        self.name, self.backend, self.solved_at, self.skips = first.name, first.backend, first.solved_at, first.skips
        for member, row in zip(members, accumulate(sizes, initial=0), strict=False):
            member.first_row = row
        self._set_spaces(first._observation, first._action, sum(sizes), first.device)
        self.groups, self.drawable, self.game_limit = len(members), first.drawable, first.game_limit

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    @device.setter
    def device(self, device: torch.device) -> None:
        """On the CPU all groups are stepped together."""
        for member in self.members:
            member.device = device
        self.groups = 0 if device.type == "cpu" else len(self.members)

    def in_arrays(self) -> None:
        """Not available: each group has arrays of its own."""

    def seed(self, seed: int, first: int = 0) -> None:
        """Set the seed of the next reset; each row gets the same seed as without groups."""
        seeds = row_seeds(seed, first + self.num_envs)[first:]
        for member in self.members:
            member._seeds = seeds[member.first_row : member.first_row + member.num_envs]

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        if seed is not None:
            self.seed(seed)
        return torch.cat([self._call(member.reset) for member in self.members])

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, the next one starts in the same step."""
        for group, part in enumerate(action.tensor_split(len(self.members))):
            self.send(part, group)
        return concatenated([self.recv(group) for group in range(len(self.members))])

    def send(self, action: Tensor, group: int = 0) -> None:
        self._call(self.members[group].send, action)

    def recv(self, group: int = 0) -> Step:
        return self._call(self.members[group].recv)

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What one group returns; if it fails, the processes of all groups are ended."""
        try:
            return function(*arguments)
        except EnvError:
            for member in self.members:
                member._abandon()
            raise

    @property
    def steps_taken(self) -> int:
        return sum(member.steps_taken for member in self.members)

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        return torch.stack([member.finished_episodes() for member in self.members]).sum(0)

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Any:
        """Another environment of the same kind and settings, without groups: evaluation waits for all of its rows."""
        return self.members[0].spawn(num_envs, seed, drawn)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        return self.members[0].draw(obs, action)

    def close(self) -> None:
        for member in self.members:
            member.close()


def concatenated(steps: Sequence[Step]) -> Step:
    """The rows of several steps as one, in memory of its own."""
    *fields, valid = zip(*steps, strict=True)
    obs, reward, terminated, truncated, final_obs = (torch.cat(field) for field in fields)
    return Step(obs, reward, terminated, truncated, final_obs, None if valid[0] is None else torch.cat(valid))
