"""Two processes share a study, one is killed half-way: no trial is lost, none is done twice."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import yaml
from forks import PythonProcess
from optuna.trial import FrozenTrial, TrialState
from run_helpers import start_command

from tightrope.tools.sweep.slots import DEAD, OUTCOME, SLOT, WORKER, fills_slot
from tightrope.tools.sweep.storage import close_storage, open_storage, silence_optuna

TRIALS = 5
FLAGS = "--total-timesteps 1536 --num-envs 16 --num-steps 32 --evaluations 3 --seeds-per-trial 2 --eval-episodes 5"
STEPS = 2 * 1536 // 16  # that a trial trains: seeds x phases
GATED = """
import os, pathlib, time
import tightrope as tr

GATE = pathlib.Path(os.environ["GATE"])

class Pole(tr.envs.CartPole):
    time_limit = 50
    steps = 0

    def step(self, action, *rest):
        Pole.steps += len(action) == 16  # and not in evaluations
        while self.is_held():
            GATE.with_suffix(".held").touch()
            time.sleep(0.02)
        return super().step(action, *rest)

    def is_held(self):
        try:
            return Pole.steps > int(GATE.read_text())
        except FileNotFoundError:
            return False
"""
STUDY = "gated-Pole__ppo"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def start(folder: Path, storage: str, gate: Path) -> PythonProcess:
    """The command as a user types it. Its environment waits after as many steps as the file `gate` says, while it is there."""
    (folder / "gated.py").write_text(GATED)
    search = folder / "search.yaml"
    search.write_text("learning_rate: {low: 1e-4, high: 1e-2, log: true}\ngamma: {low: 0.9, high: 0.999}\n")
    words = f"sweep gated:Pole --trials {TRIALS} --storage {storage} --search {search} {FLAGS}".split()
    variables = dict(XDG_CACHE_HOME=str(folder.parent / "cache"), GATE=str(gate))
    return start_command(*words, variables=variables, cwd=folder, joined=True)


def trials_of(storage: str) -> list[FrozenTrial]:
    silence_optuna()
    opened = open_storage(storage)
    try:
        return optuna.load_study(study_name=STUDY, storage=opened).get_trials()
    except KeyError:
        return []
    finally:
        close_storage(opened)


def its(worker: PythonProcess, storage: str, *states: TrialState) -> list[FrozenTrial]:
    mine = [trial for trial in trials_of(storage) if trial.user_attrs.get(WORKER, {}).get("pid") == worker.pid]
    return [trial for trial in mine if trial.state in states]


def wait_for(happened: Callable[[], object], *workers: PythonProcess) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        for worker in workers:
            assert worker.poll() is None, worker.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgres"])
def test_two_processes_share_a_study_and_one_is_killed_half_way(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storages = {"journal": str(tmp_path / "study.journal"), "sqlite": f"sqlite:///{tmp_path}/study.db"}
    storage = storages.get(kind) or request.getfixturevalue("postgres")
    gates = [tmp_path / "one", tmp_path / "other"]
    gates[0].write_text(str(STEPS + STEPS // 4))  # in the middle of its second trial
    gates[1].write_text("0")
    one, other = (start(tmp_path, storage, gate) for gate in gates)
    try:
        # whoever is faster: each ends a trial, and one is killed in the middle of another
        wait_for(gates[0].with_suffix(".held").exists, one, other)
        wait_for(gates[1].with_suffix(".held").exists, one, other)
        gates[1].unlink()
        wait_for(lambda: its(other, storage, *ENDED), one)
        assert len(its(one, storage, *ENDED)) == 1
        [killed] = [trial.number for trial in its(one, storage, TrialState.RUNNING)]
        one.kill()
        said, _ = other.communicate(timeout=180)
    finally:
        for worker in (one, other):
            worker.kill()
            worker.communicate()
    assert other.returncode == 0, said
    assert "not-to-be-shown" not in said
    assert "not-to-be-shown" not in (tmp_path / "sweeps/gated-Pole__ppo/sweep.html").read_text()

    trials = trials_of(storage)
    assert sorted(t.user_attrs[SLOT] for t in trials if fills_slot(t)) == list(range(TRIALS))  # not lost, not doubled
    ended = [trial for trial in trials if trial.state in ENDED]
    assert len(ended) == TRIALS
    assert {trial.state for trial in trials} <= {*ENDED, TrialState.FAIL}
    assert len({tuple(sorted(trial.params.items())) for trial in ended}) == TRIALS

    lost = trials[killed]
    assert (lost.state, lost.user_attrs[OUTCOME]) == (TrialState.FAIL, DEAD)
    [again] = [t for t in trials if t.user_attrs[SLOT] == lost.user_attrs[SLOT] and fills_slot(t)]
    assert again.params.items() >= lost.params.items()
    assert again.user_attrs[WORKER]["pid"] == other.pid
    assert f"trial {killed}: its process died" in said

    best = yaml.safe_load((tmp_path / "sweeps/gated-Pole__ppo/best.yaml").read_text())
    top = max((t for t in ended if t.state == TrialState.COMPLETE), key=lambda t: t.value or 0.0)
    assert best["learning_rate"] == pytest.approx(top.params["learning_rate"])


def test_ctrl_c_gives_the_trial_back_and_the_same_command_goes_on(tmp_path: Path) -> None:
    storage = str(tmp_path / "study.journal")
    gate = tmp_path / "gate"
    gate.write_text(str(STEPS + STEPS // 4))
    first = start(tmp_path, storage, gate)
    wait_for(gate.with_suffix(".held").exists, first)
    first.send_signal(signal.SIGINT)
    gate.unlink()
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "the same command continues" in said
    between = trials_of(storage)
    assert not [trial for trial in between if trial.state == TrialState.RUNNING]
    assert 1 <= sum(map(fills_slot, between)) < TRIALS

    again = start(tmp_path, storage, gate)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "continuing study" in said
    ended = [trial for trial in trials_of(storage) if trial.state in ENDED]
    assert len(ended) == TRIALS
    assert {trial.number for trial in between if trial.state in ENDED} < {trial.number for trial in ended}
