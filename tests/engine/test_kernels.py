"""The kernels against autograd, torch's Adam and the policy itself: compiled on CUDA, else in Triton's interpreter.

Without a device they need Triton installed all the same, and imported by no one before this module asks for the interpreter.
"""

import os
import sys
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from tightrope.engine import Optimizer, Runtime, moments
from tightrope.engine.gradients import disagreement
from tightrope.engine.kernels import (
    FusedGradient,
    FusedPolicy,
    Launch,
    WideGradient,
    clip_and_adam,
    fits,
    fused_standardized,
    gradient_class,
    known_network,
)  # fmt: skip
from tightrope.engine.kernels.layout import known_loss
from tightrope.engine.kernels.trunk import fused_layers
from tightrope.engine.optimize import autograd
from tightrope.functional import PPOLoss, VPGLoss, standardize
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.models.action_mask import ACTION_MASK, options
from tightrope.types import Batch, Box, Composite, Discrete, MultiDiscrete, Spec

INTERPRETER = not torch.cuda.is_available() and find_spec("triton") is not None and "triton" not in sys.modules
if INTERPRETER:
    os.environ["TRITON_INTERPRET"] = "1"

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # numpy's, of numbers that overflow in the interpreter
CHOICE, TORQUE, VECTOR = Discrete(3), Box((2,), -1.0, 1.0), Box((4,))
TILES = Launch(programs=3, block=16, warps=4)


@pytest.fixture(params=["interpreted", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda")
    if not INTERPRETER:
        pytest.skip("Triton's interpreter is for machines that have Triton and no CUDA device")
    return torch.device("cpu")


def a_policy(device: torch.device, observation: Spec = VECTOR, action: Spec = CHOICE, **network: object) -> ActorCritic:
    torch.manual_seed(0)
    policy = actor_critic(observation, action, NetworkConfig(**{"hidden_sizes": (16, 16), **network}))  # type: ignore[arg-type]
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))  # away from zero biases and a flat head
    if policy.normalizer is not None:
        policy.normalizer.merge(3 * torch.randn(100, *observation.shape) + 1)
    return policy.to(device)


def a_batch(policy: ActorCritic, device: torch.device, rows: int, observation: Spec = VECTOR) -> Batch:
    """Ratios on both sides of the clip interval, advantages of both signs, valid action masks."""
    obs = policy.valid_rows(torch.randn(rows, *observation.shape))
    if isinstance(observation, Composite):
        obs[:, 4] = torch.randint(3, (rows,)).float()  # the part `gear`
    obs = obs.to(device)
    with torch.no_grad():
        distribution, value = policy(obs)
        noise = policy.head.noise((rows,), torch.Generator().manual_seed(1)).to(device)
        action = distribution.sample(noise)
        log_prob = distribution.log_prob(action)
    others = [torch.randn(rows).to(device) for _ in range(4)]
    return Batch(obs, action, log_prob + 0.4 * others[0], value + 0.4 * others[1], others[2], others[3])


def compare(policy: ActorCritic, batch: Batch, loss: PPOLoss, launch: Launch | None = TILES) -> None:
    optimizer = Optimizer(policy)
    expected_terms = autograd(loss, policy, batch, optimizer)
    expected = optimizer.grad.clone()
    optimizer.grad.fill_(float("nan"))  # every entry must be written
    fused = FusedGradient(policy, optimizer, launch=launch)
    terms = fused(loss, batch)
    torch.testing.assert_close(optimizer.grad, expected, rtol=1e-4, atol=2e-6 * (1 + float(expected.abs().max())))
    torch.testing.assert_close(tuple(terms), tuple(expected_terms), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused.squares.sum(), expected.square().sum(), rtol=1e-5, atol=0.0)


# the gradient -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_vloss", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_the_gradient_and_the_terms_are_those_of_autograd(device, action, activation, clip_vloss):
    policy = a_policy(device, action=action, activation=activation)
    batch = a_batch(policy, device, rows=100)
    compare(policy, batch, PPOLoss(0.2, 0.5, 0.01, clip_vloss))
    compare(policy, batch, PPOLoss(torch.tensor(0.1, device=device), 0.7, 0.0, clip_vloss))
    compare(policy, batch, PPOLoss(0.1, 0.7, torch.tensor(0.05, device=device), clip_vloss))


@pytest.mark.parametrize("action", [CHOICE, TORQUE])
@pytest.mark.parametrize("rows", [1, 15, 33, 48, 161])
def test_rows_may_be_any_number(device, action, rows):
    """Less than a tile, fewer tiles than programs, tiles that are not full, more than one a program."""
    policy = a_policy(device, action=action)
    compare(policy, a_batch(policy, device, rows), PPOLoss(0.2, 0.5, 0.01, True))


