"""What others have written to a storage: settings that are not searched and malformed attributes change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from tightrope.tools.sweep.slots import TrialSlots
from tightrope.tools.sweep.space import Range
from tightrope.tools.sweep.storage import IDENTITY, open_storage, silence_optuna

FLAGS = (
    "--total-timesteps 512 --num-envs 8 --num-steps 32 --evaluations 1 --seeds-per-trial 1 --eval-episodes 1 --seed 5"
    " --search search.yaml --sweep-dir s"
)
Command = Callable[..., Any]


def stored(state: str = "COMPLETE", gamma: float | None = 0.95, **changes: Any) -> dict[str, Any]:
    params = {} if gamma is None else {"gamma": gamma}
    wide = {} if gamma is None else {"gamma": FloatDistribution(0, 9)}
    value = {"value": 1e9} if state == "COMPLETE" else {}
    return {"state": TrialState[state], "params": params, "distributions": wide, **value, **changes}


EVIL = {"network": "evil:Evil"}
IMPORTING = stored(
    user_attrs={"place": 0, "settings": EVIL}, params={"gamma": 0.95, **EVIL},
    distributions={"gamma": FloatDistribution(0, 9), "network": CategoricalDistribution(["evil:Evil"])},
)  # fmt: skip
STRANGE: dict[str, dict[str, Any]] = {
    "a network to import": IMPORTING, "a value outside": stored(gamma=0.5), "no values": stored(gamma=None),
    "an infinite score": stored(value=float("inf")), "a place that is text": stored(user_attrs={"place": "x"}),
    "a huge place": stored(user_attrs={"place": 10**400}),
    "a place that is a list": stored("RUNNING", None, user_attrs={"place": [0]}),
    "a place below 0": stored("RUNNING", None, user_attrs={"place": -1}),
    "a worker that is text": stored("RUNNING", None, user_attrs={"place": 1, "worker": "x"}),
    "scores that are text": stored(user_attrs={"scores": "many"}),
    "scores of text": stored(user_attrs={"scores": ["x"]}),
    "an outcome that is a list": stored("FAIL", None, user_attrs={"place": 0, "outcome": [1]}),
    "a failure to try again": stored("FAIL", 7.0, user_attrs={"place": 1}),
}  # fmt: skip
WAITING: list[dict[str, Any]] = [  # which nothing reads
    stored("WAITING", None, system_attrs={"fixed_params": {"gamma": 7.0}}),
    stored("WAITING", None, user_attrs={"place": 1}, system_attrs={"fixed_params": EVIL}),
    stored("WAITING", None, user_attrs={"place": 1}, system_attrs={"fixed_params": 3}),
    stored("WAITING", None, user_attrs={"place": [0]}),
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_trial_is_left_out_with_one_line(
    name: str, make_slots: Callable[[int], TrialSlots], capsys: pytest.CaptureFixture[str]
) -> None:
    slots = make_slots(3)
    slots.space = {"gamma": Range(0.9, 0.99)}
    slots.study.add_trial(optuna.create_trial(**STRANGE[name]))
    slots.study.add_trial(optuna.create_trial(**stored(user_attrs={"place": 1, "settings": {**EVIL, "gamma": 0.5}})))
    for _ in range(2):
        assert [trial.number for trial in slots.trials()] == [1]
    assert slots.free() == [0, 2]
    err = capsys.readouterr().err
    assert err == "warning: left out of the storage, as no sweep with these settings wrote them: trials 0\n"


def test_a_sweep_goes_on_among_strange_trials_and_imports_nothing(sweep: Command) -> None:
    Path("search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    Path("evil.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    assert sweep(f"--trials 1 {FLAGS}")[0] == 0
    silence_optuna()
    study = optuna.load_study(study_name="s", storage=open_storage("s/study.journal"))
    for strange in [*STRANGE.values(), *WAITING]:
        study.add_trial(optuna.create_trial(**strange))
    code, out, err = sweep(f"--trials 2 {FLAGS}")
    assert code == 0
    assert "2 of 2 done" in out
    best = yaml.safe_load(Path("s/best.yaml").read_text())
    assert best["network"] is None
    assert 0.9 <= best["gamma"] <= 0.99
    assert not Path("imported").exists()
    assert err.count("\n") == 1
    assert err.endswith("trials 1, 2, 3, 4, 5, ...\n")


@pytest.mark.parametrize("identity", ["text", [1], 3, {"search": "x"}])
def test_a_study_of_others_is_refused_in_one_line(identity: Any, sweep: Command) -> None:
    Path("search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    Path("s").mkdir()
    study = optuna.create_study(study_name="s", storage=open_storage("s/study.journal"), direction="maximize")
    study.set_user_attr(IDENTITY, identity)
    code, _, err = sweep(f"--trials 1 {FLAGS}")
    assert (code, err.count("\n")) == (2, 1)
