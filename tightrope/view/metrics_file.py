"""metrics.jsonl: one JSON object per phase, written as it happens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


class MetricsFile:
    """Appends rows to a file; numbers that are not finite are written as null."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", buffering=1)

    def write(self, row: dict[str, Any]) -> None:
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self.file.write(json.dumps(clean, allow_nan=False) + "\n")

    def close(self) -> None:
        self.file.close()
