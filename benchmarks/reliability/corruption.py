"""Damage to every file of a run: always detected, never a traceback, never silently loaded. Then forged checkpoints, at random.

python benchmarks/reliability/corruption.py                         # 1,200 damaged runs, 1,500 forged ones
python benchmarks/reliability/corruption.py --cases 40 --forged 40
"""

import argparse
import contextlib
import io
import random
import resource
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forgery import forge, forge_config, forge_tensors, manifest_of, newest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from processes import folder, table
from runs import PHASE, checkpoints, rows, tensors
from safetensors.numpy import load_file

import tightrope as tr
import tightrope.cli
from tightrope.errors import UsageError
from tightrope.training.checkpoint_reader import CHECKPOINTS, CONFIG, LATEST, MANIFEST, MODEL, TRAINING
from tightrope.training.user_objects import has_id

FILES = (MANIFEST, MODEL, TRAINING)  # of a checkpoint
KINDS = ("cut short", "bytes flipped", "another run's", "another checkpoint's", "emptied", "deleted", "extended")
PHASES, STOPPED = 7, 5
SETTINGS: dict[str, Any] = dict(
    num_envs=3, num_steps=8, hidden_sizes=(8,), max_episode_steps=20, device="cpu", threads=1, save_seconds=0.0, seed=7,
    keep_checkpoints=3, num_minibatches=2, update_epochs=2, norm_obs=True, norm_reward=True, total_timesteps=PHASES * PHASE,
)  # fmt: skip
quiet = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=(Phase.generate,)
)


def command(*args: str | Path) -> tuple[int, str]:
    """Exit code and output of a command, in this process; a traceback is ours to see."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            tightrope.cli.main([str(arg) for arg in args])
        except SystemExit as leaving:
            return int(leaving.code or 0), said.getvalue()
    raise AssertionError("a command that does not leave")


class Originals:
    """A run with several checkpoints, one with a single one, another run's files, and the end that they would come to."""

    def __init__(self, path: Path) -> None:
        self.several, self.single, self.other, self.end = (
            path / name for name in ("several", "single", "other", "end")
        )
        for run, changes in {self.several: {}, self.single: {"keep_checkpoints": 1}, self.other: {"seed": 8}}.items():
            tr.PPO("CartPole-v1", **(SETTINGS | changes)).learn(run_dir=run, quiet=True, until=STOPPED * PHASE)
        tr.PPO("CartPole-v1", **SETTINGS).learn(run_dir=self.end, quiet=True)


def damage(path: Path, kind: str, chance: random.Random, originals: Originals, run: Path) -> None:
    """Do something to one file."""
    content = path.read_bytes()
    if kind == "deleted":
        path.unlink()
    elif kind == "cut short":
        path.write_bytes(content[: chance.randrange(len(content))])
    elif kind == "bytes flipped":
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 10, 1000))):
            changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
        path.write_bytes(changed)
    elif kind == "another run's":
        path.write_bytes((originals.other / path.relative_to(run)).read_bytes())
    elif kind == "another checkpoint's":
        others = (originals.several / CHECKPOINTS).glob(f"*/{path.name}")
        found = [other for other in others if other.parent.name != path.parent.name]
        path.write_bytes(chance.choice(found).read_bytes() if found else b"")
    elif kind == "emptied":
        path.write_bytes(b"")
    else:
        path.write_bytes(content + chance.randbytes(chance.choice((1, 8, 4096))))


def is_good(checkpoint: Path, original: Path) -> bool:
    return all(
        (checkpoint / name).exists() and (checkpoint / name).read_bytes() == (original / name).read_bytes()
        for name in FILES
    )


def same(agent: tr.Agent, checkpoint: Path) -> bool:
    mine = {k: v.numpy().tobytes() for k, v in agent.state.state_dict().items() if k != "run.seconds"}
    return mine == tensors(checkpoint)


def check_damaged(run: Path, original: Path, originals: Originals) -> str:
    """Load, evaluate and resume a damaged run; returns what became of it."""
    names = checkpoints(run)
    good = [name for name in names if is_good(run / CHECKPOINTS / name, original / CHECKPOINTS / name)]
    code, said = command("eval", run, "--episodes", "1")
    lines = said.splitlines()
    if not good:
        assert code == 2, said
        assert len(lines) == 1, said
        assert names[0] in said, said
        code, said = command("resume", run)
        assert (code, len(said.splitlines())) == (2, 1), said
        return "refused"
    assert code == 0, said
    for name in names[: names.index(good[0])]:
        assert f"checkpoint {name}: " in said, said
        assert f"using {good[0]} instead" in said, said
    pointer, before = (path / CHECKPOINTS / LATEST for path in (run, original))
    if pointer.exists() and pointer.read_bytes() != before.read_bytes():
        # another run's pointer may agree with that run's manifest, if both came in: then the checkpoint it leads to is named
        target = next((name for name in names if name in pointer.read_text(errors="replace")), None)
        assert "latest is damaged" in said or f"checkpoint {target}: " in said, said
        assert good[0] in said, said
    with contextlib.redirect_stderr(io.StringIO()):
        assert same(tr.load(run), original / CHECKPOINTS / good[0]), "something else was loaded"
    code, said = command("resume", run)
    assert code == 0, said
    assert f"resuming from {good[0]}\n" in said, said
    assert rows(run) == rows(originals.end), "the metrics differ"
    assert tensors(newest(run)) == tensors(newest(originals.end)), "it has come to another end"
    return "as it was" if good[0] == names[0] else "an older one taken"


