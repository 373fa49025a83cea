"""A Slurm of two nodes on one machine, thrown away afterwards.

Each node is a network namespace with a slurmd, a host name and a hosts file of its own; both see the same disk.
Needs root, Linux, and Slurm: apt-get install --no-install-recommends slurm-wlm munge
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hosts import Hosts, until, why_no_hosts

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

    def on(self, node: str, *command: str) -> list[str]:
        return self.hosts.on(node, *command)

    @contextmanager
    def started(self) -> Iterator[None]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")}
        munged = ["munged", "--foreground", f"--key-file={key}", *(f"--{k}={v}" for k, v in files.items())]
        with ExitStack() as daemons:
            for command in (munged, self.on("node1", "slurmctld", "-D"), *(self.on(n, "slurmd", "-D") for n in NODES)):
                daemons.enter_context(daemon(command, self.env))
            until(lambda: self.ask("sinfo", "-h", "-o", "%T %D", "-p", "low") == "idle 2", "two idle nodes")
            try:
                yield
            finally:
                self.ask("scancel", "--full", "--user=root")
                until(lambda: not self.ask("squeue", "-h"), "the end of all jobs")

    def ask(self, *command: str) -> str:
        done = subprocess.run(self.on("node1", *command), env=self.env, cwd=self.work, capture_output=True, text=True)
        return done.stdout.strip()

    def submit(self, *words: str, **variables: str) -> str:
        """The number of a new job."""
        command = self.on("node1", "sbatch", "--parsable", *words)
        env = {**self.env, **variables}
        done = subprocess.run(command, env=env, cwd=self.work, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def about(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", job)))

    def ended(self, job: str) -> str | None:
        """How a job has ended, if it has."""
        state = self.about(job)["JobState"]
        return state if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED") else None

    def logs(self, job: str) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text()}" for log in sorted(self.work.glob(f"tightrope-{job}*.log"))
        )


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
