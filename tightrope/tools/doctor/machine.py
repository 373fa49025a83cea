"""The results of checks, and checks of the packages, processor, memory, disk and videos of this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from ...engine import choose_threads, cores
from ...engine.threads import CGROUP, cpu_limit, file_text, own_groups
from ...envs.adapters import pictures
from ...errors import UsageError, one_line, plural, printable
from ...files import Place, write_file
from ...logging.video.mp4 import Video
from ...output import format_bytes
from ...processes import run_isolated
from ...types import Settings
from ...version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# absent: not here and not needed; broken: no run works without it
Verdict = Literal["ok", "absent", "warning", "broken"]
PACKAGE = "tightrope"
ROOT = Path(__file__).parents[3]  # the directory of the package, which need not be installed
DEVELOPER_EXTRAS = ("dev", "docs")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MUJOCO_GL")
LOW_DISK = 1e9  # bytes
NO_LIMIT = 2**60  # bytes, from which on a cgroup's number means that there is no limit
RENDER_SECONDS = 30.0
RENDER = """
import mujoco
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light/><geom size=".1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 48, 64)
renderer.update_scene(data)
print(renderer.render().shape)
"""


@dataclass(frozen=True)
class CheckResult:
    """One line of the report. `fix` is a command or a short instruction; `facts` are the numbers, in bytes and seconds."""

    name: str
    words: str
    verdict: Verdict = "ok"
    fix: str = ""
    facts: Settings = field(default_factory=dict)
    part: str = ""


class Check(NamedTuple):
    """A check function, and the verdict if it raises."""

    part: str
    name: str
    function: Callable[[], CheckResult | Iterable[CheckResult]]
    if_it_raises: Verdict = "warning"


def run_check(check: Check) -> list[CheckResult]:
    """The results of a check; an exception is one of them. What the check prints goes to stderr."""
    results: list[CheckResult] = []
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            found = check.function()
            results.extend([found] if isinstance(found, CheckResult) else found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also the panic of a library in another language
        words = str(error) if isinstance(error, UsageError) else f"the check failed: {error_line(error)}"
        results.append(CheckResult(check.name, words, check.if_it_raises))
    return [replace(result, part=result.part or check.part, words=printable(result.words)) for result in results]


def error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


# packages ---------------------------------------------------------------------------------------------------------------


def installed_version(package: str) -> str | None:
    """The version of a package, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def requirements() -> dict[str, list[Requirement]]:
    """The requirements of each extra, and of the package itself as '', from the metadata or the pyproject.toml."""
    from packaging.requirements import Requirement

    try:
        own = metadata.metadata(PACKAGE)
    except metadata.PackageNotFoundError:
        project: Settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lines = {"": project["dependencies"], **project["optional-dependencies"]}
        return {extra: [*map(Requirement, needed)] for extra, needed in lines.items()}
    needed = [Requirement(line) for line in own.get_all("Requires-Dist") or []]
    return {extra: [x for x in needed if applies(x, extra)] for extra in ("", *(own.get_all("Provides-Extra") or []))}