def damaged_runs(cases: int, originals: Originals) -> Counter[str]:
    """What became of so many damaged runs."""
    counts: Counter[str] = Counter()

    @settings(quiet, max_examples=cases)
    @given(
        single=st.booleans(),
        damages=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(KINDS)), min_size=1, max_size=3),
        seed=st.integers(0, 2**32),
    )
    def check(single: bool, damages: list[tuple[int, str]], seed: int) -> None:
        chance, original = random.Random(seed), originals.single if single else originals.several
        with folder() as path:
            run = path / "run"
            shutil.copytree(original, run)
            files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in ("metrics.jsonl", ".lock"))
            names = [files[place % len(files)] for place, _ in damages]
            if len({p for p in names if p.name in FILES}) == 3 and len({p.parent for p in names}) == 1:
                return  # all files of another run's are that run's checkpoint
            for file, (_, kind) in zip(names, damages, strict=True):
                if file.exists() and file.stat().st_size:
                    damage(file, kind, chance, originals, run)
                    counts[f"{file.name} {kind}"] += 1
            counts[check_damaged(run, original, originals)] += 1

    check()
    return counts


# forged ---------------------------------------------------------------------------------------------------------------

ODD = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**62, 2**63, 10**30, 0.5, -0.5, 1e308, 1e-320, "", "x", "nan", "1e400",
    "\n\x1b[31m", "x" * 9000, "os:system", "CartPole-v1", "Pendulum-v1", "ALE/Pong-v5", "antigravity:X-v0",
    [], [0], [8], [8, 8], [[8]], [2**62], {}, {"a": 1},
]  # fmt: skip
odd = st.sampled_from(ODD) | st.lists(st.integers() | st.text(max_size=8), max_size=3)


def forged_runs(cases: int, originals: Originals) -> Counter[str]:
    """What became of so many checkpoints whose hashes are all right."""
    counts: Counter[str] = Counter()
    manifest = manifest_of(newest(originals.single))
    keys = [("manifest", key) for key in manifest if key != "sha256"] + [("config", key) for key in manifest["config"]]
    keys += [(file, name) for file in (MODEL, TRAINING) for name in load_file(newest(originals.single) / file)]

    @settings(quiet, max_examples=cases)
    @given(changes=st.lists(st.tuples(st.sampled_from(keys), odd, st.integers(0, 2**32)), min_size=1, max_size=3))
    def check(changes: list[tuple[tuple[str, str], Any, int]]) -> None:
        with folder() as path:
            run = path / "run"
            shutil.copytree(originals.single, run)
            for (where, key), value, seed in changes:
                change(run, where, key, value, seed)
            message = ""
            with contextlib.redirect_stderr(io.StringIO()):
                try:
                    tr.load(run)
                except UsageError as error:
                    message = str(error)
            counts["refused" if message else "loaded"] += 1
            assert message.isprintable(), message
            assert len(message) < 2000, message

    check()
    return counts


def change(run: Path, where: str, key: str, value: Any, seed: int) -> None:
    """One change to a checkpoint, and every hash put right again."""
    if not isinstance(manifest_of(newest(run)).get("config"), dict):
        return
    if where in (MODEL, TRAINING):
        found = load_file(newest(run) / where)
        if key in found:
            forge_tensors(run, where, **{key: odd_tensor(found[key], random.Random(seed))})
    else:
        (forge if where == "manifest" else forge_config)(run, **{key: value})


def odd_tensor(tensor: Any, chance: random.Random) -> Any:
    """None, or a tensor of another shape, type or content."""
    kind = chance.randrange(6)
    if kind == 0:
        return None
    if kind == 1:
        return np.zeros(chance.choice(((), (0,), (1,), (3, 3), (2, 2, 2), (10**6,))), tensor.dtype)
    if kind == 2:
        with np.errstate(all="ignore"):
            return tensor.astype(chance.choice((np.float16, np.float64, np.int8, np.bool_, np.int64)))
    if kind == 3:
        return np.full_like(tensor, chance.choice((0, 1, 255 if tensor.dtype == np.uint8 else -1)))
    noise = np.frombuffer(chance.randbytes(tensor.nbytes), tensor.dtype)
    return noise.reshape(tensor.shape) if kind == 4 else tensor.reshape(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1200, help="damaged runs")
    parser.add_argument("--forged", type=int, default=1500, help="forged checkpoints")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with folder() as path:
        originals = Originals(path)
        counts = damaged_runs(options.cases, originals)
        ends = ("as it was", "an older one taken", "refused")
        total = sum(counts[end] for end in ends)
        print(f"{total} damaged runs through load, `eval` and `resume`: every damage named, no traceback,")
        print("nothing loaded that was not saved so, every run that went on came to the end of an undamaged one.\n")
        print(table(("what became of it", "runs"), [(end, counts[end]) for end in ends]) + "\n")
        files = (MANIFEST, MODEL, TRAINING, LATEST, CONFIG)
        table_rows = [(kind, *(counts[f"{file} {kind}"] for file in files)) for kind in KINDS]
        print(table(("damage", *files), table_rows) + "\n")
        has_id("No/Such-v0")  # every engine's module is imported by now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        forged = forged_runs(options.forged, originals)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < 300, f"{grown:.0f} MB were taken"
        print(f"{forged.total()} forged checkpoints with right hashes: {forged['refused']} refused in one line,")
        print(
            f"{forged['loaded']} loaded (another learning rate, say, is a run like any other), {grown:.0f} MB more at most."
        )


if __name__ == "__main__":
    sys.exit(main())
