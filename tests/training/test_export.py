"""Exported agents: they do as torch does on every space, need nothing of ours, and a graph that is off is never written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from run_helpers import Spaces, refusal
from torch import Tensor, nn

import tightrope as tr
from tightrope.envs.adapters.actions import ActionWriter
from tightrope.envs.adapters.space_members import stacked
from tightrope.errors import ExportError, UsageError
from tightrope.models.distributions import RULED_OUT
from tightrope.training import export as exporting
from tightrope.training.export import output_errors
from tightrope.training.export_interface import random_rows
from tightrope.types import Box, Composite, Discrete

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.usefixtures("onnxruntime")
INF = float("inf")
TINY = dict(num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=16, hidden_sizes=(8,), device="cpu")


class Averaging(nn.Module):
    """Computes something that torch calls `mean`, as an output is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, obs: Tensor) -> Tensor:
        features = torch.relu(self.layer(obs))
        return features - features.mean(1, keepdim=True)


class Counting(nn.Linear):
    """Its graph holds the number of rows: len() is a number of Python."""

    def __init__(self) -> None:
        super().__init__(4, 8)

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs.reshape(len(obs), -1))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs) if obs.sum() > 0 else self.layer(-obs)


def pixels(*shape: int) -> gs.Box:
    return gs.Box(0, 255, shape, np.uint8)


PARTS = gs.Dict(
    {
        "linear": gs.Box(-1, 1, (2, 2)),  # as torch calls a layer's output
        "value": gs.Box(-1, 1, (), np.float64),  # as one of ours is called
        "eye": pixels(36, 40, 3),
        "hand": gs.Tuple(
            [
                gs.Discrete(3, start=4),
                gs.Dict({"grip": gs.MultiBinary(2), "on": gs.MultiDiscrete([2, 3], start=[1, 5])}),
            ]
        ),
    }
)
CASES: dict[str, tuple[gs.Space, gs.Space, dict[str, Any]]] = {
    "discrete from -2": (gs.Box(-100, 100, (3,), np.int32), gs.Discrete(3, start=-2), dict(norm_obs=True)),
    "multidiscrete": (
        gs.Box(-INF, INF, (3,), np.float64),
        gs.MultiDiscrete([[2, 5], [3, 4]], start=[[1, -1], [0, 7]]),
        dict(norm_obs=True, share_trunk=True, activation="gelu"),
    ),
    "box of its own": (
        gs.Box(-1, 1, (3,)),
        gs.Box(np.array([-1, -3, -INF]), np.array([1, 0.1, INF]), dtype=np.float64),
        dict(network=Averaging()),
    ),
    "matrix box": (gs.Discrete(4, start=5), gs.Box(-2, 2, (2, 2)), dict(log_std="state")),
    "pictures": (pixels(40, 37, 3), gs.Discrete(3), dict()),
    "parts": (PARTS, gs.MultiBinary((2, 2)), dict(norm_obs=True)),
}


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def feed(space: gs.Space, batch: Any, taken: Any, path: str = "") -> dict[str, np.ndarray]:
    """A batch as a user would hand it over: each leaf by its path."""
    if isinstance(space, gs.Dict):
        inner = [feed(s, batch[k], taken, f"{path}/{k}") for k, s in space.spaces.items()]
    elif isinstance(space, gs.Tuple):
        inner = [feed(s, batch[i], taken, f"{path}/{i}") for i, s in enumerate(space.spaces)]
    else:
        name = path.strip("/") or "obs"
        return {f"obs/{name}" if name in taken else name: batch}
    return {name: array for entry in inner for name, array in entry.items()}


@pytest.mark.parametrize("name", list(CASES))
def test_a_graph_does_as_the_agent_does_on_every_space(name: str, tmp_path: Path) -> None:
    observation, action, settings = CASES[name]
    agent = tr.PPO(lambda: Spaces(observation, action), **{**TINY, **settings}).learn(quiet=True)
    done = agent.export(tmp_path / "policy.onnx")
    graph = session(done.path)
    outputs = [output.name for output in graph.get_outputs()]
    assert tuple(outputs) == done.outputs
    assert 0 <= done.max_error < 1e-5
    observation.seed(11)
    for count in (1, 5):
        members = [observation.sample() for _ in range(count)]
        batch = stacked(observation, members)
        got = graph.run(["action"], feed(observation, batch, outputs))[0]
        want = agent.predict(batch)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert all(action.contains(one) for one in got)


