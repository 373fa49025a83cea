"""The job files of examples/cluster, really submitted, to a Slurm of two nodes that is started here and thrown away.

python benchmarks/scaling/slurm_here.py                    # all cases; needs root, Linux, and Slurm:
python benchmarks/scaling/slurm_here.py pre_empted         # apt-get install --no-install-recommends slurm-wlm munge
"""

import contextlib
import importlib.util
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from hosts import ROOT, assert_whole, phases, run_cases, steps_saved, until
from throwaway_slurm import Cluster, cluster_here, why_not

FILES = ROOT / "examples" / "cluster"


# cases ---------------------------------------------------------------------------------------------------------------

SMALL = ("--device", "cpu", "--video-every", "0", "--total-timesteps")
NO_GPUS = ("--gpus-per-node=0", "--cpus-per-task=2")


def train(cluster: Cluster, name: str, steps: int, *options: str, save_seconds: int = 1000) -> tuple[str, Path]:
    """A job over both nodes, once it trains: (its number, its run). It saves when told to stop, and hardly before."""
    run_dir = cluster.work / name
    words = (*NO_GPUS, *options, str(FILES / "slurm.sbatch"), "CartPole-v1", *SMALL, str(steps))
    job = cluster.submit(*words, "--save-seconds", str(save_seconds), RUN_DIR=str(run_dir))
    until(lambda: len(phases(run_dir)) > 5, "the start of training")
    return job, run_dir


def saved(run_dir: Path, since: float) -> int:
    """The phase at which the run was saved, once it was."""
    until(lambda: steps_saved(run_dir), "a checkpoint")
    print(f"  a checkpoint after {time.monotonic() - since:.1f} s, at {steps_saved(run_dir):,} steps")
    return max(phases(run_dir))


def goes_on(cluster: Cluster, job: str, run_dir: Path, before: int) -> None:
    """The same job runs again, and the run goes on from where it was saved."""
    until(lambda: max(phases(run_dir)) > before, "more phases")
    assert cluster.about(job)["Restarts"] == "1", "once requeued"
    assert "going on from" in cluster.logs(job)
    assert_whole(run_dir)
    print(f"  requeued once; phase {before} is followed by {before + 1}")


def stop(cluster: Cluster, job: str) -> None:
    cluster.ask("scancel", job)
    until(lambda: cluster.ended(job) and not cluster.ask("squeue", "-h", "-j", job), "the end of the job")


def completes(cluster: Cluster) -> None:
    """A run over two nodes comes to its end."""
    job, run_dir = train(cluster, "completes", 60_000)
    until(lambda: cluster.ended(job), "the end of the job")
    assert cluster.ended(job) == "COMPLETED"
    assert "on each of 2 ranks" in cluster.logs(job)
    assert "greedy return mean" in cluster.logs(job)
    assert (run_dir / "report.html").exists()


def requeued(cluster: Cluster) -> None:
    """`scontrol requeue`, which is also what pre-emption without a grace time does."""
    job, run_dir = train(cluster, "requeued", 10**8)
    since = time.monotonic()
    cluster.ask("scontrol", "requeue", job)
    goes_on(cluster, job, run_dir, saved(run_dir, since))
    stop(cluster, job)


def pre_empted(cluster: Cluster) -> None:
    """A job of higher priority takes both nodes, after a grace time; the run then comes to its end."""
    job, run_dir = train(cluster, "pre_empted", 150_000, "--partition=graceful")
    since = time.monotonic()
    other = cluster.submit("--partition=high", "--nodes=2", "--cpus-per-task=2", "--wrap", "sleep 3")
    before = saved(run_dir, since)
    goes_on(cluster, job, run_dir, before)
    assert cluster.ended(other) == "COMPLETED", "the other one was first"
    until(lambda: cluster.ended(job), "the end of the job")
    assert cluster.ended(job) == "COMPLETED"


def out_of_time(cluster: Cluster) -> None:
    """Slurm's notice before the time limit."""
    job, run_dir = train(cluster, "out_of_time", 10**8, "--time=2", "--signal=TERM@50")
    goes_on(cluster, job, run_dir, saved(run_dir, time.monotonic()))
    stop(cluster, job)


