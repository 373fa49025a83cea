"""Evaluation: one episode for each seed, within its limits, and invisible to whatever is being trained."""

import contextlib
import itertools
import math
import signal
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from run_helpers import Plain, refusal
from torch import Tensor

import tightrope as tr
from tightrope.envs import TensorEnv
from tightrope.envs.adapters.host import row_seeds
from tightrope.training.evaluate import Evaluation, EvaluationOptions, evaluate_policy
from tightrope.types import Box, Discrete

SHORT, LONG = 2, 9


class ShortOrLong(TensorEnv):
    """Episodes of SHORT or LONG steps, as the noise says; every step pays the episode's length. State: length, time."""

    observation = Box((2,))
    action = Discrete(2)

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([torch.where(noise < 0.5, SHORT, LONG), torch.zeros_like(noise)], 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + torch.tensor([0.0, 1.0])

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0]

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 1] >= state[:, 0]


class PaysTheAction(ShortOrLong):
    """The same; every step pays the action taken. Nothing of the state is seen."""

    def observe(self, state: Tensor) -> Tensor:
        return torch.zeros_like(state)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return action.float()


def agent_on(env: TensorEnv, **settings: Any) -> tr.PPO:
    small = dict(num_steps=8, num_minibatches=2, total_timesteps=32 * env.num_envs, hidden_sizes=(8,))
    return tr.PPO(env, **{**small, **settings})


