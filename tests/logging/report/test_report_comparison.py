"""The page of several runs: who belongs together, and what is said of them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tightrope.files import Place
from tightrope.logging import RunInfo, Target
from tightrope.logging.metrics import Columns
from tightrope.logging.report import RunFiles, RunRecord, RunStatus, ScoreRecord, VideoFile, comparison_page
from tightrope.logging.report.comparison import chosen_charts, group_runs, score_table
from tightrope.logging.report.data import mean_in_unit

HOSTILE = "</script><img src=x onerror=alert(1)>"


def run(seed: int, end: float = 100.0, score: float | None = None, count: int = 40, **settings: Any) -> RunRecord:
    given = {"env": "CartPole-v1", "algo": "ppo", "seed": seed, "learning_rate": 0.1, "device": "cpu", **settings}
    rows = [
        {"step": 10 * i, "phase": i, "charts/episodic_return": float(y)}
        for i, y in enumerate(np.linspace(0, end, count), start=1)
    ]
    about = RunInfo(f"{given['env']} {given['algo']}", given, [], 0, 400, Path("runs") / f"{given['algo']}-{seed}")
    found = RunFiles(scores=[] if score is None else [ScoreRecord(400, score)])
    return RunRecord(about, Columns(rows), RunStatus("ended"), found)


def test_seeds_are_one_group_and_settings_make_others() -> None:
    runs = [run(2), run(1, device="cuda"), run(1, learning_rate=0.2), run(10)]
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["learning_rate 0.1", "learning_rate 0.2"]
    assert [one.info.settings["seed"] for one in groups[0].runs] == [1, 2, 10]


def test_algorithms_are_named_before_settings() -> None:
    groups = group_runs([run(1), run(1, learning_rate=0.2), run(1, algo="vpg", baseline="none")])
    assert [group.label for group in groups] == ["ppo, learning_rate 0.1", "ppo, learning_rate 0.2", "vpg"]
    assert [group.label for group in group_runs([run(1), run(2)])] == ["ppo"]


def test_a_group_is_drawn_as_runs_a_band_and_their_mean() -> None:
    chart = chosen_charts(group_runs([run(1, 100), run(2, 200), run(1, 50, learning_rate=0.2)]))[0]
    assert [trace["kind"] for trace in chart.traces] == ["run", "run", "low", "high", "mean", "mean"]
    low, high, mean = (next(t for t in chart.traces if t["kind"] == kind) for kind in ("low", "high", "mean"))
    assert mean["y"][-1] == 150 or abs(mean["y"][-1] - 150) < 6
    assert low["y"][-1] < mean["y"][-1] < high["y"][-1]
    assert low["x"] == high["x"] == mean["x"]


def test_each_run_has_its_evaluations_under_its_seed() -> None:
    runs = [run(1, score=10.0), run(2), run(3, score=30.0), run(1, score=5.0, learning_rate=0.2)]
    (chart,) = (chart for chart in chosen_charts(group_runs(runs)) if chart.plot.title == "Greedy evaluations")
    assert {trace["kind"] for trace in chart.traces} == {"scores"}  # drawn with marks: a line of one point is nothing
    assert [(trace["name"], trace["x"], trace["y"]) for trace in chart.traces] == [
        ("learning_rate 0.1, seed 1", [400], [10.0]),
        ("learning_rate 0.1, seed 3", [400], [30.0]),
        ("learning_rate 0.2, seed 1", [400], [5.0]),
    ]


def test_videos_are_in_the_order_of_the_groups(tmp_path: Path) -> None:
    (tmp_path / "phase0001.mp4").write_bytes(b"x")
    found = RunFiles(videos=[VideoFile(Place(tmp_path) / "phase0001.mp4", 1)])
    runs = [replace(run(1, learning_rate=i), files=found) for i in range(8)]
    page = comparison_page(runs, tmp_path)
    shown = re.findall(r"<figcaption>learning_rate (\d), seed 1, phase 1, 10 steps</figcaption>", page)
    assert shown == list("012345")
    assert re.findall(r'<a href="phase0001.mp4">learning_rate (\d)', page) == list("67")


def test_scores_are_of_one_kind() -> None:
    with_all, note = score_table(group_runs([run(1, score=10.0), run(2, score=30.0)]))
    assert "last greedy evaluation" in note
    assert "an interquartile mean needs four" in note
    assert ">mean</th>" in with_all
    assert "IQM" not in with_all
    assert ">20<" in with_all
    with_some, note = score_table(group_runs([run(1, score=10.0), run(2)]))
    assert "mean return in the last 10%" in note
    assert ">20<" not in with_some


def test_the_table_has_the_interquartile_mean_of_each_group() -> None:
    content, note = score_table(group_runs([run(seed, score=float(s)) for seed, s in enumerate([0, 10, 11, 12, 1000])]))
    cells = re.findall(r"<td>([^<]*)</td>", content)
    assert cells[:2] == ["5", "11"]  # not 206.6, which is the mean
    assert cells[3] == "0 to 1,000"
    assert ">IQM</th>" in content
    assert "rliable" in note
    for at in re.findall(r'<circle cx="([^"]+)"', content):
        assert 5 <= float(at) <= 195  # no disc is cut at an end


def test_the_table_counts_the_runs_that_solved_their_task() -> None:
    scores = (500.0, 490.0, 100.0)
    runs = [run(seed, score=score, total_timesteps=400) for seed, score in enumerate(scores)]
    aimed = [replace(one, info=replace(one.info, target=Target(475.0, "asked: 475"))) for one in runs]
    assert ">2 of 3<" in score_table(group_runs(aimed))[0]
    assert "solved" not in score_table(group_runs(runs))[0]


def test_a_run_without_an_episode_is_listed_all_the_same(tmp_path: Path) -> None:
    empty = RunRecord(run(3).info, Columns([{"step": 1, "phase": 1}]), RunStatus("stopped"))
    page = comparison_page([run(1), empty], tmp_path)
    assert "ppo-3" in page
    assert "<td>finished</td>" in page  # as on the run's own page
    assert "<td>stopped</td>" in page


def test_the_page_names_every_run_and_what_differs(tmp_path: Path) -> None:
    runs = [run(1), run(2), run(1, learning_rate=0.2, norm_obs=True), run(1, env="Pendulum-v1")]
    page = comparison_page(runs, tmp_path)
    body = page[: page.index('id="data"')]
    for expected in ("CartPole-v1: final scores", "Pendulum-v1: final scores", "norm_obs", "bootstrap", "4 runs"):
        assert expected in body, expected
    ids = re.findall(r' id="([^"]+)"', body)
    assert len(ids) == len(set(ids))
    assert len(re.findall(r"ppo-\d", body)) >= 4


def test_what_is_hostile_stays_text(tmp_path: Path) -> None:
    page = comparison_page([run(1), run(1, learning_rate=HOSTILE), run(2, env=HOSTILE)], tmp_path)
    assert HOSTILE not in page
    match = re.search(r'id="data">(.*?)</script>', page)
    assert match
    names = [trace["name"] for chart in json.loads(match[1])["charts"] for trace in chart["traces"]]
    assert not [name for name in names if "<" in name]  # plotly reads tags


def test_scores_are_told_in_the_unit_of_their_task() -> None:
    scores = [ScoreRecord(400, 40.0 + i, measured=10.0 + i, unit="rad/s") for i in range(2)]
    assert scores[1].own == "11 rad/s"
    assert mean_in_unit(scores) == "10.5 rad/s"
    assert mean_in_unit([*scores, ScoreRecord(400, 40.0)]) == ""
    records = [replace(run(seed), files=RunFiles(scores=[score])) for seed, score in enumerate(scores)]
    shown = comparison_page(records, Path())
    assert "10.5 rad/s" in shown
    assert "41 (11 rad/s)" in shown
