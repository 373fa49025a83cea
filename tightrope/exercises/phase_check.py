"""Compare one phase with the definitions, stage by stage, and say in words what is wrong at the first stage that differs.

The stages follow the data: rollout, returns or advantages, minibatches, gradient, step, schedule, statistics. A stage is only
looked at if those before it are right, so the first finding names the place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import torch

from ..errors import one_line, raised
from . import definitions
from .comparing import agrees, first_difference
from .gradient_check import ppo_gradient, schedule_stage, statistics_stage, step_stage, vpg_gradient
from .one_phase import OnePhase, run_phase
from .phase_stages import ppo_advantages, ppo_minibatches, vpg_batches, vpg_returns

STAGES = ("rollout", "advantages", "minibatches", "gradient", "step", "schedule", "statistics")
Stage = Callable[[OnePhase], Iterator[str]]
Own = Callable[..., object]
Functions = Mapping[str, Own]


def check_phase(algo: str, functions: Functions | None = None) -> tuple[str, str] | None:
    """(stage, words) of the first thing that is wrong with a phase, with `functions` in place of the algorithm's; None if it
    agrees with the definitions."""
    results: list[tuple[str, object]] = []
    own = {name: noting_results(name, function, results) for name, function in (functions or {}).items()}
    try:
        discrete = run_phase(algo, functions=own)
    except NotImplementedError:
        raise
    except Exception as error:
        lost = no_result(algo, results)
        where = raised(error) if own else f"{type(error).__name__}: {one_line(error)}"
        return "phase", lost or f"it raises {where}"
    if lost := no_result(algo, results):
        return "phase", lost
    held, size = len(discrete.state.optimizer.flat), sum(p.numel() for p in discrete.old_policy.parameters())
    if held != size:
        words = f"the optimizer holds {held} of the policy's {size} parameters: all of them must be in it"
        return "step", f"optimizer: {words}"
    for name, stage in zip(STAGES, stages(algo), strict=True):
        for words in stage(discrete):
            return name, words
    for words in rollout_stage(run_phase(algo, continuous=True, functions=own)):
        return "rollout", f"with continuous actions: {words}"
    return None


def noting_results(name: str, function: Own, results: list[tuple[str, object]]) -> Own:
    """The function, which also adds what it returns to `results`, by name."""

    @functools.wraps(function)
    def noting(*args: object) -> object:
        results.append((name, function(*args)))
        return results[-1][1]

    return noting


def no_result(algo: str, results: list[tuple[str, object]]) -> str | None:
    """What is wrong if a phase or `collect` returned nothing, or a phase something other than metrics."""
    ends = {
        "phase": f"exercises.{algo}_metrics(state, batch, rows)",
        "collect": "obs, the observations after the last step",
    }
    for name, result in results:
        if result is None and name in ends:
            return f"it returns nothing: end with return {ends[name]}"
        if name == "phase" and not hasattr(result, "_asdict"):
            return f"it returns a {type(result).__name__}: end with return {ends[name]}"
    return None


def stages(algo: str) -> tuple[Stage, ...]:
    first = (
        (ppo_advantages, ppo_minibatches, ppo_gradient) if algo == "ppo" else (vpg_returns, vpg_batches, vpg_gradient)
    )
    return rollout_stage, *first, step_stage, schedule_stage, statistics_stage


# the rollout ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def rollout_stage(one: OnePhase) -> Iterator[str]:
    """Play the stored actions again, in a copy of the environments as they were before the phase."""
    r, env, old = one.rollout, one.state.env.spawn(one.state.env.num_envs, 0), one.old_policy
    env.load_state_dict(one.env_before)
    obs = env.reset(noise=one.noise.start) if one.config.by_trajectory else one.obs_before
    if one.config.by_trajectory and not agrees(r.obs[0], obs) and agrees(r.obs[0], one.obs_before):
        yield "obs[0] is where the last rollout ended: VPG begins each rollout with state.env.reset(noise=noise.start)"
    for t in range(len(r.reward)):
        if t and agrees(r.obs[t], r.obs[t - 1]) and not agrees(r.obs[t], obs):
            again = f"obs[{t}] is that of step {t - 1} again: the policy must see what the step led to"
            yield f"{again}, obs = step.obs at the end of the loop"
        if not agrees(r.obs[t], obs):
            yield f"obs[{t}] is not what the policy saw at step {t}: store the observation before the step"
        distribution = old.distribution(obs)
        expected = definitions.sampled(distribution, one.noise.action[t])
        if not agrees(r.action[t], expected):
            clipped = agrees(r.action[t], old.head.to_env(expected).view_as(expected))
            advice = "clipped or scaled: store it as sampled" if clipped else "not the one that the policy sampled"
            yield f"action[{t}] is {advice} (detail 27)"
        log_prob = definitions.log_probability(distribution, r.action[t])
        if not agrees(r.log_prob[t], log_prob):
            words = f"{first_difference(r.log_prob[t], log_prob)}. It is that of the stored action under the policy that acted"
            yield f"log_prob[{t}] is wrong: {words}"
        if old.critic is not None and not agrees(r.value[t], old.value(obs)):
            yield f"value[{t}] is not the critic's value of obs[{t}]: {first_difference(r.value[t], old.value(obs))}"
        step = env.step(old.head.to_env(r.action[t]), one.noise.reset[t])
        done = step.terminated | step.truncated
        if not torch.equal(r.terminated[t], step.terminated):
            merged = torch.equal(r.terminated[t], done)
            yield f"terminated[{t}] is wrong" + (": it also holds time limits, keep truncated apart" if merged else "")
        if not torch.equal(r.truncated[t], step.truncated):
            yield f"truncated[{t}] is wrong: it marks the episodes that the time limit ended, and no others"
        if not agrees(r.reward[t], step.reward):
            yield f"reward[{t}] is not that of step {t}: {first_difference(r.reward[t], step.reward)}"
        if not agrees(r.final_obs[t], step.final_obs):
            after_reset = agrees(r.final_obs[t], step.obs)
            hint = "it is the observation after the reset" if after_reset else "it is not where the step led"
            yield f"final_obs[{t}] is wrong: {hint}, and V(final_obs) is the value after a time limit"
        obs = step.obs
    if not agrees(one.state.obs, obs):
        yield "state.obs is not the observation after the last step: the next rollout would start elsewhere"
