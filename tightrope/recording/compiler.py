"""The C compiler of this machine, and the private cache of what it has compiled.

A file of the cache is named by the hash of its bytes, which is checked before the file is loaded. A second small file, named by
the hash of the C text, the compiler, its flags and the processor, holds that name. Files appear whole or not at all.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "TIGHTROPE_COMPILER"  # the path of a C compiler, or "off"
OFF = ("off", "0", "no", "none", "false")
FLAGS = (
    "-O2", "-ftree-vectorize", "-fopenmp-simd", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno",
    "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv", "-w",
)  # fmt: skip
SECONDS = 60.0  # that a compilation may take
MAX_FILES = 600  # in the cache; the oldest are removed


class NotCompiled(Exception):
    """There is no compiler, it failed, or the cache cannot be used."""


def turned_off() -> bool:
    """Whether the user wants no compiler."""
    return os.environ.get(VARIABLE, "").strip().lower() in OFF


def compiler_command() -> list[str]:
    """Return the command of the C compiler, or an empty list: TIGHTROPE_COMPILER, else CC, else cc, gcc or clang."""
    chosen = os.environ.get(VARIABLE, "").strip()
    if turned_off() or os.name != "posix":
        return []
    given = chosen or os.environ.get("CC", "").strip()
    try:
        commands = [shlex.split(given)] if given else [["cc"], ["gcc"], ["clang"]]
    except ValueError:  # a quotation mark is missing
        return []
    for words in commands:
        if words and (found := shutil.which(words[0])):
            return [found, *words[1:]]
    return []


@functools.cache
def compiler_identity(path: str) -> str:
    """Describe the compiler and the processor, on which compiled code depends."""
    real = os.path.realpath(path)
    about = os.stat(real)
    return repr((real, about.st_size, about.st_mtime_ns, platform.machine(), processor()))


def processor() -> str:
    """Return the name and the instruction sets of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)


def cache_directory() -> Path:
    """Return the cache directory, and make it. Raise NotCompiled if other users could write to it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tightrope" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
    except (OSError, RuntimeError) as error:
        raise NotCompiled(f"the cache {folder} cannot be made: {error}") from None
    if not stat.S_ISDIR(about.st_mode):
        raise NotCompiled(f"the cache {folder} is not a directory")
    if about.st_uid != os.geteuid():
        raise NotCompiled(f"the cache {folder} belongs to another user")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotCompiled(f"other users can write to the cache {folder}: chmod 700 {folder}")
    return folder


def compiled(text: str, exact: bool) -> ctypes.CDLL:
    """Return the library for a C text, from the cache or newly compiled. With `exact`, products and sums are not joined to one
    rounding. Raise NotCompiled if that is impossible."""
    command = compiler_command()
    if not command:
        raise NotCompiled("no C compiler")
    words = (*command, *FLAGS, f"-ffp-contract={'off' if exact else 'fast'}")
    try:
        key = hashlib.sha256(repr((compiler_identity(command[0]), words, text)).encode()).hexdigest()
        folder = cache_directory()
        library = cached(folder, key) or stored(folder, key, compile_text(folder, words, text))
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        raise NotCompiled(f"{command[0]}: {error}") from None


def cached(folder: Path, key: str) -> Path | None:
    """Return the file of the cache for this key, if it is whole and nobody else can have written it."""
    try:
        name = (folder / key).read_text()
        library = folder / f"{name}.so"
        about, content = library.lstat(), library.read_bytes()
    except (OSError, ValueError):
        return None
    mine = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return library if mine and hashlib.sha256(content).hexdigest() == name else None


def compile_text(folder: Path, words: tuple[str, ...], text: str) -> bytes:
    """Compile a C text in a directory of its own, and return the bytes of the library."""
    with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as room:
        (Path(room) / "code.c").write_text(text)
        done = subprocess.run(
            [*words, "-o", "code.so", "code.c", "-lm"], cwd=room, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SECONDS,
        )  # fmt: skip
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise NotCompiled(
                f"{words[0]} failed with exit code {done.returncode}: {(lines or ['no message'])[0][:200]}"
            )
        return (Path(room) / "code.so").read_bytes()


def stored(folder: Path, key: str, content: bytes) -> Path:
    """Write a library and its key to the cache, and return the library."""
    name = hashlib.sha256(content).hexdigest()
    library = folder / f"{name}.so"
    for target, data in ((library, content), (folder / key, name.encode())):
        handle, temporary = tempfile.mkstemp(prefix="new-", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    remove_oldest(folder)
    return library


def remove_oldest(folder: Path) -> None:
    """Remove the oldest half of the files, if there are too many. Loaded libraries stay loaded."""
    files = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    if len(files) > MAX_FILES:
        for entry in sorted(files, key=lambda entry: entry.stat().st_mtime)[: len(files) // 2]:
            Path(entry.path).unlink(missing_ok=True)
