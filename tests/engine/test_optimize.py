"""The one gradient step, against torch.optim.Adam and clip_grad_norm_ on a copy of the network."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from tightrope.engine import Optimizer, Runtime
from tightrope.engine.optimize import MAX_TERMS, over_ranks
from tightrope.errors import UsageError
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Box, Discrete

RUNTIME = Runtime()
MOMENTS = ("first_moment", "second_moment", "step_count")


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def data(seed: int = 0) -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))


def squares(net: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
    """A loss in the shape of ours: what to minimise, and the terms to log."""
    total = (net(x) - 1).square().sum()
    return total, (total.detach(),)


def step(optimizer: Optimizer, net: nn.Module, x: Tensor, limit: float | None = None, stopped=None) -> Tensor:
    RUNTIME.backward(squares, net, x, optimizer)
    return RUNTIME.step(optimizer, limit, stopped)


def trained(steps: int = 3) -> tuple[nn.Module, Optimizer]:
    net = network()
    optimizer = Optimizer(net)
    optimizer.learning_rate.fill_(0.01)
    for i in range(steps):
        step(optimizer, net, data(i))
    return net, optimizer


@pytest.mark.parametrize("limit", [None, 0.5, 1e6])
def test_steps_are_those_of_adam_after_clipping_the_norm(limit):
    net = network()
    twin = deepcopy(net)
    ours, theirs = Optimizer(net), torch.optim.Adam(twin.parameters(), eps=1e-5)
    for i in range(10):
        rate = 0.01 * (1 - i / 10)
        ours.learning_rate.fill_(rate)
        theirs.param_groups[0]["lr"] = rate
        norm = step(ours, net, data(i), limit)

        theirs.zero_grad()
        squares(twin, data(i))[0].backward()
        expected_norm = nn.utils.clip_grad_norm_(twin.parameters(), float("inf") if limit is None else limit)
        theirs.step()
        torch.testing.assert_close(norm, expected_norm)
        torch.testing.assert_close(list(net.parameters()), list(twin.parameters()), rtol=1e-5, atol=1e-6)
    assert float(ours.step_count) == 10


def test_epsilon_is_1e_5():
    """With a gradient as small as epsilon the first step is lr * g / (g + eps): half the learning rate."""
    net = nn.Linear(1, 1)
    optimizer = Optimizer(net)
    before = optimizer.flat.clone()
    optimizer.learning_rate.fill_(1.0)
    optimizer.grad.fill_(1e-5)
    RUNTIME.step(optimizer, None)
    torch.testing.assert_close(before - optimizer.flat, torch.full((2,), 0.5), rtol=1e-4, atol=0)


def test_gradient_is_that_of_autograd_in_the_order_of_the_parameters():
    net = network()
    optimizer = Optimizer(net)
    terms = RUNTIME.backward(squares, net, data(), optimizer)
    expected = torch.autograd.grad(squares(net, data())[0], list(net.parameters()))
    assert torch.equal(optimizer.grad, torch.cat([g.flatten() for g in expected]))
    assert torch.equal(terms[0], squares(net, data())[1][0])
    RUNTIME.backward(squares, net, data(), optimizer)
    assert torch.equal(optimizer.grad, torch.cat([g.flatten() for g in expected]))  # written, not added up


def test_a_stopped_step_changes_nothing():
    net, optimizer = trained()
    before = [optimizer.flat.clone(), *(getattr(optimizer, name).clone() for name in MOMENTS)]
    step(optimizer, net, data(9), limit=0.5, stopped=torch.ones(()))
    after = [optimizer.flat, *(getattr(optimizer, name) for name in MOMENTS)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_a_step_that_is_not_stopped_is_a_plain_step():
    (net, optimizer), (twin, plain) = trained(), trained()
    step(optimizer, net, data(9), limit=0.5, stopped=torch.zeros(()))
    step(plain, twin, data(9), limit=0.5)
    assert torch.equal(optimizer.flat, plain.flat)
    assert all(torch.equal(getattr(optimizer, name), getattr(plain, name)) for name in MOMENTS)


def test_parameters_without_gradient_stay_put():
    """No weight decay: a layer that the loss does not use keeps its weights for ever."""
    net = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    idle, used = net["idle"].weight.detach().clone(), net["used"].weight.detach().clone()
    optimizer = Optimizer(net)
    optimizer.learning_rate.fill_(0.1)
    for i in range(5):
        RUNTIME.backward(lambda n, x: squares(n["used"], x), net, data(i), optimizer)
        RUNTIME.step(optimizer, 0.5)
    assert torch.equal(net["idle"].weight, idle)
    assert not torch.equal(net["used"].weight, used)


@pytest.mark.parametrize(("limit", "scale"), [(1.0, 0.2), (5.0, 1.0), (10.0, 1.0), (None, 1.0)])
def test_only_a_gradient_longer_than_the_limit_is_shortened(limit, scale):
    optimizer = Optimizer(nn.Linear(1, 1))
    optimizer.grad.copy_(torch.tensor([3.0, 4.0]))
    assert float(RUNTIME.step(optimizer, limit)) == 5
    torch.testing.assert_close(optimizer.grad, scale * torch.tensor([3.0, 4.0]))


def test_the_network_is_a_view_of_the_flat_buffer():
    net = network()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = Optimizer(net)
    assert optimizer.flat.numel() == sum(p.numel() for p in before)
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    optimizer.flat.fill_(0.25)
    assert all((p == 0.25).all() for p in net.parameters())


def test_buffers_keep_their_address():
    net, optimizer = trained()
    tensors = [optimizer.flat, optimizer.grad, optimizer.step_count, optimizer.first_moment, *net.parameters()]
    addresses = [t.data_ptr() for t in tensors]
    step(optimizer, net, data(), limit=0.5)
    net.load_state_dict(network(seed=1).state_dict())
    optimizer.load_state_dict(trained()[1].state_dict())
    now = [optimizer.flat, optimizer.grad, optimizer.step_count, optimizer.first_moment, *net.parameters()]
    assert [t.data_ptr() for t in now] == addresses
    assert torch.equal(optimizer.flat, torch.cat([p.flatten() for p in network(seed=1).parameters()]))


def test_shared_parameters_are_once_in_the_buffer_and_once_in_the_norm():
    torch.manual_seed(0)
    policy = actor_critic(Box((3,)), Discrete(2), NetworkConfig(hidden_sizes=(4,), share_trunk=True))
    optimizer = Optimizer(policy)
    assert optimizer.flat.numel() == (3 * 4 + 4) + (4 * 2 + 2) + (4 + 1)

    def loss(policy, obs):
        distribution, value = policy(obs)
        return distribution.logits.square().sum() + value.square().sum(), ()

    RUNTIME.backward(loss, policy, data(), optimizer)
    total, _ = loss(policy, data())
    total.backward()
    unique = {id(p): p.grad for p in policy.parameters()}.values()
    expected = sum(float(g.square().sum()) for g in unique) ** 0.5
    assert float(RUNTIME.step(optimizer, None)) == pytest.approx(expected, rel=1e-5)


def test_a_run_restored_from_its_state_goes_on_bit_for_bit():
    net, optimizer = trained()
    saved, weights = optimizer.state_dict(), deepcopy(net.state_dict())
    step(optimizer, net, data(9))

    other = network(seed=1)
    restored = Optimizer(other)
    other.load_state_dict(weights)
    restored.load_state_dict(saved)
    assert float(restored.learning_rate) == pytest.approx(0.01)
    step(restored, other, data(9))
    assert torch.equal(restored.flat, optimizer.flat)
    assert all(torch.equal(getattr(restored, name), getattr(optimizer, name)) for name in MOMENTS)


def test_a_saved_state_is_a_copy():
    net, optimizer = trained()
    saved = optimizer.state_dict()
    kept = {name: tensor.clone() for name, tensor in saved.items()}
    step(optimizer, net, data(9))
    assert all(torch.equal(saved[name], kept[name]) for name in kept)
    assert not torch.equal(optimizer.first_moment, saved["first_moment"])


def test_on_the_cpu_learning_breaks_off_as_soon_as_it_is_stopped():
    assert RUNTIME.halted(torch.ones(())) is True
    assert RUNTIME.halted(torch.zeros(())) is False
    assert Runtime(on_device=True).halted(torch.ones((), device="meta")) is False


def test_a_loss_with_too_many_terms_for_a_message_is_refused():
    net, terms = nn.Linear(3, 1), tuple(torch.zeros(MAX_TERMS + 1))
    with pytest.raises(UsageError, match=f"returns {MAX_TERMS + 1} terms, and ranks exchange at most {MAX_TERMS}"):
        over_ranks(terms, data(), Optimizer(net))
