"""Runs that a stranger has prepared. Each takes a good one, with a single checkpoint, and spoils it."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from forgery import REMOVED, forge, forge_config, forge_header, forge_tensors, newest, point
from safetensors.numpy import load_file

from tightrope.files import canonical
from tightrope.training.checkpoint import CHECKPOINTS, CONFIG, MANIFEST, MODEL, TRAINING

Case = Callable[[Path], None]
PROOF = "executed"  # beside the run, made by what must not be executed
GB = 1 << 30


class Payload:
    """Unpickling it leaves a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def only_settings(run: Path) -> None:
    """As if it had been stopped before its first checkpoint."""
    shutil.rmtree(run / CHECKPOINTS)


def pickles() -> dict[str, Case]:
    def torch_file(proof: Path) -> bytes:
        import io
        import zipfile

        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:  # what torch.save makes
            archive.writestr("archive/data.pkl", pickle.dumps(Payload(proof)))
            archive.writestr("archive/version", "3\n")
        return buffer.getvalue()

    kinds: dict[str, Callable[[Path], bytes]] = {
        "pickle": lambda proof: pickle.dumps(Payload(proof)),
        "torch": torch_file,
        "YAML tag": lambda proof: f"env: CartPole-v1\nseed: !!python/object/apply:os.mkdir ['{proof}']\n".encode(),
    }

    def spoil(file: str, kind: str, right_hashes: bool) -> Case:
        def case(run: Path) -> None:
            content = kinds[kind](run.parent / PROOF)
            if file == CONFIG:
                only_settings(run)
                (run / CONFIG).write_bytes(content)
                return
            (newest(run) / file).write_bytes(content)
            if right_hashes and file != MANIFEST:
                forge(run)
            elif right_hashes:
                point(run)

        return case

    return {
        f"{kind} as {file}{', right hashes' * right}": spoil(file, kind, bool(right))
        for file in (MANIFEST, MODEL, TRAINING, CONFIG)
        for kind in kinds
        for right in ((0, 1) if file != CONFIG else (0,))
    }


HARMLESS = {(CHECKPOINTS, "a directory")}  # a run without checkpoints has none yet


def places() -> dict[str, Case]:
    """Files that are none, and names that lead elsewhere."""

    def replaced(file: str, make: Callable[[Path, Path], None]) -> Case:
        def case(run: Path) -> None:
            if file == CONFIG:
                only_settings(run)
            path = run / file if file in (CONFIG, CHECKPOINTS) else newest(run) / file
            kept = run.parent / f"kept-{path.name}"
            path.rename(kept)
            make(path, kept)

        return case

    kinds: dict[str, Callable[[Path, Path], None]] = {
        "a link to the very file": lambda path, kept: path.symlink_to(kept),
        "a link to /etc/passwd": lambda path, _: path.symlink_to("/etc/passwd"),
        "a link to /dev/zero": lambda path, _: path.symlink_to("/dev/zero"),
        "a link to itself": lambda path, _: path.symlink_to(path.name),
        "a pipe": lambda path, _: os.mkfifo(path),
        "a directory": lambda path, _: path.mkdir(),
    }
    cases = {
        f"{file} is {kind}": replaced(file, make)
        for file in (MANIFEST, MODEL, TRAINING, CONFIG, CHECKPOINTS)
        for kind, make in kinds.items()
        if (file, kind) not in HARMLESS
    }
    for name in ("../../../etc", "/etc/passwd", "0001-steps-24/../../x", "", ".", "0001-steps-24\n", "x" * 5000):
        cases[f"manifest name {name[:20]!r}"] = lambda run, name=name: forge(run, name=name)
    for name in ("../../../etc/passwd", "/etc/passwd", "model.safetensors/../x", "C:\\x", "\0"):
        fact = {"size": 3, "sha256": "0" * 64}
        cases[f"manifest file {name[:20]!r}"] = lambda run, name=name, fact=fact: forge(run, files={name: fact})
        both = {MODEL: fact, TRAINING: fact, name: fact}
        cases[f"one more file {name[:20]!r}"] = lambda run, both=both: forge(run, files=both)
    return cases


