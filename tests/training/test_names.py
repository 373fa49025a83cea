"""The names that people bring: each is known, and what it is said to be called here really exists."""

import copy
import dataclasses
import re
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from run_helpers import refusal

import tightrope as tr
from tightrope.cli import COMMANDS
from tightrope.cli.tools import ProbeOptions
from tightrope.cli.trained import EvalOptions
from tightrope.cli.training import TrainOptions
from tightrope.training.build import check_env
from tightrope.training.config import configure, setting_types
from tightrope.training.names import ARGUMENTS, ENVS, FUNCTIONS, MEMBERS, SETTINGS, here_called
from tightrope.training.presets import preset

OURS = set(setting_types("ppo")) | set(setting_types("vpg"))
OPTIONS = OURS | {f.name for options in (TrainOptions, EvalOptions, ProbeOptions) for f in dataclasses.fields(options)}
OPTIONS |= {"save_every", "stop_at_return"}
TABLES = {"settings": SETTINGS, "envs": ENVS, "functions": FUNCTIONS, "members": MEMBERS, "arguments": ARGUMENTS}
AGENT = tr.PPO("CartPole-v1", num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=64, device="cpu")
EVERY_ENTRY = [pytest.param(table, name, id=name) for table in TABLES for name in TABLES[table]]

# section 5 of the description of the system, in its order
BROUGHT = re.findall(
    r"\S+",
    """
n_steps batch_size n_epochs clip_range MlpPolicy env-id num-steps update-epochs VPGArgs PPOArgs VPGTrainer PPOTrainer
VPGAgent PPOAgent Rollout RolloutTensors ReplayMemory get_minibatches compute_returns normalize_returns
compute_logprobs_and_entropy compute_importance_weights compute_reinforce_loss compute_gae
calc_clipped_surrogate_objective calc_value_function_loss calc_entropy_bonus PPOScheduler make_optimizer rollout_phase
learning_phase ENV_DICT mode classic-control atari mujoco pendulum probe CartPole-gpu num_steps_per_rollout total_phases
batches_per_learning_phase lr rollout_use_count num_batches_per_rollout use_iw use_lr_decay lr_end lr_frac
frac_dead_rollout early_stop full_reset normalize_returns show_probs live_viz compile video_log_freq use_wandb
wandb_project_name record_grid_video render_rollout_grid_html rollout_grid_frames get_episode_data_from_infos
evaluate_actions train_one_trajectory rollout_episode num_updates_per_epoch max_trajectory_len clip_eps discount
""",
)


@pytest.mark.parametrize("name", dict.fromkeys(BROUGHT))
def test_every_name_people_bring_is_known(name: str) -> None:
    setting = name.replace("-", "_")
    assert setting in OURS or setting in SETTINGS or name in ENVS or name in FUNCTIONS


@pytest.mark.parametrize(("table", "name"), EVERY_ENTRY)
def test_whatever_a_hint_names_exists(table: str, name: str) -> None:
    hint = here_called(name, TABLES[table])
    assert hint is not None
    assert not re.match(r"here it is (?!called )|here it is called (:|nothing|give|no )|:|nothing", hint), "no sentence"
    for dotted in re.findall(r"tightrope(?:\.\w+)+", hint):
        assert resolve(dotted) is not None
    for env_id in re.findall(r"\w+-v\d", hint):
        assert preset(env_id, "ppo") or env_id.startswith("Pong")
    for command in re.findall(r"`tightrope (\w+)", hint):
        assert command in COMMANDS
    for flag in re.findall(r"--([a-z-]+)", hint):
        assert flag.replace("-", "_") in OPTIONS
    for method in re.findall(r"\benv\.(\w+)\(", hint):
        assert callable(getattr(tr.envs.TensorEnv, method))
    for method in re.findall(r"\bagent\.(\w+)\(", hint):
        assert callable(getattr(tr.Agent, method))
    for path in re.findall(r"\bagent\.([\w.]+)", hint):
        assert reduce(getattr, path.split("."), AGENT) is not None
    for function in re.findall(r"\btr\.(\w+)\(", hint):
        assert callable(getattr(tr, function))
    for page in re.findall(r"\b(docs/\S+\.md)", hint):
        assert (Path(tr.__file__).parents[1] / page).exists()
    if table == "settings":
        for setting in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", hint):
            assert setting in OPTIONS
        for setting in re.findall(r"here it is called (\w+)", hint):
            assert setting in OPTIONS


