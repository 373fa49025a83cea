"""The configuration of a run: settings of the algorithm, the network and the run itself.

Users see one flat namespace, in keywords, flags and YAML. Later layers win: defaults, preset, file, flags.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ..algorithms import ALGORITHMS, OnPolicyConfig
from ..algorithms.common import at_least
from ..engine import Accelerate, Precision, cores
from ..envs.registry import BackendName, VectorizationMode
from ..errors import UsageError, checked_seed, near_matches
from ..functional import Schedule
from ..logging.trackers import TrackerName, TrackerTags
from ..models import NetworkConfig
from ..types import Settings
from .names import SETTINGS, here_called
from .own_code import NAMES, OwnFunction, Wrapper, read_function
from .presets import NO_STOP, Traits, kind_settings, preset, preset_stop
from .schedules import CHANGEABLE, HISTORY, Change, changes_between, read_changes, replace_annealing
from .settings import MAPPINGS, coerce, is_section

Defaults = Literal["auto", "plain", "discrete", "states", "continuous", "images"]
MAX_EPISODES = 1_000_000  # of one evaluation: a tensor environment plays all of them at once, one row each


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run that do not depend on the algorithm."""

    seed: int = 1
    """Seed of every random stream of the run."""
    defaults: Defaults = "auto"
    """Settings to start from: auto takes the env's preset or, without one, those of its kind; plain takes the algorithm's."""
    init_from: str | None = None
    """Run whose network and statistics a new run starts from, where they fit; counters and the optimiser start anew."""
    device: str = "auto"
    """Torch device: auto, cpu, cuda, cuda:1 for one of several GPUs, or mps; auto takes CUDA if there is any."""
    accelerate: Accelerate = "auto"
    """How phases are executed: eager, compiled, as CUDA graphs, or both (max); auto takes graphs on CUDA."""
    precision: Precision = "fp32"
    """Arithmetic of networks in training: tf32 rounds inside matrix products on CUDA, bf16 runs networks in bfloat16."""
    threads: int | None = None
    """Torch threads on the CPU; None chooses a number from the sizes of network and minibatch."""
    train_env: str | None = None
    """Environment to train on, such as one with shaped rewards; evaluations still use ENV."""
    max_episode_steps: int | None = None
    """Truncate episodes after this many steps instead of the environment's own limit."""
    backend: BackendName = "auto"
    """Backend that runs the environment; auto prefers tensors on the device, then the fastest backend installed."""
    vectorization_mode: VectorizationMode = "sync"
    """How Gymnasium runs several environments: in turn, each in a process, or with the environment's own vector class."""
    env_kwargs: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    """Arguments for the environment's constructor, as name=value (or a mapping in Python and YAML)."""
    wrappers: tuple[Wrapper, ...] = ()
    """Functions or classes that wrap each environment of Gymnasium, as module:name, the first one innermost."""
    functions: tuple[OwnFunction, ...] = ()
    """Your own functions in place of the algorithm's, as name=module:function, such as gae=my_module:my_gae."""
    eval_every: int = 0
    """Environment steps between greedy evaluations during training; 0 for none. The best policy is kept."""
    eval_episodes: int = 100
    """Episodes of each evaluation, during and after training; 0 to skip the evaluation after training."""
    eval_envs: int = 16
    """Environments that an evaluation runs at once; tensor environments play all episodes at once instead."""
    eval_seconds: float | None = 300.0
    """Time limit of one evaluation in seconds: the score then covers the episodes finished so far; None for no limit."""
    stop_at_return: float | None = None
    """Stop training once an evaluation of eval_every reaches this mean return; None for never."""
    save_seconds: float = 30.0
    """Seconds between checkpoints; 0 for one after every phase. The end of training is always saved."""
    save_every: int = 0
    """Environment steps between additional checkpoints, rounded up to the end of a phase; 0 for none."""
    rank_timeout: float = 1800.0
    """Seconds after which the run ends if a rank makes no progress, not even one step; 0 for no limit."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep, besides the best."""
    video_every: int | None = None
    """Phases between videos of the first 16 training environments; None for a few over the run, 0 for none."""
    log: tuple[TrackerName, ...] = ()
    """Trackers to log to, besides metrics.jsonl. Their variables, such as WANDB_MODE and MLFLOW_TRACKING_URI, apply."""
    project: str | None = None
    """Project in W&B, experiment in MLflow; tightrope if not given."""
    entity: str | None = None
    """User or team in W&B; your own account if not given."""
    run_name: str | None = None
    """Name of the run in trackers; the name of its directory if not given."""
    watch: bool = False
    """Log histograms of parameters and gradients to the trackers, every tenth phase or a hundred times in a run."""
    tags: TrackerTags = "tightrope"
    """Names of scalars in trackers: tightrope for those of metrics.jsonl, sb3 for those of Stable-Baselines3."""

    def __post_init__(self) -> None:
        least = {"eval_every": 0, "eval_episodes": 0, "eval_envs": 1, "max_episode_steps": 1, "threads": 1}
        least |= {"save_seconds": 0, "save_every": 0, "rank_timeout": 0, "keep_checkpoints": 1, "video_every": 0}
        for name, minimum in least.items():
            at_least(self, minimum, name)
        if self.threads is not None and self.threads > max(cores(), 64):
            raise UsageError(f"threads {self.threads} is more than this machine has: give at most {cores()}, or None")
        if self.eval_episodes > MAX_EPISODES:
            raise UsageError(f"eval_episodes {self.eval_episodes} is too large: give at most {MAX_EPISODES}")
        if self.eval_every and not self.eval_episodes:
            raise UsageError(f"eval_episodes 0 leaves no episodes for eval_every {self.eval_every}: give at least 1")
        if self.eval_seconds is not None and not self.eval_seconds > 0:
            raise UsageError(f"eval_seconds {self.eval_seconds:g} is not positive: give seconds, or none for no limit")
        if self.stop_at_return is not None and not self.eval_every:
            raise UsageError(f"stop_at_return {self.stop_at_return:g} needs evaluations: give eval_every, as in 10000")
        checked_seed(self.seed)
        if self.watch and not self.log:
            raise UsageError("watch needs a tracker: give one, as in log tensorboard, or drop watch")

    @property
    def adapts_env(self) -> bool:
        """Whether environments are made with arguments or wrappers of the user's."""
        return bool(self.env_kwargs or self.wrappers)


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run."""

    env: str
    algo: str
    algorithm: OnPolicyConfig
    network: NetworkConfig
    run: RunConfig
    changes: tuple[Change, ...] = field(default=(), compare=False)  # settings that were changed after some steps

    def values(self) -> Settings:
        """All settings in one mapping, with the objects of the user."""
        parts = (self.algorithm, self.network, self.run)
        merged = {f.name: getattr(part, f.name) for part in parts for f in fields(part)}
        return {"env": self.env, "algo": self.algo, **merged}

    def to_flat_dict(self) -> Settings:
        """All settings in one mapping of plain data, as config.yaml has them."""
        return {name: plain(value) for name, value in self.values().items()}

    def saved(self) -> Settings:
        """What config.yaml has: all settings, and the history of those that were changed."""
        history = {HISTORY: [change.saved() for change in self.changes]} if self.changes else {}
        return self.to_flat_dict() | history

    def changed_after(self, steps: int, **settings: Any) -> Config:
        """`changed`, with an entry in the history if the run has begun."""
        now = self.changed(**settings)
        added = changes_between(self.to_flat_dict(), now.to_flat_dict(), steps) if steps else ()
        return replace(now, changes=self.changes + added)

    def changed(self, **settings: Any) -> Config:
        """A copy with some settings changed. With another length, the stop of its preset no longer applies."""
        for name in ("env", "algo"):
            if settings.pop(name, getattr(self, name)) != getattr(self, name):
                raise UsageError(f"{name} cannot be changed: this run is {self.algo} on {self.env}. Train a new one")
        now, stop = self.values(), preset_stop(self.env, self.algo, {})
        drops_stop = "total_timesteps" in settings and stop and stop.items() <= self.to_flat_dict().items()
        config = configure(self.env, self.algo, now, NO_STOP if drops_stop else {}, settings, with_preset=False)
        return replace(config, changes=self.changes)


def plain(value: object) -> object:
    """A setting as plain data: text for what is not a number, a text or a container of these."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return str(value) if isinstance(value, (Schedule, Wrapper, OwnFunction)) else value


