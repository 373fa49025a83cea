"""Films of training for environments that cannot be drawn from observations: which, and that they disturb nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.logging.callback import Callback
from tightrope.training import films

pytestmark = pytest.mark.usefixtures("usual_videos")
linux = pytest.mark.skipif(sys.platform != "linux", reason="films are made between phases elsewhere")


class Drawn(gymnasium.Env[np.ndarray, int]):
    """Ten steps long; its picture grows brighter."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.steps = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample() * 0, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action), self.steps == 10, False, {}

    def render(self) -> Any:
        return np.full((40, 60, 3), 20 * self.steps, np.uint8)


class Broken(Drawn):
    def render(self) -> Any:
        raise OSError("no screen")


class Stuck(Drawn):
    def render(self) -> Any:
        time.sleep(60)


SMALL: dict[str, Any] = dict(num_envs=2, num_steps=16, num_minibatches=1, hidden_sizes=(8,), device="cpu", seed=3)


class Told(Callback):
    def __init__(self) -> None:
        self.videos: list[tuple[str, int]] = []

    def on_video(self, path: Path, step: int) -> None:
        self.videos.append((path.name, step))


def test_the_untrained_policy_comes_first_and_the_trained_one_last(tmp_path: Path) -> None:
    told = Told()
    agent = tr.PPO(Drawn, total_timesteps=20 * 32, video_every=8, **SMALL)
    agent.learn(run_dir=tmp_path / "run", quiet=True, callbacks=[told])
    made = sorted(path.name for path in (tmp_path / "run" / "videos").glob("*.mp4"))
    assert (made[0], made[-1]) == ("phase0000.mp4", "phase0020.mp4")
    assert told.videos[0] == ("phase0000.mp4", 0)
    assert told.videos[-1] == ("phase0020.mp4", 640)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "the untrained policy" in page
    assert "phase 20, 640 steps" in page


def test_films_change_no_number(tmp_path: Path) -> None:
    agents = [tr.PPO(Drawn, total_timesteps=12 * 32, video_every=every, **SMALL) for every in (0, 1)]
    for number, agent in enumerate(agents):
        agent.learn(run_dir=tmp_path / f"{number}", quiet=True)
    assert list((tmp_path / "1" / "videos").glob("*.mp4"))
    assert not (tmp_path / "0" / "videos").exists()
    assert torch.equal(agents[0].state.optimizer.flat, agents[1].state.optimizer.flat)


def test_what_cannot_be_drawn_costs_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = tr.PPO(Broken, total_timesteps=8 * 32, video_every=1, **SMALL)
    agent.learn(run_dir=tmp_path / "run")
    out, err = capsys.readouterr()
    assert [line for line in (out + err).splitlines() if "video" in line or "no screen" in line] == [
        line for line in out.splitlines() if line.startswith("no videos of training: ") and "no screen" in line
    ][:1]
    assert "no screen" in out
    assert agent.steps == 8 * 32
    assert not (tmp_path / "run" / "videos").exists()


@linux
def test_a_renderer_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(films, "LAST_SECONDS", 0.5)
    agent = tr.PPO(Stuck, total_timesteps=8 * 32, **SMALL)
    agent.learn(run_dir=tmp_path / "run")
    assert "no videos of training: drawing took more than" in capsys.readouterr().out
    assert agent.steps == 8 * 32


def test_a_long_episode_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(films, "MAX_FRAMES", 4)
    agent = tr.PPO(Drawn, total_timesteps=64, **SMALL)
    assert films.film_error(agent.policy, agent.score_env, tmp_path / "a.mp4", 1, "x") == ""
    av = pytest.importorskip("av")
    with av.open(tmp_path / "a.mp4") as container:
        assert len(list(container.decode(video=0))) == 4
