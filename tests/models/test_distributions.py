"""Both distributions against torch.distributions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from tightrope.models import Categorical, Gaussian, MultiCategorical

JUST_UNDER_1 = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
seeds = st.integers(0, 2**32)
batches = st.sampled_from([(), (5,), (3, 4)])
sizes = st.integers(1, 7)


def normal(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def choices(seed: int, *batch: int, n: int) -> Tensor:
    return torch.randint(n, batch, generator=torch.Generator().manual_seed(seed))


def torch_gaussian(g: Gaussian) -> Independent:
    return Independent(Normal(g.mean, g.log_std.exp().expand_as(g.mean)), 1)


@given(seeds, batches, sizes, st.sampled_from([0.1, 1.0, 10.0]))
def test_categorical_agrees_with_torch(seed, batch, n, scale):
    p, q = Categorical(normal(seed, *batch, n, scale=scale)), Categorical(normal(seed + 1, *batch, n, scale=scale))
    torch_p, torch_q = TorchCategorical(logits=p.logits), TorchCategorical(logits=q.logits)
    action = choices(seed, *batch, n=n)
    torch.testing.assert_close(p.log_prob(action), torch_p.log_prob(action))
    torch.testing.assert_close(p.entropy(), torch_p.entropy())
    torch.testing.assert_close(p.kl(q), kl_divergence(torch_p, torch_q))
    torch.testing.assert_close(p.probs, torch_p.probs)
    assert torch.equal(p.mode(), torch_p.mode)


@given(seeds, batches, sizes, st.booleans())
def test_gaussian_agrees_with_torch(seed, batch, size, state_dependent):
    shape = (*batch, size) if state_dependent else (size,)
    p = Gaussian(normal(seed, *batch, size), normal(seed + 1, *shape))
    q = Gaussian(normal(seed + 2, *batch, size), normal(seed + 3, *shape))
    torch_p, torch_q = torch_gaussian(p), torch_gaussian(q)
    action = normal(seed + 4, *batch, size, scale=3.0)
    torch.testing.assert_close(p.log_prob(action), torch_p.log_prob(action))
    torch.testing.assert_close(p.entropy(), torch_p.entropy())
    torch.testing.assert_close(p.kl(q), kl_divergence(torch_p, torch_q))
    torch.testing.assert_close(p.mode(), torch_p.mode)


@given(seeds, sizes)
def test_gradients_of_the_categorical_agree_with_torch(seed, n):
    logits = normal(seed, 6, n).requires_grad_()
    action = choices(seed, 6, n=n)

    def slope(distribution):
        return grad((distribution.log_prob(action) + 2 * distribution.entropy()).sum(), logits)

    torch.testing.assert_close(slope(Categorical(logits)), slope(TorchCategorical(logits=logits)))


@given(seeds, sizes)
def test_gradients_of_the_gaussian_agree_with_torch(seed, size):
    g = Gaussian(normal(seed, 6, size).requires_grad_(), normal(seed + 1, size).requires_grad_())
    action = normal(seed + 2, 6, size)

    def slope(distribution):
        return grad((distribution.log_prob(action) + 2 * distribution.entropy()).sum(), tuple(g))

    torch.testing.assert_close(slope(g), slope(torch_gaussian(g)))


@given(seeds, st.integers(2, 7))
def test_noise_spread_evenly_gives_each_action_its_share(seed, n):
    count = 10_000
    logits = normal(seed, n)
    noise = (torch.arange(count) + 0.5) / count
    action = Categorical(logits.expand(count, n)).sample(noise)
    frequency = torch.bincount(action, minlength=n) / count
    torch.testing.assert_close(frequency.double(), logits.softmax(-1), rtol=0, atol=2 / count)


def test_uniform_noise_gives_the_right_frequencies():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    noise = Categorical.noise((100_000,), torch.Generator().manual_seed(0))
    action = Categorical(probs.log().expand(100_000, 4)).sample(noise)
    torch.testing.assert_close(torch.bincount(action, minlength=4) / 100_000, probs, rtol=0, atol=0.01)
    assert (action != 1).all()


def test_each_row_is_sampled_with_its_own_noise_and_logits():
    certain = Categorical(torch.tensor([[[9.0, 0, 0], [0, 9.0, 0]], [[0, 0, 9.0], [9.0, 0, 0]]]))
    assert certain.sample(torch.full((2, 2), 0.5)).tolist() == [[0, 1], [2, 0]]
    even = Categorical(torch.zeros(3, 3))
    assert even.sample(torch.tensor([0.1, 0.5, 0.9])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("noise", [torch.tensor(0.0), JUST_UNDER_1], ids=["0", "just under 1"])
@pytest.mark.parametrize("impossible", [-float("inf"), -200.0])
def test_the_extremes_of_the_noise_never_choose_an_impossible_action(noise, impossible):
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(2000, 9, generator=generator)
    logits[torch.rand(2000, 9, generator=generator) < 0.5] = impossible
    logits[:, 4] = 0.0
    distribution = Categorical(logits)
    action = distribution.sample(noise.expand(2000))
    assert action.min() >= 0
    assert action.max() < 9
    assert distribution.probs.gather(1, action[:, None]).min() > 0


def test_gaussian_sample_is_noise_shifted_and_scaled():
    g = Gaussian(torch.tensor([[1.0, -1.0]]), torch.tensor([1.0, 2.0]).log())
    assert g.sample(torch.zeros(1, 2)).tolist() == [[1, -1]]
    torch.testing.assert_close(g.sample(torch.tensor([[3.0, -3.0]])), torch.tensor([[4.0, -7.0]]))


def test_gaussian_noise_gives_the_right_moments():
    g = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]).log())
    x = g.sample(Gaussian.noise((100_000, 2), torch.Generator().manual_seed(0)))
    torch.testing.assert_close(x.mean(0), g.mean, rtol=0, atol=0.05)
    torch.testing.assert_close(x.std(0), torch.tensor([0.5, 3.0]), rtol=0.02, atol=0)
    torch.testing.assert_close(torch.corrcoef(x.T)[0, 1], torch.tensor(0.0), rtol=0, atol=0.02)


@pytest.mark.parametrize("distribution", [Categorical, MultiCategorical, Gaussian])
def test_noise_is_a_function_of_its_generator(distribution):
    first, again = (distribution.noise((4, 3), torch.Generator().manual_seed(7)) for _ in range(2))
    other = distribution.noise((4, 3), torch.Generator().manual_seed(8))
    assert first.shape == (4, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
