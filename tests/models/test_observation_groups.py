"""Observation groups: actor and critic see their own parts of an observation, in training and after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from run_helpers import refusal
from torch import Tensor, nn
from torch.nn.functional import one_hot

import tightrope as tr
from tightrope.cli.arguments import read_arguments
from tightrope.engine import Optimizer, Runtime
from tightrope.engine.kernels import fits, known_network
from tightrope.envs import TensorEnv
from tightrope.envs.checker import check
from tightrope.functional import PPOLoss
from tightrope.models import NetworkConfig, actor_critic
from tightrope.models.networks import NatureCNN
from tightrope.models.observation_groups import GroupTrunk, columns_of_parts, group_spec, observation_groups
from tightrope.tools.probe import PROBES, run_probe
from tightrope.training.config import configure, setting_types
from tightrope.training.plan import plan
from tightrope.training.presets import kind_of
from tightrope.types import Batch, Box, Composite, Discrete, MultiDiscrete, Spec

PARTS = Composite((("a", Box((3,))), ("b", Box((2,))), ("c", Discrete(4)), ("d/e", Box((1,))), ("d/f", Box((2,)))))
TINY: dict[str, Any] = dict(num_steps=8, seed=1, device="cpu")


def rows_of(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(count, 9, generator=generator)
    numbers[:, 5] = torch.randint(4, (count,), generator=generator)
    return numbers


def a_policy(action: Spec, **config: Any) -> Any:
    torch.manual_seed(0)
    policy = actor_critic(PARTS, action, NetworkConfig(hidden_sizes=(16, 8), norm_obs=True, **config))
    for parameter in policy.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    policy.normalizer.merge(2 * rows_of(50) + 1)
    return policy


# the networks ------------------------------------------------------------------------------------------------------------


def by_hand(policy: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
    """(output of the head, value): the actor on a and c, the critic on b and d, both written out on slices of the row."""
    scaled = ((obs - policy.normalizer.mean) / (policy.normalizer.variance + 1e-8).sqrt()).clamp(-10, 10)
    parameters = dict(policy.named_parameters())

    def mlp(x: Tensor, name: str) -> Tensor:
        for layer in (1, 3):
            weight, bias = (parameters[f"{name}.trunk.{layer}.{kind}"] for kind in ("weight", "bias"))
            x = torch.tanh(x @ weight.T + bias)
        return x

    hidden = mlp(torch.cat([scaled[:, :3], one_hot(obs[:, 5].long(), 4).float()], 1), "actor")
    seen = mlp(torch.cat([scaled[:, 3:5], scaled[:, 6:]], 1), "critic")
    head = policy.head.mean if hasattr(policy.head, "mean") else policy.head.logits
    return hidden @ head.weight.T + head.bias, (seen @ policy.value_head.weight.T + policy.value_head.bias).squeeze(1)


@pytest.mark.parametrize("runtime", [Runtime(), Runtime(on_device=True)], ids=["recorded", "as on a device"])
@pytest.mark.parametrize("action", [Discrete(3), Box((2,), -1.0, 1.0)], ids=str)
def test_gradients_are_those_of_two_networks_on_slices(action: Spec, runtime: Runtime) -> None:
    """The definition of PPO's loss on networks written out by hand, through plain autograd."""
    policy = a_policy(action, actor_obs=("a", "c"), critic_obs=("b", "d"))
    optimizer, obs = Optimizer(policy), rows_of(64)
    noise, numbers = policy.head.noise((64,), torch.Generator().manual_seed(2)), torch.randn(4, 64)
    with torch.no_grad():
        distribution, value = policy(obs)
        taken = distribution.sample(noise)
        old = distribution.log_prob(taken) + 0.3 * numbers[0]
    batch = Batch(obs, taken, old, value + numbers[1], numbers[2], numbers[3])
    runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)

    output, value = by_hand(policy, obs)
    if isinstance(action, Discrete):
        choice = torch.distributions.Categorical(logits=output, validate_args=False)
        log_prob, entropy = choice.log_prob(taken), choice.entropy()
    else:
        normal = torch.distributions.Normal(output, policy.head.log_std.exp(), validate_args=False)
        log_prob, entropy = normal.log_prob(taken).sum(1), normal.entropy().sum(1)
    ratio = (log_prob - old).exp()
    surrogate = torch.minimum(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage)
    total = -surrogate.mean() + 0.5 * 0.5 * (value - batch.target).square().mean() - 0.01 * entropy.mean()
    expected = torch.autograd.grad(total, [*policy.parameters()])
    for (name, parameter), wanted in zip(policy.named_parameters(), expected, strict=True):
        assert wanted.abs().sum() > 0, name
        torch.testing.assert_close(optimizer.grads[parameter], wanted, rtol=2e-4, atol=2e-6, msg=name)


