"""Random numbers that trackers draw, kept apart from those of training.

A client waits for a random time before it asks a server again, and draws it from Python's global generator, in a thread of its
own and at a moment that nobody can repeat. An environment that draws from the same generator would go on with other numbers.
So the modules of clients, and of what they talk to servers with, are given a copy of the module `random`.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

CLIENTS = frozenset((  # top-level packages
    "mlflow", "wandb", "tensorboard", "tensorboardX", "urllib3", "requests", "httpx", "httpcore", "aiohttp", "sqlalchemy",
    "alembic", "opentelemetry", "databricks", "botocore", "boto3", "s3transfer", "google", "grpc", "azure", "msrest",
    "tenacity", "backoff", "sentry_sdk", "cachetools", "paramiko", "pysftp",
))  # fmt: skip
_generator: Any = random.random.__self__  # type: ignore[attr-defined]  # behind random.random()


class Apart(MetaPathFinder):
    """Gives the modules of clients a generator of their own: those that are there, and those that are imported later."""

    def __init__(self) -> None:
        self.random: ModuleType | None = None
        self.lock = threading.Lock()

    def begin(self) -> None:
        """From now on. It is for good: a client's threads may outlive the run that it is told of."""
        with self.lock:
            if self.random is not None:
                return
            spec = find_spec("random")
            assert spec is not None
            assert spec.loader is not None
            self.random = module_from_spec(spec)
            spec.loader.exec_module(self.random)
            sys.meta_path.insert(0, self)
            for name, module in list(sys.modules.items()):
                if is_client(name):
                    self.give(module)

    def give(self, module: Any) -> None:
        if not isinstance(module, ModuleType):
            return
        held: dict[str, Any] = object.__getattribute__(module, "__dict__")  # without waking one that loads itself later
        for name, value in held.copy().items():
            if value is random:
                held[name] = self.random
            elif isinstance(value, (BuiltinMethodType, MethodType)) and value.__self__ is _generator:
                held[name] = getattr(self.random, value.__name__)  # from random import choice

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As others find it; once it has been executed, it is given its generator."""
        if not is_client(fullname):
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is not None:

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.give(module)

            with suppress(AttributeError):  # a loader that takes no attribute
                loader.exec_module = exec_module
        return spec


def is_client(name: str) -> bool:
    return name.partition(".")[0] in CLIENTS


apart = Apart()