def first_lengths(episodes: int, seed: int) -> list[int]:
    noise = torch.rand(episodes, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    return torch.where(noise < 0.5, SHORT, LONG).tolist()


def snapshot(agent: tr.Agent) -> dict[str, Tensor]:
    return {**agent.state.state_dict(), **{f"score.{k}": v for k, v in agent.score_env.state_dict().items()}}


# what is counted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("episodes", [1, 3, 200])
def test_every_copy_counts_its_first_episode_up_to_the_cut_and_no_other(episodes: int, limit: int | None) -> None:
    result = agent_on(ShortOrLong(num_envs=4, max_episode_steps=limit)).evaluate(episodes, seed=5)
    lengths = first_lengths(episodes, seed=5)
    assert episodes < 200 or 60 < lengths.count(SHORT) < 140
    assert result.lengths == [min(n, limit or n) for n in lengths]
    assert result.returns == [float(n * min(n, limit or n)) for n in lengths]


@pytest.mark.parametrize("best", [0, 1])
def test_the_likelier_action_is_taken_every_time(best: int) -> None:
    agent = agent_on(PaysTheAction(num_envs=4))
    with torch.no_grad():
        agent.state.policy.head.logits.bias.copy_(torch.eye(2)[best] * 0.01)  # hardly likelier
    result = agent.evaluate(50)
    assert result.returns == [best * n for n in result.lengths]


def test_continuous_actions_are_the_mean_within_the_bounds() -> None:
    seen = []

    class Watched(tr.envs.Pendulum):
        def advance(self, state: Tensor, action: Tensor) -> Tensor:
            seen.append(action)
            return super().advance(state, action)

    agent = agent_on(Watched(num_envs=2, max_episode_steps=3))
    for mean, expected in ((0.5, 1.0), (7.0, 2.0)):
        seen.clear()
        with torch.no_grad():
            agent.state.policy.head.mean.weight.zero_()
            agent.state.policy.head.mean.bias.fill_(mean)
        agent.evaluate(4)
        assert torch.stack(seen).unique().tolist() == [expected]


def test_the_numbers_of_a_result() -> None:
    result = Evaluation(returns=[1.0, 2.0, 6.0], lengths=[10, 20, 60])
    assert (result.mean, result.mean_length) == (3.0, 30.0)
    assert result.std == pytest.approx((14 / 3) ** 0.5)
    facts = result.as_dict()
    assert {k: facts[k] for k in ("mean", "min", "max", "episodes")} == dict(mean=3.0, min=1.0, max=6.0, episodes=3)
    assert (facts["returns"], facts["lengths"]) == ([1.0, 2.0, 6.0], [10, 20, 60])
    for part in ("mean 3.00", "std 2.16", "min 1.00", "max 6.00", "3 episodes"):
        assert part in str(result)


# what is left alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [tr.PPO, tr.VPG])
def test_nothing_about_the_agent_changes(cls: type[tr.Agent]) -> None:
    agent = cls("CartPole-v1", num_envs=3, num_steps=8, total_timesteps=48, hidden_sizes=(8,), norm_obs=True)
    agent.learn(quiet=True)
    before, training, random = snapshot(agent), agent.policy.training, torch.get_rng_state()
    config, requires_grad = agent.config, [p.requires_grad for p in agent.policy.parameters()]
    agent.evaluate(5)
    agent.evaluate(agent.score_env.num_envs)
    agent.evaluate(5, env="EasyCart-v0", seed=3)
    after = snapshot(agent)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert torch.equal(torch.get_rng_state(), random)
    assert (agent.policy.training, agent.config) == (training, config)
    assert [p.requires_grad for p in agent.policy.parameters()] == requires_grad


def test_an_environment_given_to_evaluate_on_is_not_stepped() -> None:
    agent, env = agent_on(ShortOrLong(num_envs=4)), ShortOrLong(num_envs=2, seed=8)
    before = env.state_dict()
    for episodes in (2, 6):  # as many as it has, and more
        assert agent.evaluate(episodes, env=env, seed=1).lengths == first_lengths(episodes, seed=1)
    assert all(torch.equal(v, env.state_dict()[k]) for k, v in before.items())


def test_results_repeat_and_depend_on_the_seed_alone_or_that_of_the_run() -> None:
    agent, again, other = (agent_on(ShortOrLong(num_envs=4), seed=seed) for seed in (1, 1, 2))
    first = agent.evaluate(40, seed=1)
    torch.manual_seed(9)
    agent.state.env.reset(seed=77)
    assert agent.evaluate(40, seed=1) == first
    assert agent.evaluate(40, seed=2) != first
    assert agent.evaluate(40) == agent.evaluate(40) == again.evaluate(40)
    assert agent.evaluate(40).lengths != other.evaluate(40).lengths


def test_evaluation_does_not_see_the_starts_of_training() -> None:
    agent = agent_on(ShortOrLong(num_envs=64))
    trained_on = agent.state.obs[:, 0].tolist()
    assert agent.evaluate(64).lengths != trained_on


# elsewhere ------------------------------------------------------------------------------------------------------------


def test_other_environments_with_the_same_spaces() -> None:
    agent = tr.PPO("CartPole-v1", num_envs=2, num_steps=8, total_timesteps=64)
    plain, easy, spin = (agent.evaluate(10, env=env, seed=4) for env in ("CartPole-v1", "EasyCart-v0", "SpinCart-v0"))
    assert plain == agent.evaluate(10, seed=4)
    assert easy.lengths == plain.lengths
    assert all(e < p for e, p in zip(easy.returns, plain.returns, strict=True))
    assert spin.returns not in (plain.returns, easy.returns)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            (dict(env=env), [name, "'CartPole-v1'", "spaces"])
            for env, name in [
                ("Pendulum-v1", "Pendulum-v1"), ("DanceCart-v0", "DanceCart-v0"), (tr.envs.Acrobot(num_envs=2), "Acrobot")
            ]
        ),
        (dict(env="EsyCart-v0"), ["Did you mean EasyCart-v0"]),
        *((dict(episodes=episodes), [f"episodes {episodes} ", "from 1"]) for episodes in (0, -1)),
        *((dict(eval_seconds=seconds), [f"seconds {seconds} ", "above 0"]) for seconds in (0, -1.0, math.nan)),
        *((dict(deterministic=value), ["deterministic ", "is not True or False"]) for value in ("no", None, 0)),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(given: dict[str, Any], words: list[str]) -> None:
    message = refusal(tr.PPO("CartPole-v1", num_envs=2, num_steps=8, total_timesteps=64).evaluate, **given)
    assert all(word in message for word in words)
    assert " at 0x" not in message, "an address tells nobody which environment"


