"""YAML files of settings: read without running anything, each key once, mistakes named by their line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from ..errors import UsageError
from ..types import Settings

MOST_BYTES = 1 << 20
MAPPINGS = ("env_kwargs",)  # settings whose values are mappings themselves


class PlainLoader(yaml.SafeLoader):
    """Without aliases: a few lines of them make what no memory can hold."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(problem="it has an alias: write the value out")
        return super().compose_node(parent, index)


def read_settings(path: Path, text: bytes | None = None) -> Settings:
    """The settings in a YAML file, whose text may be given: 'setting: value' lines without sections."""
    content = read_yaml(path, text)
    for name, value in content.items():
        if isinstance(value, dict) and name.replace("-", "_") not in MAPPINGS:
            raise is_section(f"config {path}: {name}", value)
    return content


def is_section(what: str, value: Settings) -> UsageError:
    """The error for settings that are grouped under a name."""
    inner = ", ".join(map(str, value)) or "its settings"
    return UsageError(f"{what} is a section, and settings have none here: give {inner} without it, beside the others")


def read_yaml(path: Path, text: bytes | None = None) -> Settings:
    """The mapping in a YAML file, whatever its values are."""
    try:
        if text is None:  # a file that the user names may be a pipe
            with path.open("rb") as file:
                text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise UsageError(f"config {path} has more than {MOST_BYTES:,} bytes: settings are a few lines")
        loader = PlainLoader(text)
        node = loader.get_single_node()
        for twice in repeated(node):
            raise UsageError(f"config {path} gives {twice}: keep one of them")
        content = None if node is None else loader.construct_document(node)
    except OSError as error:
        raise UsageError(f"config {path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UsageError(f"config {path} is nested too deeply: settings are lines of 'setting: value'") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that is none
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise UsageError(
            f"config {path} is not valid YAML{where}: {getattr(error, 'problem', None) or error}"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(k, str) for k in content):
        raise UsageError(f"config {path} is not a list of 'setting: value' lines")
    return content


def repeated(node: yaml.Node | None, top: bool = True) -> Iterator[str]:
    """Keys that a mapping has twice, with their lines. Of settings num-envs and num_envs are the same key."""
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
