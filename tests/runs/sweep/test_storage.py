"""Where a study is kept: lines cut short, passwords, URLs that will not do, and two who want the same trial."""

import threading
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tightrope.errors import UsageError
from tightrope.runs.sweep.places import Places
from tightrope.runs.sweep.storage import StorageLost, close_storage, connected, masked, open_storage
from tightrope.runs.sweep.study import quiet_optuna


@pytest.mark.parametrize("kind", ["{}/a.journal", "sqlite:///{}/a.db"])
def test_a_trial_is_taken_by_one_only(kind: str, tmp_path: Path) -> None:
    quiet_optuna()
    url = kind.format(tmp_path)
    first = open_storage(url)
    study = optuna.create_study(storage=first, study_name="s")
    Places(study, 30, {}).fill()
    taken: list[int] = []

    def work() -> None:
        storage = open_storage(url)
        places = Places(optuna.load_study(study_name="s", storage=storage), 30, {})
        while (trial := places.take()) is not None:
            taken.append(trial.number)
        close_storage(storage)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    close_storage(first)
    assert sorted(taken) == list(range(30))


def test_a_line_that_was_cut_short_is_taken_away(tmp_path: Path) -> None:
    quiet_optuna()
    path = tmp_path / "a.journal"
    study = optuna.create_study(storage=open_storage(str(path)), study_name="s")
    study.enqueue_trial({})
    with path.open("ab") as file:
        file.write(b'{"op_code":5,"wor')
    again = optuna.load_study(study_name="s", storage=open_storage(str(path)))
    again.enqueue_trial({})
    assert [trial.state for trial in again.get_trials()] == 2 * [TrialState.WAITING]
    assert len(optuna.load_study(study_name="s", storage=open_storage(str(path))).get_trials()) == 2


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:top@secret@host:5/db?password=x", "postgresql://me:***@host:5/db"),
        ("postgresql://me:a?b/c@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("mysql://:pw@host/db", "mysql://:***@host/db"),
        ("sweeps/a:b@c.journal", "sweeps/a:b@c.journal"),
        ("postgresql:/me:top@secret@host/db?password=x", "postgresql:***@host/db"),
        ("me:secret@host/db", "me:***@host/db"),
    ],
)
def test_passwords_are_not_for_eyes(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host/1", "give sqlite:///FILE"),
        ("postgres://me:word@host/db", "postgresql"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("/proc/none/a.journal", "cannot be written"),
        ("/", "is a directory"),
        ("postgresql://me:word@127.0.0.1:1/db", "cannot be opened"),
    ],
)
def test_a_storage_that_will_not_do_is_one_line(url: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        open_storage(url)
    assert said in str(error.value)
    assert "word" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql:/me:word@h/db", "postgresql:me:word@h/db", " mysql:/me:word@h/db", "u:word@h/db", "sqlite:/a.db"],
)
def test_a_url_with_a_slash_too_few_is_no_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is no URL") as error:
        open_storage(url)
    assert "word" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["./a:b.journal", "sub/a:b@c.journal", "C:/a.journal", "plain"])
def test_files_may_have_colons_further_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_storage(name)
    assert Path(name).is_file()


def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk\nbread\n")
    with pytest.raises(UsageError, match="not a journal"):
        open_storage(str(path))
    assert path.read_text() == "milk\nbread\n"


def test_what_goes_wrong_on_the_way_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageLost, match="No space left"), connected(str(tmp_path / "a.journal")):
        raise OSError(28, "No space left on device")
