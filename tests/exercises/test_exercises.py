"""The exercises: the solutions on the course page are right, and typical wrong ones are told what is wrong with them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tightrope as tr
from tightrope import exercises, functional
from tightrope.exercises import diagnose
from tightrope.exercises.equations import EQUATIONS
from tightrope.exercises.phase_check import check_phase

ROOT = Path(tr.__file__).parents[1]
Own = Callable[..., Any]


def solutions() -> dict[str, Own]:
    """The functions of the folded solutions, by name."""
    page = (ROOT / "docs" / "course.md").read_text()
    blocks = re.findall(r"<summary>Solution</summary>\n\n```python\n(.*?)```", page, re.DOTALL)
    namespace: dict[str, Any] = {"torch": torch, "tr": tr, "exercises": exercises}
    exec("\n".join(blocks), namespace)
    return {name: x for name, x in namespace.items() if callable(x) and name not in ("exercises",)}


def of_the_course(name: str) -> ModuleType:
    """A file of examples/course/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "course" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


RIGHT = solutions()
NAMES = [name.removeprefix("test_") for name in exercises.__all__ if name.startswith("test_")]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_on_the_page_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(exercises, f"test_{name}")(RIGHT[name])
    assert capsys.readouterr().out.startswith(f"{name}: right.")


@pytest.mark.parametrize("name", [name for name in EQUATIONS if hasattr(functional, name)])
def test_our_own_equation_is_right(name: str) -> None:
    assert diagnose(name, getattr(functional, name)) is None


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
def test_our_own_phase_agrees_with_the_definitions(algo: str) -> None:
    assert check_phase(algo) is None


def test_the_file_of_the_course_has_every_exercise_and_says_that_none_is_written() -> None:
    module = of_the_course("my_ppo")
    assert sorted(module.EXERCISES) == sorted(NAMES) == sorted(RIGHT)
    for name, stub in module.EXERCISES.items():
        assert diagnose(name, stub) == "not written yet"
        assert (
            stub.__code__.co_varnames[: stub.__code__.co_argcount]
            == (RIGHT[name].__code__.co_varnames[: RIGHT[name].__code__.co_argcount])
        )
        assert "Exercise" in stub.__doc__


@pytest.mark.parametrize("name", EQUATIONS)
def test_every_known_mistake_is_told_apart_from_the_others_and_from_the_truth(name: str) -> None:
    for words, wrong in EQUATIONS[name].wrong.items():
        found = diagnose(name, wrong)
        assert (found or "right").startswith(words)


# wrong solutions, as a learner would write them ----------------------------------------------------------------------------


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


def phase_with(**changes: tuple[str, str]) -> Own:
    """The solution of a whole phase of PPO with some of its text replaced."""
    page = (ROOT / "docs" / "course.md").read_text()
    text = re.search(r"^def ppo_phase.*?^```", page, re.DOTALL | re.MULTILINE)
    assert text is not None
    code = text[0].removesuffix("```")
    for old, new in changes.values():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    namespace: dict[str, Any] = dict(RIGHT, torch=torch, tr=tr, exercises=exercises)
    exec(code, namespace)
    return namespace["ppo_phase"]  # type: ignore[no-any-return]


def changed(old: str, new: str) -> Own:
    return phase_with(only=(old, new))


