"""How each torch operation becomes kernels of a `Program`. What is not in the tables here is taken apart by torch's own
decompositions; what these do not know either cannot run in a browser."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._ops import OpOverload

from . import dimensions as d
from . import elementwise as e
from .elementwise import Emit
from .indexing import INDEXING
from .program import Program, Untranslatable
from .recorder import Args, Constants, Function, Kwargs, ProgramRecorder, storage_of

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


def note(recorder: ProgramRecorder, function: OpOverload, args: Args, kwargs: Kwargs) -> object:
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
    if written is None and emit is not e.emit_known and all(storage_of(x) in given for x in tensors):
        recorder.kept.append(result)  # only other views
        return result
    if isinstance(written, Tensor) and not recorder.is_known(written):
        raise Untranslatable("it changes a tensor in place that it did not make")
    assert emit is not None
    emit(recorder, recorder.declare(tensors[0]), args, {**kwargs, "results": tensors})
    return result


def decomposed(recorder: ProgramRecorder, function: OpOverload, args: Args, kwargs: Kwargs) -> object:
    """Run an operation as simpler ones, which are recorded."""
    from torch._decomp import decomposition_table

    simpler = decomposition_table.get(function, function.decompose)
    with recorder:
        result: object = simpler(*args, **kwargs)
    if result is NotImplemented:
        raise Untranslatable(f"it uses the operation {function}, which is not known in the browser")
    return result


def is_view(function: OpOverload) -> bool:
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
    **dict.fromkeys(("arange", "linspace", "eye", "lift_fresh", "lift_fresh_copy"), e.emit_known),
    **INDEXING,
    "add": e.emit_add, "sub": e.emit_subtract, "rsub": e.emit_rsub, "div": e.emit_divide, "true_divide": e.emit_divide,
    "reciprocal": e.emit_reciprocal, "rsqrt": e.emit_square_root_below, "where": e.emit_where, "masked_fill":
    e.emit_masked_fill, "clamp": e.emit_clamp, "relu": e.emit_relu, "addcmul": e.multiply_add("mul"), "addcdiv":
    e.multiply_add("div"), "copy": e.emit_copy_into, "mean": d.emit_mean, "var": d.emit_variance, "_softmax":
    d.emit_softmax, "_log_softmax": d.emit_log_softmax, "cumsum": d.emit_cumulative_sum, "mm": d.emit_matmul, "bmm":
    d.emit_matmul, "addmm": d.emit_add_matmul, "baddbmm": d.emit_add_matmul, "mv": d.emit_vector_product, "dot":
    d.emit_vector_product, "cat": d.emit_concatenate, "stack": d.emit_stack, "constant_pad_nd": d.emit_pad, "flip":
    d.emit_flip, "convolution": d.emit_convolution,
}  # fmt: skip


@torch.no_grad()
def record(function: Function, inputs: Mapping[str, Tensor], constants: Constants | None = None) -> Program:
    """The program of a function that takes tensors and returns tensors by name. Other tensors that it reads are constants."""
    recorder = ProgramRecorder(constants or {}, note)
    declared = {name: recorder.declare(tensor) for name, tensor in inputs.items()}
    with recorder:
        results = function(*inputs.values())
    outputs = {name: recorder.view(tensor) for name, tensor in results.items()}
    return Program(recorder.buffers, recorder.contents, declared, outputs, recorder.operations).pruned()
