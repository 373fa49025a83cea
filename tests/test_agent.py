"""The front door: making, training, asking and keeping an agent."""

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import Plain, refusal
from torch import Tensor

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.types import Box

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, total_timesteps=128, hidden_sizes=(8,), device="cpu")
OWN = {k: v for k, v in SMALL.items() if k not in ("num_envs", "device")}  # beside an environment of one's own


class Centered(tr.envs.CartPole):
    """CartPole paid for being near the centre."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs() / 2.4


def same_parameters(one: tr.Agent, other: tr.Agent) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True))


# making ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "algo"), [(tr.PPO, "ppo"), (tr.VPG, "vpg")])
def test_an_agent_by_id(cls: type[tr.Agent], algo: str) -> None:
    agent = cls("CartPole-v1", **SMALL, gamma=0.9, seed=5)
    assert (agent.config.env, agent.config.algo, agent.config.run.seed) == ("CartPole-v1", algo, 5)
    assert agent.config.algorithm.gamma == 0.9
    assert type(agent.state.env) is tr.envs.CartPole
    assert (agent.state.env.num_envs, agent.steps) == (4, 0)
    distribution, value = agent.policy(agent.state.obs)
    assert (distribution.logits.shape, value.shape) == ((4, 2), (4,))


def test_an_agent_by_environment() -> None:
    env = Centered(num_envs=4)
    agent = tr.PPO(env, **OWN)
    assert agent.state.env is env
    assert agent.config.algorithm.num_envs == 4
    assert agent.config.env.endswith(":Centered")
    agent.learn(quiet=True)
    assert agent.steps == 128
    result = agent.evaluate(10)
    assert all(0 < r < n for r, n in zip(result.returns, result.lengths, strict=True)), "not the shaped reward"


def test_an_environment_with_an_id_brings_its_preset() -> None:
    agent = tr.PPO(tr.envs.CartPole(num_envs=64))
    assert agent.config == tr.PPO("CartPole-v1", device="cpu").config


def test_an_environment_given_is_the_one_trained_on_whatever_the_preset_says() -> None:
    env = tr.envs.MountainCar(num_envs=16)
    agent = tr.PPO(env)
    assert agent.state.env is env
    assert agent.config.run.train_env is None, "a run loaded from this config would train on something else"


def test_the_seed_decides_the_network_and_the_global_stream_does_not() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = tr.PPO("CartPole-v1", **SMALL)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same_parameters(one, tr.PPO("CartPole-v1", **SMALL))
    assert not same_parameters(one, tr.PPO("CartPole-v1", **SMALL, seed=2))


@pytest.mark.parametrize(("setting", "value"), [("num_envs", 8), ("device", "cuda"), ("max_episode_steps", 5)])
def test_what_an_environment_brings_itself_is_not_silently_overruled(setting: str, value: Any) -> None:
    message = refusal(tr.PPO, Centered(num_envs=4), **OWN, **{setting: value})
    assert setting in message
    assert str(value) in message


def test_bad_requests_are_one_line() -> None:
    assert "Did you mean CartPole-v1" in refusal(tr.PPO, "CartPoel-v1")
    assert "here it is called num_steps" in refusal(tr.PPO, "CartPole-v1", n_steps=128)
    assert "belongs to vpg" in refusal(tr.PPO, "CartPole-v1", baseline="none")
    assert "gamma 1.5" in refusal(tr.PPO, "CartPole-v1", gamma=1.5)
    assert "algo is fixed" in refusal(tr.PPO, "CartPole-v1", **SMALL, algo="vpg")


def test_an_action_space_that_cannot_be_served() -> None:
    class Matrix(tr.envs.Pendulum):
        action = Box((2, 2), 0, 3, torch.int64)

    for cls in (tr.PPO, tr.VPG):
        message = refusal(cls, Matrix(num_envs=4), **OWN)
        assert "(2, 2)" in message


def test_agents_say_what_they_are() -> None:
    agent = tr.VPG("CartPole-v1", **{**SMALL, "num_steps": 400, "total_timesteps": 3200})
    assert repr(agent) == "VPG('CartPole-v1', steps=0)"
    agent.state.steps = 1600
    assert repr(agent) == "VPG('CartPole-v1', steps=1,600)"


# closing --------------------------------------------------------------------------------------------------------------


def test_a_closed_agent_has_no_environments_and_says_so_in_one_line(tmp_path: Path) -> None:
    closed: list[int] = []

    class Closing(tr.envs.CartPole):
        def close(self) -> None:
            closed.append(self.num_envs)

    with tr.PPO(Closing(num_envs=8), **OWN) as agent:
        assert closed == []
        agent.evaluate(3)
        assert closed == [3], "copies are not closed"
    agent.close()
    assert closed == [3, 8], "closed twice, or not at all"
    for use in (agent.learn, agent.train, agent.evaluate, lambda: agent.record(tmp_path / "a.mp4"), agent.show):
        assert "this agent is closed" in refusal(use)
    assert agent.predict(np.zeros(4, np.float32)) in (0, 1)
    agent.save(tmp_path / "saved")
    assert tr.load(tmp_path / "saved", env=Closing(num_envs=8)).steps == 0


def test_what_is_made_of_a_name_is_closed_and_what_goes_wrong_meanwhile_is_what_is_raised() -> None:
    closed: list[str] = []

    class Failing(Plain):
        def close(self) -> None:
            closed.append("env")
            raise RuntimeError("cannot be closed")

    with pytest.raises(KeyError, match="mine"), tr.PPO(Failing, **{**OWN, "num_envs": 2}):
        raise KeyError("mine")
    assert closed
    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.close()
    agent.close()


# predict --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cartpole() -> tr.Agent:
    return tr.PPO("CartPole-v1", **SMALL)


@pytest.fixture(scope="module")
def pendulum() -> tr.Agent:
    return tr.PPO("Pendulum-v1", **SMALL)


def test_one_observation_gets_one_action(cartpole: tr.Agent, pendulum: tr.Agent) -> None:
    row = [0.01, 0.02, -0.03, 0.04]
    expected = cartpole.policy(torch.tensor([row]))[0].logits.argmax().item()
    for obs in (row, tuple(row), np.array(row), np.array(row, dtype=np.float32)):
        action = cartpole.predict(obs)
        assert type(action) is int
        assert action == expected
    action = cartpole.predict(torch.tensor(row))
    assert isinstance(action, Tensor)
    assert (action.shape, action.item()) == ((), expected)
    action = pendulum.predict(np.array([1.0, 0.0, 0.0]))
    assert isinstance(action, np.ndarray)
    assert action.shape == (1,)


def test_a_batch_gets_an_action_each(cartpole: tr.Agent, pendulum: tr.Agent) -> None:
    batch = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    actions = cartpole.predict(batch)
    assert isinstance(actions, Tensor)
    assert actions.tolist() == [cartpole.predict(row.tolist()) for row in batch]
    for obs in (batch.numpy(), batch.tolist()):
        array = cartpole.predict(obs)
        assert isinstance(array, np.ndarray)
        assert array.tolist() == actions.tolist()
    assert cartpole.predict(batch[:1].numpy()).shape == (1,)
    assert pendulum.predict(np.zeros((5, 3))).shape == (5, 1)
    assert not pendulum.predict(torch.zeros(5, 3)).requires_grad


@pytest.mark.parametrize("shape", [(), (3,), (5,), (2, 3), (2, 2, 4)])
def test_an_observation_of_another_shape_is_refused(cartpole: tr.Agent, shape: tuple[int, ...]) -> None:
    message = refusal(cartpole.predict, np.zeros(shape))
    assert str(shape) in message
    assert "(4,)" in message


def test_deterministic_actions_repeat_and_others_vary(cartpole: tr.Agent) -> None:
    batch = np.zeros((200, 4))
    assert len(set(cartpole.predict(batch).tolist())) == 1
    torch.manual_seed(0)
    sampled = cartpole.predict(batch, deterministic=False).tolist()
    assert 50 < sum(sampled) < 150  # a fresh policy is nearly indifferent
    assert cartpole.predict(batch, deterministic=False).tolist() != sampled
    torch.manual_seed(0)
    assert cartpole.predict(batch, deterministic=False).tolist() == sampled
    assert cartpole.predict([0, 0, 0, 0], deterministic=False) in (0, 1)


def test_actions_are_within_the_bounds(pendulum: tr.Agent) -> None:
    sampled = pendulum.predict(np.zeros((500, 3)), deterministic=False)
    assert (sampled.min(), sampled.max()) == (-2.0, 2.0)  # of a standard normal, clipped


def test_asking_changes_nothing(cartpole: tr.Agent) -> None:
    before = cartpole.state.state_dict()
    cartpole.predict(np.zeros((3, 4)), deterministic=False)
    after = cartpole.state.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


# learn ----------------------------------------------------------------------------------------------------------------


def test_learning_is_to_a_number_of_steps_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    assert agent.learn(64, quiet=True) is agent
    assert agent.steps == 64
    parameters = [p.clone() for p in agent.policy.parameters()]
    assert capsys.readouterr() == ("", "")
    agent.learn(64)
    assert "64 steps already" in capsys.readouterr().out
    assert agent.steps == 64
    assert all(torch.equal(a, b) for a, b in zip(parameters, agent.policy.parameters(), strict=True))
    agent.learn(96, quiet=True)
    agent.learn(64, quiet=True)
    assert capsys.readouterr().out == ""
    assert agent.steps == 96


def test_less_than_there_is_and_less_than_a_phase_leave_the_settings_alone() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    config = agent.config
    agent.learn(64, quiet=True)
    assert (agent.config, agent.steps) == (config, 128)
    agent = tr.PPO("CartPole-v1", **SMALL)
    assert "total_timesteps 31" in refusal(agent.learn, 31)
    assert (agent.config, agent.steps) == (config, 0)
    assert agent.learn("1e2", quiet=True).steps == 96  # whole phases of 32


def test_learning_moves_the_policy() -> None:
    for cls in (tr.PPO, tr.VPG):
        agent, fresh = (cls("Pendulum-v1", **SMALL) for _ in range(2))
        assert same_parameters(agent, fresh)
        assert not same_parameters(agent.learn(quiet=True), fresh)


class Signalled(Centered):
    """Is sent signals in the middle of the second phase."""

    steps = 0

    def __init__(self, signals: tuple[int, ...]) -> None:
        self.signals = signals
        super().__init__(num_envs=4)

    def step(self, action: Tensor, noise: Tensor | None = None) -> Any:
        self.steps += 1
        if self.steps == 12:
            for number in self.signals:
                signal.raise_signal(number)
        return super().step(action, noise)


def test_an_interrupt_finishes_the_phase_saves_and_is_raised(tmp_path: Path) -> None:
    agent = tr.PPO(Signalled((signal.SIGINT,)), **OWN)
    with pytest.raises(KeyboardInterrupt, match="64 steps"):
        agent.learn(run_dir=tmp_path, quiet=True)
    assert (agent.steps, agent.state.phase) == (64, 2)
    saved = tr.load(tmp_path, env=Centered(num_envs=4))
    assert saved.steps == 64
    whole = tr.PPO(Centered(num_envs=4), **OWN).learn(quiet=True)
    assert same_parameters(agent.learn(quiet=True), whole)
    with pytest.raises(UsageError, match="trained further"):  # by the agent that was interrupted
        saved.learn(quiet=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_wants_the_process_to_end_ends_it_after_the_phase(number: int, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        tr.PPO(Signalled((number,)), **OWN).learn(run_dir=tmp_path, quiet=True)
    assert end.value.code == 128 + number
    assert tr.load(tmp_path, env=Centered(num_envs=4)).steps == 64


def test_a_second_interrupt_leaves_the_agent_between_two_phases() -> None:
    env = Signalled((signal.SIGINT, signal.SIGINT))
    agent = tr.PPO(env, **OWN)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(quiet=True)
    assert (agent.steps, agent.state.phase) == (32, 1)
    env.signals = ()
    assert same_parameters(agent.learn(quiet=True), tr.PPO(Centered(num_envs=4), **OWN).learn(quiet=True))


# save and load --------------------------------------------------------------------------------------------------------


@pytest.fixture
def centered(tmp_path: Path) -> Path:
    agent = tr.PPO(Centered(num_envs=4), **OWN, seed=3)
    agent.learn(64, quiet=True)
    agent.save(tmp_path / "run")
    return tmp_path / "run"


def test_an_environment_of_ones_own_is_passed_when_loading(centered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tr.load(centered).state.env, Centered), "it has been imported"
    with monkeypatch.context() as context:
        context.delattr(sys.modules[__name__], "Centered")
        message = refusal(tr.load, centered)
    assert "Centered" in message
    assert "env=..." in message
    agent = tr.load(centered, env=Centered(num_envs=4))
    assert isinstance(agent.state.env, Centered)
    assert (agent.steps, agent.config.run.seed) == (64, 3)
    assert agent.evaluate(5).mean < agent.evaluate(5).mean_length


def test_an_environment_that_does_not_fit_is_refused(centered: Path) -> None:
    for env in (tr.envs.Pendulum(num_envs=4), tr.envs.DanceCart(num_envs=4)):
        assert centered.name in refusal(tr.load, centered, env=env)


def test_an_environment_passed_when_loading_may_have_any_number_of_copies(centered: Path) -> None:
    assert [tr.load(centered, env=Centered(count)).state.env.num_envs for count in (2, 4)] == [4, 4]


def test_a_registered_environment_needs_no_passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tr.envs.ENVS, "Centered-v0", Centered)
    tr.VPG("Centered-v0", **SMALL).save(tmp_path)
    agent = tr.load(tmp_path)
    assert isinstance(agent, tr.VPG)
    assert isinstance(agent.state.env, Centered)


def test_settings_given_when_loading_win(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", **SMALL, seed=1).save(tmp_path)
    agent = tr.load(tmp_path, learning_rate=0.5, eval_every=64, seed=7)
    assert (agent.config.algorithm.learning_rate, agent.config.run.eval_every) == (0.5, 64)
    assert agent.config.run.seed == agent.state.seed == 7
    assert "here it is called learning_rate" in refusal(tr.load, tmp_path, lr=0.5)
    for name, value in (("num_envs", 8), ("num_steps", 4), ("hidden_sizes", (9,))):
        assert name in refusal(tr.load, tmp_path, **{name: value}), "what was trained keeps its shape"


def test_an_environment_can_be_named_when_loading(centered: Path) -> None:
    assert isinstance(tr.load(centered, env="test_agent:Centered").state.env, Centered)
    assert "evaluate(env=...)" in refusal(tr.load, centered, env="Pendulum-v1")


# seeds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**400, -1, 1.5, "one", True, [1]])
def test_a_seed_that_no_generator_takes_is_one_line_wherever_it_is_given(seed: Any) -> None:
    pytest.importorskip("gymnasium")
    agent = tr.PPO("CartPole-v1", **SMALL)
    engine = tr.envs.make("CartPole-v1", 2, backend="gymnasium")
    for call in (
        lambda: tr.PPO("CartPole-v1", **SMALL, seed=seed),
        lambda: agent.evaluate(2, seed=seed),
        lambda: agent.record("x.mp4", 1, seed=seed),
        lambda: agent.state.env.reset(seed=seed),
        lambda: engine.reset(seed=seed),
    ):
        message = refusal(call)
        assert message.startswith("seed")
        assert "whole number" in message
        assert len(message) < 200


@pytest.mark.parametrize("seed", [0, 2**32, 2**63 - 1, np.int64(3), np.uint8(7)])
def test_every_other_seed_works_everywhere(seed: Any) -> None:
    pytest.importorskip("gymnasium")
    for backend in ("tensor", "gymnasium"):
        agent = tr.PPO("CartPole-v1", **SMALL, seed=seed, backend=backend)
        assert len(agent.evaluate(2, seed=seed).returns) == 2
        agent.state.env.reset(seed=seed)
