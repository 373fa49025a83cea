"""Saving and loading: nothing is lost, nothing half-written is left, nothing that is read can run code."""

import ast
import os
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.errors import UsageError
from tightrope.runs.checkpoint import load_config, load_tensors, save_config, save_state, write_file
from tightrope.runs.metrics import read

SMALL = dict(num_envs=3, num_steps=8, total_timesteps=6 * 24, hidden_sizes=(8,), max_episode_steps=5, norm_obs=True)
RUNS: list[tuple[type[tr.Agent], dict[str, Any]]] = [
    (tr.PPO, dict(num_minibatches=2, update_epochs=2, norm_reward=True, anneal_clip=True, env="CartPole-v1")),
    (tr.PPO, dict(num_minibatches=3, share_trunk=True, log_std="state", env="Pendulum-v1")),
    (tr.VPG, dict(baseline="critic", full_reset=False, dead_fraction=0.5, anneal_lr=True, env="CartPole-v1")),
    (tr.VPG, dict(rollout_uses=2, use_importance_weights=True, env="Pendulum-v1")),
]
every_kind_of_run = pytest.mark.parametrize(("cls", "settings"), RUNS, ids=lambda x: getattr(x, "__name__", ""))


def new(cls: type[tr.Agent] = tr.PPO, settings: dict[str, Any] = RUNS[0][1]) -> tr.Agent:
    return cls(**{**SMALL, **settings, "device": "cpu"})


def advance(agent: tr.Agent, phases: int) -> list[dict[str, float]]:
    """The metrics of the next phases."""
    loop = ALGORITHMS[agent.config.algo].loop(agent.state, agent.config.algorithm)
    return [read(metrics) for metrics in islice(loop, phases)]


