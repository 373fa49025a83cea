"""Runs that a stranger has prepared. Each takes a good one, with a single checkpoint, and spoils it."""

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from forgery import REMOVED, forge, forge_config, forge_header, forge_tensors, newest, point
from safetensors.numpy import load_file

from tightrope.files import canonical
from tightrope.training.checkpoint_reader import CHECKPOINTS, CONFIG, MANIFEST, MODEL, TRAINING

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


def torch_file(content: bytes) -> bytes:
    """What torch.save makes of a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def pickles() -> dict[str, Case]:
    kinds: dict[str, Callable[[Path], bytes]] = {
        "pickle": lambda proof: pickle.dumps(Payload(proof)),
        "torch": lambda proof: torch_file(pickle.dumps(Payload(proof))),
        "YAML tag": lambda proof: f"env: CartPole-v1\nseed: !!python/object/apply:os.mkdir ['{proof}']\n".encode(),
    }

    def spoil(file: str, kind: str, right_hashes: bool) -> Case:
        def case(run: Path) -> None:
            if file == CONFIG:
                only_settings(run)
            path = run / CONFIG if file == CONFIG else newest(run) / file
            path.write_bytes(kinds[kind](run.parent / PROOF))
            if right_hashes:
                (point if file == MANIFEST else forge)(run)

        return case

    return {
        f"{kind} as {file}{', right hashes' * right}": spoil(file, kind, right)
        for file in (MANIFEST, MODEL, TRAINING, CONFIG)
        for kind in kinds
        for right in ((False, True) if file != CONFIG else (False,))
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
        cases[f"manifest name {name[:20]!r}"] = partial(forge, name=name)
    fact = {"size": 3, "sha256": "0" * 64}
    for name in ("../../../etc/passwd", "/etc/passwd", "model.safetensors/../x", "C:\\x", "\0"):
        cases[f"manifest file {name[:20]!r}"] = partial(forge, files={name: fact})
        cases[f"one more file {name[:20]!r}"] = partial(forge, files={MODEL: fact, TRAINING: fact, name: fact})
    return cases


def sizes() -> dict[str, Case]:
    """What says that it is large."""

    def tensor(
        shape: list[int], offsets: tuple[int, int], dtype: str = "F32", name: str = "policy.x"
    ) -> dict[str, Any]:
        return {name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}

    def header(announced: dict[str, Any] | bytes, file: str = MODEL, **more: Any) -> Case:
        content = announced if isinstance(announced, bytes) else json.dumps(announced).encode()
        return partial(forge_header, file=file, header=content, **more)

    def many(run: Path) -> None:
        one = '"policy.%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
        header(("{" + "".join(one % i for i in range(1_500_000))[:-1] + "}").encode())(run)

    def many_envs(run: Path) -> None:
        """A file that has as many rows as the settings say, none of them on the disk."""
        header(tensor([GB // 16, 4], (0, GB), name="run.obs"), TRAINING, body=GB)(run)
        forge_config(run, num_envs=GB // 16)

    def deep(run: Path) -> None:
        forge_tensors(run, MODEL, **{"policy.x": np.zeros(300_000, np.float32)})
        forge_config(run, hidden_sizes=[1] * 100_000)

    def without_hash(run: Path) -> None:
        forge(run, files={name: {"size": (newest(run) / name).stat().st_size} for name in (MODEL, TRAINING)})

    def files(facts: Any) -> Case:
        return partial(forge, files={MODEL: facts, TRAINING: facts})

    cases = {
        "10 GB tensor announced": header(tensor([10 * GB // 4], (0, 10 * GB))),
        "10 GB tensor announced, none there": header(tensor([10 * GB // 4], (0, 0))),
        "shape 2^32 x 2^32": header(tensor([2**32, 2**32], (0, 2**62))),
        "shape 0 x 2^63": header(tensor([0, 2**63], (0, 0))),
        "shape of minus one": header(tensor([-1], (0, 4)), body=4),
        "offsets that overlap": header(tensor([1], (0, 4)) | tensor([1], (0, 4), name="policy.y"), body=4),
        "offsets backwards": header(tensor([1], (8, 4)), body=8),
        "dtype that none is": header(tensor([1], (0, 4), "X9"), body=4),
        "header of 2^63 bytes": header(tensor([1], (0, 4)), length=2**63),
        "header of 10^8 bytes, empty": lambda run: header(b"{}" + b" " * (10**8 - 2))(run),
        "header of 10^8 bytes, full": many,
        "header that nests": header(b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}"),
        "header that is no object": header(b"[1, 2]"),
        "1 GB of holes as a model": header(tensor([GB], (0, GB), "U8"), body=GB),
        "1 GB of holes as training": header(tensor([GB], (0, GB), "U8", "run.x"), TRAINING, body=GB),
        "1 GB of holes as environments": many_envs,
        "100,000 layers": deep,
        "files of 2^62 bytes": files({"size": 2**62, "sha256": ""}),
        "files of 10 GB": files({"size": 10 * GB, "sha256": ""}),
        "files of -1 bytes": files({"size": -1, "sha256": ""}),
        "files without facts": files(None),
        "facts without a hash": without_hash,
    }
    settings: dict[str, tuple[Any, ...]] = {
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
    }
    for name, values in settings.items():
        cases |= {f"{name} {str(value)[:20]}": partial(forge_config, **{name: value}) for value in values}
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
        "manifest with a lone surrogate": partial(forge, config={"env": "\ud800", "algo": "ppo"}),
        "manifest with no sense of lines": partial(forge, schema=2, versions={"tightrope": "\x1b[31m\n\nx"}),
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
        "manifest with a key of 10^5 letters": partial(forge_config, **{"x" * 100_000: 1}),
        "manifest with a value of 10^5 letters": partial(forge_config, seed="x" * 100_000),
        "manifest with an env of 10^5 letters": partial(forge_config, env="x" * 100_000),
        "manifest with lines in a name": partial(forge_config, env="a:b\n\nTraceback\x1b[31m"),
        "manifest with lines in a network": partial(forge_config, network="a:b\n\nTraceback\x1b[31m"),
        "manifest with lines in a key": partial(forge_config, **{"\n\nTraceback\x1b[31m": 1}),
        "manifest with lines in train_env": partial(forge_config, train_env="a:b\n\nx\x1b[31m"),
    }


def wrong_values() -> dict[str, Case]:
    """Every key of a manifest with values of other kinds."""
    values: dict[str, Any] = {
        "nothing": REMOVED, "null": None, "true": True, "-1": -1, "2^70": 2**70, "1.5": 1.5, "text": "x\n", "[]": [], "{}": {},
    }  # fmt: skip
    keys = ("schema", "name", "serial", "steps", "phase", "log_bytes", "versions", "config", "files")
    valid = {("schema", "true"), ("versions", "{}")}  # which is 1; which says nothing
    return {
        f"{key}: {kind}": partial(forge, **{key: value})
        for key in keys
        for kind, value in values.items()
        if (key, kind) not in valid
    }


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
             "builtins:exec", "tightrope.cli:main", "this:X-v0", "torch.nn:Module", ":", "a:", ":b", "os:", "torch:load",
             "tightrope.envs:TensorEnv", "../x", "../evil:CartPole-v1", "evil.deep:Class-v1\n")  # fmt: skip
    forged = [(setting, path) for path in paths for setting in ("env", "train_env", "network")]
    forged.remove(("network", "torch.nn:Module"))  # a network, if not one that can do anything
    forged += [("algo", "os:system"), ("backend", "antigravity"), ("vectorization_mode", "os:system")]
    cases: dict[str, Case] = {f"{setting} {path}": partial(forge_config, **{setting: path}) for setting, path in forged}
    for path in (
        "sys:evil:X-v0",
        "sys:evil:CartPole-v1",
        "evil:CartPole-v1",
        "./evil:CartPole-v1",
        "evil:space/X-v0",
        "evil:X",
    ):
        for setting in ("env", "train_env", "network"):
            for where in (forge_config, forge_settings):
                cases[f"{setting} {path}, planted, by {where.__name__}"] = planted(where, setting, path)
    return cases


def arguments() -> dict[str, Case]:
    """What an environment would be made with."""
    values: dict[str, Any] = {"render_mode": "human", "xml_file": "/etc/passwd", "path": "..\\x"}
    return {
        f"env_kwargs {name} by {where.__name__}": partial(where, env="Pendulum-v1", env_kwargs={name: value})
        for name, value in values.items()
        for where in (forge_config, forge_settings)
    }


def states() -> dict[str, Case]:
    """Tensors of the right shapes that no run could have."""

    def at(place: int, value: int) -> Callable[[Any], Any]:
        """With another value at one place."""
        return lambda tensor: np.concatenate([tensor[:place], [value], tensor[place:][1:]]).astype(tensor.dtype)

    def noise(tensor: Any) -> Any:
        return np.random.default_rng(0).integers(0, 255, tensor.shape, np.uint8)

    changes: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "NumPy position 10^6": ("streams.numpy", at(-2, 10**6)),
        "NumPy position -1": ("streams.numpy", at(-2, -1)),
        "NumPy word 2^40": ("streams.numpy", at(3, 2**40)),
        "Python position 10^6": ("streams.python", at(-1, 10**6)),
        "Python position -1": ("streams.python", at(-1, -1)),
        "Python word -1": ("streams.python", at(3, -1)),
        "torch's stream of noise": ("streams.torch", noise),
        "the environment's stream of noise": ("env.generator", noise),
        "run.phase of NaN": ("run.phase", lambda t: np.float64("nan")),
        "run.phase of infinity": ("run.phase", lambda t: np.float64("inf")),
        "run.phase of many": ("run.phase", lambda t: np.zeros(7)),
        "run.steps that disagree": ("run.steps", lambda t: t + 1),
        "run.obs that is a number": ("run.obs", lambda t: np.zeros(())),
        "run.obs of no rows": ("run.obs", lambda t: t[:0]),
    }
    missing = [
        "streams.numpy",
        "streams.python",
        "streams.torch",
        "env.state",
        "env.clock",
        "run.best_score",
        "optimizer.step",
    ]
    changes |= {f"no {name}": (name, lambda t: None) for name in missing}

    def changed(name: str, change: Callable[[Any], Any]) -> Case:
        return lambda run: forge_tensors(run, TRAINING, **{name: change(load_file(newest(run) / TRAINING)[name])})

    cases = {what: changed(name, change) for what, (name, change) in changes.items()}
    return cases | {"no weights": partial(forge_header, file=MODEL, header=b"{}")}


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
