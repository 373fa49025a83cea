"""How a phase is executed: as written, compiled, or replayed as a CUDA graph. What is executed is always the page.

Two decorators mark functions that may be executed in another way, and do nothing else:

    @capturable("phase")  a whole phase: one CUDA graph, where the environments are tensors
    @capturable("part")   a part of it, a graph of its own where they are not
    @compilable()         a leaf: compiled by torch.compile, alone or within a capture

`Execution.run` calls a phase with one way of execution in force. The first call of a captured function runs it as written,
which is real work and warms everything up; the second captures it, without running it, and replays it from then on. Both
give the same bits, so that the switch cannot be seen in the numbers. Compilation changes rounding: training waits for it.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import UsageError
from ..output import print_line
from .precision import KernelPrecision, Precision, arithmetic

Mode = Literal["eager", "compile", "graph", "max"]
Accelerate = Literal["auto", "eager", "compile", "graph", "max"]
Unit = Literal["phase", "part"]
P = ParamSpec("P")
R = TypeVar("R")
CPU = torch.device("cpu")
ADVICE = (  # of the compiler's, which is not for users: precision is a setting, and the other is about itself
    r"\s*TensorFloat32 tensor cores", r"\s*Online softmax is disabled",
)  # fmt: skip
SMALL = 64  # numbers: results up to this size are handed out as copies, larger ones stay in place until the next call

_current: ContextVar[Execution | None] = ContextVar("execution", default=None)


class Execution:
    """One way of executing phases. `unit` is what a graph holds, `say` is told when something cannot be captured."""

    def __init__(
        self,
        mode: Mode = "eager",
        unit: Unit = "phase",
        precision: Precision = "fp32",
        device: torch.device = CPU,
        say: Callable[[str], None] = lambda line: print_line(line, error=True),
    ) -> None:
        self.mode, self.precision, self.device, self.say = mode, precision, device, say
        self.unit: Unit | None = unit if mode in ("graph", "max") else None
        self.compiles = mode in ("compile", "max")
        self.graphs: dict[Any, Graph] = {}
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        if self.compiles:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tightrope" / "inductor"
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
            for words in ADVICE:
                warnings.filterwarnings("ignore", words)

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result, with this execution in force while it runs."""
        token = _current.set(self)
        try:
            one_of_several = self.device.type == "cuda" and self.device.index is not None
            current = torch.cuda.device(self.device) if one_of_several else nullcontext()  # whose streams are used
            with current, arithmetic(self.precision, self.device):
                return function(*args, **kwargs)
        finally:
            _current.reset(token)

    def compiled(self, function: Callable[P, R]) -> Callable[P, R]:
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False)
        return self._compiled[function]

    def captured(self, function: Callable[..., R], args: tuple[Any, ...]) -> R:
        """The function's result, by replay from its second call on."""
        leaves, form = pytree.tree_flatten(args)
        key = (function, *(kind(x) for x in leaves))
        graph = self.graphs.get(key)
        if graph is None or not graph.is_for(leaves):  # one of each: a new plan takes the place of the old one
            graph = self.graphs[key] = Graph(function, leaves, form)
            result = graph.warm_up()
        else:
            result = graph(leaves)
        if graph.obstacle is not None:
            del self.graphs[key]
            self.unit = "part" if self.unit == "phase" else None
            instead = "its parts are, one by one" if self.unit else "it runs as written"
            self.say(f"accelerate: a {function.__name__} cannot be captured, {instead}: {graph.obstacle}")
        return result


def chosen_mode(accelerate: Accelerate, device: torch.device) -> Mode:
    """What `auto` means on a device: graphs on CUDA, as written elsewhere; and what the others need."""
    if accelerate == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if accelerate == "graph" and device.type != "cuda":
        raise UsageError(f"accelerate graph needs a CUDA device and this run is on {device.type}: give auto or compile")
    if accelerate == "max" and device.type != "cuda":
        return "compile"  # all of it that there is elsewhere
    return accelerate


def capturable(unit: Unit) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """May be captured as a CUDA graph: never reads a tensor on the host, and keeps its state where it is."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() or kwargs:
                return function(*args, **kwargs)
            execution = _current.get()
            if execution is None or execution.unit != unit:
                return function(*args, **kwargs)
            return execution.captured(function, args)

        return call

    return decorate


def compilable(when: Callable[..., bool] = lambda *_: True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """May be compiled, where `when` holds of its arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            execution = _current.get()
            if execution is None or not execution.compiles or not when(*args):
                return function(*args, **kwargs)
            return execution.compiled(function)(*args, **kwargs)

        return call

    return decorate


def compiling() -> bool:
    """Whether what runs now is or will be compiled, so that it has to be torch all through."""
    if torch.compiler.is_compiling():
        return True
    execution = _current.get()
    return execution is not None and execution.compiles


def kernels_wanted() -> KernelPrecision | None:
    """The precision of fused kernels, where the execution in force wants them."""
    execution = _current.get()
    if execution is None or execution.mode != "max" or execution.precision == "bf16":
        return None
    return execution.precision


