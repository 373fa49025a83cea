"""The player of `tightrope play`, as a page of its own and as a part of a report. Its data are lists of operations, made by
tightrope/play; the page's scripts run them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import printable
from . import html

SCRIPTS = ("play_program.js", "play_picture.js", "play_player.js", "play_controls.js")
NOTE = "The trained policy, live in its environment: push it, act yourself, change the physics."


def player(data: object, keys: str) -> str:
    """The player's HTML. It listens to keys on the whole `page`, or only while it has the focus."""
    return (
        f"<style>{html.asset('play.css')}</style>\n"
        f'<div id="play" class="play" data-keys="{keys}" tabindex="-1"><noscript>Playing needs JavaScript.</noscript></div>\n'
        f"{html.data_block('play-data', data)}\n{html.script(chr(10).join(map(html.asset, SCRIPTS)))}"
    )


def play_section(data: object) -> str:
    """The part of a report; empty without data."""
    return "" if data is None else html.section("play-it", "Play", player(data, "focus"), NOTE)


def play_page(data: object, titles: Sequence[str]) -> str:
    """The whole page."""
    title = printable(", ".join(dict.fromkeys(title.partition(" · ")[0] for title in titles)))
    header = html.page_header(title, "play", f"{NOTE} Written {html.now()}.")
    content = f'<main><section aria-label="Player">{player(data, "page")}</section></main>'
    footer = html.footer("Sliders and pushes change only this page.")
    return html.whole_page(f"{title} · play", f"{header}\n{content}\n{footer}")
