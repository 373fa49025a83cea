"""The history of a run's settings: what was changed when it was resumed or while it trained, and at which step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import printable
from ..types import Settings

HISTORY = "changes"  # the key in config.yaml and in manifests
MAX_CHANGES = 10_000
OF_THE_MACHINE = ("device", "accelerate", "threads", "backend")  # chosen anew on each machine
OBSERVING = (  # settings that change no number of training
    "eval_every", "eval_episodes", "eval_envs", "eval_seconds", "stop_at_return", "save_seconds", "save_every",
    "rank_timeout", "keep_checkpoints", "video_every", "log", "project", "entity", "run_name", "watch", "tags", "defaults",
)  # fmt: skip


class Change(NamedTuple):
    """A setting that was changed after some steps. The values are plain data."""

    step: int
    setting: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.setting} {self.before} -> {self.after}"

    def saved(self) -> Settings:
        return {"step": self.step, "setting": self.setting, "from": self.before, "to": self.after}


def changes_between(before: Settings, after: Settings, step: int) -> tuple[Change, ...]:
    """The settings that differ, except those of the machine."""
    names = [name for name in after if name not in OF_THE_MACHINE and before.get(name) != after[name]]
    return tuple(Change(step, name, before.get(name), after[name]) for name in names)


def read_changes(saved: object) -> tuple[Change, ...]:
    """The history in a file, whose content is not trusted: entries of another form are ignored."""
    entries = saved[:MAX_CHANGES] if isinstance(saved, list) else []
    found = [(entry.get("step"), entry.get("setting"), entry) for entry in entries if isinstance(entry, dict)]
    return tuple(
        Change(step, setting, entry.get("from"), entry.get("to"))
        for step, setting, entry in found
        if type(step) is int and isinstance(setting, str)
    )


def change_lines(changes: Sequence[Change]) -> list[str]:
    """One line for each step at which settings were changed."""
    steps = dict.fromkeys(change.step for change in changes)
    return [changed_at(step, [change for change in changes if change.step == step]) for step in steps]


def changed_at(step: int, changes: Sequence[Change]) -> str:
    return printable(f"changed at {step:,} steps: {', '.join(map(str, changes))}")


def resumed_with(changes: Sequence[Change], varies: bool) -> list[str]:
    """The line for a run that resumes with other settings. `varies`: a schedule depends on total_timesteps."""
    if not changes:
        return []
    harmless = (*OBSERVING, *(() if varies else ("total_timesteps",)))
    differs = any(change.setting not in harmless for change in changes)
    note = "; from here on the run differs from one that was not changed" if differs else ""
    return [changed_at(changes[0].step, changes) + note]
