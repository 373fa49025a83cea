"""How each torch operation becomes kernels of a `Program`. What is not in the tables here is taken apart by torch's own
decompositions; what these do not know either cannot run in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from . import dimensions as d
from . import elementwise as e
from .elementwise import Args, Emit
from .indexing import INDEXING
from .program import Untranslatable
from .recorder import Recorder, storage_of

UNARY = {
    name: name for name in (
        "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sigmoid", "erf", "isnan", "isinf",
    )
} | {"logical_not": "not", "clone": "copy", "_to_copy": "copy"}  # fmt: skip
BINARY = {
    "mul": "mul", "hypot": "hypot", "minimum": "min", "maximum": "max",
    "atan2": "atan2", "remainder": "remainder", "fmod": "fmod", "pow": "pow",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "logical_and": "and", "logical_or": "or",
    "logical_xor": "ne", "floor_divide": "floordiv", "clamp_min": "max", "clamp_max": "min",
}  # fmt: skip
REDUCTIONS = {
    "sum": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "max": "amax", "min": "amin", "any": "any", "all": "all",
    "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip
LOGICAL = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "ne", "bitwise_not": "not"}
FILLS = {
    "zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero": 0, "empty": 0, "empty_like": 0, "new_empty": 0, "empty_strided": 0,
    "new_empty_strided": 0, "ones": 1, "ones_like": 1, "new_ones": 1,
}  # fmt: skip
VALUE_FILLS = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}  # where the value stands
READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique2", "_unique2")


def note(recorder: Recorder, function: Any, args: Args, kwargs: Mapping[str, Any]) -> object:
    """Run an operation and record it."""
    name = function.overloadpacket.__name__
    if torch.Tag.nondeterministic_seeded in function.tags:
        raise Untranslatable(f"it draws random numbers by {name}")
    if name in READS:
        raise Untranslatable("it looks at numbers, which a recording cannot follow: use torch.where instead of if")
    in_place = name.endswith("_") and not name.endswith("__")
    emit = EMIT.get(name.removesuffix("_") if in_place else name)
    if emit is None and not is_view(function):
        return decomposed(recorder, function, args, kwargs)
    result = function(*args, **kwargs)
    tensors = [x for x in flat(result) if isinstance(x, Tensor)]
    given = {storage_of(x) for x in flat((args, dict(kwargs))) if isinstance(x, Tensor)}
    written = args[0] if in_place else kwargs.get("out")
    if written is None and emit is not e.known and all(storage_of(x) in given for x in tensors):
        recorder.kept.append(result)  # only other views
        return result
    if isinstance(written, Tensor) and not recorder.is_known(written):
        raise Untranslatable("it changes a tensor in place that it did not make")
    assert emit is not None
    emit(recorder, recorder.declare(tensors[0]), args, {**kwargs, "results": tensors})
    return result


def decomposed(recorder: Recorder, function: Any, args: Args, kwargs: Mapping[str, Any]) -> object:
    """Run an operation as simpler ones, which are recorded."""
    from torch._decomp import decomposition_table

    simpler = decomposition_table.get(function, function.decompose)
    with recorder:
        result: object = simpler(*args, **kwargs)
    if result is NotImplemented:
        raise Untranslatable(f"it uses the operation {function}, which is not known in the browser")
    return result


def is_view(function: Any) -> bool:
    return bool(function.is_view) or function.overloadpacket.__name__ in (
        "_unsafe_view",
        "_reshape_alias",
        "detach",
        "alias",
    )


def flat(value: object) -> list[object]:
    """The values in nested lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return [inner for item in value for inner in flat(item)]
    return flat(list(value.values())) if isinstance(value, dict) else [value]


EMIT: dict[str, Emit] = {
    **{name: e.unary(kernel) for name, kernel in UNARY.items()},
    **{name: e.binary(kernel) for name, kernel in BINARY.items()},
    **{name: d.reduction(kernel) for name, kernel in REDUCTIONS.items()},
    **{name: e.logical(kernel) for name, kernel in LOGICAL.items()},
    **{name: e.constant_fill(value) for name, value in FILLS.items()},
    **{name: e.value_fill(place) for name, place in VALUE_FILLS.items()},
    **dict.fromkeys(("arange", "linspace", "eye", "lift_fresh", "lift_fresh_copy"), e.known),
    **INDEXING,
    "add": e.add, "sub": e.subtract, "rsub": e.rsub, "div": e.divide, "true_divide": e.divide, "reciprocal": e.reciprocal,
    "rsqrt": e.square_root_below, "where": e.where, "masked_fill": e.masked_fill, "clamp": e.clamp, "relu": e.relu,
    "addcmul": e.multiply_add("mul"), "addcdiv": e.multiply_add("div"), "copy": e.copy_into, "mean": d.mean, "var": d.variance,
    "_softmax": d.softmax, "_log_softmax": d.log_softmax, "cumsum": d.cumulative_sum, "mm": d.matmul, "bmm": d.matmul,
    "addmm": d.add_matmul, "baddbmm": d.add_matmul, "mv": d.vector_product, "dot": d.vector_product, "cat": d.concatenate,
    "stack": d.stack, "constant_pad_nd": d.pad, "flip": d.flip, "convolution": d.convolution,
}  # fmt: skip