def resolve(dotted: str) -> Any:
    """The object behind a dotted name, importing as much of it as is a module."""
    names = dotted.split(".")
    for split in range(len(names), 0, -1):
        try:
            module = import_module(".".join(names[:split]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, names[split:], module)
    raise ModuleNotFoundError(dotted)


def test_no_name_of_ours_is_called_foreign() -> None:
    assert not OURS & set(SETTINGS)
    assert not set(tr.envs.ENVS) & set(ENVS)
    assert not {name for name in FUNCTIONS if name in dir(tr)}


ANSWERS: dict[str, list[Callable[[str], Any]]] = {
    "settings": [
        lambda name: configure("CartPole-v1", "ppo", {name: 1}),
        lambda name: configure("CartPole-v1", "ppo", {name.replace("_", "-"): 1}),
    ],
    "envs": [check_env],
    "functions": [lambda name: getattr(tr, name)],
    "members": [lambda name, owner=owner: getattr(owner, name) for owner in (AGENT, tr.PPO, tr.VPG)],
    "arguments": [
        lambda name, method=method: method(**{name: 1})
        for method in (AGENT.learn, AGENT.evaluate, AGENT.predict, AGENT.save)
    ],
}


@pytest.mark.parametrize(("table", "name"), EVERY_ENTRY)
def test_a_foreign_name_is_answered_with_ours_in_one_line(table: str, name: str) -> None:
    for call in ANSWERS[table]:
        with pytest.raises((tr.UsageError, AttributeError)) as error:
            call(name)
        hints = [here_called(name, TABLES[table])]
        if table == "arguments":  # which may be a setting of the agent, or foreign to all its methods
            hints += [here_called(name, SETTINGS), "a setting"]
        assert any(hint in str(error.value) for hint in hints if hint)
        assert repr(name) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--no-video", "video_every (0 films nothing)"), ("--capture-video", "filmed without a switch"),
        ("--video-log-freq 50", "in phases, not in episodes"), ("--live-viz", "in a notebook"),
        ("--early-stop", "eval_every"), ("--checkpoint-every 100", "save_every"),
        ("--early-stopping", "stop_at_return"),
        ("--load runs/a", "`tightrope resume RUN` continues a run"),
        ("--lr-schedule linear", "cosine(3e-4, 0)"), ("--cuda False", "or device cpu"),
        ("--no-cuda", "device cpu"), ("--seconds 3", "eval_seconds"),
    ],
)  # fmt: skip
def test_foreign_flags_are_answered(flags: str, words: str, run_command: Any) -> None:
    code, _, err = run_command("train", "CartPole-v1", *flags.split())
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


@pytest.mark.parametrize(
    ("flags", "name"),
    [("--seconds 3", "eval-seconds"), ("--num-envs 3", "eval-envs"), ("--eval-episodes 3", "episodes")],
)
def test_what_an_evaluation_is_told_has_one_name(flags: str, name: str, run_command: Any) -> None:
    code, _, err = run_command("eval", "runs/a", *flags.split())
    assert code == 2
    assert f"here it is called --{name}" in err


def test_the_help_of_eval_says_what_json_has(run_command: Any) -> None:
    code, out, _ = run_command("eval", "--help")
    assert code == 0
    keys = AGENT.evaluate(2).as_dict().keys() | {"env", "stochastic"}
    assert keys <= set(re.findall(r"\w+", out.partition("--json")[2]))


