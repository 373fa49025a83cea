"""Hybrid actions on their way: from the policy's row to members of Gymnasium's spaces and to dicts of tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.engine import draw_noise, why_not_recorded
from tightrope.engine.kernels import known_network
from tightrope.envs import TensorEnv
from tightrope.envs.adapters.actions import action_writer, read_conditions
from tightrope.envs.adapters.gym import from_object
from tightrope.envs.checker import check
from tightrope.envs.registry import EnvOptions
from tightrope.errors import EnvError, UsageError
from tightrope.models import Hybrid
from tightrope.training.policy import spec_from_json
from tightrope.training.saving import spec_to_json
from tightrope.types import Box, Composite, Discrete, MultiDiscrete

SMALL: dict[str, Any] = dict(num_steps=16, seed=1, device="cpu", hidden_sizes=(16,))
ARM = gs.Tuple((gs.Box(0, 10, (2, 2), np.float64), gs.MultiBinary(2), gs.MultiDiscrete([2, 3])))
SPACE = gs.Dict({"kind": gs.Discrete(3, start=5), "arm": ARM})


class Robot(gymnasium.Env[Any, Any]):
    """Shows the numbers of the last action; refuses what is no member of its space."""

    observation_space: ClassVar[Any] = gs.Box(-10, 10, (9,), np.float32)
    action_space: ClassVar[Any] = SPACE
    action_conditions: ClassVar[Any] = {"arm/0": ("kind", (6, 7))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(9, np.float32), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise TypeError("not a member")
        box, bits, several = action["arm"]
        found = [(x.shape, x.dtype) for x in (box, bits, several, np.asarray(action["kind"]))]
        if found != [((2, 2), np.float64), ((2,), np.int8), ((2,), np.int64), ((), np.int64)]:
            raise TypeError(str(found))
        shown = np.concatenate([box.ravel(), bits, several, [action["kind"]]]).astype(np.float32)
        box[:] = bits[:] = several[:] = 0  # an environment may write into its action
        self.t += 1
        return shown, float(shown[-1] == 7), False, self.t >= 5, self.info()

    def info(self) -> dict[str, Any]:
        return {}


class MaskedRobot(Robot):
    def info(self) -> dict[str, Any]:
        return {"action_mask": {"kind": np.array([1, 0, 1]), "arm": (None, [1, 1, 0, 1], ([1, 0], [1, 1, 0]))}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        kind, (_, bits, several) = action["kind"], action["arm"]
        assert kind != 6
        assert bits[1] == 1
        assert several[0] == 0
        assert several[1] < 2
        return super().step(action)


def as_tuple_env() -> gymnasium.Env[Any, Any]:
    class Pair(gymnasium.Env[Any, Any]):
        observation_space = gs.Box(-1, 1, (1,), np.float32)
        action_space = gs.Tuple((gs.Discrete(2), gs.Box(-1, 1, (1,))))
        action_conditions: ClassVar[Any] = {1: (0, 1)}

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.ones(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            assert action[1].dtype == np.float32
            return np.ones(1, np.float32), float(action[0]), True, False, {}

    return Pair()


# Gymnasium ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_every_part_arrives_with_the_dtype_and_shape_of_its_space(algo: Any, mode: str) -> None:
    agent = algo(Robot, num_envs=3, total_timesteps=200, vectorization_mode=mode, **SMALL).learn(quiet=True)
    rollout, head = agent.state.rollout, agent.policy.head
    assert agent.state.env.action.conditions == (("arm/0", "kind", (1, 2)),)
    taken = min(len(rollout.reward) - 1, 4)
    given = head.to_env(rollout.action)
    shown = rollout.final_obs.clone()
    shown[..., 8] -= 5  # kinds count from 5
    torch.testing.assert_close(shown[:taken], given[:taken])
    assert (rollout.action[:taken, :, 8] != rollout.action[0, 0, 8]).any(), "there was something to compare"
    assert torch.equal(rollout.reward[:taken], (given[:taken, :, 8] == 2).float())


def test_both_modes_and_a_vector_environment_give_the_same() -> None:
    flats = []
    for env, mode in ((Robot, "sync"), (Robot, "async"), (gymnasium.vector.SyncVectorEnv([Robot] * 2), "sync")):
        agent = tr.PPO(env, num_envs=2, total_timesteps=64, vectorization_mode=mode, **SMALL).learn(quiet=True)
        assert agent.evaluate(4).returns
        assert agent.state.env.action.conditions == (("arm/0", "kind", (1, 2)),)
        flats.append(agent.state.optimizer.flat)
    assert torch.equal(flats[0], flats[1])
    assert torch.equal(flats[0], flats[2])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_masks_by_part_are_applied(mode: str) -> None:
    agent = tr.PPO(MaskedRobot, num_envs=2, total_timesteps=128, vectorization_mode=mode, **SMALL).learn(quiet=True)
    obs = np.zeros(9, np.float32)
    action = agent.predict((obs, MaskedRobot().info()))
    assert SPACE.contains(action)
    for _ in range(20):
        action = agent.predict(obs, deterministic=False, mask={"kind": [0, 1, 0], "arm": (None, None, [0, 1, 0, 0, 1])})
        assert (action["kind"], action["arm"][2].tolist()) == (6, [1, 2])
    batch = agent.predict(np.stack([obs, obs]), mask={"kind": [[0, 1, 0], [1, 0, 0]]})
    assert batch["kind"].tolist() == [6, 5]


class ShownMasks(MaskedRobot):
    """Its masks are a part of a Dict observation, nested like the action."""

    observation_space: ClassVar[Any] = gs.Dict(
        {
            "x": Robot.observation_space,
            "action_mask": gs.Dict(
                {
                    "arm": gs.Dict({"1": gs.MultiBinary(4), "2": gs.Tuple((gs.MultiBinary(2), gs.MultiBinary(3)))}),
                    "kind": gs.MultiBinary(3),
                }
            ),
        }
    )

    def shown(self, obs: Any) -> Any:
        several = tuple(np.array(x, np.int8) for x in ([1, 0], [1, 1, 0]))
        arm = {"1": np.array([1, 1, 0, 1], np.int8), "2": several}
        return {"x": obs, "action_mask": {"arm": arm, "kind": np.array([1, 0, 1], np.int8)}}

    def reset(self, **kwargs: Any) -> Any:
        return self.shown(super().reset(**kwargs)[0]), {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self.shown(obs), *rest


def test_masks_by_part_may_be_a_part_of_the_observation() -> None:
    vector = gymnasium.vector.SyncVectorEnv([ShownMasks] * 2)
    for env in (ShownMasks, vector):
        agent = tr.PPO(env, num_envs=2, total_timesteps=64, **SMALL).learn(quiet=True)
        assert [name for name, _ in agent.policy.action_mask.seen.parts] == ["x"]
        obs = np.zeros(9, np.float32)
        assert agent.predict({"x": obs}, mask={"kind": [0, 1, 0]})["kind"] == 6
        assert agent.predict({"x": np.stack([obs] * 2)}, mask={"kind": [[0, 1, 0], [1, 0, 0]]})["kind"].tolist() == [
            6,
            5,
        ]
        assert agent.predict(ShownMasks().reset())["kind"] != 6

    class Misnamed(ShownMasks):
        observation_space = gs.Dict({"x": Robot.observation_space, "action_mask": gs.Dict({"kin": gs.MultiBinary(12)})})

    with pytest.raises(
        UsageError, match=r"has the parts kin \(12\): give those of the choices, arm/1 \(4\), arm/2 \(5\), kind"
    ):
        tr.PPO(Misnamed, **SMALL)


def test_predict_gives_the_nested_structure(tmp_path: Path) -> None:
    agent = tr.PPO(Robot, num_envs=2, total_timesteps=64, **SMALL).learn(quiet=True, run_dir=tmp_path)
    obs = np.zeros(9, np.float32)
    assert SPACE.contains(agent.predict(obs))
    assert [x.shape for x in agent.predict(np.zeros((3, 9), np.float32))["arm"]] == [(3, 2, 2), (3, 2), (3, 2)]
    tensors = agent.predict(torch.zeros(9))
    assert (tensors["arm"][0].dtype, tensors["kind"].shape) == (torch.float64, ())
    policy = tr.load_policy(tmp_path)
    assert policy.action_space == SPACE
    assert policy._env.action == agent.state.env.action
    for one, other in zip(policy.predict(obs)["arm"], agent.predict(obs)["arm"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    manifest = json.loads(next(tmp_path.rglob("manifest.json")).read_text())
    assert manifest["action"]["conditions"] == [["arm/0", "kind", [1, 2]]]
    assert tr.load(tmp_path, env=Robot).predict(obs)["kind"] == agent.predict(obs)["kind"]


@pytest.mark.parametrize(
    "conditions", [7, [["arm/0"]], [["arm/0", "kind", 1]], [["arm/0", "kind", ["x"]]], [["leg", "kind", [1]]]]
)
def test_saved_conditions_of_a_stranger_are_checked(conditions: Any) -> None:
    action = json.loads(json.dumps(spec_to_json(action_writer(SPACE).spec))) | {"conditions": conditions}
    with pytest.raises((UsageError, ValueError), match="condition"):
        action_writer(SPACE, spec_from_json(action).conditions)


def test_a_tuple_is_a_tuple() -> None:
    agent = tr.VPG(as_tuple_env, num_envs=2, total_timesteps=64, **SMALL).learn(quiet=True)
    assert agent.state.env.action.conditions == (("1", "0", (1,)),)
    action = agent.predict(np.ones(1, np.float32))
    assert isinstance(action, tuple)
    assert gs.Tuple((gs.Discrete(2), gs.Box(-1, 1, (1,)))).contains(action)


def test_a_failure_names_the_action() -> None:
    class Fails(Robot):
        def step(self, action: Any) -> Any:
            raise ValueError("too heavy")

    env = from_object(Fails, 2, "cpu", EnvOptions())
    env.reset(seed=0)
    action = r"\{'arm': \(\[\[0.0, 0.0\], \[0.0, 0.0\]\], \[0, 0\], \[0, 0\]\), 'kind': 5\}"
    with pytest.raises(EnvError, match=f"number 0 failed on action {action}: ValueError: too heavy"):
        env.step(torch.zeros(2, 9))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1], "is not {part: .choice, values.}: give action_conditions"),
        ({"kind": 3}, "is not {part: .choice, values.}: give action_conditions"),
        ({"arm/0": ("kind", ("a",))}, "is not {part: .choice, values.}: give action_conditions"),
        ({"leg": ("kind", 5)}, "names 'leg': its parts are arm/0, arm/1, arm/2, kind"),
        ({"arm/0": ("kind", 4)}, "has values outside 0 .. 2"),
        ({"kind": ("arm/1", 1)}, "depends on 'arm/1', which is not Discrete"),
    ],
)
def test_wrong_conditions_are_one_line(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        action_writer(SPACE, read_conditions(given, SPACE))


@pytest.mark.parametrize("space", [gs.Dict({"a": gs.Text(3)}), gs.Tuple((gs.Dict({"a": gs.Box(0, 9, (1,), int)}),))])
def test_a_part_that_is_not_supported_is_named(space: Any) -> None:
    with pytest.raises(UsageError, match=r"part '.*a' of the action: actions of .* are not supported: give Discrete"):
        action_writer(space)


def test_the_checker_plays_hybrid_actions() -> None:
    for env in (MaskedRobot, gymnasium.vector.SyncVectorEnv([Robot] * 2), as_tuple_env, Crane(4), "HybridProbe-v0"):
        report = check(env, steps=300)
        assert report.ok, "\n".join(report.lines())


# tensor environments --------------------------------------------------------------------------------------------------------


class Crane(TensorEnv):
    """Wait, lift with a force, or drive at a speed. Waiting is forbidden on the ground."""

    observation = Box((3,))
    action = Composite(
        (
            ("kind", Discrete(3)),  # wait, lift, drive
            ("lift", Composite((("force", Box((1,), 0.0, 4.0)), ("hook", MultiDiscrete((2, 2)))))),
            ("speed", Box((), -1.0, 1.0)),
        ),
        conditions=(("lift", "kind", (1,)), ("speed", "kind", (2,))),
    )
    noise_size, time_limit = 3, 12

    def initial(self, noise: Tensor) -> Tensor:
        return noise - 0.5

    def advance(self, state: Tensor, action: dict[str, Tensor]) -> Tensor:
        assert list(action) == ["kind", "lift/force", "lift/hook", "speed"]
        lifting, driving = (action["kind"] == 1).float(), (action["kind"] == 2).float()
        height = state[:, 0] + 0.1 * lifting * action["lift/force"][:, 0]
        hook = action["lift/hook"].float().sum(1)
        return torch.stack([height, state[:, 1] + 0.1 * driving * action["speed"], 0.1 * hook], 1)

    def reward(self, state: Tensor, action: dict[str, Tensor], next_state: Tensor) -> Tensor:
        return -(next_state[:, 0] - 1.0).abs() - next_state[:, 1].abs()

    def action_mask(self, state: Tensor) -> Tensor:
        free = torch.ones(len(state), 7, dtype=torch.bool, device=state.device)
        free[:, 0] = state[:, 0] > 0
        return free

    def draw(self, obs: Tensor, action: Any = None) -> np.ndarray:
        assert action is None or action["kind"].shape == (len(obs),)
        return np.zeros((len(obs), 64, 64, 3), np.uint8)


def test_an_error_in_a_method_shows_the_parts_of_the_action() -> None:
    class Flat(Crane):
        def reward(self, state: Tensor, action: Any, next_state: Tensor) -> Tensor:
            return action[:, 0]  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match=r"Flat\.reward raises TypeError") as caught:
        tr.PPO(Flat(8), **SMALL)
    parts = "{'kind': (12,), 'lift/force': (12, 1), 'lift/hook': (12, 2), 'speed': (12,)}"
    assert f"action {parts}, next_state (12, 3)" in str(caught.value)


def plain(agent: Any) -> Any:
    """The agent with a policy that is not recorded: it has a hook."""
    agent.policy.register_forward_hook(lambda *_: None)
    return agent


@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_the_methods_get_a_dict_and_training_never_takes_what_is_forbidden(algo: Any, tmp_path: Path) -> None:
    agent = algo(Crane(8), total_timesteps=8 * 16 * 4, **SMALL).learn(quiet=True)
    rollout = agent.state.rollout
    kinds = rollout.action[:12, :, 0]
    assert not ((kinds == 0) & (rollout.obs[:12, :, 3] == 0)).any()
    assert {*kinds.unique().tolist()} == {0.0, 1.0, 2.0}
    assert agent.state.env.action == Crane(1).action
    obs = torch.tensor([0.5, 0.0, 0.0])
    action = agent.predict(obs, mask={"kind": [0, 0, 1], "lift": {"hook": ([1, 0], [0, 1])}})
    assert (int(action["kind"]), action["lift/hook"].tolist(), action["speed"].shape) == (2, [0, 1], ())
    single = agent.predict(obs.numpy(), mask=[1, 0, 0, 1, 1, 1, 1])
    assert {name: x.shape for name, x in single.items()} == {
        "kind": (),
        "lift/force": (1,),
        "lift/hook": (2,),
        "speed": (),
    }
    assert agent.evaluate(8).returns
    assert agent.record(tmp_path / "crane.mp4").frames > 0


@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_a_recorded_run_is_the_plain_one(algo: Any) -> None:
    agents = [
        algo(Crane(8), total_timesteps=8 * 16 * 2, num_minibatches=2, **SMALL) if algo is tr.PPO
        else algo(Crane(8), total_timesteps=8 * 16 * 2, ent_coef=0.01, **SMALL)
        for _ in range(2)
    ]  # fmt: skip
    state = agents[0].state
    assert why_not_recorded(state.policy, state.rollout, state.obs) is None
    written = plain(agents[1]).state
    assert why_not_recorded(written.policy, written.rollout, written.obs) == "it has hooks"
    before = state.optimizer.flat.clone()
    for agent in agents:
        agent.learn(quiet=True)
    torch.testing.assert_close(state.optimizer.flat, written.optimizer.flat, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.rollout.action, written.rollout.action, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(state.optimizer.flat, before, atol=1e-3)


def test_kernels_are_not_for_hybrid_actions_and_a_policy_alone_takes_their_masks(tmp_path: Path) -> None:
    agent = tr.PPO(Crane(4), **SMALL)
    assert not known_network(agent.policy)
    agent.save(tmp_path)
    assert int(tr.load_policy(tmp_path).predict(torch.zeros(3), mask=[0, 1, 0, 1, 1, 1, 1])["kind"]) == 1


def test_log_probabilities_of_a_rollout_leave_out_what_was_not_used() -> None:
    agent = tr.PPO(Crane(8), total_timesteps=8 * 16, **SMALL)
    state = agent.state
    noise = draw_noise(state.env, state.policy.head.noise, 16, (1, 1), 0, 0)
    state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
    rollout = state.rollout
    with torch.no_grad():
        distribution = state.policy.distribution(rollout.obs.flatten(0, 1))
    assert isinstance(distribution, Hybrid)
    rows = rollout.action.flatten(0, 1)
    kind = distribution.parts[0].log_prob(rows[:, 0].long())
    speed = distribution.parts[3].log_prob(rows[:, 4:])
    lift = distribution.parts[1].log_prob(rows[:, 1:2]) + distribution.parts[2].log_prob(rows[:, 2:4].long())
    expected = kind + torch.where(rows[:, 0] == 1, lift, 0.0) + torch.where(rows[:, 0] == 2, speed, 0.0)
    torch.testing.assert_close(rollout.log_prob.flatten(), expected, rtol=1e-4, atol=1e-5)


def test_a_wrong_method_or_space_is_one_line() -> None:
    class Misspelt(Crane):
        def reward(self, state: Tensor, action: dict[str, Tensor], next_state: Tensor) -> Tensor:
            return action["sped"]

    class Unknown(Crane):
        action = Composite((("kind", Discrete(3)),), conditions=(("lift", "kind", (1,)),))

    with pytest.raises(UsageError, match=r"Misspelt.reward raises KeyError:? 'sped'"):
        tr.PPO(Misspelt(4), **SMALL)
    with pytest.raises(UsageError, match="names 'lift': its parts are kind"):
        tr.PPO(Unknown(4), **SMALL)


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("env", [Robot, MaskedRobot, Crane])
def test_an_exported_graph_has_an_output_for_each_part(env: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    agent = tr.PPO(env(4) if env is Crane else env, total_timesteps=64, num_envs=4, **SMALL).learn(quiet=True)
    done = agent.export(tmp_path / "policy.onnx")
    names = ["kind", "lift/force", "lift/hook", "speed"] if env is Crane else ["arm/0", "arm/1", "arm/2", "kind"]
    assert [name for name in done.outputs if name.startswith("action/")] == [f"action/{name}" for name in names]
    assert {"logits/kind", "value"} <= {*done.outputs}
    assert done.max_error < 1e-3
    model = onnx.load(tmp_path / "policy.onnx")
    words = {entry.key: entry.value for entry in model.metadata_props}
    assert [part["name"] for part in json.loads(words["action"])] == [f"action/{name}" for name in names]
