"""Functions as CUDA graphs, and the checks whether a function can be captured.

The first call runs the function in plain PyTorch, which also serves as the warm-up. The second call captures the function, and
from then on the graph is replayed. All calls give the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Held = dict[str, list[object]]  # the values that an object holds, by attribute
SMALL = 64  # entries: smaller results are returned as copies, larger ones are overwritten by the next call


def graph_key(leaf: object) -> object:
    """Return the key by which graphs of one function differ: shape and dtype, value of a number, or type."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, (int, float)) else type(leaf)


class Graph:
    """One function as a CUDA graph. Its tensor arguments are copied into the graph's inputs."""

    def __init__(self, function: Callable[..., Any], leaves: list[Any], treespec: Any) -> None:
        self.function, self.treespec = function, treespec
        self.leaves = list(leaves)  # also keeps these objects alive
        self.graph: torch.cuda.CUDAGraph | None = None
        self.obstacle: str | None = None  # why the function cannot be captured
        self.outputs: Any = None

    def is_for(self, leaves: list[object]) -> bool:
        """Whether the graph was made for these objects."""
        return all(
            mine is given for mine, given in zip(self.leaves, leaves, strict=True) if not isinstance(given, Tensor)
        )

    def warm_up(self) -> Any:
        """Run the function once in plain PyTorch, and find out whether it can be captured."""
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
            except Exception as error:  # an error of the function itself occurs again in the plain call
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
        return self.function(*pytree.tree_unflatten(leaves, self.treespec))

    def _capture(self, leaves: list[Any]) -> None:
        self.leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.outputs = Outputs(self._call(self.leaves))
        self.graph = graph


class Outputs:
    """The results of a graph. All small results of one dtype are in one tensor, which is copied for the caller."""

    def __init__(self, result: object) -> None:
        self.leaves, self.treespec = pytree.tree_flatten(result)
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
        return pytree.tree_unflatten(leaves, self.treespec)


# obstacles to a capture --------------------------------------------------------------------------------------------


@contextmanager
def syncs_noted() -> Iterator[list[str]]:
    """Collect the places at which the host waits for the device, except within the engine itself."""
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


def fixtures(thing: object) -> Held:
    """Return the tensors (also in containers) and plain values that an object holds. Holding them keeps addresses unique."""
    held: Held = {}
    for name, value in vars(thing).items():
        if isinstance(value, nn.Module):
            held[name] = [*value.parameters(), *value.buffers()]
        else:
            leaves = pytree.tree_leaves(value)
            held[name] = [x for x in leaves if isinstance(x, (Tensor, bool, int, float, str))]
    return held


def rebound(thing: object, before: Held, after: Held) -> str | None:
    """Describe the first attribute that a step has replaced instead of writing in place. A replay would miss the change."""
    for name, values in after.items():
        then = before.get(name, [])
        if len(then) != len(values) or not all(map(is_unchanged, then, values)):
            return f"{type(thing).__name__}.{name} is replaced in a step (a step must write its state in place)"
    return None


def is_unchanged(a: object, b: object) -> bool:
    return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)


def place_of(error: BaseException) -> str:
    """Return the line of code, outside torch and this file, at which a capture failed."""
    places = []
    tb = (error.__context__ or error).__traceback__
    while tb is not None:
        path = Path(tb.tb_frame.f_code.co_filename)
        if "torch" not in path.parts and path != Path(__file__):
            places.append(f"{path.name}, line {tb.tb_lineno}")
        tb = tb.tb_next
    return places[-1] if places else "a CUDA call"