def test_what_comes_with_the_action_is_in_the_environments_units(tmp_path: Path) -> None:
    agent = tr.PPO("Pendulum-v1", **TINY, norm_obs=True, log_std_init=-1.0).learn(quiet=True)
    graph = session(agent.export(tmp_path / "policy.onnx").path)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    action, mean, std, value = graph.run(["action", "mean", "std", "value"], {"obs": obs})
    np.testing.assert_allclose(action, mean.clip(-2, 2), atol=1e-6)
    np.testing.assert_allclose(std, 2 * np.full_like(mean, agent.policy.head.log_std.exp().item()), rtol=1e-5)
    np.testing.assert_allclose(value, agent.policy.value(torch.from_numpy(obs)).detach(), atol=1e-5)


def test_exporting_is_silent_and_changes_no_training_number(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = dict(num_envs=2, num_steps=8, total_timesteps=32, hidden_sizes=(8,), device="cpu", baseline="none")
    plain, busy = (tr.VPG("CartPole-v1", **settings) for _ in range(2))
    for agent in (plain, busy):
        agent.learn(16, quiet=True)
        if agent is busy:
            before = torch.get_rng_state()
            capfd.readouterr()
            done = agent.export(tmp_path / "policy.onnx")
            assert capfd.readouterr() == ("", "")
            assert (done.inputs, done.outputs) == (("obs",), ("action", "logits")), "it has no critic"
            assert torch.equal(torch.get_rng_state(), before)
        agent.learn(32, quiet=True)
    assert torch.equal(plain.state.optimizer.flat, busy.state.optimizer.flat)


OWN = """
import torch
import tightrope as tr

class Cart(tr.envs.CartPole):
    pass

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 5), torch.nn.ELU())
"""


def test_a_run_on_an_environment_and_a_network_of_ones_own_which_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_to_export.py").write_text(OWN)
    own = ["--env", "own_to_export:Cart", "--network", "own_to_export:Net"]
    tr.PPO("own_to_export:Cart", network="own_to_export:Net", **TINY).learn(run_dir="run", quiet=True)
    tr.PPO("own_to_export:Cart", **TINY).learn(run_dir="plain", quiet=True)
    code, out, err = run_command("export", "run", "--onnx", "policy.onnx", *own)
    assert (code, out.count("\n"), err) == (0, 1, "")
    assert out.startswith("policy.onnx: obs to action, logits, value, ")
    assert "max error " in out
    sys.modules.pop("own_to_export")
    (tmp_path / "own_to_export.py").unlink()
    code, out, err = run_command("export", "plain", "--onnx", "policy.onnx")
    assert (code, err.count("\n")) == (0, 1)
    assert out.startswith("policy.onnx: obs to action, logits, value, ")
    assert "random observations only" in err


@pytest.mark.gpu
def test_an_agent_on_a_device_is_exported_from_there_and_stays(tmp_path: Path) -> None:
    agent = tr.PPO("Pendulum-v1", **{**TINY, "device": "cuda"}, norm_obs=True).learn(quiet=True)
    assert agent.export(tmp_path / "policy.onnx").max_error < 1e-5
    assert all(parameter.is_cuda for parameter in agent.policy.parameters())


# the file ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and, beside it, its policy."""
    path = tmp_path_factory.mktemp("exported") / "run"
    agent = tr.PPO("Acrobot-v1", **TINY, norm_obs=True).learn(run_dir=path, quiet=True)
    agent.export(path.parent / "policy.onnx")
    return path


@pytest.fixture
def policy(run: Path) -> Path:
    return run.parent / "policy.onnx"


def test_it_runs_where_there_is_neither_torch_nor_tightrope(policy: Path, run: Path) -> None:
    code = f"""
import sys, json, numpy, onnxruntime
policy = onnxruntime.InferenceSession({str(policy)!r})
obs = numpy.linspace(-1, 1, 18, dtype=numpy.float32).reshape(3, 6)
print(json.dumps([policy.run(["action"], {{"obs": rows}})[0].tolist() for rows in (obs, obs[:1])]))
assert not {{"torch", "tightrope", "onnx"}} & set(sys.modules)
"""
    bare = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=policy.parent, env=bare)
    assert done.returncode == 0, done.stderr
    obs = np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 6)
    want = tr.load(run).predict(obs).tolist()
    assert json.loads(done.stdout) == [want, want[:1]]


