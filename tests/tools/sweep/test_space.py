"""What a sweep searches: our ranges, a user's file, and every mistake in one."""

from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from tightrope.errors import UsageError
from tightrope.tools.sweep.space import (
    Choices,
    Range,
    check_space,
    decode,
    default_search_space,
    fit_divisors,
    nearest_point,
    read_search_space,
)
from tightrope.training.config import configure
from tightrope.training.presets import PRESETS

CARTPOLE = configure("CartPole-v1", "ppo")


def read(tmp_path: Path, text: str, fixed: tuple[str, ...] = ()) -> Any:
    path = tmp_path / "search.yaml"
    path.write_text(text)
    return read_search_space(path, CARTPOLE, fixed)


@pytest.mark.parametrize(("env", "algo"), [*PRESETS, ("Acrobot-v1", "vpg"), ("Unheard-v0", "ppo")])
def test_every_draw_from_our_ranges_is_a_run(env: str, algo: str) -> None:
    config = configure(env, algo)
    space = default_search_space(config, [], images=False)
    check_space(space, config)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(15):
        trial = study.ask()
        settings = decode({name: dimension.suggest(trial, name) for name, dimension in space.items()}, space)
        assert config.changed(**fit_divisors(settings, config.to_flat_dict())).algorithm.phases >= 1


def test_the_first_trial_is_the_preset_as_near_as_the_ranges_allow() -> None:
    point = nearest_point(default_search_space(CARTPOLE, [], images=False), CARTPOLE.to_flat_dict())
    assert (point["learning_rate"], point["num_steps"], point["hidden_sizes"]) == (0.015, 16, "32 32")
    assert point["ent_coef"] == 1e-6  # 0 has no logarithm


def test_what_is_fixed_and_what_images_have_no_use_for_is_not_searched() -> None:
    space = default_search_space(CARTPOLE, ["gamma", "learning_rate"], images=True)
    assert not {"gamma", "learning_rate", "hidden_sizes", "activation"} & space.keys()


def test_a_file_is_the_whole_space(tmp_path: Path) -> None:
    text = """
learning-rate: {low: 1e-4, high: 1e-2, log: true}
update_epochs: {low: 2, high: 10, step: 2}
num_steps: [16, 32]
hidden_sizes: [[32, 32], 64 64]
max_grad_norm: [0.5, null]
anneal_lr: [true, false]
"""
    assert read(tmp_path, text) == {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "update_epochs": Range(2, 10, step=2),
        "num_steps": Choices((16, 32)),
        "hidden_sizes": Choices(((32, 32), (64, 64))),
        "max_grad_norm": Choices((0.5, None)),
        "anneal_lr": Choices((True, False)),
    }


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    space = default_search_space(CARTPOLE, [], images=False) | {"ent_coef": Range(0.0, 0.02)}
    assert read(tmp_path, yaml.safe_dump({name: dimension.as_yaml() for name, dimension in space.items()})) == space


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "search"),
        ("{}", "is empty"),
        ("gamm: [0.9]", "Did you mean gamma"),
        ("gamma: 0.9", "search gamma 0.9 is neither choices nor a range"),
        ("gamma: []", "search gamma has 0 choices"),
        ("gamma: [0.9, 0.9]", "search gamma [0.9, 0.9] has a choice twice"),
        ("gamma: [0.9, much]", "search gamma 'much' is not a finite number"),
        ("gamma: {low: 0.99, high: 0.9}", "search gamma goes from low 0.99 to high 0.9"),
        ("gamma: {low: 0.9}", "search gamma {'low': 0.9} is neither choices nor a range"),
        ("gamma: {low: 0.9, high: 1, width: 3}", "is neither choices nor a range: give a list of choices, or {low:"),
        ("gamma: {low: 0, high: 1, log: true}", "search gamma low 0.0 has no logarithm"),
        ("gamma: {low: 0.5, high: 1, log: true, step: 0.1}", "search gamma step 0.1 is invalid with log"),
        ("gamma: {low: 0.5, high: 1, step: 0}", "search gamma step 0.0 is invalid"),
        ("gamma: {low: 0.9, high: 1.5}", "search gamma 1.5 is invalid: gamma 1.5 is out of range"),
        ("update_epochs: {low: 1.5, high: 3}", "search update_epochs low 1.5 is not a whole number"),
        ("activation: {low: 1, high: 2}", "search activation is not a number and has no range"),
        ("activation: [tanh, wavy]", "search activation 'wavy' is not a choice"),
        ("num_steps: [100000]", "search num_steps 100000 is invalid: total_timesteps"),
        ("seed: [1, 2]", "search seed is invalid"),
        ("total_timesteps: [1000]", "search total_timesteps is invalid"),
        ("rollout_uses: [1, 2]", "belongs to vpg"),
        ("ent_coef: [0.1]", "search ent_coef is also given as a flag"),
        ("- gamma", "is not a list of"),
        ("gamma: [0.9", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, text, fixed=("ent_coef",))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_counts_of_parts_are_lowered_until_they_divide() -> None:
    whole = CARTPOLE.to_flat_dict() | {"num_envs": 10, "num_steps": 6}
    assert fit_divisors({"num_minibatches": 32}, whole) == {"num_minibatches": 30}
    assert fit_divisors({"num_minibatches": 64, "num_steps": 4}, whole)["num_minibatches"] == 40
    assert fit_divisors({"gamma": 0.9}, whole) == {"gamma": 0.9}