def applies(requirement: Requirement, extra: str) -> bool:
    """Whether a requirement holds on this system because of an extra; '' for those that always hold."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})


def expand_extras(needed: Iterable[Requirement]) -> Iterator[Requirement]:
    """The requirements, with those of their own extras."""
    from packaging.requirements import Requirement

    for requirement in needed:
        if requirement.name == PACKAGE:
            for extra in sorted(requirement.extras):
                yield from expand_extras(requirements()[extra])
            continue
        yield requirement
        if requirement.extras and installed_version(requirement.name) is not None:
            theirs = [Requirement(line) for line in metadata.requires(requirement.name) or []]
            yield from expand_extras(x for x in theirs if any(applies(x, extra) for extra in requirement.extras))


def problem_with(requirement: Requirement) -> str:
    """'' if the requirement is met."""
    version = installed_version(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} {version} is not {requirement.specifier}"


def versions() -> Iterator[CheckResult]:
    """Results for Tightrope, Python, torch and its build, and the other required packages."""
    facts: Settings = {"version": __version__, "installed": (installed := installed_version(PACKAGE))}
    fix = "" if installed in (None, __version__) else f"install it again: pip install -e {ROOT}"
    state = f", but installed as {installed}" if fix else "" if installed else ", not installed but on the path"
    yield CheckResult(PACKAGE, f"{__version__}, in {ROOT / PACKAGE}{state}", "warning" if fix else "ok", fix, facts)
    yield CheckResult("python", f"{(python := platform.python_version())}, {sys.executable}", facts={"version": python})
    parts: Settings = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    if torch.version.cuda is not None:
        parts["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            parts["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    there = {name: value for name, value in parts.items() if value is not None}
    facts, words = {"version": str(torch.__version__), **there}, listed(there) or "built without CUDA"
    yield CheckResult("torch", f"{torch.__version__}, {words}", facts=facts)
    met: Settings = {}
    for requirement in requirements()[""]:
        if problem := problem_with(requirement):
            fix = f'pip install "{requirement.name}{requirement.specifier}"'
            yield CheckResult(requirement.name, problem, "warning", fix)
        elif requirement.name != "torch":
            met[requirement.name] = installed_version(requirement.name)
    yield CheckResult("required", listed(met), facts=met)


def listed(facts: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def extras() -> Iterator[CheckResult]:
    """Each extra with its packages, or with the command that installs it."""
    for extra, needed in list(requirements().items())[1:]:
        packages = {requirement.name: requirement for requirement in expand_extras(needed)}
        problems = [problem for problem in map(problem_with, packages.values()) if problem]
        found = {name: installed_version(name) for name in packages}
        if not problems:
            yield CheckResult(f"[{extra}]", listed(found), facts=found)
            continue
        words = "; ".join(problems) if any(found.values()) else "not installed"
        words += " (for work on Tightrope itself)" if extra in DEVELOPER_EXTRAS else ""
        target = f'"{PACKAGE}[{extra}]"' if installed_version(PACKAGE) else f'-e "{ROOT}[{extra}]"'
        yield CheckResult(f"[{extra}]", words, "absent", f"pip install {target}", found)


# the machine ------------------------------------------------------------------------------------------------------------


def system() -> Iterator[CheckResult]:
    """Results for the system, the cores that this process may use (fewer in a container), memory, threads, variables."""
    name = f"{platform.system()} {platform.release()}, {platform.machine()}"
    with contextlib.suppress(OSError):
        name = f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    yield CheckResult("system", name)
    yield check_cpu()
    rows = [line.split() for line in file_text(Path("/proc/meminfo")).splitlines()]
    sizes = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}
    total, free, limit = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0), memory_limit()
    words = f"{format_bytes(total)}, {format_bytes(free)} free" if total else "unknown on this system"
    words += f", but a limit of {format_bytes(limit)} (cgroup)" if limit is not None and limit < total else ""
    yield CheckResult("memory", words, facts={"total": total, "free": free, "limit": limit})
    small, images = choose_threads(nn.Linear(4, 64), 256), choose_threads(nn.Conv2d(4, 32, 8), 256)
    words = f"{small} for small networks, which more would slow down; {images} for images. --threads overrides"
    yield CheckResult("threads", words, facts={"small": small, "images": images, "torch": torch.get_num_threads()})
    if values := {name: os.environ[name] for name in VARIABLES if name in os.environ}:
        yield CheckResult("variables", ", ".join(f"{k}={v}" for k, v in values.items()), facts=dict(values))


def check_cpu() -> CheckResult:
    present, usable, limit = os.cpu_count() or 1, cores(), cpu_limit()
    lines = file_text(Path("/proc/cpuinfo")).splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    model = models[0] if models else platform.processor() or platform.machine()
    words = f"{model}, {torch.backends.cpu.get_cpu_capability()}; {plural(usable, 'core')} to use"
    words += f" of {present}" if usable < present else ""
    words += f", by a limit of {limit:g} on their time (cgroup)" if limit is not None and limit < present else ""
    return CheckResult("cpu", words, facts={"model": model, "cores": present, "usable": usable, "limit": limit})


def memory_limit(root: Path = CGROUP) -> int | None:
    """Bytes that a cgroup allows."""
    files = [folder / "memory.max" for folder in own_groups(root)] + [root / "memory/memory.limit_in_bytes"]
    limits = [int(content) for content in map(file_text, files) if content.isdigit()]
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def disk(folder: Path | None = None) -> CheckResult:
    """Whether a run can be written to the working directory: renaming, locks, free space."""
    folder, elsewhere = folder or Path.cwd(), "cd to a directory of yours, or train with --run-dir"
    try:
        with tempfile.TemporaryDirectory(prefix=".tightrope-doctor-", dir=folder) as scratch:
            write_file(Path(scratch) / "file", b"whole or not there")
            locks = has_locks(Path(scratch) / "lock")
    except OSError as error:
        return CheckResult("runs", f"cannot be written in {folder}: {error_line(error)}", "broken", elsewhere)
    free = shutil.disk_usage(folder).free
    words = f"can be written in {folder}, {format_bytes(free)} free, {'with' if locks else 'without'} locks"
    fix = "" if locks else f"train each run by one process at a time, or {elsewhere}"
    fix = f"make room, or {elsewhere}" if free < LOW_DISK else fix
    return CheckResult("runs", words, "warning" if fix else "ok", fix, {"free": free, "locks": locks})


def has_locks(path: Path) -> bool:
    try:
        import fcntl

        with path.open("wb") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


# videos -----------------------------------------------------------------------------------------------------------------


def encoder() -> CheckResult:
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "two.mp4"
            with Video(Place.of(path), threads=1) as video:
                for shade in (0, 255):
                    video.add(np.full((48, 64, 3), shade, np.uint8))
            size = path.stat().st_size
    except Exception as error:
        missing = isinstance(error, ImportError)
        fix = f"pip install {'av opencv-python-headless' if missing else '-U av, or train without --video-every'}"
        return CheckResult("videos", f"cannot be encoded: {error_line(error)}", "warning", fix)
    return CheckResult("videos", f"H.264 by PyAV {installed_version('av')}: two frames encoded, {format_bytes(size)}")


def rendering() -> CheckResult:
    """Draw one picture with MuJoCo, in a separate process: graphics drivers may crash."""
    name = "MuJoCo pictures"
    if installed_version("mujoco") is None:
        return CheckResult(name, "not checked: mujoco is not installed", "absent")
    pictures.choose_opengl()
    backend = os.environ.get("MUJOCO_GL", "its own choice")
    done = run_isolated(RENDER, RENDER_SECONDS)
    if done.worked:
        return CheckResult(name, f"drawn without a screen (OpenGL: {backend})")
    fix = "set MUJOCO_GL to egl, osmesa or glfw, or train without --video-every"
    if pictures.rendering_problem(done.output) == pictures.MISSING:
        fix = pictures.MISSING.partition(": ")[2]
    return CheckResult(name, f"cannot be drawn (OpenGL: {backend}): {done.line}", "warning", fix)
