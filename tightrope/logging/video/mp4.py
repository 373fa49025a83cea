"""Frames to an H.264 MP4 that every browser plays, encoded as they come."""

from __future__ import annotations

import base64
import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import plural
from ...files import Draft, Place, Unreadable, address

# the fastest preset, with three options that halve the size of a drawing at almost no cost
ENCODER = {"preset": "ultrafast", "crf": "23", "x264-params": "cabac=1:bframes=3:aq-mode=1"}
BT601, LIMITED = 6, 1  # OpenCV's colour conversion; players assume BT.709 for large pictures otherwise
MAX_PAGE = 1 << 16  # bytes of a video's page
LOOPING = "autoplay muted loop playsinline controls"
VIDEO_PAGE = """\
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
    """A context that writes frames (H, W, 3) to `place`; the file appears whole at the end, or not at all."""

    def __init__(self, place: Place | Path, fps: int = 30, threads: int = 0) -> None:
        """`threads` of the encoder; 0 for as many as there are cores."""
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True)
        self.place = Place.of(place) if isinstance(place, Path) else place
        self.fps, self.threads = fps, threads
        self.container: Any = None

    def __enter__(self) -> Video:
        import av

        self.draft = Draft(self.place)
        where = address(self.draft.file, self.draft.folder / self.draft.name)
        try:
            self.container = av.open(where, "w", format="mp4", options={"movflags": "faststart"})
        except BaseException:
            self.draft.discard()
            raise
        self.stream = self.container.add_stream("libx264", rate=self.fps, options=ENCODER)
        self.stream.pix_fmt = "yuv420p"
        self.stream.codec_context.colorspace, self.stream.codec_context.color_range = BT601, LIMITED
        self.stream.codec_context.thread_count = self.threads
        self.frames = 0
        return self

    def add(self, frame: np.ndarray) -> None:
        import av
        import cv2

        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # yuv420p needs even sides
        if not self.frames:
            self.stream.width, self.stream.height = width, height
        self.frames += 1
        even = np.ascontiguousarray(frame[:height, :width])
        planes: Any = cv2.cvtColor(even, cv2.COLOR_RGB2YUV_I420)  # four times as fast as FFmpeg's
        self.container.mux(self.stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.container.mux(self.stream.encode())
                self.container.close()
                self.draft.publish(self.place.name, wait=False)
        finally:
            if self.draft.pending:
                with contextlib.suppress(OSError):  # the first error is the one to raise
                    self.container.close()
            self.draft.discard()


def page_path(video: Place) -> Place:
    """The page beside a video, with the same name."""
    return video.parent / Path(video.name).with_suffix(".html").name


def write_video_page(video: Place, title: str) -> None:
    """Write an HTML page beside a video that plays it in a loop."""
    from html import escape

    page = VIDEO_PAGE.format(title=escape(title), source=escape(video.name), looping=LOOPING)
    page_path(video).write(page.encode("utf-8", "replace"), wait=False)


def phase_range(first: int, last: int) -> str:
    return f"phases {first:,}-{last:,}" if first < last else f"phase {last:,}"


def first_phase(video: Place) -> int | None:
    """The first phase of a video, from the page beside it."""
    try:
        page = page_path(video).read(MAX_PAGE)
    except Unreadable:
        return None
    found = re.search(r", phases? ([\d,]{1,15})[^<]*</title>", page.decode("utf-8", "replace"), re.ASCII)
    return None if found is None else int(found[1].replace(",", "") or 0)


class Clip:
    """A video in memory. A notebook plays it."""

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
        return f"a video of {plural(self.frames, 'frame')}: a notebook plays it, .save(path) writes it"
