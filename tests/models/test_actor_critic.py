import pytest
import torch
from torch import Tensor, nn

from tightrope.errors import UsageError
from tightrope.models import ActorCritic, Categorical, Gaussian, NetworkConfig, actor_critic
from tightrope.types import Box, Discrete

VECTOR, IMAGE = Box((4,)), Box((2, 36, 36), 0, 255, torch.uint8)
CHOICE, TORQUE = Discrete(3), Box((2,), -1.0, 2.0)


def vector_policy(action=CHOICE, critic: bool = True, **network) -> ActorCritic:
    torch.manual_seed(0)
    return actor_critic(VECTOR, action, NetworkConfig(**network), critic)


def image_policy() -> ActorCritic:
    torch.manual_seed(0)
    return actor_critic(IMAGE, CHOICE, NetworkConfig())


def observations(policy_of: str = "vector") -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if policy_of == "image":
        return torch.randint(256, (5, *IMAGE.shape), dtype=torch.uint8, generator=generator)
    return torch.randn(5, *VECTOR.shape, generator=generator)


def assert_scaled_rotation(layer: nn.Linear, gain: float) -> None:
    gram = layer.weight @ layer.weight.T
    torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=0, atol=1e-5 * gain**2)
    assert not layer.bias.any()


def test_the_policy_head_starts_at_gain_one_hundredth_and_the_value_head_at_1():
    policy = vector_policy()
    assert_scaled_rotation(policy.head.logits, 0.01)
    assert_scaled_rotation(policy.value_head, 1.0)
    assert_scaled_rotation(vector_policy(TORQUE).head.mean, 0.01)


def test_the_first_policy_is_nearly_indifferent():
    distribution, _ = vector_policy()(observations())
    torch.testing.assert_close(distribution.probs, torch.full((5, 3), 1 / 3), rtol=0, atol=0.02)


def test_a_vector_gets_two_networks_of_64_and_64_tanh():
    policy = vector_policy()
    for trunk in (policy.actor, policy.critic):
        assert [type(m) for m in trunk] == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]
        assert trunk.out_features == trunk[1].out_features == 64
    assert not {id(p) for p in policy.actor.parameters()} & {id(p) for p in policy.critic.parameters()}


def test_hidden_sizes_and_activation_are_settings():
    policy = vector_policy(hidden_sizes=(120, 84), activation="relu")
    for trunk in (policy.actor, policy.critic):
        assert [type(m) for m in trunk] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
        assert (trunk[1].out_features, trunk[3].out_features) == (120, 84)


def test_the_critic_of_a_separate_network_does_not_touch_the_actor():
    policy = vector_policy()
    policy(observations())[1].sum().backward()
    assert all(p.grad is None for p in [*policy.actor.parameters(), *policy.head.parameters()])
    assert all(p.grad.any() for p in policy.value_head.parameters())


@pytest.mark.parametrize(("policy", "obs"), [(vector_policy(share_trunk=True), "vector"), (image_policy(), "image")])
def test_a_shared_trunk_is_one_trunk(policy, obs):
    assert policy.critic is policy.actor
    parameters = list(policy.parameters())
    assert len(parameters) == len({id(p) for p in parameters})
    parts = (policy.actor, policy.head, policy.value_head)
    assert len(parameters) == sum(len(list(part.parameters())) for part in parts)

    calls = []
    policy.actor.register_forward_hook(lambda *_: calls.append(1))
    distribution, value = policy(observations(obs))
    assert len(calls) == 1
    torch.testing.assert_close(value, policy.value(observations(obs)))
    (distribution.logits.sum() + value.sum()).backward()
    assert all(p.grad is not None for p in parameters)


@pytest.mark.parametrize("network", [{}, {"share_trunk": True}], ids=["separate", "shared"])
def test_forward_is_the_distribution_and_the_value(network):
    policy, obs = vector_policy(**network), observations()
    distribution, value = policy(obs)
    assert isinstance(distribution, Categorical)
    assert value.shape == (5,)
    torch.testing.assert_close(distribution.logits, policy.distribution(obs).logits)
    torch.testing.assert_close(value, policy.value(obs))
    torch.testing.assert_close(value, policy.value_head(policy.critic(obs))[:, 0])
    torch.testing.assert_close(distribution.logits, policy.head.logits(policy.actor(obs)))


def test_without_a_critic_values_are_0_and_cost_no_parameters():
    policy, obs = vector_policy(critic=False), observations()
    assert policy.critic is None
    assert len(list(policy.parameters())) == 6
    assert policy(obs)[1].tolist() == policy.value(obs).tolist() == [0.0] * 5


def test_log_std_is_a_free_parameter_that_starts_at_0():
    policy = vector_policy(TORQUE)
    assert isinstance(policy.head.log_std, nn.Parameter)
    assert policy.head.log_std.tolist() == [0, 0]
    with torch.no_grad():
        policy.head.log_std += 0.5
    distribution, _ = policy(observations())
    assert isinstance(distribution, Gaussian)
    assert distribution.log_std.tolist() == [0.5, 0.5]
    assert distribution.mean.shape == (5, 2)


def test_log_std_as_an_output_of_the_network_is_clamped():
    policy, obs = vector_policy(TORQUE, log_std="state"), observations()
    start = policy.distribution(obs).log_std
    assert start.shape == (5, 2)
    assert 0 < start.abs().max() < 0.1
    assert not torch.equal(start[0], start[1])
    with torch.no_grad():
        policy.head.log_std_layer.bias.copy_(torch.tensor([-1e3, 1e3]))
    assert policy.distribution(obs).log_std.tolist() == [[-20, 2]] * 5
    assert not any(name.endswith("head.log_std") for name, _ in policy.named_parameters())


def test_the_environment_gets_the_action_scaled_and_clipped_and_the_learner_keeps_the_raw_one():
    raw = torch.tensor([[-5.0, 0.5], [1.5, 9.0]])
    kept = raw.clone()
    assert vector_policy(TORQUE).head.to_env(raw).tolist() == [[-1, 1.25], [2, 2]]  # from -1 to 2: 0.5 + 1.5 a
    assert torch.equal(raw, kept)


def test_discrete_actions_reach_the_environment_as_they_are():
    action = torch.tensor([0, 2, 1])
    assert torch.equal(vector_policy().head.to_env(action), action)


@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_the_head_draws_the_noise_its_distribution_consumes(action):
    policy = vector_policy(action)
    noise = policy.head.noise((7, 5), torch.Generator().manual_seed(0))
    assert noise.shape == (7, 5, *action.shape)
    sample = policy.distribution(observations()).sample(noise[0])
    assert sample.shape == (5, *action.shape)
    assert sample.dtype == action.dtype
    assert (noise.min() < 0) == isinstance(action, Box)


def test_spaces_that_do_not_fit_are_refused_by_name():
    with pytest.raises(UsageError, match="observations"):
        actor_critic(Box((4,), 0, 255, torch.uint8), CHOICE, NetworkConfig())
    with pytest.raises(UsageError, match="actions"):
        actor_critic(VECTOR, Box((2,), 0, 5, torch.int64), NetworkConfig())
