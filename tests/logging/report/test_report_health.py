"""The health check, rule by rule: each speaks when it should, and no good run of ours is called bad."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tightrope as tr
from tightrope.logging import Target
from tightrope.logging.metrics import Columns
from tightrope.logging.report import health as rules
from tightrope.logging.report.health import HealthFinding, health_findings
from tightrope.training.plan import target_of

PHASES, BATCH = 100, 1000
SETTINGS: dict[str, Any] = dict(
    total_timesteps=PHASES * BATCH, learning_rate=0.001, update_epochs=4, ent_coef=0.0, max_grad_norm=0.5, norm_reward=False
)  # fmt: skip
TIME = np.linspace(0, 1, PHASES)
NOISE = np.random.default_rng(1).normal(size=PHASES)
GOOD: dict[str, Any] = {
    "charts/episodic_return": 20 + 480 * np.minimum(TIME / 0.6, 1) + NOISE,
    "losses/approx_kl": 0.008 + 0.001 * NOISE,
    "losses/clipfrac": 0.1 + 0.01 * NOISE,
    "losses/explained_variance": np.minimum(TIME * 2, 0.9),
    "losses/entropy": 0.69 - 0.3 * TIME,
    "losses/grad_norm": 2 + 0.1 * NOISE,
}


def made(**changed: Any) -> Columns:
    """A healthy run, but for these curves; None leaves one out."""
    curves = {**GOOD, **{name.replace("__", "/"): value for name, value in changed.items()}}
    there = {name: np.broadcast_to(value, PHASES) for name, value in curves.items() if value is not None}
    return Columns(
        {"step": (i + 1) * BATCH, "phase": i + 1, **{name: float(value[i]) for name, value in there.items()}}
        for i in range(PHASES)
    )


TARGET = Target(475.0, "Gymnasium counts it as solved from 475")


def words(columns: Columns, target: Target | None = None, score: float | None = None, **settings: Any) -> list[str]:
    return [
        f"{f.level}: {f.headline} {f.what} {f.advice}"
        for f in health_findings(columns, {**SETTINGS, **settings}, target, score)
    ]


def levels(columns: Columns, target: Target | None = None, score: float | None = None) -> set[str]:
    return {finding.level for finding in health_findings(columns, SETTINGS, target, score)}


def test_a_run_that_reached_its_target_is_told_so_and_nothing_else() -> None:
    assert words(made(), TARGET) == [
        "good: Solved: 499.6 of 475 needed By the return in training; Gymnasium counts it as solved from 475. "
    ]


def test_without_a_target_nothing_is_called_good() -> None:
    (line,) = words(made())
    assert line.startswith("note: Improved, without a known target The return in training rose from 2")
    assert "to 499.6. Whether that is good depends on the task: no target is known for it." in line


SOLVED_LOOKS: dict[str, dict[str, Any]] = {  # of a solved task, and of a sick one
    "no entropy": {"losses__entropy": 1e-9},
    "no KL": {"losses__approx_kl": 0.0},
    "high KL": {"losses__approx_kl": 0.2},
    "nothing to explain": {"losses__explained_variance": 0.0 * NOISE - 0.01},
    "no gradient": {"losses__grad_norm": 0.0},
    "every gradient clipped": {"losses__grad_norm": 150.0},
    "no entropy, KL and gradient": {"losses__entropy": 1e-9, "losses__approx_kl": 0.0, "losses__grad_norm": 0.0},
}
HELD: dict[str, Any] = {"rose": GOOD["charts/episodic_return"], "held": 500.0, "nearly held": 499 + 0.1 * NOISE}


@pytest.mark.parametrize("looks", SOLVED_LOOKS)
@pytest.mark.parametrize("returns", HELD)
def test_a_solved_task_raises_no_alarm(looks: str, returns: str) -> None:
    assert levels(made(**SOLVED_LOOKS[looks], charts__episodic_return=HELD[returns]), TARGET) == {"good"}


NOT_GOOD: list[tuple[str, Any, Target, str]] = [
    ("a third of the way", 20 + 183 * TIME + NOISE, TARGET, "Not solved: 198.0 of 475"),
    ("Hopper at 334", 18 + 316 * TIME + NOISE, Target(3800.0, "asked"), "Not solved: 325.6 of 3,800"),
    ("standing still", -44 - 60 * np.exp(-20 * TIME) + NOISE, Target(300.0, "asked"), "-44.40, at least 300 needed"),
    ("never moved", 20 + NOISE, TARGET, "Nothing was learned: the return in training was 2"),
    ("a bit up and down", -1190 + 150 * np.sin(np.pi * TIME) + 10 * NOISE, Target(-194.0, "asked"), "Nothing was learned"),
    ("up and down", 500 * np.sin(np.pi * TIME) + NOISE, TARGET, "fell back to"),
    ("always the worst", -200.0, Target(-110.0, "asked"), "Every phase returned -200"),
]  # fmt: skip


@pytest.mark.parametrize(("returns", "target", "says"), [case[1:] for case in NOT_GOOD], ids=[c[0] for c in NOT_GOOD])
def test_what_missed_its_target_is_not_called_good(returns: Any, target: Target, says: str) -> None:
    found = health_findings(made(charts__episodic_return=returns), SETTINGS, target)
    assert "good" not in {finding.level for finding in found}
    assert found[0].level == "warning"
    assert found[0].headline.startswith("Not solved: ")
    assert says in f"{found[0].headline}; {found[0].what}"
    without = {finding.level for finding in health_findings(made(charts__episodic_return=returns), SETTINGS)}
    assert "good" not in without


def test_the_greedy_score_counts_where_there_is_one() -> None:
    assert levels(made(), TARGET, score=203.0) == {"warning"}
    assert words(made(), TARGET, 203.0)[0].startswith("warning: Not solved: 203 of 475 ")
    assert levels(made(charts__episodic_return=20 + 183 * TIME + NOISE), TARGET, score=500.0) == {"good"}


def test_a_run_under_way_is_not_blamed_for_what_it_has_not_reached_yet() -> None:
    half = made(charts__episodic_return=20 + 183 * TIME + NOISE)
    (finding,) = health_findings(half, {**SETTINGS, "total_timesteps": 2 * PHASES * BATCH}, TARGET)
    assert finding.level == "note"
    assert finding.headline == "Not solved yet: 198.0 of 475"


DEATH = {"losses__entropy": np.where(TIME < 0.045, 0.69, 1e-9), "losses__approx_kl": None}


@pytest.mark.parametrize("target", [None, TARGET])
@pytest.mark.parametrize("moves", ["norm", "kl"])
def test_a_dead_policy_is_told_with_the_phase_of_its_death(target: Target | None, moves: str) -> None:
    still = np.where(TIME < 0.045, 0.5, 0.0)
    curves = {**DEATH, "losses__grad_norm": still} if moves == "norm" else {**DEATH, "losses__approx_kl": still}
    columns = made(charts__episodic_return=np.where(TIME < 0.04, 20, 9.4) + 0.1 * NOISE, **curves)
    found = health_findings(columns, {**SETTINGS, "max_grad_norm": None, "learning_rate": 1.0}, target)
    assert found[0].level == "warning"
    assert found[0].what.startswith("Dead from phase 6 on")
    assert "lower learning_rate (now 1.0)" in found[0].advice
    assert "max_grad_norm" in found[0].advice


def test_a_policy_that_decided_late_or_learns_on_is_not_dead() -> None:
    rising = {"charts__episodic_return": 20 + 183 * TIME + NOISE}
    late = made(
        losses__entropy=np.where(TIME < 0.9, 0.5, 1e-9), losses__approx_kl=np.where(TIME < 0.9, 0.01, 0.0), **rising
    )
    moving = made(losses__entropy=1e-9, losses__grad_norm=1.0, **rising)
    gaussian = made(losses__entropy=1.4 - 8 * TIME, **rising)
    for columns in (late, moving, gaussian):
        assert not any("Dead" in line for line in words(columns, TARGET))


def test_a_handful_of_episodes_is_told_as_it_is() -> None:
    few = np.where(np.arange(PHASES) % 12 == 0, -50.0 + np.arange(PHASES) / 100, np.nan)
    (line,) = words(made(charts__episodic_return=few), Target(90.0, "asked: 90"))
    assert line.startswith("note: Not scored The return in training rose from -50 to -49.04. Asked: 90.")
    assert "too few episodes ended" in line
    assert "from -50 to -49.04" in words(made(charts__episodic_return=few))[0]


def test_no_episode_is_told_first() -> None:
    (line,) = words(made(charts__episodic_return=None))
    assert line.startswith("warning: No episode finished No episode has finished: there is no return yet.")


def test_a_shaped_return_is_not_compared_with_the_target() -> None:
    shaped = {"train_env": "MountainCarShaped-v0"}
    (line,) = words(made(), TARGET, **shaped)
    assert line.startswith("note: Not scored")
    assert "training had an environment of its own" in line
    assert words(made(), TARGET, 203.0, **shaped)[0].startswith("warning: Not solved: 203 of 475")
    assert words(made(charts__episodic_return=20 + TIME), TARGET, 500.0, **shaped)[0].startswith("good: Solved: 500 of")


def test_a_score_within_its_error_of_the_target_is_neither_praised_nor_blamed() -> None:
    for score in (474.0, 476.0):
        (finding,) = health_findings(made(losses__approx_kl=0.2), SETTINGS, TARGET, score, error=1.5)
        assert finding.level == "note"
        assert finding.headline.startswith(f"About solved: {score:.0f} of 475")
    assert health_findings(made(), SETTINGS, TARGET, 477.0, error=1.5)[0].level == "good"
    assert health_findings(made(), SETTINGS, TARGET, 473.0, error=1.5)[0].level == "warning"


def test_so_is_a_return_in_training_without_a_score() -> None:
    near = made(charts__episodic_return=np.minimum(20 + 800 * TIME, 478.0) + 10 * NOISE)
    (line,) = words(near, TARGET)
    assert line.startswith("note: About solved: 47")
    assert "within its error of" in line
    far = made(charts__episodic_return=np.minimum(20 + 800 * TIME, 460.0) + 10 * NOISE)
    assert words(far, TARGET)[0].startswith("warning: Not solved: 4")


def test_a_critic_that_keeps_its_loss_is_blamed() -> None:
    """Though the first phase's loss, before rewards are scaled, is much larger."""
    loss = np.where(TIME == 0, 2000.0, 0.8)
    curves = {"losses__explained_variance": 0.0 * TIME - 0.3, "losses__value_loss": loss, RETURN: NOISE}
    assert any("the critic is not learning" in line for line in words(made(**curves)))


