"""Make the pictures of the README and the pages again: docs/images/learning.gif and *.png, but for sweep.png.

    python docs/make/pictures.py

Trains what they show under build/pictures, once. Needs the dev extra, chromium and Pillow.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
RUNS, IMAGES = ROOT / "build" / "pictures", ROOT / "docs" / "images"
SHORT = 14_336  # steps of the less trained of two policies
GIF_WIDTH, GIF_FPS, GIF_COLORS = 480, 20, 48


def tightrope(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "tightrope", *words], cwd=RUNS, check=True)


def trained(name: str, *words: str) -> Path:
    if not (RUNS / name).exists():
        tightrope("train", *words, "--run-dir", name, "--quiet")
    return RUNS / name


def frames(film: Path) -> list[Image.Image]:
    with av.open(str(film)) as file:
        return [frame.to_image() for frame in file.decode(video=0)]


def learning_gif(run: Path) -> None:
    """The rollouts at the beginning and at the end of a run, one after the other."""
    films = sorted((run / "videos").glob("*.mp4"))
    shown = []
    for film in (films[0], films[-1]):
        pictures = frames(film)
        pictures = [pictures[min(i, len(pictures) - 1)] for i in range(3 * GIF_FPS)]
        size = GIF_WIDTH, round(GIF_WIDTH * pictures[0].height / pictures[0].width)
        shown += [picture.resize(size, Image.Resampling.LANCZOS) for picture in pictures]
    colors = beside(shown[::10]).quantize(GIF_COLORS, method=Image.Quantize.MAXCOVERAGE)
    small = [picture.quantize(palette=colors, dither=Image.Dither.NONE) for picture in shown]
    small[0].save(
        IMAGES / "learning.gif", save_all=True, append_images=small[1:], duration=1000 // GIF_FPS, loop=0, optimize=True
    )


def beside(pictures: list[Image.Image]) -> Image.Image:
    """One picture of many, for colours that suit them all."""
    both = Image.new("RGB", (pictures[0].width * len(pictures), pictures[0].height))
    for i, picture in enumerate(pictures):
        both.paste(picture, (i * picture.width, 0))
    return both


def still(film: Path, moment: float, name: str) -> None:
    pictures = frames(film)
    pictures[round(moment * (len(pictures) - 1))].quantize(64).save(IMAGES / name, optimize=True)


def shot(
    browser: Any, page: Path, name: str, width: int, height: int, dark: bool = False, scale: int = 1,
    first: Callable[[Any], None] = lambda page: None,
) -> None:  # fmt: skip
    """A page as a browser shows it, after `first` has been done to it."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", device_scale_factor=scale
    )
    opened = context.new_page()
    opened.goto(page.as_uri())
    opened.wait_for_timeout(2000)
    first(opened)
    opened.screenshot(path=str(IMAGES / name))
    context.close()
    Image.open(IMAGES / name).convert("RGB").quantize(128).save(IMAGES / name, optimize=True)


def play_on(page: Any) -> None:
    page.wait_for_timeout(3000)
    page.evaluate("tightropePlay.settings.running = false")
    page.wait_for_timeout(300)


def harder(page: Any) -> None:
    """A longer pole and twice the gravity."""
    page.evaluate("for (const s of document.querySelectorAll('details')) s.open = s.innerText.includes('physics')")
    for label, factor in (("gravity", 2), ("half_length", 1.5)):
        slider = page.locator(f'input[aria-label="{label}"]')
        slider.evaluate("(s, x) => { s.value = String(x * s.value); s.dispatchEvent(new Event('input')) }", factor)
    page.wait_for_timeout(1500)
    play_on(page)


def main() -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    pole = trained("pole", "CartPole-v1", "--seed", "1")
    trained("short", "CartPole-v1", "--seed", "1", "--total-timesteps", str(SHORT))
    unscaled = trained("unscaled", "Pendulum-v1", "--no-norm-reward", "--total-timesteps", "100000")
    watched = "CartPole-v1", "--seeds", "451-455", "--total-timesteps", "100000", "--eval-every", "20000"
    fast = trained("preset", *watched, "--jobs", "1")
    slow = trained("slow", *watched, "--jobs", "1", "--learning-rate", "5e-4")
    tightrope(
        "report",
        *(str(run) for folder in (fast, slow) for run in sorted(folder.glob("seed*"))),
        "--out",
        "compared.html",
    )
    tightrope("play", "pole", "--out", "play.html")
    tightrope("play", "pole", "short", "--out", "play-two.html")
    learning_gif(fast / "seed0451")
    still(sorted((unscaled / "videos").glob("*.mp4"))[1], 0.4, "pendulum.png")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox"])
        shot(browser, pole / "report.html", "report.png", 1200, 980)
        shot(browser, RUNS / "compared.html", "report-comparison.png", 1200, 980)
        shot(browser, unscaled / "report.html", "report-dark.png", 1200, 980, dark=True)
        shot(browser, unscaled / "report.html", "report-phone.png", 390, 844, scale=2)
        shot(browser, RUNS / "play.html", "play.png", 1100, 720, first=play_on)
        shot(browser, RUNS / "play-two.html", "play-two.png", 1100, 820, dark=True, first=harder)
        browser.close()


if __name__ == "__main__":
    main()
