"""Training as a whole: what lands in the run directory, what is printed, how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.training.config import configure
from tightrope.training.run_directory import load_config, new_run_dir

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=6 * 32, seed=3, device="cpu")
TIMES = {"time", "charts/SPS"}
COMMON_TAGS = {"charts/SPS", "charts/learning_rate", "charts/reward", "losses/entropy", "losses/grad_norm"}
PPO_TAGS = COMMON_TAGS | {
    "losses/policy_loss", "losses/value_loss", "losses/approx_kl", "losses/clipfrac", "losses/explained_variance",
}  # fmt: skip
VPG_TAGS = COMMON_TAGS | {
    "losses/objective", "losses/importance_weight",
    "charts/lifespan_mean", "charts/lifespan_std", "charts/lifespan_max",
}  # fmt: skip


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def training(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without times and evaluations."""
    return [{k: v for k, v in row.items() if k not in TIMES and not k.startswith("eval/")} for row in rows]


# metrics.jsonl and config.yaml ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "tags"), [(tr.PPO, PPO_TAGS), (tr.VPG, VPG_TAGS)])
def test_a_run_leaves_its_settings_its_metrics_and_its_state(
    cls: type[tr.Agent], tags: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = cls("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "new" / "run", quiet=True)
    run_dir = tmp_path / "new" / "run"
    rows = rows_of(run_dir)
    assert [row["phase"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["step"] == agent.steps
    if cls is tr.PPO:  # whose phases are never cut short
        assert [row["step"] for row in rows] == [32, 64, 96, 128, 160, 192]
    for row in rows:
        assert tags <= row.keys()
        assert all(isinstance(v, (int, float)) for v in row.values())
        assert row["losses/entropy"] > 0
        assert row["charts/SPS"] > 0
    parts = (
        f"0001-steps-{agent.steps}/{name}" for name in ("manifest.json", "model.safetensors", "training.safetensors")
    )
    assert sorted(p.relative_to(run_dir).as_posix() for p in run_dir.rglob("*") if p.is_file()) == [
        ".lock", "about.json", *(f"checkpoints/{part}" for part in parts), "checkpoints/latest", "config.yaml",
        "metrics.jsonl", "report.html",
    ]  # fmt: skip
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    chosen = {"threads": 1, "accelerate": "eager"}  # which stays with the run
    assert written == {**agent.config.to_flat_dict(), **chosen}
    loaded = tr.load(run_dir)
    assert all(torch.equal(v, loaded.state.state_dict()[k]) for k, v in agent.state.state_dict().items())
    assert capsys.readouterr() == ("", ""), "quiet prints nothing"


def test_return_and_length_are_over_the_episodes_that_finished(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", **SMALL, max_episode_steps=12).learn(run_dir=tmp_path, quiet=True)
    rows = rows_of(tmp_path)
    assert "charts/episodic_return" not in rows[0], "no episode ends in the first eight steps"
    finished = [row for row in rows if row["charts/episodes"] > 0]
    assert finished
    for row in finished:
        assert row["charts/episodic_return"] == row["charts/episodic_length"]  # CartPole pays 1 a step
        assert 8 <= row["charts/episodic_length"] <= 12


def test_a_row_is_written_when_its_phase_ends(tmp_path: Path) -> None:
    seen = []

    class Looks(tr.envs.CartPole):
        def finished_episodes(self) -> Tensor:
            seen.append(len(rows_of(tmp_path)))
            return super().finished_episodes()

    tr.PPO(Looks(num_envs=4), num_steps=8, total_timesteps=96).learn(run_dir=tmp_path, quiet=True)
    assert seen == [0, 1, 2]


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tr.PPO("CartPole-v1", **SMALL, eval_every=32, eval_episodes=2).learn(quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cls", [tr.PPO, tr.VPG])
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(cls: type[tr.Agent], tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(len(list(tmp_path.iterdir())))
        cls("Pendulum-v1", **{**SMALL, "seed": seed}).learn(run_dir=tmp_path / name, quiet=True)
    a, b, c = (training(rows_of(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_metrics_of_a_run_that_goes_on_are_appended(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.learn(64, run_dir=tmp_path, quiet=True)
    agent.learn(128, run_dir=tmp_path, quiet=True)
    assert [row["step"] for row in rows_of(tmp_path)] == [32, 64, 96, 128]
    assert tr.load(tmp_path).config.algorithm.total_timesteps == 128


# evaluation during training -------------------------------------------------------------------------------------------


def test_evaluations_come_every_so_many_steps(tmp_path: Path) -> None:
    settings = {**SMALL, "eval_every": 70, "eval_episodes": 5}
    outcome = tr.PPO("CartPole-v1", **settings).train(run_dir=tmp_path, quiet=True)
    evaluated = {row["step"]: row["eval/episodic_return"] for row in rows_of(tmp_path) if "eval/episodic_return" in row}
    assert list(evaluated) == [96, 160]  # the first rows past 70 and 140
    assert [(steps, e.mean) for steps, e in outcome.evaluations] == list(evaluated.items())
    assert all(len(e.returns) == 5 for _, e in outcome.evaluations)
    (_, first), row = outcome.evaluations[0], next(row for row in rows_of(tmp_path) if row["step"] == 96)
    assert {tag: x for tag, x in row.items() if tag.startswith("eval/")} == {
        "eval/episodic_return": first.mean, "eval/episodic_length": first.mean_length, "eval/return_std": first.std,
        "eval/return_min": min(first.returns), "eval/return_max": max(first.returns), "eval/episodes": 5,
    }  # fmt: skip


def test_training_on_one_environment_is_scored_on_another(tmp_path: Path) -> None:
    settings = {**SMALL, "eval_every": 96, "eval_episodes": 4, "max_episode_steps": 30}
    agent = tr.PPO("MountainCar-v0", **settings, train_env="MountainCarShaped-v0", norm_obs=False)
    assert isinstance(agent.state.env, tr.envs.MountainCarShaped)
    assert type(agent.score_env) is tr.envs.MountainCar
    agent.learn(run_dir=tmp_path, quiet=True)
    scores = [row["eval/episodic_return"] for row in rows_of(tmp_path) if "eval/episodic_return" in row]
    returns = [row["charts/episodic_return"] for row in rows_of(tmp_path) if "charts/episodic_return" in row]
    assert scores == [-30, -30]  # the plain reward
    assert returns
    assert not {-30.0} & set(returns)  # the shaped one
    assert agent.evaluate(2).returns == [-30, -30]
    assert isinstance(tr.load(tmp_path).state.env, tr.envs.MountainCarShaped)


def test_training_on_other_spaces_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'Pendulum-v1'.*'CartPole-v1'.*spaces"):
        tr.PPO("CartPole-v1", **SMALL, train_env="Pendulum-v1")


# where a run lives ----------------------------------------------------------------------------------------------------


def test_a_run_directory_is_named_for_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20250102-030405")
    config = configure("CartPole-v1", "vpg", {"seed": 7})
    path = new_run_dir(None, config)
    assert path == Path("runs/CartPole-v1__vpg__7__20250102-030405")
    assert not list(tmp_path.iterdir()), "created before there is anything to put there"
    path.mkdir(parents=True)
    second = new_run_dir(None, config)
    assert second != path
    assert second.name.startswith(path.name)


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    config = configure("CartPole-v1", "ppo", SMALL)
    assert new_run_dir(tmp_path, config) == tmp_path  # an empty one will do
    tr.PPO("CartPole-v1", **SMALL).save(tmp_path / "run")
    (tmp_path / "file").touch()
    for name in ("run", "file"):
        with pytest.raises(UsageError, match=rf"run_dir .*{name}.* give ") as error:
            new_run_dir(tmp_path / name, config)
        assert "\n" not in str(error.value)


def test_another_agent_does_not_write_over_a_run(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path, quiet=True)
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(UsageError, match="already holds a run"):
        tr.PPO("CartPole-v1", **{**SMALL, "seed": 4}).learn(run_dir=tmp_path, quiet=True)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert load_config(tmp_path).run.seed == 3


# what is printed ------------------------------------------------------------------------------------------------------


def test_the_plan_is_printed_first_and_progress_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    tr.PPO("CartPole-v1", **SMALL).learn()
    out, err = capsys.readouterr()
    assert out.startswith("plan: 6 phases x 32 steps = 192 steps")
    assert "warning: only" in out
    line, learning = err.splitlines()[-2:]
    assert "100%" in line
    assert learning.startswith("    loss ")


# how it ends ----------------------------------------------------------------------------------------------------------


def test_an_error_in_the_environment_is_not_hidden_and_closes_what_is_open(tmp_path: Path) -> None:
    """What it leaves behind can be loaded."""

    class Fails(tr.envs.CartPole):
        def finished_episodes(self) -> Tensor:
            if len(rows_of(tmp_path)) == 2:
                raise ZeroDivisionError("of the user's own")
            return super().finished_episodes()

    threads = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        tr.PPO(Fails(num_envs=4), num_steps=8, total_timesteps=320).learn(run_dir=tmp_path, quiet=True)
    assert len(rows_of(tmp_path)) == 2
    assert torch.get_num_threads() == threads
    assert tr.load(tmp_path, env=Fails(num_envs=4)).state.phase == 2
