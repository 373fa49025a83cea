"""What on-policy algorithms share: their settings and the checks of them, the state before the first phase, and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ..engine import Noise, Optimizer, Runtime, State, draw_noise, stream_seed, world
from ..errors import UsageError
from ..functional import linear
from ..models import ActorCritic
from ..types import Env, Rollout, Settings


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings of every on-policy algorithm. An algorithm adds its own, and may have other defaults."""

    state: ClassVar[type[State]] = State
    network_defaults: ClassVar[Settings] = {}  # where they are not those of NetworkConfig
    searched: ClassVar[str] = (  # settings that a sweep searches by default, as far as there are such
        "learning_rate num_steps num_minibatches update_epochs gamma gae_lambda clip_coef ent_coef vf_coef max_grad_norm"
    )
    passes_by: ClassVar[
        tuple[str, ...]
    ] = ()  # settings of (passes over each rollout, minibatches of each); none: (1, 1)
    by_trajectory: ClassVar[bool] = False  # whether it learns from trajectories and counts them; phases may end early

    total_timesteps: int = 500_000
    """Environment steps in all, over every environment."""
    num_envs: int = 8
    """Environments that run side by side."""
    num_steps: int = 128
    """Steps of each environment between two learning phases."""
    learning_rate: float = 2.5e-4
    """Step size of Adam in the first phase."""
    learning_rate_end: float = 0.0
    """What the learning rate decays to, with anneal_lr."""
    anneal_lr: bool = True
    """Decay the learning rate linearly over the run."""
    anneal_fraction: float = 1.0
    """Fraction of the run over which schedules decay."""
    gamma: float = 0.99
    """Discount."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Limit on the global gradient norm, or None."""

    def __post_init__(self) -> None:
        at_least(self, 1, "num_envs", "num_steps", *self.passes_by)
        at_least(self, 0, "learning_rate_end", "ent_coef", "vf_coef")
        positive(self, "total_timesteps", "learning_rate", "max_grad_norm", "anneal_fraction")
        fraction(self, "gamma", "anneal_fraction")
        self.check()
        phase = f"num_envs {self.num_envs} x num_steps {self.num_steps} = {self.batch_size}"
        short = f"total_timesteps {self.total_timesteps} is less than one phase of {phase}: raise it or lower one of the others"
        refuse(self.phases < 1, short)
        unused = f"learning_rate_end {self.learning_rate_end} means nothing without anneal_lr: set it, or drop the end"
        refuse(bool(self.learning_rate_end) and not self.anneal_lr, unused)
        still = f"anneal_fraction {self.anneal_fraction} would train the rest at rate 0: set learning_rate_end above 0"
        refuse(self.anneal_lr and self.anneal_fraction < 1 and self.learning_rate_end == 0, still)

    def check(self) -> None:
        """Refuse settings of the algorithm's own that make no sense."""

    def check_env(self, env: Env) -> None:
        """Refuse an environment that the settings are not for."""
        unsolvable = self.stops_when_solved and not getattr(env, "solved_by_surviving", False)
        refuse(unsolvable, "stop_when_solved needs an env that is solved by not failing, such as CartPole-v1: drop it")

    @property
    def has_critic(self) -> bool:
        return True

    @property
    def stops_when_solved(self) -> bool:
        """Whether training ends once a phase's metrics say `solved`; some algorithms have a setting for that."""
        return getattr(self, "stop_when_solved", False)

    @property
    def passes(self) -> tuple[int, int]:
        """(passes over each rollout, minibatches of each)"""
        count, minibatches = (getattr(self, name) for name in self.passes_by) if self.passes_by else (1, 1)
        return count, minibatches

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.passes[1]

    @property
    def updates_per_phase(self) -> int:
        return self.passes[0] * self.passes[1]

    @property
    def phases(self) -> int:
        """At least this many: phases that end early leave steps for more."""
        return self.total_timesteps // self.batch_size

    @property
    def decay_steps(self) -> int:
        """Steps over which schedules decay."""
        whole = self.total_timesteps if self.by_trajectory else self.phases * self.batch_size
        return max(1, round(self.anneal_fraction * whole))


S = TypeVar("S", bound=State)
C = TypeVar("C", bound=OnPolicyConfig)


# the run ---------------------------------------------------------------------------------------------------------------


def start(env: Env, policy: ActorCritic, config: OnPolicyConfig, seed: int, runtime: Runtime | None = None) -> Any:
    """The state before the first phase, of the algorithm's own kind. Without a runtime, it is executed eagerly."""
    config.check_env(env)
    optimizer, rollout = Optimizer(policy), Rollout.allocate(config.num_steps, env)
    obs = env.reset(seed=stream_seed(seed, "env", rank=world().rank))
    return config.state(
        env=env, policy=policy, optimizer=optimizer, rollout=rollout, obs=obs, seed=seed,
        runtime=runtime or Runtime(device=env.device),
    )  # fmt: skip


def is_finished(state: State, config: OnPolicyConfig) -> bool:
    """Whether nothing is left to learn, or not steps enough for another whole phase."""
    return (config.stops_when_solved and state.solved) or state.steps + config.batch_size > config.total_timesteps


def schedule_learning_rate(state: State, config: OnPolicyConfig) -> None:
    """Set the learning rate by the steps taken; after the last phase it reads exactly its end value."""
    taken = config.total_timesteps if is_finished(state, config) else state.steps
    end = config.learning_rate_end if config.anneal_lr else config.learning_rate
    state.optimizer.learning_rate.fill_(linear(config.learning_rate, end, taken, config.decay_steps))  # [detail 4]


def noise_of_phase(state: State, config: OnPolicyConfig) -> Noise:
    """All the random numbers of the phase that comes next."""
    env, rows = state.env, 1 if config.by_trajectory else config.num_steps
    shuffle = (config.passes[0], env.num_envs * rows)
    return draw_noise(env, state.policy.head.noise, config.num_steps, shuffle, state.seed, state.phase)


def training_loop(
    state: S, config: C, phase: Callable[[S, C, Noise], Any], schedule: Callable[[S, C], None] = schedule_learning_rate
) -> Iterator[Any]:
    """Train to the end of the plan; yields the metrics of each phase. Everything between two yields is in `state`."""
    schedule(state, config)
    while not is_finished(state, config):
        metrics = phase(state, config, noise_of_phase(state, config))
        state.phase += 1
        state.steps += int(metrics.steps) if config.by_trajectory else config.batch_size
        schedule(state, config)
        state.solved = config.stops_when_solved and bool(metrics.solved)
        yield metrics


# checks of settings ----------------------------------------------------------------------------------------------------


def refuse(wrong: bool, words: str) -> None:
    if wrong:
        raise UsageError(words)


def at_least(config: object, minimum: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        refuse(value is not None and not value >= minimum, f"{name} {value} is too small: give at least {minimum}")


def positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        refuse(value is not None and not value > 0, f"{name} {value} is not positive: give a number above 0")


def fraction(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        refuse(value is not None and not 0 <= value <= 1, f"{name} {value} is out of range: give a number from 0 to 1")


def divides(config: object, count: str, whole: str, size: int) -> None:
    parts = getattr(config, count)
    if size % parts:
        start = min(parts, size)
        near = (d for away in range(min(start, 100_000)) for d in (start - away, start + away) if size % d == 0)
        best = next(near, 1)
        raise UsageError(f"{count} {parts} does not divide {whole} = {size}: try {count} {best}")
