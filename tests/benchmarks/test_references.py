"""The references that speed is compared with obey the library's own equations, so that a comparison is of like with like."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tightrope.algorithms.ppo import PPOConfig
from tightrope.engine import Optimizer, Runtime
from tightrope.envs import CartPole
from tightrope.functional import PPOLoss, explained_variance, gae, standardize, successor_values
from tightrope.models.distributions import Categorical
from tightrope.types import Batch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "references"))

import functional
import recipe
import torch_pieces as pieces

pieces.DEVICE = torch.device("cpu")  # that of the library's own tensors in these tests

T, N = 24, 16
CLOSE = dict(rtol=1e-4, atol=1e-5)


def networks(seed: int = 0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    return pieces.mlp(2, 1.0), pieces.mlp(1, 1.0)


def rollout() -> tuple[pieces.Transition, Tensor]:
    """A rollout in which episodes end both ways, which CartPole alone would take long to show."""
    torch.manual_seed(1)
    obs, final_obs, last_obs = torch.randn(T, N, 4), torch.randn(T, N, 4), torch.randn(N, 4)
    terminated = torch.rand(T, N) < 0.1
    truncated = (torch.rand(T, N) < 0.1) & ~terminated
    action, log_prob = torch.randint(2, (T, N)), -torch.rand(T, N)
    clock, total = torch.randint(1, 500, (T, N), dtype=torch.int32), torch.rand(T, N)
    reward = torch.rand(T, N)
    return pieces.Transition(obs, action, log_prob, reward, terminated, truncated, final_obs, clock, total), last_obs


def test_the_recipe_is_the_library_s() -> None:
    config = PPOConfig()
    assert (config.gamma, config.gae_lambda) == (recipe.GAMMA, recipe.LAMBDA)
    assert (config.clip_coef, config.ent_coef, config.vf_coef) == (recipe.CLIP, recipe.ENTROPY, recipe.VALUE)
    assert (config.max_grad_norm, config.learning_rate) == (recipe.MAX_NORM, recipe.CLASSIC_RATE)
    assert (config.update_epochs, config.num_minibatches) == (recipe.EPOCHS, recipe.MINIBATCHES)


def test_carts_move_end_and_start_anew_as_the_library_s_do() -> None:
    torch.manual_seed(2)
    env, carts = CartPole(num_envs=64), pieces.start(64)
    terminations = truncations = 0
    clocks = torch.randint(300, 499, (64,), dtype=torch.int32)  # some reach the limit soon
    env.clock.copy_(clocks)
    carts = carts._replace(clock=clocks)
    for _ in range(120):
        env.state.copy_(carts.state)  # each step from one state: an unstable pole would enlarge differences of rounding
        uniform = torch.rand(64, 4)
        step, carts = pieces.act_and_step(
            lambda obs: torch.zeros(len(obs), 2), carts, torch.rand(64), env.initial(uniform)
        )
        ours = env.step(step.action, uniform)
        torch.testing.assert_close(carts.state, ours.obs, **CLOSE)
        torch.testing.assert_close(step.final_obs, ours.final_obs, **CLOSE)
        assert torch.equal(step.terminated, ours.terminated)
        assert torch.equal(step.truncated, ours.truncated)
        terminations, truncations = terminations + int(step.terminated.sum()), truncations + int(step.truncated.sum())
    assert terminations
    assert truncations


def test_advantages_and_explained_variance() -> None:
    _, critic = networks()
    steps, last_obs = rollout()
    with torch.no_grad():
        batch, about_phase = pieces.estimate(critic, steps, last_obs)
        value = critic(steps.obs).squeeze(-1)
        final_value = torch.where(steps.truncated, critic(steps.final_obs).squeeze(-1), 0.0)
        done = steps.terminated | steps.truncated
        next_value = successor_values(value, critic(last_obs).squeeze(-1), done, final_value)
    expected = gae(steps.reward, value, next_value, steps.terminated, done, recipe.GAMMA, recipe.LAMBDA)
    torch.testing.assert_close(batch.advantage, expected.flatten(), **CLOSE)
    torch.testing.assert_close(batch.target, (expected + value).flatten(), **CLOSE)
    torch.testing.assert_close(about_phase[0], explained_variance(value, expected + value), **CLOSE)
    assert about_phase[1] == done.sum()


def test_an_update_is_the_library_s() -> None:
    """Loss, its terms, the clipped gradient and Adam's step, over a few updates."""
    actor, critic = networks()
    steps, last_obs = rollout()
    with torch.no_grad():
        batch, _ = pieces.estimate(critic, steps, last_obs)
    parameters = [p.detach().clone() for net in (actor, critic) for p in net.parameters()]
    zeros = [torch.zeros_like(p) for p in parameters]
    adam = functional.Adam(parameters, zeros, zeros, torch.zeros(()))
    optimizer = Optimizer(nn.ModuleList([actor, critic]))
    optimizer.learning_rate.fill_(1e-3)
    advantage = standardize(batch.advantage, batch.advantage.mean(), batch.advantage.std())
    ours = Batch(batch.obs, batch.action, batch.log_prob, torch.zeros(T * N), advantage, batch.target)
    loss = PPOLoss(recipe.CLIP, recipe.VALUE, recipe.ENTROPY, clip_vloss=False)
    for _ in range(3):
        adam, row = functional.update(adam, torch.tensor(1e-3), batch)
        total, terms = loss(lambda obs: (Categorical(actor(obs)), critic(obs).squeeze(-1)), ours)
        torch.cat([g.flatten() for g in torch.autograd.grad(total, optimizer.parameters)], out=optimizer.grad)
        norm = Runtime().step(optimizer, recipe.MAX_NORM)
        torch.testing.assert_close(row, torch.stack([*terms, norm]), **CLOSE)
    torch.testing.assert_close(torch.cat([p.flatten() for p in adam.parameters]), optimizer.flat, **CLOSE)


