"""Shared by all on-policy algorithms: common settings and their checks, the initial state, and the loop over phases.

A phase is one iteration: collect a rollout, then learn from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from ..engine import Noise, Optimizer, Runtime, State, draw_noise, run_as, stream_seed, world
from ..errors import UsageError, one_line
from ..functional import Schedule, linear
from ..models import ActorCritic
from ..sequences import SequenceRollout
from ..types import Env, Rollout, Settings

MaySchedule = float | Schedule  # the type of a setting that may be a schedule
ANNEALED = {"learning_rate": "anneal_lr", "clip_coef": "anneal_clip"}  # a switch for a linear decay of a number
VARYING = ("learning_rate", "clip_coef", "ent_coef")  # settings that may be schedules


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings common to all on-policy algorithms. Each algorithm adds its own and may change defaults."""

    state: ClassVar[type[State]] = State
    network_defaults: ClassVar[Settings] = {}  # defaults of this algorithm that differ from those of NetworkConfig
    # settings that a sweep searches by default; names that an algorithm does not have are ignored
    searched: ClassVar[str] = (
        "learning_rate num_steps num_minibatches update_epochs gamma gae_lambda clip_coef ent_coef vf_coef max_grad_norm"
    )
    # names of the settings for passes over each rollout and for minibatches in each pass; empty: one pass, one minibatch
    epoch_settings: ClassVar[tuple[str, ...]] = ()
    # True: minibatches are whole trajectories, a rollout may end early, and phases report the steps that they took
    by_trajectory: ClassVar[bool] = False
    # names of the functions of `state.functions` that the algorithm uses, which a user's own may replace
    replaceable: ClassVar[str] = "phase"

    total_timesteps: int = 500_000
    """Total number of environment steps, summed over all environments."""
    num_envs: int = 8
    """Number of environments that run in parallel."""
    num_steps: int = 128
    """Steps of each environment in one rollout."""
    learning_rate: MaySchedule = 2.5e-4
    """Step size of Adam in the first phase, or a schedule such as 'cosine(3e-4, 1e-5)'."""
    learning_rate_end: float = 0.0
    """Learning rate at the end of the run, with anneal_lr."""
    anneal_lr: bool = True
    """Decay the learning rate linearly over the run, if it is a number."""
    anneal_fraction: float = 1.0
    """Fraction of the run over which anneal_lr and anneal_clip decay."""
    gamma: float = 0.99
    """Discount."""
    ent_coef: MaySchedule = 0.01
    """Weight of the entropy bonus, or a schedule such as 'linear(0.01, 0)'."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Limit on the global gradient norm, or None."""

    def __post_init__(self) -> None:
        at_least(self, 1, "num_envs", "num_steps", *self.epoch_settings)
        at_least(self, 0, "learning_rate_end", "ent_coef", "vf_coef")
        positive(self, "total_timesteps", "learning_rate", "max_grad_norm", "anneal_fraction")
        fraction(self, "gamma", "anneal_fraction")
        self.check()
        phase = f"num_envs {self.num_envs} x num_steps {self.num_steps} = {self.batch_size}"
        message = f"total_timesteps {self.total_timesteps} is less than one phase of {phase}"
        refuse(self.phases < 1, f"{message}: raise total_timesteps, or lower num_envs or num_steps")
        message = f"learning_rate_end {self.learning_rate_end} is used only with anneal_lr"
        advice = "set anneal_lr true, or drop learning_rate_end"
        refuse(bool(self.learning_rate_end) and not self.anneal_lr, f"{message}: {advice}")
        message = f"anneal_fraction {self.anneal_fraction} leaves the rest of the run at learning rate 0"
        decays_early = self.anneal_lr and self.anneal_fraction < 1
        refuse(decays_early and self.learning_rate_end == 0, f"{message}: set learning_rate_end above 0")
        for name, switch in ANNEALED.items():
            value, decays = getattr(self, name, None), getattr(self, switch, False)
            both = f"{switch} decays a number, and {name} {value} is a schedule already: set {switch} false"
            refuse(isinstance(value, Schedule) and decays, both)

    def check(self) -> None:
        """Raise UsageError if a setting that the algorithm itself adds is invalid."""

    def check_env(self, env: Env) -> None:
        """Raise UsageError if the settings do not suit the environment."""
        unsolvable = self.stops_when_solved and not getattr(env, "solved_by_surviving", False)
        refuse(
            unsolvable,
            "stop_when_solved needs an env that is solved by never terminating, such as CartPole-v1: drop it",
        )

    @property
    def has_critic(self) -> bool:
        return True

    @property
    def stops_when_solved(self) -> bool:
        """Whether training ends after a phase whose metric `solved` is 1 (the setting stop_when_solved, if there is one)."""
        return getattr(self, "stop_when_solved", False)

    @property
    def epochs_per_phase(self) -> int:
        return getattr(self, self.epoch_settings[0]) if self.epoch_settings else 1

    @property
    def minibatches_per_epoch(self) -> int:
        return getattr(self, self.epoch_settings[1]) if self.epoch_settings else 1

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.minibatches_per_epoch

    @property
    def updates_per_phase(self) -> int:
        return self.epochs_per_phase * self.minibatches_per_epoch

    @property
    def phases(self) -> int:
        """Number of phases in the run. Algorithms with by_trajectory may do more: their rollouts can end early."""
        return self.total_timesteps // self.batch_size

    @property
    def run_steps(self) -> int:
        """Number of environment steps of the whole run, in whole phases."""
        return self.total_timesteps if self.by_trajectory else self.phases * self.batch_size

    @property
    def decay_steps(self) -> int:
        """Number of environment steps over which anneal_lr and anneal_clip decay."""
        return max(1, round(self.anneal_fraction * self.run_steps))

    def value_after(self, name: str, steps: int) -> float:
        """The value of a setting that may vary, once this many steps of the run are done."""
        value = getattr(self, name)
        if isinstance(value, Schedule):
            return checked_value(name, value, min(1.0, steps / self.run_steps))
        last = self.learning_rate_end if name == "learning_rate" else 0.0
        end = last if getattr(self, ANNEALED.get(name, ""), False) else value
        return linear(value, end, steps, self.decay_steps)

    def varies(self, name: str) -> bool:
        """Whether a setting changes during the run."""
        is_schedule = isinstance(getattr(self, name, None), Schedule)
        return is_schedule or bool(getattr(self, ANNEALED.get(name, ""), False))

    def varying(self, steps: int) -> dict[str, float]:
        """The columns of metrics.jsonl for clip_coef and ent_coef, if they change, of a phase that began after these steps."""
        names = [name for name in VARYING if name != "learning_rate" and self.varies(name)]
        return {f"charts/{name}": self.value_after(name, steps) for name in names}

    def total_loss(self, row: dict[str, float]) -> dict[str, float]:
        """The column losses/total_loss: what the gradient steps of a phase minimised, from its other columns."""
        weights = {"policy_loss": 1.0, "objective": -1.0, "value_loss": self.vf_coef}
        terms = {name: weight * row[f"losses/{name}"] for name, weight in weights.items() if f"losses/{name}" in row}
        if "policy_loss" not in terms and "objective" not in terms:
            return {}
        weight = row["charts/ent_coef"] if self.varies("ent_coef") else self.value_after("ent_coef", 0)
        return {"losses/total_loss": sum(terms.values()) - weight * row.get("losses/entropy", 0.0)}

    def entropy_weight(self, state: State) -> float | Tensor:
        """ent_coef for a loss: a number or, for a schedule, the tensor that holds its present value."""
        return state.ent_coef if isinstance(self.ent_coef, Schedule) else self.ent_coef


