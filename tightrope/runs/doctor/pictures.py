"""Whether videos can be made: an encoder that encodes, and an OpenGL that draws where there is no screen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...envs import offscreen
from ...files import Place
from ...view.video import Video
from .findings import Finding, in_bytes, in_words
from .packages import installed
from .trials import trial

PATIENCE = 30.0  # seconds
WITHOUT = "train without --video-every"
PICTURE = """
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light/><geom size=".1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 48, 64)
renderer.update_scene(data)
print(renderer.render().shape)
"""


def encoder() -> Iterator[Finding]:
    """Two frames to a file that can be thrown away."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "two.mp4"
            with Video(Place.of(path), threads=1) as video:
                for shade in (0, 255):
                    video.add(np.full((48, 64, 3), shade, np.uint8))
            size = path.stat().st_size
    except ImportError as error:
        fix = "pip install av opencv-python-headless"
        yield Finding("videos", f"cannot be encoded: {in_words(error)}", "warning", fix)
    except Exception as error:
        yield Finding("videos", f"cannot be encoded: {in_words(error)}", "warning", f"pip install -U av, or {WITHOUT}")
    else:
        yield Finding("videos", f"H.264 by PyAV {installed('av')}: two frames encoded, {in_bytes(size)}")


def rendering() -> Iterator[Finding]:
    """One picture by MuJoCo, in a process of its own: drivers have been known to end theirs."""
    if installed("mujoco") is None:
        yield Finding("MuJoCo pictures", "not looked at: mujoco is not installed", "absent")
        return
    offscreen.prepare()
    way = os.environ.get("MUJOCO_GL", "its own choice")
    tried = trial(PICTURE, PATIENCE)
    if tried.worked:
        yield Finding("MuJoCo pictures", f"drawn without a screen (OpenGL: {way})", facts={"opengl": way})
        return
    helpful = offscreen.explained(tried.everything) == offscreen.MISSING
    fix = offscreen.MISSING.partition(": ")[2] if helpful else f"set MUJOCO_GL to egl, osmesa or glfw, or {WITHOUT}"
    words = f"cannot be drawn (OpenGL: {way}): {tried.said}"
    yield Finding("MuJoCo pictures", words, "warning", fix, {"opengl": way})
