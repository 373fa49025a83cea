"""Functions of one row, whose programs are compared with torch in Python and in a browser."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

generator = torch.Generator().manual_seed(0)
ROW = torch.randn(1, 5, generator=generator)
MATRIX, KERNEL = torch.randn(4, 5, generator=generator), torch.randn(3, 2, 3, 3, generator=generator)
HALVES, INDEX, IMAGE = torch.tensor([[0.5, 1.5, -2.5]]), torch.tensor([[2, 0]]), torch.arange(84.0).view(1, 2, 6, 7)


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = 0.5
    y[:, 3].clamp_(max=0.1)
    return y.add_(1)


def put(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.tensor([0, 0]), torch.tensor([2, -1])] = 5.0
    return y


def masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0.5] = 9.0
    return y


def filled(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0], y[:, 1] = x[:, 1], 3.0
    return torch.cat([y, torch.full_like(x, 2.5), x.new_ones(1, 2), torch.arange(3.0)[None], torch.tensor([[7.0]])], 1)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (2 - x) * 3 / (x + 9) - 1 / (x.square() + 1) + x**3 + 2.0**x - x.reciprocal(),
    "functions": lambda x: (
        x.sin() + x.cos().tan() + x.exp().log1p() + x.tanh() + x.abs().sqrt() + x.atan() + x.sinh().expm1()
    ),
    "rounding": lambda x: torch.cat(
        [(3 * x).round(), x.floor(), x.ceil(), x.trunc(), x.frac(), torch.tensor([[0.5, 1.5, -2.5]]).round()], 1
    ),
    "comparisons": lambda x: (x > 0) & (x < 1) | (x == 2) | ~(x <= 0.3) ^ (x != x),
    "numbers that are not finite": lambda x: torch.cat(
        [x / 0, (x - x) / 0, (-x.abs()).sqrt(), (x / 0).isinf().float()], 1
    ),
    "remainders": lambda x: torch.cat(
        [torch.remainder(9 * x + 3.14, 6.28), torch.fmod(9 * x, 0.3), torch.atan2(x, x + 1)], 1
    ),
    "whole numbers": lambda x: (10 * x).long() // 3 + x.argmax(-1) % 2,
    "mixed": lambda x: x.argmax(-1) * 0.1 + (x > 0).sum(-1) / 3,
    "choice": lambda x: torch.where(x > 0, x, -0.5).clamp(-0.3, 0.9).minimum(x.flip(-1)).maximum(-x),
    "activations": lambda x: (
        F.gelu(x) + F.elu(x) + F.silu(x) + F.softplus(x) + F.leaky_relu(x) + F.relu(x) + x.sigmoid()
    ),
    "softmax": lambda x: torch.cat([x.softmax(-1), x.log_softmax(-1)], 1),
    "moments": lambda x: torch.stack(
        [x.mean(), x.var(), x.std(-1)[0], x.norm(), x.sum(), x.prod(-1)[0], x.amax(), x.logsumexp(-1)[0]]
    ),
    "layer norm": lambda x: F.layer_norm(x, (5,)),
    "argmax": lambda x: x.max(-1).indices + x.argmin(-1) + (x > 0).any().long() + (x > 9).all().long(),
    "products": lambda x: torch.cat([F.linear(x, MATRIX, torch.ones(4)), x @ MATRIX.T, (MATRIX @ x[0])[None]], 1),
    "batches of products": lambda x: torch.einsum("bi,bj->bij", x, x) @ x[:, :, None],
    "cumulative sum": lambda x: x.cumsum(-1),
    "fused": lambda x: torch.addcmul(x, x, x, value=2) + torch.addcdiv(x, x, x + 9) + torch.lerp(x, x * 2, 0.3),
    "in place": in_place,
    "put": put,
    "masked": masked,
    "padded": lambda x: F.pad(x, (2, 1), value=3.0).repeat(1, 2).roll(1, -1),
    "powers": lambda x: x.abs() ** x + x.abs() ** torch.tensor([2.0]) + 3 ** x.argmax(-1),
    "quotients": lambda x: (
        torch.div(9 * x, 2, rounding_mode="trunc") + torch.div(9 * x, 2, rounding_mode="floor") + (9 * x).long() // 2
    ),
    "moments of rows": lambda x: torch.cat(
        [MATRIX.mul(x).var(1), MATRIX.add(x).mean(0), torch.var_mean(MATRIX * x, 1)[1]]
    ),
    "filled": filled,
    "gathered": lambda x: torch.cat(
        [x.gather(1, torch.tensor([[2, 0]])), x[:, torch.tensor([3, -1])], MATRIX[x.argmax(-1) % 4]], 1
    ),
    "two indices": lambda x: MATRIX[x.argmax(-1) % 4, x.argmin(-1)],
    "scattered": lambda x: torch.zeros(1, 5).scatter(1, x.argmax(-1, keepdim=True), 2.0),
    "rolled": lambda x: torch.cat([x.roll(1, -1), F.pad(x, (1, 2)), x.repeat(1, 2), x.expand(1, 5)[:, ::2]], 1),
    "stacked": lambda x: torch.stack([x[:, 0], x[:, 1]], -1),
    "convolution": lambda x: F.conv2d(
        torch.arange(84.0).view(1, 2, 6, 7) * x[0, 0], KERNEL, torch.ones(3), stride=2, padding=(1, 0)
    ),
    "double": lambda x: (x.double() / 3).float() + x * torch.tensor(0.1, dtype=torch.float64),
}
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "random": (lambda x: x + torch.rand(5), "aten.rand.default draws random numbers"),
    "looked at": (lambda x: x * x[0, 0].item(), "looks at numbers"),
    "branch": (lambda x: x if x[0, 0] > 0 else -x, "looks at numbers"),
    "unknown": (lambda x: x.sort().values, "aten.sort.default is not an operation that recordings know"),
    "outer": (lambda x: MATRIX.add_(0), "writes into a tensor that was not made here"),
    "bits": (lambda x: x.long() & 3, "bits of whole numbers"),
    "mask": (lambda x: x[x > 0], "shape depends on numbers: use torch.where"),
}
