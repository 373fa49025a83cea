"""Hooks of mkdocs: llms.txt and the pages as Markdown for language models, films and play pages for the gallery."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILMS = ROOT / "build" / "gallery"  # what docs/make/gallery.py makes
STILL = re.compile(r'<p><img alt="([^"]*)" src="images/gallery/([\w-]+)\.png" ?/></p>')


# pages for language models ---------------------------------------------------------------------------------------------


def pages(nav: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    """(section, file) of every page, in the order of the navigation."""
    for entry in nav:
        for title, inside in entry.items():
            if isinstance(inside, str):
                yield section, inside
            else:
                yield from pages(inside, title)


def title_and_summary(markdown: str) -> tuple[str, str]:
    """The heading of a page, and its first paragraph without links."""
    heading, paragraph, *_ = markdown.split("\n\n")
    return heading.removeprefix("# ").strip(), " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph).split())


def is_generated(page: str) -> bool:
    """Whether the page is made of docstrings, so that its Markdown says little."""
    return page.startswith("reference/")


def llms_text(name: str, nav: list[Any], docs: Path) -> str:
    """llms.txt: what the project is, and each page with its first paragraph."""
    lines = [f"# {name}", "", f"> {title_and_summary((docs / 'index.md').read_text())[1]}"]
    lines += ["", "All pages in one file: [llms-full.txt](llms-full.txt)"]
    before = None
    for section, page in pages(nav):
        if section != before:
            lines += ["", f"## {section}", ""]
        title, summary = title_and_summary((docs / page).read_text())
        address = page.replace(".md", ".html") if is_generated(page) else page
        lines.append(f"- [{title}]({address}): {summary}")
        before = section
    return "\n".join(lines) + "\n"


def on_post_build(config: Any) -> None:
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    (site / "llms.txt").write_text(llms_text(config.site_name, config.nav, docs))
    texts = {page: (docs / page).read_text() for _, page in pages(config.nav) if not is_generated(page)}
    for page, text in texts.items():
        (site / page).write_text(text)
    (site / "llms-full.txt").write_text("\n\n".join(f"<!-- {page} -->\n\n{text}" for page, text in texts.items()))


# the gallery -----------------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """The films and play pages that are there become files of the site."""
    from mkdocs.structure.files import File

    for path in sorted(FILMS.glob("*.*")):
        if path.suffix in (".mp4", ".html"):
            files.append(File.generated(config, f"gallery/{path.name}", abs_src_path=str(path)))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return STILL.sub(exhibit, html)


def exhibit(still: re.Match[str]) -> str:
    """A picture of the gallery: two films where they are there, with the score, the report and a page to play on."""
    words, name = still.groups()
    if not (FILMS / f"{name}.txt").exists():  # which is written last
        return f'<figure class="exhibit"><img alt="{words}" src="images/gallery/{name}.png"></figure>'
    films = "".join(
        f'<video src="gallery/{film}.mp4" title="{words}" autoplay loop muted playsinline controls></video>'
        for film in (f"{name}-before", name)
    )
    links = [(f"{name}.html", "Play it"), (f"{name}-report.html", "Report of the run")]
    buttons = "".join(
        f'<a class="md-button" href="gallery/{target}">{label}</a>'
        for target, label in links
        if (FILMS / target).exists()
    )
    score = escape((FILMS / f"{name}.txt").read_text().strip())
    return f'<figure class="exhibit"><div>{films}</div><figcaption>{score}</figcaption><p>{buttons}</p></figure>'
