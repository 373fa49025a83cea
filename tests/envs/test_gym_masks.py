"""Action masks of Gymnasium environments: wrong ones are one line, and `check` plays what they forbid."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest

import tightrope as tr
from tightrope.envs.checker import CheckReport, check
from tightrope.errors import EnvError

SMALL: dict[str, Any] = dict(num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=32, device="cpu")


class Line(gymnasium.Env):
    """Three moves on a line. A move over its edge is forbidden, and `over` says what it does."""

    observation_space = gs.Box(-9, 9, (1,), np.float32)
    action_space = gs.Discrete(3)

    def __init__(self, over: str = "refused", mask: Callable[["Line"], Any] | None = None) -> None:
        self.over, self.masked, self.x, self.t = over, mask or Line.mask, 0, 0

    def mask(self) -> Any:
        return np.array([self.x > -3, 1, self.x < 3], np.int8)

    def shown(self) -> tuple[Any, dict[str, Any]]:
        return np.array([self.x], np.float32), {"action_mask": self.masked(self)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = int(self.np_random.integers(-3, 4)), 0
        return self.shown()

    def step(self, action: Any) -> Any:
        self.t, moved = self.t + 1, self.x + int(action) - 1
        if abs(moved) > 3 and self.over == "refused":
            raise ValueError("over the edge")
        fallen = abs(moved) > 3 and self.over == "ends"
        self.x = moved if abs(moved) <= 3 or self.over == "taken" else self.x
        self.x = int(np.clip(self.x, -9, 9))
        obs, info = self.shown()
        return obs, float(-abs(self.x)), fallen, self.t >= 20, info


# wrong masks ------------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "too short": (np.ones(2, np.int8), "info['action_mask'] has shape (2,): give one entry for each of 3 options"),
    "too long": (np.ones((1, 4)), "info['action_mask'] has shape (1, 4): give one entry for each of 3 options"),
    "several": (np.ones((2, 3)), "info['action_mask'] has 2 rows for 1 observations"),
    "text": ("yes", "info['action_mask'] 'yes' is not numbers: give 0 or 1 for each of 3 options"),
    "texts": (["1", "1", "1"], "is not numbers: give 0 or 1 for each of 3 options"),
    "complex": (np.ones(3, complex), "is not numbers: give 0 or 1 for each of 3 options"),
    "objects": ([object()] * 3, "is not numbers: give 0 or 1 for each of 3 options"),
    "ragged": ([[1], [1, 1]], "is not numbers: give 0 or 1 for each of 3 options"),
    "two": (np.array([0, 2, 1]), "info['action_mask'] has 2: give 0 for forbidden and 1 for allowed options"),
    "nan": (np.array([0, np.nan, 1]), "info['action_mask'] has nan: give 0 for forbidden"),
    "nothing": (np.zeros(3), "info['action_mask'] allows nothing: allow an option of each choice"),
    "none": (None, "info['action_mask'] is missing: give a mask with every observation"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mask_at_the_first_reset_is_one_line(name: str) -> None:
    mask, words = WRONG[name]
    with pytest.raises(EnvError) as caught:
        tr.PPO(lambda: Line(mask=lambda env: mask), **SMALL)
    assert f"number 0 failed at its reset: {words}" in str(caught.value) or words in str(caught.value)
    assert "MaskError" not in str(caught.value)


@pytest.mark.parametrize("flags", ["", "--vectorization-mode async"])
def test_the_command_line_shows_no_traceback(flags: str, tightrope: Any, own_directory: Path) -> None:
    Path("edge_masks.py").write_text(
        "from test_gym_masks import Line, np\n\nclass Short(Line):\n    def __init__(self):\n"
        "        super().__init__(mask=lambda env: np.ones(2))\n"
    )
    code, _, complaint = tightrope(
        f"train edge_masks:Short --num-envs 2 --num-steps 8 --num-minibatches 1 --total-timesteps 32 --quiet {flags}"
    )
    assert (code, complaint.count("\n")) == (1, 1), complaint
    assert "failed at its reset: info['action_mask'] has shape (2,): give one entry for each of 3 options" in complaint


# forbidden actions ------------------------------------------------------------------------------------------------------


def findings(report: CheckReport) -> set[tuple[str, str]]:
    return {(found.level, found.check) for found in report.findings if "mask" in found.check or "forbid" in found.check}


@pytest.mark.parametrize(
    ("over", "words"), [("refused", "raise an error"), ("ends", "end the episode"), ("ignored", "change nothing")]
)
def test_a_step_that_does_not_take_forbidden_actions_has_no_finding(over: str, words: str) -> None:
    report = check(lambda: Line(over), steps=200)
    assert not findings(report)
    count = report.facts["forbidden"].split()[0]
    assert report.facts["forbidden"] == f"{count} of {count} {words}"
    assert int(count) >= 5
    assert f"actions that masks forbid: {count} of {count} {words}" in "\n".join(report.lines())


def test_a_step_that_takes_forbidden_actions_is_a_note() -> None:
    report = check(lambda: Line("taken"), steps=200)
    assert findings(report) == {("note", "forbidden")}
    (note,) = report.of("note")
    assert "that the masks forbid and goes on, such as action" in note.message
    assert "they pay -4 a step" in note.message, "which is how far over the edge they lead"


def test_a_mask_that_says_the_opposite_is_a_warning() -> None:
    def opposite(env: Line) -> Any:
        return np.array([0, 1, 0], np.int8)

    assert findings(check(lambda: Line("taken", opposite), steps=200)) == {("warning", "inverted mask")}


def test_a_mask_that_forbids_what_is_allowed_and_the_reverse_is_an_error() -> None:
    def shifted(env: Line) -> Any:
        return np.array([env.x < 3, 1, env.x > -3], np.int8)

    report = check(lambda: Line("refused", shifted), steps=200)
    assert not report.ok
    assert "forbid this action by the mask" in "\n".join(report.lines())


def test_taxi_is_sound() -> None:
    report = check("Taxi-v4", steps=400)
    assert not findings(report)
    assert report.facts["forbidden"].endswith("change nothing")
