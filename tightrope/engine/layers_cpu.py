"""Layers of a multilayer perceptron over NumPy views of its parameters, forward and backward.

A call of NumPy's costs a third of one of torch's, and its tanh a sixth. Trunks are rows, (B, F). Heads have few outputs and are
columns, (K, B), since arrays want their last axis long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..models import MLP
from ..models.normalizer import CLIP, EPS, ObservationNormalizer

Array = NDArray[Any]
Grads = Mapping[Tensor, Tensor]
SMALL = 64**3  # multiplications up to which OpenBLAS stays in one thread; torch runs more of them in as many as it may
SHORTEST, MOST = 32, 8  # rows of a block, and blocks, within which cutting a product up is quicker than torch's product
DEEPEST = 1024  # rows for which moments are repeated; with more of them, what that saves is little


# products ------------------------------------------------------------------------------------------------------------


def mm(a: Array, b: Array, out: Array | None = None) -> Array:
    """torch's matrix product."""
    into = None if out is None else torch.from_numpy(out)
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=into).numpy()


def product_of(rows: int, weight: Array) -> Callable[..., Array]:
    """How to multiply that many rows by a layer's weight."""
    return np.dot if rows * weight.size <= SMALL else mm


class Products(Protocol):
    """The products of rows with a layer's weight (G, F)."""

    def up(self, x: Array, weight: Array, out: Array) -> Array:
        """(B, F) to (B, G)."""

    def down(self, grad: Array, weight: Array, out: Array) -> Array:
        """(B, G) to (B, F)."""

    def outer(self, grad: Array, x: Array, out: Array) -> None:
        """(B, G) and (B, F) to (G, F): the outer products of their rows, added up."""


class AtOnce:
    """Each by one call: of NumPy's where that is small, otherwise of torch's."""

    def __init__(self, rows: int, weight: Array) -> None:
        self.product = product_of(rows, weight)

    def up(self, x: Array, weight: Array, out: Array) -> Array:
        return self.product(x, weight.T, out=out)

    def down(self, grad: Array, weight: Array, out: Array) -> Array:
        return self.product(grad, weight, out=out)

    def outer(self, grad: Array, x: Array, out: Array) -> None:
        self.product(grad.T, x, out=out)


class InBlocks:
    """Each as a few small ones over blocks of rows."""

    def __init__(self, rows: int, weight: Array, count: int) -> None:
        self.shape = count, rows // count, -1
        self.parts = np.empty((count, *weight.shape), np.float32)
        self.transposed = np.empty(weight.shape[::-1], np.float32)

    def up(self, x: Array, weight: Array, out: Array) -> Array:
        np.copyto(self.transposed, weight.T)  # what this takes, and more, is saved in the product
        return self.down(x, self.transposed, out)

    def down(self, grad: Array, weight: Array, out: Array) -> Array:
        np.matmul(grad.reshape(self.shape), weight, out=out.reshape(self.shape))
        return out

    def outer(self, grad: Array, x: Array, out: Array) -> None:
        np.matmul(grad.reshape(self.shape).transpose(0, 2, 1), x.reshape(self.shape), out=self.parts)
        np.add.reduce(self.parts, out=out)


