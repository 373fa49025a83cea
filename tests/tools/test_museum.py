"""The bug museum: nearly every mistake is caught, by words that point at it, and the running package stays as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.tools.museum import MUTATIONS, Catch, Mutation, catches, equation_catches, page, second_copy

ROOT = Path(tr.__file__).parents[1]
NEEDED = 27


def diagnosis(mutation: Mutation) -> str | None:
    """The words of the first quick check that name the right place."""
    return next((one.words for one in catches(mutation, probes=False) if re.search(mutation.place, one.words)), None)


def test_nearly_all_mistakes_are_caught_and_the_right_place_is_named() -> None:
    assert len(MUTATIONS) >= 30
    missed = [mutation.mistake for mutation in MUTATIONS if diagnosis(mutation) is None]
    assert len(MUTATIONS) - len(missed) >= max(NEEDED, 0.94 * len(MUTATIONS)), missed


def test_without_a_mistake_nothing_is_caught() -> None:
    with second_copy() as load:
        assert list(equation_catches(load)) == []
        for algo in ("ppo", "vpg"):
            assert load("exercises.phase_check").check_phase(algo) is None


@pytest.mark.parametrize(
    ("mistake", "probe"),
    [("PPO descends the surrogate", "Probe4-v0"), ("a time limit bootstraps from 0", "TimeLimitProbe-v0"),
     ("bootstraps from the observation after the reset", "TimeLimitProbe-v0")],
)  # fmt: skip
def test_training_on_a_probe_catches_it_too(mistake: str, probe: str) -> None:
    (mutation,) = (one for one in MUTATIONS if one.mistake == mistake)
    with second_copy(mutation) as load:
        tools = load("tools.probe")
        probes = [one for one in tools.PROBES if one.env in ("Probe1-v0", probe)]
        results = {one.env: tools.run_probe(one, "ppo", 1).passed for one in probes}
    assert results == {"Probe1-v0": True, probe: False}


def test_the_time_limit_probe_passes() -> None:
    from tightrope.tools.probe import PROBES, run_probe

    (probe,) = (one for one in PROBES if one.env == "TimeLimitProbe-v0")
    for seed in (1, 2, 3):
        assert run_probe(probe, "ppo", seed).passed


def test_the_running_package_is_not_touched() -> None:
    from tightrope.functional import losses

    before, loaded = losses.clipped_surrogate, dict(sys.modules)
    mutation = Mutation("", "functional.losses", "torch.min(ratio * advantage", "torch.max(ratio * advantage", "")
    with second_copy(mutation) as load:
        theirs = load("functional.losses").clipped_surrogate
        assert load("algorithms.ppo").PPOLoss.surrogate is theirs
    assert theirs is not before
    assert losses.clipped_surrogate is before
    assert {name: sys.modules.get(name) for name in loaded} == loaded


def test_a_line_that_has_changed_is_refused() -> None:
    mutation = Mutation("", "functional.losses", "no such line", "", "")
    with pytest.raises(UsageError, match="0 times: give a line that it has once"), second_copy(mutation):
        pass


def test_the_page_has_every_mistake() -> None:
    text = (ROOT / "docs" / "museum.md").read_text()
    assert all(f"| {one.mistake} |" in text and f"+ {one.new.splitlines()[0]}" in text for one in MUTATIONS)
    assert f"{len(MUTATIONS)} mistakes" in text
    shown = page([(MUTATIONS[0], [Catch("equations", "gae: wrong")]), (MUTATIONS[1], [])])
    assert "1 are caught" in shown
    assert "nothing notices it" in shown
