"""Wrong solutions of the exercises, as a learner would write them, and words that the diagnosis must have."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tightrope as tr
from tightrope import exercises, functional

ROOT = Path(tr.__file__).parents[1]
Own = Callable[..., Any]


def solutions() -> dict[str, Own]:
    """The functions of the folded solutions, by name."""
    page = (ROOT / "docs" / "course.md").read_text()
    blocks = re.findall(r"<summary>Solution</summary>\n\n```python\n(.*?)```", page, re.DOTALL)
    namespace: dict[str, Any] = {"torch": torch, "tr": tr, "exercises": exercises}
    exec("\n".join(blocks), namespace)
    return {name: x for name, x in namespace.items() if callable(x) and name not in ("exercises",)}


RIGHT = solutions()


def loop_gae(kind: str) -> Own:
    """GAE as a plain loop over numbers, with one mistake."""

    def gae(reward: Any, value: Any, next_value: Any, terminated: Any, done: Any, gamma: float, lam: float) -> Any:
        steps, envs = reward.shape
        out = torch.zeros(steps, envs)
        for n in range(envs):
            a = 0.0
            for t in range(steps - 1, -1, -1):
                has_future = not (done if kind == "limits" else terminated)[t, n] or kind == "bootstraps"
                following = next_value[t, n]
                if kind == "shifted":
                    following = value[t, n]
                if kind == "reset" and t + 1 < steps:
                    following = value[t + 1, n]
                delta = reward[t, n] + gamma * following * has_future - value[t, n]
                if kind == "swapped":
                    delta = -delta
                cut = (terminated if kind == "cut at terminated" else done)[t, n] and kind != "resets"
                a = delta + (0.0 if cut else gamma * (1.0 if kind == "no lambda" else lam) * a)
                out[t, n] = a + (value[t, n] if kind == "targets" else 0.0)
        return out.t() if kind == "transposed" else out.mean() if kind == "mean" else out

    return gae


def wrong_surrogate(kind: str) -> Own:
    def surrogate(log_prob: Any, old: Any, advantage: Any, clip: float) -> Any:
        if kind == "upside down":
            log_prob, old = old, log_prob
        ratio = torch.exp(
            log_prob.detach() - old if kind == "constant" else log_prob - (old if kind == "leaks" else old.detach())
        )
        a = advantage.detach()
        products = torch.stack([ratio * a, torch.clip(ratio, 1 - clip, 1 + clip) * a])
        best = products.max(0).values if kind == "maximum" else products.min(0).values
        return {"per row": best, "loss": -best.mean()}.get(kind, best.mean())

    return surrogate


def looped_returns(kind: str) -> Own:
    def returns(reward: Any, terminated: Any, done: Any, next_value: Any, gamma: float) -> Any:
        out = reward if kind == "in place" else reward.clone()
        for t in range(len(reward) - 1, -1, -1):
            following = next_value[t] * ~terminated[t]
            if t + 1 < len(reward):
                following = torch.where(done[t], following, out[t + 1])
            if kind == "leaks" and t + 1 < len(reward):
                following = out[t + 1]
            out[t] = out[t] + gamma * following
        if kind == "late":
            out = out - reward
        return out.sum(0) if kind == "summed" else out

    return returns


def solution_with(name: str, old: str, new: str) -> Own:
    """The solution on the page with some of its text replaced."""
    page = (ROOT / "docs" / "course.md").read_text()
    text = re.search(rf"^def {name}\(.*?^```", page, re.DOTALL | re.MULTILINE)
    assert text is not None
    assert text[0].count(old) == 1, old
    namespace: dict[str, Any] = dict(RIGHT, torch=torch, tr=tr, exercises=exercises)
    exec(text[0].removesuffix("```").replace(old, new), namespace)
    return namespace[name]  # type: ignore[no-any-return]


changed = partial(solution_with, "ppo_phase")
collect_with = partial(solution_with, "collect")
vpg_phase_with = partial(solution_with, "vpg_phase")


def returns_by_loop(kind: str) -> Own:
    """The solution of exercise 1 with one mistake of a beginner."""

    def returns(reward: Any, terminated: Any, done: Any, next_value: Any, gamma: float) -> Any:
        if kind == "axes":
            return returns_by_loop("")(reward.T, terminated.T, done.T, next_value.T, gamma).T
        found, rows, following = torch.zeros_like(reward), [], next_value[-1]
        skipped = 1 if kind in ("last row", "last reward") else 0
        if kind == "last reward":
            found[-1] = following
        for t in reversed(range(len(reward) - skipped)):
            if kind == "first row" and t == 0:
                break
            ends = t - 1 if kind == "previous done" else t
            following = torch.where(done[ends], torch.where(terminated[ends], 0.0, next_value[t]), following)
            if kind == "stored early":
                found[t] = following
            if kind == "both":  # the last row happens to be 0 in the first case
                following = torch.where(done[t], 0.0, following) + next_value[t] * ~terminated[t]
            following = reward[t] + gamma * (next_value[t] * ~terminated[t] if kind == "one step" else following)
            if kind != "stored early":
                found[t] = following
            rows.append(following)
        return torch.stack(rows) if kind == "appended" else found

    return returns


def episode_return(reward: Any, terminated: Any, done: Any, next_value: Any, gamma: float) -> Any:
    """The return of the whole episode in each of its rows."""
    returns = functional.discounted_returns(reward, terminated, done, next_value, gamma)
    for t in range(1, len(returns)):
        returns[t] = torch.where(done[t - 1], returns[t], returns[t - 1])
    return returns


def unaligned(batch: Any, count: int, order: Any) -> Any:
    for rows in order:
        for index in rows.chunk(count):
            minibatch = batch.take(index)
            minibatch.action = batch.action[index.flip(0)]
            yield minibatch


def with_repeats(batch: Any, count: int, order: Any) -> Any:
    for rows in order:
        for _ in range(count):
            yield batch.take(rows[: len(rows) // count])


def functional_entropy(logits: Any) -> Any:
    return torch.distributions.Categorical(logits=logits).entropy()


WRONG: list[tuple[str, Own, str]] = [
    ("gae", loop_gae("limits"), "a time limit counts as the end of the task"),
    ("gae", loop_gae("resets"), "resets are ignored"),
    ("gae", loop_gae("cut at terminated"), "time limits do not cut the trace"),
    ("gae", loop_gae("bootstraps"), "bootstrap after the task has ended"),
    ("gae", loop_gae("shifted"), "off by one"),
    ("gae", loop_gae("reset"), "reset observation"),
    ("gae", loop_gae("swapped"), "the sign is turned"),
    ("gae", loop_gae("no lambda"), "lambda is missing"),
    ("gae", loop_gae("targets"), "the value is not subtracted"),
    ("gae", loop_gae("transposed"), "the shape is (1, 4), expected (4, 1)"),
    ("gae", loop_gae("mean"), "one number for everything"),
    ("gae", lambda reward, value: reward, "it does not take (reward, value, next_value"),
    ("gae", lambda *args: None, "it returns nothing"),
    ("gae", lambda *args: args[0][99], "it raises IndexError"),
    ("gae", lambda *args: args[0] + 1, "at [0, 0] it is"),
    ("discounted_returns", looped_returns("leaks"), "rewards of the next episode leak in"),
    ("discounted_returns", looped_returns("late"), "off by one: the reward of step t itself is left out"),
    ("discounted_returns", looped_returns("in place"), "it changes its argument reward"),
    ("discounted_returns", looped_returns("summed"), "the shape is (1,), expected (4, 1)"),
    ("discounted_returns", returns_by_loop("last row"), "the last row is left out: begin the loop there"),
    ("discounted_returns", returns_by_loop("last reward"), "the last step's own reward is missing"),
    ("discounted_returns", returns_by_loop("first row"), "the first row is left at 0: end the loop there"),
    ("discounted_returns", returns_by_loop("previous done"), "cut by done[t-1]"),
    ("discounted_returns", returns_by_loop("appended"), "the rows are in reverse order"),
    ("discounted_returns", returns_by_loop("stored early"), "before gamma and reward[t] are in it"),
    ("discounted_returns", returns_by_loop("one step"), "the rewards that follow are missing"),
    ("discounted_returns", returns_by_loop("axes"), "the axes are swapped"),
    ("discounted_returns", episode_return, "every row holds the return of its whole episode"),
    ("discounted_returns", lambda r, e, d, v, g: (r + v) * 2, "Inputs of environment 0: reward ["),
    ("discounted_returns", returns_by_loop("both"), "Inputs of environment 0: reward ["),
    ("timestep_mean", lambda x, alive: (x * alive).mean(0, keepdim=True), "the mean is over time: environments are axis 1"),
    ("timestep_mean", lambda x, alive: x - x.mean(1, keepdim=True), "one number for each step"),
    ("timestep_mean", lambda x, alive: x.where(alive, torch.nan).nanmean(1, keepdim=True), "nobody is alive at the last step"),
    ("timestep_mean", lambda x, alive: (x * alive).sum(1) / alive.sum(1).clamp(min=1), "keepdim=True"),
    ("timestep_mean", lambda x, alive: x[alive].mean().expand(len(x), 1), "one number for all steps"),
    ("timestep_mean", lambda x, alive: (x * alive).sum(1, keepdim=True) / x.shape[1], "divide by the number alive"),
    ("importance_weights", lambda p, q, c: torch.exp(q - p), "upside down"),
    ("importance_weights", lambda p, q, c: torch.exp(p.detach() - q.detach()), "not clamped"),
    ("importance_weights", lambda p, q, c: functional.importance_weights(p, q, c) + 0 * p, "right"),
    ("policy_gradient", lambda p, a, w, m: (p * a * w)[m].mean(), "a detach is missing: a gradient flows into advantage"),
    ("policy_gradient", lambda p, a, w, m: -(p * a * w)[m].mean(), "the sign is turned"),
    ("policy_gradient", lambda p, a, w, m: (p.detach() * a * w)[m].mean().detach(), "no gradient reaches log_prob"),
    ("clipped_surrogate", wrong_surrogate("upside down"), "the ratio is upside down"),
    ("clipped_surrogate", wrong_surrogate("leaks"), "a detach is missing: a gradient flows into old_log_prob"),
    ("clipped_surrogate", wrong_surrogate("constant"), "no gradient reaches log_prob"),
    ("clipped_surrogate", wrong_surrogate("maximum"), "take the smaller"),
    ("clipped_surrogate", wrong_surrogate("per row"), "take the mean over the batch"),
    ("clipped_surrogate", wrong_surrogate("loss"), "the sign is turned"),
    ("value_loss", lambda v, t: torch.nn.functional.mse_loss(v, t.detach()), "the factor 1/2 is missing"),
    ("value_loss", lambda v, t: torch.nn.functional.mse_loss(v, t) / 2, "a gradient flows into target"),
    ("entropy", lambda x: torch.distributions.Categorical(logits=x).entropy().mean(), "one number for everything"),
    ("entropy", lambda x: (x.softmax(-1).log() * x.softmax(-1)).sum(-1), "the sign is turned"),
    ("entropy", lambda x: -(x.softmax(-1) * x.softmax(-1).log()).sum(-1), "underflows to 0, and its logarithm is -inf"),
    ("entropy", lambda x: torch.special.entr(x.softmax(-1)).sum(-1), "its gradient with respect to logits is wrong"),
    ("entropy", lambda x: -(x.softmax(-1) * x.log()).sum(-1), "a logarithm is taken of a logit that is 0 or less"),
    ("entropy", lambda x: functional_entropy(x)[:, None], "an axis too many, remove keepdim=True"),
    ("entropy", lambda x: -x.softmax(-1) * x.log_softmax(-1), "the sum over actions, the last axis, is missing"),
    ("entropy", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(0), "it sums over the batch: actions are the last axis"),
    ("entropy", lambda x: x.soft(-1), "no attribute 'soft' ("),
    ("entropy", lambda x: functional_entropy(x), "right"),
    ("entropy_bonus", lambda e: e.sum(), "take the mean"),
    ("entropy_bonus", lambda e: 0.01 * e.mean(), "a coefficient is in it: the loss multiplies the mean by ent_coef"),
    ("entropy_bonus", lambda e: e.mean(0, keepdim=True), "an axis too many"),
    ("learning_rate", lambda progress: 1 / progress, "division by zero ("),
    ("learning_rate", lambda progress: 0.01 * progress, "It rises"),
    ("learning_rate", lambda progress: 0.01, "at progress 0.25 it is 0.01, expected 0.0075"),
    ("learning_rate", lambda: 0.01, "it does not take (progress)"),
    ("minibatches", lambda batch, count, order: [batch.take(99)], "it raises IndexError"),
    ("minibatches", unaligned, "action is not of the same rows as obs"),
    ("minibatches", with_repeats, "leaves out some rows and repeats others"),
    ("minibatches", lambda batch, count, order: [batch], "yields 1 minibatches"),
    ("minibatches", lambda batch, count, order: order, "yields a Tensor: yield parts of the batch"),
    ("collect", collect_with("rollout.action[t] = action", "rollout.action[t] = given.view_as(action)"), "store it as sampled"),
    ("collect", collect_with("= step.final_obs", "= step.obs"), "after the reset"),
    ("collect", collect_with("= step.terminated", "= step.terminated | step.truncated"), "keep truncated apart"),
    ("collect", collect_with("rollout.obs[t] = obs\n", "pass\n"), "store the observation before the step"),
    ("collect", collect_with("    return obs", "    return rollout.obs[0]"), "state.obs is not the observation after the last"),
    ("collect", collect_with("        obs = step.obs\n", ""), "obs[1] is that of step 0 again"),
    ("collect", collect_with("    return obs", "    pass"), "it returns nothing: end with return obs"),
    ("collect", collect_with("noise.reset[t]", "noise.resets[t]"), "AttributeError: 'Noise' object has no attribute 'resets'"),
    ("vpg_phase", vpg_phase_with("    return exercises.vpg_metrics(state, batch, rows)\n", ""), "it returns nothing: end with"),
    ("vpg_phase", vpg_phase_with("state.env.reset(noise=noise.start)", "state.obs"), "obs[0] is where the last rollout ended"),
    ("vpg_phase", vpg_phase_with("returns - timestep_mean(returns, alive)", "returns"), "no baseline is subtracted"),
    ("ppo_phase", changed("a.std() + 1e-8", "a.var() + 1e-8"), "divided by the variance"),
    ("ppo_phase", changed("        minibatch.advantage = (a - a.mean()) / (a.std() + 1e-8)\n", ""), "not standardised"),
    ("ppo_phase", changed("a.std() + 1e-8", "a.std(correction=0) + 1e-8"), "biased"),
    ("ppo_phase", changed("target=advantage + rollout.value", "target=rollout.value"), "target is the critic's own value"),
    ("ppo_phase", changed("rollout.done, final_value", "rollout.done, 0 * final_value"), "bootstrap from 0"),
    ("ppo_phase", changed("    runtime.update_statistics(policy, rollout.obs, rollout.valid)\n", ""), "was not updated"),
    ("ppo_phase", changed("optimizer, config.max_grad_norm", "optimizer, None"), "max_grad_norm"),
    ("ppo_phase", changed("config.vf_coef, config.ent_coef", "config.vf_coef, -config.ent_coef"), "entropy bonus: its sign"),
    ("ppo_phase", changed("config.vf_coef, config.ent_coef", "0.0, config.ent_coef"), "value loss: it has no gradient"),
    ("ppo_phase", changed("    return exercises.ppo_metrics(state, batch, rows)\n", ""), "end with return exercises.ppo"),
    ("ppo_phase", changed("exercises.ppo_metrics(state, batch, rows)", "rows"), "it returns a list: end with return"),
]  # fmt: skip