@pytest.mark.parametrize("size", [1, 4, 16, 17, 63])
@pytest.mark.parametrize("norm_obs", [False, True])
def test_observations_may_have_any_size(device, size, norm_obs):
    policy = a_policy(device, Box((size,)), norm_obs=norm_obs)
    compare(policy, a_batch(policy, device, 40, Box((size,))), PPOLoss(0.2, 0.5, 0.01, False))


@pytest.mark.parametrize(("width", "action"), [(5, Discrete(1)), (24, Box((17,))), (64, Discrete(17)), (64, Box((1,)))])
def test_widths_and_actions_may_be_any_number(device, width, action):
    policy = a_policy(device, Box((2, 3)), action, hidden_sizes=(width, width))
    compare(policy, a_batch(policy, device, 40, Box((2, 3))), PPOLoss(0.2, 0.5, 0.01, True), launch=None)


def test_the_same_minibatch_gives_the_same_bits(device):
    policy = a_policy(device, action=TORQUE)
    optimizer, batch = Optimizer(policy), a_batch(policy, device, 200)
    fused, loss = FusedGradient(policy, optimizer), PPOLoss(0.2, 0.5, 0.01, True)
    first = torch.stack([*fused(loss, batch)]), optimizer.grad.clone()
    assert torch.equal(torch.stack([*fused(loss, batch)]), first[0])
    assert torch.equal(optimizer.grad, first[1])


def test_a_small_divergence_is_not_lost_in_rounding(device):
    policy = a_policy(device)
    optimizer, batch = Optimizer(policy), a_batch(policy, device, 64)
    with torch.no_grad():
        batch.log_prob = policy.distribution(batch.obs).log_prob(batch.action) + 1e-2
    terms = FusedGradient(policy, optimizer)(PPOLoss(0.2, 0.5, 0.01, False), batch)
    assert float(terms.approx_kl) == pytest.approx(4.98337e-5, rel=1e-3)


def test_it_passes_the_examination_every_gradient_must(device):
    policy = a_policy(device, action=TORQUE)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, device, 64), PPOLoss(0.2, 0.5, 0.01, True)
    assert disagreement(FusedGradient(policy, optimizer), loss, policy, batch, optimizer) is None  # type: ignore[arg-type]
    other = PPOLoss(0.2, 0.6, 0.01, True)
    wrong = FusedGradient(policy, optimizer)
    assert disagreement(lambda _, batch: wrong(other, batch), loss, policy, batch, optimizer)  # type: ignore[arg-type]


# wide networks ----------------------------------------------------------------------------------------------------------


WIDE = [
    dict(hidden_sizes=(24,)), dict(hidden_sizes=(40, 16)), dict(hidden_sizes=(16, 33, 20), share_trunk=True),
    dict(hidden_sizes=(130, 20, 16, 16), norm_obs=True),
]  # fmt: skip


@pytest.mark.parametrize("network", WIDE, ids=str)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_the_gradient_of_a_wide_network_is_that_of_autograd(device, action, activation, network):
    policy = a_policy(device, action=action, activation=activation, **network)
    assert not fits(policy)
    compare_wide(policy, VECTOR, device)


