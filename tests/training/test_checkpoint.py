"""Saving and loading: nothing is lost, nothing half-written is left. What a stranger has written is in test_hostile.py."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from run_helpers import advance, assert_same_state, forge, forge_config, forge_tensors, newest, refusal
from safetensors.torch import load_file, save

import tightrope as tr
from tightrope.files import Place, canonical, write_file
from tightrope.training import checkpoint_reader
from tightrope.training.checkpoint_reader import MODEL, TRAINING, find
from tightrope.training.presets import PRESETS
from tightrope.training.run_directory import load_config
from tightrope.training.saving import save_checkpoint, save_config
from tightrope.types import Rollout

SMALL: dict[str, Any] = dict(
    num_envs=3, num_steps=8, total_timesteps=6 * 24, hidden_sizes=(8,), max_episode_steps=5, norm_obs=True, device="cpu"
)
RUNS: list[tuple[type[tr.Agent], dict[str, Any]]] = [
    (tr.PPO, dict(num_minibatches=2, update_epochs=2, norm_reward=True, anneal_clip=True, env="CartPole-v1")),
    (tr.PPO, dict(num_minibatches=3, share_trunk=True, log_std="state", env="Pendulum-v1")),
    (tr.VPG, dict(baseline="critic", full_reset=False, dead_fraction=0.5, anneal_lr=True, env="CartPole-v1")),
    (tr.VPG, dict(rollout_uses=2, use_importance_weights=True, env="Pendulum-v1")),
]


def new(cls: type[tr.Agent] = tr.PPO, settings: dict[str, Any] = RUNS[0][1]) -> tr.Agent:
    return cls(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def two_phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent, path = new(), tmp_path_factory.mktemp("saved") / "run"
    advance(agent, 2)
    agent.save(path)
    return path


@pytest.fixture
def run(two_phases: Path, tmp_path: Path) -> Path:
    """A directory with a run of two phases."""
    return Path(shutil.copytree(two_phases, tmp_path / "run"))


def names_in(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("[0-9]*"))


# round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "settings"), RUNS, ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_loaded_is_what_was_saved_and_goes_on_as_if_it_had_never_stopped(
    cls: type[tr.Agent], settings: dict[str, Any], tmp_path: Path
) -> None:
    whole, agent = new(cls, settings), new(cls, settings)
    expected = advance(whole, 6)
    assert whole.state.phase == 6
    assert expected[0] != expected[5]
    rows = advance(agent, 2)
    agent.save(tmp_path / "before")
    agent.state.best_score = 12.5
    agent.save(tmp_path / "run")
    loaded = tr.load(tmp_path / "run")
    assert type(loaded) is cls
    assert loaded.config == agent.config.changed(accelerate="eager")
    assert_same_state(loaded, agent, but=())
    assert (loaded.steps, loaded.state.phase, loaded.state.best_score) == (agent.steps, 2, 12.5)
    optimizer = loaded.state.optimizer
    assert optimizer.first_moment.abs().sum() > 0
    assert all(p.data_ptr() >= optimizer.flat.data_ptr() for p in optimizer.parameters), "no longer one flat buffer"
    torch.manual_seed(123)  # the global stream plays no part
    resumed = tr.load(tmp_path / "before")
    assert rows + advance(resumed, 4) == expected
    assert_same_state(resumed, whole, but=())
    assert rows + advance(agent, 4) == expected, "saving disturbed the run that was saved"


def test_a_run_can_be_saved_before_it_begins_and_after_it_has_ended(tmp_path: Path) -> None:
    whole, saved = new(), new()
    saved.save(tmp_path)
    loaded = tr.load(tmp_path)
    assert advance(loaded, 99) == advance(whole, 99)
    loaded.save(tmp_path)
    assert advance(tr.load(tmp_path), 99) == []


def test_saving_over_an_older_state_replaces_it(run: Path) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    agent.config = agent.config.changed(keep_checkpoints=1)
    agent.save(run)
    assert_same_state(tr.load(run), agent)
    files = sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file() and p.name != ".lock")
    folder = "checkpoints/0002-steps-72"
    assert files == [
        *(f"{folder}/{name}" for name in ("manifest.json", MODEL, TRAINING)), "checkpoints/latest", "config.yaml",
    ]  # fmt: skip


def test_an_agent_replaces_one_that_was_only_saved_and_none_that_was_trained(run: Path, tmp_path: Path) -> None:
    new(tr.VPG, RUNS[2][1]).save(run)
    assert isinstance(tr.load(run), tr.VPG)
    assert len(names_in(run)) == 1
    trained = new().learn(run_dir=tmp_path / "trained", quiet=True)
    assert "holds a run" in refusal(new().save, tmp_path / "trained")
    trained.save(tmp_path / "trained")  # its own
    assert_same_state(tr.load(tmp_path / "trained"), trained)


def test_checkpoints_have_names(tmp_path: Path) -> None:
    settings = {**SMALL, "max_episode_steps": 20, "eval_every": 24, "eval_episodes": 2, "keep_checkpoints": 9}
    tr.PPO("CartPole-v1", **settings).learn(run_dir=tmp_path, quiet=True)
    best = find(tmp_path, "best")
    assert tr.load(tmp_path, checkpoint="best").state.best_score == best.manifest["score"]
    for name in names_in(tmp_path):
        path = tmp_path / "checkpoints" / name
        assert tr.load(tmp_path, checkpoint=name).steps == tr.load(path).steps == int(name.split("-")[-1])
    assert_refused(tmp_path, "'first'", "0001-steps-24", checkpoint="first")


def test_the_last_few_and_the_best_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([1.0, 5.0, 3.0, 5.0, 2.0, 4.0])
    monkeypatch.setattr(
        "tightrope.training.scoring.evaluate_policy", lambda *_: tr.Evaluation(returns=[next(scores)], lengths=[1])
    )
    agent = tr.PPO("CartPole-v1", **SMALL, eval_every=24, save_seconds=0, keep_checkpoints=2)
    agent.learn(run_dir=tmp_path, quiet=True)
    assert names_in(tmp_path) == ["0002-steps-48", "0005-steps-120", "0006-steps-144"]
    best, last = tr.load(tmp_path, checkpoint="best"), tr.load(tmp_path)
    assert (best.steps, last.steps) == (48, 144)
    assert best.state.best_score == last.state.best_score == 5.0
    assert any(not torch.equal(a, b) for a, b in zip(best.policy.parameters(), last.policy.parameters(), strict=True))


def test_settings_are_plain_yaml_and_come_from_the_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tr.load(run).config
    assert yaml.safe_load((run / "config.yaml").read_text()) == before.to_flat_dict()
    monkeypatch.setitem(PRESETS, ("CartPole-v1", "ppo"), {"gamma": 0.1})
    assert tr.load(run).config == load_config(run) == before
    (run / "config.yaml").write_text("not: [a config")
    assert tr.load(run).config == before


def test_the_manifest_says_what_there_is(run: Path) -> None:
    manifest = find(run).manifest
    assert (manifest["steps"], manifest["phase"], manifest["schema"]) == (48, 2, 1)
    assert manifest["config"] == tr.load(run).config.to_flat_dict()
    assert manifest["versions"]["torch"] == torch.__version__
    box = {"kind": "Box", "shape": [4], "low": "-inf", "high": "inf", "dtype": "torch.float32"}
    assert manifest["observation"] == box
    assert {*manifest["files"]} == {MODEL, TRAINING}
    assert all(name.startswith("policy.") for name in load_file(newest(run) / MODEL))


# files that are not what they should be -------------------------------------------------------------------------------


def assert_refused(path: Path, *parts: str, **settings: Any) -> None:
    message = refusal(tr.load, path, **settings)
    assert not message.endswith(":"), "breaks off where the reason would follow"
    for part in (path.name, *parts):
        assert part in message


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = newest(run) / name
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    return damage


def other_model(run: Path) -> None:
    (newest(run) / MODEL).write_bytes(save({"weight": torch.zeros(3)}))
    forge(run)


LACKING = ("policy.head.logits.bias", "optimizer.step", "env.clock", "run.obs", "run.phase", "streams.numpy")
REFUSED: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no checkpoints": (lambda run: shutil.rmtree(newest(run)), ("no checkpoint yet", "resume")),
    "another schema": (
        lambda run: forge(run, schema=7, versions={"tightrope": "9.1"}),
        ("schema '7'", "tightrope 9.1", tr.__version__),
    ),
    "other tensors": (other_model, ("does not fit",)),
    **{
        f"{share:.1%} of {name}": (cut(name, share), (name, "no checkpoint that can be read"))
        for name in ("manifest.json", MODEL, TRAINING)
        for share in (0.0, 0.001, 0.5, 0.999)
    },
    **{
        f"no {name}": (lambda run, n=name: forge_tensors(run, MODEL if n[:6] == "policy" else TRAINING, **{n: None}), ())
        for name in LACKING
    },
    **{
        str(change): (lambda run, c=change: forge_config(run, **c), (said,))
        for change, said in [
            ({"hidden_sizes": [16]}, "does not fit"), ({"num_envs": 4}, "does not fit"),
            ({"norm_obs": False}, "does not fit"), ({"env": "Pendulum-v1"}, "does not fit"), ({"env": None}, "env"),
            ({"algo": 3}, "algo"), ({"algo": "dqn"}, "'dqn'"), ({"gamma": 2}, "gamma 2"), ({"gama": 0.9}, "gamma"),
            ({"env": "My-v0"}, "My-v0"),
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", REFUSED)
def test_what_is_damaged_or_does_not_fit_is_refused_in_one_line(run: Path, damage: str) -> None:
    REFUSED[damage][0](run)
    assert_refused(run, *REFUSED[damage][1])


def test_a_directory_that_is_not_a_run(run: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", run / "config.yaml"):
        assert_refused(path, "not a run", "config.yaml" if path.is_dir() else "")
    assert list(tmp_path.iterdir()) == [run]
    assert_refused(run, "'best'", "eval_every", checkpoint="best")


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


def test_names_that_lead_nowhere_are_skipped(run: Path) -> None:
    folder = newest(run).parent
    (folder / "9999-steps-5").symlink_to("/nonexistent")
    (folder / "9998-steps-5").symlink_to(folder)
    (folder / "9997-steps-5").write_text("")
    assert find(run).path.name == "0001-steps-48"
    assert tr.load(run).steps == 48


def test_a_checkpoint_that_is_always_gone_is_looked_for_a_few_times(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, looks = Place.of(newest(run).with_name("9999-steps-5")), []
    monkeypatch.setattr(checkpoint_reader, "list_checkpoints", lambda run: looks.append(run) or [gone])
    assert "no checkpoint that can be read" in refusal(find, run)
    assert len(looks) == checkpoint_reader.LOOKS


def test_of_many_damaged_checkpoints_a_few_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for serial in range(1000, 1500):
        (run / "checkpoints" / f"{serial}-steps-48").mkdir()
    assert tr.load(run).steps == 48
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "497 checkpoints more cannot be read either; using 0001-steps-48 instead" in said[-1]


# all or nothing -------------------------------------------------------------------------------------------------------


def disk_full(*_: Any, **__: Any) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "os.mkdir"])
def test_a_save_that_fails_leaves_what_there_was(run: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    agent = tr.load(run)
    advance(agent, 1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with monkeypatch.context() as context:
        context.setattr(failing, disk_full)
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(run, agent.state, agent.config, keep=1)
        if failing != "os.mkdir":
            with pytest.raises(OSError, match="disk full"):
                save_config(run, agent.config.changed(seed=99))
    assert before.items() <= {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}.items()
    assert tr.load(run).state.phase in (2, 3)  # it may have been complete already, and only the pointer to it missing
    save_checkpoint(run, agent.state, agent.config, keep=1)
    assert tr.load(run).state.phase == 3
    assert len(list((run / "checkpoints").iterdir())) == 2, "something is left over"


def test_a_file_is_never_seen_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, beside = tmp_path / "y.onnx", tmp_path / "y.onnx.tmp"
    beside.write_text("mine")
    write_file(path, b"old")
    seen = []
    fsync = os.fsync
    monkeypatch.setattr("os.fsync", lambda number: (seen.append(path.read_bytes()), fsync(number)))
    write_file(path, b"new and longer")
    assert seen == [b"old", b"new and longer"]  # the file, then the directory
    assert path.read_bytes() == b"new and longer"
    assert sorted(tmp_path.iterdir()) == [path, beside]
    assert beside.read_text() == "mine"


def test_what_was_being_written_when_a_process_died_is_removed(run: Path) -> None:
    left = [run / ".config.yaml.1.tmp", run / "checkpoints" / ".latest.1.tmp"]
    for path in left:
        path.write_text("half")
    agent = tr.load(run)
    save_checkpoint(run, agent.state, agent.config, keep=2)
    assert not any(path.exists() for path in left)


def test_a_save_is_found_whatever_numbers_there_are(run: Path) -> None:
    agent = tr.load(run)
    (newest(run).parent / "999999999999-steps-5").mkdir()
    for _ in range(2):
        advance(agent, 1)
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
    assert [name[:4] for name in names_in(run)] == ["0011", "0012"]


# elsewhere ------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_kind_of_device_loads_with_a_generator_of_its_own(run: Path) -> None:
    """A CUDA generator's state is of another size than a CPU one's: everything else is restored."""
    expected = tr.load(run).state.optimizer.flat
    forge_tensors(run, TRAINING, **{"env.generator": torch.zeros(16, dtype=torch.uint8).numpy()})
    assert torch.equal(tr.load(run).state.optimizer.flat, expected)


def test_settings_of_a_rollout_that_was_never_collected_take_no_memory(run: Path) -> None:
    """However many steps a forged run claims: nothing is filled before it is trained on."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("this system does not say how much memory a process has")

    def resident() -> int:
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    env = tr.load(run).state.env.spawn(4, seed=0)  # first: it may import modules
    before = resident()
    rollout = Rollout.allocate(4_000_000, env)
    assert rollout.obs.nbytes == 256_000_000
    assert rollout.obs.data_ptr() % 64 == rollout.reward.data_ptr() % 64 == 0
    assert not rollout.obs[-1].any()
    assert (
        resident() - before < 250_000_000
    )  # of 900 MB; malloc itself clears the small ones, which it may have had before


def test_arguments_that_open_files_are_the_users_to_give(tmp_path: Path) -> None:
    def with_file(file: str) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1")

    given: dict[str, Any] = {"env_kwargs": {"file": "some/where"}}
    tr.PPO(with_file, num_envs=1, num_steps=8, num_minibatches=1, device="cpu", **given).save(tmp_path)
    assert "pass them again" in refusal(tr.load, tmp_path, env=with_file)
    assert tr.load(tmp_path, env=with_file, **given).steps == 0
