"""One configuration for one run: what the algorithm, the network and the run itself are set to.

To a user settings are flat: one namespace in keywords, flags and YAML. Later layers win: defaults, preset, file, flags.
"""

from __future__ import annotations

import typing
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ..algorithms import ALGORITHMS, OnPolicyConfig
from ..engine import Accelerate, Precision, cores
from ..envs.registry import BackendName, VectorizationMode
from ..errors import UsageError, checked_seed, near_matches
from ..logging.trackers import TrackerName, TrackerTags
from ..models import NetworkConfig
from ..types import Settings
from .names import SETTINGS, here_called
from .presets import Traits, kind_settings, preset
from .settings import MAPPINGS, coerce, is_section

Defaults = Literal["auto", "plain", "discrete", "states", "continuous", "images"]
MOST_EPISODES = 1_000_000  # of one evaluation: each is a row of its own where environments are tensors


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run, whatever the algorithm."""

    seed: int = 1
    """Every random stream of the run follows from it."""
    defaults: Defaults = "auto"
    """Settings to start from: auto takes the env's preset or, without one, those of its kind; plain takes the algorithm's."""
    device: str = "auto"
    """Where everything lives: auto, cpu, cuda, cuda:1 for one of several, or mps; auto takes CUDA if there is any."""
    accelerate: Accelerate = "auto"
    """How phases are executed: as written (eager), compiled, as CUDA graphs, or both (max); auto takes graphs on CUDA."""
    precision: Precision = "fp32"
    """Arithmetic of networks in training: tf32 rounds inside matrix products on CUDA, bf16 runs networks in bfloat16."""
    threads: int | None = None
    """Torch threads on the CPU; None chooses for the size of network and minibatch."""
    train_env: str | None = None
    """Train on this environment (a shaped one, say) while the score is taken on ENV."""
    max_episode_steps: int | None = None
    """Truncate episodes after this many steps instead of the environment's own limit."""
    backend: BackendName = "auto"
    """Engine that runs the environment; auto prefers tensors on the device, then the fastest one installed."""
    vectorization_mode: VectorizationMode = "sync"
    """How Gymnasium runs several: in turn, each in a process, or by an entry point of the environment's own."""
    env_kwargs: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    """Arguments for the environment's constructor, as name=value (or a mapping in Python and YAML)."""
    eval_every: int = 0
    """Environment steps between greedy evaluations during training; 0 for none. The best policy is kept."""
    eval_episodes: int = 100
    """Episodes of each evaluation, during training and after it; 0 for none after it."""
    eval_envs: int = 16
    """Environments that play them at once, where they are engines on the host; tensor environments all do."""
    eval_seconds: float | None = 300.0
    """Most seconds of one evaluation: the score is then of the episodes finished so far; None for no limit."""
    stop_at_return: float | None = None
    """Stop training once an evaluation of eval_every reaches this mean return; None for never."""
    save_seconds: float = 30.0
    """Seconds between checkpoints of a run under way, which also ends in one; 0 for one after every phase."""
    save_every: int = 0
    """Environment steps between further checkpoints, at the end of the phase in which they are reached; 0 for none."""
    rank_timeout: float = 1800.0
    """Seconds that ranks wait for one that makes no progress, not even a step, before the run ends; 0 for no limit."""
    keep_checkpoints: int = 3
    """Newest checkpoints that are kept, besides the best."""
    video_every: int | None = None
    """Phases between videos of the first 16 training environments; None for a few over the run, 0 for none."""
    log: tuple[TrackerName, ...] = ()
    """Trackers that are told everything, besides metrics.jsonl; WANDB_MODE, MLFLOW_TRACKING_URI and the like hold."""
    project: str | None = None
    """Project of W&B, experiment of MLflow; tightrope if not given."""
    entity: str | None = None
    """User or team of W&B; your own if not given."""
    run_name: str | None = None
    """What trackers call the run; like its directory if not given."""
    watch: bool = False
    """Histograms of parameters and gradients for the trackers, every tenth phase or a hundred times in a run."""
    tags: TrackerTags = "tightrope"
    """Names of scalars in trackers: as in metrics.jsonl, or Stable-Baselines3's."""

    def __post_init__(self) -> None:
        least = {"eval_every": 0, "eval_episodes": 0, "eval_envs": 1, "max_episode_steps": 1, "threads": 1}
        least |= {"save_seconds": 0, "save_every": 0, "rank_timeout": 0, "keep_checkpoints": 1, "video_every": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(f"{name} {value} is too small: give at least {minimum}")
        if self.threads is not None and self.threads > max(cores(), 64):
            raise UsageError(f"threads {self.threads} is more than this machine has: give at most {cores()}, or None")
        if self.eval_episodes > MOST_EPISODES:
            raise UsageError(f"eval_episodes {self.eval_episodes} is too large: give at most {MOST_EPISODES}")
        if self.eval_every and not self.eval_episodes:
            raise UsageError(f"eval_episodes 0 leaves eval_every {self.eval_every} nothing to play: give at least 1")
        if self.eval_seconds is not None and not self.eval_seconds > 0:
            raise UsageError(f"eval_seconds {self.eval_seconds:g} is not positive: give seconds, or none for no limit")
        if self.stop_at_return is not None and not self.eval_every:
            raise UsageError(f"stop_at_return {self.stop_at_return:g} needs evaluations: give eval_every, as in 10000")
        checked_seed(self.seed)
        if self.watch and not self.log:
            raise UsageError("watch means nothing without a tracker: give one, as in log tensorboard, or drop it")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that can be set about a run."""

    env: str
    algo: str
    algorithm: OnPolicyConfig
    network: NetworkConfig
    run: RunConfig

    def flat(self) -> Settings:
        """The settings as one mapping, as they are written to config.yaml."""
        parts: tuple[Any, ...] = (self.algorithm, self.network, self.run)
        settings = [asdict(part) for part in parts]
        merged = {"env": self.env, "algo": self.algo, **{k: v for part in settings for k, v in part.items()}}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in merged.items()}

    def changed(self, **settings: Any) -> Config:
        """The same run with some settings changed."""
        for name in ("env", "algo"):
            if settings.pop(name, getattr(self, name)) != getattr(self, name):
                raise UsageError(f"{name} cannot be changed: this run is {self.algo} on {self.env}. Train a new one")
        return configure(self.env, self.algo, self.flat(), settings, with_preset=False)


FIXED = ("num_envs", "num_steps", "total_timesteps", "baseline")  # settings of algorithms that the state was made for
CHANGEABLE = (
    "eval_every", "eval_episodes", "eval_envs", "eval_seconds", "stop_at_return", "save_seconds", "save_every",
    "keep_checkpoints",
)  # fmt: skip


def check_changeable(config: Config, settings: Settings) -> None:
    """Refuse settings that an agent that exists cannot change."""
    known = {*(f.name for f in fields(config_classes(config.algo)[0])), *CHANGEABLE} - {*FIXED}
    fixed = next((name for name in settings if name in setting_types(config.algo) and name not in known), None)
    if fixed is not None:
        raise UsageError(f"{fixed} cannot be changed: the agent was made with it. Make a new agent")


def config_classes(algo: str) -> tuple[type[OnPolicyConfig], type[NetworkConfig], type[RunConfig]]:
    """The three groups that make up a run's settings."""
    if algo not in ALGORITHMS:
        raise UsageError(f"unknown algo {algo!r}.{near_matches(algo, ALGORITHMS)} Give one of: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algo].config, NetworkConfig, RunConfig


def setting_types(algo: str) -> dict[str, Any]:
    """Every setting of a run and its type."""
    hints = {part: typing.get_type_hints(part) for part in config_classes(algo)}
    return {f.name: known[f.name] for part, known in hints.items() for f in fields(part)}


def merged_layers(algo: str, *layers: Settings) -> Settings:
    """Layers of settings as one, each value of its setting's type; the last layer wins."""
    annotations = setting_types(algo)
    merged: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            name = key.replace("-", "_")
            if name in ("env", "algo"):
                continue
            if name not in annotations and (not isinstance(value, dict) or name in SETTINGS):
                raise unknown_setting(name, algo, annotations)
            if isinstance(value, dict) and name not in MAPPINGS:
                raise is_section(name, value)
            merged[name] = coerce(name, value, annotations[name])
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
        merged |= preset(preset_env or env, algo, given)
    elif with_preset and kind != "plain":
        merged |= kind_settings(kind, algo, given, traits)
    merged |= given

    def build(part: type[Any]) -> Any:
        return part(**{f.name: merged[f.name] for f in fields(part) if f.name in merged})

    algorithm, network, run = (build(part) for part in config_classes(algo))
    return Config(env=env, algo=algo, algorithm=algorithm, network=network, run=run)


def unknown_setting(name: str, algo: str, known: typing.Iterable[str]) -> UsageError:
    name = name.replace("-", "_")
    section, dot, inner = name.rpartition(".")
    if dot and inner in known:
        return UsageError(f"unknown setting {name!r}: settings have no sections, so drop {section!r} and give {inner}")
    if name in ("quiet", "run_dir", "config"):
        return UsageError(f"{name!r} is not a setting: it is a flag of `tightrope train`, or an argument of learn()")
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
