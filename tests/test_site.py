"""The site: its pages are described truly to language models, its gallery is whole, and it works from disk."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_helpers import loaded

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


hooks = loaded(DOCS / "make" / "hooks.py")
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


@pytest.mark.parametrize("page", [page for _, page in hooks.pages(NAV)])
def test_a_page_begins_by_saying_what_it_is_about(page):
    heading, paragraph, *_ = (DOCS / page).read_text().split("\n\n")
    assert heading.startswith("# ")
    assert re.match(r"[\w`\[]", paragraph), "a paragraph: no list, table, code or heading"
    assert not paragraph.startswith("```")
    assert paragraph.rstrip().endswith((".", ".)"))


def test_llms_txt_names_every_page_by_its_heading():
    text = hooks.llms_text("Tightrope", NAV, DOCS)
    assert text.startswith("# Tightrope\n\n> ")
    for section, page in hooks.pages(NAV):
        heading = (DOCS / page).read_text().splitlines()[0].removeprefix("# ")
        address = re.escape(page.removesuffix(".md"))
        assert re.search(rf"^- \[{re.escape(heading)}\]\({address}\.(md|html)\): \S", text, re.MULTILINE)
        assert f"\n## {section}\n" in text


def test_every_policy_of_the_gallery_has_its_picture_and_command():
    exhibits = loaded(DOCS / "make" / "gallery.py").EXHIBITS
    text = (DOCS / "gallery.md").read_text()
    shown = re.findall(r"images/gallery/([\w-]+)\.png.*?tightrope train (\S+)", text, re.DOTALL)
    assert shown == [(name, exhibit.env) for name, exhibit in exhibits.items()]
    assert sum(path.stat().st_size for path in (DOCS / "images" / "gallery").iterdir()) < 300_000


def curves(suite: str, task: str) -> list[dict[float, float]]:
    """Return in training by share of the run, of every run with the newest settings."""
    lines = (ROOT / "benchmarks" / "results" / f"{suite}.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["task"] == task]
    rows = [row for row in rows if row["digest"] == rows[-1]["digest"]]
    return [{i / len(row["curve"]): value for i, (_, value) in enumerate(row["curve"], 1)} for row in rows]


def test_the_walkthroughs_say_what_was_measured():
    hopper, breakout = curves("mujoco", "Hopper-v5"), curves("atari", "ALE/Breakout-v5")
    table = re.findall(
        r"^\| [\d,]+ \| \d+ \| ([\d,]+) \| ([\d,]+) to ([\d,]+) \|$", (DOCS / "solve-hopper.md").read_text(), re.M
    )
    for share, row in zip((0.1, 0.24, 0.5, 0.76, 1.0), table, strict=True):
        seeds = [curve[share] for curve in hopper]
        assert [f"{value:,.0f}" for value in (sum(seeds) / len(seeds), min(seeds), max(seeds))] == list(row)
    table = re.findall(r"^\| [\d.]+ million \| [\d.]+ \| (\d+) \|$", (DOCS / "solve-breakout.md").read_text(), re.M)
    assert [f"{breakout[0][share]:.0f}" for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)] == table


def test_a_picture_becomes_two_films_where_they_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "FILMS", tmp_path)
    still = '<p><img alt="a pole" src="images/gallery/pole.png" /></p>'
    assert "<video" not in hooks.STILL.sub(hooks.exhibit, still)
    for name in ("pole.mp4", "pole-before.mp4", "pole.html", "pole.txt"):
        (tmp_path / name).write_text("500 < 501")
    shown = hooks.STILL.sub(hooks.exhibit, still)
    assert re.findall(r'src="([^"]+)"', shown) == ["gallery/pole-before.mp4", "gallery/pole.mp4"]
    assert re.findall(r'href="([^"]+)"', shown) == ["gallery/pole.html"]
    assert "500 &lt; 501" in shown


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("material")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_builds_and_takes_nothing_from_the_network(site):
    for page in site.rglob("*.html"):
        if page.parent.name == "gallery":  # pages of policies, which are tested where they are made
            continue
        taken = re.findall(
            r"<(?:script|img|link|video|source|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\" >]+)", page.read_text()
        )
        assert not taken, page.name
    for _, page in hooks.pages(NAV):
        assert (site / page).with_suffix(".html").exists()
    for target in re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text()):
        assert (site / target).exists(), target


def test_the_search_works_from_disk(site):
    playwright = pytest.importorskip("playwright.sync_api")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, headless=True, args=["--no-sandbox"])
        page, complaints, requests = chromium.new_page(), [], []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("clipped surrogate")
        page.wait_for_selector(".md-search-result__article")
        assert "The bug museum" in page.inner_text(".md-search-result__list")
        assert not complaints
        assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)
        chromium.close()
