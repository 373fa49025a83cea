"""Code that a file of settings names is imported only if the command line names it too, or allows its module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SMALL = "--num-envs 2 --num-steps 8 --num-minibatches 1 --total-timesteps 16 --eval-episodes 1 --video-every 0 --quiet"
CODE = """
import gymnasium, pathlib, torch
import tightrope as tr

pathlib.Path("imported").touch()

class Env(tr.envs.CartPole):
    pass

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, obs):
        return self.layer(obs)

class NoNet:
    def __init__(self):
        pathlib.Path("called").touch()

def call():
    pathlib.Path("called").touch()
    return Net()

if "Theirs-v0" not in gymnasium.registry:
    gymnasium.register("Theirs-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=500)
"""
CONFIGS = {
    "env": "env: evil_file:Env",
    "env id": "env: evil_file:Theirs-v0",
    "train_env": "env: CartPole-v1\ntrain_env: evil_file:Env",
    "train_env id": "env: CartPole-v1\ntrain_env: evil_file:Theirs-v0",
    "dashes": "env: CartPole-v1\ntrain-env: evil_file:Theirs-v0",
    "network": "env: CartPole-v1\nnetwork: evil_file:Net",
    "function": "env: CartPole-v1\nnetwork: evil_file:call",
    "standard library": "env: CartPole-v1\nnetwork: os:getcwd",
}


@pytest.fixture(autouse=True)
def evil(own_directory: Path, own_ids: None) -> Iterator[None]:
    Path("evil_file.py").write_text(CODE)
    yield
    sys.modules.pop("evil_file", None)


@pytest.mark.parametrize(
    ("command", "config"),
    [
        *(("train", config) for config in CONFIGS),
        *(("train --seeds 1-2", config) for config in ("env", "network")),
        *(("sweep CartPole-v1 --trials 1", config) for config in CONFIGS if not config.startswith("env")),
    ],
)
def test_a_file_imports_nothing(command: str, config: str, tightrope: Callable[..., Any]) -> None:
    Path("my.yaml").write_text(CONFIGS[config])
    code, _, complaint = tightrope(f"{command} --config my.yaml {SMALL}")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "my.yaml" in complaint
    assert f"--allow-import {'os' if config.startswith('standard') else 'evil_file'}" in complaint
    assert sorted(path.name for path in Path().iterdir()) == ["evil_file.py", "my.yaml"]


@pytest.mark.parametrize("config", ["env", "env id", "train_env id", "network"])
def test_a_module_that_is_allowed_is_imported(config: str, tightrope: Callable[..., Any]) -> None:
    Path("my.yaml").write_text(CONFIGS[config])
    code, _, complaint = tightrope(f"train --config my.yaml --allow-import other evil_file {SMALL} --run-dir run")
    assert (code, complaint) == (0, "")
    assert Path("imported").exists()


def test_what_the_command_line_names_too_needs_no_other_word(tightrope: Callable[..., Any]) -> None:
    Path("my.yaml").write_text("env: evil_file:Env\nnetwork: evil_file:Net\n")
    words = f"--config my.yaml {SMALL} --network evil_file:Net --run-dir"
    assert tightrope(f"train evil_file:Env {words} a").code == 0
    assert tightrope(f"train CartPole-v1 {words} b").code == 0  # which wins over the file


@pytest.mark.parametrize("name", ["call", "NoNet", "Env", "torch"])
@pytest.mark.parametrize("flags", ["--network evil_file:{}", "--config my.yaml --allow-import evil_file"])
def test_nothing_but_a_class_of_networks_is_called(flags: str, name: str, tightrope: Callable[..., Any]) -> None:
    Path("my.yaml").write_text(f"network: evil_file:{name}\n")
    code, _, complaint = tightrope(f"train CartPole-v1 {flags.format(name)} {SMALL}")
    assert (code, complaint.count("\n")) == (2, 1)
    assert f"network 'evil_file:{name}' is not a class of nn.Module" in complaint
    assert not Path("called").exists()
    assert not Path("runs").exists()
