"""A second copy of the package in memory, with one line of one file replaced. The package that runs is not touched."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from ..errors import UsageError

PACKAGE = __name__.partition(".")[0]
SHARED = tuple(
    f"{PACKAGE}.{name}" for name in ("errors", "output", "version", "activity", "recording")
)  # as they run here
BARE = (PACKAGE, f"{PACKAGE}.exercises")  # packages whose __init__ gathers what a copy does not need


class SecondCopy:
    """Modules of the package under their own names, but outside sys.modules: their imports lead to each other."""

    def __init__(self, module: str = "", old: str = "", new: str = "") -> None:
        """Replace `old`, which must occur once in the file of `module` (without the package's name), by `new`."""
        self.modules: dict[str, ModuleType] = {}
        self.changed, self.old, self.new = f"{PACKAGE}.{module}", old, new

    def load(self, name: str) -> ModuleType:
        """The copy of a module, by its name without the package's."""
        return self._load(f"{PACKAGE}.{name}")

    def _load(self, name: str) -> ModuleType:
        if name.startswith(SHARED):
            return importlib.import_module(name)
        if name in self.modules:
            return self.modules[name]
        parent, _, last = name.rpartition(".")
        if parent:
            self._load(parent)
            if name in self.modules:  # the parent has imported it
                return self.modules[name]
        if name not in BARE:
            importlib.import_module(name)  # dataclasses look for their module in sys.modules
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or spec.loader is None:
            raise ModuleNotFoundError(name)
        module = self.modules[name] = ModuleType(name)
        module.__dict__.update(
            __file__=spec.origin, __spec__=spec, __loader__=spec.loader,
            __package__=name if spec.submodule_search_locations else parent,
            __builtins__={**vars(builtins), "__import__": self._import},
        )  # fmt: skip
        if spec.submodule_search_locations:
            module.__path__ = list(spec.submodule_search_locations)
        if name not in BARE:
            CodeLoader(name, spec.origin, self._code(name, spec.origin)).exec_module(module)
        if parent:
            setattr(self.modules[parent], last, module)
        return module

    def _code(self, name: str, origin: str) -> CodeType:
        if name != self.changed:
            return code_of(origin)
        text = Path(origin).read_text()
        if text.count(self.old) != 1:
            raise UsageError(f"{name} has {self.old!r} {text.count(self.old)} times: give a line that it has once")
        return compile(text.replace(self.old, self.new), origin, "exec", dont_inherit=True)

    def _import(
        self, name: str, namespace: Mapping[str, object] | None = None, local: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (), level: int = 0,
    ) -> ModuleType:  # fmt: skip
        package = str((namespace or {}).get("__package__") or "")
        full = importlib.util.resolve_name("." * level + name, package) if level else name
        if full.partition(".")[0] != PACKAGE:
            return builtins.__import__(name, namespace, local, fromlist, level)
        module = self._load(full)
        for item in fromlist or ():
            folders = [Path(folder) for folder in getattr(module, "__path__", ())]
            if any((folder / f"{item}.py").exists() or (folder / item).is_dir() for folder in folders):
                self._load(f"{full}.{item}")
        return module if fromlist else self._load(PACKAGE)


class CodeLoader(SourceFileLoader):
    """Executes a module with this code instead of that of its file."""

    def __init__(self, name: str, origin: str, code: CodeType) -> None:
        super().__init__(name, origin)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


@functools.cache
def code_of(origin: str) -> CodeType:
    """The code of a file as it is, which all copies share."""
    return compile(Path(origin).read_text(), origin, "exec", dont_inherit=True)
