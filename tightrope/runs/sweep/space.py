"""What a sweep searches: for each setting a range or a list of choices, by default around the preset or from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ...errors import UsageError, plural
from ...types import Settings
from ..config import Config, coerce, parts_of, settings_of, unknown_setting
from ..settings_file import read_yaml

MOST_CHOICES = 1000
FEW_PHASES = 20  # a rollout so long that fewer are left is not worth a trial
PARTS_OF = {"num_minibatches": ("num_envs", "num_steps"), "num_batches": ("num_envs",)}  # what each has to divide
NOT_SEARCHED = ("total_timesteps", "network", "stop_when_solved")  # more of these is not better, only more


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def ends(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def nearest(self, value: Any) -> Any:
        return self.low if value is None else min(max(value, self.low), self.high)

    def data(self) -> Any:
        """As it stands in a file."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    @property
    def words(self) -> list[Any]:
        """The values as a study keeps them, which knows no lists."""
        return [" ".join(map(str, value)) if isinstance(value, tuple) else value for value in self.values]

    def nearest(self, value: Any) -> Any:
        known = value in self.values
        return self.words[self.values.index(value)] if known else self.words[0]

    def data(self) -> Any:
        return [list(value) if isinstance(value, tuple) else value for value in self.values]


Space = dict[str, Range | Choices]


# ours -----------------------------------------------------------------------------------------------------------------


def default_space(config: Config, fixed: Iterable[str], images: bool) -> Space:
    """Ranges around what the preset, or the default, says; without what was fixed."""
    space = DEFAULTS[config.algo](config.algorithm) | ({} if images else network_space(config))
    return {name: where for name, where in space.items() if name not in set(fixed)}


def ppo_space(algorithm: Any) -> Space:
    batch = algorithm.batch_size
    return {
        "learning_rate": rate(algorithm.learning_rate),
        "num_steps": lengths(algorithm),
        "num_minibatches": Choices(with_value([m for m in (1, 2, 4, 8, 16, 32) if 32 * m <= batch], algorithm.num_minibatches)),
        "update_epochs": around(algorithm.update_epochs, 1, 16, log=True),
        "gamma": Choices(with_value([0.9, 0.95, 0.98, 0.99, 0.995, 0.999], algorithm.gamma)),
        "gae_lambda": around(algorithm.gae_lambda, 0.8, 1.0),
        "clip_coef": around(algorithm.clip_coef, 0.1, 0.4),
        "ent_coef": around(algorithm.ent_coef or 1e-6, 1e-6, 0.03, log=True),
        "vf_coef": around(algorithm.vf_coef or 0.5, 0.25, 1.0),
        "max_grad_norm": around(algorithm.max_grad_norm or 0.5, 0.2, 5.0, log=True),
    }  # fmt: skip


