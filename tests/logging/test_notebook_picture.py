"""The live picture: a notebook's handle is updated, and where there is no notebook one line says so."""

import sys
import types
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.logging.video import notebook as module

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=64, hidden_sizes=(8,), total_timesteps=4 * 256, device="cpu")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Pictures that a notebook was shown."""
    shown: list[bytes] = []

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
    part.Image = lambda data, format: types.SimpleNamespace(data=data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


def test_a_notebook_sees_it_change(notebook: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)
    tr.PPO("CartPole-v1", **SMALL).learn(quiet=True, live=True)
    assert len(notebook) == 1 + 4 + 1
    pictures = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in notebook]
    assert pictures[0].shape == (120, 640, 3)
    assert pictures[-1].shape == (2 * 80 + 24 + 120, 2 * 160, 3)
    assert not np.array_equal(pictures[1], pictures[4])


def test_an_environment_that_cannot_be_drawn_shows_its_returns(notebook: list[bytes]) -> None:
    tr.PPO("CartPole-v1", backend="gymnasium", **SMALL).learn(quiet=True, live=True)
    assert cv2.imdecode(np.frombuffer(notebook[-1], np.uint8), cv2.IMREAD_COLOR).shape == (120, 640, 3)


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


def test_pictures_are_few_and_change_no_number(notebook: list[bytes]) -> None:
    a = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    b = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True, live=True)
    assert torch.equal(a.state.optimizer.flat, b.state.optimizer.flat)
    assert len(notebook) <= 4
