"""What a stranger has prepared: forged runs, files of settings, a shared storage. Nothing in them is executed, nothing large is
allocated, and what cannot be used is refused in one line."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks import Case, Skipped, attempt, check_refused, copy_of_good_run, in_directory
from hostile_cases import GROUPS, PROOF
from hostile_cases import Case as Spoil

# forged runs ----------------------------------------------------------------------------------------------------------

FORBIDDEN_EVENTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"}
FORBIDDEN_MODULES = {"antigravity", "this"}
EXECUTED = 98
SECONDS = 30.0  # files of some hundred megabytes are read


def watched() -> None:
    """Leave this process at once if it is about to run what a file brought along."""
    for name in FORBIDDEN_MODULES:
        sys.modules.pop(name, None)
    import_module = importlib.import_module

    def look_first(name: str, package: str | None = None) -> object:
        look("import", (name,))
        return import_module(name, package)

    importlib.import_module = look_first  # type: ignore[assignment]  # it raises no event of its own

    def look(event: str, args: tuple[object, ...]) -> None:
        if event in FORBIDDEN_EVENTS or (event == "import" and str(args[0]) in FORBIDDEN_MODULES):
            os.write(2, f"{event} {args}".encode())
            os._exit(EXECUTED)

    sys.addaudithook(look)


def forged(spoil: Spoil) -> Case:
    """`eval` and `resume` of a run that was spoiled."""

    def case(path: Path) -> str:
        for command, flags in {"eval": ("--episodes", "1"), "resume": ()}.items():
            (path / command).mkdir()
            run = copy_of_good_run(path / command)
            spoil(run)
            if command == "resume" or (run / "checkpoints").exists():
                process = attempt(command, run, *flags, prepare=watched, seconds=SECONDS)
                assert not (run.parent / PROOF).exists(), "something was executed"
                check_refused(process)
        return "refused"

    return case


def forged_runs() -> dict[str, Case]:
    return {f"{group}: {name}": forged(spoil) for group, make in GROUPS.items() for name, spoil in make().items()}


# code that a file of settings or a shared storage names -------------------------------------------------------------------

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
SWEEP += " --eval-episodes 1 --search search.yaml --sweep-dir s --device cpu --threads 1 --trials"


def command(path: Path, words: str, seconds: float = 10.0) -> Any:
    """A command in a directory that has such code; none of it may be executed."""
    (path / "evil.py").write_text(CODE)
    process = attempt(*words.split(), prepare=in_directory(path), seconds=seconds)
    assert not (path / FLAG).exists(), "its code was executed"
    return process


def named_by(config: str) -> Case:
    def case(path: Path) -> str:
        (path / "my.yaml").write_text(config)
        check_refused(command(path, f"train --config my.yaml {SMALL} --run-dir run"))
        assert not (path / "run").exists(), "something was left"
        return "refused"

    return case


def swept(path: Path, poison: Callable[[Callable[..., None]], None]) -> str:
    """A sweep of one trial, then one more after the storage was poisoned; what the second one said."""
    if importlib.util.find_spec("optuna") is None:
        raise Skipped("optuna is not installed")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    def add_trial(**about: Any) -> None:
        """As anybody who may write to the storage can."""
        storage = JournalStorage(JournalFileBackend(str(path / "s" / "study.journal")))
        optuna.load_study(study_name="s", storage=storage).add_trial(optuna.create_trial(**about))

    (path / "search.yaml").write_text("gamma: {low: 0.9, high: 0.99}\n")
    command(path, f"{SWEEP} 1", seconds=60.0).ends(0)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    poison(add_trial)
    return command(path, f"{SWEEP} 2", seconds=60.0).ends(0)


def best_of_a_poisoned_storage(path: Path) -> str:
    def poison(add_trial: Callable[..., None]) -> None:
        from optuna.distributions import CategoricalDistribution, FloatDistribution
        from optuna.trial import TrialState

        params = {"gamma": 0.95, "network": "evil:Net"}
        add_trial(
            state=TrialState.COMPLETE, value=1e9, params=params, user_attrs={"place": 0, "settings": params},
            distributions={"gamma": FloatDistribution(0.9, 0.99), "network": CategoricalDistribution(["evil:Net"])},
        )  # fmt: skip

    swept(path, poison)
    command(path, f"train --config s/best.yaml {SMALL} --run-dir run").ends(0)
    return "left out, best.yaml trained"


def malformed_attributes(path: Path) -> str:
    strange: list[dict[str, Any]] = [{"place": "x"}, {"place": [0]}, {"place": 1, "worker": "x"}, {"scores": "many"}]

    def poison(add_trial: Callable[..., None]) -> None:
        from optuna.trial import TrialState

        for attributes in strange:
            add_trial(state=TrialState.FAIL, user_attrs=attributes)

    output = swept(path, poison)
    assert output.count("is left out") == len(strange), output
    return "left out, named"


def named_code() -> dict[str, Case]:
    return {
        **{name: named_by(config) for name, config in CONFIGS.items()},
        "best.yaml of a poisoned storage": best_of_a_poisoned_storage,
        "malformed attributes in a storage": malformed_attributes,
    }
