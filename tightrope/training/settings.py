"""Read settings: YAML files (safely, with the line of each mistake), values given as text, and device names."""

from __future__ import annotations

import contextlib
import math
import os
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
import yaml

from ..engine import world
from ..envs.adapters.host import HostEnv
from ..errors import UsageError, plural
from ..functional import Schedule
from ..models.networks import sees_images
from ..types import Env, Settings
from .own_code import OwnFunction, Wrapper, read_functions, read_wrapper
from .schedules import read_schedule

MAX_SETTINGS_BYTES = 1 << 20
MAPPINGS = ("env_kwargs",)  # settings whose value is a mapping
KIND_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


class PlainLoader(yaml.SafeLoader):
    """A safe loader that refuses aliases: a few nested ones expand to more than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(problem="it has an alias: write the value out")
        return super().compose_node(parent, index)


def read_settings(path: Path, text: bytes | None = None) -> Settings:
    """Read 'setting: value' lines from a YAML file; sections are refused. `text` replaces the content of the file."""
    content = read_yaml(path, text)
    for name, value in content.items():
        if isinstance(value, dict) and name.replace("-", "_") not in MAPPINGS:
            raise is_section(f"config {path}: {name}", value)
    return content


def is_section(what: str, value: Settings) -> UsageError:
    """The error for settings that are grouped in a section."""
    inner = ", ".join(map(str, value)) or "its settings"
    return UsageError(f"{what} is a section, and settings have none here: give {inner} without it, beside the others")


def read_yaml(path: Path, text: bytes | None = None) -> Settings:
    """Read a YAML file that holds a mapping with any values."""
    try:
        if text is None:  # read a limited size: the file may be a pipe
            with path.open("rb") as file:
                text = file.read(MAX_SETTINGS_BYTES + 1)
        if len(text) > MAX_SETTINGS_BYTES:
            raise UsageError(f"config {path} has more than {MAX_SETTINGS_BYTES:,} bytes: settings are a few lines")
        loader = PlainLoader(text)
        node = loader.get_single_node()
        for twice in repeated(node):
            raise UsageError(f"config {path} gives {twice}: keep one of them")
        content = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise UsageError(f"config {path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UsageError(f"config {path} is nested too deeply: settings are lines of 'setting: value'") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date or number
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        where = f" (line {mark.line + 1})" if mark else ""
        raise UsageError(f"config {path} is not valid YAML{where}: {problem}") from None
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise UsageError(f"config {path} is not a list of 'setting: value' lines")
    return content


def repeated(node: yaml.Node | None, top: bool = True) -> Iterator[str]:
    """Keys that a mapping has twice, with their lines. For settings, num-envs and num_envs are the same key."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from repeated(item, False)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value).replace("-", "_") if top else str(key.value)
        if name in seen:
            first, lines = seen[name], [mark.start_mark.line + 1 for mark in (seen[name], key)]
            if first.value == key.value:
                yield f"{key.value} twice, on lines {lines[0]} and {lines[1]}"
            else:
                yield f"{first.value} on line {lines[0]} and {key.value} on line {lines[1]}, which are the same setting"
        seen[name] = key
        yield from repeated(value, False)


# values ---------------------------------------------------------------------------------------------------------------


def coerce(name: str, value: Any, annotation: Any) -> Any:
    """Convert `value` to the type of a setting, or raise UsageError. Numbers may be text ('1e-3' in YAML is text), and several
    values one text with commas."""
    origin, options = get_origin(annotation), get_args(annotation)
    if Schedule in options and (schedule := read_schedule(name, value)) is not None:
        return schedule
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        return coerce(name, value, next(o for o in options if o is not type(None)))
    if origin is Literal:
        if value in options:
            return value
        raise UsageError(f"{name} {value!r} is not a choice: give one of {', '.join(map(str, options))}")
    if origin is dict:
        return mapping(name, value)
    if origin is tuple and options[0] is Wrapper:
        return tuple(map(read_wrapper, several(value)))
    if origin is tuple and options[0] is OwnFunction:
        return read_functions(value if isinstance(value, dict) else several(value))
    if origin is tuple:
        return tuple(coerce(name, item, options[0]) for item in several(value))
    return coerce_one(name, value, annotation)


def coerce_one(name: str, value: Any, annotation: type[bool | int | float | str]) -> object:
    """Convert `value` to a bool, text or number, or raise UsageError."""
    if name == "device" and value is not None:
        return device_name(value)
    if annotation is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool) or annotation in (bool, str):
        if annotation in (bool, str) and isinstance(value, annotation):
            return value
    elif callable(value):
        raise UsageError(f"{name} is a function: give a number, it stays the same in a run")
    else:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if annotation is float and math.isfinite(real := float(value)):
                return real
            if annotation is int and abs(number := whole(value)) < 2**63:
                return number
            if annotation is int:
                digits = str(number) if abs(number) < 10**40 else f"of {math.log10(abs(number)):.0f} digits"
                raise UsageError(f"{name} {digits} is too large: give a whole number of at most 2^63 - 1")
    raise UsageError(f"{name} {'None' if value is None else repr(value)} is not {KIND_NAMES[annotation]}: give one")


