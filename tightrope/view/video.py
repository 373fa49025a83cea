"""Frames to an H.264 MP4 that every browser plays, encoded as they come."""

from __future__ import annotations

import base64
import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import plural

# x264 at its fastest, with the three of its tools that make a drawing smaller by half in next to no time
QUALITY = {"preset": "ultrafast", "crf": "23", "x264-params": "cabac=1:bframes=3:aq-mode=1"}
BT601, LIMITED = 6, 1  # the colours that OpenCV converts to; larger pictures would be taken for BT.709
LOOPING = "autoplay muted loop playsinline controls"
PAGE = """\
<!doctype html>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  html {{ color-scheme: light dark; font: 14px system-ui, sans-serif; }}
  body {{ margin: 0; min-height: 100vh; display: grid; place-content: center; justify-items: center; gap: 8px; }}
  video {{ max-width: 96vw; max-height: 90vh; border-radius: 6px; }}
</style>
<video src="{source}" {looping}></video>
<div>{title}</div>
"""


class Video:
    """A context that writes frames (H, W, 3) to `path`; the file appears whole at the end, or not at all."""

    def __init__(self, path: Path, fps: int = 30, threads: int = 0) -> None:
        """`threads` of the encoder; 0 for as many as there are cores."""
        self.path, self.fps, self.threads = path, fps, threads
        self.temporary = path.with_name(path.name + ".tmp")
        self.container: Any = None

    def __enter__(self) -> Video:
        import av

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.container = av.open(str(self.temporary), "w", format="mp4", options={"movflags": "faststart"})
        self.stream = self.container.add_stream("libx264", rate=self.fps, options=QUALITY)
        self.stream.pix_fmt = "yuv420p"
        self.stream.codec_context.colorspace, self.stream.codec_context.color_range = BT601, LIMITED
        self.stream.codec_context.thread_count = self.threads
        self.frames = 0
        return self

    def add(self, frame: np.ndarray) -> None:
        import av
        import cv2

        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # yuv420p wants even sides
        if not self.frames:
            self.stream.width, self.stream.height = width, height
        self.frames += 1
        even = np.ascontiguousarray(frame[:height, :width])
        planes: Any = cv2.cvtColor(
            even, cv2.COLOR_RGB2YUV_I420
        )  # a quarter of the time that FFmpeg's own conversion takes
        self.container.mux(self.stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.container.mux(self.stream.encode())
                self.container.close()
                self.temporary.replace(self.path)
        finally:
            if self.temporary.exists():
                with contextlib.suppress(OSError):  # of a full disk, whose first complaint is the one to hear
                    self.container.close()
                self.temporary.unlink(missing_ok=True)


def page_beside(path: Path, title: str) -> Path:
    """An HTML page that plays a video over and over, under the same name."""
    from html import escape

    page = path.with_suffix(".html")
    page.write_text(PAGE.format(title=escape(title), source=escape(path.name), looping=LOOPING))
    return page


def phases_in_words(first: int, last: int) -> str:
    return f"phases {first:,}-{last:,}" if first < last else f"phase {last:,}"


def first_phase(path: Path) -> int | None:
    """Of a video, as the page beside it has it."""
    try:
        with path.with_suffix(".html").open(encoding="utf-8", errors="replace") as page:
            found = re.search(r", phases? ([\d,]{1,15})[^<]*</title>", page.read(4096))
    except OSError:
        return None
    return None if found is None else int(found[1].replace(",", "") or 0)


class Clip:
    """A video in memory, which a notebook shows."""

    def __init__(self, mp4: bytes, frames: int) -> None:
        self.mp4, self.frames = mp4, frames

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        path = Path(path)
        path.write_bytes(self.mp4)
        return path

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.mp4).decode()
        return f'<video src="data:video/mp4;base64,{data}" {LOOPING} style="max-width: 100%"></video>'

    def __repr__(self) -> str:
        return f"a video of {plural(self.frames, 'frame')}: it is shown in a notebook, .save(path) writes it"
