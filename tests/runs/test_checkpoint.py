"""Saving and loading: nothing is lost, nothing half-written is left, nothing that is read can run code."""

import ast
import json
import os
import pickle
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from safetensors.torch import load_file, save

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine.metrics import read
from tightrope.errors import UsageError
from tightrope.files import Place, canonical, digest, write_file
from tightrope.runs import checkpoint
from tightrope.runs.checkpoint import MODEL, TRAINING, find, with_hash
from tightrope.runs.persistence import load_config, save_checkpoint, save_config
from tightrope.types import Rollout

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
    assert loaded.config == agent.config.changed(accelerate="eager")
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


def newest(run: Path) -> Path:
    return sorted((run / "checkpoints").glob("*-steps-*"))[-1]


def files_of(run: Path) -> list[str]:
    return sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file() and p.name != ".lock")


def test_saving_over_an_older_state_replaces_it(run: Path) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    agent.config = agent.config.changed(keep_checkpoints=1)
    agent.save(run)
    assert_same_state(tr.load(run), agent)
    folder = "checkpoints/0002-steps-72"
    assert files_of(run) == [
        *(f"{folder}/{name}" for name in ("manifest.json", MODEL, TRAINING)), "checkpoints/latest", "config.yaml",
    ]  # fmt: skip


def test_another_agent_takes_the_place_of_one_that_was_only_saved(run: Path) -> None:
    other = new(tr.VPG, RUNS[2][1])
    other.save(run)
    assert isinstance(tr.load(run), tr.VPG)
    assert len(list((run / "checkpoints").glob("*-steps-*"))) == 1


def test_an_agent_is_not_saved_over_another_ones_training(tmp_path: Path) -> None:
    trained = new().learn(run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(UsageError, match="holds a run"):
        new().save(tmp_path / "run")
    trained.save(tmp_path / "run")  # its own
    assert_same_state(tr.load(tmp_path / "run"), trained)


def test_checkpoints_have_names(tmp_path: Path) -> None:
    agent = tr.PPO(
        "CartPole-v1", **{**SMALL, "max_episode_steps": 20}, eval_every=24, eval_episodes=2, keep_checkpoints=9
    )
    agent.learn(run_dir=tmp_path, quiet=True)
    best = find(tmp_path, "best")
    assert tr.load(tmp_path, checkpoint="best").state.best_score == best.manifest["score"]
    for path in (tmp_path / "checkpoints").glob("*-steps-*"):
        assert tr.load(tmp_path, checkpoint=path.name).steps == tr.load(path).steps == int(path.name.split("-")[-1])
    with pytest.raises(UsageError, match=r"'first'.*0001-steps-24"):
        tr.load(tmp_path, checkpoint="first")


def test_without_evaluations_there_is_no_best(run: Path) -> None:
    with pytest.raises(UsageError, match=r"'best'.*eval_every"):
        tr.load(run, checkpoint="best")


def test_the_last_few_and_the_best_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([1.0, 5.0, 3.0, 5.0, 2.0, 4.0])
    monkeypatch.setattr(
        "tightrope.runs.scoring.evaluate", lambda *_: tr.Evaluation(returns=[next(scores)], lengths=[1])
    )
    agent = tr.PPO("CartPole-v1", **SMALL, eval_every=24, save_seconds=0, keep_checkpoints=2, device="cpu")
    agent.learn(run_dir=tmp_path, quiet=True)
    assert [p.name for p in sorted((tmp_path / "checkpoints").glob("[0-9]*"))] == [
        "0002-steps-48", "0005-steps-120", "0006-steps-144",
    ]  # fmt: skip
    assert find(tmp_path, "best").steps == 48


def test_the_config_is_plain_yaml_of_every_setting(run: Path) -> None:
    assert yaml.safe_load((run / "config.yaml").read_text()) == tr.load(run).config.flat()
    assert load_config(run) == tr.load(run).config


def test_a_saved_config_does_not_change_with_the_presets(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tr.load(run).config
    monkeypatch.setitem(tr.runs.presets.PRESETS, ("CartPole-v1", "ppo"), {"gamma": 0.1})
    assert tr.load(run).config == load_config(run) == before


def test_the_manifest_says_what_there_is(run: Path) -> None:
    manifest = find(run).manifest
    assert (manifest["steps"], manifest["phase"], manifest["schema"]) == (48, 2, 1)
    assert manifest["config"] == tr.load(run).config.flat()
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["observation"] == {
        "kind": "Box",
        "shape": [4],
        "low": "-inf",
        "high": "inf",
        "dtype": "torch.float32",
    }
    assert {*manifest["files"]} == {MODEL, TRAINING}
    assert all(name.startswith("policy.") for name in load_file(newest(run) / MODEL))


def test_what_the_settings_beside_it_say_does_not_matter(run: Path) -> None:
    before = tr.load(run)
    (run / "config.yaml").write_text("not: [a config")
    assert tr.load(run).config == before.config


# files that are not what they should be -------------------------------------------------------------------------------


def assert_refused(path: Path, *parts: str, **settings: Any) -> str:
    with pytest.raises(UsageError) as error:
        tr.load(path, **settings)
    message = str(error.value)
    assert "\n" not in message
    for part in (path.name, *parts):
        assert part in message
    return message


def forge(run: Path, manifest: dict[str, Any] | None = None, **files: bytes | dict[str, torch.Tensor]) -> None:
    """Change a checkpoint and make all hashes right again, as someone could who means harm."""
    path = newest(run)
    for name, content in files.items():
        (path / f"{name}.safetensors").write_bytes(content if isinstance(content, bytes) else save(content))
    given = find_manifest(path)
    given["files"] = {
        name: {"size": len(content), "sha256": digest(content)}
        for name in (MODEL, TRAINING)
        for content in [(path / name).read_bytes()]
    }
    given |= manifest or {}
    given.pop("sha256")
    (path / "manifest.json").write_bytes(canonical(with_hash(given)))
    pointer = {"checkpoint": path.name, "sha256": digest((path / "manifest.json").read_bytes())}
    (path.parent / "latest").write_bytes(canonical(pointer))


def find_manifest(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "manifest.json").read_text()))


