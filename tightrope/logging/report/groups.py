"""Groups of runs that differ only in their seed, named by what sets them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...types import Settings
from .data import RunRecord
from .html import format_setting

# settings that do not change what is learned, besides the seed
IGNORED = {
    "seed", "device", "threads", "accelerate", "save_seconds", "save_every", "keep_checkpoints", "rank_timeout", "eval_every",
    "eval_episodes", "eval_envs", "eval_seconds",
    "video_every", "log", "project", "entity", "run_name", "watch", "tags",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    number: int  # decides its colour
    runs: list[RunRecord]

    @property
    def settings(self) -> Settings:
        return self.runs[0].info.settings


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Groups in the order of the runs, each named by the settings in which it differs."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        relevant = {name: value for name, value in run.info.settings.items() if name not in IGNORED}
        found.setdefault(json.dumps(relevant, sort_keys=True, default=str), []).append(run)
    for members in found.values():
        members.sort(key=lambda run: str(run.info.settings.get("seed")).zfill(20))
    kinds = [members[0].info.settings for members in found.values()]
    return [Group(group_label(kinds[i], kinds), i, members) for i, members in enumerate(found.values())]


def differing_settings(kinds: Sequence[Settings]) -> list[str]:
    """Settings that do not have the same value everywhere."""
    names = dict.fromkeys(name for kind in kinds for name in kind if name not in IGNORED)
    return [name for name in names if any(kind.get(name) != kinds[0].get(name) for kind in kinds)]


def group_label(kind: Settings, kinds: Sequence[Settings]) -> str:
    algo = str(kind.get("algo"))
    alike = [other for other in kinds if other.get("algo") == kind.get("algo")]
    words = [f"{name} {format_setting(kind.get(name))}" for name in differing_settings(alike)]
    if len(alike) < len(kinds) or not words:
        words.insert(0, algo)
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "")


def seed_text(run: RunRecord) -> str:
    return f"seed {run.info.settings.get('seed')}"