S = TypeVar("S", bound=State)
C = TypeVar("C", bound=OnPolicyConfig)


# the run ---------------------------------------------------------------------------------------------------------------


def start(env: Env, policy: ActorCritic, config: OnPolicyConfig, seed: int, runtime: Runtime | None = None) -> Any:
    """Return the state before the first phase, of type `config.state`. The default runtime executes phases eagerly."""
    config.check_env(env)
    kind = Rollout if policy.memory_rows is None else SequenceRollout
    optimizer, rollout = Optimizer(policy), kind.allocate(config.num_steps, env)
    obs = env.reset(seed=stream_seed(seed, "env", rank=world().rank))
    return config.state(
        env=env, policy=policy, optimizer=optimizer, rollout=rollout, obs=obs, seed=seed,
        runtime=runtime or Runtime(device=env.device),
    )  # fmt: skip


def is_finished(state: State, config: OnPolicyConfig) -> bool:
    """Whether the task is solved (with stop_when_solved), or too few steps are left for another phase."""
    return (config.stops_when_solved and state.solved) or state.steps + config.batch_size > config.total_timesteps


def schedule_settings(state: State, config: OnPolicyConfig) -> None:
    """Set learning rate and ent_coef by the number of steps taken. After the last phase they have exactly their end values."""
    taken = config.total_timesteps if is_finished(state, config) else state.steps
    state.optimizer.learning_rate.fill_(config.value_after("learning_rate", taken))  # [detail 4]
    state.ent_coef.fill_(config.value_after("ent_coef", taken))


