"""The pods of examples/cluster/kubernetes.yaml without Kubernetes: their command in two namespaces, started anew if it fails.

python benchmarks/scaling/pods_here.py                     # all cases; needs root, on Linux
python benchmarks/scaling/pods_here.py evicted_first

What a pod runs is read from the file, and made small enough for this machine. As in a container it is process 1 there.
What only Kubernetes does is left out: scheduling, volumes, the image, names by DNS.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from hosts import ROOT, Hosts, assert_whole, chosen_cases, phases, steps_saved, until, why_no_hosts

MANIFEST = {p["kind"]: p for p in yaml.safe_load_all((ROOT / "examples" / "cluster" / "kubernetes.yaml").read_text())}
ADDRESSES = {"tightrope-0.tightrope": "10.79.0.1", "tightrope-1.tightrope": "10.79.0.2"}
GRACE = MANIFEST["Job"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
SMALLER = {
    "--nproc-per-node 4": "--nproc-per-node 1",
    "CartDoublePendulum-v0 --num-envs 8192": "CartPole-v1 --device cpu --video-every 0 --save-seconds 1000",
    "200000000": "{steps}",
    "/runs/double": "{run_dir}",
}


class Job:
    """Keeps one pod for each index, as Kubernetes does for an indexed job: one that fails is made anew."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.hosts = Hosts(ADDRESSES, folder)
        (self.container,) = MANIFEST["Job"]["spec"]["template"]["spec"]["containers"]
        (self.script,) = self.container["args"]
        for there, here in SMALLER.items():
            assert there in self.script
            self.script = self.script.replace(there, here.format(steps=steps, run_dir=self.run_dir))
        self.pods: list[subprocess.Popen[bytes]] = []
        self.made = [0] * len(ADDRESSES)

    def make(self, index: int) -> subprocess.Popen[bytes]:
        """A new pod has a new address, as in most clusters."""
        name, address = list(ADDRESSES)[index], f"10.79.0.{10 * self.made[index] + index + 1}"
        self.hosts.move(name, address)
        given = {variable["name"]: variable.get("value", address) for variable in self.container["env"]}
        env = {**self.hosts.env, **given, "JOB_COMPLETION_INDEX": str(index)}
        command = self.hosts.on(name, *self.container["command"], self.script, contained=True)
        self.made[index] += 1
        with open(self.folder / f"pod-{index}.log", "a") as log:
            return subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)

    @contextmanager
    def started(self) -> Iterator[None]:
        with self.hosts.joined():
            self.pods = [self.make(index) for index in range(len(ADDRESSES))]
            try:
                until(lambda: len(phases(self.run_dir)) > 5, "the start of training")
                yield
            except BaseException:
                print(*(f"--- pod {i}\n{self.log(i)[-5000:]}" for i in range(len(ADDRESSES))), sep="\n")
                raise
            finally:
                for pod in self.pods:
                    pod.kill()  # and with it all that runs inside
                    pod.wait()

    def log(self, index: int) -> str:
        return (self.folder / f"pod-{index}.log").read_text()

    def complete(self) -> bool:
        """Whether all pods have ended well; those that have failed are made anew."""
        for index, pod in enumerate(self.pods):
            if pod.poll() not in (None, 0):
                self.pods[index] = self.make(index)
        return all(pod.poll() == 0 for pod in self.pods)

    def evict(self, index: int) -> None:
        """SIGTERM to process 1 of a pod, and wait for its end."""
        outer = self.pods[index].pid
        since, inner = time.monotonic(), Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0]
        os.kill(int(inner), signal.SIGTERM)
        until(lambda: self.pods[index].poll() is not None, "the end of the pod", GRACE)
        print(
            f"  pod {index} ended after {time.monotonic() - since:.1f} s; saved at {steps_saved(self.run_dir):,} steps"
        )
        assert steps_saved(self.run_dir), "the run was saved"


# cases ---------------------------------------------------------------------------------------------------------------


def completes(folder: Path) -> None:
    """Two pods find each other and come to the end."""
    job = Job(folder, 60_000)
    with job.started():
        until(job.complete, "the end of the job")
    assert job.made == [1, 1]
    assert "on each of 2 ranks" in job.log(0) + job.log(1)


def evicted(folder: Path) -> None:
    """The second pod is evicted: the run is saved, and goes on with a new one."""
    goes_on_without(folder, 1)


def evicted_first(folder: Path) -> None:
    """The first pod is evicted, and with it the place where they meet."""
    goes_on_without(folder, 0)


def goes_on_without(folder: Path, index: int) -> None:
    job = Job(folder, 150_000)
    with job.started():
        job.evict(index)
        until(job.complete, "the end of the job")
    print(f"  pods made: {job.made[0]} and {job.made[1]}")
    assert "resuming from" in job.log(0) + job.log(1)
    assert_whole(job.run_dir)


CASES = {case.__name__: case for case in (completes, evicted, evicted_first)}


def main() -> None:
    for case in chosen_cases(__doc__ or "", CASES, why_no_hosts):
        with tempfile.TemporaryDirectory(prefix="pods-here-") as folder:
            case(Path(folder))


if __name__ == "__main__":
    main()
