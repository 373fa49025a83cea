"""metrics.jsonl: one JSON object per phase, written as it happens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite: JSON has no other word for it."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """Appends rows to a file; numbers that are not finite are written as null."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", buffering=1)

    def write(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(finite(row), allow_nan=False) + "\n")

    def close(self) -> None:
        self.file.close()