FIXED = ("num_envs", "num_steps", "total_timesteps", "baseline")  # the state has their shape


def check_changeable(config: Config, settings: Settings) -> None:
    """Raise UsageError for a setting that cannot be changed once the agent exists."""
    known = {*(f.name for f in fields(config_classes(config.algo)[0])), *CHANGEABLE} - {*FIXED}
    fixed = next((name for name in settings if name in setting_types(config.algo) and name not in known), None)
    if fixed is not None:
        raise UsageError(f"{fixed} cannot be changed on an existing agent: make a new agent")


def config_classes(algo: str) -> tuple[type[OnPolicyConfig], type[NetworkConfig], type[RunConfig]]:
    """The dataclasses with the settings of the algorithm, the network and the run."""
    if algo not in ALGORITHMS:
        raise UsageError(f"unknown algo {algo!r}.{near_matches(algo, ALGORITHMS)} Give one of: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algo].config, NetworkConfig, RunConfig


def setting_types(algo: str) -> dict[str, Any]:
    """The type of every setting of a run, by name."""
    hints = {part: typing.get_type_hints(part) for part in config_classes(algo)}
    return {f.name: known[f.name] for part, known in hints.items() for f in fields(part)}


def merged_layers(algo: str, *layers: Settings) -> Settings:
    """Merge layers of settings, the last one winning, and convert each value to the type of its setting."""
    annotations = setting_types(algo)
    merged: Settings = {}
    for layer in layers:
        given: Settings = {}
        for key, value in layer.items():
            name = key.replace("-", "_")
            if name in ("env", "algo"):
                continue
            if name in NAMES:  # of one function of the user's, as in tr.PPO(..., gae=my_gae)
                before = given.get("functions") or merged.get("functions") or ()
                by_name = {one.name: one for one in (*before, read_function(name, value))}
                given["functions"] = tuple(by_name.values())
                continue
            if name not in annotations and (not isinstance(value, dict) or name in SETTINGS):
                raise unknown_setting(name, algo, annotations)
            if isinstance(value, dict) and name not in MAPPINGS:
                raise is_section(name, value)
            given[name] = coerce(name, value, annotations[name])
        merged |= replace_annealing(given, annotations)
    return merged


def configure(
    env: str, algo: str, *layers: Settings, with_preset: bool = True, preset_env: str | None = None,
    traits: Traits | None = None,
) -> Config:  # fmt: skip
    """The configuration of a run from layers of settings, the last one winning. `preset_env` lends its preset; `traits` of the
    environment decide some of the defaults of its kind."""
    given = merged_layers(algo, *layers)
    merged: Settings = dict(config_classes(algo)[0].network_defaults)
    kind = given.get("defaults", "auto")
    if with_preset and kind == "auto":
        merged |= preset(preset_env or env, algo, given) | preset_stop(env, algo, given)
    elif with_preset and kind != "plain":
        merged |= kind_settings(kind, algo, given, traits)
    merged |= given

    def build(part: type[Any]) -> Any:
        return part(**{f.name: merged[f.name] for f in fields(part) if f.name in merged})

    algorithm, network, run = (build(part) for part in config_classes(algo))
    check_used(run.functions, algo, getattr(algorithm, "clip_vloss", False))
    return Config(env=env, algo=algo, algorithm=algorithm, network=network, run=run)


def check_used(functions: tuple[OwnFunction, ...], algo: str, clip_vloss: bool) -> None:
    """Raise UsageError for a function that the algorithm does not use."""
    used = ALGORITHMS[algo].config.replaceable.split()
    for one in functions:
        if one.name not in used:
            raise UsageError(f"{algo} does not use {one.name}: give one of {', '.join(used)}, or another algorithm")
        if one.name == "value_loss" and clip_vloss:
            raise UsageError("value_loss is not used with clip_vloss: drop one of them")


def unknown_setting(name: str, algo: str, known: typing.Iterable[str]) -> UsageError:
    name = name.replace("-", "_")
    section, dot, inner = name.rpartition(".")
    if dot and inner in known:
        return UsageError(f"unknown setting {name!r}: settings have no sections, so drop {section!r} and give {inner}")
    if name in ("quiet", "run_dir", "config"):
        return UsageError(f"{name!r} is not a setting: it is a flag of `tightrope train`, or an argument of learn()")
    if name in NAMES:
        wrong = f"{name} is a function of the algorithm, which your own may replace"
        return UsageError(f"{wrong}: give functions {name}=module:function, or in Python {name}=your_function")
    foreign = here_called(name, SETTINGS)
    if foreign:
        owner = next((o for o in ALGORITHMS if SETTINGS[name] in setting_types(o)), algo)
        elsewhere = f", a setting of {owner}" if SETTINGS[name] not in known and owner != algo else ""
        return UsageError(f"unknown setting {name!r}: {foreign}{elsewhere}")
    for other in ALGORITHMS:
        if other != algo and name in setting_types(other):
            return UsageError(f"setting {name!r} belongs to {other}, this run is {algo}: drop it or set algo {other}")
    close = near_matches(name, known)
    return UsageError(f"unknown setting {name!r} for {algo}.{close} `tightrope train --help` lists them")


def config_from(flat: dict[str, Any], source: Path) -> Config:
    """Rebuild the settings of a saved run. Presets are not applied; errors name the `source` file."""
    if not isinstance(flat.get("env"), str) or not isinstance(flat.get("algo"), str):
        raise UsageError(f"{source} does not name an env and an algo")
    if isinstance(flat.get("threads"), int):
        flat = {**flat, "threads": min(flat["threads"], cores())}  # the run may come from a larger machine
    settings = {name: value for name, value in flat.items() if name != HISTORY}
    try:
        config = configure(flat["env"], flat["algo"], settings, with_preset=False)
        return replace(config, changes=read_changes(flat.get(HISTORY)))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None
