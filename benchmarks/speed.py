"""Tightrope and other libraries on the same work, side by side in one run; prints Markdown tables of ratios.

    python benchmarks/speed.py cpu [W1 ... W6] [--sb3-python P] [--sbx-python P] [--cleanrl DIR --cleanrl-python P]
    python benchmarks/speed.py gpu [--sizes 1024x32 8192x32 65536x16] [--precision fp32 tf32] [--subclass]
                                   [--agreement] [--memory] [--solve] [--no-table]

On a CPU, one torch thread each (two on W6), in fresh processes that take turns seed by seed; training alone is timed:

W1  CartPole-v1 until a greedy 495 is held: our preset, and the tuned recipe of the peer (hold.py says what counts)
W2  CartPole-v1, the classic recipe, 4 x 128
W3  LunarLander-v3, 16 x 1024        W4  HalfCheetah-v5, 1 x 2048
W5  HalfCheetah-v5, 64 x 32          W6  Breakout, 8 x 128, pictures

W2 to W6 are the workloads of workloads.py. On W2 the peers have Gymnasium's CartPole and we have ours, on W6 ale-py in
Gymnasium's wrappers and we have its vector engine. Each peer needs a virtual environment of its own; those that are not given
are left out. CleanRL is a checkout of its repository, and its environment needs Gymnasium 1.0 or later. On a GPU, Tightrope
runs next to the references of benchmarks/references, each in a process of its own with the GPU to itself (gpu.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workloads

HERE = Path(__file__).parent
REFERENCES = HERE / "references"
CLEANRL = {
    "W2": "ppo.py --env-id CartPole-v1 --num-envs 4 --num-steps 128",
    "W3": "ppo.py --env-id LunarLander-v3 --num-envs 16 --num-steps 1024 --num-minibatches 256 --gamma 0.999 "
    "--gae-lambda 0.98 --learning-rate 3e-4 --no-anneal-lr",
    "W4": "ppo_continuous_action.py --env-id HalfCheetah-v5 --num-envs 1 --num-steps 2048",
    "W5": "ppo_continuous_action.py --env-id HalfCheetah-v5 --num-envs 64 --num-steps 32",
    "W6": "ppo_atari.py --env-id BreakoutNoFrameskip-v4 --num-envs 8 --num-steps 128",
}
ADD = {
    "sb3_python": "Stable-Baselines3: --sb3-python of a venv with stable-baselines3 and gymnasium[box2d,mujoco]",
    "sbx_python": "sbx: --sbx-python of a venv with sbx-rl and gymnasium[box2d,mujoco]",
    "cleanrl": "CleanRL: --cleanrl DIR, a checkout, and --cleanrl-python of a venv with what its scripts import",
}


@dataclass
class Runner:
    """A command that runs one library once; `{seed}` in it is filled in."""

    who: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, seed: int, key: str) -> float:
        """The figure named `key` in its last line of JSON, or CleanRL's last steps per second. Not a number if it failed."""
        words = [word.format(seed=seed) for word in self.words]
        surroundings = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | self.environment
        with tempfile.TemporaryDirectory() as folder:  # some leave files where they are run
            done = subprocess.run(words, capture_output=True, text=True, env=surroundings, cwd=folder)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"{self.who} failed with seed {seed}: {reason}", file=sys.stderr)
            return float("nan")
        if self.who == "cleanrl":
            return float(re.findall(r"SPS: (\d+)", done.stdout)[-1])
        value = json.loads(done.stdout.splitlines()[-1])[key]
        return float("inf") if value is None else value


def to_hold(args: argparse.Namespace) -> list[Runner]:
    """W1: seconds until CartPole is solved and stays so."""
    script = str(HERE / "peers" / "sb3_cartpole.py")
    runners = [ours(str(HERE / "workloads.py"), "W1", "{seed}")]
    if args.sb3_python:
        runners.append(Runner("stable-baselines3", [args.sb3_python, script, "--seed", "{seed}"]))
    if args.sbx_python:
        words = [args.sbx_python, str(HERE / "peers" / "as_sbx.py"), script, "--seed", "{seed}"]
        runners.append(Runner("sbx", words))
    return runners


