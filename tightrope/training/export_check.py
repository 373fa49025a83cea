"""Whether an exported graph does as torch does: on observations of short episodes and on random ones of their scale, in
batches of several sizes. Torch's answers come the way `Agent.predict` goes, by the environment's own encode and decode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..envs.adapters.host import HostEnv
from ..errors import EnvError, ExportError, UsageError, one_line
from ..models import ActorCritic, Gaussian
from ..models.actor_critic import Distribution, GaussianHead
from ..models.distributions import RULED_OUT
from ..types import Composite, Discrete, Env, MultiDiscrete, Spec

Array = np.ndarray[Any, Any]
Outputs = dict[str, Array]
ROWS, STEPS = 4, 16  # of the episodes; as many observations again are random
BATCHES = (1, 2, 7)  # sizes of the first few; the last one has all the rest
SPREAD = 3.0  # of random observations, in standard deviations of those seen
TOLERANCE = 1e-4  # of the largest number in an output, or of 1 where all are smaller


def beside(policy: ActorCritic, distribution: Distribution, value: Tensor) -> dict[str, Tensor]:
    """What a graph gives besides the action, by name; a mean is not clipped yet, but in the environment's units."""
    outputs: dict[str, Tensor] = {}
    head = policy.head
    if isinstance(distribution, Gaussian) and isinstance(head, GaussianHead):
        mean = torch.addcmul(head.middle, head.reach, distribution.mean)
        std = (head.reach * distribution.log_std.exp()).expand_as(mean)
        flat = len(head.shape) == 1
        outputs |= {k: v if flat else v.reshape(-1, *head.shape) for k, v in (("mean", mean), ("std", std))}
    elif not isinstance(distribution, Gaussian):
        outputs["logits"] = distribution.logits
    return outputs if policy.critic is None else {**outputs, "value": value}


# observations --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def example_rows(policy: ActorCritic, env: Env, seed: int) -> Tensor:
    """(rows, ...) as the policy reads them, half from episodes if the environment can be made again; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    seen = episodes(policy, env, seed)
    like = torch.zeros(ROWS * STEPS, *env.observation.shape) if seen is None else seen
    drawn = random_rows(env.observation, like.float(), generator)
    rows = drawn if seen is None else torch.cat([seen, drawn])
    return rows[torch.randperm(len(rows), generator=generator)]


def episodes(policy: ActorCritic, env: Env, seed: int) -> Tensor | None:
    """What a few copies of the environment show while the policy acts, as it did in training."""
    try:
        twin = env.spawn(ROWS, seed)
        obs = twin.reset(seed=seed)
        generator = torch.Generator(obs.device).manual_seed(seed)
        seen = []
        for _ in range(STEPS):
            seen.append(obs.cpu().clone())
            action = policy.distribution(obs).sample(policy.head.noise((ROWS,), generator))
            obs = twin.step(policy.head.to_env(action)).obs
        twin.close()
    except (UsageError, EnvError):  # there is one alone, or none can be run here: random ones must do
        return None
    return torch.cat(seen).to(env.observation.dtype)


def random_rows(spec: Spec, like: Tensor, generator: torch.Generator) -> Tensor:
    """As many rows as `like` has. Numbers are spread around those in `like`; choices and pixels are any."""
    count = len(like)
    if isinstance(spec, Composite):
        inner = [part for _, part in spec.parts]
        pieces = torch.split(like, [math.prod(part.shape) for part in inner], dim=1)
        drawn = [
            random_rows(part, piece.reshape(count, *part.shape), generator)
            for part, piece in zip(inner, pieces, strict=True)
        ]
        return torch.cat([rows.reshape(count, -1).to(spec.dtype) for rows in drawn], dim=1)
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (count,), generator=generator)
    if isinstance(spec, MultiDiscrete):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in spec.n], 1)
    if spec.dtype == torch.uint8:
        return torch.randint(256, (count, *spec.shape), generator=generator, dtype=torch.uint8)
    std = like.std(0)
    return like.mean(0) + SPREAD * torch.randn(like.shape, generator=generator) * torch.where(std > 0, std, 1.0)


# answers -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def differences(content: bytes, names: Sequence[str], policy: ActorCritic, env: Env, rows: Tensor) -> dict[str, float]:
    """The largest absolute difference between a graph and torch, by output; an ExportError where that is too large."""
    from ..envs.adapters.spaces import reader_of

    reader, run = reader_of(env), graph_runner(content)
    worst: dict[str, float] = {}
    for batch in torch.split(rows, [*BATCHES, len(rows) - sum(BATCHES)]):
        shown = reader.show(batch.numpy())
        got = run(dict(zip(names, shown, strict=True)))
        for name, error in output_errors(got, expected(policy, env, shown)).items():
            worst[name] = max(error, worst.get(name, 0.0))
    return worst


def graph_runner(content: bytes) -> Callable[[Outputs], Outputs]:
    """A function that runs the graph by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds have no common name
        raise ExportError(f"onnxruntime cannot load the graph, so nothing was written: {one_line(error)}") from error
    names = [output.name for output in session.get_outputs()]

    def run(shown: Outputs) -> Outputs:
        try:
            return dict(zip(names, session.run(names, shown), strict=True))
        except Exception as error:
            raise ExportError(f"onnxruntime cannot run the graph, so nothing was written: {one_line(error)}") from error

    return run