def test_neither_network_sees_the_others_parts() -> None:
    policy = a_policy(Discrete(3), actor_obs=("a", "c"), critic_obs=("b", "d"))
    obs = rows_of(16).requires_grad_()
    logits, value = policy(obs)[0].logits, policy(obs)[1]
    (of_actor,) = torch.autograd.grad(logits.square().sum(), obs, retain_graph=True)
    (of_critic,) = torch.autograd.grad(value.square().sum(), obs)
    assert (of_actor[:, 3:] == 0).all(), "exactly"
    assert (of_critic[:, [0, 1, 2, 5]] == 0).all(), "exactly"
    assert (of_actor[:, :3] != 0).all()
    assert (of_critic[:, [3, 4, 6, 7, 8]] != 0).all()
    others = obs.detach().clone()
    others[:, [3, 4, 6, 7, 8]] += 5.0
    assert torch.equal(policy(others)[0].logits, logits)
    assert not torch.isclose(policy(others)[1], value).any()


def test_a_group_is_named_by_keys_in_any_order_and_keeps_the_order_of_the_observation() -> None:
    assert observation_groups(PARTS, None, None) == (("a", "b", "c", "d/e", "d/f"),) * 2
    assert observation_groups(PARTS, ("d", "a"), ("d/f",)) == (("a", "d/e", "d/f"), ("d/f",))
    assert columns_of_parts(PARTS, ("a", "b", "d/e", "d/f")) == [(0, 5), (6, 9)]
    assert columns_of_parts(PARTS, ("b",)) == [(3, 5)]
    assert group_spec(PARTS, ("b", "c")) == Composite(PARTS.parts[1:3])
    private = Composite((("observation", Box((2, 2))), ("privileged", Box((1,)))))
    assert observation_groups(private, None, None) == (("observation",), ("observation", "privileged"))
    assert group_spec(private, ("observation",)) == Box((2, 2))
    assert observation_groups(private, ("observation", "privileged"), None)[0] == ("observation", "privileged")


def test_the_same_parts_for_both_may_share_a_trunk() -> None:
    alike = dict(actor_obs=("a", "b"), critic_obs=("b", "a"))
    assert a_policy(Discrete(2), **alike).critic is not a_policy(Discrete(2), **alike).actor
    shared = a_policy(Discrete(2), **alike, share_trunk=True)
    assert shared.critic is shared.actor
    assert shared.actor.trunk[1].in_features == 5


def test_images_have_trunks_of_their_own_where_the_groups_differ() -> None:
    camera = Box((3, 36, 36), 0, 255, torch.uint8)
    spec = Composite((("camera", camera), ("speed", Box((2,))), ("map", camera)))
    together = actor_critic(spec, Discrete(2), NetworkConfig())
    assert together.critic is together.actor
    policy = actor_critic(spec, Discrete(2), NetworkConfig(actor_obs=("camera", "speed"), critic_obs=("map", "speed")))
    rows = torch.randint(255, (2, *spec.shape)).float()
    other = rows.clone()
    other[:, -(camera.shape[1] ** 2) * 3 :] = 0
    assert torch.equal(policy(rows)[0].logits, policy(other)[0].logits)
    assert not torch.equal(policy(rows)[1], policy(other)[1])
    alone = Composite((("observation", camera), ("privileged", Box((1,)))))
    plain = actor_critic(alone, Discrete(2), NetworkConfig())
    assert isinstance(plain.actor, GroupTrunk)
    assert isinstance(plain.actor.trunk, NatureCNN)
    assert plain(torch.zeros(2, *alone.shape))[1].shape == (2,)


def test_kernels_leave_groups_to_autograd() -> None:
    plain = Composite((("a", Box((3,))), ("b", Box((2,)))))
    policy = actor_critic(plain, Discrete(2), NetworkConfig(actor_obs=("a",)))
    assert not known_network(policy)
    assert not fits(policy)
    assert not known_network(actor_critic(plain, Discrete(2), NetworkConfig(critic_obs=("a",))))


# environments ------------------------------------------------------------------------------------------------------------


