"""Videos: readable by a decoder, of the right size and length, and without influence on training."""

from pathlib import Path

import av
import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.view import Video

SMALL = dict(num_envs=8, num_steps=8, num_minibatches=2, total_timesteps=8 * 8 * 4, device="cpu")


def decode(path: Path) -> tuple[str, str, list[np.ndarray]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return stream.codec_context.name, stream.codec_context.pix_fmt, frames


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Probe3-v0"])
def test_a_recording_is_h264_with_a_frame_per_step_of_the_longest_episode(env, tmp_path):
    agent = tr.PPO(env, **SMALL)
    path = agent.record(tmp_path / "new" / "video.mp4", episodes=4, seed=5)
    codec, pixels, frames = decode(path)
    assert (codec, pixels) == ("h264", "yuv420p")
    assert len(frames) == max(agent.evaluate(episodes=4, seed=5).lengths)
    height, width = agent.score_env.draw(agent.state.obs[:1]).shape[1:3]
    assert frames[0].shape == (2 * height, 2 * width, 3)
    assert list(tmp_path.glob("**/*.tmp")) == []


def test_recording_changes_no_training_number(tmp_path):
    quiet, busy = tr.PPO("CartPole-v1", **SMALL), tr.PPO("CartPole-v1", **SMALL)
    for agent in (quiet, busy):
        agent.learn(128, quiet=True)
        if agent is busy:
            agent.record(tmp_path / "a.mp4", episodes=2)
        agent.learn(256, quiet=True)
    assert torch.equal(quiet.state.optimizer.flat, busy.state.optimizer.flat)


def test_a_failed_video_leaves_nothing_behind(tmp_path):
    def fail_midway():
        with Video(tmp_path / "a.mp4") as video:
            video.add(np.zeros((64, 64, 3), np.uint8))
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert list(tmp_path.iterdir()) == []


def test_odd_sizes_are_trimmed_to_even_ones(tmp_path):
    with Video(tmp_path / "a.mp4") as video:
        for _ in range(3):
            video.add(np.full((65, 33, 3), 200, np.uint8))
    assert [f.shape for f in decode(tmp_path / "a.mp4")[2]] == [(64, 32, 3)] * 3


def test_bad_requests_are_refused(tmp_path):
    agent = tr.PPO("CartPole-v1", **SMALL)
    for bad in (dict(path="video.gif"), dict(path="a.mp4", episodes=0)):
        with pytest.raises(UsageError):
            agent.record(**bad)