def throughput(workload: str, steps: int, args: argparse.Namespace) -> list[Runner]:
    """W2 to W6: steps of training a second."""
    script, rest = str(HERE / "peers" / "sb3_engine_speed.py"), [workload, "{seed}", str(steps)]
    runners = [
        ours(str(HERE / "workloads.py"), workload, "{seed}", backend, who=f"tightrope, {backend}")
        for backend in workloads.BACKENDS.get(workload, workloads.USUAL_BACKENDS)
    ]
    if args.sb3_python:
        runners.append(Runner("stable-baselines3", [args.sb3_python, script, *rest]))
    if args.sbx_python:
        runners.append(Runner("sbx", [args.sbx_python, str(HERE / "peers" / "as_sbx.py"), script, *rest]))
    if args.cleanrl:
        name, *flags = CLEANRL[workload].split()
        words = [args.cleanrl_python, str(args.cleanrl / "cleanrl" / name), *flags, "--seed", "{seed}"]
        words += ["--total-timesteps", str(steps), "--no-cuda"]
        threads = "2" if workload == "W6" else "1"
        runners.append(Runner("cleanrl", words, {"PYTHONPATH": str(args.cleanrl), "OMP_NUM_THREADS": threads}))
    if workload == "W2" and importlib.util.find_spec("jax"):
        runners.append(ours(str(REFERENCES / "jax_loop.py"), "--classic", who="whole loop in JAX, its own CartPole"))
    return runners


def ours(*words: str, who: str = "tightrope") -> Runner:
    """A script of this repository, run by this interpreter."""
    return Runner(who, [sys.executable, *words], this_checkout())


