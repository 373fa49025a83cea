"""Where a study is stored: a journal file or SQLite for one machine, PostgreSQL or MySQL for several.

A process may be killed while it writes. The journal's lock ends with its process, and a partial last line is cut off before the
next write. SQLite's transactions take their lock at the start, so that what was read is still true when it is written.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from ...errors import UsageError
from ...types import Settings

DRIVERS = {"postgresql": ("psycopg", "postgres"), "mysql": ("pymysql", "mysql")}  # driver, extra that installs it
STORAGE_ERRORS = (StorageInternalError, SQLAlchemyError, OSError)
URL = re.compile(r"\s*[A-Za-z][\w+.-]*:(?![\\/])|\s*[A-Za-z][\w+.-]+:")  # also one with a slash too few; not C:/
PASSWORD = re.compile(r"://([^:@/]*):(.*)@")  # user, password
OPEN_ATTEMPTS = 8  # at opening a database: processes that start together may all create the tables
IDENTITY = "tightrope"  # study attribute: what the sweep is about
IDENTITY_SECONDS = 5.0  # for the process that creates a study to set that attribute


class StorageLost(RuntimeError):
    """The storage failed during the sweep. The message is one line."""


@contextmanager
def connected(url: str) -> Iterator[BaseStorage]:
    """The storage, closed at the end; an error of the storage becomes StorageLost."""
    storage = open_storage(url)
    try:
        yield storage
    except STORAGE_ERRORS as error:
        raise StorageLost(f"storage {hide_password(url)} failed: {driver_message(error, url)}") from error
    finally:
        with suppress(Exception):
            close_storage(storage)


def open_storage(url: str) -> BaseStorage:
    """The storage behind a URL or the path of a journal file; otherwise a UsageError without passwords."""
    shown, (scheme, separator, rest) = hide_password(url), url.partition("://")
    kind = scheme.partition("+")[0]
    if not separator and URL.match(url):
        raise UsageError(f"storage {shown} is not a URL, such as postgresql://USER@HOST/DB: for a file, give ./NAME")
    if not separator:
        return open_journal(Path(url))
    if kind == "sqlite":
        return open_database(url, lambda: open_sqlite(url))
    if kind not in DRIVERS:
        raise UsageError(
            f"storage {shown} is invalid: give sqlite:///FILE, postgresql://USER@HOST/DB, mysql://USER@HOST/DB, "
            "or the path of a journal file"
        )
    driver, extra = DRIVERS[kind]
    if scheme == kind:
        if importlib.util.find_spec(driver) is None:
            install = f'pip install -c constraints.txt -e ".[{extra}]"'
            raise UsageError(f"storage {shown} needs {driver}, which is not installed: {install}")
        url = f"{kind}+{driver}://{rest}"
    return open_database(url, lambda: RDBStorage(url, {"pool_pre_ping": True}))


def close_storage(storage: BaseStorage) -> None:
    if isinstance(storage, RDBStorage):
        storage.scoped_session.remove()
        storage.engine.dispose()


# journal files ----------------------------------------------------------------------------------------------------------


class JournalLock(JournalFileOpenLock):
    """A file lock that the system releases when its process ends. Without fcntl (Windows), Optuna's own lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path
        self.file: BinaryIO | None = None

    def acquire(self) -> bool:
        try:
            import fcntl
        except ImportError:
            return super().acquire()
        self.file = Path(f"{self.path}.lock").open("ab")  # noqa: SIM115
        fcntl.flock(self.file, fcntl.LOCK_EX)
        drop_partial_line(self.path)
        return True

    def release(self) -> None:
        if self.file is None:
            super().release()
        else:
            self.file.close()
            self.file = None


def drop_partial_line(path: Path) -> None:
    """Cut off a last line that does not end: its writer was killed, or the disk was full."""
    with path.open("r+b") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def open_journal(path: Path) -> BaseStorage:
    path = path.expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise UsageError(f"storage {path} is a directory: give the name of a file in it")
        path.open("ab").close()
        return JournalStorage(JournalFileBackend(str(path), JournalLock(path)))
    except OSError as error:
        raise UsageError(f"storage {path} cannot be written: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AssertionError):
        raise UsageError(f"storage {path} is not a journal of Optuna: give another file") from None


# databases --------------------------------------------------------------------------------------------------------------


def open_sqlite(url: str) -> BaseStorage:
    file = url.partition(":///")[2].partition("?")[0]
    if file in ("", ":memory:"):
        raise UsageError(f"storage {url} names no file: give one, as in sqlite:///study.db")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    storage = RDBStorage(url, {"connect_args": {"timeout": 60}})
    # sqlite3 itself begins a transaction at the first write, when what was read may be out of date
    event.listen(storage.engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    storage.engine.dispose()  # connections from before
    return storage


def open_database(url: str, connect: Callable[[], BaseStorage]) -> BaseStorage:
    """Several attempts: two processes that create the tables at the same moment are in each other's way."""
    for left in reversed(range(OPEN_ATTEMPTS)):
        try:
            return connect()
        except UsageError:
            raise
        except Exception as error:  # each driver has its own
            if "authentication" in str(error) or not left:
                raise UsageError(
                    f"storage {hide_password(url)} cannot be opened: {driver_message(error, url)}"
                ) from None
            time.sleep(0.25)
    raise AssertionError


def hide_password(url: str) -> str:
    """A storage as it may be shown: without the password and without the query, which may hold one."""
    if "://" in url:
        return PASSWORD.sub(r"://\1:***@", url).partition("?")[0]
    return re.sub(r":.*@", ":***@", url).partition("?")[0] if URL.match(url) else url


def driver_message(error: BaseException, url: str) -> str:
    """The first line of a driver's message, without the password."""
    line = next((line for line in str(error.__cause__ or error).splitlines() if line.strip()), type(error).__name__)
    found = PASSWORD.search(url)
    return line.replace(found[2], "***") if found and found[2] else line


# studies ----------------------------------------------------------------------------------------------------------------


def open_study(storage: BaseStorage, name: str, identity: Settings) -> tuple[optuna.Study, bool]:
    """(the study of that name, whether it is new). A UsageError if it belongs to another sweep than `identity` says."""
    silence_optuna()
    identity = json.loads(json.dumps(identity))  # as a storage returns it
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)
    try:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", pruner=pruner)
        study.set_user_attr(IDENTITY, identity)
        return study, True
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, pruner=pruner)
    deadline = time.monotonic() + IDENTITY_SECONDS
    while IDENTITY not in study.user_attrs and time.monotonic() < deadline:
        time.sleep(0.1)
    if IDENTITY not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr(IDENTITY, identity)  # the process that created the study died before it could
    check_identity(name, study.user_attrs.get(IDENTITY), identity)
    return study, False


def check_identity(name: str, stored: object, ours: Settings) -> None:
    if not isinstance(stored, dict):
        raise UsageError(f"study {name!r} of that storage was not made by tightrope: give another name with --study")
    for key in [*ours, *stored]:
        old, new = stored.get(key), ours.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            check_identity(name, old, new)
        elif old != new:
            old, new = ("nothing" if value is None else value for value in (old, new))
            fix = "use that, or start another study with --study NAME"
            raise UsageError(f"{key} {new} differs from {old}, with which study {name!r} was started: {fix}")


def silence_optuna() -> None:
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
