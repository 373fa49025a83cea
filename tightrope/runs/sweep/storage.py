"""Where a study is kept: a journal file or SQLite for one machine, PostgreSQL or MySQL for several.

A process may die at any moment, also while it writes. The journal's lock is one that the system drops with the process, and a
line that was cut short is taken away before the next is written. SQLite's transactions take their lock when they begin:
otherwise two processes can both read that a trial is free, and both take it.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from sqlalchemy.exc import SQLAlchemyError

from ...errors import UsageError

DRIVERS = {
    "postgresql": ("psycopg", "postgresql+psycopg", 'pip install -c constraints.txt -e ".[postgres]"'),
    "mysql": ("pymysql", "mysql+pymysql", 'pip install -c constraints.txt -e ".[mysql]"'),
}
TROUBLES = (StorageInternalError, SQLAlchemyError, OSError)  # what a storage raises that fails
URL = re.compile(r"\s*[A-Za-z][\w+.-]*:(?![\\/])|\s*[A-Za-z][\w+.-]+:")  # or meant to be one; not a drive, as in C:/
SECRET = re.compile(r"://([^:@/]*):(.*)@")  # user, password: whatever is in it
ATTEMPTS = 8  # to open: processes that start together may all want to make the tables


class Lock(JournalFileOpenLock):
    """One process at a time appends to the journal; a lock of a process that is no more does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path, self.file = path, Path(f"{path}.lock")
        self.held: Any = None

    def acquire(self) -> bool:
        try:
            import fcntl
        except ImportError:  # where there are no such locks, Optuna's own, which waits for those of the dead
            return super().acquire()
        self.held = self.file.open("ab")
        fcntl.flock(self.held, fcntl.LOCK_EX)
        mend(self.path)
        return True

    def release(self) -> None:
        if self.held is None:
            super().release()
        else:
            self.held.close()
            self.held = None


def mend(path: Path) -> None:
    """Take away a last line that was cut short: whoever wrote it died, or the disk was full."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        if size == 0:
            return
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)


def open_storage(storage: str) -> BaseStorage:
    """The storage behind a URL, or behind the path of a journal; a UsageError in one line, without passwords."""
    if "://" not in storage and URL.match(storage) is None:
        return journal(Path(storage))
    if "://" not in storage:
        raise UsageError(
            f"storage {masked(storage)} is no URL: those begin as in postgresql://; or, if it is a file, give it as ./NAME"
        )
    scheme = storage.partition("://")[0]
    kind = scheme.partition("+")[0]
    if kind == "postgres":
        raise UsageError(f"storage {masked(storage)} will not do: its scheme is called postgresql")
    if kind not in ("sqlite", *DRIVERS):
        raise UsageError(
            f"storage {masked(storage)} will not do: give sqlite:///FILE, postgresql://USER@HOST/DB, mysql://USER@HOST/DB, "
            "or the path of a journal file"
        )
    if kind == "sqlite":
        return opened(storage, lambda: sqlite(storage))
    package, full, hint = DRIVERS[kind]
    if scheme == kind:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"storage {masked(storage)} needs {package}, which is not installed: {hint}")
        storage = full + storage[len(scheme) :]
    return opened(storage, lambda: RDBStorage(storage, {"pool_pre_ping": True}))


class StorageLost(RuntimeError):
    """The storage no longer answers, or takes nothing more. Its message is one line."""


@contextmanager
def connected(storage: str) -> Iterator[BaseStorage]:
    """The storage, while it is used; what goes wrong with it then is one line."""
    made = open_storage(storage)
    try:
        yield made
    except TROUBLES as error:
        raise StorageLost(f"storage {masked(storage)} failed: {without_secrets(error, storage)}") from error
    finally:
        with suppress(Exception):
            close_storage(made)


def close_storage(storage: BaseStorage) -> None:
    """Hang up, where there is a line to hang up."""
    if isinstance(storage, RDBStorage):
        storage.scoped_session.remove()
        storage.engine.dispose()


def journal(path: Path) -> BaseStorage:
    path = path.expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise UsageError(f"storage {path} is a directory: give the name of a file in it")
        path.open("ab").close()
        return JournalStorage(JournalFileBackend(str(path), Lock(path)))
    except OSError as error:
        raise UsageError(f"storage {path} cannot be written: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UsageError(f"storage {path} is not a journal of Optuna: give another file") from None


def sqlite(url: str) -> BaseStorage:
    """SQLite whose transactions take their lock at once, so that what was read holds until it is written."""
    from sqlalchemy import event

    file = url.partition(":///")[2].partition("?")[0]
    if file in ("", ":memory:"):
        raise UsageError(f"storage {url} names no file: give one, as in sqlite:///study.db")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    storage = RDBStorage(url, {"connect_args": {"timeout": 60}})
    event.listen(storage.engine, "connect", begin_ourselves)
    event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    storage.engine.dispose()  # of connections that do not know it
    return storage


def begin_ourselves(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin at the first write only


def opened(url: str, make: Callable[[], BaseStorage]) -> BaseStorage:
    """Tried a few times: of two that make the same tables at the same moment one is told that they are there."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return make()
        except UsageError:
            raise
        except Exception as error:  # whatever a driver raises
            if "authentication" in str(error) or not left:
                raise UsageError(f"storage {masked(url)} cannot be opened: {without_secrets(error, url)}") from None
            time.sleep(0.25)
    raise AssertionError


def masked(storage: str) -> str:
    """For eyes: without a password, and without what follows the database's name, which may hold one."""
    if "://" not in storage:
        return re.sub(r":.*@", ":***@", storage).partition("?")[0] if URL.match(storage) else storage
    return SECRET.sub(r"://\1:***@", storage).partition("?")[0]


def without_secrets(error: BaseException, url: str) -> str:
    """The gist of a driver's message in one line."""
    line = next((line for line in str(error.__cause__ or error).splitlines() if line.strip()), type(error).__name__)
    secret = SECRET.search(url)
    return line.replace(secret[2], "***") if secret and secret[2] else line
