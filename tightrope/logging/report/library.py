"""The drawing library, as it goes into a page: plotly.js from the plotly package, compressed, in letters.

It is packed once for each version of it, which takes half a second, and then kept in the user's cache. plotly itself is never
imported: its file is all that is wanted.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import importlib.util
import os
import tempfile
import threading
import zlib
from functools import lru_cache
from pathlib import Path

FILE = Path("package_data") / "plotly.min.js"


_one_at_a_time = threading.Lock()


def packed() -> str:
    """gzip in base64. Who comes while it is being made waits for it."""
    with _one_at_a_time:
        return _packed()


@lru_cache(maxsize=1)
def _packed() -> str:
    source = installed()
    stat = source.stat()
    kept = cache() / f"plotly-{stat.st_size}-{int(stat.st_mtime)}.gz"
    library = source.read_bytes()
    try:
        content = kept.read_bytes()
        whole = gzip.decompress(content) == library
    except (OSError, EOFError, zlib.error):  # not there, or damaged: a crash can leave it empty
        whole = False
    if not whole:
        content = gzip.compress(library, 6, mtime=0)
        keep(kept, content)
    return base64.b64encode(content).decode()


def installed() -> Path:
    """Where the library lies; RuntimeError if it does not."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    raise RuntimeError("report.html needs plotly, which is not installed: pip install plotly")


def cache() -> Path:
    """The directory for what can be made again."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if os.path.isabs(chosen) else Path("~/.cache").expanduser()
    return base / "tightrope"


def keep(path: Path, content: bytes) -> None:
    """For the next process, if the disk takes it: whole, or not at all."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=path.parent)  # several processes may be at it
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