def vpg_space(algorithm: Any) -> Space:
    envs = algorithm.num_envs
    sizes = [n for n in (envs // 2, envs, 2 * envs) if n >= 2 and algorithm.total_timesteps >= n * algorithm.num_steps]
    return {
        "learning_rate": rate(algorithm.learning_rate),
        "num_envs": Choices(with_value(sizes, envs)),
        "gamma": Choices(with_value([0.9, 0.95, 0.98, 0.99, 0.995, 0.999], algorithm.gamma)),
        "normalize_returns": Choices((False, True)),
        "ent_coef": around(algorithm.ent_coef or 1e-6, 1e-6, 0.03, log=True),
        "max_grad_norm": Choices(with_value([0.5, 1.0, 5.0], algorithm.max_grad_norm)),
    }


DEFAULTS: dict[str, Callable[[Any], Space]] = {"ppo": ppo_space, "vpg": vpg_space}


def network_space(config: Config) -> Space:
    if config.network.network is not None:  # one of the user's own has its own shape
        return {}
    widths = [(32, 32), (64, 64), (128, 128), (256, 256)]
    return {
        "hidden_sizes": Choices(with_value(widths, config.network.hidden_sizes)),
        "activation": Choices(with_value(["tanh", "relu"], config.network.activation)),
    }


def rate(learning_rate: float) -> Range:
    """A factor of ten either way, but no rates that never learn anything."""
    return around(learning_rate, three_digits(learning_rate / 10), three_digits(min(10 * learning_rate, 0.1)), log=True)


def lengths(algorithm: Any) -> Choices:
    """Rollouts from a quarter to four times as long, as long as there are some phases of them."""
    most = algorithm.total_timesteps // (FEW_PHASES * algorithm.num_envs)
    usual = algorithm.num_steps
    return Choices(with_value([n for n in (usual // 4, usual // 2, 2 * usual, 4 * usual) if 4 <= n <= most], usual))


def around(value: Any, low: Any, high: Any, log: bool = False) -> Range:
    """The range, made wider where the usual value lies outside of it."""
    return Range(min(low, value), max(high, value), log)


def with_value(values: Iterable[Any], usual: Any) -> tuple[Any, ...]:
    """In order, with the usual value among them; None comes last."""
    several = {*values, usual}
    return tuple(sorted(several, key=lambda v: (v is None, v if not isinstance(v, str) else 0, str(v))))


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


# a user's ---------------------------------------------------------------------------------------------------------------


def read_space(path: Path, config: Config, fixed: Iterable[str]) -> Space:
    """The search space in a YAML file; every mistake in it is one line that names the setting."""
    try:
        content = read_yaml(path)
    except UsageError as error:
        raise UsageError(str(error).replace("config", "search", 1)) from None
    if not content:
        raise UsageError(f"search {path} is empty: give lines such as 'gamma: [0.95, 0.99]'")
    algorithm, network, _ = parts_of(config.algo)
    searched = {field.name for part in (algorithm, network) for field in fields(part)} - {*NOT_SEARCHED}
    types = settings_of(config.algo)
    space: Space = {}
    for key, entry in content.items():
        name = key.replace("-", "_")
        if name not in types:
            raise unknown_setting(name, config.algo, types)
        if name not in searched:
            raise UsageError(f"search {name} will not do: it is no setting to search. Give it as a flag")
        if name in fixed:
            raise UsageError(f"search {name} is also given as a flag: drop one of them")
        space[name] = choices(name, entry, types[name]) if isinstance(entry, list) else span(name, entry, types[name])
    return space


def choices(name: str, entry: list[Any], annotation: Any) -> Choices:
    if not 1 <= len(entry) <= MOST_CHOICES:
        raise UsageError(f"search {name} has {plural(len(entry), 'choice')}: give 1 to {MOST_CHOICES}")
    given = [one.split() if isinstance(one, str) and tuple in kinds(annotation) else one for one in entry]
    values = tuple(named(name, one, annotation) for one in given)
    if len({repr(value) for value in values}) < len(values):
        raise UsageError(f"search {name} {entry} has a choice twice: give each once")
    return Choices(values)


def span(name: str, entry: Any, annotation: Any) -> Range:
    number = next((kind for kind in kinds(annotation) if kind in (int, float)), None)
    if not isinstance(entry, dict):
        raise UsageError(
            f"search {name} {entry!r} is neither a list of choices nor a range: give {{low: ..., high: ...}}"
        )
    if number is None:
        raise UsageError(f"search {name} has no range, since it is no number: give a list of choices")
    unknown = [key for key in entry if key not in ("low", "high", "log", "step")]
    if unknown:
        raise UsageError(
            f"search {name} has an unknown {unknown[0]!r}: a range is low, high and, if wanted, log or step"
        )
    if missing := [key for key in ("low", "high") if key not in entry]:
        raise UsageError(f"search {name} has no {missing[0]}: give it, as in {{low: 0.1, high: 0.4}}")
    low, high = (named(f"{name} {end}", entry[end], number) for end in ("low", "high"))
    log = named(f"{name} log", entry.get("log", False), bool)
    step = None if entry.get("step") is None else named(f"{name} step", entry["step"], number)
    if low > high:
        raise UsageError(f"search {name} goes from low {low} to high {high}: give them the other way round")
    if log and low <= 0:
        raise UsageError(f"search {name} low {low} has no logarithm: give one above 0, or drop log")
    if step is not None and (log or step <= 0):
        raise UsageError(
            f"search {name} step {step} will not do{' with log' if log else ': give one above 0'}: drop it"
        )
    return Range(low, high, log, step)


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The types that a setting may have: (float, None) of `float | None`."""
    origin = getattr(annotation, "__origin__", None)
    return (tuple,) if origin is tuple else (annotation, *get_args(annotation))


def named(name: str, value: Any, annotation: Any) -> Any:
    try:
        return coerce(name, value, annotation)
    except UsageError as error:
        raise UsageError(f"search {error}") from None


# both -------------------------------------------------------------------------------------------------------------------


def suggested(trial: Any, space: Space, types: dict[str, Any]) -> Settings:
    """What a trial is to try."""
    return {name: suggestion(trial, name, where, types[name]) for name, where in space.items()}


def suggestion(trial: Any, name: str, where: Range | Choices, annotation: Any) -> Any:
    if isinstance(where, Choices):
        kept = trial.suggest_categorical(name, where.words)
    elif int in kinds(annotation):
        step = 1 if where.step is None else int(where.step)
        kept = trial.suggest_int(name, int(where.low), int(where.high), log=where.log, step=step)
    else:
        kept = trial.suggest_float(name, where.low, where.high, log=where.log, step=where.step)
    return kept_value(name, kept, where, annotation)


def kept_value(name: str, kept: Any, where: Range | Choices, annotation: Any) -> Any:
    """The setting behind what a study keeps; a UsageError if it lies outside of what is searched."""
    if isinstance(where, Choices):
        if kept in where.words:
            return where.values[where.words.index(kept)]
    elif isinstance(kept, (int, float)) and not isinstance(kept, bool) and where.low <= kept <= where.high:
        if int not in kinds(annotation):
            return kept
        if kept == int(kept):
            return int(kept)
    raise UsageError(f"{name} {kept!r} is not in the search space")


def kept_settings(params: Settings, space: Space, types: dict[str, Any]) -> Settings:
    """The settings of a trial as a study keeps them, as far as it has them."""
    return {name: kept_value(name, params[name], where, types[name]) for name, where in space.items() if name in params}


def usual_point(space: Space, settings: Settings) -> Settings:
    """The point of the space that is nearest to given settings: what the first trial tries."""
    as_kept = {name: tuple(v) if isinstance(v := settings[name], list) else v for name in space}
    return {name: where.nearest(as_kept[name]) for name, where in space.items()}


def fitted(settings: Settings, whole: Settings) -> Settings:
    """With every count of parts lowered until it divides what it is to divide: a search does not stumble over it."""
    together = whole | settings
    for count, factors in PARTS_OF.items():
        if count in settings:
            size = math.prod(together[factor] for factor in factors)
            parts = min(settings[count], size)
            settings = settings | {count: next(d for d in range(parts, 0, -1) if size % d == 0)}
    return settings


def check_space(space: Space, config: Config) -> None:
    """That every end of every range and every choice is a setting that a run can have, all others being as usual."""
    for name, where in space.items():
        for value in where.ends:
            try:
                config.changed(**fitted({name: value}, config.flat()))
            except UsageError as error:
                raise UsageError(f"search {name} {value} will not do: {error}") from None
