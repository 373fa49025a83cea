"""Train the policies of the gallery and film them, under build/gallery, from where `make docs` takes them into the site.

    python docs/make/gallery.py            # what trains in seconds
    python docs/make/gallery.py --all      # also what takes minutes on a CPU
    python docs/make/gallery.py --stills   # then also write the pictures in docs/images/gallery again

What is there already is not made again. LunarLander needs the extra box2d, Hopper mujoco.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import av
import cv2
import numpy as np

import tightrope as tr
from tightrope.draw import CAPTION_HEIGHT

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "gallery"
STILLS = ROOT / "docs" / "images" / "gallery"
STILL_WIDTH = 400  # pixels of each half


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A policy to train with its preset and to film."""

    env: str
    settings: Mapping[str, object] = field(default_factory=dict)
    long: bool = False  # trains for minutes, or needs an extra
    before: int = 4  # episodes of the untrained policy in its film
    episodes: int = 1
    moment: float = 0.6  # of the film, that the still shows
    moment_before: float = 0.5


# 10 of the preset's 60 million steps, with rollouts that suit a CPU
SWING_UP = dict(num_envs=128, num_steps=64, total_timesteps=10_000_000)
EXHIBITS = {
    "cartpole": Exhibit(env="CartPole-v1"),
    "pendulum": Exhibit(env="Pendulum-v1", before=1, episodes=2, moment=0.3),
    "mountain-car": Exhibit(env="MountainCar-v0", before=1, episodes=2, moment=0.4),
    "acrobot": Exhibit(env="Acrobot-v1", before=1, episodes=2, moment=0.8),
    "spin-cart": Exhibit(env="SpinCart-v0"),
    "dance-cart": Exhibit(env="DanceCart-v0"),
    "swing-up": Exhibit(env="CartDoublePendulum-v0", settings=SWING_UP, before=1, long=True),
    "lunar-lander": Exhibit(env="LunarLander-v3", episodes=3, long=True, moment=0.12, moment_before=0.1),
    "hopper": Exhibit(env="Hopper-v5", long=True),
}


def make(name: str, exhibit: Exhibit) -> None:
    """Train, film, and write a page to play on, the run's report and its score."""
    run = OUT / "runs" / name
    with tr.PPO(exhibit.env, seed=1) as untrained:
        untrained.record(OUT / f"{name}-before.mp4", episodes=exhibit.before, stochastic=True)
    settings = [f"--{key.replace('_', '-')}={value}" for key, value in exhibit.settings.items()]
    words = ["train", exhibit.env, "--seed=1", f"--run-dir={run}", "--resume", "--quiet", *settings]
    subprocess.run([sys.executable, "-m", "tightrope", *words], check=True)
    with tr.load(run) as agent:
        agent.record(OUT / f"{name}.mp4", episodes=exhibit.episodes)
        if isinstance(agent.score_env, tr.envs.TensorEnv):
            agent.play(OUT / f"{name}.html")
        (OUT / f"{name}-report.html").write_bytes((run / "report.html").read_bytes())
        seconds = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["time"]
        score = f"{agent.steps:,} steps in {seconds:,.0f} s, with seed 1. Greedy return: {agent.evaluate()}."
        (OUT / f"{name}.txt").write_text(score)


def frame_of(film: Path, moment: float) -> np.ndarray:
    """The picture at a share of a film, without its caption."""
    with av.open(str(film)) as file:
        frames = [frame.to_ndarray(format="bgr24") for frame in file.decode(video=0)]
    picture = frames[round(moment * (len(frames) - 1))][:-CAPTION_HEIGHT]
    height = round(STILL_WIDTH * picture.shape[0] / picture.shape[1])
    return cv2.resize(picture, (STILL_WIDTH, height), interpolation=cv2.INTER_AREA)


def make_still(name: str, exhibit: Exhibit) -> None:
    """A picture of the untrained policy beside one of the trained policy."""
    before, after = (
        frame_of(OUT / f"{name}-before.mp4", exhibit.moment_before),
        frame_of(OUT / f"{name}.mp4", exhibit.moment),
    )
    gap = np.full((len(before), 12, 3), 255, np.uint8)
    STILLS.mkdir(parents=True, exist_ok=True)
    picture = np.concatenate([before, gap, after[: len(before)]], 1)
    cv2.imwrite(
        str(STILLS / f"{name}.png"), picture // 8 * 8 + 7, [cv2.IMWRITE_PNG_COMPRESSION, 9]
    )  # the film's noise is large


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(EXHIBITS)}")
    parser.add_argument("--all", action="store_true", help="also those that take minutes")
    parser.add_argument("--stills", action="store_true", help="write their pictures in docs/images/gallery again")
    options = parser.parse_args()
    for name, exhibit in EXHIBITS.items():
        if name in options.names if options.names else options.all or not exhibit.long:
            if not (OUT / f"{name}.txt").exists():  # which is written last
                make(name, exhibit)
            if options.stills:
                make_still(name, exhibit)


if __name__ == "__main__":
    main()
