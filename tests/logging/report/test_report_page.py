"""The page of a run: whole, safe to open, small, and right in what it says."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tightrope.files import Place
from tightrope.logging import RunInfo, Target
from tightrope.logging.metrics import EPISODES, RETURN, Columns
from tightrope.logging.report import CheckpointSummary, RunFiles, RunRecord, RunStatus, ScoreRecord, VideoFile, run_page
from tightrope.logging.report.charts import charts, main_charts
from tightrope.logging.report.html import format_duration, format_number, table

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\u2028<!--"
VOID = {"meta", "link", "img", "br", "circle", "line"}


class Tags(HTMLParser):
    """Every element with its attributes; complains of what is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def columns(count: int = 50, **curves: Any) -> Columns:
    made = {"charts/episodic_return": np.linspace(0, 100, count), "losses/approx_kl": np.full(count, 0.01), **curves}
    return Columns(
        {"step": 100 * (i + 1), "phase": i + 1, "time": i, **{tag: float(y[i]) for tag, y in made.items()}}
        for i in range(count)
    )


def record(run_dir: Path, found: RunFiles | None = None, **changed: Any) -> RunRecord:
    settings = {"env": "CartPole-v1", "algo": "ppo", "seed": 1, "learning_rate": 0.1, "total_timesteps": 5000}
    info = RunInfo("CartPole-v1 ppo", settings, ["plan: 50 phases"], 0, 5000, run_dir, {"torch": "2.13"})
    return RunRecord(
        **{"info": info, "columns": columns(), "status": RunStatus("ended"), "files": found or RunFiles(), **changed}
    )


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert match
    return json.loads(match[1])  # type: ignore[no-any-return]


def text_of(page: str) -> str:
    """What a reader sees, more or less."""
    body = page[page.index("<body>") : page.index('<script type="application/json"')]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def test_a_page_holds_everything(tmp_path: Path) -> None:
    found = RunFiles(
        usual={"learning_rate": 0.015, "seed": 1},
        command="tightrope train CartPole-v1 --seed 1",
        scores=[ScoreRecord(5000, 499.5, 500.0, 2.5, 480.0, 500.0, 100)],
        checkpoints=[CheckpointSummary("0001-steps-5000", 5000, 499.5)],
    )
    page = run_page(record(tmp_path / "run", found), tmp_path / "run")
    Tags(page)
    words = text_of(page)
    for expected in (
        "CartPole-v1", "PPO", "finished", "Improved, without a known target", "5,000", "499.5", "480 to 500", "0.015",
        "± 2.50 over 100 episodes", "tightrope train CartPole-v1 --seed 1", "plan: 50 phases", "2.13", "0001-steps-5000",
    ):  # fmt: skip
        assert expected in words, expected


def test_nothing_in_a_page_comes_from_elsewhere(tmp_path: Path) -> None:
    page = run_page(record(tmp_path), tmp_path)
    for _, attributes in Tags(page).found:
        for name in ("src", "href"):
            assert not re.match(r"\w+:(?!,|video/mp4)|//", attributes.get(name) or ""), attributes
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    assert "script-src 'nonce-" in page


def test_what_is_hostile_stays_text(tmp_path: Path) -> None:
    settings = {"env": HOSTILE, "algo": HOSTILE, HOSTILE: HOSTILE, "list": [HOSTILE], "map": {HOSTILE: HOSTILE}}
    info = RunInfo(HOSTILE, settings, [HOSTILE], 0, 5000, tmp_path / "run", {HOSTILE: HOSTILE})
    found = RunFiles({HOSTILE: 1}, HOSTILE, [], [], [CheckpointSummary(HOSTILE, 1)])
    rows = columns(**{HOSTILE: np.linspace(0, 1, 50)})
    page = run_page(RunRecord(info, rows, RunStatus("failed", HOSTILE), found), tmp_path)
    tags = Tags(page).found
    assert not [
        attributes for tag, attributes in tags if tag == "img" or any(name.startswith("on") for name in attributes)
    ]
    assert len([tag for tag, _ in tags if tag == "script"]) == 4  # theme, data, library, page
    assert page.count(HOSTILE) == 0
    assert "\u2028" not in page[page.index('id="data"') :]  # which would end a line of a script
    assert data_of(page)["charts"][-1]["title"].startswith("Script><img src=x")  # as text, for plotly is never given it


def test_numbers_that_are_none_leave_gaps_and_not_nan(tmp_path: Path) -> None:
    rows = [{"step": 10 * i, "phase": i, "losses/approx_kl": None if i % 2 else 0.01, "x": math.nan} for i in range(40)]
    page = run_page(record(tmp_path, columns=Columns(rows)), tmp_path)
    data = data_of(page)
    assert [chart["title"] for chart in data["charts"]] == ["Return", "KL divergence"]
    assert data["charts"][0]["traces"] == []
    assert data["charts"][1]["traces"][0]["x"] == [20 * i for i in range(20)]


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_a_page_can_be_made_at_any_time(count: int, tmp_path: Path) -> None:
    page = run_page(record(tmp_path, columns=columns(count), status=RunStatus("running")), tmp_path)
    Tags(page)
    assert "too few to judge" in page
    assert data_of(page)["live"] is True