def noise_of_phase(state: State, config: OnPolicyConfig) -> Noise:
    """Draw all random numbers of the next phase."""
    env, rows = state.env, 1 if config.by_trajectory else config.num_steps
    shuffle = (config.epochs_per_phase, env.num_envs * rows)
    return draw_noise(env, state.policy.head.noise, config.num_steps, shuffle, state.seed, state.phase)


def training_loop(
    state: S, config: C, phase: Callable[[S, C, Noise], Any], schedule: Callable[[S, C], None] = schedule_settings
) -> Iterator[Any]:
    """Train to the end of the run and yield the metrics of each phase. Between two yields, `state` holds the whole run."""
    own = state.functions.phase
    phase = phase if own is None else run_as("phase")(own)
    schedule(state, config)
    while not is_finished(state, config):
        metrics = phase(state, config, noise_of_phase(state, config))
        state.phase += 1
        state.steps += int(metrics.steps) if config.by_trajectory else config.batch_size
        schedule(state, config)
        state.solved = config.stops_when_solved and bool(metrics.solved)
        yield metrics


# checks of settings ----------------------------------------------------------------------------------------------------


def refuse(wrong: bool, message: str) -> None:
    if wrong:
        raise UsageError(message)


def at_least(config: object, minimum: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        low, _ = (minimum, 0) if value is None else extremes(name, value)
        refuse(not low >= minimum, f"{name} {value} is too small: give at least {minimum}")


def positive(config: object, *names: str) -> None:
    """Numbers must be above 0. A schedule may be 0 in places."""
    for name in names:
        value = getattr(config, name)
        low, high = (0, 1) if value is None else extremes(name, value)
        wrong = f"{name} {value} is {'negative in places' if low < 0 < high else 'not positive'}"
        refuse(not (low >= 0 and high > 0), f"{wrong}: give {'numbers' if low < high else 'a number'} above 0")


def extremes(name: str, value: MaySchedule) -> tuple[float, float]:
    """The least and the greatest value of a setting. A function is called at both ends, and otherwise trusted."""
    if not isinstance(value, Schedule):
        return value, value
    if value.function is not None:
        return min(checked_value(name, value, progress) for progress in (0.0, 1.0)), math.inf
    values = [x for _, x in value.points] or [0.0, math.inf]  # the function of a saved run
    return min(values), max(values)


def checked_value(name: str, schedule: Schedule, progress: float) -> float:
    """The value of a schedule; UsageError if a function of the user fails or gives no number of at least 0."""
    wrong, fix = f"{name} is {schedule}, which at progress {progress:.4g}", "give a finite number of at least 0"
    try:
        value = schedule(progress)
    except Exception as error:
        raised = f"{wrong} raises {type(error).__name__}: {one_line(error)}"
        raise UsageError(f"{raised}. It is called with progress alone") from error
    refuse(not (math.isfinite(value) and value >= 0), f"{wrong} is {value:g}: {fix}")
    return value


def fraction(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        refuse(value is not None and not 0 <= value <= 1, f"{name} {value} is out of range: give a number from 0 to 1")


def divides(config: object, count: str, whole: str, size: int) -> None:
    parts = getattr(config, count)
    if size % parts:
        start = min(parts, size)
        near = (d for off in range(min(start, 100_000)) for d in (start - off, start + off) if size % d == 0)
        best = next(near, 1)
        raise UsageError(f"{count} {parts} does not divide {whole} = {size}: try {count} {best}")
