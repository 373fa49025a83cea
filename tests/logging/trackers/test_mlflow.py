"""A real MLflow server on this machine: what it shows of a run, and what happens when it goes away."""

import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_helpers import skip_file_without
from tracker_processes import WITH_VIDEO, process, warnings_in

import tightrope as tr
from tightrope.logging.trackers.mlflow import CHATTY_LOGGERS, quiet_loggers

skip_file_without("mlflow")

SETTINGS = (
    "num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=8 * 32, device='cpu', eval_every=64, eval_episodes=2"
)
TRAIN = f"""
import shutil
{WITH_VIDEO}
settings |= dict(total_timesteps=8 * 32)
agent = tr.PPO("CartPole-v1", **settings, log=["mlflow"], project="rope", run_name="walker", watch=True)
agent.learn(run_dir="run", quiet=True, until=3 * 32)
shutil.copytree("run/checkpoints", "kept")
agent.learn(run_dir="run", quiet=True, until=6 * 32)
shutil.rmtree("run/checkpoints")  # as if it had been killed before it saved
shutil.move("kept", "run/checkpoints")
tr.load("run", learning_rate=0.001).learn(quiet=True)
"""
OUTLIVE = f"""
import os, signal, time
import tightrope as tr
from tightrope.logging.trackers import delivery, mlflow

mlflow.BATCH_SECONDS, delivery.DELIVERY_SECONDS = 0.0, 10.0
sent = mlflow.MLflow._send

def then_it_dies(self):
    sent(self)
    if self.id and os.path.exists("alive"):
        os.remove("alive")
        os.kill(int(os.environ["SERVER"]), signal.SIGTERM)
        time.sleep(2)

mlflow.MLflow._send = then_it_dies
open("alive", "w").close()
agent = tr.PPO("CartPole-v1", {SETTINGS}, log=["mlflow"])
agent.learn(run_dir="second", quiet=True)
began = time.monotonic()
agent = tr.PPO("CartPole-v1", {SETTINGS}, log=["mlflow"])
agent.learn(run_dir="third", quiet=True)
seconds = time.monotonic() - began
plain = tr.PPO("CartPole-v1", {SETTINGS}).learn(quiet=True)
print(agent.steps, seconds, (plain.state.optimizer.flat == agent.state.optimizer.flat).all().item())
"""

