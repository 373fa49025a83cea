"""When a phase does not stay finite: the run goes back to before it, the phase is run once more under watch, and what there is
to know is written down.

RUN/crash/phase-000012/report.json              the first bad tensor, cause, fix; gradient norms, ranges, metrics, config
RUN/crash/phase-000012/rollout.safetensors      what env and policy said to each other
RUN/crash/phase-000012/minibatch.safetensors    what the first bad update was to learn from, if it came to that
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..algorithms import ALGORITHMS
from ..engine import Execution, Guard, Snapshot, State, reads_are_free, unguarded
from ..engine.health import LOSSES
from ..engine.optimize import watched_by
from ..envs.replayed import Replayed
from ..errors import one_line
from ..files import Place
from ..types import Batch, Env, Rollout, Row
from .config import Config
from .diagnosis import Diagnosis, Evidence, diagnose, first_bad_layer
from .directory import resume_command


class CrashGuard(Guard):
    """The guard of `learn`: runs a bad phase once more, and writes down what there is to know."""

    def __init__(self, state: State, config: Config, run_dir: Path | None = None) -> None:
        super().__init__(state)
        self.config, self.run_dir = config, run_dir

    def describe(self, row: dict[str, Any], parts: list[str]) -> str:
        """Go back, find out, write down. Nothing that fails on the way may take the line's place."""
        snapshot = self.before(row)
        rows = [seen | reading.row() for seen, reading in self.recent]
        try:
            evidence = gathered(snapshot, self.config, row, parts, recorded=self.late == 0)
            diagnosis = diagnose(evidence, self.config, rows, self.state.policy)
        except Exception as error:
            return f"phase {row['phase']} is not finite: {' and '.join(parts)}; a closer look failed: {one_line(error)}"
        if self.run_dir is None:
            return f"{diagnosis.line()}; the agent is as it was before"
        folder = Place(self.run_dir) / "crash" / f"phase-{row['phase']:06d}"
        evidence_is = f"the evidence is in {folder}"
        try:
            write_bundle(folder, diagnosis, evidence, self.config, [*rows, row])
        except Exception as error:
            evidence_is = f"the evidence could not be written to {folder}: {one_line(error)}"
        line = f"{diagnosis.line()}; {evidence_is}"
        if not diagnosis.worth_resuming:
            return line
        resume = resume_command(self.run_dir, self.config, *diagnosis.flags)
        return f"{line}; {diagnosis.first} go on from before it with `{resume}`"


# the phase once more -------------------------------------------------------------------------------------------------


class Broke(Exception):
    """The first bad update has been found."""


class Watcher:
    """Looks at every update, and stops the phase at the first bad one."""

    def __init__(self, state: State, evidence: Evidence) -> None:
        self.state, self.evidence, self.updates = state, evidence, 0

    def __call__(self, batch: Batch, terms: Any) -> None:
        values = {name: float(x) for name, x in terms._asdict().items()}
        if "approx_kl" in values:
            self.evidence.kl.append(values["approx_kl"])
        norm = float(torch.linalg.vector_norm(self.state.optimizer.grad))
        if math.isfinite(norm) and all(math.isfinite(x) for x in list(values.values())[:LOSSES]):
            self.updates += 1
            return
        found, policy, grads = self.evidence, self.state.policy, self.state.optimizer.grads
        found.update, found.terms, found.minibatch = self.updates, values, on_cpu(batch)
        found.gradient = {name: grads[p].cpu().clone() for name, p in policy.named_parameters() if p in grads}
        raise Broke


def gathered(snapshot: Snapshot, config: Config, row: dict[str, Any], parts: list[str], recorded: bool) -> Evidence:
    """Run the bad phase again from before it, and keep what is found. With `recorded`, its rollout is still there, and the env
    is not asked again: it could not be put back, or might not do the same."""
    state = snapshot.state
    taken = len(state.rollout.reward)
    if recorded and reads_are_free(state.env.device):  # a rollout may have been broken off
        taken = (row["step"] - int(snapshot.counters["steps"])) // config.algorithm.num_envs
    rollout, last_obs = on_cpu(state.rollout.first(taken)), state.obs.cpu().clone()
    snapshot.restore()
    evidence = Evidence(row["phase"], parts, rollout, last_obs, state.env.observation, before=parameters(state))
    env: Env = Replayed(state.env, rollout, last_obs) if recorded else state.env
    try:
        with as_written(state, env), watched_by(Watcher(state, evidence)):
            next(unguarded(ALGORITHMS[config.algo].loop)(state, config.algorithm))
    except Broke:
        pass
    except Exception as error:  # whatever it is, it must not take the place of what is being told
        evidence.note = f"and running it again failed: {one_line(error)}"
    if not recorded:
        evidence.rollout, evidence.last_obs = on_cpu(state.rollout), state.obs.cpu().clone()
    evidence.after = parameters(state)
    evidence.statistics = {k: x.cpu().clone() for k, x in state.policy.named_buffers() if x.is_floating_point()}
    snapshot.restore()
    with suppress(Exception):  # a network may do what it likes
        evidence.bad_layer = first_bad_layer(state.policy, bad_rows(evidence).to(state.env.device))
    return evidence