def test_a_run_whose_phases_are_large_is_at_its_end_when_none_is_left() -> None:
    short = {**SETTINGS, "total_timesteps": PHASES * BATCH + 900, "num_envs": 10, "num_steps": 100}
    assert health_findings(made(charts__episodic_return=20 + TIME), short, TARGET)[0].headline.startswith(
        "Not solved: "
    )


def test_noise_is_no_rise() -> None:
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=PHASES)
        assert words(made(charts__episodic_return=-1200 + 60 * noise))[0].startswith("warning: Nothing was learned")


def test_a_probe_that_is_solved_at_once_is_not_dead() -> None:
    rows = [{"step": i, "phase": i, "charts/episodic_return": min(i / 3, 1.0), "losses/entropy": 0.69 * (i < 3)}
            | {"losses/approx_kl": 0.1 * (i < 3)} for i in range(1, 15)]  # fmt: skip
    assert "Dead" not in health_findings(Columns(rows), SETTINGS)[0].what
    rows[-1]["charts/episodic_return"] = 0.2
    assert "Dead from phase 3 on" in health_findings(Columns(rows), SETTINGS)[0].what


def test_what_only_greedy_actions_show_was_learned_all_the_same() -> None:
    flat = made(charts__episodic_return=22 + NOISE)
    assert "Nothing was learned" in words(flat, TARGET, 40.0)[0]
    line = words(flat, TARGET, 440.0)[0]
    assert line.startswith("warning: Not solved: 440 of 475 Sampled actions return 21")
    assert "lower ent_coef (now 0.0)" in line


