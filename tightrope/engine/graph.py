"""A function as a CUDA graph, and what forbids that.

The first call runs the function as written, which is real work and warms everything up. The second captures it, without running
it, and replays it from then on. Both give the same bits, so that the switch cannot be seen in the numbers.
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

Held = dict[str, list[object]]  # what an object holds, by attribute
SMALL = 64  # numbers: results up to this size are handed out as copies, larger ones stay in place until the next call


def kind(leaf: object) -> object:
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

    def is_for(self, leaves: list[object]) -> bool:
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

    def __init__(self, result: object) -> None:
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
    """Collects the places at which the host waits for the device, except in the check of analytic gradients."""
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
    """The tensors that an object holds, in containers too, and its plain values. Held on to, no address is used twice."""
    held: Held = {}
    for name, value in vars(thing).items():
        if isinstance(value, nn.Module):
            held[name] = [*value.parameters(), *value.buffers()]
        else:
            leaves = pytree.tree_leaves(value)
            held[name] = [x for x in leaves if isinstance(x, (Tensor, bool, int, float, str))]
    return held


def rebound(thing: object, before: Held, after: Held) -> str | None:
    """The first attribute that a step replaced instead of writing into it: a replay would not see the new one."""
    for name, values in after.items():
        then = before.get(name, [])
        if len(then) != len(values) or not all(map(same, then, values)):
            return f"{type(thing).__name__}.{name} is replaced in a step (what a step changes belongs into the state's columns)"
    return None


def same(a: object, b: object) -> bool:
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
