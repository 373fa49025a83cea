"""Rows of tensors: memory for many of them, their random order, and a copy in that order."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

SHORT = 64  # entries: rows up to this size are copied entry by entry on a GPU
ALIGNMENT = 64  # bytes
MOST_SORTED = 4096  # random keys of longer rows are often equal


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On the CPU they take no memory until written: np.zeros reserves pages, torch.zeros fills them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    pages = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    start = -pages.data_ptr() % ALIGNMENT
    return pages[start : start + size].view(dtype).view(shape)


def sorted_places(keys: Tensor) -> Tensor:
    """Return keys.argsort() of keys (K, B) that are not negative. On the CPU, NumPy sorts numbers made of a key and its place,
    which is many times faster; rows with equal keys are left to torch, whose order among them may be any."""
    if keys.device.type != "cpu" or keys.dtype != torch.float32 or keys.shape[1] > MOST_SORTED:
        return keys.argsort()  # all at once: on a GPU, many sorts cost little more than one
    # floats that are not negative sort by their bits
    bits = np.ascontiguousarray(keys.numpy()).view(np.int32).astype(np.int64)
    whole = (bits << 32) | np.arange(keys.shape[1])
    whole.sort(1)
    order, sorted_bits = torch.from_numpy(whole & 0xFFFFFFFF), whole >> 32
    unsure = (sorted_bits[:, 1:] == sorted_bits[:, :-1]).any(1) | (bits < 0).any(1)
    for row in unsure.nonzero()[0]:
        order[row] = keys[row].argsort()
    return order


def rows_at(column: Tensor, index: Tensor) -> Tensor:
    """Return column[index]. NumPy copies whole rows. On a GPU short rows are copied entry by entry: torch would use a block of
    threads for each row."""
    if column.device.type == "cpu" and not column.requires_grad:
        out = torch.empty((*index.shape, *column.shape[1:]), dtype=column.dtype)  # aligned, as NumPy's memory is not
        column.numpy().take(index.numpy(), 0, out.numpy(), "clip")  # without "clip" NumPy would copy twice
        return out
    width = column[0].numel()
    if not column.is_cuda or not 1 < width <= SHORT:
        return column[index]
    at = index.unsqueeze(1) * width + torch.arange(width, device=index.device)
    return column.reshape(-1)[at].view(len(index), *column.shape[1:])