def test_it_says_what_it_is(policy: Path) -> None:
    words = session(policy).get_modelmeta().custom_metadata_map
    assert {k: words[k] for k in ("tightrope", "env", "algo", "steps")} == {
        "tightrope": tr.__version__, "env": "Acrobot-v1", "algo": "ppo", "steps": "16",
    }  # fmt: skip
    (seen,) = json.loads(words["observation"])
    assert (seen["name"], seen["space"], seen["shape"], seen["dtype"]) == ("obs", "Box", [6], "float32")
    assert json.loads(words["action"]) == {"space": "Discrete", "shape": [], "dtype": "int64", "n": 3, "start": 0}


def test_it_is_small_and_says_nothing_of_this_machine(policy: Path) -> None:
    content = policy.read_bytes()
    assert len(content) < 8_000
    assert b".py" not in content
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    assert [path.name for path in sorted(policy.parent.iterdir())] == ["policy.onnx", "run"]


# what must not be written --------------------------------------------------------------------------------------------


def broken(content: bytes, operator: str) -> bytes:
    """The same graph with one constant of the first such node changed."""
    model = onnx.load_from_string(content)
    node = next(node for node in model.graph.node if node.op_type == operator)
    tensor = next(t for t in model.graph.initializer if t.name in node.input)
    array = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array((array * 1.01 + 0.01).astype(array.dtype), tensor.name))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("operator", ["Gemm", "Sub"])  # a weight; the mean of observations
def test_a_graph_that_is_off_is_not_written(
    operator: str, run: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Any
) -> None:
    monkeypatch.setattr(exporting, "graph", lambda *_: broken(policy.read_bytes(), operator))
    (tmp_path / "policy.onnx").write_text("older")
    code, _, err = run_command("export", run, "--onnx", tmp_path / "policy.onnx")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("tightrope: ")
    assert " is off by " in err
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    assert (tmp_path / "policy.onnx").read_text() == "older"


def test_a_mistake_in_writing_actions_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tr.PPO(lambda: Spaces(gs.Box(-1, 1, (3,)), gs.Discrete(3, start=-2)), **TINY)
    monkeypatch.setattr(ActionWriter, "traced", lambda self, action: [action])  # does not count from -2
    with pytest.raises(ExportError, match=r"action is off by 2\.0"):
        agent.export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no graph"])
def test_what_onnxruntime_cannot_run_is_not_written(
    content: bytes, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "graph", lambda *_: content)
    with pytest.raises(ExportError, match="cannot run"):
        tr.load(run).export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(
    run: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "graph", lambda *_: policy.read_bytes())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"policy\.onnx cannot be written: No space left on device"):
        tr.load(run).export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def outputs(action: Any = (1, 0), logits: Any = ((0.0, 1.0), (1.0, 0.0)), value: Any = (0.0, 5.0)) -> dict[str, Any]:
    return {"action": np.array(action), "logits": np.array(logits, np.float32), "value": np.array(value, np.float32)}


