"""The job files of examples/cluster agree with themselves and with the commands that they call."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tightrope.cli import main
from tightrope.training.build import per_rank_config
from tightrope.training.config import configure

ROOT = Path(__file__).parents[1]
FILES = ROOT / "examples" / "cluster"
SBATCH = sorted(FILES.glob("*.sbatch"))
MANIFEST = {part["kind"]: part for part in yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())}


def command_in(text: str, start: str) -> list[str]:
    """The words of the one command in a shell script that starts with a word, its lines joined."""
    joined = text.replace("\\\n", " ")
    return shlex.split(re.findall(rf"^.*?({start} .*)$", joined, re.MULTILINE)[-1])


def flags_of(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if word.startswith("--")}


def known_to(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))


def split_torchrun(words: list[str]) -> tuple[list[str], list[str]]:
    """(what torchrun reads, what tightrope reads)."""
    at = words.index("-m")
    assert words[at + 1] == "tightrope"
    return words[1:at], words[at + 2 :]


def container() -> dict[str, Any]:
    (only,) = MANIFEST["Job"]["spec"]["template"]["spec"]["containers"]
    return only


def pod_command() -> list[str]:
    return shlex.split(container()["args"][0].removeprefix("exec "))


# Slurm ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", SBATCH, ids=lambda file: file.name)
def test_a_job_saves_in_time_comes_back_and_keeps_its_logs(file: Path) -> None:
    subprocess.run(["bash", "-n", str(file)], check=True)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", file.read_text(), re.MULTILINE))
    assert "requeue" in options
    assert options["open-mode"] == "append"
    name, seconds = options["signal"].split("@")
    assert name == "TERM"  # to the steps; B: would be to the batch shell alone
    assert "export SRUN_CPUS_PER_TASK=" in file.read_text()
    patience = re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", file.read_text())
    assert int(seconds) > (int(patience[1]) if patience else 30)


@pytest.mark.parametrize(
    ("file", "command"), [("slurm.sbatch", "train"), ("slurm_seeds.sbatch", "train"), ("slurm_sweep.sbatch", "sweep")]
)
def test_the_flags_in_slurm_files_are_those_of_the_commands(
    file: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FILES / file).read_text()
    words = command_in(text, f"tightrope {command}")
    if command == "sweep" and not list(ROOT.glob("tightrope/cli/sweep.py")):
        pytest.skip("there is no tightrope sweep")
    shown = re.findall(r"^# .*\.sbatch (.*)$", text, re.MULTILINE)
    assert shown, "the file shows how to use it"
    flags = flags_of(words[2:]).union(*(flags_of(shlex.split(line.rstrip(")"))) for line in shown))
    assert flags <= known_to(command, capsys)


def test_torchrun_reads_what_it_is_given() -> None:
    from_slurm, _ = split_torchrun(command_in((FILES / "slurm.sbatch").read_text(), "torchrun"))
    from_pod, _ = split_torchrun(pod_command())
    known = set(get_args_parser()._option_string_actions)
    for words in (from_slurm, from_pod):
        assert flags_of(words) <= known
        assert flags_of(words) >= {"--nnodes", "--nproc-per-node", "--rdzv-endpoint", "--rdzv-id", "--max-restarts"}


def submitted(tmp_path: Path, ending: str, state: str, file: str = "slurm.sbatch") -> tuple[int, str]:
    """Run a job file with stand-ins for what it calls: (exit code, what it said and did)."""
    stand_ins = {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"',
        "torchrun": f'echo "torchrun $*"; {ending}',
        "tightrope": f'echo "tightrope $*"; {ending}',
        "scontrol": 'case "$1" in show) echo a; echo b;; *) echo "scontrol $*";; esac',
        "squeue": f"echo {state}",
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = dict(JOB_ID="7", JOB_NODELIST="a,b", NNODES="2", NODEID="1", SUBMIT_DIR="/s", GPUS_ON_NODE="4")
    slurm |= dict(ARRAY_JOB_ID="6", ARRAY_TASK_ID="3")
    env = {f"SLURM_{name}": value for name, value in slurm.items()}
    env |= {"SLURMD_NODENAME": "b", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", FILES / file, "CartPole-v1", "--seed", "4"], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_node_starts_torchrun_with_its_place_among_them(tmp_path: Path) -> None:
    code, said = submitted(tmp_path, "exit 0", "RUNNING")
    assert code == 0
    assert "--nnodes 2 --nproc-per-node 4 --max-restarts 3" in said
    assert "--rdzv-endpoint a:20007 --rdzv-id 7 --rdzv-conf is_host=0 --local-addr b" in said
    assert "tightrope train --run-dir /s/runs/slurm-7 --resume CartPole-v1 --seed 4" in said
    assert "requeue" not in said


STOPPED = "kill -TERM $PPID; exit 1"  # as torchrun ends when Slurm signals it and the shell around it


@pytest.mark.parametrize(
    ("ending", "state", "code", "requeues"),
    [(STOPPED, "RUNNING", 143, True), (STOPPED, "CANCELLED", 143, False), ("exit 1", "RUNNING", 1, False)],
)
def test_a_run_that_was_stopped_is_requeued_unless_by_scancel(
    tmp_path: Path, ending: str, state: str, code: int, requeues: bool
) -> None:
    found, said = submitted(tmp_path, ending, state)
    assert found == code
    assert ("scontrol requeue 7" in said) == requeues


@pytest.mark.parametrize(("ending", "requeues"), [("exit 143", True), ("exit 2", False), ("exit 0", False)])
def test_a_seed_that_was_stopped_is_requeued(tmp_path: Path, ending: str, requeues: bool) -> None:
    code, said = submitted(tmp_path, ending, "RUNNING", "slurm_seeds.sbatch")
    assert f"exit {code}" == ending
    assert "tightrope train --run-dir /s/runs/slurm-6/seed3 --seed 3 --resume CartPole-v1" in said
    assert ("scontrol requeue 7" in said) == requeues


def test_a_sweep_without_a_database_is_refused(tmp_path: Path) -> None:
    code, said = submitted(tmp_path, "exit 0", "RUNNING", "slurm_sweep.sbatch")
    assert code != 0
    assert "STORAGE: needs the address of a database" in said


# Kubernetes ----------------------------------------------------------------------------------------------------------


def test_pods_find_each_other() -> None:
    job, service = MANIFEST["Job"], MANIFEST["Service"]
    pod = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    words, _ = split_torchrun(pod_command())
    host, port = words[words.index("--rdzv-endpoint") + 1].split(":")
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert [int(port)] == [p["port"] for p in service["spec"]["ports"]]
    assert [int(port)] == [p["containerPort"] for p in container()["ports"]]


def test_a_pod_made_anew_is_told_where_the_first_one_is() -> None:
    """torchrun tells an address that it shares in the first round only."""
    env = {variable["name"]: variable.get("value") for variable in container()["env"]}
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "POD_IP" in env  # or it would be taken for the pod that is gone, of the same name and process number


def test_what_makes_the_run_of_the_pods_small_still_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "scaling"))
    job = importlib.import_module("pods_here").Job(tmp_path, 1000)
    assert "CartPole-v1" in job.script
    assert f"--run-dir {tmp_path / 'run'} " in job.script


def test_there_are_as_many_pods_and_gpus_as_torchrun_is_told() -> None:
    spec = MANIFEST["Job"]["spec"]
    words, _ = split_torchrun(pod_command())
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(words[words.index("--nnodes") + 1])
    gpus = container()["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == int(words[words.index("--nproc-per-node") + 1])


def test_a_pod_has_time_to_save_where_all_of_them_see_it() -> None:
    pod = MANIFEST["Job"]["spec"]["template"]["spec"]
    env = {variable["name"]: variable.get("value") for variable in container()["env"]}
    assert pod["terminationGracePeriodSeconds"] > int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert pod["restartPolicy"] == "Never"  # or there can be no podFailurePolicy
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container()["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    claim = MANIFEST["PersistentVolumeClaim"]
    assert mounts["/runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    _, words = split_torchrun(pod_command())
    assert words[words.index("--run-dir") + 1].startswith("/runs/")


def test_the_run_in_the_pods_is_one_that_can_be_trained(capsys: pytest.CaptureFixture[str]) -> None:
    launcher, words = split_torchrun(pod_command())
    assert words[0] == "train"
    assert "--resume" in words
    assert flags_of(words) <= known_to("train", capsys)
    ranks = int(launcher[launcher.index("--nnodes") + 1]) * int(launcher[launcher.index("--nproc-per-node") + 1])
    numbers = {"num_envs": int(words[words.index("--num-envs") + 1])}
    config = configure(words[1], "ppo", numbers)
    assert per_rank_config(config.algorithm, ranks).num_envs * ranks == numbers["num_envs"]


# the image -----------------------------------------------------------------------------------------------------------


def test_the_image_has_what_is_copied_and_runs_as_the_user_of_the_pods() -> None:
    text = (FILES / "Dockerfile").read_text()
    let_through = (FILES / "Dockerfile.dockerignore").read_text().splitlines()
    for words in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in let_through
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    user = MANIFEST["Job"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    assert f"\nUSER {user}\n" in text
    assert f"--uid {user} " in text
