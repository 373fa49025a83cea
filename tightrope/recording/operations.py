"""The table of operations: how NumPy does what torch's operations do, into memory that is there already.

Each entry takes the operation's arguments and its first result, and answers with the calls that write this result again; or
None, where there is nothing better than torch's own call. In an exact recording only those are used that give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .call import Call, call
from .elementwise import ELEMENTWISE, Context, aten, common_type, elementwise
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
ROUNDED = {  # otherwise than torch does
    aten.exp: np.exp, aten.expm1: np.expm1, aten.log: np.log, aten.log1p: np.log1p, aten.tanh: np.tanh, aten.sin: np.sin,
    aten.cos: np.cos, aten.reciprocal: np.reciprocal, aten.sign: np.sign, aten.sgn: np.sign,
}  # fmt: skip
TORCH_EXACT = {aten.exp: torch.exp, aten.tanh: torch.tanh, aten.sin: torch.sin, aten.cos: torch.cos}
EXACT = {
    aten.add, aten.sub, aten.rsub, aten.pow, aten.clamp, aten.relu, aten.where, aten.masked_fill, aten.clone, aten._to_copy,
    aten.copy, aten.stack, aten.cat, aten.select_backward, aten.slice_backward,
}  # fmt: skip


def calls_for(
    context: Context, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Tensor
) -> list[Call] | None:
    """NumPy's calls for one operation, written into `out`; None where there are none."""
    packet = operation.overloadpacket
    try:
        if packet in ARITHMETIC and not kwargs:
            return elementwise(context, ARITHMETIC[packet], args, out, out.dtype)
        if packet in COMPARISONS and not kwargs:
            return elementwise(context, COMPARISONS[packet], args, out, common_type(args))
        if context.exact and packet in TORCH_EXACT and not kwargs:
            return [call(TORCH_EXACT[packet], args[0].detach(), out.detach())]
        if context.exact and packet not in EXACT:
            return None
        if packet in ROUNDED and not kwargs:
            return elementwise(context, ROUNDED[packet], args, out, out.dtype) if out.is_floating_point() else None
        builder = ELEMENTWISE.get(packet) or REDUCTIONS.get(packet)
        return None if builder is None else builder(context, out, *args, **kwargs)
    except TypeError:  # arguments or types of numbers that are not known here
        return None
