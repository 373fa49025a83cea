"""Runs a function once and notes every operation, those of the backward pass too.

The recorder sees operations below autograd. Each becomes calls that write to the memory of its first result. Results that
depend neither on inputs nor on tensors from outside are constant, and are not recomputed. A repeated operation with the same
operands is done once. Tensors from outside (parameters, buffers, anything else that the function reads) are read in place.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .activations import ACTIVATIONS
from .call import Call, Unrecordable, call_of
from .elementwise import ELEMENTWISE, Context, aten, common_type, elementwise
from .portable import PORTABLE, simplified
from .reductions import REDUCTIONS

ARITHMETIC = {  # results have the type in which they are computed
    aten.mul: np.multiply, aten.div: np.true_divide, aten.minimum: np.minimum, aten.maximum: np.maximum,
    aten.bitwise_or: np.bitwise_or, aten.bitwise_and: np.bitwise_and, aten.bitwise_xor: np.bitwise_xor,
    aten.neg: np.negative, aten.abs: np.absolute, aten.bitwise_not: np.bitwise_not, aten.sqrt: np.sqrt,
}  # fmt: skip
COMPARISONS = {
    aten.gt: np.greater, aten.ge: np.greater_equal, aten.lt: np.less, aten.le: np.less_equal, aten.eq: np.equal,
    aten.ne: np.not_equal, aten.logical_and: np.logical_and, aten.logical_or: np.logical_or, aten.logical_not: np.logical_not,
}  # fmt: skip
ROUNDED = {  # NumPy rounds differently from torch
    aten.exp: np.exp, aten.expm1: np.expm1, aten.log: np.log, aten.log1p: np.log1p, aten.tanh: np.tanh, aten.sin: np.sin,
    aten.cos: np.cos, aten.reciprocal: np.reciprocal, aten.sign: np.sign, aten.sgn: np.sign,
}  # fmt: skip
TORCH_EXACT = {aten.exp: torch.exp, aten.tanh: torch.tanh, aten.sin: torch.sin, aten.cos: torch.cos}
EXACT = {
    aten.add, aten.sub, aten.rsub, aten.pow, aten.clamp, aten.relu, aten.where, aten.masked_fill, aten.clone, aten._to_copy,
    aten.copy, aten.fill, aten.remainder, aten.stack, aten.cat, aten.select_backward, aten.slice_backward,
}  # fmt: skip
UNKNOWABLE = {
    torch.Tag.data_dependent_output: "looks at numbers: use torch.where instead of if",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)  # of fixed shape, except with a mask
HIDDEN_WRITES = (aten.native_batch_norm, aten.cudnn_batch_norm, aten._native_batch_norm_legit)
IN_PLACE = {
    *ARITHMETIC,
    *COMPARISONS,
    *ROUNDED,
    aten.add,
    aten.sub,
    aten.clamp,
    aten.relu,
    aten.masked_fill,
    aten.copy,
    aten.fill,
}
CONSTANT = {  # results do not depend on the values of the tensor argument
    aten.ones_like, aten.zeros_like, aten.full_like, aten.empty_like, aten.new_zeros, aten.new_ones, aten.new_full,
    aten.new_empty,
}  # fmt: skip
CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
MAX_BYTES = 1 << 28  # total size of results: beyond it, NumPy calls are no faster than torch's
MAX_COMPILED_BYTES = 1 << 32  # the same for compiled C, which is faster at any size: a limit on memory
LARGE = 1 << 20  # bytes: larger results of operations without a NumPy equivalent are not copied


class Sharing(Exception):
    """The function writes to a result that is shared by several operations."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside this context, notes every operation.

    `inputs` change with every replay; `writable` tensors from outside may be written; `banned` ones may not be read. With
    `steady`, other tensors from outside change only with `refresh`. With `share`, repeated operations are done once. With
    `portable`, every operation becomes NumPy calls, if necessary as simpler ones. `varying` are numbers that are inputs too.
    """

    def __init__(
        self, inputs: Sequence[Tensor], writable: Sequence[Tensor] = (), banned: Sequence[Tensor] = (), exact: bool = False,
        steady: bool = False, share: bool = True, compiled: bool = False, portable: bool = False,
        varying: Container[float] = (),
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.restores: list[Call] = []  # calls that reset constants which the function writes to
        self.unknown: dict[str, int] = {}  # number of operations without a NumPy equivalent, by name
        self.kept: list[object] = []  # keeps all tensors alive, so that no memory is reused
        self.inputs = {storage(x) for x in inputs}
        self.writable, self.banned = {storage(x) for x in writable}, {storage(x) for x in banned}
        self.made: dict[int, str] = {}  # storages made by the function: constant, steady or live
        self.writes: dict[int, int] = {}  # how often a storage was written to
        self.seen: dict[object, tuple[object, list[int]]] = {}  # results by operation and operands
        self.shared: set[int] = set()
        self.steady, self.share, self.size, self.varying = steady, share, 0, varying
        self.context = Context(
            exact, self.is_steady, lambda x: self.kind(x) == "constant", self.operand, compiled, portable
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes a second."""
        return False

    def kind(self, tensor: Tensor) -> str:
        """Return when a tensor's values change: never (constant), with `refresh` (steady), or with every replay (live)."""
        at = storage(tensor)
        if at in self.inputs:
            return "live"
        return self.made.get(at, "steady" if self.steady else "live")

    def is_steady(self, tensor: Tensor) -> bool:
        return self.kind(tensor) == "steady"

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        given = [x for x in leaves if isinstance(x, Tensor)]
        self.refuse(operation, args, given)
        key = None if operation._schema.is_mutable else self.identity(operation, args, kwargs)
        if key is not None and key in self.seen:
            earlier, versions = self.seen[key]
            if versions == self.versions(earlier):
                self.shared |= {storage(x) for x in tensors(earlier)}
                return pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, earlier)
        if operation._schema.is_mutable:
            return self.write(operation, args, kwargs, given)
        result = operation(*args, **kwargs)
        self.kept.append((args, kwargs, result))
        known = {storage(x) for x in given}
        results = tensors(result)
        if results and all(storage(x) in known for x in results):
            return result  # a view
        kinds = {self.kind(x) for x in given if operation.overloadpacket not in CONSTANT}
        if self.varying and any(type(x) is float and x in self.varying for x in leaves):
            kinds.add("live")
        kind = "live" if "live" in kinds else "steady" if "steady" in kinds else "constant"
        for x in results:
            self.made[storage(x)] = kind
        if kind != "constant" and not self.note(operation, args, kwargs, result):
            with self:
                result = simplified(operation, args, kwargs)
        if key is not None:
            self.seen[key] = result, self.versions(result)
        return result

    def refuse(self, operation: Any, args: Any, given: list[Tensor]) -> None:
        if any(storage(x) in self.banned for x in given):
            raise Unrecordable(f"{operation} reads a tensor that it may not read")
        why = next((UNKNOWABLE[tag] for tag in operation.tags if tag in UNKNOWABLE), None)
        if why is not None:
            raise Unrecordable(f"{operation} {why}")
        packet = operation.overloadpacket
        if torch.Tag.dynamic_output_shape in operation.tags:
            indices = tensors(args[1]) if packet in INDEXED else []
            if packet not in INDEXED or any(x.dtype in (torch.bool, torch.uint8) for x in indices):
                raise Unrecordable(f"{operation} has a result whose shape depends on numbers: use torch.where")
        if packet in HIDDEN_WRITES and True in args:
            raise Unrecordable(f"{operation} keeps statistics in training")
        if packet in CONVOLUTIONS and not self.context.portable:
            raise Unrecordable(f"{operation} is faster in PyTorch")
        if any(x.device.type != "cpu" for x in given):
            raise Unrecordable(f"{operation} on another device")

    def identity(self, operation: object, args: object, kwargs: object) -> object:
        """Return a key of the operation and its operands, or None if repeated operations are not shared."""
        if not self.share:
            return None
        leaves, treespec = pytree.tree_flatten((args, kwargs))
        parts = [self.operand(x) if isinstance(x, Tensor) else (type(x), x) for x in leaves]
        return operation, str(treespec), tuple(parts)

    def operand(self, x: Tensor) -> tuple[object, ...]:
        return x.data_ptr(), x.shape, x.stride(), x.dtype, self.writes.get(storage(x), 0)

    def versions(self, result: object) -> list[int]:
        return [self.writes.get(storage(x), 0) for x in tensors(result)]

    def note(self, operation: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Add the calls that repeat an operation. Return False if it must first become simpler ones."""
        self.size += sum(x.untyped_storage().nbytes() for x in tensors(result))
        if self.size > (MAX_COMPILED_BYTES if self.context.compiled else MAX_BYTES):
            raise Unrecordable("its results are too large")
        calls = None
        if isinstance(result, Tensor):
            calls = calls_for(self.context, operation, args, kwargs, result)
        if calls is None:
            if self.context.portable or (self.context.compiles and operation.overloadpacket in ACTIVATIONS):
                return False
            if any(x.nbytes > LARGE for x in tensors(result)):
                raise Unrecordable(f"{operation}: its result is too large to be copied")
            self.unknown[str(operation)] = self.unknown.get(str(operation), 0) + 1
            plain = pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, (args, kwargs, result))
            calls = [call_of(again, operation, *plain)]
        self.calls += calls
        return True

    def write(self, operation: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """Do an operation that writes into tensors, and note it."""
        named = dict(zip((a.name for a in operation._schema.arguments), args, strict=False)) | kwargs
        written = [
            x for a in operation._schema.arguments if a.alias_info is not None and a.alias_info.is_write
            for x in tensors(named.get(a.name))
        ]  # fmt: skip
        if self.context.portable and operation.overloadpacket not in (aten.copy_, aten.fill_):
            with self:
                made: Any = simplified(operation, args, {k: v for k, v in kwargs.items() if k != "out"})
                return written[0].copy_(made)
        for x in written:
            at = storage(x)
            if at in self.shared:
                raise Sharing
            if at not in self.made and at not in self.writable:
                raise Unrecordable(f"{operation} writes into a tensor that was not made here")
            if self.made.get(at) == "constant":  # a replay must first reset it
                whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
                self.restores.append(call_of(np.copyto, whole.numpy(), whole.numpy().copy(), written=0))
                self.kept.append(whole)
            self.made[at] = "live" if at in self.made else self.made.get(at, "live")
            self.writes[at] = self.writes.get(at, 0) + 1
        result = operation(*args, **kwargs)
        self.kept.append((args, kwargs, result))
        calls = None
        functional = functional_of(operation)
        if functional is not None:
            operands = {k: v for k, v in kwargs.items() if k != "out"}
            calls = calls_for(self.context, functional, args, operands, written[0])
        if calls is None:
            self.unknown[str(operation)] = self.unknown.get(str(operation), 0) + 1
            plain = pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, (args, kwargs))
            calls = [Call(in_place, (operation, *plain, [x.detach() for x in written]), (3,))]
        self.calls += calls
        return result


def storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def tensors(x: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(x) if isinstance(leaf, Tensor)]


def functional_of(operation: Any) -> Any:
    """Return the out-of-place version of an in-place operation, if NumPy may overwrite its operand; otherwise None."""
    name, overload = operation._schema.name.removeprefix("aten::"), operation._overloadname
    packet = getattr(aten, name.removesuffix("_"), None)
    if name.endswith("_") and packet in IN_PLACE:
        return getattr(packet, overload, None)
    return aten.cat.default if operation is aten.cat.out else None


def again(operation: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Repeat an operation in torch, and copy its results to the memory of the first results."""
    for mine, new in zip(tensors(result), tensors(operation(*args, **kwargs)), strict=True):
        mine.copy_(new)


def in_place(operation: Any, args: Any, kwargs: Any, written: object) -> None:
    operation(*args, **kwargs)


def calls_for(
    context: Context, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Tensor
) -> list[Call] | None:
    """Return the NumPy calls for one operation, which write to `out`, or None if torch must do it. With `context.exact`, only
    calls with the same bits as torch are used."""
    packet = operation.overloadpacket
    try:
        if packet in ARITHMETIC and not kwargs:
            return elementwise(context, ARITHMETIC[packet], args, out, out.dtype)
        if packet in COMPARISONS and not kwargs:
            return elementwise(context, COMPARISONS[packet], args, out, common_type(args))
        if context.exact and packet in TORCH_EXACT and not kwargs:
            return [call_of(TORCH_EXACT[packet], args[0].detach(), out.detach())]
        if context.exact and packet not in EXACT:
            return None
        if packet in ROUNDED and not kwargs:
            return elementwise(context, ROUNDED[packet], args, out, out.dtype) if out.is_floating_point() else None
        builder = ELEMENTWISE.get(packet) or REDUCTIONS.get(packet)
        calls = None if builder is None else builder(context, out, *args, **kwargs)
    except TypeError:  # a builder does not handle these arguments or dtypes
        calls = None
    if calls is None and context.portable and packet in PORTABLE:
        return PORTABLE[packet](context, out, *args, **kwargs)
    return calls
