"""Reports from run directories: what is gathered there, the command that makes a run again, and how a mistake is answered."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.cli import main
from tightrope.training import reports
from tightrope.training.commands import command as training_command
from tightrope.training.commands import usual_settings
from tightrope.training.config import configure
from tightrope.training.lock import is_locked, locked
from tightrope.training.reports import clips, gathered, scores, write_report

SOURCE = str(Path(tr.__file__).parents[1])
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    tr.PPO("CartPole-v1", **SMALL, eval_every=32, eval_episodes=2).learn(run_dir=path, quiet=True)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_is_gathered_from_its_directory(run: Path) -> None:
    record = gathered(run)
    assert record.info.title == "CartPole-v1 ppo"
    assert record.info.settings["hidden_sizes"] == [8]
    assert record.info.plan[0].startswith("plan: 3 phases")
    assert record.info.facts["torch"]
    assert (record.steps, record.columns.count, record.status.kind) == (96, 3, "ended")
    assert [score.step for score in record.scores] == [32, 64, 96]
    assert {score.episodes for score in record.scores} == {2}
    assert all(score.low <= score.mean <= score.high for score in record.scores)  # type: ignore[operator]
    assert {kept.steps for kept in record.files.checkpoints} <= {32, 64, 96}
    assert record.files.checkpoints[0].steps == 96


def test_the_report_of_training_is_complete(run: Path) -> None:
    """It is written after the last checkpoint."""
    assert f"{gathered(run).files.checkpoints[0].name}</th>" in (run / "report.html").read_text()


def test_a_run_without_the_rest_is_still_a_run(run: Path) -> None:
    (run / "about.json").write_text("[[[")
    (run / "scores.jsonl").write_text('nonsense\n{"step": "x", "mean": 1}\n{"step": 96, "mean": 3.5, "std": null}\n')
    record = gathered(run)
    assert record.info.plan == []
    assert [(score.step, score.mean) for score in scores(run)] == [(96, 3.5)]


@pytest.mark.parametrize("content", ["3", "{}", '{"plan": 3, "facts": []}', '{"plan": ["a", {}], "facts": {"b": 2}}'])
def test_what_was_remembered_may_be_anything(content: str, run: Path) -> None:
    (run / "about.json").write_text(content)
    page = write_report([run])
    assert page.stat().st_size > 100_000


def test_status_is_told_from_what_lies_there(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]))
    assert gathered(run).status.kind == "stopped"
    (run / "crash" / "phase-000003").mkdir(parents=True)
    assert gathered(run).status.kind == "not finite"
    with locked(run):
        assert gathered(run).status.kind == "running"
    assert not is_locked(run)


def test_looking_does_not_take_the_lock_away(run: Path, tmp_path: Path) -> None:
    with locked(run):
        assert is_locked(run)
        with pytest.raises(tr.UsageError, match="is being written by"), locked(run):
            pass


def test_videos_are_in_the_order_of_their_phases(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    for name in ("phase10000.mp4", "phase0050.mp4", "phase9999.mp4", "best.mp4", "phase0050.html"):
        (tmp_path / "videos" / name).touch()
    assert [clip.place.name for clip in clips(tmp_path)] == [
        "best.mp4", "phase0050.mp4", "phase9999.mp4", "phase10000.mp4",
    ]  # fmt: skip


# the command ------------------------------------------------------------------------------------------------------------


def test_the_command_has_what_differs() -> None:
    config = configure("CartPole-v1", "ppo")
    assert training_command(config, usual_settings(config)) == "tightrope train CartPole-v1 --seed 1"
    config = configure("CartPole-v1", "vpg", {"stop_when_solved": True, "weight_clamp": None, "device": "cpu"})
    words = shlex.split(training_command(config, usual_settings(config)))
    assert words[:5] == ["tightrope", "train", "CartPole-v1", "--algo", "vpg"]
    assert sorted(words[5:]) == sorted(["--stop-when-solved", "--weight-clamp", "none", "--seed", "1"])


@pytest.mark.parametrize(
    "settings",
    [
        dict(learning_rate=0.1, norm_obs=True, anneal_clip=False, hidden_sizes=(8, 4), target_kl=0.02, seed=3),
        dict(env_kwargs={"a": 1, "b": "x y; rm -rf"}, train_env="EasyCart-v0", max_episode_steps=50, ent_coef=1e-05),
    ],
)
def test_the_command_makes_the_same_settings(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("CartPole-v1", "ppo", settings)
    seen: list[Any] = []

    def stop(_: Any, found: Any) -> Path:
        seen.append(found)
        raise tr.UsageError("enough")

    monkeypatch.setattr("tightrope.cli.training.new_run_dir", stop)
    monkeypatch.setattr("tightrope.cli.training.check_env", lambda *_: None)
    with pytest.raises(SystemExit):
        main(shlex.split(training_command(config, usual_settings(config)))[1:])
    assert seen == [config]


def test_the_command_names_threads_and_defaults() -> None:
    config = configure("Taxi-v4", "ppo", {"threads": 2, "defaults": "plain"})
    assert (
        training_command(config, usual_settings(config))
        == "tightrope train Taxi-v4 --seed 1 --defaults plain --threads 2"
    )


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
def test_sizes_that_follow_from_the_environment_were_not_chosen(algo: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_episode_steps": 20, "device": "cpu", "total_timesteps": 2048, "threads": 1}
    made = {"ppo": tr.PPO, "vpg": tr.VPG}[algo](tr.envs.MountainCarShaped, defaults="discrete", **settings)
    made.learn(run_dir=tmp_path / "run", quiet=True)
    record = gathered(tmp_path / "run")
    given, usual = record.info.settings, record.files.usual
    assert {name for name in given if given[name] != usual[name]} == {"max_episode_steps", "total_timesteps"}
    (tmp_path / "run" / "about.json").write_text('{"traits": {"limit": [1], "on_device": "no"}}')
    assert gathered(tmp_path / "run").files.usual["num_envs"] in (8, 32)  # a file may say anything


@pytest.mark.parametrize("env", ["my_file.Robot", "__main__:Robot", "my_file:make.<locals>.Robot"])
def test_an_env_of_ones_own_is_made_again_in_python(env: str) -> None:
    config = configure(env, "ppo", {"learning_rate": 0.1})
    assert training_command(config, usual_settings(config)) == "tr.PPO(Robot, learning_rate=0.1, seed=1).learn()"


@pytest.mark.parametrize("env", ["my_module:Robot", "my_module:Robot-v0"])
def test_an_env_of_a_module_is_named_on_the_command_line(env: str) -> None:
    config = configure(env, "ppo", {"learning_rate": 0.1})
    words = shlex.split(training_command(config, usual_settings(config)))
    assert words[:3] == ["tightrope", "train", env]


# the command line ---------------------------------------------------------------------------------------------------------


def test_report_writes_where_it_says(
    run: Path, tmp_path: Path, run_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (run / "report.html").unlink()
    assert run_command("report", run) == (0, f"{run / 'report.html'}\n", "")
    assert (run / "report.html").exists()
    assert run_command("report", run, "--out", tmp_path / "new" / "page.html")[0] == 0
    assert (tmp_path / "new" / "page.html").exists()
    tr.PPO("CartPole-v1", **SMALL, seed=2).learn(run_dir=tmp_path / "other", quiet=True)
    assert run_command("report", run, tmp_path / "other") == (0, "comparison.html\n", "")
    page = (tmp_path / "comparison.html").read_text()
    assert 'href="run/report.html"' in page
    assert 'href="other/report.html"' in page


def test_what_is_no_run_is_left_out_of_a_comparison(
    run: Path, tmp_path: Path, run_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("page.html").touch()
    code, out, err = run_command("report", "empty", run, "page.html", "nowhere")
    assert (code, out) == (0, "comparison.html\n")
    assert err.splitlines() == [
        "warning: left out: empty is not a run: it has no config.yaml. Give a directory that train or save wrote",
        "warning: left out: page.html is not a run: it is a file. Give a directory that train or save wrote",
        "warning: left out: nowhere is not a run: there is no such directory. Give a directory that train or save wrote",
    ]
    assert "1 run<" in Path("comparison.html").read_text()
    code, out, err = run_command("report", "empty", "page.html")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("tightrope: none of these 2 directories is a trained run")


HUGE = (
    "1e308", "-1e308", "1e400", "NaN", "Infinity", "-Infinity", "9" * 400, "-" + "9" * 400, "true", "null", '"x"', "[]", "{}",
)  # fmt: skip


def test_a_report_is_made_of_any_numbers(run: Path, tmp_path: Path) -> None:
    """In every place of a score, and in every place of a row."""
    score = {"step": 96, "mean": 3.5, "std": 1.0, "min": 1.0, "max": 9.0, "mean_length": 9.0, "episodes": 3}
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    for file, good in (("scores.jsonl", score), ("metrics.jsonl", row)):
        bad = [json.dumps({**good, name: "BAD"}).replace('"BAD"', value) for value in HUGE for name in good]
        with (run / file).open("a") as opened:
            opened.write("\n".join(bad) + "\n")
    write_report([run], tmp_path / "one.html")
    assert all(math.isfinite(score.mean) for score in scores(run))
    write_report([run, Path(shutil.copytree(run, tmp_path / "other"))], tmp_path / "both.html")
    for name in ("one.html", "both.html"):
        page = (tmp_path / name).read_text()
        assert not re.search(r">\s*-?(nan|inf)\b", page, re.IGNORECASE)


@pytest.mark.parametrize("stage", ["gathered", "comparison_page"])
def test_one_bad_run_does_not_stop_a_comparison(
    stage: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "spoiled")
    working = getattr(reports, stage)

    def failing(what: Any, *rest: Any) -> Any:
        if "spoiled" in str(what):
            raise ZeroDivisionError("something that nobody thought of")
        return working(what, *rest)

    monkeypatch.setattr(reports, stage, failing)
    write_report([run, tmp_path / "spoiled"], tmp_path / "both.html")
    assert "1 run<" in (tmp_path / "both.html").read_text()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "left out" in said[0]
    assert "something that nobody thought of" in said[0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml"])
def test_a_run_with_a_pipe_in_it_is_left_out(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "bad")
    (tmp_path / "bad" / name).unlink()
    os.mkfifo(tmp_path / "bad" / name)
    write_report([run, tmp_path / "bad"], tmp_path / "both.html")
    assert "is not a plain file" in capsys.readouterr().err
    assert "1 run<" in (tmp_path / "both.html").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="names are text there")
def test_names_that_are_no_text_do_nothing_to_a_terminal(run: Path, tmp_path: Path) -> None:
    name = b"a\xff\x1b[31mred\nline"
    strange = tmp_path / os.fsdecode(name)
    run.rename(strange)
    for words in (["report", strange, tmp_path / f"{strange}2"], ["resume", strange, "--total-timesteps", "128"]):
        code = [sys.executable, "-m", "tightrope", *map(os.fsencode, words)]
        done = subprocess.run(code, capture_output=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE})
        assert done.returncode == 0, done.stderr
        assert all(line.decode().isprintable() for line in (done.stdout + done.stderr).splitlines())
        assert rb"a\udcff\x1b[31mred" in done.stdout + done.stderr
    assert write_report([strange], strange / "both.html").is_file()


def test_a_run_named_twice_is_one_run(run: Path, run_command: Any) -> None:
    assert run_command("report", run, f"{run}/")[1] == f"{run / 'report.html'}\n"


def test_train_puts_its_last_score_into_the_report(tmp_path: Path, run_command: Any) -> None:
    flags = ["--num-envs", 4, "--num-steps", 8, "--hidden-sizes", 8, "--total-timesteps", 64, "--device", "cpu"]
    code, out, _ = run_command("train", "CartPole-v1", *flags, "--quiet", "--run-dir", tmp_path / "run")
    assert code == 0
    row = json.loads((tmp_path / "run" / "scores.jsonl").read_text())
    assert (row["step"], row["episodes"]) == (64, 100)
    assert f"mean {row['mean']:.2f}" in out
    assert "over 100 episodes" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "report needs a run directory, such as `tightrope report runs/demo`"),
        (["nowhere"], "nowhere is not a run: there is no such directory. Give a directory that train or save wrote"),
        (["empty"], "empty is not a run: it has no config.yaml. Give a directory that train or save wrote"),
        (["saved"], "saved has no metrics.jsonl to report: give a run that was trained"),
        (["run", "--out", "x.txt"], "out x.txt is not a page: give a name that ends in .html"),
        (["run", "--out", "file/x.html"], "out file/x.html cannot be written: File exists"),
        (["run", "--oot", "x"], "unknown option '--oot'. `tightrope report --help` lists them"),
        (["run", "--out"], "out needs a value: give it after --out"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], complaint: str, run: Path, run_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    Path("empty").mkdir()
    Path("file").touch()
    if "saved" in words:
        tr.PPO("CartPole-v1", **SMALL).save("saved")
    assert run_command("report", *words) == (2, "", f"tightrope: {complaint}\n")


def test_without_plotly_it_says_what_to_install(run: Path, run_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeError("report.html needs plotly, which is not installed: pip install plotly")

    monkeypatch.setattr("tightrope.logging.report.html.packed_library", missing)
    assert run_command("report", run)[0] == 2


def test_help_has_an_example(run_command: Any) -> None:
    code, out, _ = run_command("report", "--help")
    assert code == 0
    assert "tightrope report runs/a runs/b --out both.html" in out
    assert "RUN [RUN ...]" in out
