"""Names of scalars, ours and Stable-Baselines3's, and the numbers under them."""

import math
from pathlib import Path

import pytest

import tightrope as tr
from tightrope.logging.trackers.tracker import SB3, scalar_names

ROW = {
    "step": 2048,
    "phase": 3,
    "time": 1.5,
    "losses/policy_loss": -0.25,
    "losses/value_loss": 4.0,
    "losses/entropy": 0.5,
    "losses/approx_kl": 0.01,
    "losses/clipfrac": 0.125,
    "losses/explained_variance": 0.75,
    "losses/grad_norm": 2.0,
    "charts/learning_rate": 3e-4,
    "charts/SPS": 1000.0,
    "charts/episodic_return": 21.0,
    "charts/episodic_length": 20.0,
    "eval/episodic_return": 480.0,
    "eval/episodic_length": 479.0,
}


def test_ours_are_those_of_the_metrics_file() -> None:
    assert scalar_names("tightrope", {})(ROW) == {k: v for k, v in ROW.items() if k != "step"}


def test_what_is_not_finite_is_no_point() -> None:
    row = {"step": 1, "a": math.nan, "b": math.inf, "c": 2.0}
    assert scalar_names("tightrope", {})(row) == {"c": 2.0}


def test_sb3_finds_its_names_and_its_numbers_under_them() -> None:
    expected = {
        "rollout/ep_rew_mean": 21.0,
        "rollout/ep_len_mean": 20.0,
        "train/policy_gradient_loss": -0.25,
        "train/value_loss": 8.0,  # the mean squared error, where ours is half of it
        "train/entropy_loss": -0.5,
        "train/approx_kl": 0.01,
        "train/clip_fraction": 0.125,
        "train/explained_variance": 0.75,
        "train/learning_rate": 3e-4,
        "train/loss": -0.25 - 0.01 * 0.5 + 0.5 * 4.0,
        "time/fps": 1000.0,
        "time/iterations": 3,
        "time/time_elapsed": 1.5,
        "time/total_timesteps": 2048,
        "eval/mean_reward": 480.0,
        "eval/mean_ep_length": 479.0,
        "losses/grad_norm": 2.0,  # they have no word for it
    }
    assert scalar_names("sb3", {"ent_coef": 0.01, "vf_coef": 0.5})(ROW) == pytest.approx(expected)


def test_vpg_has_a2c_s_names() -> None:
    row = {"step": 1, "losses/objective": 0.5, "losses/entropy": 0.25, "losses/value_loss": 1.0}
    named = scalar_names("sb3", {"ent_coef": 0.0})(row)
    assert named == {
        "train/policy_loss": -0.5,
        "train/entropy_loss": -0.25,
        "train/value_loss": 2.0,
        "time/total_timesteps": 1.0,
    }


def test_the_page_on_trackers_has_every_name() -> None:
    page = Path(tr.__file__).parents[1] / "docs" / "reports.md"
    text = page.read_text()
    assert [name for pair in SB3.items() for name in (pair[0], pair[1][0]) if f"`{name}`" not in text] == []