def is_exact() -> bool:
    """Whether matrix products are those of float32."""
    execution = _current.get()
    return execution is None or execution.precision == "fp32"


def kind(leaf: Any) -> Any:
    """What tells graphs of one function apart: shapes and types of tensors, values of numbers, types of anything else."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, (int, float)) else type(leaf)


class Graph:
    """One function as a CUDA graph. Its tensor arguments are copied to where the graph expects them."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any], form: Any) -> None:
        self.function, self.form = function, form
        self.leaves = list(leaves)  # also keeps alive what the graph has been made for
        self.graph: torch.cuda.CUDAGraph | None = None
        self.obstacle: str | None = None  # why there can be no graph
        self.outputs: Any = None

    def is_for(self, leaves: list[Any]) -> bool:
        """Whether these are the objects it was made for."""
        return all(
            mine is given for mine, given in zip(self.leaves, leaves, strict=True) if not isinstance(given, Tensor)
        )

    def warm_up(self) -> Any:
        """Run the function as written, once and for real, and look whether it could be captured."""
        things = [x for x in self.leaves if hasattr(x, "env")]
        before = [fixtures(thing.env) for thing in things]
        with syncs_noted() as noted:
            result = self._call(self.leaves)
        for thing, then in zip(things, before, strict=True):
            self.obstacle = self.obstacle or rebound(thing.env, then, fixtures(thing.env))
        if noted and self.obstacle is None:
            self.obstacle = f"{noted[0]} reads a tensor on the host"
        return result

    def __call__(self, leaves: list[Any]) -> Any:
        if self.graph is None:
            try:
                self._capture(leaves)
            except Exception as error:  # whatever it is, it will show again in the call as written
                torch.cuda.synchronize()
                self.obstacle = f"{place_of(error)} ({str(error.__context__ or error).splitlines()[0]})"
                return self._call(leaves)
        for mine, given in zip(self.leaves, leaves, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.outputs.fresh()

    def _call(self, leaves: list[Any]) -> Any:
        return self.function(*pytree.tree_unflatten(leaves, self.form))

    def _capture(self, leaves: list[Any]) -> None:
        self.leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.outputs = Outputs(self._call(self.leaves))
        self.graph = graph


class Outputs:
    """What a graph leaves behind. All small results of a type lie in one tensor, which is copied for the caller."""

    def __init__(self, result: Any) -> None:
        self.leaves, self.form = pytree.tree_flatten(result)
        small: dict[torch.dtype, list[int]] = {}
        for i, x in enumerate(self.leaves):
            if isinstance(x, Tensor) and x.numel() <= SMALL:
                small.setdefault(x.dtype, []).append(i)
        self.packed = [(which, torch.cat([self.leaves[i].flatten() for i in which])) for which in small.values()]

    def fresh(self) -> Any:
        leaves = list(self.leaves)
        for which, packed in self.packed:
            sizes = [leaves[i].numel() for i in which]
            for i, piece in zip(which, torch.split(packed.clone(), sizes), strict=True):
                leaves[i] = piece.view(leaves[i].shape)
        return pytree.tree_unflatten(leaves, self.form)


# what forbids a capture ----------------------------------------------------------------------------------------------


@contextmanager
def syncs_noted() -> Iterator[list[str]]:
    """Collects the places at which the host waits for the device, but for the gradient's look at itself."""
    noted: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield noted
        finally:
            torch.cuda.set_sync_debug_mode(before)
    ours, compilers = Path(__file__).parent, ("_dynamo", "_inductor", "_functorch", "fx")
    for warning in caught:
        here = Path(warning.filename)
        if "synchroniz" not in str(warning.message).lower():
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif "prototype" not in str(warning.message) and here.parent != ours and not {*compilers} & {*here.parts}:
            noted.append(f"{here.name}, line {warning.lineno},")


def fixtures(thing: Any) -> dict[str, Any]:
    """The tensors that an object holds, in containers too, and its plain values. Held on to, no address is used twice."""
    held: dict[str, Any] = {}
    for name, value in vars(thing).items():
        if isinstance(value, nn.Module):
            held[name] = [*value.parameters(), *value.buffers()]
        else:
            leaves = pytree.tree_leaves(value)
            held[name] = [x for x in leaves if isinstance(x, (Tensor, bool, int, float, str))]
    return held


def rebound(thing: Any, before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The first attribute that a step replaced instead of writing into it: a replay would not see the new one."""
    for name, values in after.items():
        then = before.get(name, [])
        if len(then) != len(values) or not all(map(same, then, values)):
            return f"{type(thing).__name__}.{name} is replaced in a step (what a step changes belongs into the state's columns)"
    return None


def same(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def place_of(error: BaseException) -> str:
    """The line of code, outside torch and this file, on which a capture broke off."""
    places = []
    tb = (error.__context__ or error).__traceback__
    while tb is not None:
        path = Path(tb.tb_frame.f_code.co_filename)
        if "torch" not in path.parts and path != Path(__file__):
            places.append(f"{path.name}, line {tb.tb_lineno}")
        tb = tb.tb_next
    return places[-1] if places else "a CUDA call"
