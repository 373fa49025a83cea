"""MuJoCo's pictures without a screen: the OpenGL that is chosen, the camera, and what is said where there is none."""

import os
from typing import Any

import numpy as np
import pytest

from tightrope.draw import render_scale
from tightrope.envs.adapters import pictures as ours

SWING = """
<mujoco>
  <worldbody>
    <light pos="0 0 4"/>
    <camera name="first" pos="0 -3 1" xyaxes="1 0 0 0 0 1"/>
    <geom type="plane" size="4 4 .1" rgba=".8 .8 .8 1"/>
    <body pos="0 0 1.5"><joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -1" size=".1" rgba="1 .4 0 1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize(
    ("before", "libraries", "chosen"),
    [
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), None),
        ({"DISPLAY": ":0"}, {"EGL"}, None),
        ({"MUJOCO_GL": "glfw"}, {"EGL"}, "glfw"),
    ],
)
def test_the_opengl_that_is_chosen(
    before: dict[str, str], libraries: set[str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ours.sys, "platform", "linux")
    monkeypatch.setattr(ours.ctypes.util, "find_library", lambda name: name if name in libraries else None)
    ours.choose_opengl()
    after = os.environ.get("MUJOCO_GL")
    monkeypatch.setenv("MUJOCO_GL", "egl")  # so that it is put back
    assert after == chosen


def test_complaints_about_opengl_say_what_to_install() -> None:
    assert "apt install libegl1" in ours.rendering_problem("an OpenGL platform library has not been loaded")
    assert ours.rendering_problem("the model is odd") == "the model is odd"


def camera() -> Any:
    ours.choose_opengl()
    mujoco = pytest.importorskip("mujoco")
    try:
        return ours.Camera(mujoco.MjModel.from_xml_string(SWING))
    except Exception as error:
        pytest.skip(f"no OpenGL here: {error}")


def test_a_model_in_two_positions() -> None:
    eye = camera()
    hanging, raised = (eye.picture(np.array([angle]), np.zeros(1)) for angle in (0.0, 1.5))
    with render_scale(4):
        large = eye.picture(np.zeros(1), np.zeros(1))
    eye.close()
    assert hanging.shape == (160, 214, 3)
    assert large.shape == (480, 640, 3)

    def orange(picture: np.ndarray) -> np.ndarray:
        return np.argwhere(picture[..., 0].astype(int) - picture[..., 2] > 60)

    assert abs(orange(hanging)[:, 1].mean() - 107) < 5  # in the middle, and to one side
    assert abs(orange(raised)[:, 1].mean() - 107) > 15
