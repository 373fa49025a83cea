"""Runs that belong together: those that differ in nothing but their seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .record import RunRecord
from .run_page import shown

# what changes no number that is learned, or is what seeds are there for
NO_MATTER = {
    "seed", "device", "threads", "accelerate", "save_seconds", "save_every", "keep_checkpoints", "rank_timeout", "eval_every",
    "eval_episodes", "eval_envs", "eval_seconds",
    "video_every", "log", "project", "entity", "run_name", "watch", "tags",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    number: int  # decides its colour
    runs: list[RunRecord]

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].about.settings


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """In the order in which they were given, each named by what sets it apart from the others."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        weighty = {name: value for name, value in run.about.settings.items() if name not in NO_MATTER}
        found.setdefault(json.dumps(weighty, sort_keys=True, default=str), []).append(run)
    kinds = [members[0].about.settings for members in found.values()]
    return [
        Group(label(kinds[i], kinds), i, sorted(members, key=lambda run: str(run.about.settings.get("seed")).zfill(20)))
        for i, members in enumerate(found.values())
    ]


def differing(kinds: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that all of them have, with different values."""
    names = [name for name in kinds[0] if name not in NO_MATTER and all(name in kind for kind in kinds)]
    return [name for name in names if any(kind[name] != kinds[0][name] for kind in kinds)]


def label(kind: dict[str, Any], kinds: Sequence[dict[str, Any]]) -> str:
    algo = str(kind.get("algo"))
    alike = [other for other in kinds if other.get("algo") == kind.get("algo")]
    words = [f"{name} {shown(kind[name])}" for name in differing(alike)]
    if len(alike) < len(kinds) or not words:
        words.insert(0, algo)
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "")