def collect_with(old: str, new: str) -> Own:
    page = (ROOT / "docs" / "course.md").read_text()
    text = re.search(r"^def collect.*?^```", page, re.DOTALL | re.MULTILINE)
    assert text is not None
    assert text[0].count(old) == 1
    namespace: dict[str, Any] = {"torch": torch}
    exec(text[0].removesuffix("```").replace(old, new), namespace)
    return namespace["collect"]  # type: ignore[no-any-return]


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
    ("entropy_bonus", lambda e: e.sum(), "take the mean"),
    ("learning_rate", lambda progress: 0.01 * progress, "It rises"),
    ("learning_rate", lambda progress: 0.01, "at progress 0.25 it is 0.01, expected 0.0075"),
    ("learning_rate", lambda: 0.01, "it does not take (progress)"),
    ("minibatches", unaligned, "action is not of the same rows as obs"),
    ("minibatches", with_repeats, "leaves out some rows and repeats others"),
    ("minibatches", lambda batch, count, order: [batch], "yields 1 minibatches"),
    ("minibatches", lambda batch, count, order: order, "yields a Tensor: yield parts of the batch"),
    ("collect", collect_with("rollout.action[t] = action", "rollout.action[t] = given.view_as(action)"), "store it as sampled"),
    ("collect", collect_with("= step.final_obs", "= step.obs"), "after the reset"),
    ("collect", collect_with("= step.terminated", "= step.terminated | step.truncated"), "keep truncated apart"),
    ("collect", collect_with("rollout.obs[t] = obs\n", "pass\n"), "store the observation before the step"),
    ("collect", collect_with("    return obs", "    return rollout.obs[0]"), "state.obs is not the observation after the last"),
    ("ppo_phase", changed("a.std() + 1e-8", "a.var() + 1e-8"), "divided by the variance"),
    ("ppo_phase", changed("        minibatch.advantage = (a - a.mean()) / (a.std() + 1e-8)\n", ""), "not standardised"),
    ("ppo_phase", changed("a.std() + 1e-8", "a.std(correction=0) + 1e-8"), "biased"),
    ("ppo_phase", changed("target=advantage + rollout.value", "target=rollout.value"), "target is the critic's own value"),
    ("ppo_phase", changed("rollout.done, final_value", "rollout.done, 0 * final_value"), "bootstrap from 0"),
    ("ppo_phase", changed("    runtime.update_statistics(policy, rollout.obs, rollout.valid)\n", ""), "was not updated"),
    ("ppo_phase", changed("optimizer, config.max_grad_norm", "optimizer, None"), "max_grad_norm"),
    ("ppo_phase", changed("config.vf_coef, config.ent_coef", "config.vf_coef, -config.ent_coef"), "entropy bonus: its sign"),
    ("ppo_phase", changed("config.vf_coef, config.ent_coef", "0.0, config.ent_coef"), "value loss: it has no gradient"),
    ("ppo_phase", changed("    return exercises.ppo_metrics(state, batch, rows)\n", ""), "raises"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "words"), WRONG, ids=[f"{n}-{w[:24]}" for n, _, w in WRONG])
def test_a_wrong_solution_is_told_what_is_wrong(name: str, function: Own, words: str) -> None:
    found = diagnose(name, function)
    assert words in (found or "right")


def test_the_first_wrong_index_and_both_numbers_are_named() -> None:
    def my_value_loss(value: Any, target: Any) -> Any:
        return 0.25 * (value - target).square().mean()

    assert re.fullmatch(
        r"with six values, the result is [\d.]+, expected [\d.]+", diagnose("value_loss", my_value_loss) or ""
    )

    def almost(*args: Any) -> Any:
        out = functional.gae(*args)
        out[2:, 0] += 1
        return out

    assert "at [2, 0] it is" in (diagnose("gae", almost) or "")


def test_the_whole_course_trains(tmp_path: Path) -> None:
    own = {name: RIGHT[name] for name in ("discounted_returns", "timestep_mean", "collect", "policy_gradient")}
    vpg = tr.VPG("CartPole-v1", seed=1, device="cpu", learning_rate=RIGHT["learning_rate"], **own)
    ppo = tr.PPO("CartPole-v1", seed=1, device="cpu", phase=RIGHT["ppo_phase"])
    before = ppo.evaluate(20).mean
    assert vpg.learn(32_000, quiet=True).evaluate(20).mean > 2 * before
    assert ppo.learn(20_000, run_dir=tmp_path / "run", quiet=True).evaluate(20).mean > 4 * before
    whole = tr.VPG("CartPole-v1", seed=1, device="cpu", phase=RIGHT["vpg_phase"]).learn(32_000, quiet=True)
    assert whole.evaluate(20).mean > 2 * before


def test_the_switches_of_the_course(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = of_the_course("details")
    page = (ROOT / "docs" / "course.md").read_text()
    for name, settings in module.SWITCHES.items():
        number, _, words = name.partition(" ")
        assert (f"| detail {number}: {words} |" if number.isdigit() else f"| {name} |") in page
        tr.PPO("CartPole-v1", device="cpu", **settings)  # refuses a setting that is not there
    monkeypatch.setattr(module, "SWITCHES", {"one": {}})
    monkeypatch.setattr(sys, "argv", ["details.py", "--seeds", "1"])
    module.main()
    assert re.fullmatch(r"one +\d+\n", capsys.readouterr().out)