class Arms(TensorEnv):
    """Pays for the arm that is shown, and a bonus that only the critic sees. The last arm is forbidden."""

    observation, action, noise_size, time_limit = Box((2,)), Discrete(3), 2, 4

    def initial(self, noise: Tensor) -> Tensor:
        return (noise > 0.5).float()

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([1 - state[:, 0], state[:, 1]], 1)

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([state[:, 0], 1 - state[:, 0]], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (action == state[:, 0]).float() + 3 * state[:, 1]

    def privileged(self, state: Tensor) -> Tensor:
        return torch.stack([state[:, 1], state.sum(1), state[:, 0]], 1)

    def action_mask(self, state: Tensor) -> Tensor:
        return torch.tensor([True, True, False], device=state.device).expand(len(state), 3)


class Unmasked(Arms):
    action = Discrete(2)
    action_mask = TensorEnv.action_mask


class Room(gymnasium.Env[Any, Any]):
    """The same with Gymnasium: a Dict of what is shown, what is hidden and a nested part, some of it choices."""

    observation_space: ClassVar[Any] = gs.Dict(
        {
            "hint": gs.Box(0, 1, (2,), np.float32),
            "secret": gs.Dict({"bonus": gs.Box(-9, 9, (1,), np.float32), "kind": gs.Discrete(3, start=5)}),
            "clock": gs.Box(0, 9, (1,), np.float32),
        }
    )
    action_space: ClassVar[Any] = gs.Discrete(2)

    def shown(self) -> Any:
        secret = {"bonus": np.array([self.bonus], np.float32), "kind": 5 + self.t % 3}
        return {"hint": np.eye(2, dtype=np.float32)[self.arm], "secret": secret, "clock": np.array([self.t], "f4")}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.arm, self.bonus = 0, int(self.np_random.integers(2)), float(self.np_random.integers(2))
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.t, self.arm = float(action == self.arm) + 3 * self.bonus, self.t + 1, 1 - self.arm
        return self.shown(), reward, self.t >= 4, False, {}


KINDS: dict[str, tuple[Callable[[int], Any], dict[str, Any]]] = {
    "tensor": (lambda count: Unmasked(num_envs=count), {}),
    "masked": (lambda count: Arms(num_envs=count), {}),
    "gymnasium": (lambda count: Room, dict(actor_obs=("hint", "clock"))),
}
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (tr.PPO, dict(num_minibatches=2, norm_obs=True)),
    "vpg": (tr.VPG, dict(baseline="critic", norm_obs=True)),
}


def made(kind: str, algo: str = "ppo", count: int = 4, **settings: Any) -> Any:
    (env, own), (agent, usual) = KINDS[kind], ALGORITHMS[algo]
    return agent(env(count), **{**TINY, "num_envs": count, "total_timesteps": 512, **usual, **own, **settings})


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_recorded_and_evaluates(kind: str, algo: str) -> None:
    with made(kind, algo, 16, total_timesteps=16_384, learning_rate=1e-2) as agent:
        agent.learn(quiet=True)
        assert agent.state.policy.recordings.refusal is None, "not recorded"
        assert isinstance(agent.state.policy.actor, GroupTrunk)
        score = agent.evaluate(20)
        assert {*score.returns} == {4.0, 16.0}, "an arm was missed"  # without and with bonus


def test_a_resumed_run_keeps_its_groups(tmp_path: Path) -> None:
    with made("gymnasium") as agent:
        agent.learn(run_dir=tmp_path / "run", until=256, quiet=True)
    with tr.load(tmp_path / "run", env=Room) as again:
        assert again.config.network.actor_obs == ("hint", "clock")
        assert again.state.policy.actor.names == ("clock", "hint")
        again.learn(quiet=True)
    assert "actor_obs" in refusal(tr.load, tmp_path / "run", env=Room, actor_obs=("hint",))


def test_statistics_cover_all_parts_and_stay_in_evaluation() -> None:
    agent = made("tensor").learn(quiet=True)
    mean = agent.state.policy.normalizer.mean.clone()
    assert mean.shape == (5,)
    assert (mean != 0).all()
    agent.evaluate(10)
    assert torch.equal(mean, agent.state.policy.normalizer.mean)


def test_the_plan_says_who_sees_what() -> None:
    agent = made("masked")
    note = "the actor sees observation; the critic sees observation, privileged"
    assert note in plan(agent.state, agent.config).notes
    plain = tr.PPO("CartPole-v1", **TINY)
    assert not any("sees" in line for line in plan(plain.state, plain.config).notes)


