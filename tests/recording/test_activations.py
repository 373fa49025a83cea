"""Activations of compiled recordings beside torch's, with their derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tightrope.recording import RecordedFunction

pytestmark = pytest.mark.usefixtures("c_compiler")
MODULES = {
    "silu": nn.SiLU(), "elu": nn.ELU(0.7), "selu": nn.SELU(), "celu": nn.CELU(1.3), "gelu": nn.GELU(),
    "gelu by tanh": nn.GELU("tanh"), "leaky relu": nn.LeakyReLU(0.2), "hardtanh": nn.Hardtanh(-0.5, 2.0),
    "softplus": nn.Softplus(2.0, 3.0), "layer norm": nn.LayerNorm(6), "layer norm of two axes": nn.LayerNorm([3, 6]),
    "layer norm without weights": nn.LayerNorm(6, elementwise_affine=False),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_recording_computes_an_activation_and_its_derivatives_without_torch(name: str) -> None:
    module = MODULES[name]
    parameters = list(module.parameters())

    def function(x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        y = module(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum() + (y * 0.3).sum(), [x, *parameters])]

    generator = torch.Generator().manual_seed(0)
    for p in parameters:
        p.data.copy_(torch.randn(p.shape, generator=generator))
    shape = (40, 3, 6)
    recording = RecordedFunction(function, [torch.randn(shape, generator=generator)], compiled=True)
    assert recording.function is not None, recording.unknown
    for scale in (0.1, 3.0, 40.0):
        x = scale * torch.randn(shape, generator=generator)
        x[0, 0] = torch.tensor([0.0, -0.0, 100.0, -100.0, 1e-20, -1e-20])
        found = [torch.from_numpy(each.copy()) for each in recording(x.numpy())]
        for given, expected in zip(found, function(x), strict=True):
            torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5 * max(5.0, float(expected.abs().max())))


def test_steps_of_environments_keep_the_bits_of_torch() -> None:
    recording = RecordedFunction(lambda x: nn.functional.gelu(x), [torch.randn(5, 3)], exact=True, compiled=True)
    assert recording.unknown == {"aten.gelu.default": 1}
