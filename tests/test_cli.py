"""The command line: what it does, what it prints, and the one line it answers a mistake with."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_helpers import start_command

import tightrope as tr
from tightrope.cli import COMMANDS, main
from tightrope.tools.probe import Probe, ProbeResult, probes_for
from tightrope.training.config import Config, setting_types
from tightrope.training.presets import PRESETS, preset

TINY = ["--num-envs", "4", "--num-steps", "8", "--num-minibatches", "2", "--hidden-sizes", "8", "--device", "cpu"]
BUDGET = ["--total-timesteps", "64"]


Tightrope = Callable[..., Any]  # the fixture


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every command runs in a directory of its own, and a module that was there is forgotten."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here"
    sys.modules.pop("lines", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that other commands may look at."""
    path = tmp_path_factory.mktemp("trained") / "run"
    settings: dict[str, Any] = dict(num_envs=4, num_steps=8, total_timesteps=64, hidden_sizes=(8,), seed=2)
    tr.PPO("CartPole-v1", **settings).learn(run_dir=path, quiet=True)
    return str(path)


def settings_of_run(path: str = "run") -> dict[str, Any]:
    return yaml.safe_load((Path(path) / "config.yaml").read_text())


# help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_without_a_command_the_commands_are_listed(tightrope: Tightrope, args: list[str]) -> None:
    done = tightrope(*args)
    assert (done.code, done.err) == (0, "")
    for command in COMMANDS:
        assert re.search(rf"^  {command}\b.*tightrope {command}", done.out, re.MULTILINE), "no example"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself_with_an_example(tightrope: Tightrope, command: str) -> None:
    done = tightrope(command, "-h")
    assert done == tightrope(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"usage: tightrope {command}" in done.out
    assert re.search(rf"Example: tightrope {command}", done.out)


@pytest.mark.parametrize(("algo", "other"), [("ppo", "baseline"), ("vpg", "clip-coef")])
def test_help_of_train_has_every_setting_and_what_it_means(tightrope: Tightrope, algo: str, other: str) -> None:
    text = tightrope("train", "--algo", algo, "--help").out
    for setting in setting_types(algo):
        assert re.search(rf"--{setting.replace('_', '-')}\b", text)
    for option in ("--run-dir", "--config", "--quiet", "--algo"):
        assert option in text
    assert f"--{other}" not in text
    assert "Weight of the entropy bonus," in text


def test_help_for_an_environment_shows_its_preset(tightrope: Tightrope) -> None:
    preset = PRESETS["CartPole-v1", "ppo"]
    text = " ".join(tightrope("train", "CartPole-v1", "--help").out.split())
    assert f"--num-envs INT Number of environments that run in parallel. (default: {preset['num_envs']})" in text
    assert "such as 'linear(0.01, 0)'. (default: 0.0)" in text
    assert (
        "--anneal-lr, --no-anneal-lr Decay the learning rate linearly over the run, if it is a number. (default: on)"
        in text
    )
    assert "--accelerate {auto,eager,compile,graph,max} How" in text
    assert "--hidden-sizes INT ..." in text
    assert "--env-kwargs NAME=VALUE ..." in text
    assert "[OPTIONS] Train" in text


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal(tightrope: Tightrope, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = tightrope("sweep", "--help").out.splitlines()
    flags = max(len(row) for row in rows if row.startswith("  --"))
    assert max(map(len, rows)) <= max(min(columns, 100), flags)


def test_the_version(tightrope: Tightrope) -> None:
    assert tightrope("--version") == (0, f"tightrope {tr.__version__}\n", "")


# train ----------------------------------------------------------------------------------------------------------------


def test_training_from_beginning_to_end(tightrope: Tightrope, empty_directory: Path) -> None:
    done = tightrope("train", "CartPole-v1", *TINY, *BUDGET, "--seed", "5")
    assert done.code == 0
    plan, *_, last = done.out.splitlines()
    assert plan.startswith("plan: 2 phases x 32 steps = 64 steps")
    end = re.fullmatch(r"CartPole-v1: greedy return mean ([\d.]+), std .* over 100 episodes .*; run in (\S+)", last)
    assert end
    run_dir = Path(end[2])
    assert re.fullmatch(r"runs/CartPole-v1__ppo__5__\d{8}-\d{6}", run_dir.as_posix())
    written = {"config.yaml", "metrics.jsonl", "checkpoints", "about.json", "scores.jsonl", "report.html", ".lock"}
    assert {p.name for p in run_dir.iterdir()} == written
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 2
    assert [p.name for p in empty_directory.iterdir()] == ["runs"]
    assert f"{tr.load(run_dir).evaluate(100).mean:.2f}" == end[1]


def test_progress_is_plain_lines_where_there_is_no_terminal(tightrope: Tightrope) -> None:
    done = tightrope("train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "run")
    lines, details = done.err.splitlines()[::2], done.err.splitlines()[1::2]
    assert [re.match(r"CartPole-v1 ppo +(\d+%)", line)[1] for line in lines] == ["50%", "100%"]  # type: ignore[index]
    assert "steps/s" in lines[-1]
    assert "KL" in lines[-1]
    assert all(re.match(r"    loss .* policy .* entropy .* grad norm .* lr ", line) for line in details)
    assert len(details) == 2
    assert "\x1b" not in done.out + done.err


def test_quiet_prints_the_result_and_nothing_else(tightrope: Tightrope) -> None:
    done = tightrope("train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "run", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("CartPole-v1: greedy return mean")
    assert done.out.endswith("run in run\n")
    assert done.out.count("\n") == 1


def test_training_with_vpg(tightrope: Tightrope) -> None:
    done = tightrope("train", "CartPole-v1", "--algo", "vpg", "--num-envs", "4", "--num-steps", "16",
                     "--total-timesteps", "128", "--run-dir", "run", "--quiet",
                     "--no-full-reset", "--baseline", "none")  # fmt: skip
    assert done.code == 0
    flat = settings_of_run()
    assert (flat["algo"], flat["full_reset"], flat["hidden_sizes"]) == ("vpg", False, [120, 84])
    assert isinstance(tr.load("run"), tr.VPG)


def trained_settings(monkeypatch: pytest.MonkeyPatch, *args: str) -> dict[str, Any]:
    """The settings that `tightrope train ...` would train with."""
    seen: list[Config] = []

    def note(config: Any, *others: Any) -> None:
        seen.append(config)
        raise tr.UsageError("that is all the test needs")

    with monkeypatch.context() as patch:
        patch.setattr("tightrope.agent.build", note)
        with pytest.raises(SystemExit):
            main(["train", *args])
    return seen[0].to_flat_dict() if seen else {}


@pytest.mark.parametrize(
    ("args", "setting", "value"),
    [
        ("CartPole-v1 --total-timesteps 1e4", "total_timesteps", 10_000),
        ("CartPole-v1 --total-timesteps=1e4", "total_timesteps", 10_000),
        ("CartPole-v1 --total-timesteps 200_000", "total_timesteps", 200_000),
        ("CartPole-v1 --total_timesteps 20000", "total_timesteps", 20_000),
        ("--total-timesteps 20000 CartPole-v1", "total_timesteps", 20_000),
        ("--total-timesteps=20000 --seed=4 CartPole-v1", "seed", 4),
        ("--no-anneal-lr CartPole-v1", "anneal_lr", False),
        ("CartPole-v1 --anneal-lr", "anneal_lr", True),
        ("CartPole-v1 --learning-rate 1e-3", "learning_rate", 1e-3),
        ("CartPole-v1 --learning-rate=.5", "learning_rate", 0.5),
        ("CartPole-v1 --max-grad-norm None", "max_grad_norm", None),
        ("CartPole-v1 --max-grad-norm 1e-1", "max_grad_norm", 0.1),
        ("CartPole-v1 --target-kl=0.02", "target_kl", 0.02),
        ("CartPole-v1 --max-episode-steps 1e2", "max_episode_steps", 100),
        ("CartPole-v1 --hidden-sizes 32 16 --seed 3", "hidden_sizes", [32, 16]),
        ("CartPole-v1 --hidden-sizes 32", "hidden_sizes", [32]),
        ("CartPole-v1 --activation relu", "activation", "relu"),
        ("CartPole-v1 --train-env EasyCart-v0", "train_env", "EasyCart-v0"),
        ("--train-env EasyCart-v0 CartPole-v1", "train_env", "EasyCart-v0"),
        ("--algo vpg CartPole-v1", "algo", "vpg"),
        ("--algo=vpg CartPole-v1", "algo", "vpg"),
        ("CartPole-v1 --seed 9223372036854775807", "seed", 2**63 - 1),
    ],
)
def test_flags_may_be_written_and_placed_as_people_do(
    args: str, setting: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = trained_settings(monkeypatch, *args.split())
    assert flat.get(setting, "refused") == value
    assert flat["env"] == "CartPole-v1"


def test_flags_win_over_the_file_and_the_file_over_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yaml").write_text("num_envs: 16\ngamma: 0.5\nlearning_rate: 1e-3\nhidden_sizes: [5]\n")
    preset = PRESETS["CartPole-v1", "ppo"]
    default = tr.algorithms.PPOConfig()
    flags = ["--gamma", str(default.gamma)]  # explicit, though it equals the default
    flat = trained_settings(monkeypatch, "CartPole-v1", "--config", "my.yaml", *flags)
    found = [flat[name] for name in ("gamma", "num_envs", "learning_rate", "hidden_sizes")]
    assert found == [default.gamma, 16, 1e-3, [5]]
    assert flat["num_steps"] == preset["num_steps"]


@pytest.mark.parametrize(
    ("file", "flags"),
    [
        ("total_timesteps: 3", "--total-timesteps 1e5"),
        ("num_envs: 100000000", "--num-envs 8"),
        ("num_minibatches: 3", "--num-envs 9"),
        ("seed: 1", "--num-envs 3 --num-steps 5 --num-minibatches 15"),  # the preset's are replaced
        ("algo: vpg\nrollout_uses: 4", "--use-importance-weights"),
    ],
)
def test_a_file_and_flags_are_judged_together(file: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yaml").write_text(file)
    assert trained_settings(monkeypatch, "CartPole-v1", "--config=my.yaml", *flags.split()), "refused"


def test_a_file_can_name_the_environment_and_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("my.yaml").write_text("env: CartPole-v1\nalgo: vpg\nseed: 8\n")
    flat = trained_settings(monkeypatch, "--config", "my.yaml")
    assert (flat["env"], flat["algo"], flat["seed"]) == ("CartPole-v1", "vpg", 8)
    flat = trained_settings(monkeypatch, "EasyCart-v0", "--config", "my.yaml", "--algo", "ppo")
    assert (flat["env"], flat["algo"], flat["seed"]) == ("EasyCart-v0", "ppo", 8)
    flat = trained_settings(monkeypatch, "--config", "my.yaml", "--train-env", "EasyCart-v0")
    assert (flat.get("env"), flat.get("train_env")) == ("CartPole-v1", "EasyCart-v0")


def test_the_config_of_a_run_makes_the_same_run_again(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = trained_settings(monkeypatch, "--config", str(Path(trained) / "config.yaml"))
    assert flat == settings_of_run(trained)


def test_the_preset_is_that_of_the_environment_wherever_its_name_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    for env, gamma in (("CartPole-v1", 0.11), ("EasyCart-v0", 0.22)):
        monkeypatch.setitem(PRESETS, (env, "ppo"), {"gamma": gamma})
    for args in (["CartPole-v1", "--train-env", "EasyCart-v0"], ["--train-env", "EasyCart-v0", "CartPole-v1"]):
        assert trained_settings(monkeypatch, *args)["gamma"] == 0.11


def test_ctrl_c_after_training_is_not_a_traceback(tightrope: Tightrope, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tightrope.agent.evaluate_policy", press)
    try:
        done = tightrope("train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "run")
    except KeyboardInterrupt:
        pytest.fail("the interrupt left the command line as an exception")
    assert done.code == 130
    assert tr.load("run").steps == 64


# eval -----------------------------------------------------------------------------------------------------------------


def test_a_score_in_words(tightrope: Tightrope, trained: str) -> None:
    done = tightrope("eval", trained, "--episodes", "7")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"CartPole-v1: {tr.load(trained).evaluate(7)}\n"
    for word in ("mean", "std", "min", "max", "7 episodes"):
        assert word in done.out


def test_a_score_as_json(tightrope: Tightrope, trained: str) -> None:
    done = tightrope("eval", trained, "--episodes", "7", "--json")
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    result, expected = json.loads(done.out), tr.load(trained).evaluate(7)
    assert (result["mean"], result["std"], result["episodes"]) == (expected.mean, expected.std, 7)
    assert (result["returns"], result["lengths"]) == (expected.returns, expected.lengths)


def test_a_hundred_episodes_unless_told_otherwise(tightrope: Tightrope, trained: str) -> None:
    first, again, other = (json.loads(tightrope("eval", trained, "--json", *seed).out)
                           for seed in ([], [], ["--seed", "9"]))  # fmt: skip
    assert first["episodes"] == 100
    assert first == again
    assert first["returns"] != other["returns"]


@pytest.mark.parametrize("order", ["after", "before"])
def test_scores_on_several_environments(tightrope: Tightrope, trained: str, order: str) -> None:
    flags = ["--env", "EasyCart-v0", "CartPole-v1", "--json", "--episodes=3"]
    done = tightrope("eval", *([trained, *flags] if order == "after" else [*flags, trained]))
    easy, plain = (json.loads(line) for line in done.out.splitlines())
    assert (easy["env"], plain["env"]) == ("EasyCart-v0", "CartPole-v1")
    assert easy["mean"] < plain["mean"]


def test_a_flag_given_again_adds_an_environment(tightrope: Tightrope, trained: str) -> None:
    done = tightrope("eval", trained, "--env", "CartPole-v1", "--env", "EasyCart-v0", "--episodes", "2")
    assert [line.partition(":")[0] for line in done.out.splitlines()] == ["CartPole-v1", "EasyCart-v0"]


def test_the_best_checkpoint_can_be_scored(tightrope: Tightrope) -> None:
    tightrope("train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "run", "--eval-every", "32", "--eval-episodes", "2")
    assert tightrope("eval", "run", "--checkpoint", "best", "--episodes", "2").code == 0


# envs and probe -------------------------------------------------------------------------------------------------------


def test_every_environment_is_listed(tightrope: Tightrope) -> None:
    done = tightrope("envs")
    assert (done.code, done.err) == (0, "")
    native, elsewhere, _ = (part.splitlines() for part in done.out.split("\n\n"))
    assert [line.split()[0] for line in native[1:]] == list(tr.envs.ENVS)
    assert re.search(r"CartPole-v1 +4 .*\b2\b.* 500 +500 +1 s", done.out)
    assert re.search(r"Pendulum-v1 +3 .*\b1 in \[-2, 2\] +200", done.out)
    listed = [line.split()[0] for line in elsewhere[1:]]
    assert {"LunarLander-v3", "HalfCheetah-v5", "Humanoid-v5", "ALE/Pong-v5", "brax/ant"} <= set(listed)
    assert all(preset(env, "ppo") for env in listed)
    assert re.search(r"HalfCheetah-v5 .*tightrope\[mujoco\]", done.out)


OWN_ENV = """
import gymnasium, numpy, torch

class Line(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-0.1, 0.1), 0
        return self.seen(), {}

    def seen(self):
        return numpy.array([self.x], numpy.float32)

    def step(self, action):
        self.x, self.t = self.x + (0.1 if action else -0.1), self.t + 1
        return self.seen(), self.x, abs(self.x) > 0.9, self.t >= 20, {}

class Worse(Line):
    def seen(self):
        return numpy.array([self.x])

class Fails(Line):
    def step(self, action):
        if self.t == 7:
            raise ValueError("out of luck")
        return super().step(action)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 4)

    def forward(self, obs):
        return self.layer(obs).tanh()
"""


def test_an_environment_of_ones_own_is_trained_and_scored_by_its_path(
    tightrope: Tightrope, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("lines.py").write_text(OWN_ENV)
    done = tightrope("train", "lines:Line", *TINY, *BUDGET, "--run-dir", "run", "--network", "lines:Net")
    assert done.code == 0
    assert "lines:Line: greedy return" in done.out
    sys.modules.pop("lines")
    alone = tightrope("eval", "run", "--episodes", "2")
    assert alone.code == 2
    assert "--env lines:Line" in alone.err
    sys.modules.pop("lines", None)
    with monkeypatch.context() as context:
        context.setattr("tightrope.training.user_objects.already_here", lambda path: None)
        assert "--network lines:Net" in tightrope("eval", "run", "--episodes", "2", "--env", "lines:Line").err
    done = tightrope("eval", "run", "--episodes", "2", "--env", "lines:Line", "--network", "lines:Net")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("lines:Line: mean")
    for missing in ("lines:Lin", "nowhere:Line"):
        done = tightrope("train", missing, "--run-dir", "other")
        assert done.code == 2
        assert missing in done.err
        assert not Path("other").exists()


def test_an_environment_that_fails_is_named_and_what_was_learned_is_kept(tightrope: Tightrope) -> None:
    Path("lines.py").write_text(OWN_ENV)
    done = tightrope("train", "lines:Fails", *TINY, *BUDGET, "--run-dir", "run")
    assert done.code == 1
    last = done.err.splitlines()[-1]
    assert re.search(
        r"env 'lines:Fails' number 0 failed on action [01]: ValueError: out of luck; the state after", last
    )
    assert 'raise ValueError("out of luck")' in done.err, "where to fix it"
    assert Path("run/checkpoints/latest").is_file()


def test_check_says_what_is_wrong(tightrope: Tightrope) -> None:
    Path("lines.py").write_text(OWN_ENV)
    good = tightrope("check", "lines:Line", "--steps", "200")
    assert (good.code, good.err) == (0, "")
    assert "0 errors" in good.out
    bad = tightrope("check", "lines:Worse", "--steps", "200")
    assert bad.code == 1
    assert "dtype" in bad.out
    assert "fix:" in bad.out
    for words in (("check",), ("check", "Foo-v3"), ("check", "lines:Line", "--steps", "0"), ("check", "lines:None")):
        done = tightrope(*words)
        assert done.code == 2
        assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
@pytest.mark.parametrize("broken", [(), ("Probe4-v0", "Probe5-v0")])
def test_probes_say_what_a_failure_means(
    tightrope: Tightrope, monkeypatch: pytest.MonkeyPatch, algo: str, broken: tuple[str, ...]
) -> None:
    def run_probe(probe: Probe, algo: str, seed: int) -> ProbeResult:
        good = [[0.0, 1.0] if action else [1.0, 0.0] for action in probe.actions or probe.observations]
        bad = [[0.5, 0.5] for _ in good]
        values = list(probe.values) if algo == "ppo" else None
        return ProbeResult(probe, values, bad if probe.env in broken else good)

    monkeypatch.setattr("tightrope.cli.tools.run_probe", run_probe)
    done = tightrope("probe", "--algo", algo)
    probes = probes_for(algo)
    assert (done.code, done.err) == (1 if broken else 0, "")
    assert re.findall(r"^(?:ok|FAIL) +(\S+)", done.out, re.MULTILINE) == [
        "equations",
        "one",
        *(probe.env for probe in probes),
    ]
    assert re.findall(r"^FAIL +(\S+)", done.out, re.MULTILINE) == list(broken)
    meanings = [probe.env for probe in probes if probe.meaning in done.out]
    assert meanings == list(broken[:1]), "the first failure is the one to look at"
    assert ("probabilities" in done.out) is False
    assert "probabilities" in tightrope("probe", "--algo", algo, "--show-probs").out


# mistakes -------------------------------------------------------------------------------------------------------------


BAD = [
    # arguments, what the line must contain
    ("tarin", "'tarin' train"),
    ("--total-timesteps 5", "'--total-timesteps'"),
    ("train", "env CartPole-v1"),
    ("train CartPoel-v1", "'CartPoel-v1' CartPole-v1"),
    ("train CartPole-gpu", "'CartPole-gpu' here called CartPole-v1 cuda"),
    ("train --num-envs 8 CartPole-gpu", "'CartPole-gpu' here called CartPole-v1"),
    ("train MlpPolicy", "'MlpPolicy' env id"),
    ("train CartPole-v1 Pendulum-v1", "'Pendulum-v1'"),
    ("train CartPole-v1 --num-step 5", "num_step num_steps"),
    ("train CartPole-v1 --n-steps 5", "'n_steps' here called num_steps"),
    ("train CartPole-v1 --lr=1e-3", "'lr' here called learning_rate"),
    ("train --env-id CartPole-v1", "'env_id' env"),
    ("train --mode probe", "'mode' env's id"),
    ("train CartPole-v1 --baseline none", "'baseline' vpg"),
    ("train CartPole-v1 --algo vpg --clip-coef 1", "'clip_coef' ppo"),
    ("train CartPole-v1 --algo dqn", "'dqn' ppo, vpg"),
    ("train CartPole-v1 --num-minibatches 7", "num_minibatches 7 8"),
    ("train CartPole-v1 --total-timesteps 5", "total_timesteps 5 num_envs num_steps"),
    ("train CartPole-v1 --total-timesteps many", "total_timesteps 'many' number"),
    ("train CartPole-v1 --total-timesteps", "total timesteps value"),
    ("train CartPole-v1 --max-grad-norm x", "max grad norm 'x' number"),
    ("train CartPole-v1 --threads 1.5", "threads '1.5' whole number"),
    ("train CartPole-v1 --hidden-sizes a", "hidden sizes 'a' whole number"),
    ("train CartPole-v1 --hidden-sizes", "hidden_sizes value"),
    ("train CartPole-v1 --activation step", "activation 'step' tanh"),
    ("train CartPole-v1 --device mps", "device 'mps' auto"),
    ("train CartPole-v1 --train-env Pendulum-v1", "'Pendulum-v1' 'CartPole-v1' spaces"),
    ("train CartPole-v1 --train-env EsyCart-v0", "'EsyCart-v0' EasyCart-v0"),
    ("train CartPole-v1 --config nowhere.yaml", "nowhere.yaml"),
    ("train CartPole-v1 --config ../broken.yaml", "broken.yaml line 2"),
    ("train CartPole-v1 --config ../list.yaml", "list.yaml setting: value"),
    ("train CartPole-v1 --config ../misspelt.yaml", "'gama' gamma"),
    ("train CartPole-v1 --run-dir ../taken", "run_dir taken already"),
    ("train CartPole-v1 --run-dir ../list.yaml", "run_dir list.yaml file"),
    ("train CartPole-v1 --run-dir ../list.yaml/below", "run_dir list.yaml"),
    ("eval", "run"),
    ("eval nowhere", "nowhere not a run"),
    ("eval ..", "not a run config.yaml"),
    ("eval ../list.yaml", "list.yaml not a run"),
    ("eval ../taken --episodes 0", "episodes 0 from 1"),
    ("eval ../taken --episodes x", "episodes 'x'"),
    ("eval ../taken --env Pendulum-v1", "'Pendulum-v1' 'CartPole-v1' spaces"),
    ("eval ../taken --env EsyCart-v0", "'EsyCart-v0' EasyCart-v0"),
    ("eval ../taken --jsn", "'--jsn' json"),
    ("eval ../taken --checkpoint best", "'best' eval_every"),
    ("eval ../taken --seed 99999999999999999999", "seed 99999999999999999999"),
    ("evaluate ../taken", "unknown command 'evaluate' here it is called eval"),
    ("eval ../taken --n-eval-episodes 3", "'--n-eval-episodes' here it is called --episodes"),
    ("train CartPole-v1 --device cuda:7", "device 'cuda:7'"),
    ("train CartPole-v1 --no-cuda", "'no_cuda' here it is called device (device cpu)"),
    ("train CartPole-v1 --save-model", "'save_model' run_dir"),
    ("train FrozenLake-v1 --env-kwargs slippery=1", "env_kwargs 'slippery' FrozenLake-v1 map_name is_slippery"),
    ("train FrozenLake-v1 --wrapper clip", "wrappers 'clip' module:function"),
    ("train CartPole-v1 --seeds 99999999999999999999", "seed 99999999999999999999"),
    ("check CartPole-v1 --seed -1", "seed -1"),
    ("envs CartPole-v1", "'CartPole-v1'"),
    ("probe --algo dqn", "'dqn' ppo vpg"),
]


@pytest.mark.parametrize(("args", "parts"), BAD, ids=[args for args, _ in BAD])
def test_a_mistake_gets_one_line_and_leaves_nothing_behind(
    tightrope: Tightrope, empty_directory: Path, trained: str, args: str, parts: str
) -> None:
    (empty_directory.parent / "broken.yaml").write_text("gamma: 0.9\nseed: [1, 2")
    (empty_directory.parent / "list.yaml").write_text("- gamma\n")
    (empty_directory.parent / "misspelt.yaml").write_text("gama: 0.9\n")
    (empty_directory.parent / "taken").symlink_to(trained)
    before = sorted(empty_directory.parent.rglob("*"))
    done = tightrope(*args.split())
    assert done.code == 2
    assert done.err.startswith("tightrope: ")
    assert done.err.count("\n") == 1
    assert done.err.endswith("\n")
    assert done.out == ""
    for part in parts.split():
        assert part in done.err
    for ugly in ("<class", "Traceback", "Missing argument Missing", "{None}", "STR ", "PATH ", "---"):
        assert ugly not in done.err
    assert len(done.err) < 250
    assert sorted(empty_directory.parent.rglob("*")) == before


# as a process ---------------------------------------------------------------------------------------------------------


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    process = start_command("train", "CartPole-v1", "--num-minibatches", "7", cwd=tmp_path / "here")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert re.fullmatch(r"tightrope: num_minibatches 7 .*\n", err)
    assert not list((tmp_path / "here").iterdir())


def test_training_in_a_process_of_its_own(tmp_path: Path) -> None:
    process = start_command("train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "run", cwd=tmp_path / "here")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.splitlines()[-1].endswith("run in run")
    assert len(err.splitlines()) == 4  # two lines of progress for each phase, and not a warning more


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -u -m tightrope envs | true"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(tr.__file__).parents[1])}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


# record --------------------------------------------------------------------------------------------------------------


def test_record_films_a_run(tightrope: Tightrope, trained: str) -> None:
    done = tightrope("record", trained, "--out", "film.mp4", "--episodes", "2", "--grid", "--seed", "3")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"film\.mp4: \d+ frames, return [\d.]+, [\d.]+\n", done.out)
    assert Path("film.mp4").stat().st_size > 1000
    again = tightrope("record", trained, "--out", "film.mp4", "--checkpoint", "last", "--every", "3", "--stochastic")
    assert again.code == 0


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--out", "a.gif"], "path a.gif is not a video: give a name that ends in .mp4"),
        ([], "record needs a run and a file, such as `tightrope record runs/demo --out pole.mp4`"),
        (["--out", "a.mp4", "--episodes", "0"], "episodes 0 is invalid: give a whole number from 1 to 1,000"),
        (["--out", "a.mp4", "--fps", "many"], "fps 'many' is not a whole number: give one"),
        (["--out", "a.mp4", "--env", "CartPole-v1"], "env 'CartPole-v1' is not module:Class"),
        (["--out", "a.mp4", "--checkpoint", "worst"], "worst"),
    ],
)
def test_record_answers_a_mistake_with_one_line(
    tightrope: Tightrope, trained: str, args: list[str], complaint: str
) -> None:
    done = tightrope("record", trained, *args)
    assert done.code == 2
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert list(Path().iterdir()) == []
    assert tightrope("record", "nowhere", "--out", "a.mp4").code == 2


def test_train_takes_the_phases_between_videos(tightrope: Tightrope) -> None:
    train = ["train", "CartPole-v1", *TINY, *BUDGET, "--run-dir", "r", "--video-every", "1", "--quiet"]
    assert tightrope(*train).code == 0
    assert sorted(path.name for path in Path("r/videos").glob("*.mp4")) == ["phase0001.mp4", "phase0002.mp4"]
    assert "video_every -1 is too small" in tightrope("train", "CartPole-v1", "--video-every", "-1").err