def test_an_evaluation_plays_in_as_many_environments_as_it_is_told() -> None:
    made: list[int] = []
    agent = tr.PPO(lambda: made.append(1) or gymnasium.make("CartPole-v1"), num_envs=2, device="cpu")
    assert len(agent.evaluate(6, eval_envs=3).returns) == 6
    assert len(made) == 2 + 3
    assert "eval_envs 0 is too small" in refusal(agent.evaluate, eval_envs=0)


def test_a_name_of_nobodys_is_a_plain_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'tightrope' has no 'nonsense'$"):
        tr.nonsense  # noqa: B018
    assert not hasattr(tr, "PPOTrainer")
    assert here_called("nonsense", SETTINGS) is None


def test_the_page_for_newcomers_has_every_name() -> None:
    page = Path(tr.__file__).parents[1] / "docs" / "coming-from.md"
    words = set(re.findall(r"[\w-]+", page.read_text()))
    missing = {name for table in TABLES.values() for name in table if not {name, name.replace("_", "-")} & words}
    assert not missing
    assert not {name for name in BROUGHT if not {name, name.replace("-", "_")} & words}


# an agent ------------------------------------------------------------------------------------------------------------


def test_a_member_of_nobodys_is_a_plain_error() -> None:
    for owner in (AGENT, tr.PPO):
        with pytest.raises(AttributeError, match=r"^PPO has no 'nonsense'$"):
            owner.nonsense  # noqa: B018
        assert not hasattr(owner, "load")
    assert copy.copy(AGENT).steps == 0, "protocols that look for members find none"


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("learn", {"total_timesteps": 64, "callback": print}, "takes tr.Callback objects"),
        ("learn", {"total_timesteps": 64, "progress_bar": True}, "quiet"),
        ("learn", {"log_interval": 1}, "every phase is logged"),
        ("learn", {"tb_log_name": "a"}, "run_name"),
        ("learn", {"seed": 3}, "it is a setting, give it to PPO(...)"),
        ("learn", {"eval_freq": 3}, "eval_every, a setting of PPO(...)"),
        ("learn", {"n_steps": 3}, "num_steps, a setting of PPO(...)"),
        ("learn", {"timesteps": 3}, "here it is called total_timesteps"),
        ("learn", {"total_timestep": 3}, "Did you mean total_timesteps?"),
        ("learn", {"nonsense": 3}, "It takes total_timesteps, run_dir"),
        ("evaluate", {"n_eval_episodes": 3}, "here it is called episodes"),
        ("evaluate", {"eval_episodes": 3}, "here it is called episodes"),
        ("evaluate", {"num_envs": 3}, "here it is called eval_envs"),
        ("evaluate", {"n_envs": 3}, "here it is called eval_envs"),
        ("evaluate", {"seconds": 3}, "here it is called eval_seconds"),
        ("evaluate", {"stochastic": True}, "here it is called deterministic, the other way round"),
        ("evaluate", {"render": True}, "agent.record(path) films episodes"),
        ("learn", {"n_envs": 3}, "num_envs, a setting of PPO(...)"),
        ("learn", {"num_envs": 3}, "it is a setting, give it to PPO(...)"),
        ("predict", {"obs": [0] * 4, "episode_start": None}, "give state=None where an episode starts"),
        ("save", {"path": "x", "exclude": []}, "It takes path"),
    ],
)
def test_some_answers_to_arguments(method: str, given: dict[str, Any], words: str) -> None:
    message = refusal(getattr(AGENT, method), **given)
    assert message.startswith(f"{method} has no argument")
    assert words in message


def test_calls_of_other_libraries() -> None:
    assert "takes tr.Callback objects" in refusal(AGENT.learn, 64, lambda *_: True)
    assert "is not a directory: give a path" in refusal(AGENT.learn, 64, 3)
    message = refusal(tr.PPO, "MlpPolicy", tr.envs.make("CartPole-v1", 2))
    assert "PPO(env) is enough" in message
    assert "the network is chosen from its spaces" in message
    assert "settings by name" in refusal(tr.PPO, "CartPole-v1", 3e-4)