def compare_wide(policy: ActorCritic, observation: Spec, device: torch.device) -> None:
    assert known_network(policy)
    optimizer = Optimizer(policy)
    for rows, loss in (
        (100, PPOLoss(0.2, 0.5, 0.01, True)),
        (17, PPOLoss(0.1, 0.7, torch.tensor(0.05).to(device), False)),
    ):
        batch = a_batch(policy, device, rows, observation)
        expected_terms = autograd(loss, policy, batch, optimizer)
        expected = optimizer.grad.clone()
        optimizer.grad.fill_(float("nan"))  # every entry must be written
        wide = WideGradient(policy, optimizer)
        terms = wide(loss, batch)
        torch.testing.assert_close(optimizer.grad, expected, rtol=1e-4, atol=2e-6 * (1 + float(expected.abs().max())))
        torch.testing.assert_close(tuple(terms), tuple(expected_terms), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(wide.squares.sum(), expected.square().sum(), rtol=1e-5, atol=0.0)
        wide(loss, batch)
        again = optimizer.grad.clone()
        wide(loss, batch)
        assert torch.equal(optimizer.grad, again)  # the same bits


def with_mask(observation: Spec, count: int) -> Composite:
    return Composite((("observation", observation), ("gear", Discrete(3)), (ACTION_MASK, Box((count,)))))


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("network", [WIDE[0], WIDE[2], WIDE[3], dict(hidden_sizes=(64, 64))], ids=str)
@pytest.mark.parametrize(
    "action", [CHOICE, MultiDiscrete((2, 5, 3)), MultiDiscrete((2, 2)), MultiDiscrete((20,))], ids=str
)
def test_the_gradient_of_several_choices_and_of_masks_is_that_of_autograd(device, action, network, masked):
    count = sum(options(action))
    observation = with_mask(VECTOR, count) if masked else VECTOR
    policy = a_policy(device, observation, action, **network)
    compare_wide(policy, observation, device)


@pytest.mark.parametrize("sizes", [(5, 16), (4, 24, 40), (3, 16, 130, 7, 33)])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.ELU, nn.SiLU, nn.GELU])
def test_fused_layers_are_the_layers(device, activation, sizes):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b).to(device) for a, b in pairwise(sizes)]
    for rows in (1, 17, 100):
        x = (2 * torch.randn(rows, sizes[0])).to(device).requires_grad_()
        expected = x
        for layer in layers:
            expected = activation()(layer(expected))
        given = fused_layers(layers, activation(), x)
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)
        inputs, grad = [x, *(p for layer in layers for p in layer.parameters())], torch.randn_like(expected)
        for mine, theirs in zip(
            torch.autograd.grad(given, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-6 * (1 + float(theirs.abs().max())))


# the step ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_grad_norm", [None, 0.05, 1e3])
def test_the_step_is_that_of_torch(device, max_grad_norm):
    ours, theirs = (Optimizer(a_policy(device, Box((17,)))) for _ in range(2))
    for k in range(6):
        stopped = torch.tensor(float(k in (2, 3)), device=device) if k else None
        grad = torch.randn(ours.grad.shape).to(device)
        for o in (ours, theirs):
            o.grad.copy_(grad)
            o.learning_rate.fill_(1e-3 * (k + 1))
        before = ours.flat.clone()
        norm = clip_and_adam(ours, max_grad_norm, stopped, squares=grad.square())
        torch.testing.assert_close(
            norm, Runtime(device=theirs.flat.device).step(theirs, max_grad_norm, stopped), rtol=1e-5, atol=0.0
        )
        for name in ("flat", "first_moment", "second_moment", "step_count"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-7)
        assert torch.equal(before, ours.flat) == (k in (2, 3))
        assert int(ours.arrivals) == 0
    assert float(ours.step_count) == 4


def test_gradient_and_step_together_learn_as_the_plain_ones(device):
    ours, theirs = (a_policy(device, action=TORQUE) for _ in range(2))
    our_optimizer, their_optimizer = Optimizer(ours), Optimizer(theirs)
    fused, loss = FusedGradient(ours, our_optimizer), PPOLoss(0.2, 0.5, 0.01, False)
    start = our_optimizer.flat.clone()
    for k in range(4):
        torch.manual_seed(k)
        batch = a_batch(theirs, device, 50)
        for o in (our_optimizer, their_optimizer):
            o.learning_rate.fill_(1e-2)
        fused(loss, batch)
        autograd(loss, theirs, batch, their_optimizer)
        clip_and_adam(our_optimizer, 0.5, squares=fused.squares)
        Runtime(device=their_optimizer.flat.device).step(their_optimizer, 0.5)
    assert (our_optimizer.flat - start).norm() > 0.1
    torch.testing.assert_close(our_optimizer.flat, their_optimizer.flat, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 2047, 2048, 5000])
def test_standardized_is_standardize_of_the_moments(device, rows):
    x = (3 * torch.randn(rows) + 100).to(device)
    expected = standardize(x.double(), *moments(x.double())).float()
    torch.testing.assert_close(fused_standardized(x), expected, rtol=1e-4, atol=1e-4)


