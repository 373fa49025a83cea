"""Settings: how layers combine, what a value may look like, and what a wrong one is answered with."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import AGENTS, refusal

import tightrope as tr
from tightrope.cli import main
from tightrope.cli.arguments import field_docs
from tightrope.errors import UsageError
from tightrope.training.build import build, check_env
from tightrope.training.config import config_classes, configure, setting_types
from tightrope.training.presets import ELSEWHERE, FAMILIES, PRESETS, preset
from tightrope.training.settings import coerce, mapping, read_settings, resolve_device

ALGOS = ("ppo", "vpg")


# layers ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """An env whose preset differs from every default it names."""
    monkeypatch.setitem(
        PRESETS, ("Probe1-v0", "ppo"), dict(num_steps=64, gamma=0.5, hidden_sizes=(7,), anneal_lr=False)
    )


def test_without_layers_a_run_has_the_defaults() -> None:
    config = configure("NoPreset-v0", "ppo")
    assert (config.env, config.algo) == ("NoPreset-v0", "ppo")
    assert (config.algorithm, config.network, config.run) == tuple(part() for part in config_classes("ppo"))


def test_vpg_has_a_network_of_its_own() -> None:
    network = configure("Probe2-v0", "vpg").network
    assert (network.hidden_sizes, network.activation) == ((120, 84), "relu")
    assert configure("Probe2-v0", "vpg", {"activation": "tanh"}).network.activation == "tanh"


@pytest.mark.usefixtures("with_preset")
def test_later_layers_win() -> None:
    file = {"gamma": 0.6, "num_envs": 4, "hidden_sizes": [8]}
    flags = {"num_envs": 2, "hidden_sizes": (9, 9)}
    config = configure("Probe1-v0", "ppo", file, flags)
    assert config.algorithm.gae_lambda == 0.95  # default
    assert config.algorithm.num_steps == 64  # preset over default
    assert config.algorithm.gamma == 0.6  # file over preset
    assert (config.algorithm.num_envs, config.network.hidden_sizes) == (2, (9, 9))  # explicit over all


@pytest.mark.usefixtures("with_preset")
def test_an_explicit_setting_wins_even_where_it_equals_the_default() -> None:
    default = config_classes("ppo")[0]()
    explicit = {"num_steps": default.num_steps, "gamma": default.gamma, "anneal_lr": True, "hidden_sizes": (64, 64)}
    for config in (configure("Probe1-v0", "ppo", explicit), tr.PPO("Probe1-v0", **explicit).config):
        assert (config.algorithm, config.network) == (default, config_classes("ppo")[1]())
    config = configure("Probe1-v0", "ppo", {"gamma": 0.7}, {"gamma": default.gamma})
    assert config.algorithm.gamma == default.gamma


@pytest.mark.usefixtures("with_preset")
def test_a_preset_is_for_one_algorithm_and_can_be_left_out() -> None:
    assert configure("Probe1-v0", "vpg").algorithm.gamma == 0.99
    assert configure("Probe1-v0", "ppo", with_preset=False).algorithm.gamma == 0.99


def test_a_changed_config_keeps_everything_else_and_takes_no_preset() -> None:
    config = configure("CartPole-v1", "ppo", {"num_steps": 32, "num_envs": 3, "seed": 9}, with_preset=False)
    changed = config.changed(gamma="0.5")
    assert changed.to_flat_dict() == {**config.to_flat_dict(), "gamma": 0.5}
    assert config.algorithm.gamma == 0.99


@pytest.mark.parametrize(
    ("env", "given", "stops"),
    [
        ("CartPole-v1", {}, True), ("CartPole-v1", {"learning_rate": 0.01}, True), ("EasyCart-v0", {}, False),
        ("CartPole-v1", {"env_kwargs": {}, "max_episode_steps": None}, True), ("CartPole-v1", {"defaults": "plain"}, False),
        *(("CartPole-v1", given, False) for given in (
            {"total_timesteps": 100_000}, {"eval_every": 5000}, {"stop_at_return": None}, {"max_episode_steps": 200},
        )),
    ],
)  # fmt: skip
def test_a_preset_stops_a_solved_run_unless_its_length_is_given(env: str, given: dict[str, Any], stops: bool) -> None:
    run = configure(env, "ppo", given).run
    assert (run.stop_at_return, run.eval_every) == ((500, 8192) if stops else (None, given.get("eval_every", 0)))


def test_a_given_length_replaces_the_stop_of_the_preset() -> None:
    config = configure("CartPole-v1", "ppo")
    longer = config.changed(total_timesteps=300_000).run
    assert (longer.stop_at_return, longer.eval_every) == (None, 0)
    assert config.changed(total_timesteps=300_000, eval_every=9000, stop_at_return=490).run.stop_at_return == 490
    own = configure("CartPole-v1", "ppo", {"eval_every": 5000, "stop_at_return": 400})
    assert own.changed(total_timesteps=300_000).run.stop_at_return == 400, "the user's own stop is kept"


# values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("learning_rate", "1e-3", 1e-3), ("learning_rate", 1, 1.0), ("total_timesteps", 1e6, 1_000_000),
        ("total_timesteps", "1e6", 1_000_000), ("total_timesteps", "200_000", 200_000), ("seed", "7", 7),
        ("hidden_sizes", [32, 16.0, "8"], (32, 16, 8)), ("hidden_sizes", 32, (32,)),
        ("hidden_sizes", "64,32", (64, 32)), ("hidden_sizes", ["64,", "32"], (64, 32)),
        ("hidden_sizes", "[64, 32]", (64, 32)), ("hidden_sizes", ["128"], (128,)),
        ("log", "tensorboard,mlflow", ("tensorboard", "mlflow")),
        ("device", "cuda:0", "cuda:0"), ("device", "CPU", "cpu"), ("device", "cpu:0", "cpu"),
        ("device", torch.device("cpu"), "cpu"), ("device", torch.device("cuda", 1), "cuda:1"),
        ("device", torch.device("mps"), "mps"), ("max_grad_norm", None, None), ("max_grad_norm", "0.5", 0.5),
        ("threads", "2", 2), ("anneal_lr", False, False), ("activation", "relu", "relu"),
        ("train_env", "EasyCart-v0", "EasyCart-v0"), ("seed", 2**63 - 1, 2**63 - 1), ("seed", str(2**63 - 1), 2**63 - 1),
    ],
)  # fmt: skip
def test_values_become_the_type_of_their_setting(name: str, value: Any, expected: Any) -> None:
    flat = configure("CartPole-v1", "ppo", {name: value}).to_flat_dict()
    if isinstance(expected, tuple):
        expected = list(expected)
    assert flat[name] == expected
    assert type(flat[name]) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_steps", "many", "whole number"), ("num_steps", 1.5, "whole number"), ("num_steps", None, "whole number"),
        ("num_steps", True, "whole number"), ("num_steps", "inf", "whole number"), ("num_steps", [3], "whole number"),
        ("gamma", "high", "a finite number"), ("gamma", float("nan"), "a finite number"),
        ("max_grad_norm", "none at all", "a finite number"),
        ("hidden_sizes", ["wide"], "whole number"), ("anneal_lr", "perhaps", "true or false"),
        ("anneal_lr", 1, "true or false"), ("train_env", 3, "text"), ("device", "tpu", "auto, cpu, cuda, mps"),
        ("device", "cuda:", "cuda:0"), ("device", "cuda:-1", "auto, cpu, cuda, mps"),
        ("device", "gpu", "here it is called cuda"), ("device", "gpu:0", "here it is called cuda"),
        ("device", 1, "here it is called cuda:1"), ("device", True, "auto, cpu, cuda, mps"),
        ("device", ["cpu"], "auto, cpu, cuda, mps"), ("seed", 2**64, "too large"), ("seed", str(2**63), "too large"),
        ("learning_rate", "lin_0.001", "linear(0.001, 0)"), ("learning_rate", "fast", "a finite number"),
        ("learning_rate", None, "a finite number"), ("learning_rate", True, "a finite number"),
        ("learning_rate", "linaer(1, 0)", "cosine(3e-4, 1e-5)"), ("ent_coef", "linear(1)", "constant(1e-4)"),
        ("clip_coef", "linear(1, 0", "neither a number nor a schedule"),
        ("activation", ["tanh"], "tanh, relu, elu, silu, gelu"),
        ("log_std", "a\nb", "free, state"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(name: str, value: Any, expected: str) -> None:
    message = refusal(configure, "CartPole-v1", "ppo", {name: value})
    assert message.startswith(name)
    assert expected in message
    shown = value[0] if name == "hidden_sizes" else value
    assert repr(shown) in message or (expected == "too large" and str(shown) in message)


@pytest.mark.parametrize(
    ("layer", "named", "fix"),
    [
        ({"ppo": {"gamma": 0.9}}, "ppo is a section", "gamma"),
        ({"network": {"hidden_sizes": [8]}}, "network is a section", "hidden_sizes"),
        ({"gamma": {"value": 0.9}}, "gamma is a section", "value"),
        ({"ppo.gamma": 0.9}, "'ppo.gamma'", "give gamma"),
        ({"policy_kwargs": {"net_arch": [8]}}, "'policy_kwargs'", "here it is called hidden_sizes"),
        ({"learning_rate": lambda: 1.0}, "learning_rate is function", "called with progress alone"),
        ({"clip_coef": lambda progress: progress - 1}, "which at progress 0 is -1", "at least 0"),
        ({"ent_coef": lambda progress: float("nan")}, "which at progress 0 is nan", "finite number"),
        ({"ent_coef": lambda progress: "0.1 or so"}, "raises ValueError", "progress 0"),
        ({"num_steps": lambda left: left}, "num_steps is a function", "it stays the same"),
        ({"learning_rate": "linear(1, x)"}, "learning_rate linear(1, x): 'x'", "piecewise(0: 3e-4"),
        ({"learning_rate": "linear(nan, 0)"}, "'nan' is not a finite number", "piecewise(0: 3e-4"),
        ({"learning_rate": "linear(0.1, -1)"}, "linear(0.1, -1) is negative in places", "above 0"),
        ({"learning_rate": "constant(0)"}, "constant(0) is not positive", "above 0"),
        ({"ent_coef": "linear(0, -1)"}, "ent_coef linear(0, -1) is too small", "at least 0"),
        ({"clip_coef": "piecewise(0.5: 1, 0.2: 3)"}, "is not in order", "from 0 at the start"),
        ({"clip_coef": "piecewise(0: 1, 1.2: 3)"}, "is not in order", "from 0 at the start"),
        ({"learning_rate": "linear(1, 0)", "anneal_lr": True}, "anneal_lr is for a number", "drop anneal_lr"),
        ({"learning_rate": "linear(1, 0)", "learning_rate_end": 0.1}, "learning_rate_end is for a number", "drop"),
        ({"clip_coef": "linear(1, 0)", "anneal_clip": True}, "anneal_clip is for a number", "drop anneal_clip"),
        ({"num_step": 1}, "'num_step'", "Did you mean num_steps"),
        ({"learning_rat": 1}, "'learning_rat'", "Did you mean learning_rate"),
        ({"Gamma": 1}, "'Gamma'", "Did you mean gamma"),
        ({"hiden_sizes": 1}, "'hiden_sizes'", "Did you mean hidden_sizes"),
        ({"zzzz": 1}, "'zzzz' for ppo. `tightrope train --help`", "lists them"),
        ({"baseline": 1}, "'baseline' belongs to vpg", "this run is ppo"),
        ({"total_timesteps": 10**400}, "total_timesteps", "too large"),
    ],
)
def test_a_wrong_setting_is_named_with_a_way_out(layer: dict[str, Any], named: str, fix: str) -> None:
    message = refusal(configure, "CartPole-v1", "ppo", layer)
    assert named in message
    assert fix in message


@given(st.integers(0, 2**53), st.sampled_from([str, float, "{:,d}".format, int]))
def test_whole_numbers_are_read_however_they_are_written(number: int, written: Callable[[int], Any]) -> None:
    value = written(number)
    if isinstance(value, str):
        value = value.replace(",", "_")
    assert coerce("seed", value, int) == number


def test_an_unknown_algorithm_is_refused() -> None:
    assert "Did you mean ppo" in refusal(configure, "CartPole-v1", "ppoo")
    assert "unknown algo 'dqn'. Give one of: ppo, vpg" in refusal(configure, "CartPole-v1", "dqn")
    assert "'clip_coef' belongs to ppo" in refusal(configure, "CartPole-v1", "vpg", {"clip_coef": 1})


BAD = [
    # algorithm, settings, what the line must name, the fix it must offer
    ("ppo", dict(num_minibatches=7), "num_minibatches 7", "try num_minibatches 8"),
    ("vpg", dict(num_batches=5, use_importance_weights=True), "num_batches 5", "try num_batches 4"),
    ("ppo", dict(total_timesteps=10), "total_timesteps 10", "raise total_timesteps"),
    ("vpg", dict(total_timesteps=10), "total_timesteps 10", "raise total_timesteps"),
    ("ppo", dict(total_timesteps=0), "total_timesteps 0", "above 0"),
    ("ppo", dict(learning_rate=-1e-3), "learning_rate -0.001", "above 0"),
    ("ppo", dict(learning_rate=0), "learning_rate 0", "above 0"),
    ("vpg", dict(learning_rate=-1), "learning_rate -1", "above 0"),
    ("ppo", dict(learning_rate_end=-1), "learning_rate_end -1", "at least 0"),
    ("ppo", dict(ent_coef=-0.1), "ent_coef -0.1", "at least 0"),
    ("ppo", dict(vf_coef=-0.1), "vf_coef -0.1", "at least 0"),
    ("ppo", dict(max_grad_norm=-2), "max_grad_norm -2", "above 0"),
    ("ppo", dict(target_kl=0), "target_kl 0", "above 0"),
    ("ppo", dict(clip_coef=-0.2), "clip_coef -0.2", "above 0"),
    ("ppo", dict(gamma=1.01), "gamma 1.01", "from 0 to 1"),
    ("ppo", dict(gae_lambda=-0.1), "gae_lambda -0.1", "from 0 to 1"),
    ("ppo", dict(num_envs=0), "num_envs 0", "at least 1"),
    ("ppo", dict(num_steps=-5), "num_steps -5", "at least 1"),
    ("ppo", dict(num_minibatches=0), "num_minibatches 0", "at least 1"),
    ("ppo", dict(update_epochs=0), "update_epochs 0", "at least 1"),
    ("vpg", dict(rollout_uses=2), "rollout_uses 2", "set use_importance_weights"),
    ("vpg", dict(num_batches=2), "num_batches 2", "set use_importance_weights"),
    ("vpg", dict(dead_fraction=0), "dead_fraction 0", "above 0"),
    ("vpg", dict(anneal_fraction=1.5), "anneal_fraction 1.5", "from 0 to 1"),
    ("vpg", dict(weight_clamp=-0.1), "weight_clamp -0.1", "from 0 to 1"),
    ("ppo", dict(hidden_sizes=[]), "hidden_sizes []", "positive"),
    ("ppo", dict(hidden_sizes=[64, 0]), "hidden_sizes [64, 0]", "positive"),
    ("ppo", dict(seed=-1), "seed -1", "from 0"),
    ("ppo", dict(threads=0), "threads 0", "at least 1"),
    ("ppo", dict(max_episode_steps=0), "max_episode_steps 0", "at least 1"),
    ("ppo", dict(eval_every=-1), "eval_every -1", "at least 0"),
    ("ppo", dict(eval_episodes=-1), "eval_episodes -1", "at least 0"),
    ("ppo", dict(eval_episodes=0, eval_every=100), "eval_episodes 0", "give at least 1"),
    ("ppo", dict(eval_envs=0), "eval_envs 0", "at least 1"),
    ("ppo", dict(eval_seconds=0), "eval_seconds 0", "positive"),
    ("ppo", dict(eval_seconds="soon"), "eval_seconds 'soon'", "finite number"),
    ("ppo", dict(stop_at_return=475), "stop_at_return 475", "give eval_every"),
    ("vpg", dict(stop_at_return=475), "stop_at_return 475", "give eval_every"),
    ("ppo", dict(save_every=-1), "save_every -1", "at least 0"),
]


@pytest.mark.parametrize(("algo", "settings", "named", "fix"), BAD, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_value_out_of_range_is_refused(algo: str, settings: dict[str, Any], named: str, fix: str) -> None:
    message = refusal(configure, "CartPole-v1", algo, settings)
    assert named in message
    assert fix in message


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 60))
def test_the_suggested_number_of_minibatches_works(num_envs: int, num_steps: int, num_minibatches: int) -> None:
    settings = dict(num_envs=num_envs, num_steps=num_steps, num_minibatches=num_minibatches)
    if (num_envs * num_steps) % num_minibatches:
        message = refusal(configure, "Probe1-v0", "ppo", settings, with_preset=False)
        assert f"num_minibatches {num_minibatches} does not divide" in message
        assert str(num_envs * num_steps) in message
        settings["num_minibatches"] = int(message.rpartition("try num_minibatches ")[2])
    assert configure("Probe1-v0", "ppo", settings, with_preset=False).algorithm.phases > 0


def test_reuse_with_importance_weights_is_allowed() -> None:
    settings = dict(rollout_uses=3, num_batches=4, use_importance_weights=True, weight_clamp=None)
    assert configure("CartPole-v1", "vpg", settings).algorithm.updates_per_phase == 12


def test_a_plan_of_zero_phases_names_all_three_numbers() -> None:
    settings = dict(total_timesteps=100, num_envs=10, num_steps=11, num_minibatches=1)
    message = refusal(configure, "Probe1-v0", "ppo", settings)
    assert all(part in message for part in ("total_timesteps 100", "num_envs 10", "num_steps 11", "110"))


def test_a_device_is_looked_for_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    for name in ("cuda", "mps"):
        message = refusal(build, configure("CartPole-v1", "ppo", {"device": name}))
        assert f"device {name!r}" in message
        assert "device auto" in message
    assert "finds none" in refusal(resolve_device, "cuda:0")
    assert resolve_device("auto").type == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [resolve_device(name).type for name in ("auto", "cpu")] == ["cuda", "cpu"]
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert "this machine has 2, so give cuda:0 to cuda:1" in refusal(resolve_device, "cuda:2")


@pytest.mark.parametrize("env_id", ["CartPole-gpu", "CartPole-v0", "cartpole-v1", "CartPol-v1"])
def test_an_unknown_env_gets_the_id_that_was_meant(env_id: str) -> None:
    message = refusal(check_env, env_id)
    assert repr(env_id) in message
    assert "CartPole-v1" in message


# files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("num_envs: 8\nnum_steps: [1, 2\ngamma: 1\n", "line 3"), ("num_envs: 8\n\tgamma: 1\n", "line 2"),
        ("- num_envs\n- 8\n", "setting: value"), ("just words\n", "setting: value"), ("", "setting: value"),
        ("1: 2\n", "setting: value"), ("a: !!python/object/apply:os.getcwd []\n", "line 1"),
        ("seed: 1\nnum_envs: 8\n\nseed: 2\n", "seed twice, on lines 1 and 4"),
        ("num-envs: 8\nseed: 1\nnum_envs: 16\n", "num-envs on line 1 and num_envs on line 3"),
        ("env_kwargs:\n  a: 1\n  a: 2\n", "a twice, on lines 2 and 3"),
        ("seed: 1\n'seed': 2\n", "seed twice"), ("{seed: 1, seed: 2}\n", "seed twice, on lines 1 and 1"),
        ("ppo:\n  gamma: 0.9\n", "ppo is a section"), ("env:\n  id: CartPole-v1\n", "env is a section"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_settings_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    message = refusal(read_settings, path)
    assert str(path) in message
    assert expected in message


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\x80\x04\x95\xff\xfe")
    for name in ("bytes.yaml", "nowhere.yaml", "."):
        assert str(tmp_path / name) in refusal(read_settings, tmp_path / name)


def test_arguments_of_an_environment_are_the_one_mapping_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("env-kwargs:\n  a-b: 1\n  a_b: 2\n")
    assert read_settings(tmp_path / "a.yaml") == {"env-kwargs": {"a-b": 1, "a_b": 2}}


def test_numbers_in_a_file_may_be_written_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "learning_rate: 1e-3\ntotal_timesteps: 1e6\nmax_grad_norm: null\nhidden_sizes: [4, 5]\n"
    )
    config = configure("CartPole-v1", "ppo", read_settings(tmp_path / "a.yaml"))
    assert (config.algorithm.learning_rate, config.algorithm.total_timesteps) == (1e-3, 1_000_000)
    assert (config.algorithm.max_grad_norm, config.network.hidden_sizes) == (None, (4, 5))


positive = st.floats(1e-12, 1e3)
settings = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": positive, "gamma": st.floats(0, 1), "max_grad_norm": st.none() | positive,
        "total_timesteps": st.integers(10**6, 10**15), "num_envs": st.sampled_from([4, 32]), "anneal_lr": st.booleans(),
        "hidden_sizes": st.lists(st.integers(1, 512), min_size=1, max_size=4),
        "activation": st.sampled_from(["tanh", "relu", "elu", "silu", "gelu"]),
        "seed": st.integers(0, 2**63 - 1), "train_env": st.none() | st.text(),
        "max_episode_steps": st.none() | st.integers(1, 10**6),
        "device": st.sampled_from(["auto", "cpu", "cuda", "mps"]),
    },
)  # fmt: skip


@given(st.sampled_from(["CartPole-v1", "Pendulum-v1"]), st.sampled_from(ALGOS), settings)
def test_a_config_written_to_yaml_reads_back_identical(env: str, algo: str, given_settings: dict[str, Any]) -> None:
    config = configure(env, algo, given_settings)
    flat = yaml.safe_load(yaml.safe_dump(config.to_flat_dict(), sort_keys=False))
    assert flat == config.to_flat_dict()
    assert configure(flat["env"], flat["algo"], flat, with_preset=False) == config


# presets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "algo"), list(PRESETS), ids=["-".join(key) for key in PRESETS])
def test_every_preset_makes_a_valid_run_from_python_and_from_the_command_line(
    env: str, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if env not in tr.envs.ENVS:
        pytest.importorskip("Box2D")
    built: list[Any] = []

    def note(config: Any, *others: Any) -> None:
        built.append(config)
        raise UsageError("that is all this test needs")

    monkeypatch.setattr("tightrope.agent.build", note)
    with pytest.raises(UsageError):
        AGENTS[algo](env)
    with pytest.raises(SystemExit):
        main(["train", env, "--algo", algo])
    from_python, from_cli = built
    assert from_python == from_cli == configure(env, algo)
    for name, value in PRESETS[env, algo].items():
        assert from_python.to_flat_dict()[name] == (list(value) if isinstance(value, tuple) else value)
    assert env in tr.envs.ENVS or env in ELSEWHERE
    assert from_python.algorithm.phases > 0


def test_every_family_makes_valid_runs_and_none_hides_another() -> None:
    ids = [env for env in ELSEWHERE if (env, "ppo") not in PRESETS and " " not in env]
    assert {"brax/ant", "brax/hopper", "Hopper-v5"} <= set(ids)
    for env in ids:
        assert configure(env, "ppo").algorithm.phases > 0
    found = [preset(env, "ppo") for env in ids]
    assert all(settings in found for pattern, settings in FAMILIES if "ALE" not in pattern)


# the namespace ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_settings_are_one_namespace(algo: str) -> None:
    names = [f.name for part in config_classes(algo) for f in fields(part)]
    assert len(names) == len(set(names)), "two parts share a setting's name"
    assert {"env", "algo"}.isdisjoint(names)
    assert list(setting_types(algo)) == names
    assert set(configure("CartPole-v1", algo).to_flat_dict()) == {"env", "algo", *names}
    assert set(config_classes(algo)[0].network_defaults) <= set(names)


def test_every_setting_that_fingers_know_is_there() -> None:
    known = [
        "total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs", "learning_rate", "anneal_lr",
        "gamma", "gae_lambda", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm", "target_kl", "norm_adv", "clip_vloss",
        "seed", "device",
    ]  # fmt: skip
    assert set(known) <= set(setting_types("ppo"))


@pytest.mark.parametrize("part", [*config_classes("ppo"), config_classes("vpg")[0]])
def test_every_setting_is_explained(part: type) -> None:
    """Where it is declared, or by the class that it is inherited from."""
    docs = field_docs(part)
    for field in fields(part):
        assert docs.get(field.name, "").endswith("."), f"{field.name} has no help"


def test_configurations_cannot_be_changed_by_accident() -> None:
    config = configure("CartPole-v1", "ppo")
    with pytest.raises(AttributeError):
        config.algorithm.gamma = 0.5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        config.run.seed = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["slippery=false,size=8"], "env_kwargs has slippery=false,size=8: give each name once"),
        (["size=4", "size=8"], "env_kwargs has size twice: give each name once"),
        ({"size": {4}}, "env_kwargs size is a set, which a run cannot save"),
        ({"size": [object()]}, "env_kwargs size is a object, which a run cannot save"),
    ],
)
def test_arguments_of_environments_that_cannot_be_meant_or_saved_are_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        mapping("env_kwargs", given)


def test_arguments_of_environments_are_plain_data() -> None:
    assert mapping("env_kwargs", {"size": np.float32(3), "range": (1, 2)}) == {"size": 3.0, "range": [1, 2]}
    assert mapping("env_kwargs", ["day=2024-01-01", "wind=-5", "on=true"]) == {
        "day": "2024-01-01",
        "wind": -5,
        "on": True,
    }
