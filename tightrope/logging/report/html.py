"""Text to HTML, with nothing in it that could be taken for more than text; and the frame that every page has."""

from __future__ import annotations

import html
import json
import math
import re
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .library import packed

HERE = Path(__file__).parent
NOTHING = "\u2013"  # where there is no number
LONG = 32  # letters of a cell, beyond which it may have several lines


def text(value: object) -> str:
    """Anything, as it is to be read."""
    return html.escape(str(value), quote=True)


def data_block(name: str, value: Any) -> str:
    """JSON that a script of the page reads. No '<' is in it, so that it cannot end before its end."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{name}">{content}</script>'


def figure_of(value: float | None, digits: int = 4) -> str:
    """A number for people: 12,345 or 0.01234, never 1.2e+04."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.2e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 8)}f}"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    """Cells are HTML; the first of a row is its name. `marked` rows stand out."""
    top = "".join(f'<th scope="col"{lines_of(cell)}>{cell}</th>' for cell in head)
    lines = []
    for i, (first, *rest) in enumerate(rows):
        mark = ' class="marked"' if i < len(marked) and marked[i] else ""
        cells = "".join(f"<td{lines_of(cell)}>{cell}</td>" for cell in rest)
        lines.append(f'<tr{mark}><th scope="row"{lines_of(first)}>{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def lines_of(cell: str) -> str:
    """A number or a name stays on one line, and the table scrolls where it is too wide; only a sentence is broken."""
    words = html.unescape(re.sub(r"<[^>]*>", "", cell))
    return ' class="long"' if len(words) > LONG else ""


def section(name: str, title: str, content: str, note: str = "") -> str:
    says = f'<p class="note">{note}</p>' if note else ""
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{says}{content}</section>'


def document(title: str, body: str, data: dict[str, Any]) -> str:
    """A whole page in one file. What may run in it is what has the nonce; nothing may be fetched from anywhere."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src data: blob:; "
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
<script nonce="{nonce}">{asset("theme.js")}</script>
</head>
<body>
{body}
{data_block("data", data)}
<script type="text/plain" id="library">{packed()}</script>
<script nonce="{nonce}">{asset("page.js")}</script>
</body>
</html>
"""


@lru_cache
def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
