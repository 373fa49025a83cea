"""Frames to an H.264 MP4 that every browser plays, encoded as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class Video:
    """A context that writes frames (H, W, 3) to `path`; the file appears whole at the end, or not at all."""

    def __init__(self, path: Path, fps: int = 30) -> None:
        self.path, self.fps = path, fps
        self.temporary = path.with_name(path.name + ".tmp")
        self.container: Any = None

    def __enter__(self) -> Video:
        import av

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.container = av.open(str(self.temporary), "w", format="mp4", options={"movflags": "faststart"})
        self.stream = self.container.add_stream("libx264", rate=self.fps)
        self.stream.pix_fmt = "yuv420p"
        self.frames = 0
        return self

    def add(self, frame: np.ndarray) -> None:
        import av

        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # yuv420p wants even sides
        if not self.frames:
            self.stream.width, self.stream.height = width, height
        self.frames += 1
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
        self.container.mux(self.stream.encode(picture))

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.container.mux(self.stream.encode())
        self.container.close()
        if kind is None:
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink(missing_ok=True)
