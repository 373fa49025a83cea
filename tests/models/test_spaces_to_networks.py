"""Spaces to networks: every observation has an encoder, every action a head, and each is what torch says it should be."""

import math
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributions as td

from tightrope.engine import Optimizer, update_statistics
from tightrope.envs.adapters import spaces
from tightrope.envs.adapters.space_members import stacked
from tightrope.errors import UsageError
from tightrope.models import MLP, ActorCritic, NatureCNN, NetworkConfig, actor_critic
from tightrope.models.actor_critic import GaussianHead, MultiCategoricalHead
from tightrope.models.distributions import RULED_OUT, MultiCategorical
from tightrope.models.networks import (
    Custom,
    OneHot,
    Parts,
    encoded_size,
    encoder_of,
    real_numbers,
    sees_images,
    trunk_for,
)  # fmt: skip
from tightrope.types import Box, Composite, Discrete, MultiDiscrete, Spec

INF = float("inf")
CHOICE = Discrete(2)
IMAGE = Box((3, 36, 40), 0, 255, torch.uint8)
MIXED = Composite(
    (("speed", Box((2, 2))), ("gear", Discrete(4)), ("keys", MultiDiscrete((2, 3))), ("bits", Box((3,), 0.0, 1.0)))
)
SEEING = Composite((("speed", Box((2,))), ("eye", IMAGE), ("gear", Discrete(3))))
OBSERVATIONS: dict[str, Spec] = {
    "vector": Box((3,)),
    "matrix": Box((2, 3)),
    "image": IMAGE,
    "discrete": Discrete(5),
    "multidiscrete": MultiDiscrete((2, 4, 3)),
    "mixed": MIXED,
    "seeing": SEEING,
}
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple)


