"""Write policy gradients yourself: each `test_...` says in words what is wrong with a function that you have written.

    from tightrope import exercises
    exercises.test_gae(my_gae)  # prints a line, and returns whether my_gae is right

The course page, docs/course.md, leads through them.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator

from ..errors import raised
from ..output import print_line
from ..training.own_code import SIGNATURES, complaint
from .cases import EQUATIONS, train_ppo, train_vpg
from .equations import check_equation
from .metrics import ppo_metrics, vpg_metrics
from .phase_check import check_phase

Own = Callable[..., object]

__all__ = [
    "ppo_metrics",
    "test_clipped_surrogate",
    "test_collect",
    "test_discounted_returns",
    "test_entropy",
    "test_entropy_bonus",
    "test_gae",
    "test_importance_weights",
    "test_learning_rate",
    "test_minibatches",
    "test_policy_gradient",
    "test_ppo_phase",
    "test_timestep_mean",
    "test_value_loss",
    "test_vpg_phase",
    "vpg_metrics",
]  # fmt: skip

USES = {
    "minibatches": train_ppo("minibatches"),
    "collect": train_vpg("collect"),
    "learning_rate": train_vpg("learning_rate"),
    "vpg_phase": train_vpg("phase"),
    "ppo_phase": train_ppo("phase"),
} | {name: exercise.use for name, exercise in EQUATIONS.items()}


def diagnose(name: str, function: object) -> str | None:
    """What is wrong with a function that stands for an exercise, in words; None if it is right."""
    if not callable(function):
        return f"it is a {type(function).__name__}: give a function"
    try:
        if name in EQUATIONS:
            return check_equation(name, function, show_inputs=True)
        return next(OTHERS[name](function), None)
    except NotImplementedError as error:
        missing = traceback.extract_tb(error.__traceback__)[-1].name
        own = getattr(function, "__name__", missing)
        return "not written yet" if missing == own else f"it calls {missing}, which is not written yet"


def verdict(name: str, function: object) -> bool:
    """Print the diagnosis, and return whether the function is right."""
    wrong = diagnose(name, function)
    if wrong is not None:
        print_line(f"{name}: {wrong}")
        return False
    own = getattr(function, "__name__", "").strip("<>").replace("lambda", "my_function") or "my_function"
    print_line(f"{name}: right. {USES[name].format(own)}")
    return True


def in_a_phase(name: str, algo: str) -> Callable[[Own], Iterator[str]]:
    """The check of a function that is best seen at work in a phase."""

    def check(function: Own) -> Iterator[str]:
        wrong = failure(name, function) or complaint(name, function)
        if wrong is not None:
            yield f"it {wrong}"
            return
        found = check_phase(algo, {name: function})
        if found is not None:
            yield found[1]

    return check


def failure(name: str, function: Own) -> str | None:
    """The exception that a function raises on small tensors, with its line; None if there is none or nothing to try."""
    arguments = SIGNATURES[name].arguments
    if arguments is None or complaint(name, function) is None:
        return None
    try:
        result = function(*arguments())
        if isinstance(result, Iterator):
            list(result)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"raises {raised(error)}"
    return None


def check_schedule(function: Own) -> Iterator[str]:
    """A learning rate that falls linearly from 0.01 at progress 0 to 0 at progress 1."""
    if len(inspect.signature(function).parameters) != 1:
        yield "it does not take (progress): define it with this parameter"
        return
    for progress in (0.0, 0.25, 0.5, 1.0):
        expected = 0.01 * (1 - progress)
        try:
            found = function(progress)
        except NotImplementedError:
            raise
        except Exception as error:
            yield f"it raises {raised(error)}"
            return
        if not isinstance(found, (int, float)):
            yield f"it returns {'nothing' if found is None else f'a {type(found).__name__}'}: return a number"
        elif abs(found - expected) > 1e-9:
            turned = abs(found - 0.01 * progress) < 1e-9
            hint = ". It rises: progress is 0 at the start of a run and 1 at its end" if turned else ""
            yield f"at progress {progress:g} it is {found:.4g}, expected {expected:.4g}{hint}"


OTHERS: dict[str, Callable[[Own], Iterator[str]]] = {
    "learning_rate": check_schedule,
    "minibatches": in_a_phase("minibatches", "ppo"),
    "collect": in_a_phase("collect", "ppo"),
    "ppo_phase": in_a_phase("phase", "ppo"),
    "vpg_phase": in_a_phase("phase", "vpg"),
}


def test_discounted_returns(function: Own) -> bool:
    """Exercise 1: (reward, terminated, done, next_value, gamma) to returns, all (T, N)."""
    return verdict("discounted_returns", function)


def test_timestep_mean(function: Own) -> bool:
    """Exercise 2: (x, alive), both (T, N), to a baseline (T, 1)."""
    return verdict("timestep_mean", function)


def test_policy_gradient(function: Own) -> bool:
    """Exercise 3: (log_prob, advantage, weight, mask), all (B,), to the objective of REINFORCE, one number."""
    return verdict("policy_gradient", function)


def test_importance_weights(function: Own) -> bool:
    """Exercise 4: (log_prob, old_log_prob, clamp) to weights (B,)."""
    return verdict("importance_weights", function)


def test_entropy(function: Own) -> bool:
    """Exercise 5: logits (B, A) to entropies (B,)."""
    return verdict("entropy", function)


def test_entropy_bonus(function: Own) -> bool:
    """Exercise 5: entropies (B,) to the bonus, one number."""
    return verdict("entropy_bonus", function)


def test_learning_rate(function: Own) -> bool:
    """Exercise 6: progress from 0 to 1 to a learning rate that falls linearly from 0.01 to 0."""
    return verdict("learning_rate", function)


def test_collect(function: Own) -> bool:
    """Exercise 7: (env, policy, rollout, obs, noise) fills the rollout and returns the observations after it."""
    return verdict("collect", function)


def test_vpg_phase(function: Own) -> bool:
    """Exercise 8: (state, config, noise) to metrics: a whole phase of VPG."""
    return verdict("vpg_phase", function)


def test_gae(function: Own) -> bool:
    """Exercise 9: (reward, value, next_value, terminated, done, gamma, gae_lambda) to advantages (T, N)."""
    return verdict("gae", function)


def test_clipped_surrogate(function: Own) -> bool:
    """Exercise 10: (log_prob, old_log_prob, advantage, clip_coef) to the clipped surrogate, one number."""
    return verdict("clipped_surrogate", function)


def test_value_loss(function: Own) -> bool:
    """Exercise 11: (value, target) to the loss of the critic, one number."""
    return verdict("value_loss", function)


def test_minibatches(function: Own) -> bool:
    """Exercise 12: (batch, count, order) yields minibatches."""
    return verdict("minibatches", function)


def test_ppo_phase(function: Own) -> bool:
    """Exercise 13: (state, config, noise) to metrics: a whole phase of PPO."""
    return verdict("ppo_phase", function)
