"""Scores of a run: evaluations that a signal ends, the return at which training stops, checkpoints every so many steps."""

import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from run_helpers import Plain, assert_same_state, rows

import tightrope as tr
from tightrope.logging.callback import Callback, CallbackList, RunInfo
from tightrope.logging.metrics import Columns
from tightrope.logging.report.data import RunRecord, RunStatus
from tightrope.tools.seeds import Seed
from tightrope.training.evaluate import Evaluation
from tightrope.training.reports import add_score, gathered, scores
from tightrope.training.run_directory import RunDirectory
from tightrope.training.scoring import Log, compare_with_sampled
from tightrope.types import Settings

BATCH = 32
SMALL: Settings = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=8 * BATCH, device="cpu")
SMALL |= dict(eval_every=2 * BATCH, eval_episodes=3, max_episode_steps=20, keep_checkpoints=20, video_every=0)
AGENTS = [tr.PPO, tr.VPG]


def merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An evaluation that was made later, in a row of its own, with the row of its phase."""
    by_phase: dict[int, dict[str, Any]] = {}
    for row in found:
        by_phase.setdefault(row["phase"], {}).update(row)
    return list(by_phase.values())


def checkpoints(run: Path) -> dict[str, float | None]:
    manifests = {p.parent.name: json.loads(p.read_text()) for p in (run / "checkpoints").glob("*/manifest.json")}
    return {name: manifest.get("score") for name, manifest in sorted(manifests.items())}


# signals ----------------------------------------------------------------------------------------------------------------


class Ticking(tr.envs.CartPole):
    """Raises a signal in the middle of an evaluation, whose copies are three."""

    pure = False
    numbers: ClassVar[list[signal.Signals]] = []

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        if len(state) == 3 and bool((self.clock == 4).any()) and self.numbers:
            signal.raise_signal(self.numbers.pop())
        return super().advance(state, action)


class Guess(Plain):
    """The same on the host: one after the other, of which the third raises it."""

    length = 9
    numbers: ClassVar[list[signal.Signals]] = []
    evaluating: ClassVar[bool] = False

    def step(self, action: Any) -> Any:
        if self.time == 6 and Guess.evaluating and self.numbers:
            signal.raise_signal(self.numbers.pop())
        return super().step(action)


@pytest.mark.parametrize(
    ("cls", "number"), [(tr.PPO, signal.SIGINT), (tr.PPO, signal.SIGHUP), (tr.VPG, signal.SIGTERM)]
)
def test_an_evaluation_that_a_signal_ends_is_made_when_the_run_goes_on(
    cls: type[tr.Agent], number: signal.Signals, tmp_path: Path
) -> None:
    whole = cls(Ticking(4, max_episode_steps=20), **SMALL)
    whole.learn(run_dir=tmp_path / "whole", quiet=True)
    agent = cls(Ticking(4, max_episode_steps=20), **SMALL)
    Ticking.numbers.append(number)
    outcome = agent.train(run_dir=tmp_path / "stopped", quiet=True)
    assert outcome.interrupted == number
    assert not outcome.evaluations
    assert agent.steps >= 2 * BATCH
    assert "eval/episodic_return" not in rows(tmp_path / "stopped")[-1]
    again = tr.load(tmp_path / "stopped", env=Ticking(4, max_episode_steps=20))
    assert_same_state(again, agent)
    assert again.train(quiet=True).evaluations[0][0] == agent.steps
    assert_same_state(again, whole)
    assert merged(rows(tmp_path / "stopped")) == rows(tmp_path / "whole")
    scores = [{score for score in checkpoints(tmp_path / run).values() if score} for run in ("whole", "stopped")]
    assert scores[0] == scores[1]


def test_an_evaluation_on_the_host_ends_in_the_middle_of_a_step_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tightrope.logging.progress.SLOW_SECONDS", 0.0)  # every phase counts as long
    agent = tr.PPO(Guess, **{**SMALL, "max_episode_steps": None})
    monkeypatch.setattr("tightrope.training.scoring.shown_to", lambda *_: setattr(Guess, "evaluating", True) or print)
    Guess.numbers.append(signal.SIGTERM)
    outcome = agent.train(run_dir=tmp_path)
    assert (outcome.interrupted, outcome.evaluations, agent.steps) == (signal.SIGTERM, [], 2 * BATCH)
    said = capsys.readouterr()
    assert f"the evaluation after {agent.steps:,} steps was interrupted; it runs when training resumes" in said.out
    assert " 0 of " not in said.err
    assert tr.load(tmp_path, env=Guess).train(quiet=True).evaluations[0][0] == 2 * BATCH


def test_a_signal_in_a_phase_leaves_its_evaluation_for_later(tmp_path: Path) -> None:
    class Hasty(tr.envs.CartPole):
        pure = False

        def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            if len(state) == 4 and agent.steps == BATCH and not fired:
                fired.append(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
            return super().advance(state, action)

    fired: list[int] = []
    agent = tr.PPO(Hasty(4, max_episode_steps=20), **SMALL)
    outcome = agent.train(run_dir=tmp_path, quiet=True)
    assert (outcome.interrupted, agent.steps, agent.state.unevaluated) == (signal.SIGTERM, 2 * BATCH, True)
    assert tr.load(tmp_path, env=Hasty(4, max_episode_steps=20)).train(quiet=True).evaluations[0][0] == 2 * BATCH


def test_the_evaluation_after_the_last_phase_is_made_too(tmp_path: Path) -> None:
    settings = {**SMALL, "eval_every": 8 * BATCH}
    agent = tr.PPO(Ticking(4, max_episode_steps=20), **settings)
    Ticking.numbers.append(signal.SIGTERM)
    assert agent.train(run_dir=tmp_path, quiet=True).interrupted == signal.SIGTERM
    again = tr.load(tmp_path, env=Ticking(4, max_episode_steps=20))
    assert not again.finished
    assert [steps for steps, _ in again.train(quiet=True).evaluations] == [again.steps] == [8 * BATCH]
    assert tr.load(tmp_path, env=Ticking(4, max_episode_steps=20)).finished
    assert tr.load(tmp_path, Ticking(4, max_episode_steps=20), "best").steps == 8 * BATCH


def test_without_evaluations_nothing_is_left_to_make(tmp_path: Path) -> None:
    agent = tr.PPO(Ticking(4, max_episode_steps=20), **SMALL)
    Ticking.numbers.append(signal.SIGTERM)
    agent.train(run_dir=tmp_path, quiet=True)
    again = tr.load(tmp_path, env=Ticking(4, max_episode_steps=20), eval_every=0)
    assert again.state.unevaluated
    assert again.train(quiet=True).evaluations == []
    assert not again.state.unevaluated


# stopping at a return ---------------------------------------------------------------------------------------------------


def scripted(monkeypatch: pytest.MonkeyPatch, *means: float, **fields: Any) -> None:
    """Evaluations with these results, by the phase after which they are made."""

    def evaluate(*_: object) -> tr.Evaluation:
        return tr.Evaluation(returns=[next(found)], lengths=[1], **fields)

    found = iter(means)
    monkeypatch.setattr("tightrope.training.scoring.evaluate_policy", evaluate)


@pytest.mark.parametrize("cls", AGENTS)
def test_training_stops_once_an_evaluation_is_good_enough(
    cls: type[tr.Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "stop_at_return": 8.0}
    scripted(monkeypatch, 5.0, 8.0, 9.0, 30.0)
    agent = cls("CartPole-v1", **settings)
    outcome = agent.train(run_dir=tmp_path)
    assert [evaluation.mean for _, evaluation in outcome.evaluations] == [5.0, 8.0]
    stopped = agent.steps
    assert stopped < 6 * BATCH
    assert agent.finished
    out = capsys.readouterr().out
    assert "stops earlier if an evaluation, every 64 steps, returns 8\n" in out
    assert f"reached stop_at_return 8 after {stopped:,} steps: an evaluation returned 8.00\n" in out
    assert "solved" not in out
    status = gathered(tmp_path).status
    assert (status.kind, status.details) == ("ended", "An evaluation reached stop_at_return, 8.")
    page = (tmp_path / "report.html").read_text()
    assert ">solved<" not in page
    assert status.details in page
    again = tr.load(tmp_path)
    assert again.finished
    assert again.learn().steps == stopped
    assert "nothing to do: an evaluation returned 8.00, and stop_at_return is 8" in capsys.readouterr().out
    higher = tr.load(tmp_path, stop_at_return=20.0)
    assert [e.mean for _, e in higher.train(quiet=True).evaluations] == [9.0, 30.0]
    assert higher.state.solved


@pytest.mark.parametrize("stops", [(BATCH,), (2 * BATCH, 3 * BATCH)])
def test_it_stops_at_the_same_place_however_often_it_was_resumed(
    stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "stop_at_return": 8.0}
    scripted(monkeypatch, 5.0, 6.0, 8.0, 9.0)
    whole = tr.PPO("CartPole-v1", **settings).learn(run_dir=tmp_path / "whole", quiet=True)
    scripted(monkeypatch, 5.0, 6.0, 8.0, 9.0)
    agent = tr.PPO("CartPole-v1", **settings)
    agent.learn(run_dir=tmp_path / "pieces", until=stops[0], quiet=True)
    for until in (*stops[1:], None):
        agent = tr.load(tmp_path / "pieces").learn(until=until, quiet=True)
    assert agent.steps == whole.steps == 6 * BATCH
    assert_same_state(agent, whole)
    assert rows(tmp_path / "pieces") == rows(tmp_path / "whole")


def test_an_evaluation_that_favours_short_episodes_neither_stops_nor_is_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, *[9.0] * 4, requested=3, seconds=300, favours_short=True)
    agent = tr.PPO("CartPole-v1", **SMALL, stop_at_return=8.0)
    agent.learn(run_dir=tmp_path)
    assert agent.steps == 8 * BATCH
    assert agent.state.best_score == -np.inf
    said = "evaluation after 64 steps: time was up after 300 s with 1 of 3 episodes finished"
    assert said in capsys.readouterr().out
    assert gathered(tmp_path).status.kind == "ended"


# checkpoints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", AGENTS)
def test_a_checkpoint_every_so_many_steps(cls: type[tr.Agent], tmp_path: Path) -> None:
    settings = {**SMALL, "eval_every": 0, "num_steps": 8, "save_every": 3 * BATCH, "save_seconds": 1e9}
    if cls is tr.VPG:
        settings |= dict(dead_fraction=1.0, full_reset=False, baseline="none")
    cls("CartPole-v1", **settings).learn(run_dir=tmp_path / "all", quiet=True)
    assert [name.partition("-steps-")[2] for name in checkpoints(tmp_path / "all")] == ["96", "192", "256"]
    cls("CartPole-v1", **{**settings, "keep_checkpoints": 2}).learn(run_dir=tmp_path / "few", quiet=True)
    assert [name.partition("-steps-")[2] for name in checkpoints(tmp_path / "few")] == ["192", "256"]


# the last score ---------------------------------------------------------------------------------------------------------


WORDS = "--num-envs 4 --num-steps 8 --hidden-sizes 8 --total-timesteps 64 --device cpu --quiet"
FLAGS = WORDS.split()
THREE_PHASES: Settings = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, seed=3, device="cpu")


def test_the_last_evaluation_has_as_many_episodes_as_the_others(run_command: Any, tmp_path: Path) -> None:
    code, out, _ = run_command(
        "train", "CartPole-v1", *FLAGS, "--eval-episodes", "7", "--run-dir", str(tmp_path / "run")
    )
    assert code == 0
    assert "over 7 episodes" in out
    (tmp_path / "run" / "scores.jsonl").unlink()
    code, out, _ = run_command("resume", str(tmp_path / "run"))
    assert "over 7 episodes" in out
    code, out, _ = run_command("resume", str(tmp_path / "run"), "--total-timesteps", "128", "--eval-episodes", "2")
    assert "over 2 episodes" in out


def test_none_skips_it(run_command: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, _ = run_command("train", "CartPole-v1", *FLAGS, "--eval-episodes", "0", "--run-dir", str(run))
    assert (code, out) == (0, f"CartPole-v1: not evaluated (eval_episodes 0); run in {run}\n")
    assert not (run / "scores.jsonl").exists()
    code, out, _ = run_command("resume", str(run))
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("nothing to do")
    assert Seed(1, run).finished, "it would be resumed for ever"


def test_environments_are_closed_at_the_end_of_a_command(
    run_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[tr.envs.CartPole] = []
    monkeypatch.setattr(tr.envs.CartPole, "close", lambda env: closed.append(env))
    run = str(tmp_path / "run")
    for words in (("train", "CartPole-v1", *FLAGS, "--eval-episodes", "0", "--run-dir", run), ("eval", run)):
        closed.clear()
        assert run_command(*words)[0] == 0
        assert {env.num_envs for env in closed} >= {4, 1}


def test_sampled_and_greedy_scores_on_the_command_line(run_command: Any, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    run_command("train", "CartPole-v1", *FLAGS, "--eval-episodes", "0", "--run-dir", run)
    agent = tr.load(run)
    _, out, _ = run_command("eval", run, "--episodes", "5", "--stochastic")
    assert out == f"CartPole-v1: sampled actions, {agent.evaluate(5, deterministic=False)}\n"
    _, out, _ = run_command("eval", run, "--episodes", "5", "--stochastic", "--json")
    found = json.loads(out)
    assert (found["stochastic"], found["returns"]) == (True, agent.evaluate(5, deterministic=False).returns)


class Diary(Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_phase(self, row: dict[str, Any]) -> None:
        self.heard.append(row["phase"])

    def on_trained(self, state: Any) -> None:
        self.heard.append("over")

    def on_end(self, result: Any) -> None:
        self.heard += ["end"] if result.score is None else [result.score.metrics, "end"]


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    diary = Diary()
    monkeypatch.setattr("tightrope.training.trainer.built_in_callbacks", lambda *_: [diary])
    return diary


@pytest.fixture
def agent() -> tr.PPO:
    return tr.PPO("CartPole-v1", **THREE_PHASES)


def test_everyone_hears_it_after_the_last_phase_and_before_the_end(agent: tr.PPO, diary: Diary, tmp_path: Path) -> None:
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert outcome.score == agent.evaluate(5) == tr.load(tmp_path).evaluate(5)
    assert outcome.score is not None
    found = outcome.score.metrics
    assert diary.heard == [1, 2, 3, "over", found, "end"]
    (kept,) = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(kept)["mean"] == outcome.score.mean


def test_it_is_no_row_of_the_metrics_and_a_run_goes_on_as_without(agent: tr.PPO, tmp_path: Path) -> None:
    agent.train(run_dir=tmp_path / "scored", quiet=True, until=64, score_episodes=5)
    tr.load(tmp_path / "scored").train(quiet=True, score_episodes=5)
    tr.PPO("CartPole-v1", **THREE_PHASES).learn(run_dir=tmp_path / "plain", quiet=True)
    assert rows(tmp_path / "scored") == rows(tmp_path / "plain")


def test_learn_takes_none(agent: tr.PPO, diary: Diary, tmp_path: Path) -> None:
    agent.learn(run_dir=tmp_path, quiet=True)
    assert diary.heard == [1, 2, 3, "end"]
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_run_that_was_stopped_has_none(
    agent: tr.PPO, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diary, "on_update", lambda state: state.phase == 1 and signal.raise_signal(signal.SIGTERM))
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert (outcome.interrupted, outcome.score, outcome.unscored) == (signal.SIGTERM, None, False)
    assert diary.heard[-1] == "end"
    assert "over" not in diary.heard


def test_nor_has_one_that_could_not_be_saved(
    agent: tr.PPO, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "check_is_there", full)
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert (outcome.unsaved, outcome.score) == ("No space left on device", None)
    assert "over" not in diary.heard


def test_a_disk_that_does_not_take_it_stops_nobody(
    agent: tr.PPO, diary: Diary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "scores.jsonl").mkdir(parents=True)
    assert agent.train(run_dir=tmp_path / "run", quiet=True, score_episodes=5).score is not None
    assert len(diary.heard) == 6
    assert "warning: the score is not in the report: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_it_off_and_everyone_hears_of_the_end(
    number: signal.Signals, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Any
) -> None:
    def pressed(*_: object, **__: object) -> None:
        signal.raise_signal(number)
        pytest.fail("it went on")

    monkeypatch.setattr("tightrope.agent.evaluate_policy", pressed)
    run = tmp_path / "run"
    code, out, _ = run_command("train", "CartPole-v1", *FLAGS, "--run-dir", run)
    assert (code, out) == (128 + number, f"stopped during the last evaluation; the trained agent is in {run}\n")
    assert diary.heard == [1, 2, "over", "end"]
    assert tr.load(run).steps == 64


@pytest.mark.parametrize(
    ("greedy", "in_training", "words"),
    [
        ([-67.0, -65.0, -69.0, -67.0] * 3, 215.0, "sampled actions returned 215.00 .*: taking the likeliest is worse"),
        ([500.0] * 12, 300.0, "returned 300.00 at the end of training: taking the likeliest is better"),
        ([0.0] * 12, 0.4, "likeliest is worse"),
        ([500.0] * 12, 480.0, ""),  # close
        ([0.0, 1.0, 1.0, 0.0] * 3, 0.1, ""),  # within what few episodes can tell
        ([0.0], 0.4, ""),  # one episode tells nothing
        ([0.0] * 12, 0.0, ""),
        ([500.0] * 12, None, ""),
    ],
)
def test_both_scores_are_told_where_they_differ_much(
    greedy: list[float], in_training: float | None, words: str, tmp_path: Path
) -> None:
    said = compare_with_sampled(tr.Evaluation(greedy, [1] * len(greedy)), in_training)
    assert (said == "") == (words == "")
    assert said == "" or re.search(words, said)


def test_the_return_of_training_is_that_of_whole_episodes_of_the_scored_environment(tmp_path: Path) -> None:
    small = dict(num_envs=4, num_steps=64, hidden_sizes=(8,), total_timesteps=4 * 256, device="cpu")
    agent = tr.PPO("CartPole-v1", **small, max_episode_steps=5, num_minibatches=4)
    outcome = agent.train(run_dir=tmp_path, quiet=True)
    assert outcome.last_return == 5.0
    assert tr.PPO("CartPole-v1", **small, max_episode_steps=200).train(quiet=True).last_return is None, "too few"
    assert tr.VPG("CartPole-v1", **small, max_episode_steps=5).train(quiet=True).last_return is None, "cut"
    other = tr.PPO("CartPole-v1", **small, max_episode_steps=5, train_env="EasyCart-v0")
    assert other.train(quiet=True).last_return is None, "of another environment"


def test_a_score_that_time_cut_off_is_not_in_the_report(tmp_path: Path) -> None:
    whole, cut = Evaluation([1.0, 2.0], [5, 5]), Evaluation([9.0], [3], unfinished=1, requested=100)
    assert (whole.representative, cut.representative) == (True, False)
    add_score(tmp_path, 10, whole)
    add_score(tmp_path, 20, cut)
    assert [(score.step, score.mean) for score in scores(tmp_path)] == [(10, 1.5)]
    columns = Columns(
        [{"step": 10, "eval/episodic_return": 1.0}, {"step": 20, "eval/episodic_return": 9.0, "eval/cut_off": 1.0}]
    )
    record = RunRecord(RunInfo("x ppo", {}, [], 0, 20), columns, RunStatus("finished"))
    assert [score.step for score in record.scores] == [10]


def test_sampled_returns_are_those_of_the_last_tenth_of_training() -> None:
    def logged(*rows: tuple[int, float, float]) -> float | None:
        log = Log(tr.PPO("CartPole-v1", num_envs=2, num_steps=8, device="cpu").state, CallbackList([]), None, 0)
        for step, episodes, mean in rows:
            row = {"charts/episodes": episodes, "charts/episodic_return": mean}
            log.unread.append(({"step": step}, SimpleNamespace(row=lambda row=row: row), lambda row: {}))
        log.report(everything=True)
        return log.last_return

    assert logged(*((step, 3.0, 20.0 if step < 85_000 else 500.0) for step in range(1000, 101_000, 1000))) == 500.0
    assert logged((1000, 19.0, 1.0)) is None


# metrics that are made of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algo", "settings"), [
    ("ppo", {"ent_coef": "linear(0.1, 0)", "norm_reward": True}), ("vpg", {"baseline": "critic", "ent_coef": 0.1}),
    ("vpg", {}),
])  # fmt: skip
def test_the_mean_value_and_the_total_loss_are_those_of_the_phase(algo: str, settings: dict[str, Any]) -> None:
    """The value against the rollout itself, the loss against equation 9 with the weights that the phase had."""
    sizes = {"num_envs": 4, "num_steps": 16, "total_timesteps": 640, "device": "cpu"}
    agent = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]("CartPole-v1", **sizes, **settings)
    for i, row in enumerate(agent.phases()):
        state, config = agent.state, agent.config.algorithm
        alive = state.rollout.valid
        if algo == "vpg":
            done = state.rollout.done.float()
            alive = (done.cumsum(0) - done == 0) & (torch.arange(16)[:, None] < row["charts/lifespan_max"])
        if algo == "ppo" or config.has_critic:
            assert row["losses/value_mean"] == pytest.approx(float(state.rollout.value[alive].mean()), rel=1e-4)
        else:
            assert "losses/value_mean" not in row
        weight = 0.1 if algo == "vpg" and settings else row.get("charts/ent_coef", 0.0)
        gain = row["losses/objective"] if algo == "vpg" else -row["losses/policy_loss"]
        total = -(gain + weight * row["losses/entropy"]) + config.vf_coef * row["losses/value_loss"]
        assert row["losses/total_loss"] == pytest.approx(total, rel=1e-5)
        if i == 4:
            break
