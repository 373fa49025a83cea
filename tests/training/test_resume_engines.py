"""Engines that cannot give their state back: a resumed run says so, keeps all the rest, and is still reproducible."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from run_helpers import Plain, assert_same_state, rows

import tightrope as tr
from tightrope.training.plan import FRESH_EPISODES

BATCH = 16
SETTINGS: dict[str, Any] = dict(
    num_steps=8, total_timesteps=4 * BATCH, hidden_sizes=(8,), device="cpu", num_minibatches=2, update_epochs=1
)
NOTE = f"note: the state of this environment cannot be saved, so {FRESH_EPISODES}"


class Walk(Plain):
    def shown(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype("f4")


class Rows(torch.nn.Module):
    """Of a screen, how bright each of its rows is."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.float().mean((1, 3)) / 255


def vector() -> Any:
    return gymnasium.vector.SyncVectorEnv([Walk, Walk])


def needs(*packages: str) -> Any:
    return pytest.mark.skipif(
        not all(importlib.util.find_spec(package) for package in packages), reason=f"needs {' and '.join(packages)}"
    )


ENGINES: list[Any] = [
    pytest.param(lambda: Walk, dict(num_envs=2, norm_obs=True, norm_reward=True), id="class"),
    pytest.param(lambda: Walk, dict(num_envs=2, vectorization_mode="async"), id="async"),
    pytest.param(vector, dict(norm_obs=True), id="vector"),
    pytest.param(lambda: "Acrobot-v1", dict(num_envs=2, backend="gymnasium"), id="gymnasium"),
    pytest.param(
        lambda: "CartPole-v1", dict(num_envs=2, backend="envpool", norm_obs=True), id="envpool", marks=needs("envpool")
    ),
    pytest.param(
        lambda: "ALE/Pong-v5", dict(num_envs=2, backend="ale", network=f"{__name__}:Rows"), id="ale",
        marks=needs("ale_py", "cv2"),
    ),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("env", "settings"), ENGINES)
def test_what_can_be_kept_is_kept_and_the_rest_follows_from_the_seed(
    env: Callable[[], Any], settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tr.PPO(env(), **SETTINGS, **settings).learn(until=2 * BATCH, run_dir=tmp_path / "a", quiet=True)
    assert not agent.state.env.resumable
    saved = agent.state.state_dict()
    agent.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ends = []
    for name in ("a", "b"):
        again = env()
        resumed = tr.load(tmp_path / name, env=None if isinstance(again, str) else again)
        assert_same_state(resumed, saved, but=("run.obs", "run.discounted_return"))
        capsys.readouterr()
        resumed.learn()
        assert capsys.readouterr().out.splitlines().count(NOTE) == 1
        assert [row["phase"] for row in rows(tmp_path / name)] == [1, 2, 3, 4]
        ends.append(resumed)
        resumed.close()
    one, other = (end.state.state_dict() for end in ends)
    assert_same_state(one, other)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert not torch.equal(one["policy.head.logits.weight"], saved["policy.head.logits.weight"])