def cancelled(cluster: Cluster) -> None:
    """`scancel`: the run is saved, and the job does not come back."""
    job, run_dir = train(cluster, "cancelled", 10**8)
    stop(cluster, job)
    saved(run_dir, time.monotonic())
    assert cluster.about(job)["JobState"] == "CANCELLED"
    assert cluster.about(job)["Restarts"] == "0"


def node_lost(cluster: Cluster) -> None:
    """A node fails: Slurm takes the job back by itself."""
    job, run_dir = train(cluster, "node_lost", 10**8)
    since = time.monotonic()
    cluster.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
    before = saved(run_dir, since)
    cluster.ask("scontrol", "update", "NodeName=node2", "State=RESUME")
    goes_on(cluster, job, run_dir, before)
    stop(cluster, job)


def rank_killed(cluster: Cluster) -> None:
    """A rank is killed: torchrun starts all ranks again, on both nodes, within the same job."""
    job, run_dir = train(cluster, "rank_killed", 200_000, save_seconds=1)
    until(lambda: steps_saved(run_dir), "a checkpoint")
    os.kill(process_of(run_dir, rank=1), signal.SIGKILL)
    until(lambda: cluster.ended(job), "the end of the job")
    assert cluster.ended(job) == "COMPLETED"
    assert cluster.about(job)["Restarts"] == "0", "never requeued"
    assert "going on from" in cluster.logs(job)
    assert_whole(run_dir)


def process_of(run_dir: Path, rank: int) -> int:
    wanted = {f"RUN_DIR={run_dir}".encode(), f"RANK={rank}".encode()}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((place / "environ").read_bytes().split(b"\0")):
                return int(place.name)
    raise AssertionError(f"no rank {rank}")


def seeds(cluster: Cluster) -> None:
    """An array of seeds, and a report of them all."""
    runs = cluster.work / "seeds"
    words = ("--gpus=0", "--cpus-per-task=1", "--array=1-3", str(FILES / "slurm_seeds.sbatch"), "CartPole-v1")
    job = cluster.submit(*words, *SMALL, "20000", RUNS=str(runs))
    wrap = f"tightrope report {runs}/seed* --out {runs}/seeds.html"
    after = cluster.submit(f"--dependency=afterok:{job}", "--output=report.log", "--wrap", wrap)
    until(lambda: cluster.ended(after), "the report")
    assert cluster.ended(after) == "COMPLETED"
    assert sorted(place.name for place in runs.iterdir()) == ["seed1", "seed2", "seed3", "seeds.html"]


def sweep(cluster: Cluster) -> None:
    """Workers that share a study: here in a journal on the disk that both see, since there is no database."""
    storage = cluster.work / "study.journal"
    words = ("--gpus=0", "--cpus-per-task=2", "--array=1-2", str(FILES / "slurm_sweep.sbatch"), "CartPole-v1")
    flags = "--trials 4 --seeds-per-trial 1 --evaluations 2 --device cpu --total-timesteps 10000"
    job = cluster.submit(*words, *flags.split(), STORAGE=str(storage))
    until(lambda: not cluster.ask("squeue", "-h", "-j", job), "the end of the sweep")
    said = "".join(log.read_text() for log in cluster.work.glob(f"tightrope-{job}-worker*.log"))
    assert said.count("best: trial") == 2, said
    assert (cluster.work / "sweeps" / "CartPole-v1__ppo" / "best.yaml").exists()


CASES = (completes, requeued, pre_empted, out_of_time, cancelled, node_lost, rank_killed, seeds, sweep)


def main() -> None:
    with ExitStack() as stack:
        cluster = None
        for case, _ in run_cases(__doc__ or "", {case.__name__: case for case in CASES}, why_not):
            cluster = cluster or stack.enter_context(cluster_here())
            if case is sweep and importlib.util.find_spec("optuna") is None:
                print("  skipped: needs optuna")
            else:
                case(cluster)


if __name__ == "__main__":
    main()