@contextmanager
def as_written(state: State, env: Env) -> Iterator[None]:
    """The state with that env, its phases executed as written. How it computes gradients is put back too: graphs rely on it."""
    before, optimizer = (state.env, state.execution), state.optimizer
    form = optimizer.asked, optimizer.closed_form
    state.env, state.execution = env, Execution("eager", precision=state.execution.precision, device=env.device)
    try:
        yield
    finally:
        (state.env, state.execution), (optimizer.asked, optimizer.closed_form) = before, form


def bad_rows(evidence: Evidence) -> Tensor:
    """Finite observations of which the policy said something that is not."""
    rollout = evidence.rollout
    shown = torch.isfinite(rollout.obs).flatten(2).all(2)
    bad = shown & ~(torch.isfinite(rollout.log_prob) & torch.isfinite(rollout.value))
    return rollout.obs[bad if bad.any() else shown]


def parameters(state: State) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in state.policy.named_parameters()}


def on_cpu(record: Any) -> Any:
    """A copy of a rollout or batch there."""
    tensors = {f.name: x.cpu().clone() for f in fields(record) if isinstance(x := getattr(record, f.name), Tensor)}
    return replace(record, **tensors)


# the bundle ----------------------------------------------------------------------------------------------------------


def write_bundle(
    folder: Place, diagnosis: Diagnosis, evidence: Evidence, config: Config, rows: list[dict[str, Any]]
) -> None:
    """The report first: it is small, and says the most."""
    report = as_json(report_of(diagnosis, evidence, config, rows))
    folder.parent.mkdir()  # but not the run's directory
    folder.mkdir()
    (folder / "report.json").write(json.dumps(report, indent=1, allow_nan=False).encode())
    (folder / "rollout.safetensors").write(save(contents(evidence.rollout) | {"last_obs": evidence.last_obs}))
    if evidence.minibatch is not None:
        (folder / "minibatch.safetensors").write(save(contents(evidence.minibatch)))


def report_of(diagnosis: Diagnosis, evidence: Evidence, config: Config, rows: list[dict[str, Any]]) -> dict[str, Any]:
    minibatch = {} if evidence.minibatch is None else contents(evidence.minibatch)
    looked_at = {
        "rollout": contents(evidence.rollout) | {"last_obs": evidence.last_obs},
        "minibatch": minibatch,
        "gradient": evidence.gradient,
        "parameters before": evidence.before,
        "parameters after": evidence.after,
        "statistics": evidence.statistics,
    }
    return {
        "phase": diagnosis.phase,
        "first": diagnosis.culprit.words,
        "kind": diagnosis.culprit.kind,
        "cause": diagnosis.cause,
        "fix": diagnosis.fix,
        "flags": diagnosis.flags,
        "not finite": evidence.parts,
        "note": evidence.note,
        "layer": evidence.bad_layer,
        "update": evidence.update,
        "terms": evidence.terms,
        "gradient norms": {name: float(torch.linalg.vector_norm(x)) for name, x in evidence.gradient.items()},
        "ranges": {part: {name: span(x) for name, x in tensors.items()} for part, tensors in looked_at.items()},
        "metrics": rows,
        "config": config.flat(),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "numpy", "safetensors")},
        },
    }


def contents(record: Rollout | Batch) -> dict[str, Tensor]:
    names = Row._fields if isinstance(record, Rollout) else [f.name for f in fields(record)]
    return {name: getattr(record, name).contiguous() for name in names}


def span(x: Tensor) -> dict[str, float | int]:
    """Least and greatest of the finite entries, and how many are not."""
    values = x.double()
    fine = values[torch.isfinite(values)]
    ends = {"min": float(fine.min()), "max": float(fine.max())} if fine.numel() else {}
    return ends | {"not finite": x.numel() - fine.numel()}


def as_json(value: Any) -> Any:
    """The same with words for numbers that JSON has none for: here it matters which."""
    if isinstance(value, dict):
        return {k: as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
