"""The live picture: a notebook's handle is updated, and where there is no notebook one line says so."""

import base64
import io
import re
import sys
import types
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.logging.video import notebook as module

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=64, hidden_sizes=(8,), total_timesteps=4 * 256, device="cpu")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pictures that a notebook was shown."""
    shown: list[str] = []

    class Handle:
        def update(self, image: Any) -> None:
            shown.append(image.data)

    def display(image: Any, display_id: bool) -> Handle:
        shown.append(image.data)
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    part = types.ModuleType("IPython.display")
    part.display = display  # type: ignore[attr-defined]
    part.HTML = lambda data: types.SimpleNamespace(data=data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


def curve_in(page: str) -> np.ndarray:
    (data,) = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]*)"', page)
    return cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)


def frames_in(page: str) -> list[np.ndarray]:
    (data,) = re.findall(r'<video src="data:video/mp4;base64,([^"]*)"', page)
    with av.open(io.BytesIO(base64.b64decode(data))) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_notebook_sees_clips_of_rollouts_with_ends_in_pink(
    notebook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)
    monkeypatch.setattr(module, "SHARE", 0)
    tr.PPO("CartPole-v1", **SMALL).learn(quiet=True, live=True)
    assert len(notebook) == 1 + 4 + 1
    assert "<video" not in notebook[0]
    clips = [frames_in(page) for page in notebook[1:]]
    assert len(clips[0]) == 64 // 2  # of 50 steps a second, every second one
    assert clips[0][0].shape[1] == 4 * 200  # two cells of twice their size
    assert not np.array_equal(clips[0][5], clips[0][20])  # it moves
    pink = [(frame[..., 0].astype(int) - frame[..., 1] > 40).mean() for frame in clips[0]]
    assert max(pink) > 0.1  # a quarter of the picture is a cell
    assert pink[0] < 0.01
    assert not np.array_equal(curve_in(notebook[1]), curve_in(notebook[4]))


def test_an_environment_that_cannot_be_drawn_shows_its_returns(notebook: list[str]) -> None:
    tr.PPO("CartPole-v1", backend="gymnasium", **SMALL).learn(quiet=True, live=True)
    assert curve_in(notebook[-1]).shape == (120, 640, 3)
    assert "<video" not in notebook[-1]


def test_the_curve_has_a_scale() -> None:
    rising = module.curve_frame([(0, 0.0), (50, 100.0)], 100, 640)
    higher = module.curve_frame([(0, 900.0), (50, 1000.0)], 100, 640)
    for half in (slice(0, 60), slice(60, 112)):  # the highest at the top, the lowest below
        assert not np.array_equal(rising[half, 560:], higher[half, 560:])
    assert module.curve_frame([(50, 7.0)], 100, 640).shape == rising.shape


def test_elsewhere_one_line_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    tr.PPO("CartPole-v1", **SMALL).learn(quiet=True, live=True)
    assert capsys.readouterr().out.splitlines() == ["live=True shows nothing here: it needs a notebook"]


def test_pictures_are_few_and_change_no_number(notebook: list[str]) -> None:
    a = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    b = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True, live=True)
    assert torch.equal(a.state.optimizer.flat, b.state.optimizer.flat)
    assert len(notebook) <= 4