def assert_same_state(one: tr.Agent, other: tr.Agent) -> None:
    mine, theirs = one.state.state_dict(), other.state.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A directory with a run of two phases."""
    agent = new()
    advance(agent, 2)
    agent.save(tmp_path / "run")
    return tmp_path / "run"


# round trips ----------------------------------------------------------------------------------------------------------


@every_kind_of_run
def test_what_is_loaded_is_what_was_saved(cls: type[tr.Agent], settings: dict[str, Any], tmp_path: Path) -> None:
    agent = new(cls, settings)
    advance(agent, 2)
    agent.state.best_score = 12.5
    agent.save(tmp_path)
    loaded = tr.load(tmp_path)
    assert type(loaded) is cls
    assert loaded.config == agent.config
    assert_same_state(loaded, agent)
    assert (loaded.steps, loaded.state.phase, loaded.state.best_score) == (agent.steps, 2, 12.5)
    optimizer = loaded.state.optimizer
    assert optimizer.first_moment.abs().sum() > 0
    assert all(p.data_ptr() >= optimizer.flat.data_ptr() for p in optimizer.parameters), "no longer one flat buffer"


@every_kind_of_run
def test_a_saved_run_goes_on_as_if_it_had_never_stopped(
    cls: type[tr.Agent], settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = new(cls, settings)
    expected = advance(whole, 6)
    assert whole.state.phase == 6
    assert expected[0] != expected[5]

    stopped = new(cls, settings)
    rows = advance(stopped, 2)
    stopped.save(tmp_path)
    torch.manual_seed(123)  # the global stream plays no part
    resumed = tr.load(tmp_path)
    assert rows + advance(resumed, 4) == expected
    assert_same_state(resumed, whole)
    assert rows + advance(stopped, 4) == expected, "saving disturbed the run that was saved"


def test_a_run_can_be_saved_before_it_begins_and_after_it_has_ended(tmp_path: Path) -> None:
    whole, saved = new(), new()
    saved.save(tmp_path)
    loaded = tr.load(tmp_path)
    assert_same_state(loaded, saved)
    assert advance(loaded, 99) == advance(whole, 99)
    loaded.save(tmp_path)
    assert advance(tr.load(tmp_path), 99) == []


def test_saving_over_an_older_state_replaces_it(run: Path) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    agent.save(run)
    assert_same_state(tr.load(run), agent)
    assert sorted(p.name for p in run.rglob("*") if p.is_file()) == ["config.yaml", "last.safetensors"]


def test_checkpoints_have_names(run: Path) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    save_state(run, agent.state, "best")
    assert tr.load(run, checkpoint="best").state.phase == 3
    assert tr.load(run).state.phase == 2
    with pytest.raises(UsageError, match="'first'"):
        tr.load(run, checkpoint="first")


def test_the_config_is_plain_yaml_of_every_setting(run: Path) -> None:
    assert yaml.safe_load((run / "config.yaml").read_text()) == tr.load(run).config.flat()
    assert load_config(run) == tr.load(run).config


def test_a_saved_config_does_not_change_with_the_presets(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_config(run)
    monkeypatch.setitem(tr.runs.presets.PRESETS, ("CartPole-v1", "ppo"), {"gamma": 0.1})
    assert load_config(run) == before


# files that are not what they should be -------------------------------------------------------------------------------


def assert_refused(path: Path, *parts: str, **settings: Any) -> str:
    with pytest.raises(UsageError) as error:
        tr.load(path, **settings)
    message = str(error.value)
    assert "\n" not in message
    for part in (path.name, *parts):
        assert part in message
    return message


def test_a_directory_that_is_not_a_run(tmp_path: Path) -> None:
    assert_refused(tmp_path, "not a run", "config.yaml")
    assert_refused(tmp_path / "nowhere", "not a run")
    (tmp_path / "file").write_text("hello")
    assert_refused(tmp_path / "file", "not a run")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_run_without_its_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "last.safetensors").unlink()
    assert_refused(run, "last.safetensors")
    (run / "checkpoints" / "last.safetensors").mkdir()
    assert_refused(run, "last.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_checkpoint_that_was_cut_short(run: Path, share: float) -> None:
    path = run / "checkpoints" / "last.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(run, "last.safetensors", "damaged")


def test_a_checkpoint_of_noise(run: Path) -> None:
    (run / "checkpoints" / "last.safetensors").write_bytes(os.urandom(1000))
    assert_refused(run, "last.safetensors", "damaged")


def test_safetensors_of_something_else(run: Path) -> None:
    save_file({"weight": torch.zeros(3)}, run / "checkpoints" / "last.safetensors")
    assert_refused(run, "does not fit")


@pytest.mark.parametrize("missing", ["policy.head.logits.bias", "optimizer.step", "env.clock", "run.obs", "run.phase"])
def test_a_checkpoint_that_lacks_something(run: Path, missing: str) -> None:
    path = run / "checkpoints" / "last.safetensors"
    tensors = load_file(path)
    del tensors[missing]
    save_file(tensors, path)
    assert_refused(run, "does not fit")


@pytest.mark.parametrize(
    "change", [{"hidden_sizes": [16]}, {"num_envs": 4}, {"norm_obs": False}, {"env": "Pendulum-v1"}], ids=str
)
def test_a_checkpoint_that_does_not_fit_the_config_beside_it(run: Path, change: dict[str, Any]) -> None:
    flat = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**flat, **change}))
    message = assert_refused(run, "does not fit")
    assert not message.endswith(":"), "breaks off where the reason would follow"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"env": None}, "env"),
        ({"algo": 3}, "algo"),
        ({"algo": "dqn"}, "'dqn'"),
        ({"gamma": 2}, "gamma 2"),
        ({"gama": 0.9}, "gamma"),
        ({"env": "My-v0"}, "env=..."),
    ],
)
def test_a_config_that_is_not_one(run: Path, change: dict[str, Any], said: str) -> None:
    flat = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**flat, **change}))
    with pytest.raises(UsageError) as error:
        tr.load(run)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# nothing that is read can run code --------------------------------------------------------------------------------------


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


def write_pickle(path: Path, proof: Path) -> None:
    path.write_bytes(pickle.dumps(Payload(proof)))


def write_torch_pickle(path: Path, proof: Path) -> None:
    torch.save(Payload(proof), path)


def write_yaml_tag(path: Path, proof: Path) -> None:
    path.write_text(f"env: CartPole-v1\nalgo: ppo\nseed: !!python/object/apply:os.mkdir ['{proof}']\n")


@pytest.mark.parametrize("write", [write_pickle, write_torch_pickle, write_yaml_tag])
@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/last.safetensors"])
def test_a_pickle_under_a_file_of_ours_is_refused_and_not_run(run: Path, tmp_path: Path, write: Any, name: str) -> None:
    proof = tmp_path / "executed"
    write(run / name, proof)
    with pytest.raises(UsageError) as error:
        tr.load(run)
    assert Path(name).name in str(error.value)
    assert "\n" not in str(error.value)
    assert not proof.exists()


def test_the_payload_of_the_test_above_is_a_real_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "torch.load", "torch.save", "np.load", "numpy.load", "np.save", "eval", "exec", "__import__",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.dump",
}  # fmt: skip
SOURCES = sorted(Path(tr.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(SOURCES[0].parent).as_posix())
def test_no_source_file_can_unpickle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert FORBIDDEN_MODULES.isdisjoint(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS, f"line {node.lineno}"


# all or nothing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_file(run: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    before = load_tensors(run)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(OSError, match="disk full"):
        save_state(run, agent.state)
    with pytest.raises(OSError, match="disk full"):
        save_config(run, agent.config.changed(seed=99))
    monkeypatch.undo()
    after = load_tensors(run)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert load_config(run).run.seed == 1
    assert tr.load(run).state.phase == 2


def test_a_file_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    write_file(path, b"old")
    seen = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda number: (seen.append(path.read_bytes()), fsync(number)))
    write_file(path, b"new and longer")
    assert seen == [b"old"]
    assert path.read_bytes() == b"new and longer"
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_of_another_kind_of_device_loads_with_a_generator_of_its_own(tmp_path: Path) -> None:
    """A CUDA generator's state is of another size than a CPU one's: everything else is restored."""
    agent = tr.PPO("CartPole-v1", num_envs=4, num_steps=8, total_timesteps=32 * 3, device="cpu").learn(quiet=True)
    agent.save(tmp_path)
    tensors = agent.state.state_dict()
    tensors["env.generator"] = torch.zeros(16, dtype=torch.uint8)
    save_file(tensors, tmp_path / "checkpoints" / "last.safetensors")
    assert torch.equal(tr.load(tmp_path).state.optimizer.flat, agent.state.optimizer.flat)
