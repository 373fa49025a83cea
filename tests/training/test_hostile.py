"""Runs of a stranger: nothing in them is executed, and each is refused in one line. What they cost is for the script to see."""

import contextlib
import os
import pickle
import shutil
import signal
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from run_helpers import refusal

import tightrope as tr
from tightrope.errors import MAX_MESSAGE_CHARS, UsageError, printable
from tightrope.logging.trackers.tracker import model_files, newest_checkpoint, save_id
from tightrope.saved import begin_anew
from tightrope.training.checkpoint_reader import has_checkpoints
from tightrope.training.config import configure
from tightrope.training.reports import write_report

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "reliability"))

from hostile_cases import GROUPS, PROOF, Payload
from run_files import ELSEWHERE, FOLDER, KEY, PIPE, VICTIM, WRITTEN, ZERO, all_links, all_other_kinds

posix = pytest.mark.skipif(os.name != "posix", reason="no pipes and signals as on POSIX")
HEAVY = ("10^8", "GB of holes")  # hundreds of megabytes to write
SMALL = dict(num_envs=3, num_steps=8, num_minibatches=2, hidden_sizes=(8,), device="cpu", threads=1, norm_obs=True)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint."""
    path = tmp_path_factory.mktemp("good") / "run"
    tr.PPO("CartPole-v1", **SMALL, total_timesteps=48, keep_checkpoints=1).learn(run_dir=path, quiet=True, until=24)
    return path


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(good, tmp_path / "run"))


def load(run: Path, **settings: Any) -> tr.Agent:
    """As `tightrope resume` does."""
    return tr.load(run, **settings) if has_checkpoints(run) else begin_anew(run, **settings)


def files_in(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.is_file() and not path.is_symlink()]


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_stranger_has_prepared_is_refused(
    group: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # where modules would be found
    cases = {name: case for name, case in GROUPS[group]().items() if not any(heavy in name for heavy in HEAVY)}
    modules = set(sys.modules)
    for name, case in cases.items():
        run = Path(shutil.copytree(good, tmp_path / "run"))
        case(run)
        message = refusal(load, run)
        assert message.isprintable(), name
        assert len(message) < MAX_MESSAGE_CHARS + 10, name
        with contextlib.suppress(UsageError):  # what lies in its training or names an environment is not looked at
            tr.load_policy(run)
        assert not (tmp_path / PROOF).exists(), name
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert {"antigravity", "this"}.isdisjoint(set(sys.modules) - modules)


def test_the_pickles_would_do_something(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / PROOF)))
    assert (tmp_path / PROOF).exists()


def served(run: Path, films: bool = True) -> None:
    """Everything that reads or writes a run's directory, videos if they are what matters."""
    try:
        save_id(run, "wandb", "abc")
        agent = load(run, video_every=int(films))
        agent.train(quiet=True, score_episodes=1)
        write_report([run])
    except (UsageError, OSError) as error:
        print(error)


@pytest.mark.parametrize("name", all_links())
def test_what_a_link_leads_to_is_not_written_into(name: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / ELSEWHERE).mkdir()
    (tmp_path / VICTIM).write_text(KEY)
    all_links()[name](run)
    served(run, films="video" in name)
    assert (tmp_path / VICTIM).read_text() == KEY
    assert not any(KEY in path.read_text(errors="replace") for path in files_in(run))


@pytest.mark.parametrize("name", ["videos", "crash", "checkpoints"])
def test_what_a_linked_directory_holds_is_neither_shown_nor_written(name: str, run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / name, ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "phase0001.mp4").write_text("precious")
    (run / name).symlink_to(tmp_path / "elsewhere")
    served(run)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["phase0001.mp4"]
    page = run / "report.html"
    assert b64encode(b"precious").decode() not in page.read_text()


def test_a_report_shows_no_file_that_a_video_is_a_link_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("private key")
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / "phase0001.mp4").symlink_to(tmp_path / "key")
    page = write_report([run]).read_text()
    assert b64encode(b"private key").decode() not in page
    assert "phase0001.mp4" not in page


def test_a_tracker_is_given_no_file_that_a_link_leads_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("private key")
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    whole = model_files(checkpoint)
    (checkpoint / "key").symlink_to(tmp_path / "key")
    assert model_files(checkpoint) == whole


@posix
@pytest.mark.parametrize("kind", [PIPE, ZERO, FOLDER])
@pytest.mark.parametrize("name", WRITTEN)
def test_nothing_waits_for_what_is_no_file(name: str, kind: str, run: Path, tmp_path: Path) -> None:
    all_other_kinds()[name, kind](run)
    signal.alarm(20)  # ends the tests with an error
    try:
        served(run, films="video" in name)
        with contextlib.suppress(UsageError):
            write_report([run], tmp_path / "page.html")
    finally:
        signal.alarm(0)


def test_the_good_run_is_one(good: Path) -> None:
    assert load(good).steps == 24


def test_a_message_is_one_plain_line() -> None:
    assert printable("a\nb\x1b[31m") == r"a\nb\x1b[31m"
    assert printable("über") == "über"
    assert len(printable("x" * 10**6)) < MAX_MESSAGE_CHARS + 10


def test_looking_for_a_divisor_comes_to_an_end() -> None:
    settings = {"num_minibatches": 2**62, "num_envs": 8, "num_steps": 128}
    assert "try num_minibatches 1024" in refusal(configure, "CartPole-v1", "ppo", settings)
    prime = 2**61 - 1
    settings = {"num_minibatches": 2**60, "num_envs": 1, "num_steps": prime, "total_timesteps": prime}
    assert refusal(configure, "CartPole-v1", "ppo", settings).endswith("try num_minibatches 1")
