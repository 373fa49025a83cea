"""Reference: PPO on CartPole in PyTorch, a whole phase as one CUDA graph.

    python benchmarks/references/graph.py --num-envs 1024 --num-steps 32 --precision fp32 --seconds 2 [--compile]

What it is: an upper reference for the technique, in as little code as shows it, and not a part of the library. Autograd,
torch's clipping and torch's fused Adam run with the kernels PyTorch has, or with --compile as Inductor fuses them; one
graph holds them all. Recipe, rules and diagnostics are those of Tightrope's PPO (see torch_pieces.py). Prints a line of
JSON for each size and precision. With --eager there is no graph and it runs anywhere, which is how it is tested.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import recipe
import torch
from torch import nn
from torch_pieces import DEVICE, act_and_step, collect, estimate, loss, minibatches, mlp, run, start

Function = TypeVar("Function", bound=Callable[..., object])


class PPO:
    """Networks, optimizer and environments; `phase` writes everything in place, so that it can be captured."""

    def __init__(self, num_envs: int, num_steps: int, compiled: bool = False) -> None:
        self.num_steps = num_steps
        self.actor, self.critic = mlp(2, 0.01), mlp(1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.learning_rate = torch.tensor(recipe.WIDE_RATE, device=DEVICE)
        self.adam = torch.optim.Adam(
            self.parameters, lr=self.learning_rate, eps=recipe.EPS, fused=True, capturable=DEVICE.type == "cuda"
        )
        self.carts = start(num_envs)
        self.metrics = torch.zeros(len(recipe.METRICS), device=DEVICE)

        def maybe_compiled(function: Function) -> Function:
            return torch.compile(function, dynamic=False) if compiled else function

        self.act_and_step = maybe_compiled(partial(act_and_step, self.actor))
        self.estimate = maybe_compiled(partial(estimate, self.critic))
        self.loss = maybe_compiled(partial(loss, self.actor, self.critic))

    def phase(self) -> None:
        """Collect, estimate, learn."""
        with torch.no_grad():
            rollout, carts = collect(self.act_and_step, self.carts, self.num_steps)
            batch, about_phase = self.estimate(rollout, carts.state)
            for mine, new in zip(self.carts, carts, strict=True):
                mine.copy_(new)
        rows = []
        for _ in range(recipe.EPOCHS):
            for minibatch in minibatches(batch):
                self.adam.zero_grad(set_to_none=False)
                total, terms = self.loss(minibatch)
                total.backward()
                norm = nn.utils.clip_grad_norm_(self.parameters, recipe.MAX_NORM)
                self.adam.step()
                rows.append(torch.cat([terms, norm[None]]))
        self.metrics.copy_(torch.cat([torch.stack(rows).mean(0), about_phase]))


def main() -> None:
    parser = recipe.arguments(__doc__)
    parser.add_argument("--compile", action="store_true", help="Inductor's kernels inside the graph")
    parser.add_argument("--eager", action="store_true", help="no graph")
    args = parser.parse_args()
    name = ("eager" if args.eager else "graph") + (" compiled" if args.compile else "")
    run(name, partial(PPO, compiled=args.compile), args)


if __name__ == "__main__":
    main()
