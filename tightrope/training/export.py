"""Export a policy as one ONNX file, for machines that have neither torch nor Tightrope.

The graph maps the environment's observations to greedy actions of the environment. It includes the conversion of spaces, the
normalization of observations, the network and the scaling to bounds. The file is written only if onnxruntime agrees with torch
on observations of short episodes and on random ones of similar scale, in batches of several sizes. The reference is computed
as in `Agent.predict`, with the environment's own encode and decode.

Inputs   obs (B, ...); for a Dict or Tuple each part that the actor sees by its name, such as "camera" or "hand/0"; with memory
         also state (B, S), which is 0 when an episode starts
Outputs  action (B, ...); logits, or mean and std in the environment's units; with a critic that sees no more also value. Of a
         hybrid action each part by its name: action/kind, logits/kind, action/power, mean/power, std/power; with memory also
         next_state (B, S), which is the state of the next step
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..envs.step_arrays import Array
from ..errors import ExportError, UsageError, one_line, root_cause
from ..files import write_file
from ..models import ActorCritic
from ..models.distributions import RULED_OUT
from ..models.recurrent import RecurrentActorCritic
from ..types import Composite, Env, Settings
from ..version import __version__
from .export_interface import (
    ActorInputs,
    action_arrays,
    action_outputs,
    action_settings,
    example_rows,
    other_outputs,
)

OPSET = 18  # runtimes since 2023 have it
BATCHES = (1, 2, 7)  # sizes of the first test batches; one more has all other rows
TOLERANCE = 1e-4  # relative to the largest number in an output, or to 1 if all are smaller
Outputs = dict[str, Array]


@dataclass(frozen=True)
class Exported:
    """An exported file and its differences from torch."""

    path: Path
    size: int  # bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    errors: dict[str, float]  # largest difference from torch, by output
    observations: int  # number of test observations

    @property
    def max_error(self) -> float:
        return max(self.errors.values())

    def __str__(self) -> str:
        worst = max(self.errors, key=self.errors.__getitem__)
        return (
            f"{self.path}: {', '.join(self.inputs)} to {', '.join(self.outputs)}, {self.size / 1e3:,.0f} kB; max error "
            f"{self.max_error:.1e} ({worst}) against torch on {self.observations} observations"
        )


def export_policy(policy: ActorCritic, env: Env, path: Path, seed: int, about: Settings) -> Exported:
    """Write the policy to `path` if the graph agrees with torch. Otherwise nothing is written, and an existing file stays.
    `about` is added to the file's metadata."""
    check_file(path)
    rows = example_rows(policy, env, seed)
    here = all(tensor.device.type == "cpu" for tensor in policy.state_dict().values())
    frozen = Frozen(policy if here else copy.deepcopy(policy).cpu(), env)
    content = graph(frozen, frozen.metadata(about))
    errors = differences(content, frozen, env, rows)
    try:
        write_file(path, content)
    except OSError as error:
        raise UsageError(f"file {path} cannot be written: {error.strerror}") from None
    return Exported(path, len(content), frozen.inputs, frozen.outputs, errors, len(rows))


def check_file(path: Path) -> None:
    """Raise UsageError if the file cannot be written or a package is missing, before any work is done."""
    if path.suffix != ".onnx":
        raise UsageError(f"file {path} is not an ONNX file: give a name that ends in .onnx")
    if path.is_dir():
        raise UsageError(f"file {path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"file {path} cannot be written: there is no directory {path.parent}")
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]:
        raise UsageError(f'export needs {" and ".join(missing)}, not installed here: pip install "tightrope[onnx]"')


