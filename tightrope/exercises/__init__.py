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
from .equations import EQUATIONS, Own, check_equation, train_ppo, train_vpg
from .metrics import ppo_metrics, vpg_metrics
from .phase_check import check_phase

__all__ = [
    "ppo_metrics", "test_clipped_surrogate", "test_collect", "test_discounted_returns", "test_entropy",
    "test_entropy_bonus", "test_gae", "test_importance_weights", "test_learning_rate", "test_minibatches",
    "test_policy_gradient", "test_ppo_phase", "test_timestep_mean", "test_value_loss", "test_vpg_phase",
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


def exercise(name: str, says: str) -> Callable[[Own], bool]:
    """The test of an exercise. `says` is what the function takes, and what it returns or does."""

    def test(function: Own) -> bool:
        return verdict(name, function)

    test.__name__, test.__doc__ = f"test_{name}", says
    return test


test_discounted_returns = exercise(
    "discounted_returns", "Exercise 1: (reward, terminated, done, next_value, gamma) to returns, all (T, N)."
)
test_timestep_mean = exercise("timestep_mean", "Exercise 2: (x, alive), both (T, N), to a baseline (T, 1).")
test_policy_gradient = exercise(
    "policy_gradient",
    "Exercise 3: (log_prob, advantage, weight, mask), all (B,), to the objective of REINFORCE, one number.",
)
test_importance_weights = exercise("importance_weights", "Exercise 4: (log_prob, old_log_prob, clamp) to weights (B,).")
test_entropy = exercise("entropy", "Exercise 5: logits (B, A) to entropies (B,).")
test_entropy_bonus = exercise("entropy_bonus", "Exercise 5: entropies (B,) to the bonus, one number.")
test_learning_rate = exercise(
    "learning_rate", "Exercise 6: progress from 0 to 1 to a learning rate that falls linearly from 0.01 to 0."
)
test_collect = exercise(
    "collect", "Exercise 7: (env, policy, rollout, obs, noise) fills the rollout and returns the observations after it."
)
test_vpg_phase = exercise("vpg_phase", "Exercise 8: (state, config, noise) to metrics: a whole phase of VPG.")
test_gae = exercise(
    "gae", "Exercise 9: (reward, value, next_value, terminated, done, gamma, gae_lambda) to advantages (T, N)."
)
test_clipped_surrogate = exercise(
    "clipped_surrogate",
    "Exercise 10: (log_prob, old_log_prob, advantage, clip_coef) to the clipped surrogate, one number.",
)
test_value_loss = exercise("value_loss", "Exercise 11: (value, target) to the loss of the critic, one number.")
test_minibatches = exercise("minibatches", "Exercise 12: (batch, count, order) yields minibatches.")
test_ppo_phase = exercise("ppo_phase", "Exercise 13: (state, config, noise) to metrics: a whole phase of PPO.")
