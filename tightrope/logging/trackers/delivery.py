"""The thread between training and a tracker, and the random numbers of tracker clients.

A client waits for a random time before it asks a server again. It draws that time from Python's global generator, on its own
thread, at a moment that nobody can repeat. An environment that draws from the same generator would then see other numbers. So
the modules of clients, and of their network libraries, get a copy of the module `random`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

from ...processes import LOOK, Wait

PAUSE = 0.5  # seconds between deliveries: waking up at every phase would cost training more than the deliveries do
MAX_WAITING = 10_000  # jobs; more are dropped
DELIVERY_SECONDS = 30.0  # for one job, at the end
CLIENTS = frozenset((  # top-level packages
    "mlflow", "wandb", "tensorboard", "tensorboardX", "urllib3", "requests", "httpx", "httpcore", "aiohttp", "sqlalchemy",
    "alembic", "opentelemetry", "databricks", "botocore", "boto3", "s3transfer", "google", "grpc", "azure", "msrest",
    "tenacity", "backoff", "sentry_sdk", "cachetools", "paramiko", "pysftp",
))  # fmt: skip
_generator: Any = random.random.__self__  # type: ignore[attr-defined]  # behind random.random()

Job = Callable[[], None]


class DeliveryThread:
    """Does jobs in order, on a thread of its own. Adding a job never waits; only `close` does, for a limited time.

    After the first job that fails no other is done; its error is raised by the next `add` or by `close`.
    """

    def __init__(self, name: str) -> None:
        self.jobs: deque[Job] = deque()  # one thread adds, the other takes
        self.dropped = 0
        self.error: Exception | None = None
        self.delivered_at = time.monotonic()
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._work, name=f"tightrope-{name}", daemon=True)
        self.thread.start()

    def add(self, job: Job) -> None:
        if self.error is not None:
            raise self.error
        if len(self.jobs) >= MAX_WAITING:
            self.dropped += 1
        else:
            self.jobs.append(job)

    def close(self) -> None:
        """Wait until all jobs are done. TimeoutError if one of them takes too long, or if jobs were dropped."""
        self.delivered_at = time.monotonic()
        self.closing.set()
        wait = Wait()
        while self.thread.is_alive():
            if wait.over(DELIVERY_SECONDS, self.delivered_at):
                waiting = len(self.jobs) + 1
                self.jobs.clear()
                raise TimeoutError(f"no answer for {wait.seconds:.0f} s, {waiting} of its messages are not delivered")
            self.thread.join(min(DELIVERY_SECONDS, LOOK))
        if self.error is not None:
            raise self.error
        if self.dropped:
            raise TimeoutError(f"it was too slow: {self.dropped:,} messages were dropped")

    def _work(self) -> None:
        try:
            closing = False
            while not closing:
                closing = self.closing.wait(PAUSE)  # if so, all jobs have been added
                while self.jobs:
                    self.jobs.popleft()()
                    self.delivered_at = time.monotonic()
        except Exception as error:
            self.error = error
            self.jobs.clear()


class ClientRandom(MetaPathFinder):
    """Gives client modules a copy of the module `random`: those that are imported, and those that will be."""

    def __init__(self) -> None:
        self.random: ModuleType | None = None
        self.lock = threading.Lock()

    def install(self) -> None:
        """For the rest of the process: a client's threads may outlive its run."""
        with self.lock:
            if self.random is not None:
                return
            spec: Any = find_spec("random")
            self.random = module_from_spec(spec)
            spec.loader.exec_module(self.random)
            sys.meta_path.insert(0, self)
            for name, module in list(sys.modules.items()):
                if is_client(name):
                    self.replace(module)

    def replace(self, module: object) -> None:
        if not isinstance(module, ModuleType):
            return
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")  # does not wake up a lazy module
        for name, value in names.copy().items():
            if value is random:
                names[name] = self.random
            elif isinstance(value, (BuiltinMethodType, MethodType)) and value.__self__ is _generator:
                names[name] = getattr(self.random, value.__name__)  # from random import choice

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What other finders find, with a loader that replaces `random` once the module has been executed."""
        if not is_client(fullname):
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        loader: Any = None if spec is None else spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is not None:

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.replace(module)

            with suppress(AttributeError):  # a loader that takes no attribute
                loader.exec_module = exec_module
        return spec


def is_client(name: str) -> bool:
    return name.partition(".")[0] in CLIENTS


client_random = ClientRandom()