def test_a_better_policy_on_the_way_is_named() -> None:
    lost = made(eval__episodic_return=np.where(np.arange(PHASES) % 10 == 9, 500.0 - 400 * (TIME > 0.8), np.nan))
    line = words(lost, TARGET, 100.0)[0]
    assert line.startswith("warning: Not solved: 100 of 475")
    assert "An evaluation on the way returned 500: checkpoint `best` has that policy." in line


def test_episodes_count_alike() -> None:
    """One unlucky episode among phases of many is no dip at the end, and no phase of one episode is the best of all."""
    returns, episodes = np.full(PHASES, 480.0), np.full(PHASES, 40.0)
    returns[:40], returns[-1], returns[60] = np.linspace(20, 480, 40), 9.0, 2000.0
    episodes[[-1, 60]] = 1
    assert words(made(charts__episodic_return=returns, charts__episodes=episodes), TARGET)[0].startswith(
        "good: Solved: 4"
    )
    assert words(made(charts__episodic_return=returns), TARGET)[0].startswith("warning: Not solved")


Speaks = tuple[Callable[..., HealthFinding | None], dict[str, Any], dict[str, Any], str]
RETURN = "charts__episodic_return"
IMPORTANCE = {"use_importance_weights": True, "weight_clamp": 0.2}
CASES: list[Speaks] = [
    (rules.kl_too_high, {"losses__approx_kl": np.where(TIME < 0.4, 0.06, 0.01)}, {}, "KL above 0.05 in 40% of phases"),
    (rules.kl_too_low, {"losses__approx_kl": 1e-9}, {}, "the policy hardly moves"),
    (rules.clipped_too_often, {"losses__clipfrac": 0.6, "losses__approx_kl": 0.04}, {}, "steps are too large"),
    (rules.weights_pinned, {"losses__importance_weight": 1.19}, IMPORTANCE, "at their clamp in 100%"),
    (rules.critic_learns_nothing, {"losses__explained_variance": 0.02 * NOISE, RETURN: NOISE}, {}, "critic is not learning"),
    (rules.entropy_gone_early, {"losses__entropy": np.where(TIME < 0.03, 0.69, 0.001), RETURN: 9 + NOISE}, {}, "too soon"),
    (rules.gradient_always_clipped, {"losses__grad_norm": 150.0}, {}, "every step is clipped"),
    (rules.still_rising, {RETURN: 500 * TIME**3 + NOISE}, {}, "still rising at the end"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "curves", "settings", "says"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_speaks_when_it_should(
    rule: Callable[..., HealthFinding | None], curves: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    assert rule(made(), {**SETTINGS, **settings}) is None
    finding = rule(made(**curves), {**SETTINGS, **settings})
    assert finding is not None
    assert says in finding.what
    assert any(says in line for line in words(made(**curves), **settings))


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(rules.RULES)


def test_advice_names_the_setting_and_what_it_is() -> None:
    _, line = words(made(losses__approx_kl=0.2))
    assert "Lower learning_rate (now 0.001) or update_epochs (now 4), or set target_kl 0.02." in line


SILENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a few high KLs at the start", {"losses__approx_kl": np.where(TIME < 0.1, 0.2, 0.01)}, {}),
    ("clipping in a shrinking interval", {"losses__clipfrac": np.maximum(TIME, 0.1), "losses__approx_kl": 0.001}, {}),
    ("a critic of a solved task", {"losses__explained_variance": np.where(TIME < 0.4, 0.9, 0.0)}, {}),
    (
        "a critic without a loss",
        {"losses__explained_variance": 0.0 * TIME - 0.01, "losses__value_loss": 0.5 * 0.8 ** (100 * TIME)},
        {},
    ),
    ("a critic that is not defined", {"losses__explained_variance": np.nan}, {}),
    ("a Gaussian that narrows", {"losses__entropy": 1.4 - 5 * TIME}, {}),
    ("a choice made late", {"losses__entropy": np.where(TIME < 0.5, 0.6, 0.0)}, {}),
    ("no limit on the gradient", {"losses__grad_norm": 150.0}, {"max_grad_norm": None}),
    ("a dip at the end", {RETURN: GOOD["charts/episodic_return"] - 60 * (TIME > 0.95)}, {}),
    ("solved in the first phases", {RETURN: np.where(TIME < 0.03, 20, 500) + NOISE}, {}),
    ("no losses at all", dict.fromkeys(["losses__approx_kl", "losses__clipfrac", "losses__explained_variance"]), {}),
    ("weights near one", {"losses__importance_weight": 1.01}, IMPORTANCE),
]


@pytest.mark.parametrize(("curves", "settings"), [case[1:] for case in SILENT], ids=[case[0] for case in SILENT])
def test_no_alarm_for_what_is_well(curves: dict[str, Any], settings: dict[str, Any]) -> None:
    (line,) = words(made(**curves), **settings)
    assert line.startswith("note: Improved, without a known target")


def test_few_phases_are_not_judged() -> None:
    (finding,) = health_findings(Columns([{"step": 1, "losses/approx_kl": 9.0}] * 9), SETTINGS)
    assert (finding.level, finding.what) == ("note", "Only 9 phases so far: too few to judge.")
    assert health_findings(Columns(), SETTINGS)[0].level == "note"


def test_a_run_half_way_is_not_told_to_train_longer() -> None:
    rising = made(charts__episodic_return=500 * TIME**3 + NOISE)
    (line,) = words(rising, total_timesteps=2 * PHASES * BATCH)
    assert "Train longer" not in line


@pytest.mark.parametrize(("algo", "settings"), [("ppo", {}), ("vpg", {"total_timesteps": 250_000})])
def test_the_presets_raise_no_alarm(algo: str, settings: dict[str, Any]) -> None:
    agent = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]("CartPole-v1", device="cpu", **settings)
    rows = list(agent.phases())
    settings, target = agent.config.to_flat_dict(), target_of(agent.config)
    assert [f.what for f in health_findings(Columns(rows), settings) if f.level == "warning"] == []
    (solved,) = health_findings(Columns(rows), settings, target, score=rows[-1].get("eval/episodic_return"))
    assert solved.level == "good"


def test_a_learning_rate_far_too_high_is_found() -> None:
    agent = tr.PPO("CartPole-v1", device="cpu", learning_rate=0.3, total_timesteps=50_000)
    rows = list(agent.phases())
    warnings = [f for f in health_findings(Columns(rows), agent.config.to_flat_dict()) if f.level == "warning"]
    assert any("lower learning_rate (now 0.3)" in f.advice for f in warnings)