# acting and judging -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 16, 101])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", [CHOICE, TORQUE, Discrete(1), Box((17,))])
def test_the_fused_policy_acts_and_judges_as_the_policy_does(device, action, activation, rows):
    policy = a_policy(device, Box((2, 3)), action, activation=activation, norm_obs=True)
    fused = FusedPolicy(policy, Optimizer(policy).flat, launch=TILES)
    obs = (3 * torch.randn(rows, 2, 3)).to(device)
    noise = policy.head.noise((rows,), torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        distribution, value = policy(obs)
        expected = distribution.sample(noise)
        log_prob = distribution.log_prob(expected)
    taken, _ = fused.act(obs, noise)
    assert taken.dtype == expected.dtype
    torch.testing.assert_close(taken, expected, rtol=1e-5, atol=1e-5)
    judged = fused.evaluate_actions(obs, expected)
    torch.testing.assert_close(judged, (log_prob, value), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fused.value(obs), value, rtol=1e-5, atol=1e-5)


def test_the_extremes_of_the_noise_choose_the_first_and_the_last_action(device):
    policy = a_policy(device, action=Discrete(5))
    fused, obs = FusedPolicy(policy, Optimizer(policy).flat), torch.randn(64, 4).to(device)
    assert torch.equal(fused.act(obs, torch.zeros(64, device=device))[0], torch.zeros(64, dtype=torch.int64).to(device))
    assert bool((fused.act(obs, torch.full((64,), 1 - 2**-24, device=device))[0] == 4).all())


def test_a_number_that_is_none_is_seen(device):
    policy = a_policy(device, activation="relu", norm_obs=True)
    obs = torch.full((3, 4), float("nan"), device=device)
    assert FusedPolicy(policy, Optimizer(policy).flat).value(obs).isnan().all()


# what they are for ------------------------------------------------------------------------------------------------------


def test_only_networks_the_kernels_know():
    def network(observation: Spec = VECTOR, action: Spec = CHOICE, **settings: object) -> nn.Module:
        return actor_critic(observation, action, NetworkConfig(**settings))  # type: ignore[arg-type]

    known = [network(), network(action=TORQUE), network(activation="relu"), network(Box((2, 3)), norm_obs=True)]
    assert all(map(fits, known))
    frozen = network()
    next(frozen.parameters()).requires_grad_(False)
    unknown = [
        network(activation="silu"), network(share_trunk=True), network(hidden_sizes=(64,)), network(Discrete(5)),
        network(hidden_sizes=(64, 64, 64)), network(hidden_sizes=(64, 32)), network(hidden_sizes=(128, 128)),
        network(Box((64,))), network(action=Discrete(33)), network(action=MultiDiscrete((2, 3))),
        network(action=TORQUE, log_std="state"), network().double(), frozen, nn.Linear(4, 2),
        actor_critic(VECTOR, CHOICE, NetworkConfig(), critic=False),
    ]  # fmt: skip
    assert not any(map(fits, unknown))


def test_wide_networks_that_the_kernels_know():
    def network(**settings: object) -> nn.Module:
        return actor_critic(VECTOR, TORQUE, NetworkConfig(**settings))  # type: ignore[arg-type]

    known = [
        network(hidden_sizes=(512, 256, 128), activation="elu"), network(hidden_sizes=(128,)), network(share_trunk=True),
        network(activation="silu"), network(activation="gelu", hidden_sizes=(16, 17, 18, 19)), network(norm_obs=True),
    ]  # fmt: skip
    choices = MultiDiscrete((2, 3))
    parts = Composite((("speed", VECTOR), ("gear", Discrete(3))))
    known += [actor_critic(seen, choices, NetworkConfig()) for seen in (VECTOR, with_mask(VECTOR, 5), parts)]
    assert all(map(known_network, known))
    unknown = [network(hidden_sizes=(513, 16)), network(log_std="state"), network(memory="gru"), nn.Linear(4, 2)]
    assert not any(map(known_network, unknown))


def test_without_a_device_there_are_no_kernels():
    policy = actor_critic(VECTOR, CHOICE, NetworkConfig())
    assert gradient_class(PPOLoss(0.2, 0.5, 0.01, False), policy) is None


@pytest.mark.gpu
def test_with_a_device_there_are():
    policy = actor_critic(VECTOR, CHOICE, NetworkConfig()).to("cuda")
    wide = actor_critic(VECTOR, CHOICE, NetworkConfig(hidden_sizes=(128, 128))).to("cuda")
    loss = PPOLoss(0.2, 0.5, 0.01, False)
    assert gradient_class(loss, policy) is FusedGradient
    assert gradient_class(loss, wide) is WideGradient
    assert gradient_class(VPGLoss(False, None, 0.5, 0.0), policy) is None


def test_only_the_loss_that_the_kernels_know():
    assert known_loss(PPOLoss(0.2, 0.5, 0.01, False))
    assert not known_loss(VPGLoss(False, None, 0.5, 0.0))
    assert not known_loss(PPOLoss(0.2, 0.5, 0.01, False, bonus=lambda entropy: 2 * entropy.mean()))


@pytest.mark.gpu
def test_gradient_and_step_can_be_captured():
    device = torch.device("cuda")
    policy = a_policy(device, hidden_sizes=(64, 64))
    optimizer, batch = Optimizer(policy), a_batch(policy, device, 1000)
    fused, loss = FusedGradient(policy, optimizer), PPOLoss(torch.tensor(0.2, device=device), 0.5, 0.01, False)

    def update() -> Tensor:
        fused(loss, batch)
        return clip_and_adam(optimizer, 0.5, squares=fused.squares)

    optimizer.learning_rate.fill_(1e-3)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        update()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    saved = optimizer.flat.clone(), optimizer.state_dict()
    update()
    expected = optimizer.flat.clone()
    optimizer.flat.copy_(saved[0])
    optimizer.load_state_dict(saved[1])
    graph.replay()
    assert torch.equal(optimizer.flat, expected)
    assert float(optimizer.step_count) == 2
