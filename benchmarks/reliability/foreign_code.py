"""Code that a file of settings or a shared storage names: never imported, never called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks import Case, Skipped, attempt, in_directory

SMALL = "--num-envs 2 --num-steps 8 --num-minibatches 1 --total-timesteps 16 --eval-episodes 1 --device cpu --threads 1"
FLAG = "executed"  # made by what must not be executed
CODE = """
import gymnasium, pathlib, torch
import tightrope as tr

(pathlib.Path(__file__).parent / "executed").touch()
gymnasium.register("Theirs-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=500)

class Env(tr.envs.CartPole):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, obs):
        return self.layer(obs)
"""
CONFIGS = {
    "env of a config": "env: evil:Env",
    "train_env of a config": "env: CartPole-v1\ntrain_env: evil:Theirs-v0",
    "network of a config": "env: CartPole-v1\nnetwork: evil:Net",
    "network os:abort of a config": "env: CartPole-v1\nnetwork: os:abort",
    "network http.server:test of a config": "env: CartPole-v1\nnetwork: http.server:test",
}
SWEEP = "sweep CartPole-v1 --num-envs 8 --num-steps 32 --total-timesteps 512 --evaluations 1 --seeds-per-trial 1"
SWEEP_SECONDS = 60.0
SWEEP += " --eval-episodes 1 --search search.yaml --sweep-dir s --device cpu --threads 1 --trials"


def check_nothing_executed(path: Path) -> None:
    assert not (path / FLAG).exists(), "its code was executed"


def refused(config: str) -> Case:
    def case(path: Path) -> str:
        (path / "evil.py").write_text(CODE)
        (path / "my.yaml").write_text(config)
        words = f"train --config my.yaml {SMALL} --run-dir run"
        process = attempt(*words.split(), prepare=in_directory(path))
        check_nothing_executed(path)
        assert process.code == 2, f"exit code {process.code}: {process.output[-300:]}"
        assert process.output.count("\n") == 1, process.output
        assert not (path / "run").exists(), "something was left"
        return "refused"

    return case


def add_trial(path: Path, **about: Any) -> None:
    """As anybody who may write to the storage can."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(path / "s" / "study.journal")))
    optuna.load_study(study_name="s", storage=storage).add_trial(optuna.create_trial(**about))


def swept(path: Path, poison: Callable[[], None]) -> str:
    """A sweep of one trial, then one more after the storage was poisoned; what the second one said."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise Skipped("optuna is not installed") from None
    (path / "evil.py").write_text(CODE)
    (path / "search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    first = attempt(*SWEEP.split(), "1", prepare=in_directory(path), seconds=SWEEP_SECONDS)
    assert first.code == 0, first.output
    poison()
    second = attempt(*SWEEP.split(), "2", prepare=in_directory(path), seconds=SWEEP_SECONDS)
    assert second.code == 0, second.output
    check_nothing_executed(path)
    return second.output


def best_of_a_poisoned_storage(path: Path) -> str:
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.trial import TrialState

    evil = {"network": "evil:Net"}
    swept(path, lambda: add_trial(
        path, state=TrialState.COMPLETE, value=1e9, params={"gamma": 0.95, **evil},
        distributions={"gamma": FloatDistribution(0.9, 0.99), "network": CategoricalDistribution(["evil:Net"])},
        user_attrs={"place": 0, "settings": {"gamma": 0.95, **evil}}))  # fmt: skip
    words = f"train --config s/best.yaml {SMALL} --run-dir run"
    process = attempt(*words.split(), prepare=in_directory(path))
    check_nothing_executed(path)
    assert process.code == 0, f"best.yaml cannot be trained: {process.output}"
    return "left out, best.yaml trained"


def malformed_attributes(path: Path) -> str:
    from optuna.trial import TrialState

    strange: list[dict[str, Any]] = [{"place": "x"}, {"place": [0]}, {"place": 1, "worker": "x"}, {"scores": "many"}]

    def poison() -> None:
        for attributes in strange:
            add_trial(path, state=TrialState.FAIL, user_attrs=attributes)

    output = swept(path, poison)
    assert output.count("is left out") == len(strange), output
    return "left out, named"


def cases() -> dict[str, Case]:
    return {
        **{name: refused(config) for name, config in CONFIGS.items()},
        "best.yaml of a poisoned storage": best_of_a_poisoned_storage,
        "malformed attributes in a storage": malformed_attributes,
    }
