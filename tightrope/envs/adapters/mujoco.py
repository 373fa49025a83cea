"""Pictures by MuJoCo's renderer where there is no screen: which OpenGL it is given, and a camera for a model."""

from __future__ import annotations

import ctypes.util
import os
import sys
from typing import Any

import numpy as np

from ...draw import shrink

MISSING = "MuJoCo finds no OpenGL to draw with: apt install libegl1 libgl1 (or libosmesa6), or set MUJOCO_GL"
WIDTH, HEIGHT = 640, 480  # what every model has room for


def prepare() -> None:
    """Choose an OpenGL that needs no screen, where there is none and nobody has chosen. MuJoCo looks only once, when it is
    imported."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL"):
        return
    for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def explained(words: str) -> str:
    """A complaint about a picture, in words that help."""
    return MISSING if any(sign in words for sign in ("OpenGL", "EGL", "OSMesa", "GLFW", "glGetError")) else words


class Camera:
    """Looks at one MuJoCo model, through the first of its own cameras if it has any."""

    def __init__(self, model: Any) -> None:
        import mujoco

        self.mujoco, self.model, self.data = mujoco, model, mujoco.MjData(model)
        self.renderer = mujoco.Renderer(model, HEIGHT, WIDTH)

    def picture(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """The model in that position."""
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, camera=0 if self.model.ncam else -1)
        return shrink(self.renderer.render())

    def close(self) -> None:
        self.renderer.close()
