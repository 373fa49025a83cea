"""The health check, rule by rule: each speaks when it should, and no good run of ours is called bad."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tightrope as tr
from tightrope.view.report import health as rules
from tightrope.view.report.columns import Columns
from tightrope.view.report.health import Finding, health

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


def words(columns: Columns, **settings: Any) -> list[str]:
    return [f"{f.level}: {f.what} {f.advice}" for f in health(columns, {**SETTINGS, **settings})]


def test_a_good_run_is_told_so_and_nothing_else() -> None:
    assert words(made()) == ["good: Nothing looks wrong. "]


Speaks = tuple[Callable[..., Finding | None], dict[str, Any], dict[str, Any], str]
RETURN = "charts__episodic_return"
CASES: list[Speaks] = [
    (rules.kl_too_high, {"losses__approx_kl": np.where(TIME < 0.4, 0.06, 0.01)}, {}, "KL above 0.05 in 40% of phases"),
    (rules.kl_too_low, {"losses__approx_kl": 1e-9}, {}, "the policy hardly moves"),
    (rules.clipped_too_often, {"losses__clipfrac": 0.6, "losses__approx_kl": 0.04}, {}, "steps are too large"),
    (
        rules.weights_pinned,
        {"losses__importance_weight": 1.19},
        {"use_importance_weights": True, "weight_clamp": 0.2},
        "at their clamp in 100%",
    ),
    (
        rules.critic_learns_nothing,
        {"losses__explained_variance": 0.02 * NOISE, RETURN: NOISE},
        {},
        "critic is not learning",
    ),
    (
        rules.entropy_gone_early,
        {"losses__entropy": np.where(TIME < 0.03, 0.69, 0.001), RETURN: 9 + NOISE},
        {},
        "too soon",
    ),
    (rules.gradient_always_clipped, {"losses__grad_norm": 150.0}, {}, "every step is a clipped one"),
    (rules.no_episode_finished, {RETURN: None}, {}, "No episode has finished"),
    (rules.returns_collapsed, {RETURN: 500 * np.sin(np.pi * TIME) + NOISE}, {}, "fell back to"),
    (rules.never_rose, {RETURN: 20 + NOISE}, {}, "The return has not risen"),
    (rules.always_the_same, {RETURN: -200.0}, {}, "Every phase returned the same, -200"),
    (rules.still_rising, {RETURN: 500 * TIME**3 + NOISE}, {}, "still rising at the end"),
    (rules.solved, {"charts__solved": TIME > 0.5}, {}, "survived a whole rollout for the first time at step 51,000"),
]


@pytest.mark.parametrize(("rule", "curves", "settings", "says"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_rule_speaks_when_it_should(
    rule: Callable[..., Finding | None], curves: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    assert rule(made(), {**SETTINGS, **settings}) is None
    finding = rule(made(**curves), {**SETTINGS, **settings})
    assert finding is not None
    assert says in finding.what
    assert any(says in line for line in words(made(**curves), **settings))


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(rules.RULES)


def test_advice_names_the_setting_and_what_it_is() -> None:
    (line,) = words(made(losses__approx_kl=0.2))
    assert "Lower learning_rate (now 0.001) or update_epochs (now 4), or set target_kl 0.02." in line


SILENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a few high KLs at the start", {"losses__approx_kl": np.where(TIME < 0.1, 0.2, 0.01)}, {}),
    ("clipping in a shrinking interval", {"losses__clipfrac": np.maximum(TIME, 0.1), "losses__approx_kl": 0.001}, {}),
    ("a critic of a solved task", {"losses__explained_variance": np.where(TIME < 0.4, 0.9, 0.0)}, {}),
    ("a critic that is not defined", {"losses__explained_variance": np.nan}, {}),
    ("a Gaussian that narrows", {"losses__entropy": 1.4 - 5 * TIME}, {}),
    ("a choice made late", {"losses__entropy": np.where(TIME < 0.5, 0.6, 0.0)}, {}),
    ("no limit on the gradient", {"losses__grad_norm": 150.0}, {"max_grad_norm": None}),
    ("a dip at the end", {RETURN: GOOD["charts/episodic_return"] - 60 * (TIME > 0.95)}, {}),
    ("solved in the first phases", {RETURN: np.where(TIME < 0.03, 20, 500) + NOISE}, {}),
    ("no losses at all", dict.fromkeys(["losses__approx_kl", "losses__clipfrac", "losses__explained_variance"]), {}),
    ("weights near one", {"losses__importance_weight": 1.01}, {"use_importance_weights": True, "weight_clamp": 0.2}),
]


@pytest.mark.parametrize(("curves", "settings"), [case[1:] for case in SILENT], ids=[case[0] for case in SILENT])
def test_no_alarm_for_what_is_well(curves: dict[str, Any], settings: dict[str, Any]) -> None:
    assert words(made(**curves), **settings) == ["good: Nothing looks wrong. "]


def test_few_phases_are_not_judged() -> None:
    (finding,) = health(Columns([{"step": 1, "losses/approx_kl": 9.0}] * 9), SETTINGS)
    assert (finding.level, finding.what) == ("note", "Only 9 phases so far: too few to judge.")
    assert health(Columns(), SETTINGS)[0].level == "note"


def test_a_run_half_way_is_not_told_to_train_longer() -> None:
    rising = made(charts__episodic_return=500 * TIME**3 + NOISE)
    assert words(rising, total_timesteps=2 * PHASES * BATCH) == ["good: Nothing looks wrong. "]


@pytest.mark.parametrize(("algo", "settings"), [("ppo", {}), ("vpg", {"total_timesteps": 250_000})])
def test_the_presets_raise_no_alarm(algo: str, settings: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:

        class Ear(tr.view.Onlooker):
            def row(self, row: dict[str, Any]) -> None:
                rows.append(row)

        patch.setattr("tightrope.runs.train.invited", lambda *_: [Ear()])
        agent = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]("CartPole-v1", device="cpu", **settings)
        agent.learn(quiet=True)
    assert [f.what for f in health(Columns(rows), agent.config.flat()) if f.level == "warning"] == []


def test_a_learning_rate_far_too_high_is_found() -> None:
    rows: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:

        class Ear(tr.view.Onlooker):
            def row(self, row: dict[str, Any]) -> None:
                rows.append(row)

        patch.setattr("tightrope.runs.train.invited", lambda *_: [Ear()])
        agent = tr.PPO("CartPole-v1", device="cpu", learning_rate=0.3, total_timesteps=50_000)
        agent.learn(quiet=True)
    warnings = [f for f in health(Columns(rows), agent.config.flat()) if f.level == "warning"]
    assert any("lower learning_rate (now 0.3)" in f.advice for f in warnings)