@pytest.mark.parametrize("env", [Arms, Unmasked, Room, "PrivilegedProbe-v0"], ids=str)
def test_the_check_of_environments_passes(env: Any) -> None:
    found = {f.check: f.message for f in check(env, steps=200).findings if f.level == "error"}
    assert not found, found


# acting without what only the critic sees ------------------------------------------------------------------------------------


def test_predict_takes_the_actors_keys_alone(tmp_path: Path) -> None:
    agent = made("gymnasium")
    agent.learn(run_dir=tmp_path / "run", quiet=True)
    agent.state.policy.head.logits.weight.data.normal_()
    agent.save(tmp_path / "saved")
    hint, clock = np.eye(2, dtype=np.float32), np.array([[0], [3]], np.float32)
    secret = {"bonus": np.ones((2, 1), np.float32), "kind": np.array([5, 7])}
    for policy in (agent, tr.load_policy(tmp_path / "saved")):
        whole = policy.predict({"hint": hint, "clock": clock, "secret": secret})
        assert whole.tolist() == policy.predict({"hint": hint, "clock": clock}).tolist()
        for i in range(2):
            assert policy.predict({"hint": hint[i], "clock": clock[i]}) == whole[i]
        assert policy.predict(Room().reset(seed=1)) in (0, 1)
        assert "has no 'clock'" in refusal(policy.predict, {"hint": hint[0], "secret": secret})
    agent.close()


def test_predict_and_export_take_a_part_of_a_nested_dict(tmp_path: Path, onnxruntime: Any) -> None:
    with made("gymnasium", actor_obs=("hint", "secret/kind")) as agent:
        agent.learn(run_dir=tmp_path / "run", quiet=True)
        agent.state.policy.head.logits.weight.data.normal_()
        agent.save(tmp_path / "saved")
        agent.export(tmp_path / "it.onnx")
    hint, kind = np.tile(np.eye(2, dtype=np.float32), (3, 1)), np.array([5, 6, 7, 7, 6, 5])
    hidden = {"clock": np.full((6, 1), 3.0, np.float32), "bonus": np.ones((6, 1), np.float32)}
    for policy in (agent, tr.load_policy(tmp_path / "saved")):
        whole = policy.predict(
            {"hint": hint, "clock": hidden["clock"], "secret": {"bonus": hidden["bonus"], "kind": kind}}
        )
        assert whole.tolist() == policy.predict({"hint": hint, "secret": {"kind": kind}}).tolist()
        for i in range(6):
            assert policy.predict({"hint": hint[i], "secret": {"kind": int(kind[i])}}) == whole[i]
        for wrong, words in (
            ({"hint": hint, "secret": {"bonus": hidden["bonus"]}}, "it['secret'] has no 'kind'"),
            ({"hint": hint}, "it has no 'secret'"),
            ({"hint": hint, "secret": 3}, "it['secret'] is a int, not a dict"),
            ({"hint": np.zeros(3), "secret": {"kind": 5}}, "it['hint'] has shape (3,), not (2,)"),
            ({}, "has no 'hint'"),
        ):
            assert words in refusal(policy.predict, wrong)
    graph = onnxruntime.InferenceSession(str(tmp_path / "it.onnx"))
    assert [one.name for one in graph.get_inputs()] == ["hint", "secret/kind"]
    shown = {"hint": hint, "secret/kind": kind}
    given = {one.name: shown[one.name] for one in graph.get_inputs()}
    assert graph.run(["action"], given)[0].tolist() == whole.tolist()


