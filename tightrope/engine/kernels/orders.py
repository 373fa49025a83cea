"""Random orders of rows without a sort: a bijection of the places, from a few random numbers.

It is the swap-or-not shuffle (Hoang, Morris and Rogaway, CRYPTO 2012), which takes any number of rows. Each round pairs place x
with the place K - x modulo the number of rows, K being random, and swaps each pair or not, by a bit that depends on the pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS, WORDS, BLOCK = 48, 4, 256  # rounds of a bijection, numbers of 24 random bits that choose it, rows of a program
BITS = 0xFFFFFFFF
ROWS_OF_CHECK = (1, 2, 7, 1000)  # of the comparison of the kernel with `permuted`


def seeds_of(keys: Tensor) -> Tensor:
    """Return one seed of 32 bits for each round, (epochs, ROUNDS), from uniform numbers (epochs, rows)."""
    seeds = torch.arange(ROUNDS, device=keys.device).expand(len(keys), -1)
    for word in (keys[:, :WORDS] * 2**24).long().unbind(1):
        seeds = mixed_bits(seeds * 0x9E3779B1 + word.unsqueeze(1))
    return seeds


def mixed_bits(x: Tensor) -> Tensor:
    """Mix the lowest 32 bits of whole numbers (the finaliser of MurmurHash3)."""
    x = x & BITS
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & BITS
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & BITS
    return x ^ (x >> 16)


def permuted(seeds: Tensor, rows: int) -> Tensor:
    """Return an order of the rows for each epoch (epochs, rows), in plain PyTorch."""
    x = torch.arange(rows, device=seeds.device).expand(len(seeds), -1)
    for seed in seeds.unsqueeze(-1).unbind(1):
        turn = (mixed_bits(seed) * rows) >> 32
        other = (turn - x) % rows
        heads = mixed_bits(torch.maximum(x, other) ^ mixed_bits(seed + 0x9E3779B9)) >> 31
        x = torch.where(heads == 1, other, x)
    return x


def keyed_order(keys: Tensor, rows: int) -> Tensor:
    """Return `permuted(seeds_of(keys), rows)` in one kernel."""
    from .shuffle import order_kernel

    order = torch.empty(len(keys), rows, dtype=torch.int64, device=keys.device)
    words = min(WORDS, keys.shape[1])
    order_kernel[(-(-rows // BLOCK), len(keys))](
        keys, order, rows, keys.stride(0), WORDS=words, ROUNDS=ROUNDS, BLOCK=BLOCK
    )
    return order


def orders_agree(device: torch.device) -> bool:
    """Whether the kernel works on a device, and gives the orders of `permuted`."""
    keys = torch.rand(3, max(ROWS_OF_CHECK), generator=torch.Generator().manual_seed(0)).to(device)
    try:
        return all(torch.equal(keyed_order(keys, rows), permuted(seeds_of(keys), rows)) for rows in ROWS_OF_CHECK)
    except Exception:  # such as an error of Triton's compiler on a device that it does not support
        return False
