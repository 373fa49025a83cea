"""What is known of a run before it starts: its plan, how it resumes, and the return at which its task counts as solved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..algorithms import OnPolicyConfig
from ..algorithms.common import VARYING
from ..engine import (
    COMPILED_C,
    COMPILED_VERSION,
    State,
    choose_threads,
    cores,
    waits_asleep,
    why_not_recorded,
    world,
)
from ..envs import TensorEnv
from ..envs.registry import ENVS, module_and_name
from ..envs.training_warnings import training_warnings
from ..envs.with_memory import without_memory
from ..errors import plural, printable
from ..functional import Schedule
from ..logging import Target
from ..models.action_mask import ACTION_MASK
from ..models.observation_groups import names_of
from ..models.summary import network_summary
from ..types import Env, Settings
from .build import backend_for, traits_of
from .checkpoint_reader import Checkpoint
from .config import Config
from .own_code import is_import_path
from .presets import EXPECTED, KIND_WORDS, kind_settings
from .schedules import resumed_with
from .settings import suits_cpu

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

FRESH_EPISODES = "episodes and the environment's attributes start afresh"
SLACK = 0.15  # share of a preset's result by which seeds and evaluations vary
TASK = ("initial", "advance", "reward", "terminated", "time_limit")  # what a target of a tensor environment depends on
FEW_PHASES, FEW_UPDATES = 10, 20  # below these a warning is printed


@dataclass(frozen=True)
class TrainingPlan:
    phases: int
    batch: int
    minibatch: int
    ranks: int
    updates: int
    steps: int
    parameters: int
    network: str
    device: str
    engine: str
    defaults: str | None
    threads: int
    runtime: str
    may_stop_early: bool
    warning: str | None
    stop_at: str | None = None  # the condition that ends training early
    notes: tuple[str, ...] = ()  # about the environment and the network
    schedules: tuple[str, ...] = ()  # settings that follow a schedule, with their present values
    device_reason: str = ""  # why the CPU is used on a machine with a GPU

    def lines(self) -> list[str]:
        """The plan as lines of text."""
        threads = f", {plural(self.threads, 'thread')}" if self.device == "cpu" else ""
        where = f"{self.device}{threads}{self.device_reason}, {self.runtime}"
        if self.ranks > 1:
            share = f"batch {self.batch // self.ranks:,}, minibatches of {self.minibatch // self.ranks:,}"
            where += f"; on each of {self.ranks} ranks: {share}"
        count = ("at least " if self.may_stop_early else "") + plural(self.phases, "phase")
        return [
            f"plan: {count} x {plural(self.batch, 'step')} = {plural(self.steps, 'step')}; {plural(self.updates, 'update')} on "
            f"minibatches of {self.minibatch:,}; {plural(self.parameters, 'parameter')}; {where}",
            f"network: {self.network}",
            f"environments: {self.engine}",
            *([f"settings: {self.defaults}"] if self.defaults else []),
            *([f"schedules: {'; '.join(self.schedules)}"] if self.schedules else []),
            *([f"stops earlier if {self.stop_at}"] if self.stop_at else []),
            *([f"warning: {self.warning}"] if self.warning else []),
            *(f"note: {note}" for note in self.notes),
        ]


def engine_of(state: State, config: Config) -> str:
    """A line that names the backend of the environments and the reason for it."""
    count = f"{world().size} x {state.env.num_envs}" if world().size > 1 else f"{state.env.num_envs}"
    env_id = config.run.train_env or config.env
    if is_import_path(env_id):
        return f"{count} of {env_id}, as given"
    backend, why = backend_for(env_id, config.run.backend, config.run.adapts_env)
    if getattr(state.env, "backend", backend) != backend:
        return f"{count} of {env_id}, as given"
    groups = f" in {state.env.groups} groups" if state.env.groups > 1 else ""
    return f"{count} of {env_id} by {backend}{groups} ({why})"


def defaults_of(config: Config, env: Env) -> str | None:
    """A line that names the kind of defaults of a run without a preset, and those in use."""
    kind, settings = config.run.defaults, config.to_flat_dict()
    if kind not in KIND_WORDS:
        return None
    sizes = {name: settings[name] for name in ("num_envs", "num_steps")}
    budget = {"total_timesteps": settings["total_timesteps"]}
    usual = sizes | kind_settings(kind, config.algo, sizes | budget, traits_of(env))
    kept = [f"{name} {value}" for name, value in usual.items() if settings[name] == value]
    return f"defaults for {KIND_WORDS[kind]}: {', '.join(kept)}"


def plan(state: State, config: Config) -> TrainingPlan:
    """The plan of a run for the steps that are left."""
    algorithm, env = config.algorithm, without_memory(state.env)
    steps = algorithm.phases * algorithm.batch_size - state.steps
    phases = max(steps // algorithm.batch_size, 0)
    updates = phases * algorithm.updates_per_phase
    warning, target = None, config.run.stop_at_return
    if state.phase == 0 and (phases < FEW_PHASES or updates < FEW_UPDATES):
        few, total = f"{plural(phases, 'phase')}, {plural(updates, 'update')}", algorithm.total_timesteps
        sizes = f"num_envs {algorithm.num_envs} x num_steps {algorithm.num_steps}"
        warning = f"only {few}: total_timesteps {total:,} is short for {sizes}; raise it, or lower one of them"
    threads = config.run.threads or choose_threads(state.policy, algorithm.minibatch_size // world().size)
    return TrainingPlan(
        phases=phases, batch=algorithm.batch_size, minibatch=algorithm.minibatch_size, ranks=world().size,
        updates=updates, steps=phases * algorithm.batch_size,
        parameters=sum(p.numel() for p in state.policy.parameters()), network=network_summary(state.policy),
        device=str(state.env.device), engine=engine_of(state, config), defaults=defaults_of(config, env),
        threads=threads, runtime=state.runtime.describe(), may_stop_early=algorithm.by_trajectory,
        warning=warning or busy_machine_warning(threads),
        stop_at=None if target is None else f"an evaluation, every {config.run.eval_every:,} steps, returns {target:g}",
        notes=(*training_warnings(env), *group_notes(state), *runtime_notes(state)),
        device_reason=device_reason(env),
        schedules=tuple(schedule_words(algorithm, state.steps)),
    )  # fmt: skip


def schedule_words(algorithm: OnPolicyConfig, steps: int) -> Iterator[str]:
    """Each setting that is a schedule, with its value after these steps."""
    for name in VARYING:
        schedule = getattr(algorithm, name, None)
        if isinstance(schedule, Schedule):
            yield f"{name} {schedule}, now {algorithm.value_after(name, steps):.3g}"


def device_reason(env: Env) -> str:
    """Why a run uses the CPU of a machine that has a GPU; empty if it does not."""
    chosen = env.device.type == "cpu" and torch.cuda.is_available() and suits_cpu(env)
    return " (faster than cuda for an environment that runs on the CPU)" if chosen else ""


def group_notes(state: State) -> list[str]:
    """A note if actor and critic see different parts of the observation."""
    actor, critic = (
        names_of(x, without_memory(state.env).observation) for x in (state.policy.actor, state.policy.critic)
    )
    if state.policy.critic is None or actor == critic:
        return []
    masks = (ACTION_MASK,) if state.policy.action_mask is not None else ()
    shown = (", ".join(name for name in names if name not in masks) for names in (actor, critic))
    return ["the actor sees {}; the critic sees {}".format(*shown)]


def runtime_notes(state: State) -> list[str]:
    """A note if the policy cannot be recorded and replayed, which is how the CPU runs it fastest."""
    if not state.runtime.records:
        return []
    refusal = state.runtime.compiler_refusal
    notes = [] if refusal is None else [f"recordings are not compiled, which is slower: {refusal}"]
    why = why_not_recorded(state.policy, state.rollout, state.obs, state.runtime.compiles_recordings)
    if why is not None:
        notes.append(f"the policy runs in plain PyTorch, which is slower than a recording: {why}")
    return notes


def busy_machine_warning(threads: int) -> str | None:
    """A warning if threads that spin while waiting compete with other processes for cores."""
    if threads == 1 or waits_asleep() or not hasattr(os, "getloadavg") or (load := os.getloadavg()[0]) < cores() / 2:
        return None
    busy = f"threads {threads} may be slow on a busy machine (load {load:.1f}, {cores()} cores)"
    return f"{busy}: import tightrope before torch, set OMP_WAIT_POLICY=PASSIVE, or give threads 1"


# how a run resumes ------------------------------------------------------------------------------------------------------


def resume_notes(checkpoint: Checkpoint, state: State, config: Config) -> list[str]:
    """Notes for the user about resuming from a checkpoint."""
    lines = [f"resuming from {checkpoint.path.name}"]
    algorithm = config.algorithm
    changes = config.changes[len(checkpoint.config.changes) :]
    lines += resumed_with(changes, any(map(algorithm.varies, VARYING)))
    if algorithm.anneal_lr and any(change.setting == "learning_rate" for change in changes):
        lines.append("note: anneal_lr decays learning_rate over the whole run: set anneal_lr false to keep it as given")
    then = printable(str(checkpoint.manifest["versions"].get("torch")))[:20]
    if then != torch.__version__[:20]:
        lines.append(f"note: saved under torch {then}, this is {torch.__version__}: last digits may differ")
    before, now = (COMPILED_C in str(x) for x in (checkpoint.manifest.get("runtime", ""), state.runtime.describe()))
    if before and not now and state.phase:
        how = "compiled C, and NumPy replays them here"
        lines.append(f"note: the recordings of this run were {how}: last digits may differ")
    if before and now and state.phase and checkpoint.manifest["versions"].get("compiled") != COMPILED_VERSION:
        lines.append("note: an earlier version compiled the recordings of this run to other C: last digits may differ")
    if checkpoint.ranks != world().size:
        many = plural(checkpoint.ranks, "rank") if checkpoint.ranks else "several ranks without their states"
        lines.append(f"note: saved by {many}, this is {world().size}: {FRESH_EPISODES}")
    elif state.phase and not state.env.resumable:
        lines.append(f"note: the state of this environment cannot be saved, so {FRESH_EPISODES}")
    return lines


def reached(state: State, config: Config) -> bool:
    """Whether an evaluation has reached `stop_at_return`."""
    return config.run.stop_at_return is not None and state.best_score >= config.run.stop_at_return


def nothing_to_do(state: State, config: Config, has_run: bool) -> str:
    """Why no phase is left to train, and how to train further."""
    score, goal, total = state.best_score, config.run.stop_at_return, config.algorithm.total_timesteps
    if reached(state, config):
        done = f"nothing to do: an evaluation returned {score:.2f}, and stop_at_return is {goal:g}"
        return f"{done}. Raise stop_at_return to train further"
    if state.solved:
        return f"nothing to do: the agent solved its task after {plural(state.steps, 'step')}"
    more = ". Raise --total-timesteps to train further" if has_run else ""
    return f"nothing to do: the agent has {state.steps:,} of {total:,} steps already; no whole phase is left{more}"


# the return at which a task counts as solved ----------------------------------------------------------------------------


def target_of(config: Config, env: Env | None = None) -> Target | None:
    """The target of a run: the `solved_at` of its environment, Gymnasium's threshold, or the result of our preset, less what
    seeds vary. None if none is known or the task was changed. `env` is the training environment, if it exists."""
    if config.run.adapts_env or config.run.max_episode_steps is not None:
        return None
    own = own_target(config, env)
    if own is not None:
        return Target(own, f"{config.env.rpartition(':')[2]} counts as solved from {own:,.6g}")
    published, score = gymnasium_threshold(config.env, env), None
    if config.env in EXPECTED:
        score = EXPECTED[config.env].score  # of our preset
    if score is None or (published is not None and published <= score):
        return None if published is None else Target(published, f"Gymnasium counts it as solved from {published:,.6g}")
    wanted = "" if published is None else f", Gymnasium asks for {published:,.6g}"
    return Target(score - SLACK * abs(score), f"the preset reaches about {score:g}{wanted}", published=False)


def own_target(config: Config, env: Env | None) -> float | None:
    """`solved_at` of a tensor environment, by its id or from the object."""
    if config.env in ENVS:
        return ENVS[config.env].solved_at
    if not isinstance(env, TensorEnv) or config.run.train_env is not None or env.max_episode_steps != env.time_limit:
        return None
    return env.solved_at if "solved_at" in vars(env) else inherited_target(type(env))


def inherited_target(kind: type[TensorEnv]) -> float | None:
    """`solved_at` of a class; None if a subclass has changed the task since it was given."""
    for each in kind.__mro__:
        if "solved_at" in vars(each):
            return kind.solved_at
        if any(name in vars(each) for name in TASK):
            return None
    return None


def gymnasium_threshold(env_id: str, env: Env | None) -> float | None:
    """Gymnasium's reward_threshold for an id; None if the environment differs from its registration."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from ..envs.adapters.gym import ALIASES

    _, name = module_and_name(ALIASES.get(env_id, (env_id, {}))[0])
    registered = gymnasium.registry.get(name)
    if registered is None:
        one = next(iter(getattr(env, "envs", [])), None) or getattr(env, "engine", None)
        spec = getattr(one, "spec", None)  # other libraries have a `spec` of another kind
        if not isinstance(spec, EnvSpec) or spec.additional_wrappers:
            return None
        registered = gymnasium.registry.get(spec.id)
        if registered is None or variant(spec) != variant(registered):
            return None
    return None if registered.reward_threshold is None else float(registered.reward_threshold)


def variant(spec: EnvSpec) -> tuple[Settings, int | None]:
    """The arguments and the time limit of an environment."""
    return {k: v for k, v in spec.kwargs.items() if k != "render_mode"}, spec.max_episode_steps
