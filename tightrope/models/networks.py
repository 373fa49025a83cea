"""Trunks that turn observations into features, initialised orthogonally with zero biases. [detail 2]"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..types import Box, Composite, Discrete, MultiDiscrete, Spec

IMAGE_SIDE = 36  # smallest height and width for the three convolutions

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU,
}  # fmt: skip
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Sequential):
    """Linear layers, each followed by an activation. The observation is first flattened, or encoded by `encoder`."""

    out_features: int
    fused: Callable[[Sequence[nn.Linear], nn.Module, Tensor], Tensor] | None = (
        None  # all layers at once, for CUDA tensors
    )

    def __init__(
        self,
        in_features: int,
        hidden_sizes: Sequence[int],
        activation: Activation = "tanh",
        encoder: nn.Module | None = None,
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten() if encoder is None else encoder]
        for size in hidden_sizes:
            layers += [orthogonal(nn.Linear(in_features, size), math.sqrt(2)), ACTIVATIONS[activation]()]
            in_features = size
        super().__init__(*layers)
        self.out_features = in_features

    def forward(self, obs: Tensor) -> Tensor:
        if self.fused is None or not obs.is_cuda:
            features: Tensor = super().forward(obs)  # type: ignore[no-untyped-call]
            return features
        return self.fused([part for part in self if isinstance(part, nn.Linear)], self[2], self[0](obs))


class NatureCNN(nn.Module):
    """The network of Mnih et al. 2015 over frames (C, H, W), which are first divided by `max_pixel`. [details 21, 22]"""

    def __init__(self, shape: tuple[int, ...], max_pixel: float = 255.0) -> None:
        super().__init__()
        gain = math.sqrt(2)
        self.max_pixel = max_pixel
        channels, height, width = shape
        self.convolutions = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 32, 8, stride=4), gain), nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2), gain), nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, stride=1), gain), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.head = nn.Sequential(orthogonal(nn.Linear(64 * height * width, 512), gain), nn.ReLU())
        self.out_features = 512

    def forward(self, obs: Tensor) -> Tensor:
        if obs.device.type == "cpu" and not torch.compiler.is_exporting():
            # channels-last memory makes convolutions a third faster on the CPU
            obs = torch.stack(obs.unbind(1), -1).permute(0, 3, 1, 2)
        pixels = obs.float().div_(self.max_pixel) if obs.dtype == torch.uint8 else obs / self.max_pixel
        return self.head(self.convolutions(pixels))


class OneHot(nn.Module):
    """Integers (B,) or (B, K) to concatenated one-hot vectors.

    A number out of range gives NaN, which the guard of training reports; no check reads it on the host. Fractions give
    zeros."""

    n: Tensor
    choices: Tensor
    columns: Tensor | None

    def __init__(self, n: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features = sum(n)
        self.register_buffer("n", torch.tensor(n), persistent=False)
        index = torch.arange(max(n))
        kept = index < torch.tensor(n)[:, None]  # (K, most)
        self.register_buffer("choices", torch.where(kept, index, torch.iinfo(torch.int64).min), persistent=False)
        columns = None if kept.all() else kept.flatten().nonzero().squeeze(1)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        choice = obs.view(obs.shape[0], -1, 1)  # (B, K, 1)
        outside = torch.where((choice >= 0) & (choice < self.n.unsqueeze(-1)), 0.0, torch.nan)
        wide = ((choice == self.choices).to(torch.float32) + outside).flatten(1)  # (B, K most)
        return wide if self.columns is None else wide[:, self.columns]


class Parts(nn.Module):
    """Encodes each part of a composite observation by its own encoder, and concatenates the features."""

    def __init__(self, spec: Composite, width: int, activation: Activation) -> None:
        super().__init__()
        self.spec = spec
        of_part = projected if sees_images(spec) else encoder_of
        self.encoders = nn.ModuleList(of_part(part, width, activation) for _, part in spec.parts)

    def forward(self, obs: Tensor) -> Tensor:
        parts = self.spec.split(obs).values()
        return torch.cat([encode(part) for encode, part in zip(self.encoders, parts, strict=True)], dim=1)


class Custom(nn.Module):
    """A user's network: observations to features (B, F). A composite observation is passed as a dict of its parts."""

    def __init__(self, network: nn.Module, spec: Spec) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise UsageError(f"network {network!r} is not an nn.Module: give an instance of one")
        self.network, self.spec = network, spec
        example = torch.zeros(2, *spec.shape, dtype=spec.dtype)
        try:
            with torch.no_grad():
                features = self(example.to(next((p.device for p in network.parameters()), "cpu")))
        except Exception as error:
            reason = f"{type(error).__name__} {error}".strip().splitlines()[0]
            raise UsageError(f"network {type(network).__name__} does not take observations {spec}: {reason}") from None
        if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UsageError(
                f"network {type(network).__name__} returns {shape} for 2 observations: return (2, features)"
            )
        self.out_features = features.shape[1]

    def forward(self, obs: Tensor) -> Tensor:
        return self.network(self.spec.split(obs) if isinstance(self.spec, Composite) else obs)


