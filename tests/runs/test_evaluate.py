"""Evaluation: greedy, first episodes only, and invisible to whatever is being trained."""

from typing import Any

import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.envs import TensorEnv
from tightrope.errors import UsageError
from tightrope.runs.evaluate import Evaluation, EvaluationOptions, evaluate
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


def test_every_copy_counts_its_first_episode_and_no_other() -> None:
    result = agent_on(ShortOrLong(num_envs=4)).evaluate(200, seed=5)
    lengths = first_lengths(200, seed=5)
    assert 60 < lengths.count(SHORT) < 140
    assert result.lengths == lengths
    assert result.returns == [float(n * n) for n in lengths]


def test_an_episode_cut_by_the_clock_counts_up_to_the_cut() -> None:
    result = agent_on(ShortOrLong(num_envs=4, max_episode_steps=5)).evaluate(50, seed=6)
    lengths = first_lengths(50, seed=6)
    assert result.lengths == [min(n, 5) for n in lengths]
    assert result.returns == [float(n * min(n, 5)) for n in lengths]


def test_the_number_of_episodes_is_that_asked_for_whatever_the_agent_trains_with() -> None:
    agent = agent_on(ShortOrLong(num_envs=4))
    for episodes in (1, 3, 17):
        assert len(agent.evaluate(episodes).returns) == len(agent.evaluate(episodes).lengths) == episodes
    for episodes in (0, -1):
        with pytest.raises(UsageError, match=f"episodes {episodes} .*from 1"):
            agent.evaluate(episodes)


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


def test_results_repeat_and_depend_on_the_seed_alone() -> None:
    agent = agent_on(ShortOrLong(num_envs=4))
    first = agent.evaluate(40, seed=1)
    torch.manual_seed(9)
    agent.state.env.reset(seed=77)
    assert agent.evaluate(40, seed=1) == first
    assert agent.evaluate(40, seed=2) != first


def test_without_a_seed_it_follows_from_the_seed_of_the_run() -> None:
    one, again, other = (agent_on(ShortOrLong(num_envs=4), seed=seed) for seed in (1, 1, 2))
    assert one.evaluate(40) == one.evaluate(40) == again.evaluate(40)
    assert one.evaluate(40).lengths != other.evaluate(40).lengths


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


@pytest.mark.parametrize("env", ["Pendulum-v1", "MountainCar-v0", "DanceCart-v0", tr.envs.Acrobot(num_envs=2)])
def test_other_spaces_are_refused(env: Any) -> None:
    agent = tr.PPO("CartPole-v1", num_envs=2, num_steps=8, total_timesteps=64)
    with pytest.raises(UsageError, match="spaces") as error:
        agent.evaluate(5, env=env)
    assert "\n" not in str(error.value)
    assert "'CartPole-v1'" in str(error.value)
    assert (env if isinstance(env, str) else "Acrobot") in str(error.value)
    assert " at 0x" not in str(error.value), "an address tells nobody which environment"


def test_an_unknown_environment_is_refused() -> None:
    agent = tr.PPO("CartPole-v1", num_envs=2, num_steps=8, total_timesteps=64)
    with pytest.raises(UsageError, match="Did you mean EasyCart-v0"):
        agent.evaluate(5, env="EsyCart-v0")


def test_a_seed_out_of_range_is_refused() -> None:
    agent = agent_on(ShortOrLong(num_envs=4))
    with pytest.raises(UsageError, match=f"seed {2**70}"):
        agent.evaluate(5, seed=2**70)


def test_the_time_limit_of_the_run_holds_in_evaluation_too() -> None:
    agent = tr.PPO("Pendulum-v1", num_envs=2, num_steps=8, total_timesteps=64, num_minibatches=1, max_episode_steps=7)
    assert agent.evaluate(3).lengths == [7, 7, 7]
    assert agent.evaluate(3, env="Pendulum-v1").lengths == [7, 7, 7]


def test_it_can_be_called_on_a_policy_alone() -> None:
    env = ShortOrLong(num_envs=1)
    result = evaluate(agent_on(env).state.policy, env, episodes=30, seed=2)
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
    plain, replayed = (evaluate(policy, env, 20, 5, EvaluationOptions(captured=captured)) for captured in (False, True))
    assert plain == replayed
    assert agent.evaluate(20, seed=5) == plain
    assert capsys.readouterr().err == ""
