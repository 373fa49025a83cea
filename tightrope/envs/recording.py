"""What a function does with tensors, recorded once and replayed over the same memory.

Where rows are few an operation costs what its call costs, and NumPy's calls, into arrays that are there already, cost a fifth
of torch's. While the function runs for the first time, each operation is noted with the tensors that it read and the one that
it made, and all of them are kept. To replay is to put other numbers where the first ones were and to do the same again, each
result into the memory of its first. Views cost nothing: they are views still.

NumPy does what it rounds as torch does, torch all the rest. A function that looks at numbers to decide what to do next cannot
be recorded; nor can one that draws random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .options import Array

Call = tuple[Callable[..., Any], tuple[Any, ...]]
aten = torch.ops.aten
SAME = {  # bit for bit, over numbers of one type
    aten.mul.Tensor: np.multiply,
    aten.add.Tensor: np.add,
    aten.sub.Tensor: np.subtract,
    aten.div.Tensor: np.true_divide,
    aten.neg.default: np.negative,
    aten.abs.default: np.absolute,
    aten.minimum.default: np.minimum,
    aten.maximum.default: np.maximum,
    aten.bitwise_or.Tensor: np.bitwise_or,
    aten.bitwise_and.Tensor: np.bitwise_and,
    aten.bitwise_not.default: np.invert,
    aten.gt.Scalar: np.greater,
    aten.gt.Tensor: np.greater,
    aten.ge.Scalar: np.greater_equal,
    aten.ge.Tensor: np.greater_equal,
    aten.lt.Scalar: np.less,
    aten.lt.Tensor: np.less,
    aten.le.Scalar: np.less_equal,
    aten.le.Tensor: np.less_equal,
}
CONSTANT = {
    aten.ones_like.default,
    aten.zeros_like.default,
    aten.full_like.default,
    aten.zeros.default,
    aten.ones.default,
}
COMPARISONS = (np.greater, np.greater_equal, np.less, np.less_equal)
CAST = partial(np.copyto, casting="unsafe")
UNARY = {
    aten.sin.default: torch.sin,
    aten.cos.default: torch.cos,
    aten.exp.default: torch.exp,
    aten.tanh.default: torch.tanh,
}
UNKNOWABLE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}


class Unrecordable(Exception):
    """Not the same calls each time."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, notes every operation."""

    def __init__(self, banned: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.banned = {tensor.untyped_storage().data_ptr() for tensor in banned}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To make sure that nothing here is compiled, which nobody would, torch imports its compiler: a second."""
        return False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not UNKNOWABLE.isdisjoint(operation.tags) or any(map(self.is_banned, pytree.tree_leaves(args))):
            raise Unrecordable(operation)
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            self.calls += calls_for(operation, args, kwargs or {}, result)
        return result

    def is_banned(self, thing: Any) -> bool:
        return isinstance(thing, Tensor) and thing.untyped_storage().data_ptr() in self.banned


def calls_for(operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> list[Call]:
    """What to call to do an operation again."""
    if operation._schema.is_mutable:
        return [(partial(operation, **kwargs), tuple(args))]
    if isinstance(result, Tensor):
        calls = cheap_calls(operation, args, kwargs, result)
        return calls or [(again, ([result], lambda: [operation(*args, **kwargs)]))]
    return [(again, (result, partial(operation, *args, **kwargs)))]


def cheap_calls(operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> list[Call] | None:
    """The same in NumPy's calls, or in one of torch's that writes where it should; None where there are none."""
    out = result.numpy()
    if operation is aten.clone.default:
        return [(np.copyto, (out, args[0].numpy()))]
    if operation in CONSTANT:
        return [(np.copyto, (out, out.copy()))]
    if kwargs:
        return None
    if operation in UNARY:
        return [(partial(UNARY[operation], out=result), tuple(args))]
    if operation is aten.stack.default:
        places = result.unbind(args[1] if len(args) > 1 else 0)
        return [(np.copyto, (place.numpy(), part.numpy())) for place, part in zip(places, args[0], strict=True)]
    if operation is aten.where.self:
        choice, chosen, otherwise = (x.numpy() for x in args)
        return [(np.copyto, (out, otherwise)), (partial(np.copyto, where=choice), (out, chosen))]
    if operation is aten.rsub.Scalar and len(args) == 2:
        operation, args = aten.sub.Tensor, args[::-1]
    elif operation is aten.pow.Tensor_Scalar and args[1] == 2:
        operation, args = aten.mul.Tensor, (args[0], args[0])
    return arithmetic(SAME[operation], args, result) if operation in SAME else None


def arithmetic(function: Any, args: Sequence[Any], result: Tensor) -> list[Call] | None:
    """A function of NumPy's over operands of one type, which is the result's unless they are compared; whole numbers among real
    ones become real first, as in torch."""
    kinds = {x.dtype for x in args if isinstance(x, Tensor)}
    real = result.dtype == torch.float32 or (function in COMPARISONS and torch.float32 in kinds)
    if real and kinds <= {torch.float32, torch.int64} and all(type(x) in (Tensor, int, float) for x in args):
        operands = [np.array(x, np.float32) if not isinstance(x, Tensor) else x.numpy() for x in args]
        made_real = [x if x.dtype == np.float32 else x.astype(np.float32) for x in operands]
        casts = [(CAST, (new, old)) for new, old in zip(made_real, operands, strict=True) if new is not old]
        return [*casts, (function, (*made_real, result.numpy()))]
    if kinds == {torch.bool} == {result.dtype} and all(type(x) is Tensor for x in args):
        return [(function, (*(x.numpy() for x in args), result.numpy()))]
    return None


def again(results: Sequence[Tensor], operation: Callable[[], Sequence[Tensor]]) -> None:
    """Any operation, its results copied to where the first ones are."""
    for mine, new in zip(results, operation(), strict=True):
        mine.copy_(new)


class Recording:
    """A function of tensors to tensors, as calls over arrays. It answers with the same arrays each time."""

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], *inputs: Tensor, banned: Sequence[Tensor] = ()
    ) -> None:
        """A function that looks at one of the `banned` tensors cannot be recorded."""
        given = [x.clone() for x in inputs]
        with torch.no_grad(), Recorder(banned) as recorder:
            results = function(*given)
        self.calls = recorder.calls
        self.inputs, self.results = [x.numpy() for x in given], [x.numpy() for x in results]

    def __call__(self, *values: Array) -> list[Array]:
        for place, value in zip(self.inputs, values, strict=True):
            np.copyto(place, value)
        for call, args in self.calls:
            call(*args)
        return self.results
