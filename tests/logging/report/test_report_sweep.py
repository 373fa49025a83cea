"""The page of a sweep: names that are only names, and a sweep with nothing to show yet."""

from dataclasses import replace

from tightrope.logging.report.sweep import SweepFigure, SweepRecord, TrialRow, sweep_page

EVIL = "<script>alert(1)</script>"
TRIAL = TrialRow(
    number=4, score=12.5, complete=True, failed=False, how=EVIL, scores=[12.0, 13.0],
    settings={"gamma": 0.987654321, EVIL: EVIL}, seconds=75.0, worker=EVIL,
)  # fmt: skip
RECORD = SweepRecord(
    env=EVIL, algo="ppo", name=EVIL, status="ended", done=2, wanted=3, seeds=[1, 2], steps=1000, storage="postgresql://u:***@h/db",
    command=f"{EVIL}/best.yaml", best=TRIAL, settings=[("gamma", 0.987654321, 0.99)],
    trials=[replace(TRIAL, number=1, score=None, complete=False, failed=True), replace(TRIAL, number=2, score=3.0), TRIAL],
    figures=[SweepFigure("history", EVIL, EVIL, wide=True, figure={"data": [{"name": EVIL}], "layout": {}})],
    searched=[("gamma", "[0.9]"), (EVIL, EVIL)],
)  # fmt: skip


def test_names_are_only_text() -> None:
    page = sweep_page(RECORD)
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)" in page


def test_trials_are_ordered_by_what_they_are_worth() -> None:
    rows = sweep_page(RECORD).partition('id="trials"')[2].partition("</table>")[0].split("<tr")[2:]
    assert [row.partition('scope="row">')[2].partition("<")[0] for row in rows] == ["4", "2", "1"]
    assert "marked" in rows[0]
    assert "0.988" in rows[0]


def test_a_sweep_without_a_finished_trial_has_a_page_too() -> None:
    page = sweep_page(replace(RECORD, best=None, settings=[], trials=[], figures=[], status="running", done=0))
    assert "No trial has come to its end yet." in page
    assert '"live":true' in page