def expected(policy: ActorCritic, env: Env, shown: Sequence[Array]) -> Outputs:
    """What torch gives."""
    rows = (
        env.encode(env._observation.nested(shown))[0].cpu() if isinstance(env, HostEnv) else torch.from_numpy(shown[0])
    )
    distribution, value = policy(rows)
    action = policy.head.to_env(distribution.mode())
    outputs = {name: tensor.numpy() for name, tensor in beside(policy, distribution, value).items()}
    return {"action": env.decode(action) if isinstance(env, HostEnv) else action.numpy(), **outputs}


def output_errors(got: Outputs, want: Outputs) -> dict[str, float]:
    """The largest absolute difference in each output of one batch. Where two choices are so close that rounding decides
    between them, either is right."""
    if got.keys() != want.keys():
        raise ExportError(f"the graph gives {', '.join(got)} for {', '.join(want)}, so nothing was written")
    errors: dict[str, float] = {}
    for name, right in want.items():
        mine = got[name]
        if (mine.shape, mine.dtype) != (right.shape, right.dtype):
            raise ExportError(
                f"{name} is {mine.dtype}{list(mine.shape)} in the graph and {right.dtype}{list(right.shape)} in torch, so "
                "nothing was written"
            )
        if not np.isfinite(right).all():
            raise ExportError(f"{name} is not finite in torch, so nothing was written: has training diverged?")
        difference = np.abs(mine.astype(np.float64) - right)
        if name == "action" and "logits" in want:
            sure = margin(want["logits"]).reshape(right.shape) > 2 * allowed(want["logits"])
            difference = np.where(sure, difference, 0.0)
        errors[name] = float(difference.max())
        if not errors[name] <= allowed(right):  # nor where it is NaN
            raise ExportError(
                f"{name} is off by {errors[name]:.1e} in the graph (at most {allowed(right):.1e}), so nothing was written"
            )
    return errors


def allowed(right: Array) -> float:
    """The largest difference that rounding may make: in float32 on the way, and to the output's own type at the end."""
    share = max(TOLERANCE, 2 * float(np.finfo(right.dtype).eps)) if right.dtype.kind == "f" else TOLERANCE
    numbers = np.abs(right.astype(np.float64))
    return share * max(1.0, float(numbers[numbers < -RULED_OUT].max(initial=0.0)))


def margin(logits: Array) -> Array:
    """How far ahead the best choice is of the second best; (B,) or (B, K)."""
    if logits.shape[-1] == 1:
        return np.full(logits.shape[:-1], np.inf)
    ranked = np.sort(logits, axis=-1)
    return ranked[..., -1] - ranked[..., -2]
