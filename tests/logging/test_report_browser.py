"""The report in a real browser: from disk, with no network, drawn, hovered over, played, dark, and on a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Open, Opened, chromium, opening

import tightrope as tr
from tightrope.cli import main
from tightrope.logging import Video
from tightrope.training.reports import add_score, write_report

SETTINGS: dict[str, Any] = dict(num_envs=8, num_steps=32, hidden_sizes=(16,), total_timesteps=20 * 256, device="cpu")
TO_TOP = "scrollTo({ top: 0, behavior: 'instant' })"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real one, small, with evaluations and a video of a moving square."""
    path = tmp_path_factory.mktemp("runs") / "run 1"
    tr.PPO("CartPole-v1", **SETTINGS, eval_every=2_500, eval_episodes=5, video_every=12).learn(run_dir=path, quiet=True)
    with Video(path / "videos" / "phase0020.mp4") as video:
        for i in range(60):
            frame = np.full((64, 96, 3), 240, np.uint8)
            frame[20:40, i : i + 20] = 40
            video.add(frame)
    return write_report([path])


@pytest.fixture(scope="module")
def comparison(run: Path) -> Path:
    runs = [run.parent]
    for seed in (2, 3):
        runs.append(run.parent.parent / f"run {seed}")
        tr.PPO("CartPole-v1", **SETTINGS, seed=seed).learn(run_dir=runs[-1], quiet=True)
    runs.append(run.parent.parent / "other")
    agent = tr.PPO("CartPole-v1", **SETTINGS, learning_rate=0.001).learn(run_dir=runs[-1], quiet=True)
    add_score(runs[-1], agent.steps, agent.evaluate(5))  # its only one
    return write_report(runs, run.parent.parent / "both.html")


@pytest.fixture(scope="module")
def look() -> Iterator[Open]:
    with chromium() as browser, opening(browser, ".plot[data-drawn]") as look_at:
        yield look_at


@pytest.fixture(scope="module")
def desktop(run: Path, look: Open) -> Opened:
    """The page of the run, with every curve drawn."""
    opened = look(run)
    draw_everything(opened.page)
    return opened


@pytest.fixture(scope="module")
def phone(run: Path, comparison: Path, look: Open) -> list[Any]:
    """Both pages, with every curve drawn."""
    pages = [look(path, width=360, height=740, touch=True).page for path in (run, comparison)]
    for page in pages:
        draw_everything(page)
    return pages


def draw_everything(page: Any) -> None:
    """Curves are drawn when they come into view."""
    for plot in page.query_selector_all(".plot"):
        plot.scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelectorAll('.plot:not([data-drawn])').length === 0")


def wide_plot(page: Any) -> dict[str, float]:
    """Where it is, once the page is at its top."""
    page.evaluate(TO_TOP)
    box: dict[str, float] = page.query_selector(".wide .plot").bounding_box()
    return box


def test_it_opens_from_disk_alone_and_draws_every_curve(run: Path, desktop: Opened) -> None:
    page, complaints, requests = desktop
    assert complaints == []
    assert requests == [run.absolute().as_uri()]
    plots = page.query_selector_all(".plot")
    assert len(plots) >= 10
    for plot in plots:
        lines = plot.query_selector_all(".scatterlayer path.js-line")
        assert any("L" in line.get_attribute("d") for line in lines), plot.get_attribute("aria-label")
    assert len(page.query_selector_all(".scatterlayer path.point")) == 2  # the evaluations
    assert page.inner_text("#status") == "finished"
    for link in page.query_selector_all("a[href^='#']"):
        assert page.query_selector(link.get_attribute("href")) is not None  # a curve


def test_hovering_shows_a_value(desktop: Opened) -> None:
    page, box = desktop.page, wide_plot(desktop.page)
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5)
    page.wait_for_selector(".wide .hoverlayer text")
    words = " ".join(text.text_content() for text in page.query_selector_all(".wide .hoverlayer text"))
    assert "episodic return" in words
    assert any(letter.isdigit() for letter in words)


def test_zooming_into_one_curve_zooms_into_all(desktop: Opened) -> None:
    page, box = desktop.page, wide_plot(desktop.page)
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=5)
    page.mouse.up()
    page.wait_for_function("() => [...document.querySelectorAll('.plot')].every(p => p.layout.xaxis.range[0] > 500)")
    ranges = page.evaluate("[...document.querySelectorAll('.plot')].map(p => p.layout.xaxis.range.join())")
    assert len(set(ranges)) == 1


def test_a_video_plays_while_it_is_in_view(run: Path, look: Open) -> None:
    page = look(run).page
    assert page.evaluate("document.querySelector('video').paused")
    page.query_selector("video").scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('video').currentTime > 0.2", timeout=10_000)
    assert page.evaluate("document.querySelector('video').videoWidth") == 3 * 200  # the oldest, of eight environments
    page.evaluate(TO_TOP)
    page.wait_for_function("() => document.querySelector('video').paused")


