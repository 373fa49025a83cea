"""The guard of `learn`: after a phase whose numbers are not finite, it runs the phase once more, looks for the first bad number
and its cause, and writes a report.

RUN/crash/phase-000012/report.json              the first bad tensor, cause, fix; gradient norms, ranges, metrics, config
RUN/crash/phase-000012/rollout.safetensors      observations, actions, rewards and values of the phase
RUN/crash/phase-000012/minibatch.safetensors    the batch of the first bad update, if it came to that
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from ..algorithms import ALGORITHMS
from ..engine import Guard, Runtime, Snapshot, State, unguarded
from ..engine.metrics import LOSSES
from ..envs.step_arrays import Replayed
from ..errors import one_line
from ..files import Place
from ..types import Batch, Env, Rollout, Row, Settings
from .config import Config
from .nonfinite_cause import Diagnosis, Evidence, diagnose, first_bad_layer
from .run_directory import resume_command

Tensors = TypeVar("Tensors", Rollout, Batch)


class NonFiniteGuard(Guard):
    """A guard that diagnoses a bad phase, and with a run directory writes a report there."""

    def __init__(self, state: State, config: Config, run_dir: Path | None = None) -> None:
        super().__init__(state)
        self.config, self.run_dir = config, run_dir

    def describe(self, row: dict[str, float], parts: list[str]) -> str:
        """The line with cause and fix. Errors on the way are told in it and do not replace it."""
        snapshot, phase = self.before(row), int(row["phase"])
        rows = [seen | reading.row() for seen, reading in self.recent]
        try:
            evidence = replay_phase(snapshot, self.config, row, parts, recorded=self.late == 0)
            diagnosis = diagnose(evidence, self.config, rows, self.state.policy)
        except Exception as error:
            return f"phase {phase} is not finite: {' and '.join(parts)}; a closer look failed: {one_line(error)}"
        line = f"phase {phase} is not finite: {diagnosis.line()}"
        if self.run_dir is None:
            return f"{line}; the agent is as it was before"
        folder = Place(self.run_dir) / "crash" / f"phase-{phase:06d}"
        try:
            write_evidence(folder, diagnosis, evidence, self.config, [*rows, row])
            line += f"; the evidence is in {folder}"
        except Exception as error:
            line += f"; the evidence could not be written to {folder}: {one_line(error)}"
        if not diagnosis.advice.worth_resuming:
            return line
        # a faulty env would give the same again
        first = "once it is fixed," if diagnosis.bad.kind in ("observation", "reward") else "then"
        resume = resume_command(self.run_dir, self.config, *diagnosis.advice.flags)
        return f"{line}; {first} go on from before it with `{resume}`"


class BadUpdate(Exception):
    """Ends a replayed phase at its first bad update."""


class UpdateWatcher:
    """Checks every update of a phase, and stops it at the first one that is not finite."""

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
        evidence, grads = self.evidence, self.state.optimizer.grads
        evidence.update, evidence.terms, evidence.minibatch = self.updates, values, cpu_copy(batch)
        named = self.state.policy.named_parameters()
        evidence.gradient = {name: grads[p].cpu().clone() for name, p in named if p in grads}
        raise BadUpdate


def replay_phase(
    snapshot: Snapshot, config: Config, row: dict[str, float], parts: list[str], recorded: bool
) -> Evidence:
    """Run the bad phase again from before it, and return what is found. With `recorded`, its rollout is still there and takes
    the place of the env, which may not be able to go back or to do the same again."""
    state = snapshot.state
    taken = len(state.rollout.reward)
    if recorded and not state.runtime.on_device:  # the rollout may have been cut short
        taken = int(row["step"] - int(snapshot.counters["steps"])) // config.algorithm.num_envs
    rollout, last_obs = cpu_copy(state.rollout.first(taken)), state.obs.cpu().clone()
    snapshot.restore()
    evidence = Evidence(parts, rollout, last_obs, state.env.observation, before=parameter_copies(state))
    env: Env = Replayed(state.env, rollout, last_obs) if recorded else state.env
    try:
        with eager_with(state, env, UpdateWatcher(state, evidence)):
            next(unguarded(ALGORITHMS[config.algo].loop)(state, config.algorithm))
    except BadUpdate:
        pass
    except Exception as error:  # must not replace the error that is being described
        evidence.note = f"and running it again failed: {one_line(error)}"
    if not recorded:
        evidence.rollout, evidence.last_obs = cpu_copy(state.rollout), state.obs.cpu().clone()
    evidence.after = parameter_copies(state)
    evidence.statistics = {k: x.cpu().clone() for k, x in state.policy.named_buffers() if x.is_floating_point()}
    snapshot.restore()
    with suppress(Exception):  # a user's network may fail in any way
        evidence.bad_layer = first_bad_layer(state.policy, bad_rows(evidence.rollout).to(state.env.device))
    return evidence


@contextmanager
def eager_with(state: State, env: Env, watcher: UpdateWatcher) -> Iterator[None]:
    """The state with that env, its phases neither compiled nor captured, and a watcher of its gradients."""
    before = state.env, state.runtime
    precision, on_device = state.runtime.precision, state.runtime.on_device
    state.runtime = Runtime(precision=precision, device=env.device, watcher=watcher, on_device=on_device)
    state.env = env
    try:
        yield
    finally:
        state.env, state.runtime = before


def bad_rows(rollout: Rollout) -> Tensor:
    """Finite observations for which the policy gave non-finite numbers; all finite ones if there are none."""
    finite = torch.isfinite(rollout.obs).flatten(2).all(2)
    bad = finite & ~(torch.isfinite(rollout.log_prob) & torch.isfinite(rollout.value))
    return rollout.obs[bad if bad.any() else finite]


def parameter_copies(state: State) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in state.policy.named_parameters()}


def cpu_copy(record: Tensors) -> Tensors:
    """A copy of a rollout or batch on the CPU."""
    tensors: Settings = {
        f.name: x.cpu().clone() for f in fields(record) if isinstance(x := getattr(record, f.name), Tensor)
    }
    return replace(record, **tensors)


def write_evidence(
    folder: Place, diagnosis: Diagnosis, evidence: Evidence, config: Config, rows: list[dict[str, float]]
) -> None:
    """Write the report and the tensors. The report goes first: it is small, and says the most."""
    tensors = {"rollout": {name: getattr(evidence.rollout, name) for name in Row._fields}}
    tensors["rollout"]["last_obs"] = evidence.last_obs
    if evidence.minibatch is not None:
        tensors["minibatch"] = {f.name: getattr(evidence.minibatch, f.name) for f in fields(evidence.minibatch)}
    parts = tensors | {
        "gradient": evidence.gradient, "parameters before": evidence.before, "parameters after": evidence.after,
        "statistics": evidence.statistics,
    }  # fmt: skip
    report = {
        "phase": rows[-1]["phase"], "first": diagnosis.bad.words, "kind": diagnosis.bad.kind,
        "cause": diagnosis.advice.cause, "fix": diagnosis.advice.fix, "flags": diagnosis.advice.flags,
        "not finite": evidence.parts, "note": evidence.note, "layer": evidence.bad_layer, "update": evidence.update,
        "terms": evidence.terms,
        "gradient norms": {name: float(torch.linalg.vector_norm(x)) for name, x in evidence.gradient.items()},
        "ranges": {part: {name: tensor_range(x) for name, x in named.items()} for part, named in parts.items()},
        "metrics": rows, "config": config.flat(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    # JSON has no NaN and no infinity, and here it matters which: they become the texts nan, inf and -inf
    report = json.loads(json.dumps(report), parse_constant=lambda constant: str(float(constant)))
    folder.parent.mkdir()  # but not the run's directory
    folder.mkdir()
    (folder / "report.json").write(json.dumps(report, indent=1, allow_nan=False).encode())
    for name, named in tensors.items():
        (folder / f"{name}.safetensors").write(save({key: x.contiguous() for key, x in named.items()}))


def tensor_range(x: Tensor) -> dict[str, float]:
    """Minimum and maximum of the finite entries, and how many are not finite."""
    finite = x.double()[torch.isfinite(x)]
    ends = {"min": float(finite.min()), "max": float(finite.max())} if finite.numel() else {}
    return ends | {"not finite": x.numel() - finite.numel()}
