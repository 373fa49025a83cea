"""The memory of arrays and tensors as blocks of bytes: several of them may be views of one block."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import torch
from torch import Tensor


class CannotSave(Exception):
    """A value that cannot be saved. The message is the reason in a few words."""


class Block:
    """One piece of memory, `data`, as bytes; not a copy."""

    def __init__(self, data: Any, device: torch.device, start: int, borrowed: bool) -> None:
        self.data, self.device, self.start, self.size = data, device, start, len(data)
        self.borrowed = borrowed  # from an object that is neither an array nor a tensor

    @property
    def place(self) -> tuple[str, int, int]:
        return str(self.device), self.start, self.size

    def copy(self) -> Tensor:
        return torch.from_numpy(self.data.copy()) if isinstance(self.data, np.ndarray) else self.data.clone()

    def holds(self, content: Tensor) -> bool:
        """Whether the block has these bytes."""
        if content.shape != (self.size,):
            return False
        if isinstance(self.data, np.ndarray):
            return np.array_equal(self.data, content.numpy())
        return torch.equal(self.data, content)

    def fits(self, content: Tensor) -> bool:
        writeable = not isinstance(self.data, np.ndarray) or bool(self.data.flags.writeable)
        return writeable and content.dtype == torch.uint8 and content.shape == (self.size,)

    def fill(self, content: Tensor) -> None:
        if isinstance(self.data, np.ndarray):
            self.data[:] = content.cpu().numpy()
        else:
            self.data.copy_(content)


def block_of(value: Any) -> Block:
    """The whole memory that an array or tensor is a view of."""
    return array_block(value) if isinstance(value, np.ndarray) else tensor_block(value)


def array_block(array: np.ndarray[Any, Any]) -> Block:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    order = sorted(range(root.ndim), key=lambda axis: -root.strides[axis])
    whole = root.transpose(order)
    if type(root) is not np.ndarray or not whole.flags.c_contiguous or not root.itemsize:
        raise CannotSave(f"array that is a view of {type(root).__name__}")
    owner: Any = root.base
    borrowed = owner is not None and not isinstance(owner, Tensor)
    return Block(whole.reshape(-1).view(np.uint8), torch.device("cpu"), data_address(root), borrowed)


def tensor_block(tensor: Tensor) -> Block:
    with torch.no_grad():
        storage = tensor.untyped_storage()
        data = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    return Block(data, tensor.device, storage.data_ptr(), False)


def data_address(value: Any) -> int:
    """Where the first element is."""
    return int(value.__array_interface__["data"][0] if isinstance(value, np.ndarray) else value.data_ptr())


class Blocks:
    """Blocks by name, which do not overlap."""

    def __init__(self) -> None:
        self.named: dict[str, Block] = {}
        self.order: dict[torch.device, list[tuple[int, int, str]]] = {}

    def name_of(self, block: Block) -> str | None:
        """The name of the block that contains this one, if there is one."""
        ordered = self.order.get(block.device, [])
        end = block.start + block.size
        after = bisect_right(ordered, block.start, key=lambda entry: entry[0])
        if block.size and after and ordered[after - 1][1] > block.start:
            if end <= ordered[after - 1][1]:
                return ordered[after - 1][2]
            raise CannotSave("shares memory with a part of another")
        if after < len(ordered) and ordered[after][0] < end:
            raise CannotSave("shares memory with a part of another")
        return None

    def add(self, name: str, block: Block) -> None:
        self.named[name] = block
        if block.size:
            ordered = self.order.setdefault(block.device, [])
            ordered.insert(
                bisect_right(ordered, block.start, key=lambda entry: entry[0]),
                (block.start, block.start + block.size, name),
            )

    def remove(self, name: str) -> None:
        block = self.named.pop(name)
        if block.size:
            self.order[block.device].remove((block.start, block.start + block.size, name))
