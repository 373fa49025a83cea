"""Trunks that turn observations into features, initialised orthogonally with zero biases. [detail 2]"""

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Activation = Literal["tanh", "relu", "elu", "silu", "gelu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Sequential):
    """Linear layers with an activation after each; the observation is flattened first."""

    out_features: int

    def __init__(self, in_features: int, hidden_sizes: Sequence[int], activation: Activation = "tanh") -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for size in hidden_sizes:
            layers += [orthogonal(nn.Linear(in_features, size), math.sqrt(2)), ACTIVATIONS[activation]()]
            in_features = size
        super().__init__(*layers)
        self.out_features = in_features


class NatureCNN(nn.Module):
    """The network of Mnih et al. 2015 over uint8 frames (C, H, W), scaled to [0, 1] on the device. [details 21, 22]"""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        gain = math.sqrt(2)
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
        return self.head(self.convolutions(obs.to(torch.float32) / 255))


Trunk = MLP | NatureCNN
