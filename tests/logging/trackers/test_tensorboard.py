"""TensorBoard's own reader finds every number where it belongs."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import skip_file_without

import tightrope as tr
from tightrope.logging.trackers.tracker import named_scalars

skip_file_without("tensorboard")
pytestmark = pytest.mark.filterwarnings("ignore")
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=12 * 32, device="cpu")
SMALL |= dict(log=["tensorboard"], eval_every=64, eval_episodes=2)


def read_back(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    reader.Reload()
    return reader


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def check_scalars(run_dir: Path, tags: Any = "tightrope", settings: dict[str, Any] | None = None) -> None:
    """Every number of metrics.jsonl, and no other, at its step."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows_of(run_dir):
        known = {k: v for k, v in row.items() if v is not None}
        for tag, value in named_scalars(known, tags).items():
            expected.setdefault(tag, []).append((row["step"], value))
    reader = read_back(run_dir)
    assert set(reader.Tags()["scalars"]) == set(expected)
    for tag, points in expected.items():
        found = [(event.step, event.value) for event in reader.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in points], tag
        assert [x for _, x in found] == pytest.approx([x for _, x in points], rel=1e-6, abs=1e-30), tag


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[tr.PPO, Path]:
    """An agent that was watched, and its run."""
    run = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightrope.logging.trackers.tracker.MIN_PHASES_BETWEEN", 1)
        return tr.PPO("CartPole-v1", **SMALL, watch=True).learn(run_dir=run, quiet=True), run


def test_every_scalar_comes_back_with_its_step(watched: tuple[tr.PPO, Path]) -> None:
    check_scalars(watched[1])
    assert len(read_back(watched[1]).Scalars("losses/entropy")) == 12


def test_and_so_it_does_under_sb3_s_names(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL, tags="sb3").learn(run_dir=tmp_path, quiet=True)
    check_scalars(tmp_path, "sb3", agent.config.to_flat_dict())
    assert read_back(tmp_path).Scalars("train/entropy_loss")[0].value < 0
    assert "losses/entropy" in rows_of(tmp_path)[0], "metrics.jsonl keeps its own names"


@pytest.mark.parametrize(("tags", "name"), [("tightrope", "eval/episodic_return"), ("sb3", "eval/mean_reward")])
def test_the_last_score_is_a_point_of_the_evaluation(tmp_path: Path, tags: Any, name: str) -> None:
    agent = tr.PPO("CartPole-v1", **{**SMALL, "eval_every": 0}, tags=tags)
    score = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5).score
    assert score is not None
    reader = read_back(tmp_path)
    ((step, value),) = [(event.step, event.value) for event in reader.Scalars(name)]
    assert (step, value) == (12 * 32, pytest.approx(score.mean))
    assert all(len(reader.Scalars(tag)) <= 12 for tag in reader.Tags()["scalars"]), "a point appears twice"


def test_settings_and_facts_are_hyper_parameters(watched: tuple[tr.PPO, Path]) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    agent, reader = watched[0], read_back(watched[1])
    content = reader.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert found["learning_rate"].number_value == pytest.approx(agent.config.algorithm.learning_rate)
    assert found["env"].string_value == "CartPole-v1"
    assert found["facts/parameters"].number_value == sum(p.numel() for p in agent.policy.parameters())
    assert found["facts/torch"].string_value
    assert b"CartPole-v1" in reader.Tensors("run/text_summary")[0].tensor_proto.string_val[0]


def test_watching_adds_histograms(watched: tuple[tr.PPO, Path]) -> None:
    agent, reader = watched[0], read_back(watched[1])
    named = dict(agent.policy.named_parameters())
    assert set(reader.Tags()["histograms"]) == {f"{k}/{n}" for k in ("parameters", "gradients") for n in named}
    for name, p in named.items():
        last = reader.Histograms(f"parameters/{name}")[-1]
        assert last.step == 12 * 32
        assert last.histogram_value.num == sum(last.histogram_value.bucket) == p.numel()
        assert last.histogram_value.max == pytest.approx(float(p.max()))
    for module in agent.policy.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks


def test_after_a_resume_from_an_earlier_checkpoint_no_point_appears_twice(tmp_path: Path) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    agent = tr.PPO("CartPole-v1", **SMALL).learn(run_dir=run, quiet=True, until=4 * 32)
    shutil.copytree(run / "checkpoints", kept)
    agent.learn(run_dir=run, quiet=True, until=8 * 32)  # what comes after is lost, as by a kill
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(kept, run / "checkpoints")
    again = tr.load(run)
    assert again.steps == 4 * 32
    again.learn(quiet=True)
    assert len(rows_of(run)) == 12
    check_scalars(run)


def test_without_a_run_directory_it_makes_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tr.PPO("CartPole-v1", **SMALL, run_name="mine").learn(quiet=True)
    assert len(read_back(tmp_path / "runs" / "mine").Scalars("losses/entropy")) == 12


def test_a_full_disk_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    assert tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path, quiet=True).steps == 12 * 32
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: TensorBoard failed and is disabled: OSError: [Errno 28] No space left")


def test_a_run_that_goes_on_within_the_second_has_a_later_file(tmp_path: Path) -> None:
    from tightrope.logging.trackers.tensorboard import EVENTS, wait_for_next_second

    now = int(time.time())
    wait_for_next_second([tmp_path / f"{EVENTS}{now}.host.1.9", tmp_path / f"{EVENTS}odd"])
    assert int(time.time()) > now
    before = time.time()
    wait_for_next_second([tmp_path / f"{EVENTS}{now - 5}.host.1.9", tmp_path / f"{EVENTS}{now + 500}.host.1.9"])
    assert time.time() - before < 0.5  # another machine's clock is nobody's to wait for