@pytest.mark.parametrize("kind", ["tensor", "masked"])
def test_predict_of_a_tensor_environment_takes_the_actors_part_alone(kind: str, tmp_path: Path) -> None:
    agent = made(kind).learn(quiet=True)
    agent.state.policy.head.logits.weight.data.normal_()
    agent.save(tmp_path / "saved")
    mask = dict(mask=[1, 1, 0]) if kind == "masked" else {}
    seen, hidden = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.randn(2, 3)
    for policy in (agent, tr.load_policy(tmp_path / "saved")):
        whole = policy.predict(torch.cat([seen, hidden], 1), **mask)
        assert torch.equal(whole, policy.predict(seen, **mask))
        assert whole.tolist() == policy.predict({"observation": seen}, **mask).tolist()
        assert whole.tolist() == policy.predict({"observation": seen, "privileged": hidden}, **mask).tolist()
        assert policy.predict(seen.numpy()[1], **mask) == int(whole[1])
        assert policy.predict({"observation": seen[0]}, **mask) == int(whole[0])
        assert "has no 'observation'" in refusal(policy.predict, {"privileged": hidden}, **mask)
        assert "shape (3,)" in refusal(policy.predict, {"observation": torch.zeros(3)}, **mask)
        assert "does not fit" in refusal(policy.predict, torch.zeros(4), **mask)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_graph_has_the_actors_inputs_alone(kind: str, tmp_path: Path, onnxruntime: Any) -> None:
    with made(kind) as agent:
        agent.learn(quiet=True)
        exported = agent.export(tmp_path / "actor.onnx")
        wanted = {"tensor": ["obs"], "masked": ["action_mask", "obs"], "gymnasium": ["clock", "hint"]}[kind]
        assert sorted(exported.inputs) == wanted
        assert "value" not in exported.outputs
        sizes = [len(x.raw_data) // 4 for x in pytest.importorskip("onnx").load(exported.path).graph.initializer]
        actor = sum(p.numel() for part in ("actor", "head") for p in getattr(agent.state.policy, part).parameters())
        assert actor <= sum(sizes) < actor + 100, "the graph holds more than the actor"
        session = onnxruntime.InferenceSession(str(exported.path))
        assert sorted(x.name for x in session.get_inputs()) == wanted
        hint = np.eye(2, dtype=np.float32)
        more = {"action_mask": np.array([[1, 1, 0]] * 2, np.float32), "clock": np.array([[1], [2]], np.float32)}
        given = {name: more.get(name, hint) for name in wanted}
        (action,) = session.run(["action"], given)
        other = {"hint": hint, "clock": more["clock"]} if kind == "gymnasium" else hint
        mask = dict(mask=[1, 1, 0]) if kind == "masked" else {}
        assert action.tolist() == agent.predict(other, **mask).tolist()


@pytest.mark.usefixtures("onnxruntime")
def test_a_graph_has_a_value_where_the_critic_sees_no_more(tmp_path: Path) -> None:
    with made("gymnasium", critic_obs=("clock",)) as agent:
        exported = agent.export(tmp_path / "both.onnx")
        assert sorted(exported.inputs) == ["clock", "hint"]
        assert "value" in exported.outputs


# settings and mistakes -------------------------------------------------------------------------------------------------------


def test_groups_are_given_as_flags_and_in_files() -> None:
    types = setting_types("ppo")
    _, flags = read_arguments(
        ["--actor-obs", "camera", "speed", "--critic-obs=map,speed"], types, lambda name: tr.UsageError(name)
    )
    assert flags == {"actor_obs": ("camera", "speed"), "critic_obs": ("map", "speed")}
    _, none = read_arguments(["--actor-obs", "none"], types, lambda name: tr.UsageError(name))
    assert none == {"actor_obs": None}
    config = configure("CartPole-v1", "ppo", flags)
    assert config.to_flat_dict()["actor_obs"] == ["camera", "speed"]
    assert configure("CartPole-v1", "ppo", config.to_flat_dict()).network == config.network
    assert tr.PPO(Room, num_envs=2, num_minibatches=2, actor_obs="hint", **TINY).config.network.actor_obs == ("hint",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, obs: Any) -> Tensor:
        return self.layer(obs["hint"] if isinstance(obs, dict) else obs)


@pytest.mark.parametrize(
    ("env", "settings", "words"),
    [
        (Room, dict(actor_obs=("hints",)), "actor_obs 'hints' is not in the observation: give some of clock, hint, secret, or "
            "parts of them, such as secret/bonus"),
        (Room, dict(critic_obs=("hint", "x")), "critic_obs 'x' is not in the observation"),
        (Room, dict(actor_obs=()), "actor_obs is empty: name at least one entry"),
        (Room, dict(critic_obs=[]), "critic_obs is empty"),
        (Room, dict(actor_obs=("hint",), share_trunk=True), "share_trunk is one trunk for actor and critic, and the actor"),
        (Room, dict(actor_obs=("hint",), network=Net), "network Net is one trunk for actor and critic"),
        ("CartPole-v1", dict(actor_obs=("x",)), "named parts, and this one is a Box of shape (4,): give a Dict"),
        ("CartPole-v1", dict(critic_obs=("x",)), "critic_obs x needs an observation of named parts"),
        (lambda: Arms(num_envs=4), dict(actor_obs=("privilege",)), "give some of observation, privileged"),
    ],
)  # fmt: skip
def test_a_wrong_group_is_one_line(env: Any, settings: dict[str, Any], words: str) -> None:
    given = env() if callable(env) and not isinstance(env, type) else env
    assert words in refusal(tr.PPO, given, **{**TINY, "num_minibatches": 2}, **settings)


def test_critic_obs_needs_a_critic() -> None:
    assert "critic_obs needs a critic" in refusal(tr.VPG, Room, num_envs=2, critic_obs=("hint",), **TINY)
    agent = tr.VPG(Arms(num_envs=4), **TINY)
    assert agent.state.policy.critic is None
    assert agent.state.policy.actor.names == ("observation",)


def test_an_own_network_serves_groups_that_are_the_same() -> None:
    both = dict(actor_obs=("hint",), critic_obs=("hint",), network=Net)
    with tr.PPO(Room, num_envs=2, total_timesteps=32, num_minibatches=2, **both, **TINY) as agent:
        assert agent.learn(quiet=True).state.policy.critic is agent.state.policy.actor


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda state: state[:, 0], "wanted real numbers (N, K)"),
        (lambda state: state > 0, "wanted real numbers (N, K)"),
        (lambda state: state[:, :0], "wanted real numbers (N, K)"),
        (lambda state: [1.0], "not a tensor"),
        (lambda state: 0 * state / 0, "returns nan at reset"),
    ],
)  # fmt: skip
def test_wrong_privileged_numbers_are_one_line(returned: Callable[[Tensor], Any], words: str) -> None:
    class Wrong(Arms):
        def privileged(self, state: Tensor) -> Tensor:
            return returned(state)

    def make() -> Any:
        return tr.PPO(Wrong(num_envs=4), **TINY)

    message = refusal(make)
    assert "Wrong.privileged" in message
    assert words in message


