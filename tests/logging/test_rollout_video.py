"""Videos of training: what they show, when there are any, and that training does not notice."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch
from forks import PythonProcess
from run_helpers import assert_same_state, rows
from torch import Tensor

import tightrope as tr
from tightrope.files import Place
from tightrope.logging import Callback
from tightrope.logging.video import renderer, rollout
from tightrope.logging.video.rollout import passed
from tightrope.training.evaluate import evaluate_policy
from tightrope.training.reports import clips
from tightrope.types import Box, Discrete

pytestmark = pytest.mark.usefixtures("usual_videos")
SMALL: dict[str, Any] = dict(
    num_envs=20, num_steps=8, num_minibatches=2, update_epochs=1, hidden_sizes=(8,), device="cpu"
)


def trained(run: Path, phases: int, env: Any = "CartPole-v1", **settings: Any) -> tr.PPO:
    settings = {**SMALL, **settings}
    batch = settings["num_envs"] * settings["num_steps"]
    return tr.PPO(env, total_timesteps=phases * batch, **settings).learn(run_dir=run, quiet=True)


def videos(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "videos").glob("*.mp4")) if (run / "videos").exists() else []


def frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


class Numbered(tr.envs.TensorEnv):
    """Each environment is as grey as its number says, and lives for five steps."""

    observation = Box((1,))
    action = Discrete(2)
    time_limit = 5

    def initial(self, noise: Tensor) -> Tensor:
        return torch.arange(len(noise), dtype=torch.float32)[:, None]

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0])

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.stack([np.full((32, 40, 3), 10 * int(value), np.uint8) for (value,) in obs.tolist()])


def centres(picture: np.ndarray, columns: int, rows: int, height: int = 32, width: int = 40) -> np.ndarray:
    """The colour in the middle of every cell, (rows * columns, 3)."""
    y, x = np.arange(rows) * height + height // 2, np.arange(columns) * width + width // 2
    return picture[y][:, x].reshape(-1, 3).astype(int)


def test_the_first_sixteen_in_a_grid_and_pink_when_an_episode_ends(tmp_path: Path) -> None:
    trained(tmp_path, 3, Numbered(num_envs=20), video_every=3)
    shown = frames(tmp_path / "videos" / "phase0003.mp4")
    assert [frame.shape for frame in shown] == [(4 * 32 + 24, 4 * 40, 3)] * 24
    grey = np.arange(16)[:, None] * 10
    for t in (0, 1, 4, 5):  # nothing has ended yet, or it is seen as it ended
        assert np.abs(centres(shown[t], 4, 4) - grey).max() <= 8
    reddish = [(centres(frame, 4, 4)[:, 0] - centres(frame, 4, 4)[:, 1]).min() for frame in shown]
    assert max(reddish[:6]) < 10
    assert min(reddish[6:9]) > 40
    assert reddish[6] > reddish[9]  # it fades
    assert (tmp_path / "videos" / "phase0003.html").exists()


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (4, 2, 2), (6, 3, 2)])
def test_fewer_where_there_are_fewer(count: int, columns: int, rows: int, tmp_path: Path) -> None:
    trained(tmp_path, 1, Numbered(num_envs=count), video_every=1, num_envs=count)
    shown = frames(tmp_path / "videos" / "phase0001.mp4")
    assert shown[0].shape == (rows * 32 + 24, columns * 40, 3)
    assert np.abs(centres(shown[0], columns, rows)[:count] - np.arange(count)[:, None] * 10).max() <= 8


def test_asked_for_every_so_many_phases_and_at_the_end(tmp_path: Path) -> None:
    trained(tmp_path, 5, video_every=2)
    assert videos(tmp_path) == ["phase0002.mp4", "phase0004.mp4", "phase0005.mp4"]
    assert len(frames(tmp_path / "videos" / "phase0004.mp4")) == 2 * 4  # two phases of eight steps, every second shown
    assert [path.suffix for path in (tmp_path / "videos").iterdir() if path.suffix not in (".mp4", ".html")] == []


def test_by_default_the_beginning_a_quarter_and_the_end(tmp_path: Path) -> None:
    trained(tmp_path / "long", 280, num_envs=4, num_steps=16)
    assert videos(tmp_path / "long") == ["phase0012.mp4", "phase0070.mp4", "phase0280.mp4"]
    trained(tmp_path / "short", 30, num_envs=4, num_steps=16)
    assert videos(tmp_path / "short") == ["phase0012.mp4", "phase0030.mp4"], "a quarter is too near to the beginning"
    folder = tmp_path / "long"
    assert [len(frames(folder / "videos" / name)) for name in videos(folder)] == [96] * 3
    assert "<title>CartPole-v1 ppo, phases 269-280</title>" in (folder / "videos" / "phase0280.html").read_text()
    assert [(clip.first, clip.phase) for clip in clips(folder)] == [(1, 12), (59, 70), (269, 280)]


def test_a_run_too_short_for_a_clip_has_none_unless_asked(tmp_path: Path) -> None:
    trained(tmp_path / "a", 3)
    assert videos(tmp_path / "a") == []
    trained(tmp_path / "b", 3, video_every=50)
    assert videos(tmp_path / "b") == ["phase0003.mp4"]
    trained(tmp_path / "c", 3, video_every=0, num_steps=256)
    assert videos(tmp_path / "c") == []


def test_a_class_of_ones_own_is_called_by_its_name(tmp_path: Path) -> None:
    trained(tmp_path, 1, Numbered, video_every=1)
    assert "<title>Numbered ppo, phase 1</title>" in (tmp_path / "videos" / "phase0001.html").read_text()
    assert "test_rollout_video:Numbered" in (tmp_path / "config.yaml").read_text()  # where it is looked for again


def test_parts_of_a_run_that_were_passed() -> None:
    due = [steps for steps in range(10, 1010, 10) if passed(steps, steps - 10, 1000)]
    assert due == [10, 20, 70, 250]


def test_a_run_that_ends_early_shows_its_last_phases(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", total_timesteps=100 * 64, **{**SMALL, "num_envs": 4, "num_steps": 16})
    agent.learn(run_dir=tmp_path, quiet=True, until=14 * 64)
    assert videos(tmp_path) == ["phase0012.mp4", "phase0014.mp4"]
    tr.load(tmp_path).learn(quiet=True, until=30 * 64)  # goes on, and so do they
    assert videos(tmp_path) == ["phase0012.mp4", "phase0014.mp4", "phase0030.mp4"]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_training_does_not_notice(env: str, tmp_path: Path) -> None:
    without, with_videos = tmp_path / "a", tmp_path / "b"
    assert_same_state(trained(without, 6, env, video_every=0), trained(with_videos, 6, env, video_every=2))
    assert rows(without) == rows(with_videos)
    assert (len(videos(without)), len(videos(with_videos))) == (0, 3)


def test_others_are_told_of_every_video(tmp_path: Path) -> None:
    class Diary(Callback):
        def on_video(self, path: Path, step: int) -> None:
            assert path.exists()
            heard.append((path.name, step))

        def on_end(self, result: Any) -> None:
            heard.append(("end", result.steps))

    heard: list[tuple[str, int]] = []
    agent = tr.PPO("CartPole-v1", total_timesteps=4 * 160, video_every=2, **SMALL)
    agent.learn(run_dir=tmp_path, quiet=True, callbacks=[Diary()])
    assert heard == [("phase0002.mp4", 320), ("phase0004.mp4", 640), ("end", 640)]


def test_the_last_one_is_drawn_while_the_agent_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, seen = tr.PPO("CartPole-v1", total_timesteps=3 * 160, video_every=2, **SMALL), list[str]()

    def slowly(*given: Any) -> tr.Evaluation:
        until = time.monotonic() + 20
        while len(videos(tmp_path)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        seen.extend(videos(tmp_path))
        return evaluate_policy(*given)

    monkeypatch.setattr("tightrope.agent.evaluate_policy", slowly)
    agent.train(run_dir=tmp_path, quiet=True, score_episodes=2)
    assert seen == videos(tmp_path) == ["phase0002.mp4", "phase0003.mp4"]


class Unwilling(Numbered):
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        raise ValueError("I would\nrather not")


def test_a_failure_is_said_once_and_training_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path, 5, Unwilling(num_envs=20), video_every=1).steps == 5 * 160
    said = capfd.readouterr().err.splitlines()
    assert said == ["warning: video failed and is disabled: ValueError: I would rather not"]
    assert videos(tmp_path) == []


def test_when_there_is_room_again_there_are_videos_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    add = renderer.Video.add

    def full_at_first(video: renderer.Video, frame: np.ndarray) -> None:
        if video.place.name in ("1.mp4", "2.mp4"):
            raise OSError(28, "No space left on device")
        add(video, frame)

    monkeypatch.setattr(renderer.Video, "add", full_at_first)
    trained(tmp_path, 4, video_every=1)
    assert videos(tmp_path) == ["phase0003.mp4", "phase0004.mp4"]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "phase0001.mp4 could not be written (OSError: [Errno 28] No space left on device)" in said[0]
    assert sorted(path.suffix for path in (tmp_path / "videos").iterdir()) == [".html", ".html", ".mp4", ".mp4"]


BROKEN: dict[str, tuple[Callable[..., object], str, str]] = {  # what the renderer does instead, a limit, what is said
    "dies": (lambda *_: os._exit(9), "renderer.STOPPED_SECONDS", "the process that draws has died"),
    "hangs": (lambda *_: time.sleep(60), "rollout.LAST_VIDEO_SECONDS", "1 not finished after 0 seconds"),
    "is stopped": (
        lambda *_: os.kill(os.getpid(), signal.SIGSTOP),
        "renderer.STOPPED_SECONDS",
        "the process that draws is stopped",
    ),
}


@pytest.mark.parametrize(("work", "limit", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_renderer_is_given_up_and_said_once(
    work: Any, limit: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"tightrope.logging.video.{limit}", 0.3)
    monkeypatch.setattr(renderer, "render_videos", work)
    assert trained(tmp_path, 1, video_every=1).steps == 160
    said = capfd.readouterr().err.splitlines()
    assert said == [f"warning: video failed and is disabled: {says}"]


class Endless(Numbered):
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        time.sleep(60)
        return super().draw(obs, action)


@pytest.mark.parametrize("platform", ["linux", "win32"], ids=["process", "thread"])
@pytest.mark.parametrize("phases", [1, 30], ids=["at the end", "in between"])
def test_a_picture_that_is_never_drawn_is_given_up(
    platform: str, phases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renderer, "HANG_SECONDS", 0.3)
    monkeypatch.setattr(renderer.sys, "platform", platform)
    assert trained(tmp_path, phases, Endless(num_envs=20), video_every=1).steps == phases * 160
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert re.fullmatch(r"warning: video failed .*: no frame was drawn in \d s", said[0])


class Shades:
    """Draws its observation as grey."""

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.tile(obs.numpy().astype(np.uint8)[:, :, None, None], (1, 32, 32, 3))


@pytest.mark.parametrize("cut", [2, 3, 4], ids=["at the end of a phase", "in the next", "later"])
def test_an_episode_is_seen_to_fail_before_its_cell_turns_pink(cut: int) -> None:
    obs, done = np.array([10.0, 20.0, 30.0, 31.0, 32.0, 33.0]), np.array([False, True, False, False, False, False])
    cells, middle = renderer.Cells(1), []
    for part in (slice(0, cut), slice(cut, 6)):
        final = np.full((int(done[part].sum()), 1), 200.0)
        rows = obs[part, None, None], np.zeros((len(obs[part]), 1)), done[part, None]
        frames = renderer.PhaseFrames(*rows, 1, 0, 1, final)
        middle += [x[5, 5].tolist() for x in renderer.phase_pictures(Shades(), frames, "", cells)]  # type: ignore[arg-type]
    assert middle[:3] == [[10] * 3, [20] * 3, [200] * 3]
    red, green, _ = middle[3]
    assert red > green + 50
    assert middle[4][0] < red


def test_what_is_kept_of_a_rollout_is_how_its_episodes_failed() -> None:
    agent = tr.PPO("CartPole-v1", total_timesteps=160, **{**SMALL, "num_envs": 4, "num_steps": 40}).learn(quiet=True)
    rollout_of, frames = agent.state.rollout, rollout.store_phase(agent.state, 40, 0).frames(agent.state)
    over = (rollout_of.terminated | rollout_of.truncated).numpy()
    assert len(frames.final) == frames.done.sum() == over.sum() > 0
    assert {tuple(row) for row in frames.final.tolist()} == {
        tuple(row) for row in rollout_of.final_obs.numpy()[over].tolist()
    }
    assert (np.abs(frames.final[:, 2]) > 0.2).all()  # it fell


def test_every_picture_is_a_sign_of_life(tmp_path: Path) -> None:
    """A slow renderer is waited for, as long as there is one after the other."""
    seen: list[float] = []

    class Drawn(Numbered):
        def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
            seen.append(float(pulse[0]))
            return super().draw(obs, action)

    pulse = np.zeros(1)
    film = renderer.Film(Place.of(tmp_path / "a.mp4"), Drawn(num_envs=2), "title", 30, pulse)
    film.add(
        renderer.PhaseFrames(np.zeros((3, 2, 1)), np.zeros((3, 2)), np.zeros((3, 2), bool), 1, 0, 1, np.zeros((0, 1)))
    )
    film.abandon()
    assert 0 == seen[0] < seen[1] < seen[2] < pulse[0]


def test_where_processes_cannot_be_forked_it_is_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer.sys, "platform", "win32")
    trained(tmp_path, 4, video_every=2)
    assert videos(tmp_path) == ["phase0002.mp4", "phase0004.mp4"]


def test_opencv_may_have_been_used_before(tmp_path: Path) -> None:
    """Its threads are not in a forked process, which would wait for them."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    cv2.resize(np.zeros((800, 800, 3), np.uint8), (400, 400))
    trained(tmp_path, 1, video_every=1)
    assert videos(tmp_path) == ["phase0001.mp4"]
    assert cv2.getNumThreads() == 2
    cv2.setNumThreads(threads)


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    watcher = rollout.RolloutVideo(tmp_path, None, lambda *_: None)
    state = tr.PPO("CartPole-v1", total_timesteps=16 * 4, **{**SMALL, "num_envs": 4, "num_steps": 16}).state
    assert rollout.max_rows(state) == 16
    state.rollout.obs = torch.zeros(1, 1, 4, 84, 84, dtype=torch.uint8).expand(1024, 32, 4, 84, 84)
    assert rollout.max_rows(state) * 16 * 4 * 84 * 84 <= rollout.MAX_BYTES
    watcher.rows = 16
    assert watcher.phases_to_keep(state) == 12


def test_what_ends_the_trainer_does_not_end_the_last_video(tmp_path: Path) -> None:
    """Such as `timeout`, which signals a whole group of processes."""
    settings = dict(total_timesteps=10**8, num_envs=4, num_steps=16, hidden_sizes=(8,), device="cpu")
    code = (
        f"import os, tightrope as tr; os.setsid(); tr.PPO('CartPole-v1', **{settings}).learn(run_dir={str(tmp_path)!r})"
    )
    process = PythonProcess("-c", code)
    try:
        deadline = time.monotonic() + 60
        while not videos(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate()
    finally:
        process.kill()
    assert "failed" not in said
    assert len(videos(tmp_path)) >= 2
    assert len(frames(tmp_path / "videos" / videos(tmp_path)[-1])) == 96
