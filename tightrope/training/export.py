"""A frozen agent as one ONNX file, for machines that have neither torch nor Tightrope.

The graph takes observations as the environment shows them and gives the greedy action as the environment takes it; all that
lies between is inside: reading the space, statistics of observations, the network, scaling to bounds. The file is written
only once onnxruntime agrees with torch: on observations of short episodes and on random ones of their scale, in batches of
several sizes. Torch's answers come the way `Agent.predict` goes, by the environment's own encode and decode.

Inputs   obs (B, ...); of a Dict or Tuple each part by its name, such as "camera" or "hand/0"
Outputs  action (B, ...); what it is chosen from: logits, or mean and std in the environment's units; value, with a critic
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..envs.adapters.host import HostEnv
from ..errors import EnvError, ExportError, UsageError, one_line, root_cause
from ..files import write_file
from ..models import ActorCritic, Gaussian
from ..models.actor_critic import Distribution, GaussianHead
from ..models.distributions import RULED_OUT
from ..types import Composite, Discrete, Env, MultiDiscrete, Settings, Spec
from ..version import __version__

OPSET = 18  # which runtimes have had since 2023
ROWS, STEPS = 4, 16  # of the episodes; as many observations again are random
BATCHES = (1, 2, 7)  # sizes of the first few; the last one has all the rest
SPREAD = 3.0  # of random observations, in standard deviations of those seen
TOLERANCE = 1e-4  # of the largest number in an output, or of 1 where all are smaller
Array = np.ndarray[Any, Any]
Outputs = dict[str, Array]


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
    """Refuse what could not be written, before any work is done for it."""
    if path.suffix != ".onnx":
        raise UsageError(f"file {path} is not ONNX by its name: give one that ends in .onnx")
    if path.is_dir():
        raise UsageError(f"file {path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"file {path} cannot be written: there is no directory {path.parent}")
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]:
        raise UsageError(f'export needs {" and ".join(missing)}, not installed here: pip install "tightrope[onnx]"')


class Frozen(nn.Module):
    """From observations to actions and the parameters of their distribution."""

    def __init__(self, policy: ActorCritic, env: Env) -> None:
        from ..envs.adapters.spaces import reader_of, writer_of

        super().__init__()
        self.policy, self.reader, self.writer, spec = policy, reader_of(env), writer_of(env), env.observation
        self.outputs = ("action", *other_outputs(policy, *policy(torch.zeros(2, *spec.shape, dtype=spec.dtype))))
        self.inputs = tuple(f"obs/{p.name}" if p.name in self.outputs else p.name for p in self.reader.parts)
        self.eval()

    def forward(self, *obs: Tensor) -> tuple[Tensor, ...]:
        distribution, value = self.policy(self.reader.traced(obs))
        action = self.writer.traced(self.policy.head.to_env(distribution.mode()))
        return (action, *other_outputs(self.policy, distribution, value).values())

    def metadata(self, about: Settings) -> dict[str, str]:
        """What the file says of itself: where it comes from, what it takes and gives; the spaces as JSON. Where a row of an
        input holds several things side by side, also which, in their order."""
        from ..envs.adapters.space_members import described

        shown = []
        for name, part in zip(self.inputs, self.reader.parts, strict=True):
            inner = part.spec.parts if isinstance(part.spec, Composite) else ()
            row = {"row": [[word, list(spec.shape)] for word, spec in inner]} if inner else {}
            shown.append({"name": name, **described(part.space), **row})
        words = {"tightrope": __version__, **{name: str(value) for name, value in about.items()}}
        return words | {"observation": json.dumps(shown), "action": json.dumps(described(self.writer.space))}


def other_outputs(policy: ActorCritic, distribution: Distribution, value: Tensor) -> dict[str, Tensor]:
    """What a graph gives besides the action, by name; a mean is not clipped yet, but in the environment's units."""
    outputs: dict[str, Tensor] = {}
    head = policy.head
    if isinstance(distribution, Gaussian) and isinstance(head, GaussianHead):
        mean = torch.addcmul(head.middle, head.reach, distribution.mean)
        std = (head.reach * distribution.log_std.exp()).expand_as(mean)
        flat = len(head.shape) == 1
        outputs |= {k: v if flat else v.reshape(-1, *head.shape) for k, v in (("mean", mean), ("std", std))}
    elif not isinstance(distribution, Gaussian):
        outputs["logits"] = distribution.logits
    return outputs if policy.critic is None else {**outputs, "value": value}


