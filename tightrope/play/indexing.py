"""Kernels for operations that read or write at places given by other tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .program import Argument, Untranslatable, View
from .recorder import Args, Kwargs, ProgramRecorder

Steps = tuple[tuple[int, int], View]  # (stride, size) of a dimension, and the indices chosen in it


def at_places(
    recorder: ProgramRecorder, kernel: str, out: View, source: View, places: Sequence[Steps], *others: Argument
) -> None:
    """Gather or scatter: `source` has the shape of the result, with stride 0 along the dimensions that `places` choose in."""
    arguments: list[Argument] = [source]
    for (stride, size), index in places:
        arguments += [index.expanded(source.shape), float(stride), float(size)]
    recorder.add(kernel, out, *arguments, *others)


def along(x: View, dim: int, shape: Sequence[int]) -> View:
    """The places of a result of that shape in x, at index 0 of one dimension."""
    strides = tuple(0 if i == dim else stride for i, stride in enumerate(x.strides))
    return View(x.buffer, x.offset, tuple(shape), strides)


def emit_gather(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x, dim, index = recorder.view(args[0]), args[1] % args[0].dim(), recorder.view(args[2])
    at_places(recorder, "gather", out, along(x, dim, out.shape), [((x.strides[dim], x.shape[dim]), index)])


def emit_index_select(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x, dim, index = recorder.view(args[0]), args[1] % args[0].dim(), recorder.view(args[2])
    after = tuple(1 for _ in range(len(x.shape) - dim - 1))
    wide = View(index.buffer, index.offset, (*index.shape, *after), (*index.strides, *after))
    at_places(recorder, "gather", out, along(x, dim, out.shape), [((x.strides[dim], x.shape[dim]), wide)])


def emit_embedding(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    emit_advanced(recorder, out, (args[0], [args[1]]), kwargs)


def chosen(
    recorder: ProgramRecorder, x: View, indices: Sequence[Tensor | None], shape: Sequence[int]
) -> tuple[View, list[Steps]]:
    """Where x[indices] lies: its places at index 0, and (stride, size, index) of each index."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in given):
        raise Untranslatable("it selects by a mask, whose size a recording cannot follow: use torch.where")
    common = torch.broadcast_tensors(*(index for _, index in given))[0].shape  # type: ignore[no-untyped-call]
    dims = [d for d, _ in given]
    joined = dims == list(range(dims[0], dims[0] + len(dims)))
    before = [d for d in range(len(x.shape)) if d not in dims and joined and d < dims[0]]
    after = [d for d in range(len(x.shape)) if d not in dims and d not in before]
    strides = (*(x.strides[d] for d in before), *(0 for _ in common), *(x.strides[d] for d in after))
    places: list[Steps] = []
    for d, index in given:
        wide = recorder.view(index).expanded(common)
        tail = tuple(1 for _ in after)
        places.append(
            ((x.strides[d], x.shape[d]), View(wide.buffer, wide.offset, (*wide.shape, *tail), (*wide.strides, *tail)))
        )
    return View(x.buffer, x.offset, tuple(shape), strides), places


def emit_advanced(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    """x[i, j], where i and j are tensors."""
    source, places = chosen(recorder, recorder.view(args[0]), args[1], out.shape)
    at_places(recorder, "gather", out, source, places)


def emit_index_put(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    if len(args) > 3 and args[3]:
        raise Untranslatable("it adds at places, by index_put with accumulate")
    x = recorder.view(args[0])
    if x != out:
        recorder.map("copy", out, x)
    indices = [*args[1]]
    shape = torch.empty(out.shape, device="meta")[
        tuple(slice(None) if i is None else i.to("meta") for i in indices)
    ].shape
    source, places = chosen(recorder, out, indices, shape)
    at_places(recorder, "scatter", out, source, places, recorder.view(args[2]).expanded(shape))


def emit_scatter(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x, dim, index, value = recorder.view(args[0]), args[1] % args[0].dim(), recorder.view(args[2]), args[3]
    if kwargs.get("reduce"):
        raise Untranslatable("it adds at places, by scatter with reduce")
    if x != out:
        recorder.map("copy", out, x)
    written = recorder.view(value) if isinstance(value, Tensor) else recorder.number(value, recorder.dtype(out))
    if isinstance(written, View):
        written = written._replace(shape=index.shape)
    place = [((out.strides[dim], out.shape[dim]), index)]
    at_places(recorder, "scatter", out, along(out, dim, index.shape), place, written)


INDEXING = {
    "gather": emit_gather, "index_select": emit_index_select, "embedding": emit_embedding, "index": emit_advanced,
    "_unsafe_index": emit_advanced,
    "index_put": emit_index_put, "_unsafe_index_put": emit_index_put, "scatter": emit_scatter,
}  # fmt: skip
