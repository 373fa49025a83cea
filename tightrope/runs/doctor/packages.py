"""Versions of what is installed, and what the package's own metadata would have besides."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from ...version import __version__
from .findings import Finding
from .trials import ROOT

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "tightrope"
FOR_DEVELOPERS = ("dev", "docs")


def installed(package: str) -> str | None:
    """Its version, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Needs:
    """What the package asks for: always, and with each of its extras."""

    always: list[Requirement]
    extras: dict[str, list[Requirement]]
    is_installed: bool  # or only lies there, on the path


@cache
def needs() -> Needs:
    """From the metadata of the installation; where there is none, from the checkout that the package lies in."""
    from packaging.requirements import Requirement

    try:
        own = metadata.metadata(NAME)
    except metadata.PackageNotFoundError:
        project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        optional = {
            extra: [Requirement(x) for x in wanted] for extra, wanted in project["optional-dependencies"].items()
        }
        return Needs([Requirement(x) for x in project["dependencies"]], optional, False)
    wanted = [Requirement(x) for x in own.get_all("Requires-Dist") or []]
    extras = {extra: [x for x in wanted if of_extra(x, extra)] for extra in own.get_all("Provides-Extra") or []}
    return Needs([x for x in wanted if of_extra(x, "")], extras, True)


def of_extra(requirement: Requirement, extra: str) -> bool:
    """Whether it is wanted here because of that extra, or of none at all for ''."""
    marker = requirement.marker
    if marker is None:
        return not extra
    without = marker.evaluate({"extra": ""})
    return without if not extra else not without and marker.evaluate({"extra": extra})


def command(extra: str) -> str:
    """What installs an extra: by name, or from the checkout where that is all there is."""
    return f'pip install "{NAME}[{extra}]"' if needs().is_installed else f'pip install -e "{ROOT}[{extra}]"'


def packages_of(wanted: Iterable[Requirement]) -> Iterator[Requirement]:
    """The packages themselves, for what is asked for as another package's extra too."""
    from packaging.requirements import Requirement

    for requirement in wanted:
        if requirement.name == NAME:  # an extra made of other extras
            for extra in sorted(requirement.extras):
                yield from packages_of(needs().extras[extra])
            continue
        yield requirement
        if requirement.extras and installed(requirement.name) is not None:
            theirs = [Requirement(x) for x in metadata.requires(requirement.name) or []]
            yield from packages_of(x for x in theirs if any(of_extra(x, extra) for extra in requirement.extras))


def shortfall(requirement: Requirement) -> str:
    """What is wrong with a package, or nothing."""
    version = installed(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} {version} is not {requirement.specifier}"
    return ""


# what is shown --------------------------------------------------------------------------------------------------------


def own_version() -> Iterator[Finding]:
    """Of the code that runs; an installation that is older than it would ask for other packages."""
    there = installed(NAME)
    where = f"in {ROOT / NAME}"
    facts = {"version": __version__, "installed": there}
    if there not in (None, __version__):
        words = f"{__version__}, {where}, but installed as {there}"
        yield Finding(NAME, words, "warning", f"install it again: pip install -e {ROOT}", facts)
        return
    yield Finding(NAME, f"{__version__}, {where}{'' if there else ', not installed but on the path'}", facts=facts)


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", f"{version}, {sys.executable}", facts={"version": version})


def torch_build() -> Iterator[Finding]:
    """The libraries that torch brings along."""
    parts: dict[str, Any] = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    if torch.version.cuda is not None:
        parts["cuDNN"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            parts["NCCL"] = ".".join(map(str, version))
    there = {name: value for name, value in parts.items() if value is not None}
    build = ", ".join(f"{name} {value}" for name, value in there.items()) or "built without CUDA"
    yield Finding("torch", f"{torch.__version__}, {build}", facts={"version": str(torch.__version__), **there})


def required() -> Iterator[Finding]:
    """What every run may need."""
    for requirement in needs().always:
        wrong = shortfall(requirement)
        if wrong:
            fix = f'pip install "{requirement.name}{requirement.specifier}"'
            yield Finding(requirement.name, wrong, "warning", fix)
    good = {x.name: installed(x.name) for x in needs().always if not shortfall(x) and x.name != "torch"}
    yield Finding("required", ", ".join(f"{name} {version}" for name, version in good.items()), facts=good)


def besides() -> Iterator[Finding]:
    """Packages that others bring along; whether they are missed depends on the device."""
    cuda, triton, jax = torch.cuda.is_available(), installed("triton"), installed("jax")
    if triton is None:
        words, fix = "not installed; --accelerate compile and max want it on CUDA", "pip install triton" if cuda else ""
        yield Finding("triton", words, "absent", fix)
    else:
        yield Finding("triton", triton, facts={"version": triton})
    if jax is None:
        yield Finding("jax", "not installed; Brax and MuJoCo Playground want it", "absent")
    elif cuda and not jax_has_cuda():
        major = (torch.version.cuda or "12").partition(".")[0]
        words = f"{jax}, without CUDA: its environments run on the CPU"
        yield Finding("jax", words, "warning", f'pip install "jax[cuda{major}]"', {"version": jax})
    else:
        yield Finding("jax", jax, facts={"version": jax})


def jax_has_cuda() -> bool:
    return any(installed(f"jax-cuda{major}-plugin") for major in (11, 12, 13))


def extras() -> Iterator[Finding]:
    """Each with its packages, or with the command that installs it."""
    for extra in needs().extras:
        wanted = {x.name: x for x in packages_of(needs().extras[extra])}
        wrong = [words for words in map(shortfall, wanted.values()) if words]
        versions = {name: installed(name) for name in wanted}
        label = f"[{extra}]"
        if wrong:
            missing = all(version is None for version in versions.values())
            words = "not installed" if missing else "; ".join(wrong)
            words += " (for work on Tightrope itself)" if extra in FOR_DEVELOPERS else ""
            yield Finding(label, words, "absent", command(extra), versions)
        else:
            yield Finding(label, ", ".join(f"{k} {v}" for k, v in versions.items()), facts=versions)