def test_a_directory_that_is_not_a_run(tmp_path: Path) -> None:
    assert_refused(tmp_path, "not a run", "config.yaml")
    assert_refused(tmp_path / "nowhere", "not a run")
    (tmp_path / "file").write_text("hello")
    assert_refused(tmp_path / "file", "not a run")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_run_without_its_checkpoints(run: Path) -> None:
    shutil.rmtree(newest(run))
    assert_refused(run, "no checkpoint yet", "resume")


def test_a_manifest_of_another_schema_says_who_wrote_it(run: Path) -> None:
    forge(run, {"schema": 7, "versions": {"tightrope": "9.1"}})
    assert_refused(run, "schema '7'", "tightrope 9.1", tr.__version__)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("name", ["manifest.json", MODEL, TRAINING])
def test_a_checkpoint_that_was_cut_short(run: Path, name: str, share: float) -> None:
    path = newest(run) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(run, name, "no good checkpoint")


@pytest.mark.parametrize("name", ["manifest.json", MODEL, TRAINING])
def test_the_newest_good_checkpoint_takes_the_place_of_a_damaged_one(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    agent.save(run)
    (newest(run) / name).write_bytes(os.urandom(1000))
    assert tr.load(run).state.phase == 2
    err = capsys.readouterr().err
    assert name in err
    assert "0002-steps-72" in err
    assert "using 0001-steps-48" in err


def test_a_damaged_pointer_is_named_and_does_no_harm(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"", b"noise", canonical({"checkpoint": "../../x", "sha256": ""}), canonical({"checkpoint": []})):
        (run / "checkpoints" / "latest").write_bytes(content)
        assert tr.load(run).state.phase == 2
        assert "latest is damaged" in capsys.readouterr().err


def test_safetensors_of_something_else(run: Path) -> None:
    forge(run, model={"weight": torch.zeros(3)})
    assert_refused(run, "does not fit")


@pytest.mark.parametrize(
    "missing", ["policy.head.logits.bias", "optimizer.step", "env.clock", "run.obs", "run.phase", "streams.numpy"]
)
def test_a_checkpoint_that_lacks_something(run: Path, missing: str) -> None:
    file = "model" if missing.startswith("policy") else "training"
    tensors = load_file(newest(run) / f"{file}.safetensors")
    del tensors[missing]
    forge(run, **{file: tensors})
    assert_refused(run)


@pytest.mark.parametrize(
    "change", [{"hidden_sizes": [16]}, {"num_envs": 4}, {"norm_obs": False}, {"env": "Pendulum-v1"}], ids=str
)
def test_a_checkpoint_that_does_not_fit_its_settings(run: Path, change: dict[str, Any]) -> None:
    forge(run, {"config": {**find_manifest(newest(run))["config"], **change}})
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
        ({"env": "My-v0"}, "My-v0"),
    ],
)
def test_settings_that_are_none(run: Path, change: dict[str, Any], said: str) -> None:
    forge(run, {"config": {**find_manifest(newest(run))["config"], **change}})
    assert_refused(run, said)


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
@pytest.mark.parametrize("name", ["manifest.json", MODEL, TRAINING])
@pytest.mark.parametrize("with_right_hashes", [False, True])
def test_a_pickle_under_a_file_of_ours_is_refused_and_not_run(
    run: Path, tmp_path: Path, write: Any, name: str, with_right_hashes: bool
) -> None:
    proof = tmp_path / "executed"
    write(newest(run) / name, proof)
    if with_right_hashes and name != "manifest.json":
        forge(run)
    assert_refused(run)
    assert not proof.exists()