def observations(spec: Spec, count: int, seed: int = 0) -> Tensor:
    """(count, ...) members."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spec, Composite):
        parts = [observations(part, count, seed + i) for i, (_, part) in enumerate(spec.parts)]
        return torch.cat([part.reshape(count, -1).float() for part in parts], 1)
    if isinstance(spec, Discrete):
        return torch.randint(spec.n, (count,), generator=generator)
    if isinstance(spec, MultiDiscrete):
        return (torch.rand(count, len(spec.n), generator=generator) * torch.tensor(spec.n)).long()
    if spec.dtype == torch.uint8:
        return torch.randint(256, (count, *spec.shape), dtype=torch.uint8, generator=generator)
    return torch.randn(count, *spec.shape, generator=generator)


def policy_for(observation: Spec, action: Spec = CHOICE, seed: int = 0, **network: Any) -> ActorCritic:
    torch.manual_seed(seed)
    return actor_critic(observation, action, NetworkConfig(**network))


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UsageError) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


# observations --------------------------------------------------------------------------------------------------------


@given(sizes, st.integers(0, 1000))
def test_one_hot_is_that_of_torch_choice_by_choice(n: tuple[int, ...], seed: int) -> None:
    obs = observations(MultiDiscrete(n), 4, seed)
    expected = torch.cat([F.one_hot(obs[:, i], k) for i, k in enumerate(n)], 1).float()
    encode = OneHot(n)
    assert torch.equal(encode(obs), expected)
    assert encode.out_features == expected.shape[1] == sum(n)
    assert expected.sum(1).tolist() == [len(n)] * 4


@pytest.mark.parametrize("bad", [[-1, 0], [2, 0], [0, 3]])
def test_a_choice_out_of_range_is_not_a_number(bad: list[int]) -> None:
    rows = OneHot((2, 3))(torch.tensor([[1, 2], bad]))
    assert torch.isfinite(rows[0]).all()
    assert rows[1].isnan().any()


def test_one_hot_of_a_single_integer() -> None:
    assert torch.equal(OneHot((3,))(torch.tensor([2, 0])), torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_an_encoder_gives_as_many_numbers_as_it_says(name: str) -> None:
    spec = OBSERVATIONS[name]
    obs = observations(spec, 3)
    features = encoder_of(spec, 8, "relu")(obs)
    assert features.shape == (3, encoded_size(spec, 8))
    assert features.dtype == torch.float32
    trunk = trunk_for(spec, (8, 6), "relu")
    assert trunk(obs).shape == (3, trunk.out_features)


@pytest.mark.parametrize("name", list(OBSERVATIONS))
def test_every_observation_has_a_policy_and_every_action_a_head(name: str) -> None:
    spec = OBSERVATIONS[name]
    obs = observations(spec, 3)
    for action, shape in ((Discrete(4), ()), (MultiDiscrete((2, 3)), (2,)), (Box((2, 2), -1.0, 1.0), (2, 2))):
        policy = policy_for(spec, action, norm_obs=True, hidden_sizes=(8,))
        distribution, value = policy(obs)
        assert value.shape == (3,)
        raw = distribution.sample(policy.head.noise((3,), torch.Generator().manual_seed(0)))
        assert policy.head.to_env(raw).shape == (3, *shape)
        assert distribution.log_prob(raw).shape == distribution.entropy().shape == (3,)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "part"])
@pytest.mark.parametrize("number", [gs.Box(-1, 1, ()), gs.Box(0, 255, (), np.uint8)], ids=["real", "byte"])
def test_an_observation_of_a_single_number_has_a_network(number: gs.Box, alone: bool) -> None:
    space = number if alone else gs.Dict({"height": number, "speed": gs.Box(-1, 1, (2,))})
    read = spaces.observation_reader(space)
    rows = torch.from_numpy(read.rows(stacked(space, [space.sample() for _ in range(3)])))
    assert policy_for(read.spec).value(rows).shape == (3,)


def test_parts_are_encoded_each_in_its_way_and_put_side_by_side() -> None:
    obs = observations(MIXED, 5)
    parts = MIXED.split(obs)
    assert torch.equal(parts["gear"], observations(Discrete(4), 5, 1))
    assert torch.equal(parts["keys"], observations(MultiDiscrete((2, 3)), 5, 2))
    keys = [F.one_hot(parts["keys"][:, i], k) for i, k in enumerate((2, 3))]
    expected = [parts["speed"].flatten(1), F.one_hot(parts["gear"], 4), *keys, parts["bits"]]
    assert torch.equal(Parts(MIXED, 8, "tanh")(obs), torch.cat([part.float() for part in expected], 1))


def test_parts_beside_a_picture_get_the_same_number_of_features() -> None:
    encode, obs = Parts(SEEING, 8, "tanh"), observations(SEEING, 2)
    eye, scale, project, activate = encode.encoders[1]
    assert isinstance(eye, NatureCNN)
    features = encode(obs)
    assert features.shape == (2, 3 * 8)
    picture = observations(IMAGE, 2, 1)
    torch.testing.assert_close(features[:, 8:16], activate(project(scale(eye(picture)))))
    with torch.no_grad():  # however far the convolutions move
        eye.head[0].weight.mul_(100)
    assert encode(obs)[:, 8:16].abs().max() <= 1
    torch.testing.assert_close(scale(eye(picture)).pow(2).mean(1), torch.ones(2), atol=1e-3, rtol=0)


def test_pictures_of_real_numbers_are_read_by_convolutions() -> None:
    pictures = [
        (gs.Box(0, 1, (84, 84, 3), np.float32), (3, 84, 84), 1.0),
        (gs.Box(0, 255, (3, 40, 40), np.float64), (3, 40, 40), 255.0),
        (gs.Box(-1, 1, (48, 64), np.float32), (1, 48, 64), 1.0),
        (gs.Box(-np.inf, np.inf, (4, 36, 36), np.float32), (4, 36, 36), 1.0),
    ]
    for space, shape, max_pixel in pictures:
        read = spaces.observation_reader(space)
        assert (read.spec.shape, read.spec.dtype) == (shape, torch.float32)
        trunk = policy_for(read.spec, norm_obs=True).actor
        assert isinstance(trunk, NatureCNN)
        assert trunk.max_pixel == max_pixel
        rows = torch.from_numpy(read.rows(np.stack([space.sample() for _ in range(2)])))
        before = rows.clone()
        assert trunk(rows).shape == (2, 512)
        assert torch.equal(rows, before)  # the rollout's own memory
    for flat in ((3, 35, 35), (40, 3), (200,)):
        assert isinstance(policy_for(spaces.observation_reader(gs.Box(0, 1, flat, np.float32)).spec).actor, MLP)


def test_pictures_share_their_trunk_wherever_they_are() -> None:
    for spec in (IMAGE, SEEING):
        policy = policy_for(spec)
        assert sees_images(spec)
        assert policy.critic is policy.actor
    assert isinstance(policy_for(IMAGE).actor, NatureCNN)
    assert isinstance(policy_for(SEEING).actor, MLP)
    for spec in (MIXED, Discrete(3), Box((2,)), Box((3, 30, 40))):
        assert not sees_images(spec)
        assert policy_for(spec).critic is not policy_for(spec).actor


@pytest.mark.parametrize("name", list(OBSERVATIONS))
@pytest.mark.parametrize("share_trunk", [False, True])
def test_each_parameter_is_counted_once(name: str, share_trunk: bool) -> None:
    spec = OBSERVATIONS[name]
    policy = policy_for(spec, share_trunk=share_trunk, hidden_sizes=(8,))
    shared = share_trunk or sees_images(spec)
    size = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    expected = (1 if shared else 2) * size(policy.actor) + size(policy.head) + size(policy.value_head)
    assert size(policy) == expected
    assert Optimizer(policy).flat.numel() == expected


def test_numbers_that_are_neither_real_nor_a_picture_are_refused() -> None:
    for spec in (Box((3,), dtype=torch.int64), Box((3, 20, 20), 0, 255, torch.uint8)):
        message = refusal(policy_for, spec)
        assert str(spec.shape) in message
        assert "give" in message


# networks of one's own -----------------------------------------------------------------------------------------------


class Own(nn.Module):
    """Remembers what it was shown."""

    def __init__(self, size: int, out: int = 7) -> None:
        super().__init__()
        self.layer = nn.Linear(size, out)
        self.seen: list[Any] = []

    def forward(self, obs: Any) -> Tensor:
        self.seen.append(obs)
        return self.layer(obs["speed"].flatten(1) if isinstance(obs, dict) else obs.flatten(1))


def test_a_network_of_ones_own_is_the_trunk_of_both() -> None:
    network = Own(3)
    policy = actor_critic(Box((3,)), Discrete(2), NetworkConfig(), network=network)
    assert isinstance(policy.actor, Custom)
    assert policy.actor.network is network
    assert policy.critic is policy.actor
    assert policy.actor.out_features == 7
    assert policy.head.logits.in_features == policy.value_head.in_features == 7
    network.seen.clear()
    obs = observations(Box((3,)), 4)
    distribution, value = policy(obs)
    assert len(network.seen) == 1
    assert torch.equal(network.seen[0], obs)
    torch.testing.assert_close(value, policy.value_head(network.layer(obs))[:, 0])
    torch.testing.assert_close(distribution.logits, policy.head.logits(network.layer(obs)))
    parameters = list(policy.parameters())
    assert len(parameters) == len({id(p) for p in parameters}) == 6
    assert all(any(p is q for q in parameters) for p in network.parameters())


def test_a_network_of_ones_own_gets_composite_observations_as_their_parts() -> None:
    network = Own(4)
    policy = actor_critic(MIXED, Discrete(2), NetworkConfig(), network=network)
    obs = observations(MIXED, 4)
    policy(obs)
    seen = network.seen[-1]
    assert list(seen) == ["speed", "gear", "keys", "bits"]
    for (name, spec), other in zip(MIXED.parts, MIXED.split(obs).values(), strict=True):
        assert torch.equal(seen[name], other)
        assert (tuple(seen[name].shape), seen[name].dtype) == ((4, *spec.shape), spec.dtype)


def test_a_network_of_ones_own_gets_normalised_observations() -> None:
    network = Own(3)
    policy = actor_critic(Box((3,)), Discrete(2), NetworkConfig(norm_obs=True), network=network)
    obs = 5 + 2 * observations(Box((3,)), 50)
    update_statistics(policy, obs[None])
    policy(obs)
    torch.testing.assert_close(network.seen[-1].mean(0), torch.zeros(3), rtol=0, atol=1e-4)


class Wrong(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, obs: Tensor) -> Any:
        return self.answer(obs)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda obs: obs.sum(1), "(2,)"),
        (lambda obs: obs[:1], "(1, 3)"),
        (lambda obs: obs[:, None], "(2, 1, 3)"),
        (lambda obs: (obs, obs), "tuple"),
        (lambda obs: obs @ torch.zeros(5, 2), "does not take observations"),
        (lambda obs: {}["x"], "does not take observations"),
    ],
    ids=["vector", "one row", "three axes", "tuple", "other sizes", "error"],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(answer: Any, said: str) -> None:
    message = refusal(actor_critic, Box((3,)), Discrete(2), NetworkConfig(), network=Wrong(answer))
    assert said in message
    assert "Wrong" in message


# several choices -----------------------------------------------------------------------------------------------------


def distributions(n: tuple[int, ...], seed: int, rows: int = 3) -> tuple[MultiCategorical, list[td.Categorical]]:
    """The same distribution twice: ours, and torch's choice by choice."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, len(n), max(n), generator=generator, dtype=torch.float64)
    beyond = torch.arange(max(n))[None] >= torch.tensor(n)[:, None]
    theirs = [td.Categorical(logits=logits[:, i, :k]) for i, k in enumerate(n)]
    return MultiCategorical(logits.masked_fill(beyond, RULED_OUT)), theirs


