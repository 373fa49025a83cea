"""Writes arrays, tensors and scalars as JSON and bytes; several may be views of one block of memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .values import GLOBAL_STREAMS, MAX_BYTES, MAX_VALUES, CannotSave, Node, class_name, dtype_node

# first: a record of a fresh environment. save: for a file, to be loaded into a fresh one. snapshot: to be loaded in this
# process. copy: for another environment beside this one.
Mode = Literal["first", "save", "snapshot", "copy"]
TOO_LARGE = f"more than {MAX_VALUES:,} values"


def root_of(path: str) -> str:
    """The attribute that a path begins with."""
    return path.partition(".")[0].partition("[")[0].partition(" ")[0]


class LeafWriter:
    """The base of `Writer`: leaves of the tree, and the objects met so far. `first` is of a fresh environment."""

    def __init__(self, thing: object, mode: Mode, first: LeafWriter | None = None) -> None:
        self.thing, self.mode, self.first = thing, mode, first
        self.device = torch.device(getattr(thing, "device", "cpu"))
        self.objects: dict[str, Any] = {"": thing}  # by path; those that can change, and constants
        self.seen = {id(thing): ""}
        self.classes: dict[str, type] = {}
        self.missing: dict[str, str] = {}  # paths of what cannot be written, and why
        self.blocks = Blocks()
        self.owners: dict[str, str] = {}  # the path at which a block was first met
        self.places: dict[str, Any] = {}  # where the memory of each array and tensor is, by path
        self.spawn_counts: dict[str, int] = {}  # how many others a NumPy generator has made, by path
        self.view_counts: dict[str, int] = defaultdict(int)  # views of each block
        self.links: dict[str, set[str]] = defaultdict(set)  # attributes that others refer to
        self.blocks_used: dict[str, set[str]] = defaultdict(set)  # blocks that an attribute has views of
        self.too_large: set[str] = (
            set() if first is None else first.too_large
        )  # attributes that are skipped from now on
        self.undo: list[Callable[[], Any]] = []
        self.root, self.count, self.number, self.size = "", 0, 0, 0

    def node(self, value: object, path: str, depth: int) -> Node:
        raise NotImplementedError

    def items(self, values: Iterable[Any], path: str, depth: int) -> list[Node]:
        return [self.node(value, f"{path}[{i}]", depth + 1) for i, value in enumerate(values)]

    def mark(self, path: str, value: object) -> bool | int:
        """Whether a fresh environment has this very object at this path, so that it is filled and not replaced; in a snapshot
        the object's id."""
        if self.mode == "save":
            return self.first is not None and self.first.objects.get(path) is value
        return self.mode == "first" or (id(value) if self.mode == "snapshot" else False)

    def note_missing(self, path: str, reason: str) -> None:
        self.missing[path] = reason
        self.undo.append(lambda: self.missing.pop(path, None))

    def link(self, path: str) -> Node:
        owner = root_of(path)
        if owner:
            self.links[self.root].add(owner)
        return ["same", path]

    def remember(self, value: object, path: str) -> bool | int:
        """Note an object that may be met again; returns its `mark`."""
        self.seen[id(value)], self.objects[path] = path, value
        self.undo.append(lambda: (self.seen.pop(id(value)), self.objects.pop(path)))
        return self.mark(path, value)

    def count_values(self, values: int) -> None:
        self.count += values
        if self.count > MAX_VALUES:
            self.too_large.add(self.root)
            raise CannotSave(TOO_LARGE)

    def known_class(self, kind: type) -> str:
        """The name of a class, if a fresh environment has an object of it."""
        name = class_name(kind)
        if self.first is not None and self.mode != "copy" and self.first.classes.get(name) is not kind:
            raise CannotSave(f"{kind.__name__}, of which a fresh environment has none")
        self.classes[name] = kind
        return name

    def is_known(self, value: object) -> bool:
        return id(value) in self.seen or any(value is stream for stream in GLOBAL_STREAMS)

    # arrays and tensors -----------------------------------------------------------------------------------------------

    def array(self, value: object, path: str, depth: int) -> Node:
        if type(value) is not np.ndarray:
            raise CannotSave(type(value).__name__)
        if value.dtype.hasobject:
            if value.base is not None or value.dtype.names is not None:
                raise CannotSave("view of an array of objects")
            self.count_values(value.size)
            mark = self.remember(value, path)
            return ["objects", mark, list(value.shape), self.items(value.ravel().tolist(), path, depth)]
        dtype = dtype_node(value.dtype)
        block, offset = self.view(value, path)
        layout = [dtype, list(value.shape), list(value.strides), offset]
        return ["array", self.remember(value, path), block, *layout, bool(value.flags.writeable)]

    def tensor(self, value: Any, path: str, depth: int) -> Node:
        kind = type(value)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            raise CannotSave(kind.__name__)
        if value.layout != torch.strided or value.is_quantized:
            raise CannotSave(f"{str(value.layout).removeprefix('torch.').replace('_', ' ')} tensor")
        if value.device.type != "cpu" and value.device != self.device:
            raise CannotSave(f"tensor on {value.device}")
        if value.is_conj() or value.is_neg() or not value.is_leaf:
            raise CannotSave(
                "tensor that is not computed yet" if value.is_leaf else "tensor with a graph for gradients"
            )
        block, offset = self.view(value, path)
        if offset % value.element_size():
            raise CannotSave("shares memory with a part of another")
        mark = self.remember(value, path)
        grad = None if value.grad is None else self.node(value.grad, f"{path}.grad", depth + 1)
        layout = [str(value.dtype).removeprefix("torch."), list(value.shape), list(value.stride())]
        here = value.device == self.device
        return ["tensor", mark, block, *layout, offset // value.element_size(), here, value.requires_grad,
                kind is not Tensor, grad]  # fmt: skip

    def view(self, value: object, path: str) -> tuple[str, int]:
        """(name of the block of memory that a value lies in, offset in it)"""
        block = block_of(value)
        if block.borrowed and not self.mark(path, value):
            raise CannotSave("array in the memory of another object")
        name = self.blocks.name_of(block)
        if name is None:
            name = f"{self.root}.{self.number}"
            self.number += 1
            if self.first is not None and self.first.places.get(path, (0, 0, 0))[2] != block.size:
                self.size += block.size
                if self.size > MAX_BYTES and self.mode == "save":
                    self.size -= block.size
                    raise CannotSave(f"more than {MAX_BYTES >> 20} MB that a fresh environment does not have")
            self.blocks.add(name, block)
            self.owners[name] = path
            used = self.blocks_used[self.root]
            self.undo += [lambda: self.blocks.remove(name), lambda: self.owners.pop(name), lambda: used.discard(name)]
        self.view_counts[name] += 1
        self.places[path] = block.place
        self.blocks_used[self.root].add(name)
        if name.partition(".")[0] != self.root:
            self.links[self.root].add(name.partition(".")[0])
        return name, data_address(value) - self.blocks.named[name].start if block.size else 0

    def scalar(self, value: Any, path: str, depth: int) -> Node:
        if isinstance(value, np.void) or value.dtype.hasobject:
            raise CannotSave(type(value).__name__)
        return ["scalar", dtype_node(value.dtype), value.tobytes().hex()]


# memory ----------------------------------------------------------------------------------------------------------------


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
    owner: object = root.base
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
