"""What configurations have in common: what they offer to those who run them, and the checks they are built from."""

from typing import Any, Protocol

from ..errors import UsageError


class AlgorithmConfig(Protocol):
    """What every algorithm's configuration offers to those who run it."""

    @property
    def total_timesteps(self) -> int: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def max_grad_norm(self) -> float | None: ...
    @property
    def gamma(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def minibatch_size(self) -> int: ...
    @property
    def phases(self) -> int: ...
    @property
    def updates_per_phase(self) -> int: ...
    @property
    def has_critic(self) -> bool: ...
    @property
    def whole_episodes(self) -> bool: ...


def at_least(config: Any, minimum: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= minimum:
            raise UsageError(f"{name} {value} is too small: give at least {minimum}")


def positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value} is not positive: give a number above 0")


def fraction(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise UsageError(f"{name} {value} is out of range: give a number from 0 to 1")


def divides(config: Any, count: str, whole: str, size: int) -> None:
    parts = getattr(config, count)
    if size % parts:
        start = min(parts, size)
        near = (d for away in range(min(start, 100_000)) for d in (start - away, start + away) if size % d == 0)
        best = next(near, 1)
        raise UsageError(f"{count} {parts} does not divide {whole} = {size}: try {count} {best}")


def some_phases(config: Any) -> None:
    if config.phases < 1:
        raise UsageError(
            f"total_timesteps {config.total_timesteps} is less than one phase of num_envs {config.num_envs} x "
            f"num_steps {config.num_steps} = {config.num_envs * config.num_steps}: raise it or lower one of the others"
        )


def end_needs_annealing(config: Any) -> None:
    if config.learning_rate_end and not config.anneal_lr:
        raise UsageError(
            f"learning_rate_end {config.learning_rate_end} means nothing without anneal_lr: set it, or drop the end"
        )
