"""A frozen agent as one ONNX file, for machines that have neither torch nor Tightrope.

The graph takes observations as the environment shows them and gives the greedy action as the environment takes it; all that
lies between is inside: reading the space, statistics of observations, the network, scaling to bounds. The file is written
only once onnxruntime has been held to torch on it, see export_check.py.

Inputs   obs (B, ...); of a Dict or Tuple each part by its name, such as "camera" or "hand/0"
Outputs  action (B, ...); what it was chosen from: logits, or mean and std in the environment's units; value, where there is
         a critic
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..files import write_file
from ..models import ActorCritic
from ..types import Composite, Env, Settings
from ..version import __version__
from .export_check import beside, differences, example_rows

if TYPE_CHECKING:
    from ..envs.adapters.spaces import Part

PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # two to write a graph, one to check it
OPSET = 18  # which runtimes have had since 2023


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from torch."""

    path: Path
    size: int  # bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    errors: dict[str, float]  # largest difference from torch, by output
    observations: int  # on which

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
    """Write the policy to `path` if it does there as in torch. Otherwise nothing is written, and a file that was there before
    stays. `about` goes into the file's metadata."""
    check_file(path)
    rows = example_rows(policy, env, seed)
    frozen = Frozen(on_cpu(policy), env)
    content = graph(frozen, metadata(frozen, env, about))
    errors = differences(content, frozen.inputs, frozen.policy, env, rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise UsageError(f"file {path} cannot be written: {error.strerror}") from None
    return Exported(path, len(content), frozen.inputs, frozen.outputs, errors, len(rows))


def check_file(path: Path) -> None:
    """Refuse what could not be written, before any work is done for it."""
    if path.suffix != ".onnx":
        raise UsageError(f"file {path} is not ONNX by its name: give one that ends in .onnx")
    if path.is_dir():
        raise UsageError(f"file {path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"file {path} cannot be written: there is no directory {path.parent}")
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'export needs {" and ".join(missing)}, not installed here: pip install "tightrope[onnx]"')


# the graph -----------------------------------------------------------------------------------------------------------


class Frozen(nn.Module):
    """From observations to actions and the parameters of their distribution."""

    def __init__(self, policy: ActorCritic, env: Env) -> None:
        from ..envs.adapters.spaces import reader_of, writer_of

        super().__init__()
        self.policy, self.reader, self.writer, spec = policy, reader_of(env), writer_of(env), env.observation
        self.outputs = ("action", *beside(policy, *policy(torch.zeros(2, *spec.shape, dtype=spec.dtype))))
        self.inputs = tuple(f"obs/{p.name}" if p.name in self.outputs else p.name for p in self.reader.parts)
        self.eval()

    def forward(self, *obs: Tensor) -> tuple[Tensor, ...]:
        distribution, value = self.policy(self.reader.traced(obs))
        action = self.writer.traced(self.policy.head.to_env(distribution.mode()))
        return (action, *beside(self.policy, distribution, value).values())


def on_cpu(policy: ActorCritic) -> ActorCritic:
    """The policy, or a copy where it lives on a device: a graph has none."""
    here = all(tensor.device.type == "cpu" for tensor in policy.state_dict().values())
    return policy if here else copy.deepcopy(policy).cpu()


@torch.no_grad()
def graph(frozen: Frozen, words: dict[str, str]) -> bytes:
    """The file's content: the module as a graph, with words about it."""
    import onnx

    rows = torch.export.Dim("batch")
    spec = frozen.reader.spec
    nothing = torch.zeros(2, *spec.shape, dtype=spec.dtype).numpy()
    example = tuple(map(torch.from_numpy, frozen.reader.show(nothing)))
    try:
        with silence():
            program = torch.onnx.export(
                frozen,
                example,
                input_names=frozen.inputs,
                output_names=frozen.outputs,
                dynamic_shapes={"obs": tuple({0: rows} for _ in example)},
                opset_version=OPSET,
                dynamo=True,
            )
    except torch.onnx.OnnxExporterError as error:
        raise UsageError(
            "the network cannot be a graph, which holds torch operations and no Python that looks at numbers: "
            f"{cause_of(error)}"
        ) from error
    assert program is not None
    keep_apart(program.model.graph, {*frozen.inputs, *frozen.outputs})
    forget_origin(program.model.graph)
    model = program.model_proto
    model.producer_name, model.producer_version = "tightrope", words["tightrope"]
    onnx.helper.set_model_props(model, words)
    return bytes(model.SerializeToString())


def keep_apart(graph: Any, interface: set[str]) -> None:
    """Rename what is computed within and is called as an input or output is: names come from a Dict's keys, and "linear" is a
    good one."""
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in interface and id(value) not in ends:
                value.name = f"{value.name}/within"


def forget_origin(graph: Any) -> None:
    """Drop where in the source each node came from: three quarters of a small file, and paths of this machine."""
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """The exporter talks of other packages' operators and of its own deprecations, which no user can fix."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def cause_of(error: BaseException) -> str:
    """The first thing that went wrong, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"


# words about it ------------------------------------------------------------------------------------------------------


def metadata(frozen: Frozen, env: Env, about: Settings) -> dict[str, str]:
    """What the file says of itself: where it comes from, what it takes and gives; the spaces as JSON."""
    from ..envs.adapters.space_members import described

    shown = [words_of(name, part) for name, part in zip(frozen.inputs, frozen.reader.parts, strict=True)]
    return {
        "tightrope": __version__,
        **{name: str(value) for name, value in about.items()},
        "observation": json.dumps(shown),
        "action": json.dumps(described(frozen.writer.space)),
    }


def words_of(name: str, part: Part) -> Settings:
    """An input. Where a row holds several things side by side, also which, in their order."""
    from ..envs.adapters.space_members import described

    words = {"name": name, **described(part.space)}
    if isinstance(part.spec, Composite):
        words["row"] = [[name, list(spec.shape)] for name, spec in part.spec.parts]
    return words