def test_a_long_run_makes_no_long_page(tmp_path: Path) -> None:
    count = 20_000
    noise = np.random.default_rng(1).normal(size=count)
    long = columns(count, **{f"losses/{i}": noise for i in range(15)})
    assert len(json.dumps(data_of(run_page(record(tmp_path, columns=long), tmp_path)))) < 600_000
    (raw, smooth) = main_charts(record(tmp_path, columns=long))[0].traces
    assert len(raw["x"]) <= 600
    assert len(smooth["x"]) <= 300


def test_evaluations_in_training_and_after_it_are_one_list(tmp_path: Path) -> None:
    rows = [{"step": i, "phase": i} for i in range(1, 31)]
    rows[4] |= {"eval/episodic_return": 2.0, "eval/episodic_length": 3.0}  # as old versions wrote them
    rows[9] |= {"eval/episodic_return": 5.0, "eval/episodic_length": 7.0, "eval/episodes": 20}
    rows[9] |= {"eval/return_std": 2.0, "eval/return_min": 1.0, "eval/return_max": 8.0}
    rows[29] |= {"eval/episodic_return": 8.0}
    after = ScoreRecord(30, 9.0, std=1.0)
    one = record(tmp_path, RunFiles(scores=[after]), columns=Columns(rows))
    assert one.scores == [ScoreRecord(5, 2.0, 3.0), ScoreRecord(10, 5.0, 7.0, 2.0, 1.0, 8.0, 20), after]
    assert "1 to 8" in text_of(run_page(one, tmp_path))
    assert [chart["title"] for chart in data_of(run_page(one, tmp_path))["charts"]] == ["Return"]  # none of its own
    points = main_charts(one)[0].traces[-1]
    assert (points["kind"], points["x"], points["y"]) == ("points", [5, 10, 30], [2.0, 5.0, 9.0])


def test_charts_are_of_what_there_is() -> None:
    assert [chart.plot.title for chart in charts(columns())] == ["KL divergence"]
    more = columns(
        **{"mine/own_speed": np.arange(50), "charts/reward": np.ones(50), "losses/grad_norm": np.geomspace(1, 1e6, 50)}
    )
    made = {chart.plot.title: chart for chart in charts(more)}
    assert list(made) == ["KL divergence", "Gradient norm", "Own speed"]  # a reward that never changes is no curve
    assert made["Gradient norm"].log
    assert not made["KL divergence"].log


def test_limits_and_windows_are_drawn_only_where_they_matter() -> None:
    assert charts(columns())[0].plot.limit is None
    assert charts(columns(**{"losses/approx_kl": np.linspace(0, 0.04, 50)}))[0].plot.limit == 0.05
    explained = np.linspace(0, 1, 50)
    assert charts(columns(**{"losses/explained_variance": explained}))[1].plot.window is None
    explained[3] = -40
    assert charts(columns(**{"losses/explained_variance": explained}))[1].plot.window == (-1.05, 1.05)


def test_small_videos_are_inside_and_large_ones_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.logging.report.run.EMBEDDED", 100)
    (tmp_path / "videos").mkdir()
    sizes = {1: 15, 2: 90, 3: 5, 40: 80}
    for phase, size in sizes.items():
        (tmp_path / "videos" / f"phase{phase:04d}.mp4").write_bytes(b"x" * size)
    clips = [VideoFile(Place(tmp_path) / "videos" / f"phase{phase:04d}.mp4", phase) for phase in sizes]
    clips.append(VideoFile(Place(tmp_path) / "videos" / "gone.mp4", 50))
    page = run_page(record(tmp_path, RunFiles(videos=clips)), tmp_path)
    sources = [attributes["src"] for tag, attributes in Tags(page).found if tag == "video"]
    assert [(source or "")[:22] for source in sources] == [
        "data:video/mp4;base64,", "videos/phase0002.mp4", "data:video/mp4;base64,", "data:video/mp4;base64,",
    ]  # fmt: skip
    assert "phase 40, 4,000 steps" in text_of(page)


def test_the_first_the_last_and_some_videos_between_are_shown(tmp_path: Path) -> None:
    names = [f"phase{phase:04d}.mp4" for phase in range(1, 21)]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    clips = [VideoFile(Place(tmp_path) / name, phase) for phase, name in enumerate(names, 1)]
    page = run_page(record(tmp_path, RunFiles(videos=clips)), tmp_path)
    shown = re.findall(r"<figcaption>phase (\d+),", page)
    assert (len(shown), shown[0], shown[-1]) == (6, "1", "20")
    assert max(np.diff([int(phase) for phase in shown])) <= 5
    assert len(re.findall(r'<a href="phase\d+.mp4">', page)) == 14