Trunk = MLP | NatureCNN | Custom


def trunk_for(spec: Spec, hidden_sizes: Sequence[int], activation: Activation) -> Trunk:
    """Build the trunk for an observation space."""
    if is_image(spec):
        return nature_cnn(spec)
    width = hidden_sizes[0]
    return MLP(encoded_size(spec, width), hidden_sizes, activation, encoder_of(spec, width, activation))


def nature_cnn(spec: Spec) -> NatureCNN:
    """Build a NatureCNN that divides uint8 pixels by 255, and float pixels by their largest bound if it is finite."""
    if not isinstance(spec, Box) or spec.dtype == torch.uint8:
        return NatureCNN(spec.shape)
    bounds = torch.tensor([spec.low, spec.high]).abs()
    return NatureCNN(spec.shape, float(bounds.max()) if bounds.isfinite().all() else 1.0)


def encoder_of(spec: Spec, width: int, activation: Activation) -> nn.Module:
    """Build the module that turns an observation, or a part of it, into the input of a linear layer. `width` is the number of
    features per part if a composite observation contains images."""
    if isinstance(spec, Composite):
        return Parts(spec, width, activation)
    if isinstance(spec, Discrete):
        return OneHot((spec.n,))
    if isinstance(spec, MultiDiscrete):
        return OneHot(spec.n)
    if is_image(spec):
        return nature_cnn(spec)
    if not spec.dtype.is_floating_point:
        raise UsageError(
            f"observations of {spec} are not supported: give floating-point numbers, or uint8 images as "
            f"(channels, height, width) of at least {IMAGE_SIDE} x {IMAGE_SIDE}"
        )
    return nn.Flatten()


def projected(spec: Spec, width: int, activation: Activation) -> nn.Module:
    """Build the encoder of one part of an observation that contains images, with `width` features: an image's 512 features
    would dominate small parts. LayerNorm scales image features, which change a lot with every update."""
    size = encoded_size(spec, width)
    scaled = [nn.LayerNorm(size)] if sees_images(spec) else []
    layer = orthogonal(nn.Linear(size, width), math.sqrt(2))
    return nn.Sequential(encoder_of(spec, width, activation), *scaled, layer, ACTIVATIONS[activation]())


def encoded_size(spec: Spec, width: int) -> int:
    """Return the number of features that `encoder_of` gives."""
    if isinstance(spec, Composite):
        return sum(width if sees_images(spec) else encoded_size(part, width) for _, part in spec.parts)
    if isinstance(spec, Discrete):
        return spec.n
    if isinstance(spec, MultiDiscrete):
        return sum(spec.n)
    return 512 if is_image(spec) else math.prod(spec.shape)


def is_image(spec: Spec) -> bool:
    """Whether observations are frames (channels, height, width) of uint8 or float pixels."""
    return (
        isinstance(spec, Box)
        and (spec.dtype == torch.uint8 or spec.dtype.is_floating_point)
        and len(spec.shape) == 3
        and min(spec.shape[1:]) >= IMAGE_SIDE
    )


def sees_images(spec: Spec) -> bool:
    """Whether an observation is an image or has one among its parts."""
    return any(sees_images(part) for _, part in spec.parts) if isinstance(spec, Composite) else is_image(spec)


def real_numbers(spec: Spec) -> Tensor:
    """Mark the entries of an observation that are floats to be normalised, not pixels or choices. Bool, of its shape."""
    if isinstance(spec, Composite):
        return torch.cat([real_numbers(part).flatten() for _, part in spec.parts])
    return torch.full(spec.shape, isinstance(spec, Box) and spec.dtype.is_floating_point and not is_image(spec))