def test_a_pickle_in_place_of_the_settings_is_not_run(run: Path, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    shutil.rmtree(run / "checkpoints")
    for write in (write_pickle, write_torch_pickle, write_yaml_tag):
        write(run / "config.yaml", proof)
        with pytest.raises(UsageError, match=r"config\.yaml"):
            load_config(run)
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


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "os.mkdir"])
def test_a_save_that_fails_leaves_what_there_was(run: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    before = {name: (run / name).read_bytes() for name in files_of(run)}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as context:
        context.setattr(failing, fail)
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(run, agent.state, agent.config, keep=1)
    assert before.items() <= {name: (run / name).read_bytes() for name in files_of(run)}.items()
    assert tr.load(run).state.phase in (2, 3)  # it may have been whole already, and only the pointer to it missing
    save_checkpoint(run, agent.state, agent.config, keep=1)
    assert tr.load(run).state.phase == 3
    assert len(list((run / "checkpoints").iterdir())) == 2, "something is left over"


def test_settings_are_replaced_as_a_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    before = (run / "config.yaml").read_bytes()
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_config(run, tr.load(run).config.changed(seed=99))
    assert (run / "config.yaml").read_bytes() == before


def test_a_file_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    path.parent.mkdir()
    write_file(path, b"old")
    seen = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda number: (seen.append(path.read_bytes()), fsync(number)))
    write_file(path, b"new and longer")
    assert seen == [b"old", b"new and longer"]  # the file, then the directory
    assert path.read_bytes() == b"new and longer"
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_of_another_kind_of_device_loads_with_a_generator_of_its_own(tmp_path: Path) -> None:
    """A CUDA generator's state is of another size than a CPU one's: everything else is restored."""
    agent = tr.PPO("CartPole-v1", num_envs=4, num_steps=8, total_timesteps=32 * 3, device="cpu").learn(quiet=True)
    agent.save(tmp_path)
    tensors = load_file(newest(tmp_path) / TRAINING)
    tensors["env.generator"] = torch.zeros(16, dtype=torch.uint8)
    forge(tmp_path, training=tensors)
    assert torch.equal(tr.load(tmp_path).state.optimizer.flat, agent.state.optimizer.flat)