def test_shaped_and_plain_returns_are_two_charts(tmp_path: Path) -> None:
    found = RunFiles(scores=[ScoreRecord(2500, -200.0), ScoreRecord(5000, -110.0, 110.0)])
    shaped = {
        "env": "MountainCar-v0",
        "algo": "ppo",
        "seed": 1,
        "train_env": "MountainCarShaped-v0",
        "total_timesteps": 5000,
    }
    info = RunInfo("MountainCar-v0 ppo", shaped, [], 0, 5000, tmp_path)
    page = run_page(record(tmp_path, found, info=info), tmp_path)
    first, second = data_of(page)["charts"][:2]
    assert [first["title"], second["title"]] == ["Return in training", "Greedy evaluations"]
    assert {trace["kind"] for trace in first["traces"]} == {"raw", "smooth"}
    assert [trace["kind"] for trace in second["traces"]] == ["points"]
    assert "Of MountainCarShaped-v0, which pays otherwise" in text_of(page)


def test_phases_without_an_episode_are_gaps() -> None:
    returns, episodes = np.linspace(0, 100, 50), np.full(50, 4.0)
    returns[20:35], episodes[20:35] = np.nan, 0
    raw, bridge, smooth = main_charts(record(Path(), columns=columns(**{RETURN: returns, EPISODES: episodes})))[
        0
    ].traces
    assert [trace["kind"] for trace in (raw, bridge, smooth)] == ["dots", "gap", "smooth"]
    assert len(raw["x"]) == 35
    assert smooth["y"][27] is None
    assert None not in bridge["y"]


def test_one_unlucky_episode_is_no_dip() -> None:
    returns, episodes = np.full(50, 500.0), np.full(50, 40.0)
    returns[25], episodes[25] = 9.0, 1.0
    low = min(main_charts(record(Path(), columns=columns(**{RETURN: returns, EPISODES: episodes})))[0].traces[-1]["y"])
    assert low > 490
    assert min(main_charts(record(Path(), columns=columns(**{RETURN: returns})))[0].traces[-1]["y"]) < 350


def test_a_logarithmic_axis_is_smoothed_in_logarithms() -> None:
    peak = np.where(np.arange(50) == 25, 1e6, 1.0)
    (_, smooth) = next(c for c in charts(columns(**{"losses/grad_norm": peak})) if c.log).traces
    assert 100 < max(smooth["y"]) < 1e4  # a mean of numbers would be near a third of the peak


def test_a_verdict_comes_first_and_code_is_code(tmp_path: Path) -> None:
    one = record(tmp_path)
    one = replace(one, info=replace(one.info, target=Target(475.0, "Gymnasium counts it as solved from 475")))
    page = run_page(replace(one, files=RunFiles(scores=[ScoreRecord(5000, 98.0)])), tmp_path)
    assert text_of(page).index("Not solved: 98 of 475") < text_of(page).index("Return in training")
    assert "<code>tightrope sweep</code>" in page
    assert "`" not in text_of(page)
    solved = text_of(run_page(replace(one, files=RunFiles(scores=[ScoreRecord(5000, 500.0)])), tmp_path))
    assert "Solved: 500 of 475 needed" in solved
    assert "Health check" not in solved


def test_a_clip_of_several_phases_says_which(tmp_path: Path) -> None:
    one = record(tmp_path)
    assert one.label(VideoFile(Place(tmp_path) / "phase0012.mp4", 12, 1)) == "phases 1-12, 1,200 steps"
    assert one.label(VideoFile(Place(tmp_path) / "phase0012.mp4", 12, 12)) == "phase 12, 1,200 steps"
    assert one.label(VideoFile(Place(tmp_path) / "best.mp4")) == "best"


def test_only_a_sentence_has_several_lines_in_a_table() -> None:
    row = ["learning_rate", "99,328", '<span class="swatch s0"></span><a href="a/very/long/address/of/a/page">a1</a>']
    assert 'class="long"' not in table("x", ["setting", "value", "run"], [row])
    assert table("x", ["health"], [["a"], ["the policy moves too far in each phase"]]).count('class="long"') == 1


def test_links_lead_from_where_the_page_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.logging.report.run.EMBEDDED", 0)
    video = tmp_path / "a run" / "videos" / "x#'.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"x")
    page = run_page(record(tmp_path / "a run", RunFiles(videos=[VideoFile(Place.of(video))])), tmp_path / "pages")
    assert "../a%20run/videos/x%23%27.mp4" in page


def test_numbers_are_for_people() -> None:
    shown = {500.0: "500", 12345.678: "12,346", 0.012345: "0.01235", -3.14159: "-3.142", 1e-7: "1.00e-07", 0.0: "0",
             math.nan: "\u2013", None: "\u2013", 1e20: "1.00e+20", -200.0: "-200"}  # fmt: skip
    assert {value: format_number(value) for value in shown} == shown


def test_times_are_for_people() -> None:
    assert [format_duration(s) for s in (1.44, 61.0, 3599.0, 7260.0)] == ["1.4 s", "1:01 min", "59:59 min", "2:01 h"]
