"""Two machines in two network namespaces, where there are the rights to make them: a run completes, and broken ones end."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scaling"))

import two_machines

WHY_NOT = two_machines.why_no_hosts()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"two machines: {WHY_NOT}")
LOOP = str(two_machines.LOOP)
LONG = two_machines.Command([LOOP, "--seconds=100", "--silence=2"], begun="attempt 0")
two_machines.RETRIES = "3"  # some 3 s: torchrun waits for its own connections for so long, and more than once


def test_a_run_completes() -> None:
    two_machines.completes(two_machines.training(4096))


def test_a_cut_link_ends_both_sides_within_the_stated_time() -> None:
    two_machines.breaks(LONG, two_machines.cut, within=4, by=2)


def test_a_rank_killed_on_one_machine_ends_the_other() -> None:
    """Also where a child of it lives on, for whose sake Gloo's connections stay open."""
    with_child = two_machines.Command([*LONG.words, "--child"], begun=LONG.begun)
    two_machines.breaks(with_child, lambda both: both[0].kill_rank(), within=3)
