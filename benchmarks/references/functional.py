"""Reference: PPO on CartPole in PyTorch, a minibatch's update (forward, backward, clip, Adam) traced as one function.

    python benchmarks/references/functional.py --num-envs 1024 --num-steps 32 --precision fp32 --seconds 2

What it is: an upper reference for the technique, in as little code as shows it, and not a part of the library. Where
graph.py leaves backward and optimizer to PyTorch, here parameters and moments go through a pure function, so that Inductor
sees the whole update at once; a phase is again one CUDA graph. Recipe, rules and diagnostics are those of Tightrope's PPO
(see torch_pieces.py). Prints a line of JSON for each size and precision. With --eager nothing is compiled or captured and
it runs anywhere, which is how it is tested.
"""

from functools import partial
from typing import NamedTuple

import recipe
import torch
from recipe import Batch, Carts, Transition
from torch import Tensor
from torch.func import grad
from torch.nn import functional as F
from torch_pieces import DEVICE, act_and_step, collect, estimate, loss, minibatches, mlp, run, start

LAYER_TENSORS = 6  # weights and biases of one network; the actor's come first


class Adam(NamedTuple):
    """Parameters and what the optimizer remembers of them."""

    parameters: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    step: Tensor

    def tensors(self) -> list[Tensor]:
        return [*self.parameters, *self.first, *self.second, self.step]


def network(weights: list[Tensor], x: Tensor) -> Tensor:
    x = torch.tanh(F.linear(x, weights[0], weights[1]))
    x = torch.tanh(F.linear(x, weights[2], weights[3]))
    return F.linear(x, weights[4], weights[5])


def loss_of(parameters: list[Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    actor, critic = parameters[:LAYER_TENSORS], parameters[LAYER_TENSORS:]
    return loss(partial(network, actor), partial(network, critic), batch)


def update(adam: Adam, learning_rate: Tensor, batch: Batch) -> tuple[Adam, Tensor]:
    """One gradient step; also (five terms of the loss, gradient norm)."""
    grads, terms = grad(loss_of, has_aux=True)(adam.parameters, batch)
    norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
    scale = (recipe.MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    step = adam.step + 1
    correction1, correction2 = 1 - recipe.BETA1**step, 1 - recipe.BETA2**step
    parameters, first, second = [], [], []
    for p, m, v, g in zip(adam.parameters, adam.first, adam.second, grads, strict=True):
        m = recipe.BETA1 * m + (1 - recipe.BETA1) * g * scale
        v = recipe.BETA2 * v + (1 - recipe.BETA2) * (g * scale).square()
        parameters.append(p - learning_rate * (m / correction1) / ((v / correction2).sqrt() + recipe.EPS))
        first.append(m)
        second.append(v)
    return Adam(parameters, first, second, step), torch.cat([terms, norm[None]])


def act(parameters: list[Tensor], carts: Carts, noise: Tensor, fresh: Tensor) -> tuple[Transition, Carts]:
    return act_and_step(partial(network, parameters[:LAYER_TENSORS]), carts, noise, fresh)


def judge(parameters: list[Tensor], rollout: Transition, last_obs: Tensor) -> tuple[Batch, Tensor]:
    return estimate(partial(network, parameters[LAYER_TENSORS:]), rollout, last_obs)


class PPO:
    """Tensors that keep their place between phases, and the three traced functions."""

    def __init__(self, num_envs: int, num_steps: int, compiled: bool = True) -> None:
        self.num_steps = num_steps
        parameters = [p.detach().clone() for net in (mlp(2, 0.01), mlp(1, 1.0)) for p in net.parameters()]
        first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self.adam = Adam(parameters, first, second, torch.zeros((), device=DEVICE))
        self.learning_rate = torch.tensor(recipe.WIDE_RATE, device=DEVICE)
        self.carts = start(num_envs)
        self.metrics = torch.zeros(len(recipe.METRICS), device=DEVICE)
        trace = partial(torch.compile, fullgraph=True, dynamic=False) if compiled else (lambda function: function)
        self.act, self.judge, self.update = trace(act), trace(judge), trace(update)

    @torch.no_grad()
    def phase(self) -> None:
        """Collect, estimate, learn."""
        rollout, carts = collect(partial(self.act, self.adam.parameters), self.carts, self.num_steps)
        batch, about_phase = self.judge(self.adam.parameters, rollout, carts.state)
        adam, rows = self.adam, []
        for _ in range(recipe.EPOCHS):
            for minibatch in minibatches(batch):
                adam, row = self.update(adam, self.learning_rate, minibatch)
                rows.append(row)
        for mine, new in zip([*self.carts, *self.adam.tensors()], [*carts, *adam.tensors()], strict=True):
            mine.copy_(new)
        self.metrics.copy_(torch.cat([torch.stack(rows).mean(0), about_phase]))


def main() -> None:
    parser = recipe.arguments(__doc__)
    parser.add_argument("--eager", action="store_true", help="neither compiled nor captured")
    args = parser.parse_args()
    run("functional eager" if args.eager else "functional", partial(PPO, compiled=not args.eager), args)


if __name__ == "__main__":
    main()
