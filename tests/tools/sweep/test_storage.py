"""Where a study is stored: partial lines, passwords, invalid URLs, errors of a storage."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tightrope.errors import UsageError
from tightrope.tools.sweep.storage import StorageLost, connected, hide_password, open_storage, silence_optuna


def test_a_line_that_was_cut_short_is_taken_away(tmp_path: Path) -> None:
    silence_optuna()
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
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host/1", "give sqlite:///FILE"), ("postgres://me:word@host/db", "postgresql"),
        ("sqlite://", "names no file"), ("sqlite:///:memory:", "names no file"),
        ("/proc/none/a.journal", "cannot be written"), ("/", "is a directory"),
        ("postgresql://me:word@127.0.0.1:1/db", "cannot be opened"), ("postgresql:/me:word@h/db", "is not a URL"),
        ("postgresql:me:word@h/db", "is not a URL"), (" mysql:/me:word@h/db", "is not a URL"),
        ("u:word@h/db", "is not a URL"), ("sqlite:/a.db", "is not a URL"),
    ],
)  # fmt: skip
def test_an_invalid_storage_is_one_line(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as error:
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