def whole(value: Any) -> int:
    """Convert a number, or text such as '1e6', to a whole number; ValueError if it is not one."""
    if isinstance(value, int) or (isinstance(value, str) and value.lstrip("+-").isdigit()):
        return int(value)
    if (number := float(value)) != int(number):
        raise ValueError
    return int(number)


def several(value: object) -> list[object]:
    """The values of a setting that takes several, from a list, a single value, or text such as '64,64' or '[64, 64]'."""
    found: list[object] = []
    for item in value if isinstance(value, (list, tuple)) else [value]:
        found += re.findall(r"[^\s,()\[\]]+", item) if isinstance(item, str) and "," in item else [item]
    return found


def mapping(name: str, value: object) -> Settings:
    """Return a mapping, parsed from words such as gravity=-5 if necessary; each value is read as YAML."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain_data(f"{name} {key}", entry) for key, entry in value.items()}
    words = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [None]
    pairs = [word.partition("=") if isinstance(word, str) else ("", "", "") for word in words]
    if not all(key.isidentifier() and equals for key, equals, _ in pairs):
        raise UsageError(f"{name} {value!r} is not a list of name=value: give it as in {name} gravity=-5")
    found: Settings = {}
    for key, _, text in pairs:
        if key in found or re.search(r",\w+=", text):
            wrong = f"{key} twice" if key in found else f"{key}={text}"
            raise UsageError(
                f"{name} has {wrong}: give each name once, with spaces between, as in gravity=-5 wind=true"
            )
        try:
            read = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UsageError(f"{name} {value!r} has a value that cannot be read: put it in quotes") from None
        found[key] = read if isinstance(read, (bool, int, float, str, list, dict, type(None))) else text
    return found


def plain_data(name: str, value: object) -> object:
    """A value that can be saved: numbers, texts, None, and lists and dicts of these; UsageError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [plain_data(name, entry) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain_data(name, entry) for key, entry in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(
        f"{name} is a {type(value).__name__}, which a run cannot save: give numbers, texts, lists or dicts"
    )


# devices --------------------------------------------------------------------------------------------------------------


def device_name(value: object) -> str:
    """The value of the device setting for a name or a torch.device."""
    text = str(value).strip().lower() if isinstance(value, (str, torch.device)) else ""
    if match := re.fullmatch(r"(auto|cpu|mps)(?::0)?|cuda(?::(\d{1,4}))?", text):
        return match[1] or ("cuda" if match[2] is None else f"cuda:{int(match[2])}")
    hint = ": here it is called cuda, or cuda:0" if re.fullmatch(r"(gpu|nvidia|cuda)\W?\d*", text) else ""
    hint = f": here it is called cuda:{value}" if type(value) is int and value >= 0 else hint
    choices = ": give one of auto, cpu, cuda, mps, or one GPU of several as cuda:1"
    raise UsageError(f"device {value!r} is not a choice{hint or choices}")


def name_of_device(device: torch.device) -> str:
    """The value of the device setting for a torch device."""
    return device.type if device.type != "cuda" or device.index is None else str(device)


def available(name: str) -> bool:
    """Whether torch can use a device of this name."""
    kind, _, index = name.partition(":")
    if kind == "cuda":
        return torch.cuda.is_available() and (not index or int(index) < torch.cuda.device_count())
    return kind == "cpu" or torch.backends.mps.is_available()


def resolve_device(name: str) -> torch.device:
    """The torch device for a value of the device setting. Of several ranks on CUDA, each gets its own."""
    has_cuda, ranks = torch.cuda.is_available(), world().local_size
    count = torch.cuda.device_count() if has_cuda else 0
    if name in ("auto", "cuda") and has_cuda and ranks > max(count, 1):
        wrong = f"{ranks} ranks on this machine are more than its {plural(count, 'CUDA device')}"
        raise UsageError(f"{wrong}: start torchrun with --nproc-per-node {count}, or train with device cpu")
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda:") and world().is_distributed:
        raise UsageError(f"device {name} is a single device, but each of several ranks needs its own: give cuda")
    if has_cuda and name.startswith("cuda:") and not available(name):
        raise UsageError(f"device {name} is not there: this machine has {count}, so give cuda:0 to cuda:{count - 1}")
    if not available(name):
        raise UsageError(f"device {name!r} is not there: torch {torch.__version__} finds none. Try device auto")
    return torch.device(name)


def suits_cpu(env: Env) -> bool:
    """Whether the CPU is faster: a small network for an environment on the CPU costs less than transfers to a device."""
    return isinstance(env, HostEnv) and not sees_images(env.observation)


def memory_of(device: torch.device) -> float:
    """The total memory of a device in bytes; infinite where it is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return float("inf")
