"""Weights & Biases in offline mode: its own tooling reads what a run wrote. Its client has a process of its own here."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from run_helpers import skip_file_without
from tracker_processes import WITH_VIDEO, process, warnings_in

import tightrope as tr

skip_file_without("wandb")

TRAIN = f"""
{WITH_VIDEO}
settings |= dict(total_timesteps=6 * 32)
agent = tr.PPO("CartPole-v1", **settings, log=["wandb"], watch=True, project="rope", run_name="walker")
agent.learn(run_dir="run", quiet=True, until=4 * 32)
again = tr.load("run").learn(quiet=True)
plain = tr.PPO("CartPole-v1", **settings).learn(quiet=True)
print((plain.state.optimizer.flat == again.state.optimizer.flat).all().item())
"""


def records(folder: Path, *options: str) -> str:
    tool = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", *options]
    done = process([*tool, str(next(folder.glob("run-*.wandb")))], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_own_tooling_reads_an_offline_run_and_its_continuation(tmp_path: Path) -> None:
    done = process(["-c", TRAIN], tmp_path, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert warnings_in(done.stderr) == []
    assert done.stdout.split() == ["True"], "a number has changed"
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    summary = json.loads(records(parts[0], "--summary"))
    assert (summary["project"], summary["name"], summary["state"]) == ("rope", "walker", "finished")
    assert summary["run_id"] == json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]
    assert json.loads(records(parts[1], "--summary"))["run_id"] == summary["run_id"], "a resumed run is the same run"
    config = summary["config"]
    assert (config["env"], config["hidden_sizes"]) == ("CartPole-v1", [8])
    assert config["facts/parameters"] > 0
    assert all(config[f"facts/{name}"] for name in ("torch", "device"))

    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    history: list[dict[str, Any]] = []
    artifacts = []
    for part in parts:
        for line in records(part).splitlines():
            record = json.loads(line)
            history += [record["history"]["item"]] if record["type"] == "history" else []
            artifacts += [line] if record["type"] == "artifact" or "artifact" in record["type"] else []
    assert [item["_step"] for item in history] == [row["step"] for row in rows]
    for item, row in zip(history, rows, strict=True):
        for tag, value in row.items():
            if tag != "step" and value is not None:
                assert item[tag] == pytest.approx(value), tag
        assert any("gradients/" in tag for tag in item), "no histogram"
    assert [(item["_step"], item["video_step"], item["video.caption"]) for item in history if "video_step" in item] == [
        (96, 64, "64 steps")
    ]
    assert any("model" in line for line in artifacts)


def test_every_video_the_last_score_and_the_model_arrive(tmp_path: Path) -> None:
    words = "train CartPole-v1 --log wandb --run-dir run --num-envs 4 --num-steps 8 --total-timesteps 256 --device cpu"
    done = process(["-m", "tightrope", *words.split(), "--video-every", "2", "--quiet"], tmp_path, WANDB_MODE="offline")
    assert (done.returncode, done.stderr) == (0, "")
    (part,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    written = [json.loads(line) for line in records(part).splitlines()]
    history = [record["history"]["item"] for record in written if record["type"] == "history"]
    films = {item["video_step"]: part / "files" / item["video.path"] for item in history if "video_step" in item}
    videos = sorted((tmp_path / "run" / "videos").glob("*.mp4"))
    assert len(videos) == 4
    assert [films[32 * phase].read_bytes() for phase in (2, 4, 6, 8)] == [video.read_bytes() for video in videos]
    assert [item["_step"] for item in history if "phase" in item] == [32 * phase for phase in range(1, 9)]

    score = json.loads((tmp_path / "run" / "scores.jsonl").read_text())
    ((step, mean),) = [(x["_step"], x["eval/episodic_return"]) for x in history if "eval/episodic_return" in x]
    assert (step, mean) == (256, pytest.approx(score["mean"]))

    (model,) = [record["artifact"] for record in written if record["type"] == "artifact"]
    for file in model["manifest"]["contents"]:
        copy = tmp_path / "downloaded" / file["path"]
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(file["local_path"]).read_bytes())
    assert tr.load(tmp_path / "downloaded").evaluate(100).mean == score["mean"]


def test_without_an_account_it_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    done = process(["-m", "tightrope", "train", "CartPole-v1", "--log", "wandb", "--run-dir", "run"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "tightrope: log wandb needs an account: `wandb login` once, or WANDB_MODE"
    )
    assert not (tmp_path / "run").exists()
