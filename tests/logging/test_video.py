"""Videos: readable by a decoder, whole or not there at all, shown by pages and notebooks."""

import base64
import re
import resource
from pathlib import Path

import av
import numpy as np
import pytest

from tightrope.files import Place
from tightrope.logging.video.mp4 import Clip, Video, write_video_page


def decode(path: Path) -> tuple[str, str, float, list[np.ndarray]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return stream.codec_context.name, stream.codec_context.pix_fmt, float(stream.average_rate), frames


def write(path: Path, frames: np.ndarray, fps: int = 30) -> Path:
    with Video(Place.of(path), fps) as video:
        for frame in frames:
            video.add(frame)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    colours = np.array([(250, 250, 247), (38, 43, 54), (255, 128, 171), (38, 103, 179)], np.uint8)
    frames = np.broadcast_to(colours[:, None, None], (4, 64, 96, 3)).repeat(5, 0)
    codec, pixels, rate, read = decode(write(tmp_path / "a.mp4", frames, fps=25))
    assert (codec, pixels, rate, len(read)) == ("h264", "yuv420p", 25.0, 20)
    assert np.abs(np.stack(read).astype(int) - frames).max() <= 8
    assert [path.name for path in tmp_path.rglob("*.*")] == ["a.mp4"]


@pytest.mark.parametrize("shape", [(720, 1280), (65, 33)], ids=["large", "odd"])
def test_any_picture_keeps_its_colours(shape: tuple[int, int], tmp_path: Path) -> None:
    """Players take the matrix from the file, not from its size. Odd sizes are trimmed to even ones."""
    frame = np.full((*shape, 3), (38, 103, 179), np.uint8)
    (read,) = decode(write(tmp_path / "a.mp4", frame[None]))[3]
    assert read.shape == (shape[0] // 2 * 2, shape[1] // 2 * 2, 3)
    assert np.abs(read.astype(int) - frame[0, 0]).max() <= 8


def test_a_failed_video_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail_midway() -> None:
        with Video(Place(tmp_path) / "a.mp4") as video:
            video.add(np.zeros((64, 64, 3), np.uint8))
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (20, 240, 320, 3), np.uint8)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "a.mp4", noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_video(tmp_path: Path) -> None:
    frames = np.random.default_rng(1).integers(0, 255, (8, 120, 160, 3), np.uint8)

    def peak(count: int) -> int:
        with Video(Place(tmp_path) / "a.mp4") as video:
            for i in range(count):
                video.add(frames[i % 8])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    assert peak(600) - peak(100) < 20 * 1024  # all of the frames would be 33 MiB


def test_a_page_plays_it_over_and_over(tmp_path: Path) -> None:
    write_video_page(Place(tmp_path) / "phase0050.mp4", "CartPole <1>")
    page = (tmp_path / "phase0050.html").read_text()
    tag = re.search(r"<video [^>]*>", page)
    assert tag is not None
    assert {"autoplay", "muted", "loop", "playsinline"} <= set(tag[0][:-1].split())
    assert 'src="phase0050.mp4"' in tag[0]
    assert "CartPole &lt;1&gt;" in page
    assert "http" not in page


def test_a_notebook_shows_a_clip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", np.zeros((3, 32, 32, 3), np.uint8))
    clip = Clip(path.read_bytes(), 3)
    shown = re.search(r'<video src="data:video/mp4;base64,([^"]+)" autoplay muted loop', clip._repr_html_())
    assert shown is not None
    assert base64.b64decode(shown[1]) == path.read_bytes() == clip.save(tmp_path / "b.mp4").read_bytes()
    assert "3 frames" in repr(clip)
