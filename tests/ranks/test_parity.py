"""What two ranks compute together: the same as one, the same after a resume, and nothing hangs where they differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from run_helpers import rows

import tightrope as tr

from .launcher import results


class Together:
    """Two ranks that have done everything that needs no other processes, each result by rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        workers = ("parity_worker", f"edges_worker {folder}")
        runs = (f"resume_worker whole {folder}/whole", f"resume_worker half {folder}/half")
        self.parity, self.edges, self.whole, self.half = results(*workers, *runs)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    return Together(tmp_path_factory.mktemp("together"))


def test_statistics_gradients_and_whole_phases_are_those_of_one_rank(together: Together) -> None:
    names = {"ppo discrete gradient", "vpg box gradient", "normalizer", "standardized", "ppo phase 0.0001"}
    names |= {"vpg hybrid gradient", "ppo phase PrivilegedProbe-v0", "vpg phase criticPrivilegedProbe-v0"}
    names |= {"ppo phase gru", "vpg phase criticmingru"}
    for row in together.parity:
        assert names <= row["found"].keys()
        assert max(row["found"].values()) < 1e-5, row["found"]
        assert min(row["moved"].values()) > 1e-3, row["moved"]  # there was something to compare


def test_what_one_rank_alone_is_given_cannot_do_or_finds_hangs_nobody(together: Together) -> None:
    for row in together.edges:
        assert row["learning rate"] == "learning_rate is 0.002 on rank 0 and 0.001 on rank 1: give all ranks the same"
        assert "eval_every is 128 on rank 0 and 0 on rank 1" in row["eval_every"]
        assert "run_dir is True on rank 0 and False on rank 1" in row["run_dir"]
        assert row["nan"].startswith("rank 1: ")
        assert row["is watched"]
        assert row["unsaved"] == "No space left on device"
        assert row["steps"] == 512
    first, second = (row["callbacks"] for row in together.edges)
    assert first["steps"] == second["steps"] == [256, 384]  # a stop of one rank ends all of them, one phase later
    assert (first["calls"], second["calls"]) == (2, 0)
    assert first["sum"] == second["sum"]
    saved = tr.load(together.folder / "saved")  # by one of several: without what is each rank's own
    assert saved.steps == 512
    assert saved.loaded is not None
    assert saved.loaded.ranks == 0
    assert tr.load(together.folder / "good").loaded.ranks == 2  # type: ignore[union-attr]


def test_a_run_of_two_ranks_resumes_exactly_and_on_other_numbers_of_ranks_too(
    together: Together, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, whole, half = together.folder, together.whole, together.half
    for algo in ("ppo", "vpg"):
        shutil.copytree(folder / f"half-{algo}", tmp_path / f"others-{algo}")
    (rest,) = results(f"resume_worker resume {folder}/half")
    for algo in ("ppo", "vpg"):
        first, second = whole[0][algo], whole[1][algo]
        assert half[0][algo]["steps"] < first["steps"]
        for rank in (0, 1):
            mine, theirs = whole[rank][algo], rest[rank][algo]
            assert mine["sums"] == theirs["sums"]
            assert mine["obs"] == theirs["obs"]
            assert mine["scores"] == half[rank][algo]["scores"] + theirs["scores"]
        assert first["scores"]
        assert first["weights"] == second["weights"]  # ranks agree
        assert first["obs"] != second["obs"]  # but each has envs of its own
        assert [first["envs"], second["envs"]] == [3, 3]
        assert rows(folder / f"whole-{algo}") == rows(folder / f"half-{algo}")

    alone = tr.load(tmp_path / "others-ppo")
    assert alone.state.env.num_envs == 6
    assert alone.state.optimizer.flat.tolist()[:50] == half[0]["ppo"]["weights"]
    alone.learn(until=alone.steps + 96)
    fresh = "saved by 2 ranks, this is 1: episodes and the environment's attributes start afresh"
    assert fresh in capsys.readouterr().out
    (three,) = results(f"resume_worker resume {tmp_path}/others", ranks=3)
    assert [row["ppo"]["envs"] for row in three] == [2] * 3
    assert three[0]["ppo"]["steps"] == 576
    assert len({json.dumps(row["vpg"]["weights"]) for row in three}) == 1


@pytest.mark.gpu
def test_a_captured_phase_sends_its_messages_by_nccl_and_learns_the_same() -> None:
    ((found,),) = results("gpu_worker", ranks=1)
    for name, row in found.items():
        assert row["apart"] < 1e-3, found
        assert row["unit"] == (None if "eager" in name else "phase"), found
