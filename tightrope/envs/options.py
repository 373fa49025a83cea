"""What can be asked of an environment that an engine makes, whichever engine that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
MOST_NUMBERS = 1 << 22  # of one observation or action, as far as a file is believed
VectorizationMode = Literal["sync", "async", "vector_entry_point"]


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """How to make an environment."""

    max_episode_steps: int | None = None  # truncate after this many steps instead of the environment's own limit
    vectorization_mode: VectorizationMode = "sync"  # Gymnasium's: in turn, in processes, or an entry point of its own
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # handed to the environment's constructor
    scoring: bool = False  # for evaluation: whole games and raw rewards, where training sees something else