@given(sizes, st.integers(0, 1000))
def test_several_choices_are_those_of_torch(n: tuple[int, ...], seed: int) -> None:
    (ours, theirs), (other, others) = distributions(n, seed), distributions(n, seed + 1)
    action = torch.stack([d.sample() for d in theirs], 1)
    total = lambda parts: torch.stack(list(parts)).sum(0)  # noqa: E731
    torch.testing.assert_close(
        ours.log_prob(action), total(d.log_prob(a) for d, a in zip(theirs, action.T, strict=True))
    )
    torch.testing.assert_close(ours.entropy(), total(d.entropy() for d in theirs))
    expected = total(td.kl_divergence(p, q) for p, q in zip(theirs, others, strict=True))
    torch.testing.assert_close(ours.kl(other), expected)
    torch.testing.assert_close(ours.kl(ours), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(ours.mode(), torch.stack([d.probs.argmax(-1) for d in theirs], 1))
    for i, d in enumerate(theirs):
        torch.testing.assert_close(ours.probs[:, i, : n[i]], d.probs)
        assert not ours.probs[:, i, n[i] :].any(), "a ruled-out option has a probability"


@given(sizes, st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_a_ruled_out_option_is_never_chosen(n: tuple[int, ...], seed: int, noise: float) -> None:
    ours, _ = distributions(n, seed)
    for action in (ours.sample(torch.full((3, len(n)), noise, dtype=torch.float64)), ours.mode()):
        assert (action >= 0).all()
        assert (action < torch.tensor(n)).all()


@given(sizes, st.integers(0, 1000))
def test_the_head_rules_out_what_there_is_not_and_learns_nothing_from_it(n: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    head = MultiCategoricalHead(6, MultiDiscrete(n))
    nn.init.normal_(head.logits.weight)
    nn.init.normal_(head.logits.bias, 0, 30)  # however much the network would like it
    distribution = head(torch.randn(4, 6))
    action = distribution.sample(head.noise((4,), torch.Generator().manual_seed(seed)))
    assert action.shape == (4, len(n))
    assert (action < torch.tensor(n)).all()
    assert (distribution.mode() < torch.tensor(n)).all()
    (distribution.log_prob(action).sum() + distribution.entropy().sum()).backward()
    grad = head.logits.bias.grad.view(len(n), max(n))
    assert grad.isfinite().all()
    for i, k in enumerate(n):
        assert not grad[i, k:].any()


def test_the_entropy_of_the_first_policy_is_that_of_even_choices() -> None:
    policy = policy_for(Box((3,)), MultiDiscrete((2, 6, 3)))
    entropy = policy.distribution(observations(Box((3,)), 5)).entropy()
    torch.testing.assert_close(entropy, torch.full((5,), math.log(2 * 6 * 3)), rtol=0, atol=1e-3)


# bounded actions -----------------------------------------------------------------------------------------------------

finite = st.floats(-100, 100, width=32)
limits = st.tuples(finite, finite).filter(lambda pair: pair[0] < pair[1])


@given(st.lists(limits, min_size=1, max_size=4), st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
def test_one_unit_of_action_is_half_of_the_interval(pairs: list[tuple[float, float]], raw: list[float]) -> None:
    low, high = (np.array(side) for side in zip(*pairs, strict=True))
    size = len(pairs)
    head = GaussianHead(4, Box((size,), tuple(low.tolist()), tuple(high.tolist())), state_dependent=False)
    middle, reach = (low + high) / 2, (high - low) / 2
    for unit, expected in ((-1.0, low), (0.0, middle), (1.0, high)):
        np.testing.assert_allclose(head.to_env(torch.full((1, size), unit))[0], expected, rtol=1e-5, atol=1e-4)
    action = np.array(raw[:size])
    expected = np.clip(middle + reach * action, low, high)
    given = head.to_env(torch.tensor(raw[:size])[None])[0].numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-4)
    assert (given >= low.astype(np.float32)).all()
    assert (given <= high.astype(np.float32)).all()


def test_bounds_on_one_side_or_none_leave_the_scale_alone() -> None:
    box = Box((4,), (-INF, 0.0, -INF, -4.0), (INF, INF, 1.0, 2.0))
    head = GaussianHead(4, box, state_dependent=False)
    assert head.to_env(torch.tensor([[7.0, -2.0, 5.0, 0.5], [-7.0, 2.0, -5.0, 9.0]])).tolist() == [
        [7.0, 0.0, 1.0, 0.5],
        [-7.0, 2.0, -5.0, 2.0],
    ]
    assert not any(torch.isnan(buffer).any() for buffer in head.buffers())


def test_a_bound_for_all_is_one_for_each() -> None:
    one, other = (
        GaussianHead(4, Box((2,), -1.0, 3.0), False),
        GaussianHead(4, Box((2,), (-1.0, -1.0), (3.0, 3.0)), False),
    )
    raw = torch.tensor([[0.25, -7.0]])
    assert torch.equal(one.to_env(raw), other.to_env(raw))
    assert one.to_env(raw).tolist() == [[1.5, -1.0]]


def test_matrices_of_actions_are_flat_to_the_learner() -> None:
    policy = policy_for(Box((3,)), Box((2, 2), (0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0)))
    distribution = policy.distribution(observations(Box((3,)), 5))
    assert distribution.mean.shape == (5, 4)
    assert policy.head.to_env(torch.zeros(5, 4))[0].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert policy.head.to_env(torch.zeros(6, 5, 4)).shape == (6, 5, 2, 2)


# normalisation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [MIXED, SEEING], ids=["mixed", "seeing"])
def test_only_real_numbers_are_normalised(spec: Composite) -> None:
    policy = policy_for(spec, norm_obs=True, hidden_sizes=(8,))
    obs = observations(spec, 400)
    shifted = torch.where(real_numbers(spec), 3 * obs + 10, obs)
    update_statistics(policy, shifted.view(20, 20, -1))
    before, after = spec.split(shifted), spec.split(policy.normalizer(shifted))
    for name, part in spec.parts:
        if isinstance(part, Box) and part.dtype.is_floating_point:
            torch.testing.assert_close(after[name].mean(0), torch.zeros(part.shape), rtol=0, atol=1e-3)
            torch.testing.assert_close(after[name].std(0, correction=0), torch.ones(part.shape), rtol=0, atol=1e-3)
        else:
            assert torch.equal(after[name], before[name]), name
    seen: list[Tensor] = []
    policy.actor.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    policy(shifted[:3])
    assert torch.equal(seen[0], policy.normalizer(shifted[:3])), "the network must see what the normalizer gives"


@pytest.mark.parametrize(
    "spec", [IMAGE, Discrete(4), MultiDiscrete((2, 3)), Composite((("a", IMAGE), ("b", Discrete(2))))]
)
def test_without_real_numbers_there_is_nothing_to_normalise(spec: Spec) -> None:
    assert policy_for(spec, norm_obs=True).normalizer is None
    assert not real_numbers(spec).any()
    assert real_numbers(spec).shape == spec.shape


def test_which_entries_are_real_is_not_saved() -> None:
    """It follows from the spaces, and a checkpoint must not depend on it."""
    policy = policy_for(MIXED, norm_obs=True)
    assert policy.normalizer.real is not None
    assert not any("real" in name for name in policy.state_dict())
    assert policy_for(Box((3,)), norm_obs=True).normalizer.real is None
