"""The exercises: the solutions on the course page are right, and typical wrong ones are told what is wrong with them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from run_helpers import loaded
from wrong_solutions import RIGHT, ROOT, WRONG, Own, looped_returns

import tightrope as tr
from tightrope import exercises, functional
from tightrope.exercises import diagnose
from tightrope.exercises.equations import EQUATIONS
from tightrope.exercises.phase_check import check_phase


def of_the_course(name: str) -> ModuleType:
    return loaded(ROOT / "examples" / "course" / f"{name}.py")


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


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [([], 0, "0 of 14 are right"), (["--help"], 0, "what to train"), (["foo"], 2, "invalid choice")],
)
def test_the_file_of_the_course_trains_only_what_it_is_told_to(
    words: list[str], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = of_the_course("my_ppo")
    monkeypatch.setattr(sys, "argv", ["my_ppo.py", *words])
    monkeypatch.setattr(module, "train", lambda algo, right: pytest.fail(f"trains {algo}"))
    found: object = 0
    try:
        module.main()
    except SystemExit as ended:
        found = ended.code
    assert found == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize("name", EQUATIONS)
def test_every_known_mistake_is_told_apart_from_the_others_and_from_the_truth(name: str) -> None:
    for words, wrong in EQUATIONS[name].wrong.items():
        found = diagnose(name, wrong)
        assert (found or "right").startswith(words)


def test_one_cause_is_named_not_two() -> None:
    assert diagnose("discounted_returns", looped_returns("in place")) == (
        "it changes its argument reward: work on a copy, reward.clone()"
    )


def test_a_function_that_another_one_needs_is_named() -> None:
    def timestep_mean(x: Any, alive: Any) -> Any:
        raise NotImplementedError

    def vpg_phase(state: Any, config: Any, noise: Any) -> Any:
        return timestep_mean(None, None)

    assert diagnose("vpg_phase", vpg_phase) == "it calls timestep_mean, which is not written yet"


@pytest.mark.parametrize(("name", "function", "words"), WRONG, ids=[f"{n}-{w[:24]}" for n, _, w in WRONG])
def test_a_wrong_solution_is_told_what_is_wrong(name: str, function: Own, words: str) -> None:
    found = diagnose(name, function)
    assert words in (found or "right")


def test_the_first_wrong_index_and_both_numbers_are_named() -> None:
    def my_value_loss(value: Any, target: Any) -> Any:
        return 0.3 * (value - target).square().mean()

    numbers = r"\[(-?[\d.]+, ){5}-?[\d.]+\]"
    assert re.fullmatch(
        rf"with six values, the result is [\d.]+, expected [\d.]+\. Inputs: value {numbers}, target {numbers}",
        diagnose("value_loss", my_value_loss) or "",
    )

    def almost(*args: Any) -> Any:
        out = functional.gae(*args)
        out[2:, 0] += 1
        return out

    assert "at [2, 0] it is" in (diagnose("gae", almost) or "")


def test_the_inputs_that_are_shown_give_the_expected_number() -> None:
    def almost(*args: Any) -> Any:
        out = functional.discounted_returns(*args)
        out[1, -1] += 1
        return out

    found = diagnose("discounted_returns", almost) or ""
    shown = re.search(
        r"expected (\S+)\. Inputs of environment 0: reward (.*), terminated (.*), done (.*), next_value (.*), gamma (.*)",
        found,
    )
    assert shown is not None
    columns = [torch.tensor(ast.literal_eval(text))[:, None] for text in shown.groups()[1:5]]
    returns = functional.discounted_returns(*columns, float(shown[6]))
    assert float(returns[1, 0]) == pytest.approx(float(shown[1]), abs=1e-3)


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