def test_jax_obeys_the_same_equations() -> None:
    jax = pytest.importorskip("jax")
    import jax_loop

    actor, critic = networks()
    steps, last_obs = rollout()

    def layers(net: nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = [p.detach().numpy() for p in net.parameters()]
        return [(w.T, b) for w, b in zip(parts[::2], parts[1::2], strict=True)]

    with torch.no_grad():
        batch, about_phase = pieces.estimate(critic, steps, last_obs)
    theirs, about = jax_loop.estimate(
        layers(critic), jax_loop.Transition(*(x.numpy() for x in steps)), last_obs.numpy()
    )
    np.testing.assert_allclose(theirs.advantage, batch.advantage, **CLOSE)
    np.testing.assert_allclose(theirs.target, batch.target, **CLOSE)
    np.testing.assert_allclose(about, about_phase, **CLOSE)

    weights = {"actor": layers(actor), "critic": layers(critic)}
    zeros = jax.tree.map(np.zeros_like, weights)
    parameters = [p.detach().clone() for net in (actor, critic) for p in net.parameters()]
    nothing = [torch.zeros_like(p) for p in parameters]
    adam, row = functional.update(
        functional.Adam(parameters, nothing, nothing, torch.zeros(())), torch.tensor(1e-3), batch
    )
    other, their_row = jax.jit(jax_loop.update)(
        jax_loop.Adam(weights, zeros, zeros, 0.0), 1e-3, jax_loop.Batch(*(x.numpy() for x in batch))
    )
    np.testing.assert_allclose(their_row, row, **CLOSE)
    np.testing.assert_allclose(other.parameters["actor"][1][0].T, adam.parameters[2], rtol=1e-3, atol=1e-5)
    carts = pieces.start(8)
    uniform, fresh = torch.rand(8), pieces.fresh_states(8)
    with torch.no_grad():
        step, after = pieces.act_and_step(actor, carts, uniform, fresh)
    their_after, their_step = jax.jit(jax_loop.act_and_step)(
        weights["actor"], jax_loop.Carts(*(x.numpy() for x in carts)), (uniform.numpy(), fresh.numpy())
    )
    for mine, their in zip([*step, *after], [*their_step, *their_after], strict=True):
        np.testing.assert_allclose(np.asarray(their), mine, **CLOSE)
