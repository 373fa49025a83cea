"""What was saved loads elsewhere: under other versions, on other machines, on other devices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import assert_same_state, forge, manifest_of, newest
from safetensors.torch import load_file

import tightrope as tr
from tightrope.algorithms import ALGORITHMS

FIRST = Path(__file__).parents[1] / "data" / "schema1-ppo"


def test_what_the_first_release_wrote_loads_forever(tmp_path: Path) -> None:
    """The directory is as schema 1 was first written. If this fails, fix the reading of it; never write it anew."""
    shutil.copytree(FIRST, tmp_path / "run")
    agent = tr.load(tmp_path / "run")
    assert isinstance(agent, tr.PPO)
    assert (agent.config.env, agent.steps, agent.state.phase, agent.state.seed) == ("Pendulum-v1", 32, 2, 5)
    assert agent.config.algorithm.norm_reward
    action = agent.predict(torch.tensor([[0.5, -0.5, 1.0], [-1.0, 0.0, -3.0]]))
    torch.testing.assert_close(action, torch.tensor([[0.0204], [-0.0405]]), rtol=0, atol=1e-4)
    assert agent.state.env.state_dict()["clock"].tolist() == [1, 1]
    assert agent.learn(quiet=True).steps == 48
    assert tr.load(tmp_path / "run").steps == 48


@pytest.mark.parametrize("name", ["ppo-cartpole", "vpg-cartpole", "ppo-pendulum", "ppo-frozen-lake"])
def test_runs_of_release_1_go_on(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each was stopped half-way; what it would have ended as is beside it. Never write these anew."""
    shutil.copytree(FIRST.parent / f"release1-{name}", tmp_path / "run")
    expected = load_file(tmp_path / "run" / "model_at_the_end.safetensors")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    agent = tr.load(tmp_path / "run")
    half = agent.steps
    agent.learn(quiet=True)
    assert (agent.finished, agent.steps) == (True, half * 2 if name[:3] == "ppo" else 2040)
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith(before)
    assert "warning" not in capsys.readouterr().err
    ended = load_file(newest(tmp_path / "run") / "model.safetensors")
    assert ended.keys() == expected.keys()
    if name != "ppo-frozen-lake":  # whose engine cannot save its episodes
        torch.testing.assert_close(ended, expected, rtol=1e-3, atol=1e-4)


def test_a_run_of_a_larger_machine_with_another_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(FIRST, tmp_path / "run")
    manifest = manifest_of(newest(tmp_path / "run"))
    elsewhere = {"threads": 4096, "device": "cuda", "accelerate": "graph", "backend": "auto"}
    versions = {**manifest["versions"], "torch": "2.9.1+cu126"}
    forge(tmp_path / "run", config={**manifest["config"], **elsewhere}, versions=versions)
    agent = tr.load(tmp_path / "run", device="cpu").learn()
    assert agent.steps == 48
    assert "note: saved under torch 2.9.1+cu126" in capsys.readouterr().out


# on a GPU ---------------------------------------------------------------------------------------------------------------


SMALL: dict[str, Any] = dict(num_envs=16, num_steps=8, seed=3, total_timesteps=16 * 8 * 6, hidden_sizes=(16, 16))
KINDS: list[tuple[type[tr.Agent], str, dict[str, Any]]] = [
    (tr.PPO, "CartPole-v1", dict(num_minibatches=4, update_epochs=2)),
    (tr.PPO, "Pendulum-v1", dict(num_minibatches=4, update_epochs=2, norm_obs=True, norm_reward=True, target_kl=0.02)),
    (tr.VPG, "CartPole-v1", dict(baseline="critic", anneal_lr=True)),
]
every_kind = pytest.mark.parametrize(("cls", "env", "settings"), KINDS)


def whole_and_resumed(
    tmp_path: Path, cls: type[tr.Agent], env: str, settings: dict[str, Any], stop: int = 3
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The states at the end of a run that went through and of one that was left in the middle."""
    given = {**SMALL, **settings, "eval_every": 16 * 8 * 2, "eval_episodes": 4}
    whole = cls(env, **given).learn(quiet=True)
    cls(env, **given).learn(until=stop * 16 * 8, run_dir=tmp_path, quiet=True)
    return whole.state.state_dict(), tr.load(tmp_path).learn(quiet=True).state.state_dict()


@pytest.mark.gpu
@every_kind
@pytest.mark.parametrize("accelerate", ["eager", "graph"])
def test_a_run_on_a_gpu_resumes_exactly(
    cls: type[tr.Agent], env: str, settings: dict[str, Any], accelerate: str, tmp_path: Path
) -> None:
    """Graphs too: the first phase of a process runs as written, and a replay gives the same bits."""
    one, other = whole_and_resumed(tmp_path, cls, env, {**settings, "device": "cuda", "accelerate": accelerate})
    assert_same_state(one, other)


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("accelerate", ["compile", "max"])
def test_a_compiled_run_resumes_to_rounding(accelerate: str, tmp_path: Path) -> None:
    cls, env, settings = KINDS[0]
    one, other = whole_and_resumed(tmp_path, cls, env, {**settings, "device": "cuda", "accelerate": accelerate})
    for name in one:
        if name.startswith("policy."):
            torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@every_kind
@pytest.mark.parametrize(("here", "there"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_checkpoint_loads_on_another_device(
    cls: type[tr.Agent], env: str, settings: dict[str, Any], here: str, there: str, tmp_path: Path
) -> None:
    agent = cls(env, **SMALL, **settings, device=here).learn(until=256, run_dir=tmp_path, quiet=True)
    loaded = tr.load(tmp_path, device=there)
    mine, theirs = agent.state.state_dict(), loaded.state.state_dict()
    for name in mine.keys() - {"streams.cuda", "env.generator"}:
        assert torch.equal(mine[name].cpu(), theirs[name].cpu()), name
    assert loaded.state.env.device.type == there
    next(ALGORITHMS[cls.algo].loop(loaded.state, loaded.config.algorithm))
    assert tr.load(tmp_path, device=there).learn(quiet=True).finished
