"""`tightrope resume` as a newcomer meets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import tightrope as tr
from tightrope.training.lock import locked

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    settings = dict(num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=48, hidden_sizes=(4,), device="cpu")
    tr.PPO("CartPole-v1", **settings, max_episode_steps=9, eval_episodes=2).learn(run_dir=path, quiet=True)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three phases, all that it was to do, in the working directory."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return Path("run")


@pytest.fixture
def resume(run_command: Command) -> Command:
    return partial(run_command, "resume")


def rows(run: Path) -> int:
    return len((run / "metrics.jsonl").read_text().splitlines())


def test_a_finished_run_says_how_to_go_on(run: Path, resume: Command) -> None:
    for words in (["run"], ["run/"], [str(run.absolute())], ["run", "--quiet"], ["run", "--total-timesteps", "32"]):
        code, out, err = resume(*words)
        assert (code, err) == (0, "")
        assert "nothing to do" in out
        assert "--total-timesteps" in out
    assert rows(run) == 3


def test_a_run_goes_on_with_more_steps_and_other_settings(run: Path, resume: Command) -> None:
    code, out, _ = resume("run/", "--total-timesteps", "64", "--learning-rate", "1e-3")
    assert code == 0
    lines = out.splitlines()
    assert lines.count("resuming from 0001-steps-48") == 1
    (changed,) = [line for line in lines if line.startswith("changed at 48 steps: ")]
    assert "total_timesteps 48 -> 64" in changed
    assert "-> 0.001" in changed
    assert changed.endswith("; from here on the run differs from one that was not changed")
    assert resume("run", "--total-timesteps", "80", "--quiet")[1].count("\n") == 1
    assert rows(run) == 5
    assert tr.load(run).config.algorithm.learning_rate == pytest.approx(1e-3)


def test_a_run_that_never_came_to_a_checkpoint_begins_anew(run: Path, resume: Command) -> None:
    shutil.rmtree(run / "checkpoints")
    code, out, _ = resume("run")
    assert code == 0
    assert out.startswith("run has no checkpoint yet: training starts from the beginning")
    assert rows(run) == 3
    assert tr.load(run).steps == 48


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "needs a run directory first"),
        ("--quiet run", "needs a run directory first"),
        ("nowhere", "nowhere is not a run: there is no such directory"),
        ("run/config.yaml", "is not a run: it is a file"),
        (".", "is not a run: it has no config.yaml"),
        ("run/checkpoints/0001-steps-48", "is a checkpoint, not a run: give"),
        ("run other", "one argument too many: 'other'"),
        ("run --gama 0.9", "Did you mean gamma?"),
        ("run --gamma 2", "gamma 2.0 is out of range"),
        ("run --num-envs 4", "num_envs 4 cannot replace 2 in a trained run"),
        ("run --hidden-sizes 8", "hidden_sizes [8] cannot replace [4] in a trained run"),
        ("run --norm-obs", "norm_obs True cannot replace False in a trained run"),
        ("run --algo vpg", "algo cannot be changed"),
        ("run --baseline none", "'baseline' belongs to vpg"),
        ("run --env Pendulum-v1", "a run continues on its own environment, CartPole-v1"),
        ("run --env nowhere:Env", "env 'nowhere:Env' cannot be imported"),
        ("run --run-dir x", "'run_dir' is not a setting"),
        ("run --total-timesteps many", "total_timesteps 'many' is not a whole number"),
    ],
)
def test_a_mistake_gets_one_line_and_changes_nothing(run: Path, words: str, said: str, resume: Command) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    code, out, err = resume(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert before.items() <= {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}.items()


def test_a_run_that_is_being_trained_is_refused_before_anything_else_is_said(run: Path, resume: Command) -> None:
    with locked(run):
        code, out, err = resume("run", "--total-timesteps", "64")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is being written by" in err


def test_damage_is_named_once(run: Path, resume: Command) -> None:
    resume("run", "--total-timesteps", "64", "--quiet")
    (run / "checkpoints" / "0003-steps-64" / "model.safetensors").write_bytes(b"")
    code, _, err = resume("run", "--total-timesteps", "64", "--quiet")
    assert code == 0
    assert err.count("using 0002-steps-48 instead") == err.count("\n") == 1
    assert rows(run) == 4


MORE = ("run", "--total-timesteps", "64", "--quiet")


def edit(run: Path, **settings: object) -> None:
    """As a person does it, in config.yaml."""
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))


def test_an_edit_of_config_yaml_is_named_and_not_taken(run: Path, resume: Command) -> None:
    edit(run, learning_rate=0.5, gamma=0.125)
    code, _, err = resume(*MORE)
    assert (code, err.count("\n")) == (0, 1)
    assert "run/config.yaml has learning_rate 0.5 instead of" in err
    assert "gamma 0.125 instead of 0.99" in err
    assert "which is ignored" in err
    assert tr.load(run).config.algorithm.gamma == 0.99
    code, _, err = resume("run", "--total-timesteps", "80", "--quiet")
    assert (code, err) == (0, ""), "said once: it is overwritten"


def test_an_edit_that_is_given_as_a_setting_too_is_not_mentioned(run: Path, resume: Command) -> None:
    edit(run, gamma=0.125)
    assert resume(*MORE, "--gamma", "0.125")[::2] == (0, "")
    assert tr.load(run).config.algorithm.gamma == 0.125


@pytest.mark.parametrize(
    "text", ["gamma: [", "gamma: many\nenv: CartPole-v1\nalgo: ppo\n", "env: 3\n", "algo: vpg\nenv: CartPole-v1\n"]
)
def test_a_config_yaml_that_cannot_be_meant_is_named(text: str, run: Path, resume: Command) -> None:
    (run / "config.yaml").write_text(text)
    code, _, err = resume(*MORE)
    assert (code, err.count("\n")) == (0, 1)
    assert "config.yaml" in err
    assert "checkpoint are used" in err


def test_in_python_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(run, gamma=0.125)
    agent = tr.load(run, total_timesteps=64)
    agent.evaluate(1)
    assert capsys.readouterr().err == "", "who does not train need not know"
    agent.learn(quiet=True)
    assert "gamma 0.125 instead of 0.99" in capsys.readouterr().err


def test_another_environment_with_the_same_spaces_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import tightrope as tr\n\nclass Env(tr.envs.CartPole):\n    pass\n"
    for module in ("swap_first", "swap_other"):
        Path(f"{module}.py").write_text(code)
    settings = dict(num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=64, device="cpu", eval_episodes=0)
    tr.PPO("swap_first:Env", **settings).learn(run_dir="run", until=16, quiet=True)
    assert resume("run", "--env", "swap_first:Env", "--total-timesteps", "32")[2].count("warning") == 0
    code, _, err = resume("run", "--env", "swap_other:Env", "--quiet", "--total-timesteps", "48")
    assert (code, err.count("\n")) == (0, 1)
    assert "trained on swap_first:Env so far and continues on swap_other:Env" in err


def test_trackers_that_only_the_run_names_are_named(run: Path, resume: Command) -> None:
    pytest.importorskip("tensorboard")
    assert resume(*MORE, "--log", "tensorboard")[::2] == (0, "")
    code, _, err = resume("run", "--total-timesteps", "80", "--quiet")
    assert (code, err.count("\n")) == (0, 1)
    assert "the run logs to tensorboard, as saved in its settings" in err
    assert resume("run", "--total-timesteps", "96", "--quiet", "--log", "none")[::2] == (0, "")
    assert tr.load(run).config.run.log == ()


def test_and_so_they_are_where_a_run_begins_anew(run: Path, resume: Command) -> None:
    pytest.importorskip("tensorboard")
    shutil.rmtree(run / "checkpoints")
    edit(run, log=["tensorboard"], project="theirs", entity="stranger")
    code, _, err = resume("run", "--quiet")
    assert (code, err.count("\n")) == (0, 1)
    assert "logs to tensorboard (project theirs, entity stranger)" in err


def test_a_changed_setting_is_saved_before_the_next_phase(run: Path, resume: Command) -> None:
    """A kill right after the resume must not lose it."""
    code, out, _ = resume("run", "--total-timesteps", "64", "--learning-rate", "1e-4")
    assert code == 0
    assert "note: anneal_lr decays learning_rate over the whole run" in out
    first, *_ = sorted(p for p in (run / "checkpoints").iterdir() if p.name.endswith("-steps-48"))[1:]
    config = json.loads((first / "manifest.json").read_text())["config"]
    assert (config["learning_rate"], config["total_timesteps"]) == (1e-4, 64)


def test_a_run_in_place_of_an_environment_is_answered(run: Path, run_command: Callable[..., Any]) -> None:
    done = run_command("train", "run", "--learning-rate", "1e-4")
    assert (done.code, done.out) == (2, "")
    assert "env run is the directory of a run: `tightrope resume run` continues it" in done.err


@pytest.mark.parametrize(
    "words", ["--resume run", "--resume=run", "CartPole-v1 --resume run", "--resume run CartPole-v1"]
)
def test_train_resumes_a_run_that_it_names(run: Path, words: str, run_command: Command) -> None:
    more = ("--learning-rate", "1e-3", "--total-timesteps", "64")
    code, out, _ = run_command("train", *words.split(), *more)
    assert code == 0
    (changed,) = [line for line in out.splitlines() if line.startswith("changed at 48 steps: ")]
    assert "total_timesteps 48 -> 64" in changed
    assert "-> 0.001" in changed
    assert rows(run) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Pendulum-v1 --resume run", "env 'Pendulum-v1' is not module:Class: a run continues on its own environment"),
        ("CartPole-v1 other --resume run", "one argument too many: 'other'"),
        ("--resume nowhere", "nowhere is not a run: there is no such directory"),
        ("CartPole-v1 --resume", "resume needs a run: give its --run-dir too"),
        ("--resume run --seeds 1-3", "seeds 1-3 are several runs, and --resume run continues one: drop one of them"),
        ("--resume run --num-envs 4", "num_envs 4 cannot replace 2 in a trained run"),
    ],
)
def test_a_wrong_resume_by_train_gets_one_line(run: Path, words: str, said: str, run_command: Command) -> None:
    code, out, err = run_command("train", *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert rows(run) == 3


def test_a_directory_given_as_run_dir_leaves_the_word_after_resume_to_the_environment(
    run: Path, run_command: Command
) -> None:
    sizes = "--num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 64"
    code, out, _ = run_command("train", "--run-dir", "run", "--resume", "CartPole-v1", *sizes.split())
    assert code == 0
    assert "resuming from 0001-steps-48" in out
