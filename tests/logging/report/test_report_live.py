"""report.html while a run goes on: written now and then, whole, and never in training's way."""

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from run_helpers import assert_same_state, rows

import tightrope as tr
from tightrope.logging import ReportWriter, RunInfo, TrainingResult
from tightrope.logging.report import RunFiles, RunStatus, html, run, write_page

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")


class Now:
    """Stands in for a state."""

    steps, solved = 96, False


def report(run_dir: Path, seconds: float = 0.0) -> ReportWriter:
    made = ReportWriter(lambda _: RunFiles(), seconds)
    settings = {"total_timesteps": 96, "num_envs": 4, "num_steps": 8}
    made.on_start(RunInfo("CartPole-v1 ppo", settings, ["plan"], 0, 96, run_dir, {"torch": "2"}))
    return made


def pill(path: Path) -> str:
    page = (path / "report.html").read_text()
    return page[page.index('id="status">') + 12 :].partition("<")[0]


def test_it_is_written_while_it_runs_and_at_the_end(tmp_path: Path) -> None:
    one = report(tmp_path)
    one.on_update(Now())  # type: ignore[arg-type]
    assert pill(tmp_path) == "running"
    one.on_phase({"step": 96, "phase": 3})
    one.on_end(TrainingResult(Now()))  # type: ignore[arg-type]
    assert pill(tmp_path) == "finished"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["about.json", "report.html"]  # nothing half done


def test_it_is_not_written_at_every_phase_and_slow_writing_makes_it_rare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seconds, written = [0.0], [0.0], list[float]()

    def write(*_: Any) -> None:
        written.append(clock[0])
        clock[0] += seconds[0]

    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(run, "write_page", write)
    one = report(tmp_path, seconds=30)
    written.clear()
    for second in range(100):
        clock[0] = float(second)
        one.on_update(Now())  # type: ignore[arg-type]
    assert written == [5, 35, 65, 95]
    clock[0], seconds[0] = 130.0, 2.0
    one.on_update(Now())  # type: ignore[arg-type]
    assert one.due == 132 + 400


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "finished"), (tr.NotFinite("phase 3 is not finite: <why>"), "not finite"), (ValueError("no"), "failed"),
     (KeyboardInterrupt(), "finished")],
)  # fmt: skip
def test_it_says_how_the_run_ended(error: BaseException | None, words: str, tmp_path: Path) -> None:
    one = report(tmp_path)
    one.on_end(TrainingResult(Now(), error))  # type: ignore[arg-type]
    assert pill(tmp_path) == words
    if isinstance(error, tr.NotFinite):
        assert "phase 3 is not finite: &lt;why&gt;" in (tmp_path / "report.html").read_text()


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "run", quiet=True, until=32)
    assert pill(tmp_path / "run") == "stopped"
    assert "after 32 of 96 steps: <code>tightrope resume" in (tmp_path / "run" / "report.html").read_text()
    agent.learn(quiet=True)
    assert pill(tmp_path / "run") == "finished"
    data = (tmp_path / "run" / "report.html").read_text().partition('id="data">')[2].partition("<")[0]
    kl = next(chart for chart in json.loads(data)["charts"] if chart["title"] == "KL divergence")
    assert kl["traces"][0]["x"] == [32, 64, 96]  # what was before the break is in it


def test_training_is_the_same_with_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "with", quiet=True)
    monkeypatch.setattr("tightrope.training.trainer.built_in_callbacks", lambda *_: [])
    other = tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "without", quiet=True)
    assert (tmp_path / "with" / "report.html").exists()
    assert not (tmp_path / "without" / "report.html").exists()
    assert rows(tmp_path / "with") == rows(tmp_path / "without")
    assert_same_state(one, other)


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_page(tmp_path / "x.html", "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_page(tmp_path / "x.html", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    assert (tmp_path / "x.html").read_text() == "old"


def test_a_full_disk_is_said_once_and_the_page_is_there_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace, calls = os.replace, []

    def full_for_a_while(old: str, new: str, **where: Any) -> None:
        if new in ("report.html", "about.json"):
            calls.append(new)
            if len(calls) <= 3:
                raise OSError(28, "No space left on device")
        replace(old, new, **where)

    monkeypatch.setattr("os.replace", full_for_a_while)
    monkeypatch.setattr(run.ReportWriter, "on_update", lambda report, state: report.write(RunStatus("running")))
    tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "run", quiet=True)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, said
    assert "report.html cannot be written (No space left on device)" in said[0]
    assert ">finished<" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "about.json").exists()


def test_training_goes_on_without_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise RuntimeError("report.html needs plotly, which is not installed: pip install plotly")

    monkeypatch.setattr(html, "installed_library", missing)
    html._packed_library.cache_clear()
    assert tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "run", quiet=True).steps == 96
    assert capsys.readouterr().err.splitlines() == [
        "warning: the report failed and is disabled: report.html needs plotly, which is not installed: "
        "pip install plotly"
    ]


# the library ------------------------------------------------------------------------------------------------------------


def test_the_library_is_packed_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "plotly.min.js"
    source.write_text("window.Plotly = {};")
    monkeypatch.setattr(html, "installed_library", lambda: source)
    html._packed_library.cache_clear()
    packed = html.packed_library()
    assert gzip.decompress(base64.b64decode(packed)) == source.read_bytes()
    source.unlink()
    assert html.packed_library() is packed
    html._packed_library.cache_clear()
