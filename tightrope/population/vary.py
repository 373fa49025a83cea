"""Settings that differ between the agents of a population: which may vary, how they are written, drawn and explored, and who
takes over from whom.

learning_rate=1e-4..1e-2,log    numbers between two limits, evenly by their logarithm
ent_coef=0..0.02                numbers between two limits
gamma=0.97,0.99,0.995           one of several values
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random

from ..engine import stream_seed
from ..errors import UsageError
from ..functional import Schedule
from ..tools.sweep.space import Choices, Range, Space, read_choices, read_range
from ..training.config import Config, config_classes, setting_types, unknown_setting
from ..types import Settings

# the tensors that all agents share have their shape, or all agents train equally long
SAME_FOR_ALL = ("num_envs", "num_steps", "total_timesteps", "baseline")
MAX_RANGE = 300  # characters of one entry
SHARE = 5  # one agent in so many takes over, from one of as many of the best
STEP = 0.1  # part of a range by which exploring moves a setting


def read_vary(given: Mapping[str, object] | Sequence[str], config: Config, fixed: Settings) -> Space:
    """The ranges and choices of a population; a mistake is one line that names the setting."""
    entries = given.items() if isinstance(given, Mapping) else map(read_word, given)
    types, space = setting_types(config.algo), Space()
    for key, entry in entries:
        name = key.replace("-", "_")
        check_name(name, config.algo, types)
        if name in fixed:
            raise UsageError(f"vary {name} is also given as a setting: drop one of them")
        if name in space:
            raise UsageError(f"vary {name} is given twice: keep one of them")
        space[name] = read_entry(name, entry, types[name])
        for value in space[name].limits:
            if isinstance(value, Schedule) and value.function is not None:
                raise UsageError(f"vary {name} has a function: give schedules as text, such as 'linear(1e-3, 0)'")
            try:
                config.changed(**{name: value})
            except UsageError as error:
                raise UsageError(f"vary {name} {value} is invalid: {error}") from None
    return space


def rejoined(words: Sequence[str]) -> list[str]:
    """Words of a command line that was split at commas, as it was: only the first word of an entry has an equals sign."""
    found: list[str] = []
    for word in words:
        if "=" in word or not found:
            found.append(word)
        else:
            found[-1] += f",{word}"
    return found


def read_word(word: str) -> tuple[str, object]:
    name, equals, entry = word.partition("=")
    if not equals or not name or not entry:
        raise UsageError(
            f"vary {word!r} is not name=range: give it as in learning_rate=1e-4..1e-2,log or gamma=0.97,0.99"
        )
    return name, entry


def check_name(name: str, algo: str, types: Settings) -> None:
    """Raise UsageError for a setting that cannot differ between agents."""
    if name == "seed":
        raise UsageError(
            "vary seed is not needed: each agent has a seed of its own, and the first one has the setting seed"
        )
    if name not in types:
        raise UsageError(f"vary {name} is invalid: {unknown_setting(name, algo, types)}")
    algorithm, network, _ = config_classes(algo)
    if name in SAME_FOR_ALL or name in {field.name for field in fields(network)}:
        wrong = f"vary {name} is invalid: all agents share tensors of the same shapes, which this setting changes"
        wrong = f"vary {name} is invalid: all agents train equally long" if name == "total_timesteps" else wrong
        raise UsageError(f"{wrong}. Give it as a setting, or search it with `tightrope sweep`")
    if name not in {field.name for field in fields(algorithm)}:
        raise UsageError(f"vary {name} is invalid: only settings of the algorithm can vary. Give it as a setting")


def read_entry(name: str, entry: object, kind: object) -> Range | Choices:
    """A range from text or two limits, or choices from text or a list."""
    try:
        if isinstance(entry, (Range, Choices)):
            return entry
        if isinstance(entry, dict):  # as a file has it
            return read_range(name, entry, kind)
        if isinstance(entry, tuple) and len(entry) in (2, 3) and entry[2:] in ((), ("log",)):
            return read_range(name, {"low": entry[0], "high": entry[1], "log": len(entry) == 3}, kind)
        if isinstance(entry, str) and ".." in entry[:MAX_RANGE]:
            limits, *marks = re.sub(r"\s", "", entry).split(",")
            low, _, high = limits.partition("..")
            if marks not in ([], ["log"]) or not low or not high:
                raise UsageError(f"search {name} {entry!r} is not a range: give it as in 0..0.02, or 1e-4..1e-2,log")
            return read_range(name, {"low": low, "high": high, "log": bool(marks)}, kind)
        words = re.split(r",(?![^(]*\))", entry) if isinstance(entry, str) else entry
        if not isinstance(words, (list, tuple)):
            words = [words]
        values = [{"none": None, "true": True, "false": False}.get(x.strip(), x.strip()) if isinstance(x, str) else x
                  for x in words]  # fmt: skip
        return read_choices(name, values, kind)
    except UsageError as error:
        raise UsageError(str(error).replace("search", "vary", 1)) from None


# drawing --------------------------------------------------------------------------------------------------------------


def drawn(space: Space, size: int, seed: int) -> list[Settings]:
    """The settings of each agent. A range is cut into `size` equal parts, and each part has one agent; of several choices each
    has about equally many agents. Which agent gets which part is drawn for each setting by itself."""
    agents: list[Settings] = [{} for _ in range(size)]
    for name, dimension in space.items():
        random = Random(stream_seed(seed, f"vary {name}"))
        order = list(range(size))
        random.shuffle(order)
        for agent, place in zip(agents, order, strict=True):
            if isinstance(dimension, Choices):
                agent[name] = dimension.values[place % len(dimension.values)]
            else:
                agent[name] = value_at(dimension, (place + random.random()) / size)
    return agents


def value_at(dimension: Range, share: float) -> int | float:
    """The value at a share of a range, 0 its lower limit and 1 its upper one. Three digits are enough."""
    low, high = dimension.low, dimension.high
    if dimension.is_whole:
        return min(int(low + share * (high + 1 - low)), int(high))
    value = low * (high / low) ** share if dimension.log else low + share * (high - low)
    return min(max(float(f"{value:.3g}"), low), high)


def share_of(dimension: Range, value: float) -> float:
    """The inverse of `value_at`."""
    low, high = dimension.low, dimension.high
    if low == high:
        return 0.0
    return math.log(value / low) / math.log(high / low) if dimension.log else (value - low) / (high - low)


def explored(space: Space, settings: Settings, random: Random) -> Settings:
    """Settings near the given ones: of a range, a tenth of it higher or lower; of choices, the next one or the one before."""
    found: Settings = {}
    for name, dimension in space.items():
        up, value = random.random() < 0.5, settings[name]
        if isinstance(dimension, Choices):
            last = len(dimension.values) - 1
            found[name] = dimension.values[min(max(dimension.values.index(value) + (1 if up else -1), 0), last)]
        elif dimension.is_whole:
            step = max(1, round(STEP * (dimension.high - dimension.low)))
            found[name] = int(min(max(value + (step if up else -step), dimension.low), dimension.high))
        else:
            share = share_of(dimension, value) + (STEP if up else -STEP)
            found[name] = value_at(dimension, min(max(share, 0.0), 1.0))
    return found


# exploit and explore --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Takeover:
    """One agent takes over from another."""

    round: int  # after which
    agent: int
    donor: int
    steps: int  # of the agent
    before: Settings  # the varied settings of the agent
    after: Settings


def takeovers(
    scores: Sequence[float], steps: Sequence[int], settings: Sequence[Settings], space: Space, seed: int, round: int
) -> list[Takeover]:
    """Who takes over from whom after a round. Agents without a score have -inf. Equal scores stay as they are.

    This is population based training (Jaderberg et al. 2017, arXiv:1711.09846): the worst agents take over the parameters of
    some of the best and train on with settings near theirs. They keep their seeds, environments and random streams.
    """
    count = max(1, len(scores) // SHARE)
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    best, worst = ranked[:count], ranked[-count:]
    random = Random(stream_seed(seed, "exploit", round))
    found = []
    for agent in sorted(worst):
        donor = random.choice(best)
        after = explored(space, settings[donor], random)
        if scores[donor] > scores[agent]:
            found.append(Takeover(round, agent, donor, steps[agent], dict(settings[agent]), after))
    return found
