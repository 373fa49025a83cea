"""Kernel for random orders: each place is mapped to another by a keyed bijection, so that nothing is sorted."""

import triton
import triton.language as tl


@triton.jit
def mixed(x):
    """Mix the bits of whole numbers of 32 bits (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["rows", "stride"])
def order_kernel(keys, order, rows, stride, WORDS: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """Programs (i, e) write a block of the order of epoch e. See `seeds_of` and `permuted` in orders.py."""
    epoch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, size = place.to(tl.uint32), rows.to(tl.uint32)
    for k in range(ROUNDS):
        seed = tl.full([1], k, tl.uint32)
        for word in range(WORDS):
            bits = (tl.load(keys + epoch * stride + word + tl.arange(0, 1)) * 16777216.0).to(tl.uint32)
            seed = mixed(seed * 0x9E3779B1 + bits)
        turn = ((mixed(seed).to(tl.uint64) * size.to(tl.uint64)) >> 32).to(tl.uint32)
        other = tl.where(x > turn, turn + size - x, turn - x)
        heads = mixed(tl.maximum(x, other) ^ mixed(seed + 0x9E3779B9)) >> 31
        x = tl.where(heads == 1, other, x)
    tl.store(order + epoch * rows + place, x.to(tl.int64), mask=place < rows)
