"""A user's own function in place of an algorithm's: it trains, is refused if it does not fit, and is asked for again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import tightrope as tr
from tightrope import functional
from tightrope.cli import main
from tightrope.engine import Runtime
from tightrope.engine.functions import Functions
from tightrope.saved import for_this_machine
from tightrope.training.own_code import NAMES, SIGNATURES, complaint

SMALL: dict[str, Any] = dict(
    num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=256, ent_coef=0.1, device="cpu"
)
CODE = """
from tightrope import functional

def gae(reward, value, next_value, terminated, done, gamma, gae_lambda):
    return functional.gae(reward, value, next_value, terminated, done, gamma, 0.0)
"""


def my_gae(
    reward: Any, value: Any, next_value: Any, terminated: Any, done: Any, gamma: float, gae_lambda: float
) -> Any:
    return functional.gae(reward, value, next_value, terminated, done, gamma, gae_lambda)


def weights_after(algo: Any = tr.PPO, **settings: Any) -> torch.Tensor:
    small = SMALL if algo is tr.PPO else {k: v for k, v in SMALL.items() if k != "num_minibatches"}
    found: torch.Tensor = algo("CartPole-v1", **small, **settings).learn(quiet=True).state.optimizer.flat
    return found


def test_the_same_function_gives_the_same_run_bit_for_bit() -> None:
    own = {name: getattr(functional, name) for name in ("gae", "clipped_surrogate", "value_loss", "entropy_bonus")}
    assert torch.equal(weights_after(**own), weights_after())
    own = {name: getattr(functional, name) for name in ("discounted_returns", "importance_weights", "policy_gradient")}
    assert torch.equal(weights_after(tr.VPG, **own), weights_after(tr.VPG))


@pytest.mark.parametrize(
    ("algo", "name", "function"),
    [
        (tr.PPO, "gae", lambda r, *rest: torch.zeros_like(r)),
        (tr.PPO, "clipped_surrogate", lambda p, q, a, c: -functional.clipped_surrogate(p, q, a, c)),
        (tr.PPO, "value_loss", lambda v, t: 9 * functional.value_loss(v, t)),
        (tr.PPO, "entropy_bonus", lambda e: -9 * e.mean()),
        (tr.VPG, "discounted_returns", lambda r, *rest: -r),
        (tr.VPG, "timestep_mean", lambda x, alive: torch.zeros_like(x[:, :1])),
        (tr.VPG, "policy_gradient", lambda p, a, w, m: -functional.policy_gradient(p, a, w, m)),
    ],
)
def test_an_own_function_is_the_one_that_trains(algo: Any, name: str, function: Callable[..., Any]) -> None:
    assert not torch.equal(weights_after(algo, **{name: function}), weights_after(algo))


def test_it_is_one_agents_alone() -> None:
    before = weights_after()
    own = tr.PPO("CartPole-v1", **SMALL, gae=lambda r, *rest: torch.zeros_like(r))
    assert own.state.functions.gae is not Functions().gae
    assert torch.equal(weights_after(), before)


def test_a_function_that_reads_numbers_still_trains() -> None:
    """It cannot be recorded, and runs in plain PyTorch."""

    def slow(log_prob: Any, old: Any, advantage: Any, clip: float) -> Any:
        float(advantage.sum())
        return functional.clipped_surrogate(log_prob, old, advantage, clip)

    torch.testing.assert_close(weights_after(clipped_surrogate=slow), weights_after(), rtol=1e-3, atol=1e-5)


def test_an_own_equation_counts_on_a_device_too() -> None:
    """As on a GPU, where PPOLoss has kernels."""

    def trained(runtime: Runtime) -> torch.Tensor:
        own = {"clipped_surrogate": lambda p, q, a, c: 2 * functional.clipped_surrogate(p, q, a, c)}
        agent = tr.PPO("CartPole-v1", **SMALL, **own)
        agent.state.runtime = runtime
        return agent.learn(quiet=True).state.optimizer.flat

    torch.testing.assert_close(trained(Runtime(on_device=True)), trained(Runtime()), rtol=1e-3, atol=1e-5)


def test_a_resumed_run_asks_for_it_again(tmp_path: Path) -> None:
    whole = weights_after(gae=my_gae)
    agent = tr.PPO("CartPole-v1", **SMALL, gae=my_gae)
    agent.learn(until=128, run_dir=tmp_path / "run", quiet=True)
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["functions"] == [f"gae={__name__}:my_gae"]
    message = "gae of this run is your function .*my_gae, which is not saved: pass it again, tr.load"
    with pytest.raises(tr.UsageError, match=message):
        tr.load(tmp_path / "run").learn(quiet=True)
    assert tr.load(tmp_path / "run").evaluate(2).mean > 0  # which needs no function of training
    resumed = tr.load(tmp_path / "run", gae=my_gae).learn(quiet=True)
    assert torch.equal(resumed.state.optimizer.flat, whole)


def test_a_function_that_only_the_run_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tr.PPO("CartPole-v1", **SMALL, gae=my_gae).learn(until=128, run_dir=tmp_path / "run", quiet=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\ndef bonus(x): return x.mean()\n"
    )
    agent = tr.load(tmp_path / "run", gae=my_gae)
    named = agent.config.changed(functions=[*map(str, agent.config.run.functions), "entropy_bonus=strange:bonus"])
    opened = for_this_machine(named, {"gae": my_gae}, None)
    assert [one.function is None for one in opened.run.functions if one.name == "entropy_bonus"] == [True]
    assert not (tmp_path / "imported").exists()
    for_this_machine(named, {"functions": ["entropy_bonus=strange:bonus"]}, None)
    assert (tmp_path / "imported").exists(), "the user gave it"


def test_a_run_can_go_on_with_ours(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", **SMALL, gae=my_gae).learn(until=128, run_dir=tmp_path, quiet=True)
    assert tr.load(tmp_path, functions=[]).learn(quiet=True).steps == 256


BAD: list[tuple[dict[str, Any], str]] = [
    (dict(gae=3), "gae 3 is not a function"),
    (dict(gae="no_module"), "gae 'no_module' is not a function"),
    (dict(gae=lambda x: x), "does not take reward, value, next_value, terminated, done, gamma, gae_lambda"),
    (dict(gae=lambda *x: x[0].sum()), r"returns shape \(\): return one number for each step and environment"),
    (dict(gae=lambda *x: None), "returns nothing: return one number for each step"),
    (dict(gae=lambda *x: x[9]), "raises IndexError on small tensors"),
    (dict(gae=lambda *x: x[3]), "returns bool: return floats"),
    (dict(minibatches=lambda b, c, o: o), "yields a Tensor: yield parts of the batch"),
    (dict(discounted_returns=functional.discounted_returns), "ppo does not use discounted_returns: give one of gae, "),
    (dict(value_loss=functional.value_loss, clip_vloss=True), "value_loss is not used with clip_vloss"),
    (dict(functions=["value_los=a:b"]), "functions has no 'value_los'. Did you mean value_loss"),
    (dict(functions=["gae"]), "functions 'gae' is not name=module:function"),
    (dict(functions=["gae=no_such_module:f"]), "gae 'no_such_module:f' cannot be imported"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_what_does_not_fit_is_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(tr.UsageError, match=words) as error:
        tr.PPO("CartPole-v1", **SMALL, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in NAMES if SIGNATURES[name].arguments is not None])
def test_our_own_functions_pass_the_trial(name: str) -> None:
    assert complaint(name, getattr(Functions(), name)) is None


def test_the_command_line_takes_it_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_equations.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    words = "--num-envs 4 --num-steps 16 --num-minibatches 2 --eval-episodes 1 --video-every 0 --quiet"
    train = f"train CartPole-v1 --functions gae=own_equations:gae --total-timesteps 128 --run-dir run {words}"
    for command, code in ((train, 0), ("resume run --total-timesteps 256 --quiet", 2)):
        with pytest.raises(SystemExit) as stop:
            main(command.split())
        assert (stop.value.code or 0) == code
    with pytest.raises(SystemExit) as stop:
        main(["resume", "run", "--total-timesteps", "256", "--functions", "gae=own_equations:gae", "--quiet"])
    assert (stop.value.code or 0) == 0
    Path("given.yaml").write_text("env: CartPole-v1\ngae: own_equations:gae\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--config", "given.yaml", "--quiet"])
    assert stop.value.code == 2  # a file may not name code to import