def test_spaces_may_be_set_after_the_base_is_made() -> None:
    class Late(Arms):
        def __init__(self, num_envs: int = 1, device: str = "cpu", max_episode_steps: int | None = None) -> None:
            super().__init__(num_envs, device, max_episode_steps)
            self.observation, self.action = Box((2,)), Discrete(3)

    parts = dict(Late(4).observation.parts)  # type: ignore[union-attr]
    assert [*parts] == ["observation", "privileged", "action_mask"]
    assert Late(4).spawn(2, 0).observation == Late(4).observation == Arms(4).observation
    assert parts["privileged"] == Box((3,))


def test_defaults_follow_what_the_actor_sees() -> None:
    class States(Arms):
        observation = Discrete(2)

        def observe(self, state: Tensor) -> Tensor:
            return state[:, 0].long()

    env = States(num_envs=4)
    assert kind_of(env.observation, env.action) == "states"
    agent = tr.PPO(env, total_timesteps=64, num_minibatches=2, **TINY).learn(quiet=True)
    assert agent.state.policy.actor.trunk[1].in_features == 2
    assert agent.predict(torch.tensor([0, 1]), mask=[1, 1, 0]).shape == (2,)
    assert agent.predict(0, mask=[1, 1, 0]) in (0, 1)


def test_several_choices_and_groups() -> None:
    class Two(Arms):
        action = MultiDiscrete((2, 3))
        action_mask = TensorEnv.action_mask

        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            return action.sum(1).float() + state[:, 1]

    assert tr.PPO(Two(num_envs=4), total_timesteps=64, num_minibatches=2, **TINY).learn(quiet=True).steps == 64


# the probe -------------------------------------------------------------------------------------------------------------------

PROBE = next(probe for probe in PROBES if probe.env == "PrivilegedProbe-v0")


def explained(**settings: Any) -> list[float]:
    agent = tr.PPO("PrivilegedProbe-v0", seed=1, device="cpu", **settings)
    return [row["losses/explained_variance"] for row in agent.phases()]


def test_the_value_explains_a_bonus_that_the_critic_sees_and_no_other() -> None:
    assert explained()[-1] > 0.999
    # a fifth of the variance of observation + bonus is the observation's
    assert explained(critic_obs=("observation",))[-1] == pytest.approx(0.2, abs=0.1)


def test_a_critic_that_does_not_see_it_is_found_by_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tr.models.actor_critic.__globals__["observation_groups"]

    def blind(*given: Any) -> Any:
        groups = original(*given)
        return groups._replace(critic=groups.actor)

    assert run_probe(PROBE, "ppo", 1).passed
    monkeypatch.setitem(tr.models.actor_critic.__globals__, "observation_groups", blind)
    finding = run_probe(PROBE, "ppo", 1)
    assert not finding.passed
    assert finding.error > 1.5
