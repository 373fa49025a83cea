"""Recordings: the episodes that evaluation would play, in real time, of any engine; without influence on training."""

import os
import signal
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import pytest
import torch
from run_helpers import Plain, refusal

import tightrope as tr
from tightrope.envs.adapters.pictures import choose_opengl, pictures
from tightrope.errors import UsageError
from tightrope.logging import Clip
from tightrope.training.video import HOLD, Shot, Stage

SMALL: dict[str, Any] = dict(num_envs=8, num_steps=8, num_minibatches=2, total_timesteps=8 * 8 * 4, device="cpu")


def decode(path: Path) -> tuple[float, list[np.ndarray]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        return float(stream.average_rate), [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Probe3-v0"])
def test_side_by_side_it_shows_the_episodes_that_evaluation_plays(env: str, tmp_path: Path) -> None:
    agent = tr.PPO(env, **SMALL)
    film = agent.record(tmp_path / "new" / "video.mp4", episodes=4, seed=5, grid=True)
    _, frames = decode(film.path)
    evaluation = agent.evaluate(episodes=4, seed=5)
    assert film.returns == pytest.approx(evaluation.returns, rel=1e-4)
    assert len(frames) == film.frames == max(evaluation.lengths) + 1 + HOLD
    height, width = agent.score_env.draw(agent.state.obs[:1]).shape[1:3]
    assert frames[0].shape == (2 * 2 * height + 24, 2 * 2 * width, 3)  # twice as large as one of sixteen
    assert list(tmp_path.glob("**/*.tmp")) == []


def test_one_after_the_other(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    film = agent.record(tmp_path / "a.mp4", episodes=3, seed=5)
    rate, frames = decode(film.path)
    assert len(film.returns) == 3
    assert len(frames) == film.frames == sum(film.returns) + 3 * (1 + HOLD)  # every step is paid 1
    assert rate == 50.0  # real time
    assert frames[0].shape == (4 * 100 + 24, 4 * 200, 3)
    first = int(film.returns[0])
    assert frames[first + 1][4, 4, 1] < 225 < frames[first - 1][4, 4, 1]  # pink at its end


def test_the_tempo(tmp_path: Path) -> None:
    assert tr.PPO("Pendulum-v1", **SMALL).record(tmp_path / "a.mp4", every=7).frames == -(-200 // 7) + 1 + HOLD
    assert Shot().tempo(50) == (1, 50)
    assert Shot().tempo(125) == (3, 42)  # no more than 60 frames a second
    assert Shot(every=4).tempo(50) == (4, 50)  # four times as fast
    assert Shot(fps=25).tempo(50) == (2, 25)
    assert Shot(every=3, fps=10).tempo(50) == (3, 10)


def test_at_random_it_plays_otherwise_and_the_same_from_the_same_seed(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    greedy, *random = (
        agent.record(tmp_path / "a.mp4", 4, seed, grid=True, stochastic=stochastic).returns
        for seed, stochastic in ((3, False), (3, True), (3, True), (4, True))
    )
    assert random[0] == random[1]
    assert random[0] not in (greedy, random[2])


def test_a_notebook_is_shown_the_same() -> None:
    clip = tr.PPO("CartPole-v1", **SMALL).show(episodes=2, seed=1)
    assert isinstance(clip, Clip)
    assert clip.frames > HOLD
    assert clip._repr_html_().startswith('<video src="data:video/mp4;base64,')


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (dict(path="video.gif"), "ends in .mp4"), (dict(path="a.mp4", episodes=0), "episodes 0"),
        (dict(path="a.mp4", episodes=65, grid=True), "from 1 to 64"), (dict(path="a.mp4", every=0), "every 0"),
        (dict(path="a.mp4", fps=1.5), "fps 1.5"), (dict(path="a.mp4", seed=-1), "seed -1"),
        (dict(path="a.mp4", speed=2), "unknown option 'speed'"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(
    asked: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint in refusal(tr.PPO("CartPole-v1", **SMALL).record, **asked)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written: Not a directory|cannot be written: File exists"):
        tr.PPO("CartPole-v1", **SMALL).record(tmp_path / "file" / "a.mp4")


# engines ---------------------------------------------------------------------------------------------------------------


def test_of_atari_the_screen_in_colour(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    agent = tr.PPO("ALE/Breakout-v5", max_episode_steps=6, **{**SMALL, "num_envs": 2})
    _, frames = decode(agent.record(tmp_path / "a.mp4", seed=1).path)
    assert frames[0].shape == (4 * 210 + 24, 4 * 160, 3)
    brick = frames[0][4 * 60, 4 * 80].astype(int)  # in the topmost row, which is red
    assert brick[0] > 150
    assert brick[1:].max() < 110
    assert frames[0][: 4 * 210].std() > 20


def test_of_envpools_atari_the_newest_grey_frame(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    agent = tr.PPO("ALE/Breakout-v5", backend="envpool", max_episode_steps=6, **{**SMALL, "num_envs": 2})
    _, frames = decode(agent.record(tmp_path / "a.mp4", seed=1).path)
    assert frames[0].shape == (640 + 24, 640, 3)
    assert frames[0][:640].std() > 20


class Blank(Plain):
    """Cannot be drawn."""


class Unseen(tr.envs.CartPole):
    """Nor can this."""

    scene = tr.envs.TensorEnv.scene


def test_what_cannot_be_drawn_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Blank' does not draw itself: give it a render\(\) that .* 'rgb_array'$"):
        tr.PPO(Blank, max_episode_steps=4, **SMALL).record(tmp_path / "a.mp4")
    with pytest.raises(
        UsageError, match=r"Unseen does not draw itself: give it a method scene\(obs, action\) or draw$"
    ):
        tr.PPO(Unseen(8), **SMALL).record(tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "hint"),
    [
        (Blank, "env '{name}' does not draw itself: give it a render()"),
        (Unseen(8), "{name} does not draw itself: give it a method scene(obs, action) or draw"),
    ],
    ids=["gymnasium", "tensor"],
)
def test_training_without_videos_says_so_in_one_line_that_can_be_followed(
    env: Any, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tr.PPO(env, video_every=1, **SMALL)
    agent.learn(64, run_dir=tmp_path / "run")
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "no videos of training" in line]
    assert hint.format(run=tmp_path / "run", name=agent.config.env) in said


def test_a_task_of_envpools_is_drawn_by_gymnasium(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    pytest.importorskip("pygame")
    agent = tr.PPO("Acrobot-v1", backend="envpool", max_episode_steps=5, **SMALL)
    assert agent.record(tmp_path / "a.mp4").frames == 5 + 1 + HOLD


def test_mujoco_without_a_screen(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    agent = tr.PPO("InvertedPendulum-v5", backend="gymnasium", max_episode_steps=2, **{**SMALL, "num_envs": 2})
    try:
        film = agent.record(tmp_path / "a.mp4", seed=1)
    except UsageError as error:
        assert "apt install libegl1" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    _, frames = decode(film.path)
    assert frames[0].shape == (504, 480, 3)
    assert frames[0].std() > 10


@pytest.mark.parametrize("chosen", [{}, {"camera_id": -1}])
def test_the_camera_follows_a_hopper_unless_another_is_chosen(chosen: dict[str, int]) -> None:
    mujoco = pytest.importorskip("mujoco")
    choose_opengl()
    env = gymnasium.make("Hopper-v5", render_mode="rgb_array", **chosen)
    try:
        env.reset(seed=0)
        frames = []
        for place in (0.0, 15.0):
            env.unwrapped.data.qpos[0] = place  # type: ignore[attr-defined]
            mujoco.mj_forward(env.unwrapped.model, env.unwrapped.data)  # type: ignore[attr-defined]
            frames.append(pictures("Hopper-v5", [env])[0].astype(int))
    except UsageError as error:
        pytest.skip(str(error))
    finally:
        env.close()
    red = [int(((x[..., 0] > 1.3 * x[..., 2]) & (x[..., 0] > 100)).sum()) for x in frames]  # pixels of the hopper
    assert red[0] > 100
    assert (red[1] > 100) == (not chosen)


class Signalled(tr.envs.CartPole):
    """SIGTERM comes while its second picture is drawn, by a library that swallows it unless somebody listens."""

    pictures = 0

    def draw(self, obs: torch.Tensor, action: torch.Tensor | None = None) -> np.ndarray:
        self.pictures += 1
        if self.pictures == 2:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGTERM)
        return super().draw(obs, action)


def test_a_signal_ends_it_and_leaves_no_half_video(tmp_path: Path) -> None:
    agent = tr.PPO(Signalled, **SMALL)
    with pytest.raises(SystemExit) as leaving:
        agent.record(tmp_path / "a.mp4", seed=5)
    assert leaving.value.code == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings", [{}, {"backend": "gymnasium"}, {"memory": "gru"}], ids=["own", "gymnasium", "memory"]
)
def test_the_state_in_which_an_episode_failed_is_shown(settings: dict[str, Any]) -> None:
    agent = tr.PPO("CartPole-v1", num_envs=2, num_steps=16, num_minibatches=2, device="cpu", **settings)
    env, shot = agent.score_env.spawn(1, 0, drawn=True), Shot()
    with torch.no_grad():
        *_, before, failed, pink = list(Stage(agent.state.policy, env, 0, shot, 1, "").pictures())[: -HOLD + 1]
    env.close()
    agent.close()
    cell = slice(0, -30)
    assert (failed[cell] != before[cell]).any()
    assert pink[2, 2, 0] > pink[2, 2, 1] + 20
    assert abs(int(failed[2, 2, 0]) - int(failed[2, 2, 1])) < 5