def sizes() -> dict[str, Case]:
    """What says that it is large."""

    def header(announced: dict[str, Any], **more: Any) -> Case:
        return lambda run: forge_header(run, MODEL, json.dumps(announced).encode(), **more)

    def tensor(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
        return {"policy.x": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}

    def many(run: Path) -> None:
        one = '"policy.%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        text = "{" + "".join(one % i for i in range(1_500_000))[:-1] + "}"
        forge_header(run, MODEL, text.encode())

    def sparse(file: str, gigabytes: int) -> Case:
        name = "policy.x" if file == MODEL else "run.x"
        size = gigabytes * GB
        facts = {name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
        return lambda run: forge_header(run, file, json.dumps(facts).encode(), body=size)

    def many_envs(run: Path) -> None:
        """A file that has as many rows as the settings say, none of them on the disk."""
        rows = GB // 16
        facts = {"run.obs": {"dtype": "F32", "shape": [rows, 4], "data_offsets": [0, GB]}}
        forge_header(run, TRAINING, json.dumps(facts).encode(), body=GB)
        forge_config(run, num_envs=rows)

    def deep(run: Path) -> None:
        forge_tensors(run, MODEL, **{"policy.x": np.zeros(300_000, np.float32)})
        forge_config(run, hidden_sizes=[1] * 100_000)

    def bomb(run: Path) -> None:
        forge_header(run, MODEL, b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}")

    def both(facts: Any) -> dict[str, Any]:
        return {MODEL: facts, TRAINING: facts}

    cases = {
        "10 GB tensor announced": header(tensor([10 * GB // 4], 10 * GB)),
        "10 GB tensor announced, none there": header(tensor([10 * GB // 4], 0)),
        "shape 2^32 x 2^32": header(tensor([2**32, 2**32], 2**62)),
        "shape 0 x 2^63": header(tensor([0, 2**63], 0)),
        "shape of minus one": header(tensor([-1], 4), body=4),
        "offsets that overlap": header(
            tensor([1], 4) | {"policy.y": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, body=4
        ),
        "offsets backwards": header(
            {"policy.x": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}, body=8
        ),
        "dtype that none is": header(tensor([1], 4, "X9"), body=4),
        "header of 2^63 bytes": header(tensor([1], 4), length=2**63),
        "header of 10^8 bytes, empty": lambda run: forge_header(run, MODEL, b"{}" + b" " * (10**8 - 2)),
        "header of 10^8 bytes, full": many,
        "header that nests": bomb,
        "header that is no object": lambda run: forge_header(run, MODEL, b"[1, 2]"),
        "1 GB of holes as a model": sparse(MODEL, 1),
        "1 GB of holes as training": sparse(TRAINING, 1),
        "1 GB of holes as environments": many_envs,
        "100,000 layers": deep,
        "files of 2^62 bytes": lambda run: forge(run, files=both({"size": 2**62, "sha256": ""})),
        "files of 10 GB": lambda run: forge(run, files=both({"size": 10 * GB, "sha256": ""})),
        "files of -1 bytes": lambda run: forge(run, files=both({"size": -1, "sha256": ""})),
        "files without facts": lambda run: forge(run, files=both(None)),
        "facts without a hash": lambda run: forge(
            run, files={name: {"size": (newest(run) / name).stat().st_size} for name in (MODEL, TRAINING)}
        ),
    }  # fmt: skip
    for name, values in {
        "hidden_sizes": ([10**9], [10**6, 10**6], [2**62], [0], [-1], [], [[8]]),
        "num_envs": (10**9, 2**62, 0, -1, 2**63),
        "num_steps": (800_000, 10**12, 2**62, 0),
        "num_minibatches": (2**62, 0),
        "threads": (0, -1),  # too many are as many as there are
        "eval_episodes": (10**9, -1),
        "total_timesteps": (-1, 2**63),
        "max_episode_steps": (0, -5),
        "seed": (-1, 2**63, 10**300),
        "keep_checkpoints": (0, -1),
        "save_seconds": (-1, "nan"),
    }.items():
        for value in values:
            cases[f"{name} {str(value)[:20]}"] = lambda run, name=name, value=value: forge_config(run, **{name: value})
    return cases


def texts() -> dict[str, Case]:
    """JSON and YAML that cost more than they weigh."""

    def written(content: bytes) -> Case:
        def case(run: Path) -> None:
            (newest(run) / MANIFEST).write_bytes(content)
            point(run)

        return case

    def settings(text: str | bytes, size: int = 0) -> Case:
        def case(run: Path) -> None:
            only_settings(run)
            (run / CONFIG).write_bytes(text if isinstance(text, bytes) else text.encode())
            if size:
                os.truncate(run / CONFIG, size)

        return case

    start = "env: CartPole-v1\nalgo: ppo\n"
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    merges = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 9)]
    flat = "[" + ", ".join(["*a11"] * 2) + "]"
    return {
        "manifest of 10^6 brackets": written(b"[" * 1_000_000),
        "manifest of nested objects": written(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "manifest with a number of 10^5 digits": written(b'{"schema": ' + b"9" * 100_000 + b"}"),
        "manifest of 2 MB": written(b" " * 2_000_000),
        "manifest with NaN": written(b'{"schema": NaN}'),
        "manifest that is a list": written(canonical([1])),
        "manifest that is not UTF-8": written(b"\xff\xfe{"),
        "manifest with a lone surrogate": lambda run: forge(run, config={"env": "\ud800", "algo": "ppo"}),
        "manifest with no sense of lines": lambda run: forge(run, schema=2, versions={"tightrope": "\x1b[31m\n\nx"}),
        "settings with an alias bomb": settings(start + "\n".join(levels)),
        "settings with an alias bomb as a value": settings("\n".join(levels) + f"\n{start}seed: {flat}\n"),
        "settings with a merge bomb": settings(start + "\n".join(merges)),
        "settings of 10^5 brackets": settings(start + "seed: " + "[" * 100_000),
        "settings of nested mappings": settings(start + "seed: " + "{a: " * 20_000),
        "settings with a number of 10^5 digits": settings(start + "seed: " + "9" * 100_000),
        "settings with a date that is none": settings(start + "seed: 2001-99-99\n"),
        "settings with a key of 10^5 letters": settings(start + "x" * 100_000 + ": 1\n"),
        "settings with lines in a name": settings('env: "a:b\\n\\nTraceback\\e[31m"\nalgo: ppo\n'),
        "settings of 2 GB of holes": settings(start, 2 * GB),
        "settings that are no text": settings(b"\xff\xfe\x00"),
        "settings that are nothing": settings(""),
        "settings that recur": settings(start + "seed: &a [*a]\n"),
        "manifest with a key of 10^5 letters": lambda run: forge_config(run, **{"x" * 100_000: 1}),
        "manifest with a value of 10^5 letters": lambda run: forge_config(run, seed="x" * 100_000),
        "manifest with an env of 10^5 letters": lambda run: forge_config(run, env="x" * 100_000),
        "manifest with lines in a name": lambda run: forge_config(run, env="a:b\n\nTraceback\x1b[31m"),
        "manifest with lines in a network": lambda run: forge_config(run, network="a:b\n\nTraceback\x1b[31m"),
        "manifest with lines in a key": lambda run: forge_config(run, **{"\n\nTraceback\x1b[31m": 1}),
        "manifest with lines in train_env": lambda run: forge_config(run, train_env="a:b\n\nx\x1b[31m"),
    }


def wrong_values() -> dict[str, Case]:
    """Every key of a manifest with values of other kinds."""
    values = {
        "nothing": REMOVED,
        "null": None,
        "true": True,
        "-1": -1,
        "2^70": 2**70,
        "1.5": 1.5,
        "text": "x\n",
        "[]": [],
        "{}": {},
    }
    keys = ("schema", "name", "serial", "steps", "phase", "log_bytes", "versions", "config", "files")
    cases: dict[str, Case] = {}
    for key in keys:
        for kind, value in values.items():
            if (key, kind) in (("schema", "true"), ("versions", "{}")):  # which is 1; which says nothing
                continue
            cases[f"{key}: {kind}"] = lambda run, key=key, value=value: forge(run, **{key: value})
    return cases


def forge_settings(run: Path, **changes: Any) -> None:
    """The same in config.yaml, of a run that has no checkpoint."""
    only_settings(run)
    settings = yaml.safe_load((run / CONFIG).read_text())
    (run / CONFIG).write_text(yaml.safe_dump({**settings, **changes}))


def planted(forged: Callable[..., None], setting: str, path: str) -> Case:
    """A name with the module it means beside it, on the path of whoever works in the run's directory or above it."""

    def case(run: Path) -> None:
        for folder in (run, run.parent):
            for module in ("evil", path.rpartition(":")[0]):
                (folder / f"{module}.py").write_text(f"import os\nos.mkdir({str(run.parent / PROOF)!r})\n")
        sys.path_importer_cache.clear()
        forged(run, **{setting: path})

    return case


def names() -> dict[str, Case]:
    """What must not be imported, made or called."""
    paths = ("os:system", "subprocess:Popen", "antigravity:X-v0", "antigravity:geohash", "__main__:Process", "os.path:join",
             "builtins:exec", "tightrope.cli:main", "this:X-v0", "torch.nn:Module", ":", "a:", ":b", "os:")  # fmt: skip
    cases: dict[str, Case] = {}
    for path in paths:
        for setting in ("env", "train_env", "network"):
            if (path, setting) == ("torch.nn:Module", "network"):  # a network, if not one that can do anything
                continue
            cases[f"{setting} {path}"] = lambda run, setting=setting, path=path: forge_config(run, **{setting: path})
    for path in ("sys:evil:X-v0", "sys:evil:CartPole-v1", "evil:CartPole-v1", "./evil:CartPole-v1"):
        for setting in ("env", "train_env"):
            for where in (forge_config, forge_settings):
                cases[f"{setting} {path}, planted, by {where.__name__}"] = planted(where, setting, path)
    for setting, value in {"algo": "os:system", "backend": "antigravity", "vectorization_mode": "os:system"}.items():
        cases[f"{setting} {value}"] = lambda run, setting=setting, value=value: forge_config(run, **{setting: value})
    return cases


def arguments() -> dict[str, Case]:
    """What an environment would be made with."""
    values: dict[str, Any] = {"render_mode": "human", "xml_file": "/etc/passwd", "path": "..\\x"}
    return {
        f"env_kwargs {name} by {where.__name__}": lambda run, where=where, name=name: where(
            run, env="Pendulum-v1", env_kwargs={name: values[name]}
        )
        for name in values
        for where in (forge_config, forge_settings)
    }


def states() -> dict[str, Case]:
    """Tensors of the right shapes that no run could have."""

    def changed(file: str, name: str, change: Callable[[Any], Any]) -> Case:
        return lambda run: forge_tensors(run, file, **{name: change(load_file(newest(run) / file)[name])})

    def at(place: int, value: int) -> Callable[[Any], Any]:
        def change(tensor: Any) -> Any:
            tensor = tensor.copy()
            tensor[place] = value
            return tensor

        return change

    noise = np.random.default_rng(0)
    cases = {
        "NumPy position 10^6": changed(TRAINING, "streams.numpy", at(-2, 10**6)),
        "NumPy position -1": changed(TRAINING, "streams.numpy", at(-2, -1)),
        "NumPy word 2^40": changed(TRAINING, "streams.numpy", at(3, 2**40)),
        "Python position 10^6": changed(TRAINING, "streams.python", at(-1, 10**6)),
        "Python position -1": changed(TRAINING, "streams.python", at(-1, -1)),
        "Python word -1": changed(TRAINING, "streams.python", at(3, -1)),
        "torch's stream of noise": changed(TRAINING, "streams.torch", lambda t: noise.integers(0, 255, t.shape, np.uint8)),
        "the environment's stream of noise": changed(
            TRAINING, "env.generator", lambda t: noise.integers(0, 255, t.shape, np.uint8)
        ),
        "run.phase of NaN": changed(TRAINING, "run.phase", lambda t: np.float64("nan")),
        "run.phase of infinity": changed(TRAINING, "run.phase", lambda t: np.float64("inf")),
        "run.phase of many": changed(TRAINING, "run.phase", lambda t: np.zeros(7)),
        "run.steps that disagree": changed(TRAINING, "run.steps", lambda t: t + 1),
        "run.obs that is a number": changed(TRAINING, "run.obs", lambda t: np.zeros(())),
        "run.obs of no rows": changed(TRAINING, "run.obs", lambda t: t[:0]),
    }  # fmt: skip
    for name in (
        "streams.numpy",
        "streams.python",
        "streams.torch",
        "env.state",
        "env.clock",
        "run.best_score",
        "optimizer.step",
    ):
        cases[f"no {name}"] = lambda run, name=name: forge_tensors(run, TRAINING, **{name: None})
    cases["no weights"] = lambda run: forge_header(run, MODEL, b"{}")
    return cases


GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "pickles": pickles,
    "links, pipes, paths": places,
    "sizes and shapes": sizes,
    "JSON and YAML": texts,
    "values of a manifest": wrong_values,
    "names to import": names,
    "arguments": arguments,
    "states": states,
}
