"""Building blocks of report pages: escaped text, numbers, tables, sections, and the page around them.

A page is one file that needs no network: it contains plotly.js, taken from the plotly package and compressed. plotly itself is
never imported.
"""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = Path("package_data") / "plotly.min.js"
NO_NUMBER = "\u2013"
FASTEST = 1  # of gzip's levels: 50 ms, a third of the usual one, for a page that is a tenth larger
REFRESH = 30  # seconds between reloads of a running run's page
LONG_CELL = 32  # characters; a longer cell may have several lines
PLAY_SCRIPTS = ("play_program.js", "play_picture.js", "play_player.js", "play_controls.js")
PLAY_NOTE = "The trained policy, live in its environment: push it, act yourself, change the physics."
NONCE = secrets.token_urlsafe(16)  # of the scripts in this process's pages
_packing = threading.Lock()

Row = Sequence[str]  # cells of a table


def text(value: object) -> str:
    """Escaped for HTML."""
    return html.escape(str(value), quote=True)


def sentence(value: object) -> str:
    """Escaped for HTML, with `code` between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def format_number(value: float | None, digits: int = 4) -> str:
    """For people: 12,345 or 0.01234, never 1.2e+04."""
    if value is None or not math.isfinite(value):
        return NO_NUMBER
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.2e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 8)}f}"


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def format_setting(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or NO_NUMBER
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items()) or NO_NUMBER
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NO_NUMBER if value is None else str(value)


def short_value(value: object) -> str:
    """Numbers that were drawn at random, with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else format_setting(value)


def status_words(status: str) -> str:
    return "finished" if status == "ended" else status


# parts of a page ------------------------------------------------------------------------------------------------------


def table(caption: str, head: Sequence[str], rows: Iterable[Row], marked: Sequence[bool] = ()) -> str:
    """Cells are HTML; the first cell of a row is its name. `marked` rows are highlighted."""
    top = "".join(f'<th scope="col"{cell_class(cell)}>{cell}</th>' for cell in head)
    lines = []
    for i, (first, *rest) in enumerate(rows):
        mark = ' class="marked"' if i < len(marked) and marked[i] else ""
        cells = "".join(f"<td{cell_class(cell)}>{cell}</td>" for cell in rest)
        lines.append(f'<tr{mark}><th scope="row"{cell_class(first)}>{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def cell_class(cell: str) -> str:
    """Only long text may be broken into lines; where numbers and names are too wide, the table scrolls."""
    content = html.unescape(re.sub(r"<[^>]*>", "", cell))
    return ' class="long"' if len(content) > LONG_CELL else ""


def section(name: str, title: str, content: str, note: str = "") -> str:
    says = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{says}{content}</section>'


def settings_table(caption: str, head: Sequence[str], rows: Iterable[Row], marked: Sequence[bool] = ()) -> str:
    return f'<div class="settings">{table(caption, head, rows, marked)}</div>'


def more_note(left: int, where: str) -> str:
    """Where the rows are for which a table has no room."""
    return f'<p class="note">The other {left} are in {where}.</p>' if left > 0 else ""


def figure(number: int, name: str, title: str, says: str, label: str, part: str, style: str = "") -> str:
    """A card into which the page's script draws the chart of that number. `label` is for those who do not see it. Charts of
    the same `part` of the page zoom together."""
    return (
        f'<figure class="chart card {style}" id="{text(name)}">'
        f"<figcaption><h3>{text(title)}</h3><p>{sentence(says)}</p></figcaption>"
        f'<div class="plot" data-chart="{number}" data-part="{text(part)}" role="img" aria-label="{text(label)}"></div>'
        "</figure>"
    )


def figures(cards: Iterable[str]) -> str:
    """Side by side, but for those in the style "wide"."""
    return f'<div class="grid">{"".join(cards)}</div>'


def facts_list(facts: dict[str, str]) -> str:
    items = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{items}</dl>'


def command_box(command: str) -> str:
    copy = '<button class="copy" type="button">Copy</button>'
    return f'<div class="command"><code>{text(command)}</code>{copy}</div>'


def tiles(cells: Iterable[tuple[str, str, str]]) -> str:
    """(title, number, note) of the numbers that people look for first."""
    inside = "".join(f'<div class="tile"><dt>{a}</dt><dd>{b}<small>{c}</small></dd></div>' for a, b, c in cells)
    return f'<dl class="tiles">{inside}</dl>'


def page_header(title: str, small: str, sub: str, pill: tuple[str, str] | None = None, more: str = "") -> str:
    """`pill` is (style, status); `sub` and `more` are HTML."""
    status = "" if pill is None else f'<span class="pill {text(pill[0])}" id="status">{text(pill[1])}</span>\n'
    return f"""<header class="top">
<div class="bar"><h1>{text(title)} <small>{text(small)}</small></h1>
{status}<button id="theme" class="push" type="button" aria-label="dark colours">Dark</button></div>
<p class="sub">{sub}</p>{more}
</header>"""


def now() -> str:
    return text(time.strftime("%Y-%m-%d %H:%M:%S"))


def footer(hint: str) -> str:
    return f"<footer><p>{text(hint)} Made by Tightrope; this file needs no network and no server.</p></footer>"


def whole_page(title: str, body: str) -> str:
    """A whole page. Only scripts with the nonce may run, and nothing may be fetched."""
    policy = (
        f"default-src 'none'; script-src 'nonce-{NONCE}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "media-src 'self' data: blob: file:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="tightrope">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>{asset("page.css")}</style>
{script(asset("theme.js"))}
</head>
<body>
{body}
</body>
</html>
"""


def script(code: str) -> str:
    return f'<script nonce="{NONCE}">{code}</script>'


def document(title: str, body: Iterable[str], charts: Sequence[Mapping[str, object]], live: bool = False) -> str:
    """A page with charts. A `live` page says how old it is, and reloads itself every so many seconds."""
    data = {"charts": charts, "live": live, "written": time.time(), "every": REFRESH}
    library = f'<script type="text/plain" id="library">{packed_library()}</script>'
    return whole_page(title, "\n".join([*body, data_block("data", data), library, script(asset("page.js"))]))


def data_block(name: str, value: object) -> str:
    """JSON for the page's script. It contains no '<', so that it cannot end early."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{name}">{content}</script>'


def player(data: object, keys: str) -> str:
    """The player of `tightrope play`, whose data tightrope/play makes. It listens to keys on the whole `page`, or only while
    it has the focus."""
    return (
        f"<style>{asset('play.css')}</style>\n"
        f'<div id="play" class="play" data-keys="{keys}" tabindex="-1"><noscript>Playing needs JavaScript.</noscript></div>\n'
        f"{data_block('play-data', data)}\n{script(chr(10).join(map(asset, PLAY_SCRIPTS)))}"
    )


def play_section(data: object) -> str:
    """The part of a report; empty without data."""
    return "" if data is None else section("play-it", "Play", player(data, "focus"), PLAY_NOTE)


@lru_cache
def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


# plotly.js --------------------------------------------------------------------------------------------------------------


def packed_library() -> str:
    """plotly.js as gzip in base64, made once in a process. A second thread waits for the first one to make it."""
    with _packing:
        return _packed_library()


@lru_cache(maxsize=1)
def _packed_library() -> str:
    return base64.b64encode(gzip.compress(installed_library().read_bytes(), FASTEST, mtime=0)).decode()


def installed_library() -> Path:
    """The path of plotly.js; RuntimeError if plotly is not installed."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / LIBRARY).is_file():
            return path
    raise RuntimeError("report.html needs plotly, which is not installed: pip install plotly")
