"""What others have written to a storage: settings that are not searched and malformed attributes change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from tightrope.cli import main
from tightrope.runs.sweep.storage import IDENTITY, open_storage, silence_optuna

FLAGS = (
    "--total-timesteps 512 --num-envs 8 --num-steps 32 --evaluations 1 --seeds-per-trial 1 --eval-episodes 1 --seed 5"
)
GAMMA = FloatDistribution(0.9, 0.99)
COMPLETE: dict[str, Any] = dict(state=TrialState.COMPLETE, value=1e9)
RUNNING: dict[str, Any] = dict(state=TrialState.RUNNING)
WAITING: dict[str, Any] = dict(state=TrialState.WAITING, user_attrs={"place": 1})
STRANGE: dict[str, dict[str, Any]] = {
    "a network to import": dict(
        COMPLETE, user_attrs={"place": 0, "settings": {"network": "evil:Evil"}},
        params={"gamma": 0.95, "network": "evil:Evil"}, distributions={"network": CategoricalDistribution(["evil:Evil"])},
    ),
    "settings beside its values": dict(
        COMPLETE, user_attrs={"place": 0, "settings": {"network": "evil:Evil", "gamma": 0.5}}, params={"gamma": 0.91},
    ),
    "a value outside": dict(COMPLETE, params={"gamma": 0.5}, distributions={"gamma": FloatDistribution(0, 1)}),
    "no values": COMPLETE,
    "an infinite score": dict(COMPLETE, value=float("inf"), params={"gamma": 0.95}),
    "a place that is text": dict(COMPLETE, user_attrs={"place": "x"}, params={"gamma": 0.95}),
    "a place that is a list": dict(RUNNING, user_attrs={"place": [0]}),
    "a place below 0": dict(RUNNING, user_attrs={"place": -1}),
    "a worker that is text": dict(RUNNING, user_attrs={"place": 1, "worker": "x"}),
    "scores that are text": dict(COMPLETE, user_attrs={"scores": "many"}, params={"gamma": 0.95}),
    "scores of text": dict(COMPLETE, user_attrs={"scores": ["x"]}, params={"gamma": 0.95}),
    "an outcome that is a list": dict(state=TrialState.FAIL, user_attrs={"place": 0, "outcome": [1]}),
    "failed with a value outside": dict(
        state=TrialState.FAIL, user_attrs={"place": 1}, params={"gamma": 7.0}, distributions={"gamma": FloatDistribution(0, 9)}
    ),
    "waiting with a value outside": dict(WAITING, system_attrs={"fixed_params": {"gamma": 7.0}}),
    "waiting with what is not searched": dict(WAITING, system_attrs={"fixed_params": {"network": "evil:Evil"}}),
    "waiting with no settings": dict(WAITING, system_attrs={"fixed_params": 3}),
    "waiting with a place that is a list": dict(WAITING, user_attrs={"place": [0]}),
}  # fmt: skip
HARMLESS = (
    "settings beside its values",
    *(name for name in STRANGE if name.startswith("waiting")),
)  # nobody reads them


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    Path("evil.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")


def sweep(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(f"sweep CartPole-v1 {FLAGS} --search search.yaml --sweep-dir s {words}".split())
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


def shared_study() -> optuna.Study:
    silence_optuna()
    return optuna.load_study(study_name="s", storage=open_storage("s/study.journal"))


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_trial_is_left_out_with_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--trials 1", capsys)[0] == 0
    strange = {"distributions": {}, **STRANGE[name]}
    if "gamma" in strange.get("params", {}):
        strange["distributions"] = {"gamma": GAMMA, **strange["distributions"]}
    shared_study().add_trial(optuna.create_trial(**strange))
    code, said, complaints = sweep("--trials 2", capsys)
    assert code == 0
    best = yaml.safe_load(Path("s/best.yaml").read_text())
    assert best["network"] is None
    assert 0.9 <= best["gamma"] <= 0.99
    assert not Path("imported").exists()
    assert "2 of 2 done" in said
    assert name == "settings beside its values" or "trial 1," not in said
    assert complaints.count("\n") == (name not in HARMLESS)
    assert name in HARMLESS or complaints.startswith("warning: trial 1 of the storage is left out: ")


@pytest.mark.parametrize("terms", ["text", [1], 3, {"search": "x"}])
def test_a_study_of_others_is_refused_in_one_line(terms: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s").mkdir()
    study = optuna.create_study(study_name="s", storage=open_storage("s/study.journal"), direction="maximize")
    study.set_user_attr(IDENTITY, terms)
    code, _, complaint = sweep("--trials 1", capsys)
    assert (code, complaint.count("\n")) == (2, 1)


def test_many_strange_trials_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep("--trials 1", capsys)[0] == 0
    study = shared_study()
    for _ in range(20):
        study.add_trial(optuna.create_trial(state=TrialState.FAIL, user_attrs={"place": "x"}))
    code, _, complaints = sweep("--trials 1", capsys)
    assert (code, complaints.count("\n")) == (0, 5)
    assert "not named" in complaints.splitlines()[-1]


def test_the_command_for_the_best_allows_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_swept.py").write_text("import tightrope as tr\n\nclass Own(tr.envs.CartPole):\n    pass\n")
    with pytest.raises(SystemExit):
        main(f"sweep own_swept:Own --trials 1 {FLAGS} --search search.yaml --sweep-dir s".split())
    said = capsys.readouterr().out
    command = "tightrope train --config s/best.yaml --allow-import own_swept"
    assert f"`{command}` trains it" in said
    assert command in Path("s/best.yaml").read_text()
    assert command in Path("s/sweep.html").read_text()
    with pytest.raises(SystemExit) as stop:
        main([*command.split()[1:], "--quiet", "--run-dir", "run"])
    assert not stop.value.code
