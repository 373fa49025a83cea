"""Pictures of environments outside torch: of Gymnasium's, and of MuJoCo models, also without a screen."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...draw import shrink
from ...errors import UsageError, one_line
from ...output import print_line
from ..step_arrays import Array

if TYPE_CHECKING:
    import gymnasium

MISSING = "MuJoCo finds no OpenGL to draw with: apt install libegl1 libgl1 (or libosmesa6), or set MUJOCO_GL"
WIDTH, HEIGHT = 640, 480  # the largest that every model's frame buffer holds


def choose_opengl() -> None:
    """Set MUJOCO_GL to an OpenGL that needs no screen, where there is no screen and it is not set.

    MuJoCo reads it when it is imported."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL"):
        return
    for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


def rendering_problem(message: str) -> str:
    """An error message of the renderer, replaced by what to install where OpenGL is missing."""
    return MISSING if any(sign in message for sign in ("OpenGL", "EGL", "OSMesa", "GLFW", "glGetError")) else message


def quieten_warnings() -> None:
    """Print each warning of MuJoCo once, to stderr: by itself it prints one per copy of an environment and writes a log file.
    Warnings about deprecated features of Gymnasium's own model files are dropped, for no user can fix these."""
    try:
        import mujoco
    except ImportError:  # Gymnasium reports it when the environment is made
        return
    if mujoco.get_mju_user_warning() is not None:
        return
    printed: set[str] = set()

    def show(message: str) -> None:
        if "deprecated" not in message and message not in printed:
            printed.add(message)
            print_line(f"mujoco: {message}", error=True)

    mujoco.set_mju_user_warning(show)


def pictures(name: str, envs: Sequence[gymnasium.Env[Any, Any]]) -> Array:
    """One frame of each; UsageError if there is none."""
    for env in envs:
        follow_body(env)
    try:
        frames: list[Any] = [env.render() for env in envs]
    except NotImplementedError:
        frames = [None]
    except Exception as error:
        raise UsageError(f"env {name!r} cannot be drawn here: {rendering_problem(one_line(error))}") from None
    if any(not isinstance(frame, np.ndarray) for frame in frames):
        raise UsageError(
            f"env {name!r} does not draw itself: give it a render() that returns pixels (H, W, 3) in render_mode 'rgb_array'"
        )
    return np.stack([shrink(frame) for frame in frames])


def follow_body(env: gymnasium.Env[Any, Any]) -> None:
    """Let the camera of a MuJoCo environment follow the body, if its model has such a camera and no other was chosen."""
    renderer, spec = getattr(env.unwrapped, "mujoco_renderer", None), env.spec
    if (
        renderer is None
        or getattr(renderer, "camera_id", None) != -1
        or (spec and {"camera_id", "camera_name"} & {*spec.kwargs})
    ):
        return
    import mujoco

    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1 without one


class Camera:
    """Renders one MuJoCo model, through the first of its own cameras if it has any."""

    def __init__(self, model: Any) -> None:
        import mujoco

        self.mujoco, self.model, self.data = mujoco, model, mujoco.MjData(model)
        self.renderer = mujoco.Renderer(model, HEIGHT, WIDTH)

    def picture(self, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
        """A frame of the model in that position."""
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        self.mujoco.mj_forward(self.model, self.data)
        self.renderer.update_scene(self.data, camera=0 if self.model.ncam else -1)
        return shrink(self.renderer.render())

    def close(self) -> None:
        self.renderer.close()


def camera_for(env: object, name: str) -> Camera:
    """A camera for the MuJoCo model that an environment of Brax or Playground was made from."""
    model = getattr(env, "mj_model", None) or getattr(getattr(env, "sys", None), "mj_model", None)
    if model is None:
        raise UsageError(f"env {name!r} cannot be drawn: it has no MuJoCo model")
    try:
        return Camera(model)
    except Exception as error:
        raise UsageError(f"env {name!r} cannot be drawn here: {rendering_problem(str(error))}") from None
