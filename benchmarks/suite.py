"""Scores over tasks and seeds: runs that may be killed and go on, one JSON line a run, and a page made of the lines.

    python benchmarks/suite.py run mujoco [--tasks Hopper-v5] [--recipes preset] [--seeds 501-505] [--jobs 2] [--device cpu]
    python benchmarks/suite.py table mujoco         what has been found so far
    python benchmarks/suite.py page                 docs/scores.md and its pictures

A suite is a file of benchmarks/suites, or the path of one: tasks, seeds, and the settings of each recipe (none: what
`tightrope train TASK` takes). Each run is a process of its own that trains in runs/suite, is resumed from its last checkpoint
when it was killed, and ends as a line of results/SUITE.jsonl beside the folder of suites. A run that has its line, with the
same settings, is not repeated.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml

HERE = Path(__file__).resolve().parent
SUITES = HERE / "suites"
KEY = ("recipe", "task", "algo", "seed", "digest")
POINTS = 50  # of a learning curve
PARTS = {"tasks": dict, "seeds": str | int, "recipes": dict}  # of a suite
ALGOS = ("ppo", "vpg", "sb3")
SB3_HINT = "pip install -c constraints.txt 'stable-baselines3==2.9.*' 'gymnasium[mujoco]'"
NOT_SETTINGS = {
    "seed",
    "device",
    "threads",
    "accelerate",
    "backend",
    "save_seconds",
    "keep_checkpoints",
    "eval_seconds",
}


@dataclass(frozen=True)
class Job:
    """One run of a suite."""

    suite: str
    recipe: str
    task: str
    algo: str
    seed: int
    episodes: int = 100
    sampled: bool = False  # score actions drawn as in training, as is usual for Atari, instead of the likeliest
    settings: dict[str, Any] = field(default_factory=dict)
    digest: str = ""  # of all settings, so that a run with other defaults is another run

    @property
    def key(self) -> tuple[Any, ...]:
        return self.recipe, self.task, self.algo, self.seed, self.digest

    @property
    def run(self) -> Path:
        """The directory it trains in."""
        name = "-".join(map(str, (Path(self.suite).stem, *self.key)))
        return Path("runs") / "suite" / name.replace("/", "_")


def refuse(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)


def seeds_of(text: str) -> list[int]:
    """ "501-505,507" as numbers."""
    pairs = [part.partition("-") for part in str(text).split(",")]
    try:
        found = [range(int(first), int(last or first) + 1) for first, _, last in pairs]
    except ValueError:
        found = []
    if not found or not all(found):
        refuse(f"seeds {text} are invalid: give numbers and rising ranges, as in 501-505,507")
    return [seed for part in found for seed in part]


def read_suite(name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".yaml") else SUITES / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in SUITES.glob("*.yaml")))
        refuse(f"suite {name} is unknown: choose from {known}, or write {path}")
    usual = {"algo": "ppo", "episodes": 100, "sampled": False, "recipes": {"preset": {}}, "path": str(path.absolute())}
    try:
        given = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        refuse(f"{path} is not YAML: {' '.join(str(error).split())}")
    suite = usual | (given if isinstance(given, dict) else {})
    if not all(isinstance(suite.get(part), kind) for part, kind in PARTS.items()):
        refuse(f"{path} is no suite: it needs `tasks` by their ids and `seeds` such as 1-4, and may name `recipes`")
    if suite["algo"] not in ALGOS:
        refuse(f"{path}: algo {suite['algo']} is unknown: choose from {', '.join(ALGOS)}")
    return suite


def jobs_of(suite: dict[str, Any], seeds: str | None, **chosen: list[str]) -> Iterator[Job]:
    """Of the chosen tasks and recipes, or of all; seed by seed, so that every task has a score early."""
    for what, names in chosen.items():
        if unknown := set(names) - set(suite[what]):
            refuse(f"{what} {', '.join(sorted(unknown))} are not of this suite: it has {', '.join(suite[what])}")
    wanted = {what: [name for name in suite[what] if name in names or not names] for what, names in chosen.items()}
    for seed in seeds_of(seeds or suite["seeds"]):
        for task in wanted["tasks"]:
            for recipe in wanted["recipes"]:
                settings = {**suite["recipes"][recipe], **(suite["tasks"][task] or {})}
                how = suite["episodes"], suite["sampled"]
                yield Job(suite["path"], recipe, task, suite["algo"], seed, *how, settings)


def settings_of(config: Any) -> dict[str, Any]:
    """What makes a run the one it is, whatever machine it is on, as a line of results has it."""
    found = {name: value for name, value in config.to_flat_dict().items() if name not in NOT_SETTINGS}
    settings: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return settings


def digest_of(settings: dict[str, Any], algo: str) -> str:
    """Of the settings that are not at their defaults, so that a setting that is new since a run does not make it another."""
    usual = defaults(algo)
    given = {name: value for name, value in settings.items() if name not in usual or value != usual[name]}
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:12]


@cache
def defaults(algo: str) -> dict[str, Any]:
    """The defaults of our settings, as a line of results has them."""
    if algo == "sb3":
        return {}
    from tightrope.training.config import config_classes

    found = {name: value for part in config_classes(algo) for name, value in asdict(part()).items()}
    usual: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return usual


def results_of(suite: str | Path) -> Path:
    return Path(suite).parent.parent / "results" / f"{Path(suite).stem}.jsonl"


def lines_of(suite: str | Path) -> list[dict[str, Any]]:
    """Every run of a suite, oldest first; the digest is that of its settings by the defaults of now."""
    path = results_of(suite)
    rows = [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
    return [row | {"digest": digest_of(row["settings"], row["algo"])} for row in rows]


def expected(job: Job) -> str:
    """The digest of the settings with which this job would run now."""
    if job.algo == "sb3":
        return digest_of(job.settings, job.algo)
    import tightrope as tr
    from tightrope.training.build import configured

    try:
        return digest_of(settings_of(configured(job.task, job.algo, job.settings)), job.algo)
    except tr.UsageError as error:
        refuse(f"{job.task}: {error}")


def machine() -> dict[str, Any]:
    import torch

    import tightrope

    packages: dict[str, str] = {
        "tightrope": tightrope.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for name in ("gymnasium", "mujoco", "ale_py", "envpool", "brax"):
        module = sys.modules.get(name)
        if version := getattr(module, "__version__", None):
            packages[name] = version
    head = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE, check=False
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"versions": packages, "commit": head.stdout.strip(), "cores": os.cpu_count(), "gpu": gpu}


def training_curve(run: Path) -> tuple[list[list[float]], float | None, float]:
    """(steps and mean return of the episodes that ended in each stretch, the mean of the last 100 of them, seconds)."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ended = [
        (row["step"], row["charts/episodes"], row["charts/episodic_return"])
        for row in rows
        if row.get("charts/episodes")
    ]
    return *curve_of(ended, rows[-1]["step"]), rows[-1]["time"]


