"""The player of `tightrope play`, as a page of its own and as a part of a report. Its data are lists of operations, made by
tightrope/play; the page's scripts run them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import printable
from . import html
from .html import NONCE, asset, data_block, section, text

SCRIPTS = ("play_program.js", "play_picture.js", "play_player.js", "play_controls.js")
NOTE = "The trained policy, live in its environment: push it, act yourself, change the physics."


def player(data: object, keys: str) -> str:
    """The player's HTML. It listens to keys on the whole `page`, or only while it has the focus."""
    scripts = "\n".join(map(asset, SCRIPTS))
    return (
        f"<style>{asset('play.css')}</style>\n"
        f'<div id="play" class="play" data-keys="{keys}" tabindex="-1"><noscript>Playing needs JavaScript.</noscript></div>\n'
        f'{data_block("play-data", data)}\n<script nonce="{NONCE}">{scripts}</script>'
    )


def play_section(data: object) -> str:
    """The part of a report; empty without data."""
    return "" if data is None else section("play-it", "Play", player(data, "focus"), NOTE)


def play_page(data: object, titles: Sequence[str]) -> str:
    """The whole page."""
    title = printable(", ".join(dict.fromkeys(title.partition(" · ")[0] for title in titles)))
    policy = (
        f"default-src 'none'; script-src 'nonce-{NONCE}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    header = html.page_header(title, "play", f"{NOTE} Written {html.now()}.")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="tightrope">
<link rel="icon" href="data:,">
<title>{text(title)} · play</title>
<style>{asset("page.css")}</style>
<script nonce="{NONCE}">{asset("theme.js")}</script>
</head>
<body>
{header}
<main><section aria-label="Player">{player(data, "page")}</section></main>
{html.footer("Sliders and pushes change only this page.")}
</body>
</html>
"""