CLOSE, NAN = dict(logits=((0.0, 1e-5), (1.0, 0.0))), float("nan")
MASKED = dict(action=(1, 1), logits=((0.0, 1.0, RULED_OUT),) * 2)


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        (dict(action=(0, 0)), {}, "action is off by 1"),
        (dict(logits=((0.0, 1.0), (1.01, 0.0))), {}, "logits is off by 1.0e-02"),
        (dict(value=(0.0, NAN)), {}, "value is off by nan"),
        (dict(action=np.array((1, 0), np.int32)), {}, r"action is int32\[2\] in the graph and int64\[2\] in torch"),
        (dict(value=((0.0,), (5.0,))), {}, r"value is float32\[2, 1\]"),
        (dict(value=(0.0, NAN)), dict(value=(0.0, NAN)), "has training diverged"),
        # options that are ruled out do not widen what is allowed
        ({**MASKED, "logits": ((0.0, 1.1, RULED_OUT),) * 2}, MASKED, r"logits is off by 1\.0e-01"),
    ],
)
def test_what_is_off_is_named(got: Any, want: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        output_errors(outputs(**got), outputs(**want))


def test_differences_are_of_each_output() -> None:
    errors = output_errors(outputs(value=(0.0, 5.0001)), outputs())
    assert errors["action"] == errors["logits"] == 0.0
    assert errors["value"] == pytest.approx(1e-4, rel=1e-2)  # of numbers up to 5
    either = output_errors(outputs(action=(0, 0), **CLOSE), outputs(**CLOSE))
    assert either["action"] == 0.0, "where two choices are as good, either is right"


def test_random_observations_are_of_the_scale_of_those_seen() -> None:
    spec = Composite((("x", Box((2,))), ("gear", Discrete(3))))
    like = torch.tensor([[1000.0, 0.0, 1.0]]) + torch.randn(256, 3) * torch.tensor([10.0, 0.1, 0.0])
    drawn = random_rows(spec, like, torch.Generator().manual_seed(0))
    assert drawn.shape == like.shape
    assert abs(drawn[:, 0].mean() - 1000) < 10
    assert 20 < drawn[:, 0].std() < 40
    assert 0.2 < drawn[:, 1].std() < 0.4
    assert set(drawn[:, 2].tolist()) == {0.0, 1.0, 2.0}


# wrong requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["RUN"], "export needs a run and a file"), (["--onnx", "p.onnx"], "export needs a run and a file"),
        (["nowhere", "--onnx", "p.onnx"], "nowhere is not a run"), ([".", "--onnx", "p.onnx"], ". is not a run"),
        (["RUN", "--onnx", "p.pt"], "file p.pt is not an ONNX file"),
        (["RUN", "--onnx", "no/such/p.onnx"], "there is no directory no/such"),
        (["RUN", "--onnx", "folder.onnx"], "is a directory"),
        (["RUN", "--onnx", "p.onnx", "--checkpoint", "best"], "no checkpoint 'best'"),
        (["RUN", "--onnx", "p.onnx", "--checkpoint", "first"], "first"),
        (["RUN", "--onnx", "p.onnx", "--env", "CartPole-v1"], "is not module:Class"),
        (["RUN", "--onnx", "p.onnx", "--env", "no_such:Env"], "cannot be imported"),
        (["RUN", "--onnx", "p.onnx", "--stochastic"], "unknown option '--stochastic'"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_in_one_line(
    args: list[str], message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    code, out, err = run_command("export", *(run if word == "RUN" else word for word in args))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.onnx"]


def test_without_the_packages_the_answer_is_how_to_install_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'pip install "tightrope\[onnx\]"'):
        tr.load(run).export(tmp_path / "policy.onnx")


def test_a_network_that_is_no_graph_is_refused_in_one_line(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", network=Branching(), **TINY)
    assert "the network cannot be exported" in refusal(agent.export, tmp_path / "policy.onnx")
    agent = tr.PPO("CartPole-v1", network=Counting(), **TINY)
    assert "2 rows only" in refusal(agent.export, tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", ["gru", "mingru"])
def test_images_and_memory_with_a_shared_trunk(tmp_path: Path, memory: str) -> None:
    class Film(gymnasium.Env[Any, Any]):
        observation_space = gs.Box(0, 255, (40, 40, 3), np.uint8)
        action_space = gs.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return self.observation_space.sample(), float(action), self.t == 5, False, {}

    settings: dict[str, Any] = dict(num_envs=2, num_steps=4, num_minibatches=2, total_timesteps=8, device="cpu")
    agent = tr.PPO(Film, memory=memory, memory_size=8, **settings)
    found = agent.export(tmp_path / "film.onnx")
    assert found.inputs == ("obs", "state")
    assert found.outputs[-1] == "next_state"
    assert found.max_error < 1e-4
