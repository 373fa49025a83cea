"""Runs of a stranger: nothing in them is executed, and each is refused in one line. What they cost is for the script to see."""

import contextlib
import shutil
import sys
from pathlib import Path

import pytest

import tightrope as tr
from tightrope.errors import MOST_LETTERS, UsageError, plain
from tightrope.runs.config import configure
from tightrope.runs.recover import has_checkpoints
from tightrope.saved import begin_anew

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "reliability"))

from hostile_cases import GROUPS, PROOF, VICTIM, victims

HEAVY = ("10^8", "GB of holes")  # hundreds of megabytes to write
SMALL = dict(num_envs=3, num_steps=8, num_minibatches=2, hidden_sizes=(8,), device="cpu", threads=1, norm_obs=True)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint."""
    path = tmp_path_factory.mktemp("good") / "run"
    tr.PPO("CartPole-v1", **SMALL, total_timesteps=48, keep_checkpoints=1).learn(run_dir=path, quiet=True, until=24)
    return path


def load(run: Path) -> tr.Agent:
    """As `tightrope resume` does."""
    return tr.load(run) if has_checkpoints(run) else begin_anew(run)


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_stranger_has_prepared_is_refused(
    group: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where modules would be found
    cases = {name: case for name, case in GROUPS[group]().items() if not any(heavy in name for heavy in HEAVY)}
    modules = set(sys.modules)
    for name, case in cases.items():
        run = tmp_path / "run"
        shutil.copytree(good, run)
        case(run)
        with pytest.raises(UsageError) as error:
            load(run)
        assert str(error.value).isprintable(), name
        assert len(str(error.value)) < MOST_LETTERS + 10, name
        with contextlib.suppress(UsageError):  # what lies in its training or names an environment is not looked at
            tr.load_policy(run)
        assert not (tmp_path / PROOF).exists(), name
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert {"antigravity", "this"}.isdisjoint(set(sys.modules) - modules)


@pytest.mark.parametrize("name", victims())
def test_what_a_link_leads_to_is_not_written_into(name: str, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    (tmp_path / VICTIM).write_text("precious\n" * 1000)
    victims()[name](tmp_path / "run")
    try:
        load(tmp_path / "run").learn(quiet=True)
    except UsageError as error:
        print(error)
    assert (tmp_path / VICTIM).read_text() == "precious\n" * 1000


def test_the_good_run_is_one(good: Path) -> None:
    assert load(good).steps == 24


def test_a_message_is_one_plain_line() -> None:
    assert plain("a\nb\x1b[31m") == r"a\nb\x1b[31m"
    assert plain("über") == "über"
    assert len(plain("x" * 10**6)) < MOST_LETTERS + 10


def test_looking_for_a_divisor_comes_to_an_end() -> None:
    with pytest.raises(UsageError, match="try num_minibatches 1024"):
        configure("CartPole-v1", "ppo", {"num_minibatches": 2**62, "num_envs": 8, "num_steps": 128})
    prime = 2**61 - 1
    settings = {"num_minibatches": 2**60, "num_envs": 1, "num_steps": prime, "total_timesteps": prime}
    with pytest.raises(UsageError, match=r"try num_minibatches 1$"):
        configure("CartPole-v1", "ppo", settings)
