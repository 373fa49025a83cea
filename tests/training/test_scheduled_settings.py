"""Settings that follow a schedule: read from text or given as functions, filled in at each phase, saved and resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tightrope as tr
from tightrope.algorithms import ppo, vpg
from tightrope.engine import Runtime
from tightrope.errors import UsageError
from tightrope.functional import Schedule
from tightrope.logging import RunInfo
from tightrope.logging.progress import Progress
from tightrope.tools.sweep.space import Choices, default_search_space, read_search_space
from tightrope.training.build import build
from tightrope.training.commands import command, resume_command, usual_settings
from tightrope.training.config import Config, config_from, configure
from tightrope.training.schedules import read_schedule

SMALL = dict(num_envs=4, num_steps=16, total_timesteps=4 * 16 * 5, device="cpu", hidden_sizes=(8,), seed=3, threads=1)
PPO = dict(SMALL, num_minibatches=2, update_epochs=2)
QUIET = dict(eval_episodes=0, video_every=0)
finite = st.floats(0, 10, allow_subnormal=False)


def configured(algo: str = "ppo", **settings: Any) -> Config:
    return configure("CartPole-v1", algo, {**(PPO if algo == "ppo" else SMALL), **settings}, with_preset=False)


def trained(algo: str = "ppo", **settings: Any) -> tuple[Any, list[float], list[float]]:
    """(the state at the end, the learning rate of each phase, ent_coef as the loss of each phase read it)."""
    config, rates, weights = configured(algo, **settings), [], []
    state, page = build(config), ppo if algo == "ppo" else vpg
    backward = Runtime.backward

    def spy(self: Runtime, loss: Any, *rest: Any) -> Any:
        if len(weights) <= state.phase:
            weights.append(float(loss.ent_coef))
        return backward(self, loss, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "backward", spy)
        for metrics in getattr(page, algo)(state, config.algorithm):
            rates.append(float(metrics.learning_rate))
    return state, rates, weights


# text -----------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(["constant", "linear", "cosine", "piecewise"]), finite, finite, finite)
def test_a_schedule_is_read_back_from_its_own_text(kind: str, a: float, b: float, c: float) -> None:
    values = {"constant": [a], "piecewise": [a, b, c]}.get(kind, [a, b])
    points = tuple(zip((0.0, 0.25, 1.0) if kind == "piecewise" else (0.0, 1.0), values, strict=False))
    schedule = Schedule(kind, points)
    assert read_schedule("learning_rate", str(schedule)) == schedule


def test_text_may_have_spaces_and_points_either_sign() -> None:
    assert read_schedule("x", " linear( 3e-4 ,0 ) ") == Schedule("linear", ((0.0, 3e-4), (1.0, 0.0)))
    assert read_schedule("x", "piecewise(0=1, 0.5: 2)") == Schedule("piecewise", ((0.0, 1.0), (0.5, 2.0)))
    assert read_schedule("x", "3e-4") is None
    assert read_schedule("x", 3e-4) is None


# layers ---------------------------------------------------------------------------------------------------------------


def test_a_schedule_replaces_the_decay_of_lower_layers() -> None:
    flags = {"learning_rate": "cosine(1e-3, 1e-4)", "clip_coef": "linear(0.3, 0.1)"}
    file = {"anneal_lr": True, "learning_rate_end": 1e-5, "anneal_clip": True}
    for config in (configure("CartPole-v1", "ppo", file, flags), configure("CartPole-v1", "ppo", flags)):
        algorithm = config.algorithm
        assert not algorithm.anneal_lr
        assert not algorithm.anneal_clip  # type: ignore[attr-defined]
        assert algorithm.learning_rate_end == 0
        assert str(algorithm.learning_rate) == "cosine(0.001, 0.0001)"
    with pytest.raises(UsageError, match=r"anneal_lr decays a number, and learning_rate .* set anneal_lr false"):
        configure("CartPole-v1", "ppo", flags, {"anneal_lr": True})


def test_a_config_of_schedules_is_plain_data_and_is_read_back(tmp_path: Path) -> None:
    config = configured(
        learning_rate="piecewise(0: 1e-3, 0.5: 1e-4)", ent_coef="linear(0.01, 0)", clip_coef="constant(0.1)"
    )
    text = yaml.safe_dump(config.to_flat_dict())
    assert config_from(yaml.safe_load(text), tmp_path) == config
    assert config.changed(gamma=0.9).changed(gamma=config.algorithm.gamma) == config


# values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
def test_every_phase_gets_its_value_and_the_end_is_exact(algo: str) -> None:
    settings: dict[str, Any] = {} if algo == "ppo" else {"full_reset": False, "baseline": "critic"}
    state, rates, weights = trained(algo, learning_rate="cosine(1e-3, 1e-4)", ent_coef="linear(0.02, 0.01)", **settings)
    half_wave = [1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * k / 5)) for k in range(5)]
    assert rates == pytest.approx(half_wave, rel=1e-6)
    assert weights == pytest.approx([0.02 - 0.01 * k / 5 for k in range(5)], rel=1e-6)
    assert state.optimizer.learning_rate == torch.tensor(1e-4)
    assert state.ent_coef == torch.tensor(0.01)


def test_no_phase_trains_at_0_unless_the_schedule_says_so() -> None:
    assert min(trained(learning_rate="linear(1e-3, 0)")[1]) > 0
    state, rates, _ = trained(learning_rate="piecewise(0: 0, 0.2: 1e-3, 1: 0)")
    assert rates[0] == 0
    assert min(rates[1:]) > 0
    assert state.optimizer.learning_rate == 0


def test_clip_coef_follows_its_schedule() -> None:
    state, _, _ = trained(clip_coef="linear(0.3, 0.1)")
    assert state.clip_coef == torch.tensor(0.1)
    config = configured(clip_coef="linear(0.3, 0.1)").algorithm
    ppo.schedule(state, config)
    state.steps = config.run_steps // 2
    ppo.schedule(state, config)
    assert float(state.clip_coef) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("numbers", "schedules"),
    [
        ({"learning_rate": 1e-3}, {"learning_rate": "linear(1e-3, 0)"}),
        ({"learning_rate": 1e-3, "anneal_lr": False}, {"learning_rate": "constant(1e-3)"}),
        ({"learning_rate": 1e-3}, {"learning_rate": lambda progress: 1e-3 * (1 - progress)}),
        ({"clip_coef": 0.2, "anneal_clip": True}, {"clip_coef": "linear(0.2, 0)"}),
        ({"ent_coef": 0.03125}, {"ent_coef": "constant(0.03125)"}),
    ],
)  # fmt: skip
def test_a_schedule_of_the_same_values_gives_the_same_numbers(numbers: Any, schedules: Any) -> None:
    (a, rates, _), (b, others, _) = trained(**numbers), trained(**schedules)
    assert rates == pytest.approx(others, rel=1e-7)
    torch.testing.assert_close(a.optimizer.flat, b.optimizer.flat, rtol=1e-4, atol=1e-6)


def test_a_number_for_ent_coef_stays_a_number_in_the_loss() -> None:
    config = configured(ent_coef=0.01)
    state = build(config)
    assert config.algorithm.entropy_weight(state) == 0.01
    assert isinstance(config.algorithm.entropy_weight(state), float)
    assert configured(ent_coef="constant(0.01)").algorithm.entropy_weight(state) is state.ent_coef


def test_a_function_may_be_0_at_both_ends() -> None:
    _, rates, _ = trained(learning_rate=lambda progress: 1e-3 * math.sin(math.pi * progress) ** 2)
    assert rates == pytest.approx([1e-3 * math.sin(math.pi * k / 5) ** 2 for k in range(5)], rel=1e-5)


def test_a_function_that_fails_later_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"learning_rate is function .* which at progress 0.4 is -1: give a finite"):
        trained(learning_rate=lambda progress: -1.0 if 0.3 < progress < 0.6 else 1e-3)


# runs -----------------------------------------------------------------------------------------------------------------


def rows_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_metrics_have_what_varies_and_nothing_else(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", **PPO, **QUIET, ent_coef="linear(0.01, 0)", clip_coef=0.2, anneal_clip=True).learn(
        run_dir=tmp_path / "a", quiet=True
    )
    rows = rows_of(tmp_path / "a")
    assert [row["charts/ent_coef"] for row in rows] == pytest.approx([0.01 * (1 - k / 5) for k in range(5)])
    assert [row["charts/clip_coef"] for row in rows] == pytest.approx([0.2 * (1 - k / 5) for k in range(5)])
    tr.PPO("CartPole-v1", **PPO, **QUIET, anneal_clip=False).learn(run_dir=tmp_path / "b", quiet=True)
    assert not {"charts/ent_coef", "charts/clip_coef"} & rows_of(tmp_path / "b")[0].keys()


@pytest.mark.parametrize("own", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one(own: bool, tmp_path: Path) -> None:
    def decay(progress: float) -> float:
        return 1e-3 * (1 - progress) ** 2

    rate: Any = decay if own else "cosine(1e-3, 1e-4)"
    settings = dict(
        PPO, **QUIET, learning_rate=rate, ent_coef="linear(0.02, 0)", clip_coef="piecewise(0: 0.2, 0.5: 0.1)"
    )
    whole = tr.PPO("CartPole-v1", **settings).learn(quiet=True)
    tr.PPO("CartPole-v1", **settings).learn(run_dir=tmp_path / "run", until=128, quiet=True)
    again = tr.load(tmp_path / "run", **({"learning_rate": decay} if own else {}))
    assert again.steps == 128
    again.learn(quiet=True)
    assert torch.equal(whole.state.optimizer.flat, again.state.optimizer.flat)


def test_a_function_is_named_in_the_config_and_asked_for_on_resume(
    tmp_path: Path, run_command: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    agent = tr.PPO("CartPole-v1", **PPO, **QUIET, learning_rate=lambda progress: 1e-3)
    agent.learn(run_dir=run, until=128, quiet=True)
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["learning_rate"].startswith("function ")
    assert "<lambda>" in saved["learning_rate"]
    loaded = tr.load(run)
    assert len(loaded.evaluate(2).returns) == 2, "what does not train does not need the function"
    with pytest.raises(
        UsageError, match=r"learning_rate of this run is your function .* tr.load\(path, learning_rate="
    ):
        loaded.learn(quiet=True)
    code, _, complaint = run_command("resume", str(run), "--quiet")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "learning_rate of this run is your function" in complaint
    assert run_command("resume", str(run), "--learning-rate", "linear(1e-3, 0)", "--quiet")[0] == 0


def test_change_takes_schedules(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **PPO, **QUIET, learning_rate=1e-3)
    rates = []
    for row in agent.phases():
        rates.append(row["charts/learning_rate"])
        if len(rates) == 2:
            agent.change(learning_rate="constant(5e-4)", ent_coef=lambda progress: 0.1 * progress)
    assert rates == pytest.approx([1e-3, 8e-4, 5e-4, 5e-4, 5e-4])
    assert row["charts/ent_coef"] == pytest.approx(0.08)


def test_the_plan_and_the_progress_show_the_present_value(tmp_path: Path, run_command: Callable[..., Any]) -> None:
    flags = ["--learning-rate", "linear(1e-3, 0)", "--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2"]
    flags += ["--total-timesteps", "320", "--eval-episodes", "0", "--video-every", "0"]
    code, out, _ = run_command("train", "CartPole-v1", *flags, "--run-dir", str(tmp_path / "run"))
    assert code == 0
    assert "schedules: learning_rate linear(0.001, 0), now 0.001\n" in out
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["learning_rate"] == "linear(0.001, 0)"


def test_a_file_of_settings_has_schedules_too(tmp_path: Path, run_command: Callable[..., Any]) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("env: CartPole-v1\nlearning_rate: linear(1e-3, 0)\nent_coef: 'piecewise(0: 0.1, 1: 0)'\n")
    flags = (
        "--num-envs 4 --num-steps 16 --num-minibatches 2 --total-timesteps 64 --eval-episodes 0 --video-every 0 --quiet"
    )
    code, _, complaint = run_command("train", "--config", str(file), *flags.split(), "--run-dir", str(tmp_path / "run"))
    assert (code, complaint) == (0, "")
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (saved["learning_rate"], saved["ent_coef"]) == ("linear(0.001, 0)", "piecewise(0: 0.1, 1: 0)")


def test_help_shows_schedules(run_command: Callable[..., Any]) -> None:
    _, out, _ = run_command("train", "--help")
    assert "--learning-rate FLOAT|SCHEDULE" in out
    assert "linear(0.01, 0)" in " ".join(out.split())


def test_the_progress_line_shows_schedules_and_no_plain_numbers() -> None:
    info = RunInfo(
        title="it", settings={"ent_coef": "linear(1, 0)", "clip_coef": 0.2}, plan=[], steps=0, total_steps=10,
        run_dir=None, facts={},
    )  # fmt: skip
    progress = Progress(info)
    progress.add({"step": 5, "charts/ent_coef": 0.5, "charts/clip_coef": 0.1})
    assert [part.text for part in progress.parts() if part.name in ("ent_coef", "clip_coef")] == ["ent_coef 0.5"]


def test_a_sweep_leaves_schedules_alone_and_may_choose_between_them(tmp_path: Path) -> None:
    config = configured(learning_rate="linear(1e-3, 0)")
    assert "learning_rate" not in default_search_space(config, (), images=False)
    file = tmp_path / "space.yaml"
    file.write_text("learning_rate: [1e-3, 'linear(1e-3, 0)']\n")
    choices = read_search_space(file, configured(), ())["learning_rate"]
    assert isinstance(choices, Choices)
    assert choices.encoded == [1e-3, "linear(0.001, 0)"]
    assert choices.decode("learning_rate", "linear(0.001, 0)") == Schedule("linear", ((0.0, 1e-3), (1.0, 0.0)))
    assert choices.as_yaml() == choices.encoded


def test_the_command_that_repeats_a_run_has_its_schedules() -> None:
    config = configured(learning_rate="linear(1e-3, 0)")
    assert "--learning-rate 'linear(0.001, 0)'" in command(config, usual_settings(config))
    own = configured(learning_rate=lambda progress: 1e-3)
    assert "learning_rate=<lambda>" in command(own, usual_settings(own))
    assert resume_command(tmp := Path("runs/a"), own) == f'tr.load("{tmp}", learning_rate=...).learn()'
    assert resume_command(tmp, own, "--learning-rate", "1e-4").startswith("tightrope resume")
