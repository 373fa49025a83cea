"""What the references agree on: the recipe, the physics' constants, the clock, the command line and the line they print."""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple

GAMMA, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE, MAX_NORM = 0.2, 0.01, 0.5, 0.5
EPOCHS, MINIBATCHES = 4, 4
HIDDEN = int(os.environ.get("HIDDEN", "64"))  # units of each of the two hidden layers
BETA1, BETA2, EPS = 0.9, 0.999, 1e-5
WIDE_RATE, CLASSIC_RATE = 2.5e-3, 2.5e-4  # of a thousand environments and more; of four
CLASSIC_ENVS, CLASSIC_STEPS, CLASSIC_TOTAL = 4, 128, 500_000

GRAVITY, TOTAL_MASS, POLE_MASS, HALF_LENGTH, FORCE, TAU = 9.8, 1.1, 0.1, 0.5, 10.0, 0.02
POLE_MOMENT, TRACK, LEAN, TIME_LIMIT = 0.05, 2.4, 12 * 2 * math.pi / 360, 500

METRICS = (
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm",  # means over the updates of a phase
    "explained_variance",
    "episodes", "returns", "lengths",  # number and sums of the episodes that finished in a phase
)  # fmt: skip
WARM_UP, LAST = 3, 8  # phases before the clock starts; phases the mean length is taken over


# of tensors, or of JAX's arrays


class Carts(NamedTuple):
    """The environments between two steps."""

    state: Any  # (N, 4)
    clock: Any  # (N,) steps of the episode under way
    total: Any  # (N,) its return so far


class Transition(NamedTuple):
    """One step, or stacked, a rollout (T, N, ...)."""

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    clock: Any  # length of the episode, this step included
    total: Any  # its return, this step included


class Batch(NamedTuple):
    obs: Any
    action: Any
    log_prob: Any
    advantage: Any
    target: Any


@dataclass(frozen=True)
class Result:
    """One measurement, as printed."""

    name: str
    num_envs: int
    num_steps: int
    precision: str
    setup_s: float
    steps_per_s: float
    ms_per_phase: float
    mean_length: float | None  # of the episodes that finished in the last phases; None if none did

    def print(self) -> None:
        print(json.dumps(asdict(self)), flush=True)


def result(
    name: str, size: tuple[int, int], precision: str, setup: float, per_phase: float, episodes: float, lengths: float
) -> Result:
    """Of seconds of set-up and of a phase, and of the number and the summed lengths of the last episodes."""
    steps = round(size[0] * size[1] / per_phase)
    return Result(
        name, *size, precision, round(setup, 2), steps, round(per_phase * 1e3, 3), mean_length(episodes, lengths)
    )


def steady(phase: Callable[[], object], synchronize: Callable[[], None], seconds: float) -> float:
    """Seconds per phase, over as many phases as last about `seconds`."""

    def elapsed(count: int) -> float:
        synchronize()
        began = time.perf_counter()
        for _ in range(count):
            phase()
        synchronize()
        return time.perf_counter() - began

    elapsed(WARM_UP)
    count = max(3, math.ceil(seconds / (elapsed(3) / 3)))
    return elapsed(count) / count


def mean_length(episodes: float, lengths: float) -> float | None:
    return round(lengths / episodes, 1) if episodes else None


def size(words: str) -> tuple[int, int]:
    """'1024x32' to 1024 environments and 32 steps."""
    num_envs, num_steps = words.split("x")
    return int(num_envs), int(num_steps)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--sizes", type=size, nargs="+", metavar="NxT", help="several sizes in turn, instead of one")
    parser.add_argument("--precision", nargs="+", choices=("fp32", "tf32"), default=["fp32"])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement lasts")
    return parser


def workloads(args: argparse.Namespace) -> list[tuple[int, int, str]]:
    """(environments, steps, precision) of every measurement asked for."""
    sizes = args.sizes or [(args.num_envs, args.num_steps)]
    return [(n, t, precision) for precision, (n, t) in product(args.precision, sizes)]
