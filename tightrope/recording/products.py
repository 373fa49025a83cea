"""Matrix products over arrays: by one call, or in blocks of rows, whichever is quicker for their size."""

from __future__ import annotations

import numpy as np
import torch

from .call import Array, Call, call, empty

SMALL = 64**3  # multiplications up to which OpenBLAS stays in one thread; torch runs more of them in as many as it may
SHORTEST, MOST = 32, 8  # rows of a block, and blocks, within which cutting a product up is quicker than torch's product


def product(a: Array, b: Array, out: Array, steady: bool) -> list[Call]:
    """Calls that write a @ b into `out`. `steady` says that b stays as it is over many replays."""
    (rows, inner), width = a.shape, b.shape[1]
    before: list[Call] = []
    if not b.flags.c_contiguous and (steady or rows >= SHORTEST) and inner > 1 and width > 1:
        turned = empty(b.shape, b.dtype)  # what turning it takes, and more, is saved in the product
        before, b = [call(np.copyto, turned, b, written=0)], turned
    work = rows * inner * width
    if work <= SMALL:
        return [*before, call(np.dot, a, b, out)]
    count = -(-work // SMALL)
    if count <= MOST and cuts(rows, count) and a.flags.c_contiguous:
        cut = (count, rows // count, -1)
        return [*before, call(np.matmul, a.reshape(cut), b, out.reshape(cut))]
    if count <= MOST and cuts(inner, count) and a.T.flags.c_contiguous and b.flags.c_contiguous:
        cut, parts = (count, inner // count, -1), empty((count, rows, width), out.dtype)
        blocks = a.T.reshape(cut).transpose(0, 2, 1), b.reshape(cut)
        added = call(np.add, *parts, out) if count == 2 else Call(np.add.reduce, (parts, 0, None, out), (3,))
        return [*before, call(np.matmul, *blocks, parts), added]
    return [*before, call(torch.mm, *(torch.from_numpy(x) for x in (a, b, out)))]


def cuts(length: int, count: int) -> bool:
    return length % count == 0 and length // count >= SHORTEST
