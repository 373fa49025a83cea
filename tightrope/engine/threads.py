"""How many threads torch may use on the CPU: a fixed rule, since the default (every core) makes small matrices slower."""

import os

import torch

ROWS_TIMES_PARAMETERS = 40_000_000  # work of one minibatch above which a second thread begins to pay


def choose_threads(parameters: int, minibatch_rows: int) -> int:
    """One thread for small networks and batches, all cores for large ones."""
    return 1 if parameters * minibatch_rows < ROWS_TIMES_PARAMETERS else os.cpu_count() or 1


class threads:
    """A context in which torch uses `count` threads."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
