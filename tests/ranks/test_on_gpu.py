"""Messages by NCCL, from within a captured phase."""

from __future__ import annotations

import pytest

from .launcher import results


@pytest.mark.gpu
def test_a_captured_phase_sends_its_messages_and_learns_the_same() -> None:
    ((found,),) = results("gpu_worker", ranks=1)
    for name, row in found.items():
        assert row["apart"] < 1e-3, found
        assert row["unit"] == (None if "eager" in name else "phase"), found
