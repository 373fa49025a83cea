import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tightrope.models import MLP, NatureCNN
from tightrope.models.networks import ACTIVATIONS, Activation, orthogonal


def assert_orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """The shorter side of the weight matrix is a set of perpendicular vectors of length `gain`; the bias is 0."""
    weight = layer.weight.detach().flatten(1)
    short = weight if weight.shape[0] <= weight.shape[1] else weight.T
    torch.testing.assert_close(short @ short.T, gain**2 * torch.eye(len(short)), rtol=0, atol=1e-5 * gain**2 + 1e-9)
    assert not layer.bias.any()


def layers(module: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [m for m in module.modules() if isinstance(m, nn.Linear | nn.Conv2d)]


@pytest.mark.parametrize("gain", [0.01, 1.0, math.sqrt(2)])
@pytest.mark.parametrize("layer", [nn.Linear(8, 3), nn.Linear(3, 8), nn.Conv2d(2, 4, 3)], ids=["wide", "tall", "conv"])
def test_orthogonal_initialisation(layer, gain):
    assert orthogonal(layer, gain) is layer
    assert_orthogonal(layer, gain)


def test_orthogonal_needs_no_bias():
    assert orthogonal(nn.Linear(3, 3, bias=False), 1.0).bias is None


@pytest.mark.parametrize("hidden_sizes", [(64, 64), (120, 84), (5,), ()])
def test_mlp_has_the_hidden_sizes_asked_for(hidden_sizes):
    mlp = MLP(6, hidden_sizes)
    assert [(m.in_features, m.out_features) for m in layers(mlp)] == list(
        zip((6, *hidden_sizes), hidden_sizes, strict=False)
    )
    assert mlp.out_features == (hidden_sizes[-1] if hidden_sizes else 6)
    assert mlp(torch.randn(7, 6)).shape == (7, mlp.out_features)


@pytest.mark.parametrize("activation", get_args(Activation))
def test_mlp_applies_the_activation_asked_for_after_each_layer(activation):
    mlp = MLP(4, (8, 8), activation)
    f = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu, "silu": F.silu, "gelu": F.gelu}[activation]
    x = torch.randn(5, 4)
    first, second = layers(mlp)
    torch.testing.assert_close(mlp(x), f(second(f(first(x)))))


def test_every_activation_that_may_be_asked_for_exists():
    assert set(get_args(Activation)) == set(ACTIVATIONS)


def test_mlp_starts_orthogonal_with_gain_root_2():
    for layer in layers(MLP(6, (64, 32))) + layers(NatureCNN((3, 36, 36))):  # and so does the other one
        assert_orthogonal(layer, math.sqrt(2))


def test_mlp_flattens_observations_of_several_axes():
    mlp = MLP(6, (8,))
    x = torch.randn(5, 2, 3)
    assert torch.equal(mlp(x), mlp(x.view(5, 6)))


def frames(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_nature_cnn_is_the_published_network():
    cnn = NatureCNN((4, 84, 84))
    conv1, conv2, conv3, linear = layers(cnn)
    assert [tuple(m.weight.shape) for m in (conv1, conv2, conv3, linear)] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
        (512, 64 * 7 * 7),
    ]
    obs = frames(2, 4, 84, 84)
    x = obs.float() / 255
    for conv, stride in ((conv1, 4), (conv2, 2), (conv3, 1)):
        x = F.relu(F.conv2d(x, conv.weight, conv.bias, stride))
    expected = F.relu(linear(x.flatten(1)))
    assert cnn.out_features == 512
    assert expected.shape == (2, 512)
    torch.testing.assert_close(cnn(obs), expected)


@pytest.mark.parametrize("shape", [(1, 36, 36), (3, 40, 60), (3, 61, 47)])
def test_nature_cnn_fits_other_picture_sizes(shape):
    assert NatureCNN(shape)(frames(2, *shape)).shape == (2, 512)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_nature_cnn_leaves_its_frames_alone(dtype):
    obs = frames(1, 1, 36, 36).to(dtype)
    before = obs.clone()
    NatureCNN((1, 36, 36))(obs)
    assert torch.equal(obs, before)