@torch.no_grad()
def graph(frozen: Frozen, words: dict[str, str]) -> bytes:
    """The file's content: the module as a graph, with words about it."""
    import onnx

    rows, spec = torch.export.Dim("batch"), frozen.reader.spec
    nothing = torch.zeros(2, *spec.shape, dtype=spec.dtype).numpy()
    example = tuple(map(torch.from_numpy, frozen.reader.show(nothing)))
    options: Settings = {"input_names": frozen.inputs, "output_names": frozen.outputs, "opset_version": OPSET}
    options["dynamic_shapes"] = {"obs": tuple({0: rows} for _ in example)}
    try:
        with silence():
            program = torch.onnx.export(frozen, example, dynamo=True, **options)
    except torch.onnx.OnnxExporterError as error:
        cause = root_cause(error)
        first = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0][:120]}"
        raise UsageError(f"the network cannot be a graph, which cannot look at numbers: {first}") from error
    assert program is not None
    clean(program.model.graph, {*frozen.inputs, *frozen.outputs})
    model = program.model_proto
    model.producer_name, model.producer_version = "tightrope", words["tightrope"]
    onnx.helper.set_model_props(model, words)
    return bytes(model.SerializeToString())


def clean(graph: Any, interface: set[str]) -> None:
    """Rename what is computed within and is called as an input or output is: names come from a Dict's keys, and "linear" is a
    good one. Drop where in the source each node came from: three quarters of a small file, and paths of this machine."""
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    inner = [value for node in graph.all_nodes() for value in node.outputs]
    for value in inner:
        if value.name in interface and id(value) not in ends:
            value.name = f"{value.name}/within"
    for part in (graph, *graph.all_nodes(), *inner, *graph.inputs, *graph.initializers.values()):
        part.metadata_props.clear()


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


@torch.no_grad()
def example_rows(policy: ActorCritic, env: Env, seed: int) -> Tensor:
    """(rows, ...) as the policy reads them, on the CPU. Half are what a few copies of the environment show while the policy
    acts as in training, if copies can be made; the others are random."""
    spec, generator = env.observation, torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    try:
        twin = env.spawn(ROWS, seed)
        obs = twin.reset(seed=seed)
        noise = torch.Generator(obs.device).manual_seed(seed)
        for _ in range(STEPS):
            seen.append(obs.cpu().clone().to(spec.dtype))
            action = policy.distribution(obs).sample(policy.head.noise((ROWS,), noise))
            obs = twin.step(policy.head.to_env(action)).obs
        twin.close()
    except (UsageError, EnvError):  # there is one alone, or none can be run here
        seen = []
    like = torch.cat(seen) if seen else torch.zeros(ROWS * STEPS, *spec.shape)
    rows = torch.cat([*seen, random_rows(spec, like.float(), generator)])
    return rows[torch.randperm(len(rows), generator=generator)]


def random_rows(spec: Spec, like: Tensor, generator: torch.Generator) -> Tensor:
    """As many rows as `like` has. Numbers are spread around those in `like`; choices and pixels are any."""
    count = len(like)
    if isinstance(spec, Composite):
        pieces = torch.split(like, [math.prod(part.shape) for _, part in spec.parts], dim=1)
        shaped = [(part, x.reshape(count, *part.shape)) for (_, part), x in zip(spec.parts, pieces, strict=True)]
        drawn = [random_rows(part, x, generator) for part, x in shaped]
        return torch.cat([rows.reshape(count, -1).to(spec.dtype) for rows in drawn], dim=1)
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (count,), generator=generator)
    if isinstance(spec, MultiDiscrete):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in spec.n], 1)
    if spec.dtype == torch.uint8:
        return torch.randint(256, (count, *spec.shape), generator=generator, dtype=torch.uint8)
    std = like.std(0)
    return like.mean(0) + SPREAD * torch.randn(like.shape, generator=generator) * torch.where(std > 0, std, 1.0)


