"""Diagnose a phase with non-finite numbers: run it again, name the first bad tensor and the most likely cause, and write a
report.

RUN/crash/phase-000012/report.json              the first bad tensor, cause, fix; gradient norms, metrics, config
RUN/crash/phase-000012/rollout.safetensors      observations, actions, rewards and values of the phase
RUN/crash/phase-000012/minibatch.safetensors    the batch of the first bad update, if an update was bad
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..algorithms import ALGORITHMS
from ..engine import Guard, Runtime, Snapshot, State, unguarded
from ..engine.metrics import BadEntry
from ..engine.runtime import Watcher
from ..errors import one_line
from ..files import Place
from ..functional import terms_to_check
from ..types import Batch, Env, Rollout, Row, Settings
from .commands import resume_command
from .config import Config
from .nonfinite_cause import Advice, Evidence, advise, first_bad

Tensors = TypeVar("Tensors", Rollout, Batch)


class NonFiniteGuard(Guard):
    """A guard that diagnoses a bad phase and, if there is a run directory, writes a report to it."""

    def __init__(self, state: State, config: Config, run_dir: Path | None = None) -> None:
        super().__init__(state)
        self.config, self.run_dir = config, run_dir

    def describe(self, row: dict[str, float], parts: list[str]) -> str:
        """The error message with cause and fix. Errors of the diagnosis are added to the message and do not replace it."""
        snapshot, phase = self.before(row), int(row["phase"])
        rows = [seen | reading.row() for seen, reading in self.recent]
        try:
            evidence = replay_phase(snapshot, self.config, row, parts, recorded=self.late == 0)
            bad = first_bad(evidence)
            advice = advise(bad, evidence, self.config, rows, self.state.policy)
        except Exception as error:
            return f"phase {phase} is not finite: {' and '.join(parts)}; the diagnosis failed: {one_line(error)}"
        line = f"phase {phase} is not finite: {bad.words}{advice.cause and ': '}{advice.cause}; {advice.fix}"
        if self.run_dir is None:
            return f"{line}; the agent is as it was before this phase"
        folder = Place(self.run_dir) / "crash" / f"phase-{phase:06d}"
        try:
            write_evidence(folder, bad, advice, evidence, self.config, [*rows, row])
            line += f"; the evidence is in {folder}"
        except Exception as error:
            line += f"; the evidence could not be written to {folder}: {one_line(error)}"
        if not advice.worth_resuming:
            return line
        # a faulty env would fail again
        first = "once it is fixed," if bad.kind in ("observation", "reward") else "then"
        resume = resume_command(self.run_dir, self.config, *advice.flags)
        return f"{line}; {first} resume from the phase before with `{resume}`"


# running the phase again ---------------------------------------------------------------------------------------------


class BadUpdate(Exception):
    """Ends a replayed phase at its first bad update."""


def replay_phase(
    snapshot: Snapshot, config: Config, row: dict[str, float], parts: list[str], recorded: bool
) -> Evidence:
    """Run the bad phase again from the state before it and return the findings. With `recorded`, its rollout is still in
    memory and replaces the env, which may not be able to go back or to repeat its steps."""
    state = snapshot.state
    taken = len(state.rollout.reward)
    if recorded and not state.runtime.on_device:  # the rollout may have been cut short
        taken = int(row["step"] - int(snapshot.counters["steps"])) // config.algorithm.num_envs
    rollout, last_obs = cpu_copy(state.rollout.first(taken)), state.obs.cpu().clone()
    snapshot.restore()
    evidence = Evidence(parts, rollout, last_obs, state.env.observation, before=parameter_copies(state))

    def watch(batch: Batch, terms: Any) -> None:
        """Stop the phase at the first update that is not finite."""
        values = {name: float(x) for name, x in terms._asdict().items()}
        evidence.kl += [values["approx_kl"]] if "approx_kl" in values else []
        evidence.checked_terms = [*terms_to_check(terms)]
        sizes = [
            float(torch.linalg.vector_norm(state.optimizer.grad)),
            *(values[name] for name in evidence.checked_terms),
        ]
        if not all(map(math.isfinite, sizes)):
            grads, named = state.optimizer.grads, state.policy.named_parameters()
            evidence.gradient = {name: grads[p].cpu().clone() for name, p in named if p in grads}
            evidence.terms, evidence.minibatch = values, cpu_copy(batch)
            raise BadUpdate
        evidence.updates += 1

    try:
        with replaying_eagerly(state, watch, (rollout, last_obs) if recorded else None):
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
def replaying_eagerly(state: State, watcher: Watcher | None, recorded: tuple[Rollout, Tensor] | None) -> Iterator[None]:
    """Inside, the state runs phases eagerly and calls the watcher after each gradient. With `recorded`, a rollout and the
    observations after it, no environment is stepped: the rollout is still in the state."""
    before = state.env, state.runtime, state.functions
    runtime, device = state.runtime, state.env.device
    state.runtime = Runtime(precision=runtime.precision, device=device, watcher=watcher, on_device=runtime.on_device)
    state.runtime.has_orders = runtime.has_orders  # the same minibatches as in the phase
    if recorded is not None:
        rollout, last_obs = recorded
        state.env = cast(Env, Replayed(state.env, rollout))
        state.functions = replace(state.functions, collect=lambda *_: last_obs.to(device))
    try:
        yield
    finally:
        state.env, state.runtime, state.functions = before


class Replayed:
    """Stands for an environment whose steps are in a rollout already: it does not go back and takes no step."""

    def __init__(self, env: Env, rollout: Rollout) -> None:
        self.env, self.rollout = env, rollout

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        return self.rollout.obs[0].to(self.env.device)

    def finished_episodes(self) -> Tensor:
        return torch.zeros(3, device=self.env.device)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            return getattr(self.env, name)


def bad_rows(rollout: Rollout) -> Tensor:
    """The finite observations with a non-finite policy output; all finite observations if there are none."""
    finite = torch.isfinite(rollout.obs).flatten(2).all(2)
    bad = finite & ~(torch.isfinite(rollout.log_prob) & torch.isfinite(rollout.value))
    return rollout.obs[bad if bad.any() else finite]


def parameter_copies(state: State) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in state.policy.named_parameters()}


def cpu_copy(record: Tensors) -> Tensors:
    """A copy of a rollout or batch on the CPU."""
    given = {f.name: getattr(record, f.name) for f in fields(record)}
    tensors: Settings = {name: x.cpu().clone() for name, x in given.items() if isinstance(x, Tensor)}
    return replace(record, **tensors)


def first_bad_layer(policy: nn.Module, obs: Tensor) -> str | None:
    """The first layer in a forward pass with finite inputs and a non-finite output. Inner layers come first."""
    found: list[str] = []

    def is_finite(x: object) -> bool:
        leaves = torch.utils._pytree.tree_leaves(x)
        return all(torch.isfinite(leaf).all() for leaf in leaves if isinstance(leaf, Tensor))

    def look(module: nn.Module, given: object, result: object) -> None:
        if is_finite(given) and not is_finite(result):
            found.append(f"{names[module]} ({type(module).__name__})")

    names = {module: name for name, module in policy.named_modules() if name}
    handles = [module.register_forward_hook(look) for module in names]
    try:
        with torch.no_grad():
            policy(obs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def write_evidence(
    folder: Place, bad: BadEntry, advice: Advice, evidence: Evidence, config: Config, rows: list[dict[str, float]]
) -> None:
    """Write the report and the tensors; the report first, since it is small and the most useful."""
    tensors = {"rollout": {name: getattr(evidence.rollout, name) for name in Row._fields}}
    tensors["rollout"]["last_obs"] = evidence.last_obs
    if (minibatch := evidence.minibatch) is not None:
        tensors["minibatch"] = {f.name: getattr(minibatch, f.name) for f in fields(minibatch)}
    norms = {name: float(torch.linalg.vector_norm(x)) for name, x in evidence.gradient.items()}
    report = {
        "phase": rows[-1]["phase"], "first": bad.words, "kind": bad.kind, "cause": advice.cause, "fix": advice.fix,
        "flags": advice.flags, "not finite": evidence.parts, "layer": evidence.bad_layer,
        "update": None if minibatch is None else evidence.updates, "note": evidence.note or None,
        "terms": evidence.terms, "gradient norms": norms, "metrics": rows, "config": config.to_flat_dict(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    # JSON has no NaN and no infinity: they become the texts nan, inf and -inf
    report = json.loads(json.dumps(report), parse_constant=lambda constant: str(float(constant)))
    folder.parent.mkdir()  # the run's directory is not recreated
    folder.mkdir()
    (folder / "report.json").write(json.dumps(report, indent=1, allow_nan=False).encode())
    for name, named in tensors.items():
        (folder / f"{name}.safetensors").write(save({key: x.contiguous() for key, x in named.items()}))
