"""The page of a sweep: names that are only names, and a sweep with nothing to show yet."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from tightrope.tools.sweep.outputs import SweepOutputs, sweep_page
from tightrope.tools.sweep.slots import OUTCOME, SCORES, WORKER, TrialSlots
from tightrope.tools.sweep.space import Choices, Range
from tightrope.tools.sweep.storage import silence_optuna
from tightrope.tools.sweep.worker import Objective
from tightrope.training.config import configure

EVIL = "<script>alert(1)</script>"
SPACE = {"gamma": Range(0.9, 0.999), EVIL: Choices((EVIL,))}


def add_trial(study: optuna.Study, state: TrialState, score: float | None) -> None:
    attributes = {OUTCOME: EVIL, SCORES: [12.0, 13.0], WORKER: {"host": EVIL, "pid": EVIL}}
    params: dict[str, Any] = {"gamma": 0.987654321, EVIL: EVIL}
    distributions = {"gamma": FloatDistribution(0.9, 0.999), EVIL: CategoricalDistribution([EVIL])}
    study.add_trial(
        optuna.create_trial(state=state, value=score, params=params, distributions=distributions, user_attrs=attributes)
    )


@pytest.fixture
def outputs() -> SweepOutputs:
    silence_optuna()
    study = optuna.create_study(study_name=EVIL, direction="maximize")
    config = configure("CartPole-v1", "ppo", {"total_timesteps": 4096})
    defaults = config.to_flat_dict() | {EVIL: EVIL}
    seen: Any = SimpleNamespace(
        env=EVIL, algo="ppo", run=config.run, network=config.network, to_flat_dict=lambda: defaults
    )
    objective = Objective(lambda settings: pytest.fail("nothing trains"), defaults, SPACE, [1, 2], 2)
    storage = "postgresql://u:***@h/db"
    return SweepOutputs(Path(EVIL), objective, TrialSlots(study, 3, {}, SPACE), seen, [], storage)


@pytest.fixture
def with_trials(outputs: SweepOutputs) -> SweepOutputs:
    study = outputs.slots.study
    add_trial(study, TrialState.FAIL, None)
    add_trial(study, TrialState.COMPLETE, 3.0)
    add_trial(study, TrialState.PRUNED, 99.0)
    add_trial(study, TrialState.COMPLETE, 12.5)
    return outputs


def page_of(outputs: SweepOutputs, status: str = "ended") -> str:
    return sweep_page(outputs, outputs.slots.best(), status)


def test_names_are_only_text(with_trials: SweepOutputs) -> None:
    page = page_of(with_trials)
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "***" in page


def test_trials_are_ordered_by_what_they_are_worth(with_trials: SweepOutputs) -> None:
    rows = page_of(with_trials).partition('id="trials"')[2].partition("</table>")[0].split("<tr")[2:]
    assert [row.partition('scope="row">')[2].partition("<")[0] for row in rows] == ["3", "1", "2", "0"]
    assert "marked" in rows[0]
    assert "0.988" in rows[0]


def test_a_sweep_without_a_finished_trial_has_a_page_too(outputs: SweepOutputs) -> None:
    page = page_of(outputs, "running")
    assert "No trial has come to its end yet." in page
    assert '"live":true' in page