def test_names_that_lead_nowhere_are_passed_over(run: Path) -> None:
    (newest(run).parent / "9999-steps-5").symlink_to("/nonexistent")
    (newest(run).parent / "9998-steps-5").symlink_to(newest(run).parent)
    (newest(run).parent / "9997-steps-5").write_text("")
    assert find(run).path.name == "0001-steps-48"
    assert tr.load(run).steps == 48


def test_a_checkpoint_that_is_always_gone_is_looked_for_a_few_times(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, looks = newest(run), []
    monkeypatch.setattr(
        checkpoint, "list_checkpoints", lambda run: looks.append(run) or [Place.of(path.with_name("9999-steps-5"))]
    )
    with pytest.raises(UsageError, match="no good checkpoint"):
        find(run)
    assert len(looks) == checkpoint.LOOKS


def test_of_many_damaged_checkpoints_a_few_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for serial in range(1000, 1500):
        (run / "checkpoints" / f"{serial}-steps-48").mkdir()
    assert tr.load(run).steps == 48
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "497 checkpoints more cannot be read either; using 0001-steps-48 instead" in said[-1]


def test_a_save_is_found_whatever_numbers_there_are(run: Path) -> None:
    agent = tr.load(run)
    (newest(run).parent / "999999999999-steps-5").mkdir()
    for phases in (1, 1):
        advance(agent, phases)
        save_checkpoint(run, agent.state, agent.config, keep=2)
        assert tr.load(run).steps == agent.steps


def test_damaged_checkpoints_do_not_take_the_place_of_good_ones(run: Path) -> None:
    agent, good = tr.load(run), newest(run)
    for serial in (7, 8, 9):
        shutil.copytree(good, good.with_name(f"{serial:04d}-steps-48"))
    advance(agent, 1)
    save_checkpoint(run, agent.state, agent.config, keep=2)
    assert good.is_dir()
    (newest(run) / MODEL).write_bytes(b"")
    save_checkpoint(run, agent.state, agent.config, keep=2)
    assert good.is_dir()
    save_checkpoint(run, agent.state, agent.config, keep=2)
    assert [path.name[:4] for path in sorted(good.parent.glob("0*"))] == ["0011", "0012"]


def test_writing_a_file_leaves_those_beside_it_alone(tmp_path: Path) -> None:
    (tmp_path / "y.onnx.tmp").write_text("mine")
    write_file(tmp_path / "y.onnx", b"new")
    assert (tmp_path / "y.onnx.tmp").read_text() == "mine"


def test_what_was_being_written_when_a_process_died_is_removed(run: Path) -> None:
    left = [run / ".config.yaml.1.tmp", run / "checkpoints" / ".latest.1.tmp"]
    for path in left:
        path.write_text("half")
    agent = tr.load(run)
    save_checkpoint(run, agent.state, agent.config, keep=2)
    assert not any(path.exists() for path in left)


def test_settings_of_a_rollout_that_was_never_collected_take_no_memory(run: Path) -> None:
    """As many steps as somebody has made everything agree on: nothing is filled before it is trained on."""
    before = resident()
    rollout = Rollout.allocate(4_000_000, tr.load(run).state.env.spawn(4, seed=0))
    assert rollout.obs.nbytes == 256_000_000
    assert rollout.obs.data_ptr() % 64 == rollout.reward.data_ptr() % 64 == 0
    assert not rollout.obs[-1].any()
    assert resident() - before < 100_000_000  # of 900 MB


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("this system does not say how much memory a process has")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_arguments_that_open_files_are_the_users_to_give(tmp_path: Path) -> None:
    sizes: dict[str, Any] = dict(num_envs=1, num_steps=8, num_minibatches=1, device="cpu")
    tr.PPO(with_file, **sizes, env_kwargs={"file": "some/where"}).save(tmp_path)
    with pytest.raises(UsageError, match="pass them again"):
        tr.load(tmp_path, env=with_file)
    assert tr.load(tmp_path, env=with_file, env_kwargs={"file": "some/where"}).steps == 0


def with_file(file: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")