@torch.no_grad()
def differences(content: bytes, frozen: Frozen, env: Env, rows: Tensor) -> dict[str, float]:
    """The largest absolute difference between a graph and torch, by output; an ExportError where that is too large."""
    batches = torch.split(rows, [*BATCHES, len(rows) - sum(BATCHES)])
    shown = [frozen.reader.show(batch.numpy()) for batch in batches]
    got = run_graph(content, [dict(zip(frozen.inputs, arrays, strict=True)) for arrays in shown])
    pairs = zip(got, shown, strict=True)
    errors = [output_errors(outputs, expected(frozen.policy, env, arrays)) for outputs, arrays in pairs]
    return {name: max(error[name] for error in errors) for name in frozen.outputs}


def run_graph(content: bytes, batches: list[Outputs]) -> list[Outputs]:
    """What onnxruntime makes of each batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, batch), strict=True)) for batch in batches]
    except Exception as error:  # its own kinds have no common name
        raise ExportError(f"onnxruntime cannot run the graph, so nothing was written: {one_line(error)}") from error


def expected(policy: ActorCritic, env: Env, shown: Sequence[Array]) -> Outputs:
    """What torch gives."""
    on_host = env if isinstance(env, HostEnv) else None
    rows = on_host.encode(on_host._observation.nested(shown))[0].cpu() if on_host else torch.from_numpy(shown[0])
    distribution, value = policy(rows)
    action = policy.head.to_env(distribution.mode())
    outputs = {name: tensor.numpy() for name, tensor in other_outputs(policy, distribution, value).items()}
    return {"action": on_host.decode(action) if on_host else action.numpy(), **outputs}


def output_errors(got: Outputs, want: Outputs) -> dict[str, float]:
    """The largest absolute difference in each output of one batch. Where two choices are so close that rounding decides
    between them, either is right."""
    errors: dict[str, float] = {}
    for name, right in want.items():
        mine, most = got[name], allowed(right)
        if (mine.shape, mine.dtype) != (right.shape, right.dtype):
            there, here = (f"{array.dtype}{list(array.shape)}" for array in (mine, right))
            raise ExportError(f"{name} is {there} in the graph and {here} in torch, so nothing was written")
        if not np.isfinite(right).all():
            raise ExportError(f"{name} is not finite in torch, so nothing was written: has training diverged?")
        difference = np.abs(mine.astype(np.float64) - right)
        if name == "action" and "logits" in want:
            sure = margin(want["logits"]).reshape(right.shape) > 2 * allowed(want["logits"])
            difference = np.where(sure, difference, 0.0)
        error = errors[name] = float(difference.max())
        if not error <= most:  # nor where it is NaN
            raise ExportError(f"{name} is off by {error:.1e} in the graph (at most {most:.1e}), so nothing was written")
    return errors


def allowed(right: Array) -> float:
    """The largest difference that rounding may make: in float32 on the way, and to the output's own type at the end."""
    share = max(TOLERANCE, 2 * float(np.finfo(right.dtype).eps)) if right.dtype.kind == "f" else TOLERANCE
    numbers = np.abs(right.astype(np.float64))
    return share * max(1.0, float(numbers[numbers < -RULED_OUT].max(initial=0.0)))


def margin(logits: Array) -> Array:
    """How far ahead the best choice is of the second best, infinitely where there is one alone; (B,) or (B, K)."""
    return np.diff(np.sort(logits, axis=-1))[..., -1:].min(axis=-1, initial=np.inf)
