"""What others have written to a storage: settings that are not searched and malformed attributes change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from tightrope.tools.sweep.storage import IDENTITY, open_storage, silence_optuna

FLAGS = (
    "--total-timesteps 512 --num-envs 8 --num-steps 32 --evaluations 1 --seeds-per-trial 1 --eval-episodes 1 --seed 5"
)
FLAGS += " --search search.yaml --sweep-dir s"
Command = Callable[..., tuple[int, str, str]]


def stored(state: str = "COMPLETE", gamma: float | None = 0.95, **changes: Any) -> dict[str, Any]:
    params = {} if gamma is None else {"gamma": gamma}
    value = {"value": 1e9} if state == "COMPLETE" else {}
    return {"state": TrialState[state], "params": params, "distributions": {}, **value, **changes}


EVIL = {"network": "evil:Evil"}
STRANGE: dict[str, dict[str, Any]] = {
    "a network to import": stored(
        user_attrs={"place": 0, "settings": EVIL}, params={"gamma": 0.95, **EVIL},
        distributions={"network": CategoricalDistribution(["evil:Evil"])},
    ),
    "settings beside its values": stored(user_attrs={"place": 0, "settings": {**EVIL, "gamma": 0.5}}),
    "a value outside": stored(gamma=0.5, distributions={"gamma": FloatDistribution(0, 1)}),
    "no values": stored(gamma=None),
    "an infinite score": stored(value=float("inf")),
    "a place that is text": stored(user_attrs={"place": "x"}),
    "a place that is a list": stored("RUNNING", None, user_attrs={"place": [0]}),
    "a place below 0": stored("RUNNING", None, user_attrs={"place": -1}),
    "a worker that is text": stored("RUNNING", None, user_attrs={"place": 1, "worker": "x"}),
    "scores that are text": stored(user_attrs={"scores": "many"}),
    "scores of text": stored(user_attrs={"scores": ["x"]}),
    "an outcome that is a list": stored("FAIL", None, user_attrs={"place": 0, "outcome": [1]}),
    "a failure to try again": stored("FAIL", 7.0, user_attrs={"place": 1}, distributions={"gamma": FloatDistribution(0, 9)}),
    "waiting with a value outside": stored("WAITING", None, system_attrs={"fixed_params": {"gamma": 7.0}}),
    "waiting with a network to import": stored("WAITING", None, user_attrs={"place": 1}, system_attrs={"fixed_params": EVIL}),
    "waiting with no settings": stored("WAITING", None, user_attrs={"place": 1}, system_attrs={"fixed_params": 3}),
    "waiting with a place that is a list": stored("WAITING", None, user_attrs={"place": [0]}),
}  # fmt: skip
HARMLESS = [name for name in STRANGE if name.startswith(("settings", "waiting"))]  # nothing reads what is strange


@pytest.fixture(autouse=True)
def files(sweep: Command) -> None:
    Path("search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    Path("evil.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")


def load_study() -> optuna.Study:
    silence_optuna()
    return optuna.load_study(study_name="s", storage=open_storage("s/study.journal"))


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_trial_is_left_out_with_one_line(name: str, sweep: Command) -> None:
    assert sweep(f"--trials 1 {FLAGS}")[0] == 0
    strange = STRANGE[name]
    gamma = {"gamma": FloatDistribution(0.9, 0.99)} if "gamma" in strange["params"] else {}
    load_study().add_trial(optuna.create_trial(**strange | {"distributions": gamma | strange["distributions"]}))
    code, out, err = sweep(f"--trials 2 {FLAGS}")
    assert code == 0
    assert "2 of 2 done" in out
    best = yaml.safe_load(Path("s/best.yaml").read_text())
    assert best["network"] is None
    assert 0.9 <= best["gamma"] <= 0.99
    assert not Path("imported").exists()
    assert name == "settings beside its values" or "trial 1," not in out
    assert err.count("\n") == (name not in HARMLESS)
    assert name in HARMLESS or err.startswith("warning: trial 1 of the storage is left out: ")


@pytest.mark.parametrize("identity", ["text", [1], 3, {"search": "x"}])
def test_a_study_of_others_is_refused_in_one_line(identity: Any, sweep: Command) -> None:
    Path("s").mkdir()
    study = optuna.create_study(study_name="s", storage=open_storage("s/study.journal"), direction="maximize")
    study.set_user_attr(IDENTITY, identity)
    code, _, err = sweep(f"--trials 1 {FLAGS}")
    assert (code, err.count("\n")) == (2, 1)


def test_many_strange_trials_are_few_lines(sweep: Command) -> None:
    assert sweep(f"--trials 1 {FLAGS}")[0] == 0
    study = load_study()
    for _ in range(20):
        study.add_trial(optuna.create_trial(state=TrialState.FAIL, user_attrs={"place": "x"}))
    code, _, err = sweep(f"--trials 1 {FLAGS}")
    assert (code, err.count("\n")) == (0, 5)
    assert "not named" in err.splitlines()[-1]