def products_of(rows: int, weight: Array) -> Products:
    """The quickest way to multiply that many rows by a layer's weight, and back."""
    count = -(-rows * weight.size // SMALL)
    cut = 1 < count <= MOST and rows % count == 0 and rows // count >= SHORTEST
    return InBlocks(rows, weight, count) if cut else AtOnce(rows, weight)


@lru_cache(maxsize=16)
def ones(length: int) -> Array:
    """A product with these is a sum, and quicker."""
    return np.ones(length, np.float32)


def rows_of(obs: Tensor) -> Array:
    """(N, ...) to (N, F)."""
    return obs.numpy() if obs.dim() == 2 else obs.flatten(1).numpy()


# layers --------------------------------------------------------------------------------------------------------------


class Linear:
    """A linear layer as arrays, and where its gradient goes."""

    def __init__(self, linear: nn.Linear, grads: Grads) -> None:
        self.weight, self.bias = linear.weight.data.numpy(), linear.bias.data.numpy()
        self.weight_grad, self.bias_grad = grads[linear.weight].numpy(), grads[linear.bias].numpy()


class Head(Linear):
    """The last layer, its outputs as columns."""

    def forward(self, x: Array) -> Array:
        self.x, self.product = x, product_of(len(x), self.weight)
        out = self.product(self.weight, x.T)
        out += self.bias[:, None]
        return out

    def backward(self, grad: Array) -> Array:
        """Write the gradients of weight and bias, from that of the output; returns that of the input."""
        self.product(grad, self.x, out=self.weight_grad)
        np.dot(grad, ones(len(self.x)), out=self.bias_grad)
        return self.product(grad.T, self.weight)


class Hidden(Linear):
    """A layer with its activation. It writes into arrays kept from one minibatch to the next."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, grads: Grads) -> None:
        super().__init__(linear, grads)
        self.tanh = isinstance(activation, nn.Tanh)
        self.room = lru_cache(maxsize=4)(self._room)

    def _room(self, rows: int) -> tuple[Array, Array, Products]:
        wide, narrow = self.weight.shape
        out, below = np.empty((rows, wide), np.float32), np.empty((rows, narrow), np.float32)
        return out, below, products_of(rows, self.weight)

    def forward(self, x: Array) -> Array:
        self.x = x
        self.out, self.below, self.products = out, _, products = self.room(len(x))
        products.up(x, self.weight, out)
        out += self.bias
        return np.tanh(out, out=out) if self.tanh else np.maximum(out, 0, out=out)

    def backward(self, grad: Array) -> None:
        """Write the gradients of weight and bias, from that of the output, which is overwritten as the output is."""
        out = self.out
        if self.tanh:
            np.multiply(out, out, out=out)
            np.subtract(1, out, out=out)
        else:
            np.greater(out, 0, out=out)
        grad *= out
        self.products.outer(grad, self.x, self.weight_grad)
        np.dot(ones(len(grad)), grad, out=self.bias_grad)

    def down(self, grad: Array) -> Array:
        """The gradient by the input."""
        return self.products.down(grad, self.weight, self.below)


class Tower:
    """A multilayer perceptron: forward keeps what backward needs."""

    def __init__(self, trunk: MLP, grads: Grads) -> None:
        parts = list(trunk)[1:]
        self.layers = [Hidden(a, b, grads) for a, b in zip(parts[::2], parts[1::2], strict=True)]  # type: ignore[arg-type]

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, grad: Array) -> None:
        first, *above = self.layers
        for layer in reversed(above):
            layer.backward(grad)
            grad = layer.down(grad)
        first.backward(grad)


class Normalize:
    """What an ObservationNormalizer does, or nothing where there is none.

    Its moments are kept as many rows deep as there are rows to normalise, for as long as torch says that they have not changed:
    arrays of one shape are subtracted in a fifth of the time.
    """

    def __init__(self, normalizer: ObservationNormalizer | None) -> None:
        self.normalizes = normalizer is not None
        self.versions = -1, -1  # of the moments in `deep`
        self.deep: dict[int, tuple[Array, Array]] = {}  # by the number of rows
        if normalizer is not None:
            self.mean, self.variance = normalizer.mean, normalizer.variance
            self.real = None if normalizer.real is None else normalizer.real.flatten().numpy()

    def __call__(self, obs: Array) -> Array:
        if not self.normalizes:
            return obs
        mean, std = self._moments(len(obs))
        normal = obs - mean
        normal /= std
        np.maximum(normal, -CLIP, out=normal)
        np.minimum(normal, CLIP, out=normal)
        return normal if self.real is None else np.where(self.real, normal, obs)

    def _moments(self, rows: int) -> tuple[Array, Array]:
        versions = self.mean._version, self.variance._version
        if versions != self.versions:
            self.versions, self.deep = versions, {}
        if rows not in self.deep:
            depth = rows if rows <= DEEPEST else 1
            mean, variance = self.mean.flatten().numpy(), self.variance.flatten().numpy()
            self.deep[rows] = np.tile(mean, (depth, 1)), np.tile(np.sqrt(variance + EPS), (depth, 1))
        return self.deep[rows]
