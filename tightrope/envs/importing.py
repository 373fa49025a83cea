"""Names that lead to a module: module:Class, and Gymnasium's module:Name-v0.

There is one way to read them, so that what is looked at before an import is what is imported.
"""

from __future__ import annotations

import contextlib
import importlib

from ..errors import UsageError
from .adapters.host import working_directory_on_path


def module_and_name(path: str, what: str = "env") -> tuple[str, str]:
    """What is before and after the colon; no module where there is no colon. Refuses what no import statement could say:
    the file of a module may have any name at all."""
    module, colon, name = path.rpartition(":")
    if colon and not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"{what} {path!r} is not a name: give an id, module:Name-v0 or module:Class")
    return module, name


def import_module_of(env_id: str) -> None:
    """Import the module of module:Name-v0, which registers the id. Only for names that the user gave."""
    module, _ = module_and_name(env_id)
    if module:
        with contextlib.suppress(ImportError), working_directory_on_path():
            importlib.import_module(module)
