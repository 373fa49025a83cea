"""What becomes of the attributes of one's own environment when a run is saved and resumed, kind by kind.

python benchmarks/reliability/attributes.py           # half a minute

kept      the resumed run is the uninterrupted one, bit for bit
named     a line at the first save says that the attribute is not kept
silent    the resumed run is another one, and nothing was said
crashed   training, saving or resuming raised an error
"""

import collections
import io
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from attribute_cases import CASES, Case
from runs import rows
from safetensors.torch import load, save

import tightrope as tr
from tightrope.envs import TensorEnv
from tightrope.envs.attributes import unsaved_warning
from tightrope.types import Box, Discrete

SETTINGS: dict[str, Any] = dict(
    num_envs=2, num_steps=5, num_minibatches=1, update_epochs=1, hidden_sizes=(2,), total_timesteps=5 * 10, device="cpu",
    threads=1,  # an odd number of steps between two saves: what comes back every other step has changed
)  # fmt: skip


class Walk(TensorEnv):
    """Its reward is what the case's attribute says, whatever one does."""

    observation, action = Box((1,)), Discrete(2)
    pure, time_limit = False, 5
    case: ClassVar[Case]
    limit: ClassVar[int] = 2

    def __init__(self, num_envs: int = 1, device: Any = "cpu", max_episode_steps: int | None = None) -> None:
        type(self).case.start(self)
        super().__init__(num_envs, device, max_episode_steps)

    @property
    def doubled(self) -> Any:
        return 2 * self._Walk__hidden  # type: ignore[attr-defined]

    def initial(self, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return state

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        shown = zlib.crc32(exact(type(self).case.step(self)).encode("utf-8", "surrogatepass"))
        return torch.full((len(state),), shown / 2**32)


def exact(value: Any) -> str:
    """A value in words, to the last bit."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return exact(value.to_dense())
        raw = value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {raw.hex()}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and type(value) is np.ndarray:
        return f"{value.dtype.str} {value.dtype} {value.shape} {value.strides} {value.flags.writeable} {value.tobytes().hex()}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str} {value.tobytes().hex()}"
    if isinstance(value, (list, tuple, collections.deque)):
        return f"{type(value).__name__} {getattr(value, 'maxlen', '')} {[exact(x) for x in value]}"
    if isinstance(value, dict):
        return f"{type(value).__name__} {[(exact(k), exact(v)) for k, v in value.items()]}"
    if isinstance(value, (np.random.Generator, np.random.RandomState, torch.Generator)) or hasattr(value, "getstate"):
        return type(value).__name__
    shown = vars(value) if hasattr(value, "__dict__") and not isinstance(value, (set, frozenset)) else value
    return f"{type(value).__name__} {shown!r}"


def kind_of(case: Case) -> type[Walk]:
    """A class of its own, as in another process."""
    return type("Walk", (Walk,), {"case": case, "__module__": __name__})


def rewards(env: Walk, steps: int) -> list[float]:
    action, noise = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1)
    return [float(env.step(action, noise).reward[0]) for _ in range(steps)]


def quick_outcome(case: Case) -> tuple[str, str]:
    """The same without training: an environment's state goes through the bytes of a file into a fresh environment."""
    env, again = kind_of(case)(2), kind_of(case)(2)
    env.reset(seed=0)
    again.reset(seed=0)
    rewards(env, 5)
    file = save(env.state_dict())
    said = unsaved_warning(env, env.state_dict()) or ""
    later = rewards(env, 7)
    again.load_state_dict(load(file))
    return ("named" if said else "kept" if rewards(again, 7) == later else "silent"), said


def outcome(case: Case) -> tuple[str, str]:
    """What becomes of one kind, and what was said of it."""
    said, later = io.StringIO(), io.StringIO()
    try:
        with redirect_stderr(later), tempfile.TemporaryDirectory() as folder:
            whole, parts = Path(folder, "whole"), Path(folder, "parts")
            tr.PPO(kind_of(case), seed=1, **SETTINGS).learn(run_dir=whole, quiet=True)
            with redirect_stderr(said):
                tr.PPO(kind_of(case), seed=1, **SETTINGS).learn(run_dir=parts, quiet=True, until=1 * 10)
            tr.load(parts, env=kind_of(case)).learn(until=2 * 10, quiet=True)
            tr.load(parts, env=kind_of(case)).learn(quiet=True)
            same = repr(rows(whole)) == repr(rows(parts))  # so that NaN equals NaN
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"
    lines = [line for line in said.getvalue().splitlines() if "not saved with the run" in line]
    if lines:
        return ("named" if len(lines) == 1 else "silent"), lines[0]
    return ("kept" if same else "silent"), said.getvalue()


def cases() -> dict[str, Callable[[Path], str]]:
    """For adversary.py."""

    def kept_or_named(case: Case) -> Callable[[Path], str]:
        def tried(_: Path) -> str:
            found, words = outcome(case)
            assert found in ("kept", "named"), f"{found}: {words}"
            return found

        return tried

    return {case.kind: kept_or_named(case) for case in CASES}


def main() -> None:
    counts = collections.Counter[str]()
    for case in CASES:
        found, said = outcome(case)
        counts[found] += 1
        print(f"{found:8} {case.kind}{'' if found == 'kept' else ': ' + said.strip()[:200]}", flush=True)
    print(f"{len(CASES)} kinds: {', '.join(f'{n} {found}' for found, n in counts.most_common())}")
    sys.exit(bool(counts["silent"] or counts["crashed"]))


if __name__ == "__main__":
    main()