def test_a_video_waits_for_who_wants_no_motion_and_stays_as_somebody_left_it(run: Path, look: Open) -> None:
    page = look(run, calm=True).page
    page.query_selector("video").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    assert page.evaluate("document.querySelector('video').paused")
    page.click("video")  # which plays it, as ever
    page.wait_for_function("() => !document.querySelector('video').paused")
    page.evaluate(TO_TOP)
    page.wait_for_timeout(300)
    assert not page.evaluate("document.querySelector('video').paused")


def test_light_and_dark(run: Path, look: Open) -> None:
    page, complaints, _ = look(run)
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('.plot .xtick text').style.fill"
    light, light_ink = page.evaluate(background), page.evaluate(ink)
    page.click("#theme")
    page.wait_for_function(f"() => {background} !== '{light}' && {ink} !== '{light_ink}'")
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    dark = page.evaluate(background)
    page.reload()
    assert page.evaluate(background) == dark  # it is remembered
    assert complaints == []
    assert look(run, dark=True).page.evaluate(background) == dark


def test_it_fits_a_phone(phone: list[Any]) -> None:
    for page in phone:
        for summary in page.query_selector_all("summary"):
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_numbers_and_names_stay_on_one_line_on_a_phone(phone: list[Any]) -> None:
    height = """() => [...document.querySelectorAll('td, tbody th')].filter(cell => !cell.matches('.long')).map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        const tops = [...range.getClientRects()].map(box => box.bottom);
        return [cell.textContent, tops.length ? Math.max(...tops) - Math.min(...tops) : 0];
    })"""
    for page, expected in zip(phone, ("5,120", "learning_rate 0.015"), strict=True):
        found = page.evaluate(height)
        assert expected in [words for words, _ in found]
        assert [words for words, spread in found if spread > 12] == []
    box = page.query_selector("[aria-label='Runs'].scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")  # it scrolls by itself
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_a_comparison_shows_its_runs(comparison: Path, look: Open) -> None:
    page, complaints, requests = look(comparison)
    draw_everything(page)
    assert complaints == []
    assert requests == [comparison.absolute().as_uri()]
    words = page.inner_text("main")
    for expected in ("run 1", "run 2", "run 3", "other", "learning_rate 0.015", "learning_rate 0.001", "mean"):
        assert expected in words, expected
    legend = [text.text_content() for text in page.query_selector_all(".wide .legendtext")]
    assert legend == ["learning_rate 0.015", "learning_rate 0.001"]
    assert len(page.query_selector_all(".wide .fills path.js-fill")) >= 1  # the band over seeds
    assert len(page.query_selector_all("[id$=eval-episodic-return] path.point")) == 2 + 1  # of the runs that have any
    page.click("a[href='run%201/report.html']")
    page.wait_for_selector("#status")


def test_hostile_names_run_nothing(run: Path, tmp_path: Path, look: Open) -> None:
    shutil.copytree(run.parent, tmp_path / "x")
    attack = "</script><img src=x onerror=document.title='hacked'><svg onload=document.title='hacked'>"
    for name in ("metrics.jsonl", "about.json"):
        content = (tmp_path / "x" / name).read_text()
        content = content.replace("losses/entropy", attack).replace("plan: ", attack)
        (tmp_path / "x" / name).write_text(content)
    page, complaints, requests = look(write_report([tmp_path / "x"]))
    draw_everything(page)
    assert attack in page.inner_text("main")
    assert "hacked" not in page.title()
    assert complaints == []
    assert len(requests) == 1


# a sweep ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    words = "sweep CartPole-v1 --trials 6 --total-timesteps 1024 --num-envs 8 --evaluations 2 --seeds-per-trial 1"
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--quiet", "--eval-episodes", "2", "--sweep-dir", str(folder)])
    assert not stop.value.code
    return folder / "sweep.html"


@pytest.mark.parametrize(("width", "dark", "touch"), [(1200, True, False), (390, False, True)])
def test_the_page_of_a_sweep_draws_the_studys_own_figures(
    swept: Path, look: Open, width: int, dark: bool, touch: bool
) -> None:
    page, complaints, requests = look(swept, width, 2000, dark, touch)
    draw_everything(page)
    assert complaints == []
    assert requests == [swept.absolute().as_uri()]
    assert len(page.query_selector_all("#study .plot")) >= 5
    assert len(page.query_selector_all("#slices .plot")) == 12
    for plot in page.query_selector_all(".plot"):
        marks = plot.query_selector_all(".scatterlayer path, .barlayer path, .contourlayer path")
        assert marks, plot.get_attribute("aria-label")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(page.query_selector_all("#trials tbody tr")) == 6
    assert len(page.query_selector_all("#trials tr.marked")) == 1
    shown = page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    page.click("#theme")
    changed = f"() => getComputedStyle(document.querySelector('.xtick text')).fill !== '{shown}'"
    page.wait_for_function(changed)  # the figures follow