def this_checkout() -> dict[str, str]:
    """The environment variable with which the package beside these scripts is the one that is measured."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))}


def placed(path: str) -> str:
    """A path that means the same in any directory; the name of a command stays one."""
    return str(Path(path).absolute()) if os.sep in path else path


def cpu(args: argparse.Namespace) -> None:
    for option, how in ADD.items():
        if not getattr(args, option):
            print(f"left out: {how}", file=sys.stderr)
    print("| workload | who | each run | median | tightrope's factor |\n|---|---|---|---|---|", flush=True)
    for workload in args.workloads:
        if workload == "W1":
            compare("W1 seconds to hold 495", to_hold(args), "seconds_to_hold", args, less_is_better=True)
        elif workload in workloads.WORKLOADS:
            env, steps = workloads.WORKLOADS[workload][:2]
            compare(f"{workload} {env}, steps/s", throughput(workload, steps, args), "steps_per_s", args)
        else:
            print(f"left out: {workload} is not in workloads.py", file=sys.stderr)


def compare(
    title: str, runners: list[Runner], key: str, args: argparse.Namespace, less_is_better: bool = False
) -> None:
    """One row for each library; the factor is how many times faster the first of our rows is."""
    figures: dict[str, list[float]] = {runner.who: [] for runner in runners}
    for seed in range(args.first_seed, args.first_seed + args.repeats):
        for runner in runners:
            figures[runner.who].append(runner(seed, key))
    base = statistics.median(figures[runners[0].who])
    digits = 2 if less_is_better else 0
    for who, values in figures.items():
        middle = statistics.median(values)
        factor = middle / base if less_is_better else base / middle
        each = ", ".join(f"{value:,.{digits}f}" for value in values)
        print(f"| {title} | {who} | {each} | {middle:,.{digits}f} | {factor:.2f} |", flush=True)


def gpu(args: argparse.Namespace) -> None:
    modes = ["eager"] if args.device == "cpu" else ["graph", "max"]
    if args.table:
        table([row for words in measurements(args, modes) for row in lines_of(words)])
    checks = [("agreement", args.agreement), ("curves", args.agreement), ("memory", args.memory)]
    checks += [("solve", args.solve), ("classic", args.solve)]
    for what, wanted in checks:
        if wanted:
            print(flush=True)
            every = [] if args.device == "cuda" or what == "solve" else ["--modes", "eager"]
            words = [sys.executable, str(HERE / "gpu.py"), what, "--device", args.device, *every]
            subprocess.run(words, env=os.environ | this_checkout())


def measurements(args: argparse.Namespace, modes: list[str]) -> list[list[str]]:
    """The command lines of the references and of ours, each for all sizes and precisions."""
    work = ["--seconds", str(args.seconds), "--precision", *args.precision, "--sizes", *args.sizes]
    eager = ["--eager"] if args.device == "cpu" else []
    graph, functional, jax_loop = (str(REFERENCES / name) for name in ("graph.py", "functional.py", "jax_loop.py"))
    ours = [str(HERE / "gpu.py"), "speed", "--device", args.device, "--modes", *modes]
    commands = [[graph, *eager], [graph, "--compile"], [functional, *eager], [jax_loop], ours]
    if args.device == "cpu":
        commands.remove([graph, "--compile"])
    if args.subclass:
        commands.append([*ours, "--subclass"])
    return [[sys.executable, *command, *work] for command in commands]


def lines_of(words: list[str]) -> list[dict[str, Any]]:
    """The lines of JSON that a script prints, shown as they come; those it got to, if it breaks off."""
    rows = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | this_checkout()
        ) as process,
    ):
        for line in process.stdout or []:
            if line.startswith("{"):
                print(line, end="", file=sys.stderr, flush=True)
                rows.append(json.loads(line))
        if process.wait():
            errors.seek(0)
            reason = (errors.read().strip().splitlines() or ["no message"])[-1]
            print(f"{Path(words[1]).name} broke off: {reason}", file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    """By precision and size; the last columns are how many times faster each of our modes is than the row."""
    modes = list(
        dict.fromkeys(row["name"] for row in rows if row["name"].startswith("tightrope") and "own" not in row["name"])
    )
    print(
        "| size | precision | who | M steps/s | ms a phase | set-up, s | mean length |"
        + "".join(f" {mode} / it |" for mode in modes)
        + "\n|"
        + "---|" * (7 + len(modes))
    )
    for size, precision in dict.fromkeys((f"{r['num_envs']} x {r['num_steps']}", r["precision"]) for r in rows):
        group = [r for r in rows if (f"{r['num_envs']} x {r['num_steps']}", r["precision"]) == (size, precision)]
        speed = {row["name"]: row["steps_per_s"] for row in group}
        for row in group:
            ratios = [f" {speed[m] / row['steps_per_s']:.2f} |" if m in speed else " |" for m in modes]
            print(
                f"| {size} | {precision} | {row['name']} | {row['steps_per_s'] / 1e6:.2f} | {row['ms_per_phase']:.2f} | "
                f"{row['setup_s']:.1f} | {row['mean_length']} |" + "".join(ratios),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_subparsers(required=True)
    on_cpu = where.add_parser("cpu", help="against other libraries, W1 to W6")
    on_cpu.set_defaults(run=cpu)
    on_cpu.add_argument("workloads", nargs="*", default=["W1", "W2", "W3", "W4", "W5", "W6"], metavar="W")
    on_cpu.add_argument("--sb3-python", type=placed, help="interpreter of a virtual environment with Stable-Baselines3")
    on_cpu.add_argument("--sbx-python", type=placed, help="the same with sbx")
    on_cpu.add_argument(
        "--cleanrl", type=lambda path: Path(path).absolute(), metavar="DIR", help="a checkout of CleanRL"
    )
    on_cpu.add_argument(
        "--cleanrl-python", type=placed, default=sys.executable, help="interpreter that can run its scripts"
    )
    on_cpu.add_argument("--repeats", type=int, default=3, help="seeds")
    on_cpu.add_argument("--first-seed", type=int, default=1)
    on_gpu = where.add_parser("gpu", help="against the references")
    on_gpu.set_defaults(run=gpu)
    on_gpu.add_argument("--sizes", nargs="+", default=["1024x32", "8192x32", "65536x16"], metavar="NxT")
    on_gpu.add_argument("--precision", nargs="+", choices=("fp32", "tf32"), default=["fp32", "tf32"])
    on_gpu.add_argument("--seconds", type=float, default=2.0, help="how long each measurement lasts")
    on_gpu.add_argument("--no-table", dest="table", action="store_false", help="only the checks asked for")
    on_gpu.add_argument("--subclass", action="store_true", help="also a subclass of CartPole with its own reward")
    on_gpu.add_argument(
        "--agreement", action="store_true", help="parameters and learning curves of eager, graph and max"
    )
    on_gpu.add_argument("--memory", action="store_true", help="memory after 10 and after 1000 phases")
    on_gpu.add_argument("--solve", action="store_true", help="the preset from a shell, and the classic recipe, timed")
    on_gpu.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu, eager: to try the script out")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
