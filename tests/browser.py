"""Pages in a real browser, for tests: from disk, with no network."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Opened(NamedTuple):
    page: Any
    complaints: list[str]  # of the console, and errors
    requests: list[str]


Open = Callable[..., Opened]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; the test is left out where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, headless=True, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opening(browser: Any, ready: str) -> Iterator[Open]:
    """A function that opens a page and waits until an element is there. The pages are closed at the end."""
    contexts = []

    def look_at(
        path: Path, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False, calm: bool = False
    ) -> Opened:
        wishes = {"color_scheme": "dark" if dark else "light", "reduced_motion": "reduce" if calm else "no-preference"}
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, has_touch=touch, is_mobile=touch, **wishes)
        contexts.append(context)
        page, complaints, requests = context.new_page(), list[str](), list[str]()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        context.route(
            "**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort()
        )
        page.goto(path.absolute().as_uri())
        page.wait_for_selector(ready, timeout=20_000)
        return Opened(page, complaints, requests)

    yield look_at
    for context in contexts:
        context.close()