def curve_of(ended: list[tuple[int, float, float]], total: int) -> tuple[list[list[float]], float | None]:
    """(steps and mean return in each stretch, mean of the last 100), of (step, number of episodes, their mean return)."""
    parts: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, episodes, mean in ended:
        parts[min(POINTS - 1, POINTS * (step - 1) // total)].append((episodes, mean))
    curve = [[round((part + 1) * total / POINTS), round(weighted(found), 3)] for part, found in sorted(parts.items())]
    last: list[tuple[float, float]] = []
    for _, episodes, mean in reversed(ended):
        if sum(n for n, _ in last) >= 100:
            break
        last.append((episodes, mean))
    return curve, weighted(last) if last else None


def weighted(parts: list[tuple[float, float]]) -> float:
    return sum(n * mean for n, mean in parts) / sum(n for n, _ in parts)


def one(job: Job, device: str) -> None:
    """Train and score, and leave the line of the run in its directory."""
    line = of_sb3(job) if job.algo == "sb3" else of_ours(job, device)
    names = {"recipe": job.recipe, "task": job.task, "algo": job.algo, "seed": job.seed, "digest": job.digest}
    job.run.mkdir(parents=True, exist_ok=True)
    draft = job.run / "score.part"
    draft.write_text(json.dumps({**names, **line, **machine(), "date": time.strftime("%Y-%m-%d")}, default=str))
    draft.rename(job.run / "score.json")


def summary(returns: list[float], unfinished: int = 0) -> dict[str, Any]:
    mean = sum(returns) / len(returns)
    std = (sum((value - mean) ** 2 for value in returns) / len(returns)) ** 0.5
    ends = {"min": min(returns), "max": max(returns), "episodes": len(returns), "unfinished": unfinished}
    return {"mean": mean, "std": std, **ends}


def of_sb3(job: Job) -> dict[str, Any]:
    """A run of Stable-Baselines3. It begins anew if it was killed."""
    from peers.sb3_zoo import train

    found = train(job.task, job.seed, job.settings, job.episodes)
    curve, last = curve_of([(step, 1, value) for step, value in found["ended"]], found["steps"])
    return {
        "greedy": summary(found["greedy"]), "last_100": last, "steps": found["steps"],
        "seconds": round(found["seconds"], 1), "device": "cpu", "backend": "gymnasium", "settings": job.settings,
        "curve": curve,
    }  # fmt: skip


def of_ours(job: Job, device: str) -> dict[str, Any]:
    """A run of ours, which goes on from its last checkpoint if it was killed."""
    import tightrope as tr
    from tightrope.training.checkpoint_reader import has_checkpoints

    if job.run.exists() and has_checkpoints(job.run):
        agent = tr.load(job.run)
    else:
        made = {"ppo": tr.PPO, "vpg": tr.VPG}[job.algo]
        agent = made(job.task, seed=job.seed, device=device, threads=1 if device == "cpu" else None, **job.settings)
    if not agent.finished:
        agent.learn(run_dir=job.run, quiet=True)
    score = agent.evaluate(job.episodes, deterministic=not job.sampled)
    curve, last, seconds = training_curve(job.run)
    return {
        "sampled" if job.sampled else "greedy": summary([float(value) for value in score.returns], score.unfinished),
        "last_100": last,
        "steps": agent.steps, "seconds": round(seconds, 1), "device": agent.config.run.device,
        "backend": agent.config.run.backend, "settings": settings_of(agent.config), "curve": curve,
    }  # fmt: skip


def collect(job: Job) -> str:
    """Add the line of a finished run to the results; say how it scored."""
    text = (job.run / "score.json").read_text()
    path = results_of(job.suite)
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text + "\n")
    return f"mean {score_of(json.loads(text))['mean']:.4g}"


def score_of(line: dict[str, Any]) -> dict[str, Any]:
    """The score of a run's line, of greedy or of sampled actions."""
    return line["sampled"] if "sampled" in line else line["greedy"]


def unfinished(jobs: list[Job]) -> list[Job]:
    """Those without a line, with the digests of their settings. Runs that ended after the suite was killed get their line."""
    known: dict[tuple[str, str], str] = {}
    for job in jobs:
        if (job.recipe, job.task) not in known:
            known[job.recipe, job.task] = expected(job)
    jobs = [replace(job, digest=known[job.recipe, job.task]) for job in jobs]
    done = {tuple(line[name] for name in KEY) for line in lines_of(jobs[0].suite)}
    for job in jobs:
        if job.key not in done and (job.run / "score.json").exists():
            collect(job)
            done.add(job.key)
    return [job for job in jobs if job.key not in done]


def run_all(jobs: list[Job], at_once: int, devices: list[str]) -> None:
    """So many processes at once, each on one of the devices in turn. They end with the suite, and go on with it."""
    waiting = unfinished(jobs)
    print(f"{len(jobs)} runs, {len(jobs) - len(waiting)} of them finished before", flush=True)
    if any(job.algo == "sb3" for job in waiting) and find_spec("stable_baselines3") is None:
        refuse(f"these runs need Stable-Baselines3: {SB3_HINT}")
    active: list[tuple[Job, float, subprocess.Popen[bytes]]] = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        failed = run_waiting(waiting, active, at_once, devices)
    except (KeyboardInterrupt, SystemExit) as stop:
        for _, _, process in active:
            if isinstance(stop, SystemExit):  # Ctrl-C reaches the runs without us
                process.terminate()
        for _, _, process in active:
            process.wait()
        print("stopped: start the suite again, and its runs go on from their last checkpoints", file=sys.stderr)
        sys.exit(stop.code if isinstance(stop, SystemExit) else 130)
    if failed:
        sys.exit(f"{failed} runs failed: start the suite again, and they go on from their last checkpoints")


def run_waiting(
    waiting: list[Job], active: list[tuple[Job, float, subprocess.Popen[bytes]]], at_once: int, devices: list[str]
) -> int:
    """Run those that wait; `active` are those under way. Returns how many failed."""
    environment, failed, count = os.environ | {"OMP_NUM_THREADS": "1"}, 0, 0
    while waiting or active:
        while waiting and len(active) < at_once:
            job, device = waiting.pop(0), devices[count % len(devices)]
            command = [sys.executable, __file__, "one", json.dumps(asdict(job)), "--device", device]
            active.append((job, time.monotonic(), subprocess.Popen(command, env=environment)))
            count += 1
        time.sleep(0.2)
        for entry in [entry for entry in active if entry[2].poll() is not None]:
            active.remove(entry)
            job, began, process = entry
            failed += process.returncode != 0
            how = collect(job) if process.returncode == 0 else f"failed with exit code {process.returncode}"
            print(f"{job.task} {job.recipe} seed {job.seed}: {how}, {time.monotonic() - began:.0f} s", flush=True)
    return failed


def table(suite: dict[str, Any]) -> None:
    """Every seed of each recipe on each task."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in lines_of(suite["path"]):
        found[row["task"], row["recipe"]].append(row)
    print("| task | recipe | mean of each seed | mean | seconds |\n|---|---|---|---|---|")
    for (task, recipe), rows in sorted(found.items()):
        scores = [score_of(row)["mean"] for row in sorted(rows, key=lambda r: r["seed"])]
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        each = ", ".join(f"{score:.4g}" for score in scores)
        print(f"| {task} | {recipe} | {each} | {sum(scores) / len(scores):.4g} | {seconds:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table", "page", "one"))
    parser.add_argument("suite", nargs="?")
    parser.add_argument("--tasks", nargs="*", default=[])
    parser.add_argument("--recipes", nargs="*", default=[])
    parser.add_argument("--seeds", help="instead of the suite's own: 501-505,507")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs side by side, each on one thread")
    parser.add_argument("--device", nargs="+", default=["cpu"], help="one or several, taken in turn")
    args = parser.parse_args()
    if args.jobs < 1:
        refuse(f"--jobs {args.jobs} runs nothing: give at least 1")
    if args.command == "page":
        from scores_page import write_page

        write_page()
    elif args.suite is None:
        parser.error(f"{args.command} needs a suite")
    elif args.command == "one":
        try:
            one(Job(**json.loads(args.suite)), args.device[0])
        except KeyboardInterrupt:
            sys.exit(130)
    elif args.command == "table":
        table(read_suite(args.suite))
    else:
        jobs = list(jobs_of(read_suite(args.suite), args.seeds, tasks=args.tasks, recipes=args.recipes))
        run_all(jobs, args.jobs, args.device)


if __name__ == "__main__":
    main()
