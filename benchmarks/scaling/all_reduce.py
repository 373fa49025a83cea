"""One message an update, or DistributedDataParallel: which gradient step is quicker?

    torchrun --standalone --nproc-per-node 2 benchmarks/scaling/all_reduce.py [--device cpu] [--repeats 5]

Each network takes the same gradient of the same loss three ways, by turns: with nobody to talk to; with torch's DDP around
the module (gradients as views of its buckets, static graph); and as Tightrope does it, one all-reduce over the flat buffer
with the loss's terms at its end. Prints milliseconds of an update and DDP's time over ours.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tightrope.engine import Optimizer, distributed
from tightrope.engine.optimize import autograd, over_ranks
from tightrope.functional import PPOLoss
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.types import Batch, Box, Discrete

CASES: dict[str, tuple[tuple[int, ...], torch.dtype, tuple[int, ...], int, int]] = {
    # shape and type of an observation, units of layers, rows of a minibatch, updates that are timed
    "MLP 2 x 64 (CartPole)": ((4,), torch.float32, (64, 64), 256, 40),
    "MLP 2 x 256": ((17,), torch.float32, (256, 256), 512, 40),
    "Nature CNN (Atari)": ((4, 84, 84), torch.uint8, (512,), 64, 10),
}


class Loss(nn.Module):
    """A loss as a module, which is what DDP wants."""

    def __init__(self, policy: ActorCritic, loss: PPOLoss) -> None:
        super().__init__()
        self.policy, self.loss = policy, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.policy, batch)[0]


def ways(policy: ActorCritic, batch: Batch, optimizer: Optimizer) -> dict[str, Callable[[], object]]:
    """Updates of one network: with nobody to talk to, by DDP, by one message."""
    loss = PPOLoss(0.2, 0.5, 0.01, clip_vloss=False)
    wrapped = DistributedDataParallel(Loss(policy, loss), gradient_as_bucket_view=True, static_graph=True)

    def by_ddp() -> None:
        wrapped.zero_grad(set_to_none=False)
        wrapped(batch).backward()

    def alone() -> tuple[Tensor, ...]:
        return autograd(loss, policy, batch, optimizer)

    return {"alone": alone, "ddp": by_ddp, "message": lambda: over_ranks(alone(), batch, optimizer)}


def random_batch(policy: ActorCritic, obs: Tensor) -> Batch:
    with torch.no_grad():
        distribution, value = policy(obs)
        action = distribution.mode()
        return Batch(obs, action, distribution.log_prob(action), value, torch.randn_like(value), value + 1)


def seconds(update: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of one update, once it is warm; ranks begin together."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    distributed.all_reduce_sum(torch.zeros(1))
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        update()
    synchronize()
    return (time.perf_counter() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5, help="times that each way is measured")
    args = parser.parse_args()
    world, device = distributed.join(collectives=True), torch.device(args.device)
    torch.set_num_threads(1)
    if world.is_rank0:
        print(f"{world.size} ranks, {device}, torch {torch.__version__}")
        print(f"{'network':<24} {'numbers':>10} {'alone':>9} {'DDP':>9} {'one message':>12} {'DDP / ours':>11}")
    for name, (shape, dtype, hidden, rows, count) in CASES.items():
        torch.manual_seed(451)
        pictures = dtype == torch.uint8
        space = Box(shape, 0, 255, dtype) if pictures else Box(shape, -1.0, 1.0)
        policy = actor_critic(space, Discrete(4), NetworkConfig(hidden_sizes=hidden)).to(device)
        obs = torch.randint(0, 255, (rows, *shape), dtype=dtype) if pictures else torch.randn(rows, *shape)
        optimizer = Optimizer(policy)
        updates = ways(policy, random_batch(policy, obs.to(device)), optimizer)
        for update in updates.values():
            seconds(update, device, 5)
        rounds = [{way: seconds(update, device, count) for way, update in updates.items()} for _ in range(args.repeats)]
        alone, ddp, message = (1e3 * statistics.median(taken[way] for taken in rounds) for way in updates)
        if world.is_rank0:
            times = f"{alone:>6.2f} ms {ddp:>6.2f} ms {message:>9.2f} ms {ddp / message:>11.2f}"
            print(f"{name:<24} {len(optimizer.flat):>10,} {times}")
    distributed.leave()


if __name__ == "__main__":
    main()
