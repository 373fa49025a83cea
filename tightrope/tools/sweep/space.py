"""The search space of a sweep: a range or a list of choices per setting, around the preset or from a YAML file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from ...errors import UsageError, plural
from ...functional import Schedule
from ...training.config import Config, config_classes, plain, setting_types, unknown_setting
from ...training.settings import coerce, read_yaml
from ...types import Settings

MAX_CHOICES = 1000
MIN_PHASES = 20  # rollouts so long that a run has fewer phases are not searched
DIVISORS = {"num_minibatches": ("num_envs", "num_steps"), "num_batches": ("num_envs",)}  # what each has to divide
NOT_SEARCHED = ("total_timesteps", "network", "stop_when_solved")
GAMMAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
RANGES = {  # low, high, whether by the logarithm; a learning rate has a factor of ten either way, at most 0.1
    "update_epochs": (1, 16, True), "gae_lambda": (0.8, 1.0, False), "clip_coef": (0.1, 0.4, False),
    "ent_coef": (1e-6, 0.03, True), "vf_coef": (0.25, 1.0, False), "max_grad_norm": (0.2, 5.0, True),
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; whole numbers if both are."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def limits(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def nearest(self, value: Any) -> Any:
        return self.low if value is None else min(max(value, self.low), self.high)

    def suggest(self, trial: Any, name: str) -> Any:
        if self.is_whole:
            return trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step or 1)
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    def decode(self, name: str, stored: Any) -> Any:
        """The setting that a storage holds as `stored`; a UsageError if it is outside the space."""
        is_number = isinstance(stored, (int, float)) and not isinstance(stored, bool)
        if not is_number or not self.low <= stored <= self.high or (self.is_whole and stored != int(stored)):
            raise UsageError(f"{name} {stored!r} is not in the search space")
        return int(stored) if self.is_whole else stored

    def as_yaml(self) -> Any:
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]

    @property
    def limits(self) -> tuple[Any, ...]:
        return self.values

    @property
    def encoded(self) -> list[Any]:
        """The values as a storage holds them: it has no tuples."""
        texts = [" ".join(map(str, value)) if isinstance(value, tuple) else value for value in self.values]
        return [str(value) if isinstance(value, Schedule) else value for value in texts]

    def nearest(self, value: Any) -> Any:
        return self.encoded[self.values.index(value) if value in self.values else 0]

    def suggest(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.encoded)

    def decode(self, name: str, stored: Any) -> Any:
        """The setting that a storage holds as `stored`; a UsageError if it is outside the space."""
        if stored not in self.encoded:
            raise UsageError(f"{name} {stored!r} is not in the search space")
        return self.values[self.encoded.index(stored)]

    def as_yaml(self) -> Any:
        return [list(value) if isinstance(value, tuple) else plain(value) for value in self.values]


Space = dict[str, Range | Choices]


# the default space ------------------------------------------------------------------------------------------------------


def default_search_space(config: Config, fixed: Iterable[str], images: bool) -> Space:
    """Ranges around the preset or the defaults, without the settings that the user fixed."""
    algorithm, settings = config.algorithm, {f.name for f in fields(config.algorithm)}
    is_number = {name for name in settings if not isinstance(getattr(algorithm, name), Schedule)}
    space: Space = {name: dimension_of(name, algorithm) for name in algorithm.searched.split() if name in is_number}
    if not images and config.network.network is None:  # a network of the user's own has its own shape
        widths = [(32, 32), (64, 64), (128, 128), (256, 256)]
        space["hidden_sizes"] = choices_with(config.network.hidden_sizes, widths)
        space["activation"] = choices_with(config.network.activation, ["tanh", "relu"])
    return {name: dimension for name, dimension in space.items() if name not in set(fixed)}


def dimension_of(name: str, config: Any) -> Range | Choices:
    """Where to search for a setting that is searched by default."""
    steps, envs, usual = config.num_steps, config.num_envs, getattr(config, name)
    if name == "num_steps":
        longest = config.total_timesteps // (MIN_PHASES * envs)
        return choices_with(steps, [n for n in (steps // 4, steps // 2, 2 * steps, 4 * steps) if 4 <= n <= longest])
    if name == "num_envs":
        counts = [n for n in (envs // 2, envs, 2 * envs) if n >= 2 and config.total_timesteps >= n * steps]
        return choices_with(envs, counts)
    if name == "num_minibatches":
        return choices_with(usual, [n for n in (1, 2, 4, 8, 16, 32) if 32 * n <= config.batch_size])
    if name == "gamma":
        return choices_with(usual, GAMMAS)
    if name == "max_grad_norm" and type(config)().max_grad_norm is None:  # off by default
        return choices_with(usual, [0.5, 1.0, 5.0])
    if isinstance(usual, bool):
        return Choices((False, True))
    low, high, log = RANGES.get(name) or (float(f"{usual / 10:.3g}"), float(f"{min(10 * usual, 0.1):.3g}"), True)
    return Range(min(low, usual or low), max(high, usual or low), log)  # widened to include the usual value


def choices_with(usual: Any, values: Iterable[Any]) -> Choices:
    """The choices and the usual value, in order; None comes last."""
    order = sorted({*values, usual}, key=lambda v: (v is None, v if not isinstance(v, str) else 0, str(v)))
    return Choices(tuple(order))


# a space from a file ----------------------------------------------------------------------------------------------------


def read_search_space(path: Path, config: Config, fixed: Iterable[str]) -> Space:
    """The search space in a YAML file; a mistake in it is one line that names the setting."""
    try:
        content = read_yaml(path)
    except UsageError as error:
        raise UsageError(str(error).replace("config", "search", 1)) from None
    if not content:
        raise UsageError(f"search {path} is empty: give lines such as 'gamma: [0.95, 0.99]'")
    algorithm, network, _ = config_classes(config.algo)
    searchable = {field.name for part in (algorithm, network) for field in fields(part)} - {*NOT_SEARCHED}
    types = setting_types(config.algo)
    space: Space = {}
    for key, entry in content.items():
        name = key.replace("-", "_")
        if name not in types:
            raise unknown_setting(name, config.algo, types)
        if name not in searchable:
            raise UsageError(f"search {name} is invalid: this setting cannot be searched. Give it as a flag")
        if name in fixed:
            raise UsageError(f"search {name} is also given as a flag: drop one of them")
        space[name] = (read_choices if isinstance(entry, list) else read_range)(name, entry, types[name])
    check_space(space, config)
    return space


def read_choices(name: str, entry: Any, annotation: Any) -> Choices:
    if not 1 <= len(entry) <= MAX_CHOICES:
        raise UsageError(f"search {name} has {plural(len(entry), 'choice')}: give 1 to {MAX_CHOICES}")
    is_tuple = getattr(annotation, "__origin__", None) is tuple
    words = [one.split() if isinstance(one, str) and is_tuple else one for one in entry]
    values = tuple(read_value(name, one, annotation) for one in words)
    if len({repr(value) for value in values}) < len(values):
        raise UsageError(f"search {name} {entry} has a choice twice: give each once")
    return Choices(values)


def read_range(name: str, entry: Any, annotation: Any) -> Range:
    number = next((kind for kind in (annotation, *get_args(annotation)) if kind in (int, float)), None)
    if number is None:
        raise UsageError(f"search {name} is not a number and has no range: give a list of choices")
    if not isinstance(entry, dict) or not {"low", "high"} <= entry.keys() <= {"low", "high", "log", "step"}:
        forms = "a list of choices, or {low: ..., high: ...} with log: true or a step where wanted"
        raise UsageError(f"search {name} {entry!r} is neither choices nor a range: give {forms}")
    low, high = (read_value(f"{name} {key}", entry[key], number) for key in ("low", "high"))
    log = read_value(f"{name} log", entry.get("log", False), bool)
    step = None if entry.get("step") is None else read_value(f"{name} step", entry["step"], number)
    if low > high:
        raise UsageError(f"search {name} goes from low {low} to high {high}: swap them")
    if log and low <= 0:
        raise UsageError(f"search {name} low {low} has no logarithm: give one above 0, or drop log")
    if step is not None and (log or step <= 0):
        raise UsageError(f"search {name} step {step} is invalid{' with log' if log else ': give one above 0'}: drop it")
    return Range(low, high, log, step)


def read_value(name: str, value: Any, annotation: Any) -> Any:
    try:
        return coerce(name, value, annotation)
    except UsageError as error:
        raise UsageError(f"search {error}") from None


def check_space(space: Space, config: Config) -> None:
    """Check that every limit and every choice is valid while all other settings are as usual."""
    for name, dimension in space.items():
        for value in dimension.limits:
            try:
                config.changed(**fit_divisors({name: value}, config.to_flat_dict()))
            except UsageError as error:
                raise UsageError(f"search {name} {value} is invalid: {error}") from None


# points of a space ------------------------------------------------------------------------------------------------------


def decode(params: Settings, space: Space) -> Settings:
    """A trial's stored parameters as settings, as far as it has them."""
    return {name: dimension.decode(name, params[name]) for name, dimension in space.items() if name in params}


def nearest_point(space: Space, settings: Settings) -> Settings:
    """The stored parameters of the point nearest to some settings."""
    tuples = {name: tuple(v) if isinstance(v := settings[name], list) else v for name in space}
    return {name: dimension.nearest(tuples[name]) for name, dimension in space.items()}


def fit_divisors(settings: Settings, defaults: Settings) -> Settings:
    """The settings, each count of parts lowered until it divides its whole, so that no trial is lost to that."""
    together = defaults | settings
    for count, factors in DIVISORS.items():
        if count in settings:
            size = math.prod(together[factor] for factor in factors)
            largest = min(settings[count], size)
            settings = settings | {count: next(n for n in range(largest, 0, -1) if size % n == 0)}
    return settings
