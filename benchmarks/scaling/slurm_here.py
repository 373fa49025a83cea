"""The job files of examples/cluster, really submitted, to a Slurm of two nodes that is started here and thrown away.

python benchmarks/scaling/slurm_here.py                    # all cases; needs root, Linux, and Slurm:
python benchmarks/scaling/slurm_here.py pre_empted         # apt-get install --no-install-recommends slurm-wlm munge

Each node is a network namespace with a slurmd, a host name and a hosts file of its own; both see the same disk.
"""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hosts import ROOT, Hosts, assert_whole, chosen_cases, phases, steps_saved, until, why_no_hosts

FILES = ROOT / "examples" / "cluster"
NODES = {"node1": "10.78.0.1", "node2": "10.78.0.2"}
CONFIG = """
ClusterName=here
SlurmUser=root
SlurmctldHost=node1(10.78.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
MinJobAge=3600
SchedulerParameters=sched_interval=5,bf_interval=5
NodeName=node1 NodeAddr=10.78.0.1 CPUs=2
NodeName=node2 NodeAddr=10.78.0.2 CPUs=2
PartitionName=low Nodes=ALL PriorityTier=1 Default=YES OverTimeLimit=1
PartitionName=graceful Nodes=ALL PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=9
"""


def why_not() -> str | None:
    """Why there can be no such cluster here, if so."""
    reason = why_no_hosts("munged", "slurmctld", "slurmd", "sbatch")
    install = ": apt-get install --no-install-recommends slurm-wlm munge"
    return reason and reason + (install if reason.endswith("not found") else "")


class Cluster:
    """The daemons of a Slurm, and what one says to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir()
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # asked for, though nothing here uses it
        self.hosts = Hosts(NODES, folder)
        self.env = {**self.hosts.env, "SLURM_CONF": str(folder / "slurm.conf")}

    @contextmanager
    def started(self) -> Iterator[None]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")}
        munged = ["munged", "--foreground", f"--key-file={key}", *(f"--{k}={v}" for k, v in files.items())]
        with ExitStack() as daemons:
            nodes = [self.hosts.on(node, "slurmd", "-D") for node in NODES]
            for command in (munged, self.hosts.on("node1", "slurmctld", "-D"), *nodes):
                daemons.enter_context(daemon(command, self.env))
            until(lambda: self.ask("sinfo", "-h", "-o", "%T %D", "-p", "low") == "idle 2", "two idle nodes")
            try:
                yield
            finally:
                self.ask("scancel", "--full", "--user=root")
                until(lambda: not self.ask("squeue", "-h"), "the end of all jobs")

    def ask(self, *command: str, check: bool = False, **variables: str) -> str:
        words, env = self.hosts.on("node1", *command), {**self.env, **variables}
        done = subprocess.run(words, env=env, cwd=self.work, capture_output=True, text=True)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def submit(self, *words: str, **variables: str) -> str:
        """The number of a new job."""
        return self.ask("sbatch", "--parsable", *words, check=True, **variables)

    def end(self, job: str) -> str:
        """How a job ends, once it has."""
        until(lambda: self.ended(job), "the end of the job")
        return self.ended(job) or ""

    def about(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", job)))

    def ended(self, job: str) -> str | None:
        """How a job has ended, if it has."""
        state = self.about(job)["JobState"]
        return state if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED") else None

    def logs(self, job: str) -> str:
        logs = sorted(self.work.glob(f"tightrope-{job}*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in logs)


@contextmanager
def daemon(command: list[str], env: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def cluster_here() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-here-") as folder:
        os.chmod(folder, 0o755)  # or munged refuses to have its socket there
        cluster = Cluster(Path(folder))
        with cluster.hosts.joined(), cluster.started():
            try:
                yield cluster
            except BaseException:
                for log in sorted(cluster.work.glob("*.log"), key=lambda log: log.stat().st_mtime)[-3:]:
                    print(f"--- {log.name}", *log.read_text().splitlines()[-40:], sep="\n")
                raise


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
    assert "resuming from" in cluster.logs(job)
    assert_whole(run_dir)
    print(f"  requeued once; phase {before} is followed by {before + 1}")


def stop(cluster: Cluster, job: str) -> None:
    cluster.ask("scancel", job)
    until(lambda: cluster.ended(job) and not cluster.ask("squeue", "-h", "-j", job), "the end of the job")


def completes(cluster: Cluster) -> None:
    """A run over two nodes comes to its end."""
    job, run_dir = train(cluster, "completes", 60_000)
    assert cluster.end(job) == "COMPLETED"
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
    assert cluster.end(job) == "COMPLETED"


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
    assert cluster.end(job) == "COMPLETED"
    assert cluster.about(job)["Restarts"] == "0", "never requeued"
    assert "resuming from" in cluster.logs(job)
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
    assert cluster.end(after) == "COMPLETED"
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
        for case in chosen_cases(__doc__ or "", {case.__name__: case for case in CASES}, why_not):
            cluster = cluster or stack.enter_context(cluster_here())
            if case is sweep and importlib.util.find_spec("optuna") is None:
                print("  skipped: needs optuna")
            else:
                case(cluster)


if __name__ == "__main__":
    main()