def test_the_time_limit_of_the_run_holds_in_evaluation_too() -> None:
    agent = tr.PPO("Pendulum-v1", num_envs=2, num_steps=8, total_timesteps=64, num_minibatches=1, max_episode_steps=7)
    assert agent.evaluate(3).lengths == [7, 7, 7]
    assert agent.evaluate(3, env="Pendulum-v1").lengths == [7, 7, 7]


def test_it_can_be_called_on_a_policy_alone() -> None:
    env = ShortOrLong(num_envs=1)
    result = evaluate_policy(agent_on(env).state.policy, env, episodes=30, seed=2)
    assert result.lengths == first_lengths(30, seed=2)
    assert not any(isinstance(x, Tensor) for x in (*result.returns, *result.lengths))


class Peeking(tr.envs.CartPole):
    """Reads a tensor on the host, which no graph can hold."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.full_like(state[:, 0], float(state[:, 0].abs().max() < 100))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [tr.envs.CartPole, tr.envs.Pendulum, Peeking])
def test_replayed_steps_change_no_number(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    agent = tr.PPO(kind(4, "cuda"), total_timesteps=4 * 128)
    env, policy = agent.score_env, agent.state.policy
    for deterministic in (False, True):
        options = [EvaluationOptions(captured=captured, deterministic=deterministic) for captured in (False, True)]
        plain, replayed = (evaluate_policy(policy, env, 20, 5, option) for option in options)
        assert plain == replayed
    assert agent.evaluate(20, seed=5) == plain
    assert capsys.readouterr().err == ""


# engines on the host ----------------------------------------------------------------------------------------------------


class Walk(Plain):
    """Lasts as long as its seed says; every step pays 1. Counts the copies that are open."""

    is_open: ClassVar[set[int]] = set()
    most: ClassVar[int] = 0

    def __init__(self) -> None:
        self.is_open.add(id(self))
        Walk.most = max(Walk.most, len(self.is_open))

    def reset(self, **given: Any) -> Any:
        first = super().reset(**given)
        self.length = int(self.np_random.integers(2, 30))
        return first

    def close(self) -> None:
        self.is_open.discard(id(self))


@pytest.fixture
def counted() -> type[Walk]:
    Walk.is_open.clear()
    Walk.most = 0
    return Walk


def walking(env: Any = Walk, **settings: Any) -> tr.PPO:
    small = dict(num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=32, hidden_sizes=(8,), device="cpu")
    return tr.PPO(env, **{**small, **settings})


def test_a_bounded_number_of_environments_is_open_and_none_is_left(counted: type[Walk]) -> None:
    agent = walking()
    before = len(counted.is_open)
    assert len(agent.evaluate(50).returns) == 50
    assert counted.most <= before + 16
    assert len(counted.is_open) == before
    counted.most = 0
    walking(eval_envs=3).evaluate(50)
    assert counted.most <= before + 2 + 3


def test_episodes_are_the_same_however_many_are_played_at_once() -> None:
    lengths = [int(np.random.default_rng(int(seed)).integers(2, 30)) for seed in row_seeds(5, 23)]
    for at_once in (1, 4, 16, 100):
        result = walking(eval_envs=at_once).evaluate(23, seed=5)
        assert result.lengths == lengths
        assert result.returns == [float(n) for n in lengths]
        assert result.unfinished == result.requested == 0


# actions as in training -------------------------------------------------------------------------------------------------


def test_actions_can_be_drawn_as_in_training() -> None:
    agent = agent_on(PaysTheAction(num_envs=4))
    with torch.no_grad():
        agent.state.policy.head.logits.bias.copy_(torch.tensor([0.5, 0.0]))
    assert agent.evaluate(50, seed=1).mean == 0
    sampled = agent.evaluate(200, seed=1, deterministic=False)
    assert sampled == agent.evaluate(200, seed=1, deterministic=False)
    assert sampled != agent.evaluate(200, seed=2, deterministic=False)
    assert sampled.lengths == agent.evaluate(200, seed=1).lengths, "the starts are the same"
    assert sum(sampled.returns) / sum(sampled.lengths) == pytest.approx(1 / (1 + math.exp(0.5)), abs=0.05)
    agent = agent_on(tr.envs.Pendulum(num_envs=2, max_episode_steps=5))
    assert agent.evaluate(4, seed=1).returns != agent.evaluate(4, seed=1, deterministic=False).returns


# limits -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a second later."""
    ticks = itertools.count()
    monkeypatch.setattr("tightrope.training.evaluate.time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


@pytest.mark.usefixtures("clock")
def test_when_time_is_up_rounds_that_are_over_count() -> None:
    lengths = walking().evaluate(23, seed=5).lengths
    steps = sum(max(lengths[first : first + 4]) for first in (0, 4, 8)) + 2
    result = walking(eval_envs=4).evaluate(23, seed=5, eval_seconds=steps)
    assert result.lengths == lengths[:12]
    assert (result.requested, result.unfinished, result.representative) == (23, 0, True)
    assert f"time was up after {steps} s with 12 of 23 episodes finished: the score is of those only" in str(result)
    assert "short" not in str(result)


@pytest.mark.usefixtures("clock")
def test_within_the_first_round_those_that_are_over_count_and_it_is_said_that_they_are_short() -> None:
    for agent in (agent_on(ShortOrLong(num_envs=4)), walking()):
        result = agent.evaluate(16, seed=5, eval_seconds=6)
        assert 0 < len(result.returns) < 16
        assert max(result.lengths) <= 6
        assert not result.representative
        assert f"with {len(result.returns)} of 16 episodes finished" in str(result)
        assert "short episodes are favoured" in str(result)
        assert result.metrics["eval/cut_off"] == 1


@pytest.mark.usefixtures("clock")
def test_where_no_episode_is_over_the_returns_so_far_are_called_that() -> None:
    for agent in (agent_on(ShortOrLong(num_envs=4)), walking()):
        result = agent.evaluate(16, seed=5, eval_seconds=1)
        assert (result.lengths, result.unfinished, result.representative) == ([1] * 16, 16, False)
        assert "none of 16 episodes finished: these are the returns so far" in str(result)
    assert walking().evaluate(16, seed=5, eval_seconds=10_000).requested == 0


# signals ----------------------------------------------------------------------------------------------------------------


class Alarmed(ShortOrLong):
    """A signal comes in the middle of it."""

    pure = False
    numbers: ClassVar[list[signal.Signals]] = []

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        if self.numbers:
            signal.raise_signal(self.numbers.pop())
        return super().advance(state, action)


class AlarmedWalk(Walk):
    """The same; what is raised is swallowed, as careless code does."""

    numbers: ClassVar[list[signal.Signals]] = []

    def step(self, action: Any) -> Any:
        with contextlib.suppress(BaseException):
            if self.numbers:
                signal.raise_signal(self.numbers.pop())
        return super().step(action)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("kind", [Alarmed, AlarmedWalk])
def test_a_signal_ends_it_and_nothing_is_left(kind: Any, number: signal.Signals, counted: type[Walk]) -> None:
    agent = agent_on(kind(num_envs=4)) if kind is Alarmed else walking(kind)
    before, streams, is_open = snapshot(agent), torch.get_rng_state(), len(counted.is_open)
    handler = signal.getsignal(number)
    steps: list[int] = []
    kind.numbers.append(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as stop:
        agent.evaluate(40, tick=steps.append)
    assert getattr(stop.value, "code", 130) == 128 + number
    assert steps == [], "it went on"
    assert signal.getsignal(number) is handler
    assert len(counted.is_open) == is_open
    assert torch.equal(torch.get_rng_state(), streams)
    assert all(torch.equal(x, snapshot(agent)[name]) for name, x in before.items())
    assert len(agent.evaluate(3).returns) == 3


def test_whoever_asks_is_told_how_far_it_has_come() -> None:
    for agent in (agent_on(ShortOrLong(num_envs=4)), walking(eval_envs=4)):
        told: list[int] = []
        agent.evaluate(10, tick=told.append)
        assert told == sorted(told)
        assert told[0] == 0
        assert 0 < told[-1] < 10


# rows that belong together ----------------------------------------------------------------------------------------------


class Pairs(tr.envs.TensorEnv):
    """Two rows are one game; `initial` takes any number of rows, a step does not."""

    observation, action, noise_size, time_limit = Box((1,)), Discrete(2), 1, 3

    def initial(self, noise: Tensor) -> Tensor:
        return noise

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state.view(-1, 2, 1).flip(1).reshape(-1, 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0])


class Triples(Pairs):
    def initial(self, noise: Tensor) -> Tensor:
        return noise.view(-1, 3, 1).expand(-1, 3, 1).reshape(-1, 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + 1


@pytest.mark.parametrize("env", [Pairs, Triples])
@pytest.mark.parametrize("episodes", [1, 6, 7])
def test_any_number_of_episodes_is_played_where_rows_belong_together(env: Any, episodes: int) -> None:
    agent = tr.PPO(env(num_envs=6), num_steps=8, num_minibatches=1, total_timesteps=48)
    assert agent.evaluate(episodes).returns == [3.0] * episodes
    assert agent.evaluate(episodes, deterministic=False).lengths == [3] * episodes


def test_an_environment_that_takes_one_number_of_rows_alone_is_one_line() -> None:
    class Fixed(Pairs):
        def advance(self, state: Tensor, action: Tensor) -> Tensor:
            if len(state) not in (12, 24, 6):
                raise RuntimeError("no such table")
            return state

    agent = tr.PPO(Fixed(num_envs=6), num_steps=8, num_minibatches=1, total_timesteps=48)
    assert "Fixed cannot be evaluated with 40 rows: RuntimeError: no such table" in refusal(agent.evaluate, 40)


# units of the task -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "unit"), [("SpinCart-v0", "rad/s"), ("DanceCart-v0", "m off the beat")])
def test_a_score_is_also_in_the_units_of_the_task(env: str, unit: str) -> None:
    """Against the states of the same episodes, played once more by hand."""
    agent = tr.PPO(env, num_envs=4, num_steps=8, total_timesteps=64, device="cpu")
    found = agent.evaluate(episodes=6, seed=5)
    task: Any = agent.score_env.spawn(6, seed=5)
    obs, alive = task.reset(seed=5), torch.ones(6, dtype=torch.bool)
    values = []
    with torch.no_grad():
        while alive.any():
            x, omega = task.state[:, 0], task.state[:, 3]
            off = (x - 0.8 * task.state[:, 4].sin()).abs() if env == "DanceCart-v0" else omega.abs()
            values += off[alive].tolist()
            step = task.step(agent.policy.act(obs)[1])
            alive &= ~(step.terminated | step.truncated)
            obs = step.obs
    assert len(values) == sum(found.lengths)
    assert found.measured == pytest.approx(sum(values) / len(values), rel=1e-4)
    assert f"; {found.measured:.3g} {unit}" in str(found)
    assert found.as_dict()["unit"] == unit


def test_most_tasks_have_no_unit_of_their_own() -> None:
    found = tr.PPO("CartPole-v1", num_envs=4, num_steps=8, total_timesteps=64, device="cpu").evaluate(episodes=2)
    assert found.measured is None
    assert "measured" not in found.as_dict()


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"norm_obs": True}),
        ("CartPoleNoVelocity-v0", {"memory": "gru", "memory_size": 8}),
        ("MaskProbe-v0", {}),
        ("HybridProbe-v0", {}),
    ],
)
def test_steps_over_arrays_give_the_numbers_of_steps_over_tensors(
    env: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tr.PPO(env, num_envs=4, num_steps=8, num_minibatches=2, total_timesteps=64, device="cpu", **settings)
    agent.learn(quiet=True)
    found = [agent.evaluate(12, deterministic=deterministic).as_dict() for deterministic in (True, False)]
    monkeypatch.setattr("tightrope.training.evaluate.array_stepper", lambda env: None)
    assert found == [agent.evaluate(12, deterministic=deterministic).as_dict() for deterministic in (True, False)]