TRIED_AGAIN = """
import json, random, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import tightrope as tr

REFUSED = 6
refused = []

class Handler(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        info = dict(run_id="a" * 32, experiment_id="1", status="RUNNING", artifact_uri="file:///x", lifecycle_stage="active")
        experiment = dict(experiment_id="1", name="tightrope", lifecycle_stage="active", artifact_location="file:///nowhere")
        known = dict(create=dict(run=dict(info=info, data=dict())), update=dict(run_info=info))
        known |= {"get-by-name": dict(experiment=experiment), "log-batch": dict()}
        what = self.path.partition("?")[0].rpartition("/")[2]
        busy = what == "log-batch" and len(refused) < REFUSED
        if busy:
            refused.append(what)
        body = json.dumps(known.get(what, dict())).encode()
        self.send_response(503 if busy else 200 if what in known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *_):
        pass

class Chance(tr.envs.CartPole):
    pure = False
    waits = False
    def reward(self, state, action, next_state):
        until = time.monotonic() + 60
        while self.waits and 0 < self.steps and len(refused) < REFUSED and time.monotonic() < until:
            time.sleep(0.01)
        self.steps += 1
        return super().reward(state, action, next_state) * random.random()
    def __init__(self, *given, **named):
        self.steps = 0
        super().__init__(*given, **named)

class Waits(Chance):
    waits = True

def rows(name, env, **settings):
    agent = tr.PPO(env, num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=8 * 32, device="cpu", **settings)
    agent.learn(run_dir=name, quiet=True)
    found = [json.loads(line) for line in open(name + "/metrics.jsonl")]
    return [{k: v for k, v in row.items() if k not in ("time", "charts/SPS")} for row in found]

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
import os
os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:%d" % server.server_port
alone = rows("alone", Chance)
tracked = rows("tracked", Waits, log=["mlflow"])
print(len(refused), tracked == alone)
"""


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Its address and its process's number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/artifacts"]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "server.log").open("w") as log:
        running = subprocess.Popen([*command, *stores], cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/health", running, folder / "server.log")
            yield address, running.pid
        finally:
            running.terminate()
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


def wait_for(page: str, running: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until and running.poll() is None:
        try:
            urllib.request.urlopen(page, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")


def asked(address: str, what: str, **question: Any) -> Any:
    """An answer of its REST API."""
    body = json.dumps(question).encode() if what.endswith("search") else None
    query = "" if body else "?" + "&".join(f"{k}={urllib.request.quote(str(v))}" for k, v in question.items())
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/{what}{query}", data=body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_a_server_shows_the_run_and_may_go_away(tmp_path: Path) -> None:
    with server(tmp_path) as (address, pid):
        done = process(["-c", TRAIN], tmp_path, MLFLOW_TRACKING_URI=address)
        assert done.returncode == 0, done.stderr
        assert warnings_in(done.stderr) == []
        check_run(address, tmp_path)
        patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
        done = process(["-c", OUTLIVE], tmp_path, MLFLOW_TRACKING_URI=address, SERVER=str(pid), **patience)
        assert done.returncode == 0, done.stderr
        steps, seconds, same = done.stdout.split()
        assert same == "True", "a number has changed"
        assert int(steps) == 8 * 32
        assert float(seconds) < 20, "a server that is not there held up training"
        warnings = warnings_in(done.stderr)
        assert len(warnings) == 2, done.stderr
        assert all(line.startswith("warning: MLflow failed and is disabled") for line in warnings), warnings
        assert "Connection refused" in warnings[1]


def test_a_server_that_refuses_for_a_while_changes_no_number(tmp_path: Path) -> None:
    """Whose client draws the time to wait from `random`, as the environment does its rewards."""
    pace = {"MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0", "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0.05"}
    done = process(["-c", TRIED_AGAIN], tmp_path, MLFLOW_HTTP_REQUEST_MAX_RETRIES="7", **pace)
    assert done.stdout.split() == ["6", "True"], done.stderr


def check_run(address: str, folder: Path) -> None:
    experiment = asked(address, "experiments/get-by-name", experiment_name="rope")["experiment"]["experiment_id"]
    (run,) = asked(address, "runs/search", experiment_ids=[experiment])["runs"]
    info, data = run["info"], run["data"]
    assert (info["run_name"], info["status"]) == ("walker", "FINISHED")
    assert json.loads((folder / "run" / "trackers.json").read_text()) == {"mlflow": info["run_id"]}
    parameters = {p["key"]: p["value"] for p in data["params"]}
    assert (parameters["env"], parameters["hidden_sizes"]) == ("CartPole-v1", "[8]")
    assert int(parameters["facts/parameters"]) > 0
    assert all(parameters[f"facts/{name}"] for name in ("torch", "device"))
    tags = {t["key"]: t["value"] for t in data["tags"]}
    assert tags["changed/learning_rate"] == "0.001 from step 96", "what a resume changed"

    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    for tag in sorted(rows[1].keys() - {"step", "charts/SPS", "time"}):
        history = asked(address, "metrics/get-history", run_id=info["run_id"], metric_key=tag)["metrics"]
        steps = [int(point["step"]) for point in history]
        assert steps == [row["step"] for row in rows if row.get(tag) is not None], tag
        values = {int(point["step"]): point["value"] for point in history}
        for row in rows[:3] + rows[6:]:  # between, the tracker keeps what was there before the kill
            if row.get(tag) is not None:
                assert values[row["step"]] == pytest.approx(row[tag], rel=1e-6), tag
    watched = [metric["key"] for metric in data["metrics"] if metric["key"].startswith("gradients/")]
    history = asked(address, "metrics/get-history", run_id=info["run_id"], metric_key=watched[0])["metrics"]
    assert [int(point["step"]) for point in history] == [row["step"] for row in rows]

    def listed(path: str) -> dict[str, int]:
        files = asked(address, "artifacts/list", run_id=info["run_id"], path=path)["files"]
        return {file["path"]: int(file["file_size"]) for file in files}

    assert listed("videos") == {"videos/phase0002.mp4": (folder / "run/videos/phase0002.mp4").stat().st_size}
    checkpoint = "checkpoints/" + json.loads((folder / "run" / "checkpoints" / "latest").read_text())["checkpoint"]
    files = [f"{checkpoint}/{name}" for name in ("manifest.json", "model.safetensors", "training.safetensors")]
    assert {f"model/{file}" for file in files} == set(listed(f"model/{checkpoint}"))
    for file in ("config.yaml", *files):
        copy = folder / "downloaded" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        page = f"{address}/get-artifact?run_uuid={info['run_id']}&path=model/{file}"
        with urllib.request.urlopen(page, timeout=20) as answer:
            copy.write_bytes(answer.read())
    assert tr.load(folder / "downloaded").evaluate(10) == tr.load(folder / "run").evaluate(10)


def test_without_a_server_it_has_the_score_and_says_nothing_of_its_database(tmp_path: Path) -> None:
    words = "train CartPole-v1 --log mlflow --run-dir run --num-envs 4 --num-steps 8 --total-timesteps 64 --device cpu"
    done = process(["-m", "tightrope", *words.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "INFO" not in done.stderr
    score = json.loads((tmp_path / "run" / "scores.jsonl").read_text())
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        points = database.execute("select step, value from metrics where key = 'eval/episodic_return'").fetchall()
    assert points == [(64, pytest.approx(score["mean"]))]
    (config,) = (tmp_path / "mlruns").rglob("model/config.yaml")
    assert tr.load(config.parent).evaluate(100).mean == score["mean"]


def test_its_warnings_are_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("mlflow.store.db.utils")
    for name in CHATTY_LOGGERS:
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "INFO")
    quiet_loggers()
    assert all(logging.getLogger(name).level == logging.NOTSET for name in CHATTY_LOGGERS), "the user has asked for it"
    monkeypatch.delenv("MLFLOW_LOGGING_LEVEL")
    quiet_loggers()
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    assert logger.isEnabledFor(logging.WARNING)
    assert not logger.isEnabledFor(logging.INFO)