class Frozen(nn.Module):
    """The module to export: from observations to actions and the parameters of their distribution."""

    def __init__(self, policy: ActorCritic, env: Env) -> None:
        from ..envs.adapters.actions import writer_of

        super().__init__()
        self.policy, self.reader, self.writer, spec = policy, ActorInputs(policy, env), writer_of(env), env.observation
        memory, blank = policy.memory_rows, torch.zeros(2, *spec.shape, dtype=spec.dtype)
        self.example = self.shown(blank if memory is None else memory.start(blank))
        with torch.no_grad():
            _, others = self.evaluated(self.reader.rows, self.example)
        self.outputs = (*action_outputs(policy), *others)
        taken = {*self.outputs, "state"}
        names = (f"obs/{p.name}" if p.name in taken else p.name for p in self.reader.parts)
        self.inputs = (*names, *(() if memory is None else ("state",)))
        self.eval()

    def shown(self, rows: Tensor) -> list[Array]:
        """The inputs of the graph for rows of the policy."""
        memory = self.policy.memory_rows
        if memory is None:
            return [*self.reader.show(rows.numpy())]
        return [*self.reader.show(memory.observed(rows).numpy()), memory.split(rows)[2].numpy()]

    def forward(self, *obs: Tensor) -> tuple[Tensor, ...]:
        taken, outputs = self.evaluated(self.reader.traced, obs)
        return (*self.writer.traced(taken), *outputs.values())

    def evaluated(self, read: Callable[[Any], Tensor], inputs: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The greedy actions, and the other outputs by name. `read` turns the inputs, but for a state, into rows."""
        policy, value = self.policy, None
        if isinstance(policy, RecurrentActorCritic):
            state = torch.as_tensor(inputs[-1])
            rows = policy.memory_rows.join(read(inputs[:-1]), torch.zeros_like(state[:, 0]), state)
            distribution, value, following = policy.step(rows)
            others = {"next_state": following}
        else:
            rows, others = read(inputs), {}
            distribution, value = policy(rows) if self.reader.has_value else (policy.distribution(rows), None)
        parameters = other_outputs(policy, distribution, value if self.reader.has_value else None)
        return policy.head.to_env(distribution.mode()), parameters | others

    def metadata(self, about: Settings) -> dict[str, str]:
        """The metadata of the file: version, `about`, and the spaces as JSON. If a row of an input concatenates several
        parts, "row" lists them in order."""
        from ..envs.adapters.space_members import described

        shown = []
        for name, part in zip(self.inputs, self.reader.parts, strict=False):  # but for the state
            inner = part.spec.parts if isinstance(part.spec, Composite) else ()
            row = {"row": [[word, list(spec.shape)] for word, spec in inner]} if inner else {}
            shown.append({"name": name, **described(part.space), **row})
        words = {"tightrope": __version__, **{name: str(value) for name, value in about.items()}}
        return words | {
            "observation": json.dumps(shown),
            "action": json.dumps(action_settings(self.policy, self.writer)),
        }


@torch.no_grad()
def graph(frozen: Frozen, words: dict[str, str]) -> bytes:
    """The content of the file: the module as a graph, with metadata."""
    import onnx

    rows, example = torch.export.Dim("batch"), tuple(map(torch.from_numpy, frozen.example))
    options: Settings = {"input_names": frozen.inputs, "output_names": frozen.outputs, "opset_version": OPSET}
    options["dynamic_shapes"] = {"obs": tuple({0: rows} for _ in example)}
    try:
        with silence():
            program = torch.onnx.export(frozen, example, dynamo=True, **options)
    except torch.onnx.OnnxExporterError as error:
        cause = root_cause(error)
        first = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0][:120]}"
        raise UsageError(
            f"the network cannot be exported: a graph cannot branch on the values of tensors: {first}"
        ) from error
    assert program is not None
    if any(value.shape and isinstance(value.shape[0], int) for value in program.model.graph.inputs):
        found = f"its graph is for {len(example[0])} rows only, as len(obs) or int(obs.shape[0]) make it"
        raise UsageError(f"the network cannot be exported: {found}: use obs.shape[0], or obs.flatten(1)")
    clean(program.model.graph, {*frozen.inputs, *frozen.outputs})
    model = program.model_proto
    model.producer_name, model.producer_version = "tightrope", words["tightrope"]
    onnx.helper.set_model_props(model, words)
    return bytes(model.SerializeToString())


def clean(graph: Any, interface: set[str]) -> None:
    """Rename inner values that have the name of an input or output: inputs are named after the keys of a Dict, such as
    "linear". Drop the source location of each node: three quarters of a small file, with paths of this machine."""
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    inner = [value for node in graph.all_nodes() for value in node.outputs]
    for value in inner:
        if value.name in interface and id(value) not in ends:
            value.name = f"{value.name}/within"
    for part in (graph, *graph.all_nodes(), *inner, *graph.inputs, *graph.initializers.values()):
        part.metadata_props.clear()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the exporter's output about operators of other packages and its own deprecations."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@torch.no_grad()
def differences(content: bytes, frozen: Frozen, env: Env, rows: Tensor) -> dict[str, float]:
    """The largest absolute difference between the graph and torch, by output; ExportError if one is too large."""
    batches = torch.split(rows, [*BATCHES, len(rows) - sum(BATCHES)])
    shown = [frozen.shown(batch) for batch in batches]
    got = run_graph(content, [dict(zip(frozen.inputs, arrays, strict=True)) for arrays in shown])
    pairs = zip(got, shown, strict=True)
    errors = [output_errors(outputs, expected(frozen, env, arrays)) for outputs, arrays in pairs]
    return {name: max(error[name] for error in errors) for name in frozen.outputs}


def run_graph(content: bytes, batches: list[Outputs]) -> list[Outputs]:
    """The outputs of onnxruntime for each batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, batch), strict=True)) for batch in batches]
    except Exception as error:  # onnxruntime's errors have no common base class
        raise ExportError(f"onnxruntime cannot run the graph, so nothing was written: {one_line(error)}") from error


