"""Tightrope and others on the same work, side by side in one run; prints Markdown tables of ratios.

    python benchmarks/speed.py cpu [W1 ... W6] [--sb3-python PYTHON] [--jax-python PYTHON] [--repeats 3] [--first-seed 1]
    python benchmarks/speed.py gpu [--sizes 1024x32 8192x32 65536x16] [--precision fp32 tf32] [--subclass]

On a CPU, beside Stable-Baselines3 in a virtual environment of its own (stable-baselines3 and gymnasium[box2d,mujoco]), one
torch thread each (two on W6), in fresh processes that take turns seed by seed; training alone is timed. The workloads are those
of workloads.py. Ours run once before, so that compiled code is in the cache. On W1 the peer has its tuned recipe, on W2
Gymnasium's CartPole where we have ours, on W6 ale-py in Gymnasium's wrappers where we have its vector engine. With --jax-python
W2 has a row for the whole loop in JAX, with one thread. On a GPU, Tightrope runs next to benchmarks/references,
each in a process of its own with the GPU to itself (gpu.py).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import workloads

HERE = Path(__file__).parent
EVERY = ["W1", *workloads.WORKLOADS]
# the package beside these scripts is the one that is measured
OURS = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))}

ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}  # fmt: skip


def runners(workload: str, sb3_python: str | None, jax_python: str | None) -> dict[str, list[str]]:
    """The command of each that is compared, for a seed in the place of SEED."""
    peers, ours = HERE / "peers", [sys.executable, str(HERE / "workloads.py"), workload, "SEED"]
    if workload == "W1":
        found, theirs = {"tightrope": ours}, [str(peers / "sb3_cartpole.py"), "--seed", "SEED"]
    else:
        backends = workloads.BACKENDS.get(workload, workloads.USUAL_BACKENDS)
        found = {f"tightrope, {backend}": [*ours, backend] for backend in backends}
        theirs = [str(peers / "sb3_engine_speed.py"), workload, "SEED", str(workloads.WORKLOADS[workload][1])]
    if workload == "W2" and jax_python:
        loop = [jax_python, str(HERE / "references" / "jax_loop.py"), "--classic", "--precision", "fp32"]
        found |= {"the whole loop in JAX": loop}
    return found | ({"stable-baselines3": [sb3_python, *theirs]} if sb3_python else {})


def figure(who: str, words: list[str], seed: int, key: str) -> float:
    """The figure named `key` in its last line of JSON. Not a number if it failed."""
    words = [str(seed) if word == "SEED" else word for word in words]
    environment = os.environ | ONE_THREAD | (OURS if "tightrope" in who else {})
    with tempfile.TemporaryDirectory() as folder:  # some leave files where they are run
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        print(f"{who} failed with seed {seed}: {last_line(done.stderr)}", file=sys.stderr)
        return float("nan")
    value = json.loads(done.stdout.splitlines()[-1])[key]
    return float("inf") if value is None else value


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def cpu(args: argparse.Namespace) -> None:
    """One row for each library; the factor is how many times faster the first of our rows is."""
    if not args.sb3_python:
        print("left out: Stable-Baselines3, for which --sb3-python is not given", file=sys.stderr)
    print("| workload | who | each run | median | tightrope's factor |\n|---|---|---|---|---|", flush=True)
    for workload in args.workloads or EVERY:
        if workload == "W1":
            title, key, digits = "W1 seconds to hold 495", "seconds_to_hold", 2
        else:
            title, key, digits = f"{workload} {workloads.WORKLOADS[workload][0]}, steps/s", "steps_per_s", 0
        commands = runners(workload, args.sb3_python, args.jax_python)
        for who, words in commands.items():
            if "tightrope" in who:  # not counted: it compiles
                figure(who, words, args.first_seed, key)
        seeds = range(args.first_seed, args.first_seed + args.repeats)
        rounds = [{who: figure(who, words, seed, key) for who, words in commands.items()} for seed in seeds]
        middle = {who: statistics.median(found[who] for found in rounds) for who in commands}
        base = next(iter(middle.values()))
        for who, value in middle.items():
            each = ", ".join(f"{found[who]:,.{digits}f}" for found in rounds)
            factor = value / base if workload == "W1" else base / value
            print(f"| {title} | {who} | {each} | {value:,.{digits}f} | {factor:.2f} |", flush=True)


def gpu(args: argparse.Namespace) -> None:
    """By precision and size; the last columns are how many times faster each of our modes is than the row."""
    rows = [row for words in measurements(args) for row in lines_of(words)]
    names = dict.fromkeys(row["name"] for row in rows)
    modes = [name for name in names if name.startswith("tightrope") and "own" not in name]
    columns = ["size", "precision", "who", "M steps/s", "ms a phase", "set-up, s", "mean length"]
    columns += [f"{mode} / it" for mode in modes]
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((f"{row['num_envs']} x {row['num_steps']}", row["precision"]), []).append(row)
    for (size, precision), group in groups.items():
        speed = {row["name"]: row["steps_per_s"] for row in group}
        for row in group:
            cells = [size, precision, row["name"], f"{row['steps_per_s'] / 1e6:.2f}", f"{row['ms_per_phase']:.2f}"]
            cells += [f"{row['setup_s']:.1f}", str(row["mean_length"])]
            cells += [f"{speed[mode] / row['steps_per_s']:.2f}" if mode in speed else "" for mode in modes]
            print(f"| {' | '.join(cells)} |", flush=True)


def measurements(args: argparse.Namespace) -> list[list[str]]:
    """The command lines of the references and of ours, each for all sizes and precisions."""
    on_cpu = args.device == "cpu"
    work = ["--seconds", str(args.seconds), "--precision", *args.precision, "--sizes", *args.sizes]
    graph, functional, jax_loop = (
        str(HERE / "references" / f"{name}.py") for name in ("graph", "functional", "jax_loop")
    )
    ours = [
        str(HERE / "gpu.py"),
        "speed",
        "--device",
        args.device,
        "--modes",
        *(["eager"] if on_cpu else ["graph", "max"]),
    ]
    eager = ["--eager"] if on_cpu else []
    commands = [[graph, *eager], [functional, *eager], [jax_loop], ours]
    commands += [] if on_cpu else [[graph, "--compile"]]
    commands += [[*ours, "--subclass"]] if args.subclass else []
    return [[sys.executable, *command, *work] for command in commands]


def lines_of(words: list[str]) -> list[dict[str, Any]]:
    """The lines of JSON that a script prints, shown as they come; those it got to, if it breaks off."""
    rows = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | OURS) as process,
    ):
        for line in process.stdout or []:
            if line.startswith("{"):
                print(line, end="", file=sys.stderr, flush=True)
                rows.append(json.loads(line))
        if process.wait():
            errors.seek(0)
            print(f"{Path(words[1]).name} broke off: {last_line(errors.read())}", file=sys.stderr, flush=True)
    return rows


def interpreter(path: str) -> str:
    """A path that means the same in any directory; the name of a command stays one."""
    return str(Path(path).absolute()) if os.sep in path else path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_subparsers(required=True)
    on_cpu = where.add_parser("cpu", help="against Stable-Baselines3, W1 to W6")
    on_cpu.set_defaults(run=cpu)
    on_cpu.add_argument("workloads", nargs="*", choices=EVERY, metavar="W")
    on_cpu.add_argument("--sb3-python", type=interpreter, help="of a virtual environment with Stable-Baselines3")
    on_cpu.add_argument("--jax-python", type=interpreter, help="of a virtual environment with JAX")
    on_cpu.add_argument("--repeats", type=int, default=3, help="seeds")
    on_cpu.add_argument("--first-seed", type=int, default=1)
    on_gpu = where.add_parser("gpu", help="against the references")
    on_gpu.set_defaults(run=gpu)
    on_gpu.add_argument("--sizes", nargs="+", default=["1024x32", "8192x32", "65536x16"], metavar="NxT")
    on_gpu.add_argument("--precision", nargs="+", choices=("fp32", "tf32"), default=["fp32", "tf32"])
    on_gpu.add_argument("--seconds", type=float, default=2.0, help="how long each measurement lasts")
    on_gpu.add_argument("--subclass", action="store_true", help="also a subclass of CartPole with its own reward")
    on_gpu.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu, eager: to try the script out")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
