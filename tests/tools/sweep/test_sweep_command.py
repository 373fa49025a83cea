"""tightrope sweep as a user types it: what it leaves, what it refuses, and how it continues."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

import tightrope as tr
from tightrope.tools.sweep.slots import OUTCOME, SCORES
from tightrope.tools.sweep.storage import open_storage
from tightrope.training.config import configure

FLAGS = "--total-timesteps 1024 --num-envs 8 --num-steps 32 --evaluations 2 --seeds-per-trial 2 --eval-episodes 3 --seed 451"
FLAGS += " --search search.yaml"
SEARCH = "learning_rate: {low: 1e-4, high: 1e-2, log: true}\nnum_minibatches: [1, 4, 7]\nhidden_sizes: [[8], [8, 8]]\n"
FOLDER = Path("sweeps/CartPole-v1__ppo")
Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def search_space(sweep: Command) -> None:
    Path("search.yaml").write_text(SEARCH)


def trials(folder: Path | str = FOLDER) -> list[optuna.trial.FrozenTrial]:
    storage = open_storage(f"{folder}/study.journal")
    return optuna.load_study(study_name=Path(folder).name, storage=storage).get_trials()


def test_it_leaves_a_preset_that_train_takes_and_a_page(sweep: Command, tightrope: Command) -> None:
    code, out, err = sweep(f"--trials 3 {FLAGS}")
    assert (code, err) == (0, "")
    assert "3 of 3 done" in out
    found = trials()
    assert [trial.state.name for trial in found] == 3 * ["COMPLETE"]
    best = max(found, key=lambda trial: (trial.value, -trial.number))
    assert f"best: trial {best.number}, score {best.value:.6g}" in out
    assert best.value == pytest.approx(sum(best.user_attrs[SCORES]) / 2)

    preset = yaml.safe_load((FOLDER / "best.yaml").read_text())
    config = configure("CartPole-v1", "ppo", preset, with_preset=False)
    assert config.algorithm.learning_rate == best.params["learning_rate"]
    assert config.network.hidden_sizes == tuple(map(int, best.params["hidden_sizes"].split()))
    assert (config.algorithm.num_envs, config.algorithm.total_timesteps) == (8, 1024)

    # the file alone makes the very run that was scored
    assert tightrope(f"train --config {FOLDER}/best.yaml --seed 452 --run-dir again --quiet").code == 0
    again = tr.load("again")
    assert again.evaluate(3).mean == best.user_attrs[SCORES][1]
    assert {name: again.config.to_flat_dict()[name] for name in preset} == preset

    page = (FOLDER / "sweep.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])  # type: ignore[index]
    assert len(data["charts"]) >= 6
    assert all(chart["figure"]["data"] for chart in data["charts"])
    assert "CartPole-v1__ppo/best.yaml" in page


def test_one_process_gives_the_same_trials_however_often_it_is_stopped(sweep: Command) -> None:
    sweep(f"--trials 4 --sweep-dir a --quiet {FLAGS}")
    sweep(f"--trials 1 --sweep-dir b --quiet {FLAGS}")
    code, out, _ = sweep(f"--trials 4 --sweep-dir b {FLAGS}")
    assert code == 0
    assert "continuing study 'b'" in out
    assert "4 of 4 done" in out
    assert [(t.params, t.value) for t in trials("a")] == [(t.params, t.value) for t in trials("b")]
    code, out, _ = sweep(f"--trials 4 --sweep-dir b {FLAGS}")
    assert (code, "trial 4" in out) == (0, False)  # nothing is left to do
    assert len(trials("b")) == 4


def test_a_study_of_another_sweep_is_refused(sweep: Command) -> None:
    sweep(f"--trials 1 --quiet {FLAGS}")
    before = (FOLDER / "study.journal").read_bytes()
    Path("other.yaml").write_text("learning_rate: [0.1, 0.2]\n")
    for words, message in [
        ("--gamma 0.5", "gamma 0.5 differs from 0.99, with which study 'CartPole-v1__ppo' was started"),
        ("--seeds-per-trial 1", "seeds_per_trial 1 differs from 2"), ("--seed 3", "seed 3 differs from 451"),
        ("--algo vpg", "num_minibatches"), ("--search other.yaml", "differs from"),
    ]:  # fmt: skip
        code, _, err = sweep(f"--trials 2 {FLAGS} {words} --sweep-dir {FOLDER}")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
        assert [t.state.name for t in trials()] == ["COMPLETE"]
        assert (FOLDER / "study.journal").read_bytes().startswith(before)


def test_trials_that_diverge_or_do_not_fit_are_pruned_and_the_others_go_on(sweep: Command) -> None:
    Path("search.yaml").write_text("learning_rate: [0.001, 1e30]\nnum_steps: [16, 64]\nnum_envs: [8, 128]\n")
    flags = "--total-timesteps 4096 --evaluations 1 --seeds-per-trial 1 --eval-episodes 2 --search search.yaml"
    code, out, err = sweep(f"--trials 12 {flags}")
    assert (code, err, len(trials())) == (0, "", 12)
    ended = {trial.user_attrs.get(OUTCOME, trial.state.name).split(":")[0] for trial in trials()}
    assert ended == {"COMPLETE", "diverged", "does not fit"}
    assert "does not fit: total_timesteps 4096 is less than one phase" in out


def test_if_no_trial_is_completed_there_is_no_preset(sweep: Command) -> None:
    Path("search.yaml").write_text("learning_rate: [1e30]\n")
    code, _, err = sweep(f"--trials 2 {FLAGS}")
    assert (code, "none of 2 trials was completed" in err) == (1, True)
    assert sorted(path.name for path in FOLDER.iterdir()) == ["study.journal", "study.journal.lock", "sweep.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "sweep needs an env and a number of trials"), ("--trials 0", "trials 0"),
        ("--trials many", "trials 'many'"), ("--trials 3 --seeds-per-trial 0", "seeds_per_trial 0"),
        ("--trials 3 --evaluations 9", "evaluations 9 is more than the 4 phases"),
        ("--trials 3 --learning-rte 3", "Did you mean learning_rate"),
        ("--trials 3 --gamma 3", "gamma 3"),
        ("--trials 3 --eval-every 100", "eval_every has no effect in a sweep"),
        ("--trials 3 --learning-rate 0.1", "search learning_rate is also given as a flag"),
        ("--trials 3 --search none.yaml", "search none.yaml cannot be read"),
        ("--trials 3 --storage ftp://x", "storage ftp://x"),
        ("--trials 3 --storage postgresql:/me:word@host/db", "storage postgresql:***@host/db is not a URL"),
        ("--trials 3 --sweep-dir search.yaml", "sweep_dir search.yaml is a file"),
        ("--trials 3 more", "one argument too many"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(words: str, message: str, sweep: Command) -> None:
    code, _, err = sweep(f"{FLAGS} {words}")
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert [path.name for path in Path().iterdir()] == ["search.yaml"]


def test_without_optuna_it_says_what_to_install(sweep: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "optuna" else find(name, *a))
    code, _, err = sweep(f"--trials 1 {FLAGS}")
    assert (code, '".[sweep]"' in err) == (2, True)
    code, out, _ = sweep("--print-search")
    assert code == 0
    assert yaml.safe_load(out)["clip_coef"] == {"low": 0.1, "high": 0.4}


def test_an_environment_of_ones_own_and_the_other_algorithm(sweep: Command, tightrope: Command) -> None:
    Path("mine_swept.py").write_text("import tightrope as tr\n\nclass Mine(tr.envs.CartPole):\n    pass\n")
    flags = "--algo vpg --total-timesteps 4096 --num-steps 64 --evaluations 1 --seeds-per-trial 1 --eval-episodes 2"
    code, out, err = sweep(f"--trials 2 --quiet {flags}", env="mine_swept:Mine")
    assert (code, err) == (0, "")
    folder = "sweeps/mine_swept-Mine__vpg"
    preset = yaml.safe_load(Path(f"{folder}/best.yaml").read_text())
    assert (preset["env"], preset["algo"]) == ("mine_swept:Mine", "vpg")
    command = f"tightrope train --config {folder}/best.yaml --allow-import mine_swept"
    assert f"`{command}` trains it" in out
    assert all(command in Path(folder, name).read_text() for name in ("best.yaml", "sweep.html"))
    assert tightrope(command.partition(" ")[2], "--quiet --run-dir run").code == 0


def test_an_environment_that_breaks_each_time_stops_the_sweep_in_one_line(sweep: Command) -> None:
    Path("mine_broken.py").write_text(
        "import tightrope as tr\n\nclass Mine(tr.envs.CartPole):\n"
        "    def advance(self, state, action):\n        if (state[:, 2].abs() > 0.1).any():  # later than the first step\n"
        "            raise ValueError('a wheel came off')\n        return super().advance(state, action)\n"
    )
    code, out, err = sweep(f"--trials 8 {FLAGS}", env="mine_broken:Mine")
    assert (code, err.count("\n"), out.count("failed: ")) == (1, 1, 5)
    assert "5 trials in a row failed, the last with" in err
    assert "a wheel came off" in err
    assert "a wheel came off" in Path("sweeps/mine_broken-Mine__ppo/sweep.html").read_text()