def expected(frozen: Frozen, env: Env, shown: Sequence[Array]) -> Outputs:
    """The outputs of torch for one batch."""
    action, others = frozen.evaluated(frozen.reader.rows, shown)
    outputs = {name: tensor.numpy() for name, tensor in others.items()}
    return dict(zip(action_outputs(frozen.policy), action_arrays(env, action), strict=True)) | outputs


def output_errors(got: Outputs, want: Outputs) -> dict[str, float]:
    """The largest absolute difference in each output of one batch. If rounding decides between two choices, both are right."""
    errors: dict[str, float] = {}
    for name, right in want.items():
        mine, most = got[name], allowed(right)
        if (mine.shape, mine.dtype) != (right.shape, right.dtype):
            there, here = (f"{array.dtype}{list(array.shape)}" for array in (mine, right))
            raise ExportError(f"{name} is {there} in the graph and {here} in torch, so nothing was written")
        if not np.isfinite(right).all():
            raise ExportError(f"{name} is not finite in torch, so nothing was written: has training diverged?")
        difference = np.abs(mine.astype(np.float64) - right)
        kind, slash, part = name.partition("/")
        if kind == "action" and (logits := want.get(f"logits{slash}{part}")) is not None:
            sure = margin(logits).reshape(right.shape) > 2 * allowed(logits)
            difference = np.where(sure, difference, 0.0)
        error = errors[name] = float(difference.max())
        if not error <= most:  # true also for NaN
            raise ExportError(f"{name} is off by {error:.1e} in the graph (at most {most:.1e}), so nothing was written")
    return errors


def allowed(right: Array) -> float:
    """The largest difference that rounding may cause: in float32 inside the graph and in the type of the output."""
    share = max(TOLERANCE, 2 * float(np.finfo(right.dtype).eps)) if right.dtype.kind == "f" else TOLERANCE
    numbers = np.abs(right.astype(np.float64))
    return share * max(1.0, float(numbers[numbers < -RULED_OUT].max(initial=0.0)))


def margin(logits: Array) -> Array:
    """The gap between the best and the second-best choice, (B,) or (B, K); infinite if there is only one choice."""
    return np.diff(np.sort(logits, axis=-1))[..., -1:].min(axis=-1, initial=np.inf)
