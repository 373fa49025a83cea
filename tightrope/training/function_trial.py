"""A trial of a user's own function: its parameters, and its result on small tensors. A mistake is a UsageError of one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError, one_line
from ..types import Batch
from .own_code import OwnFunction

ROWS, STEPS, ENVS = 6, 3, 2


@dataclass(frozen=True)
class Signature:
    """How an algorithm calls a function: its parameters, arguments for a trial, and the result."""

    parameters: str
    arguments: Callable[[], tuple[object, ...]] | None = None  # None: it is not tried before training
    result: tuple[int, ...] | None = ()  # shape; None: something other than one tensor
    words: str = "one number, with shape ()"


def over_time() -> Tensor:
    """Numbers of shape (T, N)."""
    return torch.linspace(-1, 1, STEPS * ENVS).view(STEPS, ENVS)


def never() -> Tensor:
    return torch.zeros(STEPS, ENVS, dtype=torch.bool)


def flat_column(gradient: bool = False) -> Tensor:
    """Numbers of shape (B,)."""
    return torch.linspace(-1, 0, ROWS, requires_grad=gradient)


def small_batch() -> Batch:
    rows = torch.arange(ROWS)
    return Batch(rows[:, None].float(), rows, *(rows.float() for _ in range(4)))


def two_orders() -> Tensor:
    return torch.arange(ROWS).repeat(2, 1)


TIME = f"one number for each step and environment, (T, N) = ({STEPS}, {ENVS})"
SIGNATURES = {
    "discounted_returns": Signature(
        "reward, terminated, done, next_value, gamma",
        lambda: (over_time(), never(), never(), over_time(), 0.9), (STEPS, ENVS), TIME,
    ),
    "timestep_mean": Signature(
        "x, alive", lambda: (over_time(), ~never()), (STEPS, 1), f"one number for each step, (T, 1) = ({STEPS}, 1)"
    ),
    "importance_weights": Signature(
        "log_prob, old_log_prob, clamp",
        lambda: (flat_column(), flat_column(), 0.2), (ROWS,), f"one number for each row, ({ROWS},)",
    ),
    "policy_gradient": Signature(
        "log_prob, advantage, weight, mask", lambda: (flat_column(True), flat_column(), flat_column().exp(), flat_column() < 0)
    ),
    "gae": Signature(
        "reward, value, next_value, terminated, done, gamma, gae_lambda",
        lambda: (over_time(), over_time(), over_time(), never(), never(), 0.9, 0.8), (STEPS, ENVS), TIME,
    ),
    "clipped_surrogate": Signature(
        "log_prob, old_log_prob, advantage, clip_coef", lambda: (flat_column(True), flat_column(), flat_column(), 0.2)
    ),
    "value_loss": Signature("value, target", lambda: (flat_column(True), flat_column())),
    "entropy_bonus": Signature("entropy", lambda: (flat_column(True),)),
    "minibatches": Signature("batch, count, order", lambda: (small_batch(), 2, two_orders()), None),
    "collect": Signature("env, policy, rollout, obs, noise", None, None),
    "phase": Signature("state, config, noise", None, None),
}  # fmt: skip


def try_function(one: OwnFunction) -> None:
    """Raise UsageError if a function cannot be called as the algorithm calls it, or returns something of another shape."""
    what = f"{one.name} {one.path.rpartition(':')[2]}"
    wrong = complaint(one.name, one.function)
    if wrong is not None:
        raise UsageError(f"{what} {wrong}")


def complaint(name: str, function: object) -> str | None:
    """What is wrong with a function that stands for `name`, as the end of a sentence; None if nothing is."""
    signature = SIGNATURES[name]
    if not callable(function):
        return f"is a {type(function).__name__}: give a function of ({signature.parameters})"
    if not takes(function, len(signature.parameters.split(", "))):
        return f"does not take {signature.parameters}: define it with these parameters, in this order"
    if signature.arguments is None:
        return None
    try:
        result = function(*signature.arguments())
        if name == "minibatches":
            result = list(result)
    except Exception as error:
        return f"raises {type(error).__name__} on small tensors: {one_line(error)}"
    return wrong_result(signature, result) if name != "minibatches" else wrong_minibatches(result)


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether a function can be called with so many arguments by position."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # built in, without a signature
        return True
    return True


def wrong_result(signature: Signature, result: object) -> str | None:
    if not isinstance(result, Tensor):
        return f"returns {type_words(result)}: return {signature.words}"
    if result.shape != signature.result:
        return f"returns shape {tuple(result.shape)}: return {signature.words}"
    if not result.is_floating_point():
        return f"returns {str(result.dtype).removeprefix('torch.')}: return floats"
    return None


def wrong_minibatches(found: object) -> str | None:
    assert isinstance(found, list)
    bad = next((one for one in found if not isinstance(one, Batch)), None)
    if bad is not None:
        return f"yields {type_words(bad)}: yield parts of the batch, such as batch.take(rows)"
    return None if len(found) == 4 else f"yields {len(found)} minibatches for 2 orders of 2 each: yield 4"


def type_words(thing: object) -> str:
    return "nothing" if thing is None else f"a {type(thing).__name__}"
