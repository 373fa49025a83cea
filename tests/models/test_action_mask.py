"""Action masks: forbidden options have probability 0 everywhere, and masks travel wherever observations go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from torch import Tensor

import tightrope as tr
from tightrope.engine.recorded import random_batch
from tightrope.envs import TensorEnv
from tightrope.envs.adapters import gym_vector
from tightrope.envs.checker import check
from tightrope.errors import EnvError
from tightrope.models import NetworkConfig, actor_critic
from tightrope.models.action_mask import forbids_all, mask_columns, next_allowed, options, with_mask, without_mask
from tightrope.types import Box, Composite, Discrete, MultiDiscrete, Rollout, Spec

ACTIONS = [Discrete(3), Discrete(20), MultiDiscrete((3, 5, 2)), MultiDiscrete((2, 2))]
SEEN = [
    Box((4,)),
    Discrete(7),
    Composite((("a", Box((3,))), ("b", Discrete(4)))),
    Box((3, 36, 36), 0, 255, torch.uint8),
]
TINY: dict[str, Any] = dict(num_steps=8, seed=1, device="cpu")


def masked_policy(seen: Spec, action: Spec) -> tuple[Any, Tensor, Tensor]:
    """(policy with decided logits, rows, their masks)."""
    torch.manual_seed(0)
    spec = with_mask(seen, action)
    policy = actor_critic(spec, action, NetworkConfig(norm_obs=True))
    for parameter in policy.head.parameters():
        parameter.data.normal_()
    rows = torch.randint(0, 3, (64, *spec.shape)).float()
    rows = policy.action_mask.with_valid_masks(rows - (torch.rand_like(rows) > 0.5).float() * 2 * (rows == 0))
    columns = mask_columns(spec, action)
    assert columns is not None
    rows[:, : columns.start] = rows[:, : columns.start].abs().clamp(max=2)
    return policy, rows, rows[:, columns]


def flat_choices(action: Tensor, spec: Spec) -> Tensor:
    """Columns of a mask that actions (..., K) stand for."""
    starts = torch.tensor([0, *np.cumsum(options(spec))[:-1]])
    return (action.unsqueeze(-1) if isinstance(spec, Discrete) else action) + starts


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("seen", SEEN, ids=lambda spec: type(spec).__name__ + str(spec.shape))
def test_forbidden_options_are_renormalised_away(seen: Spec, action: Spec) -> None:
    """Against the definition: probabilities of the unmasked policy, 0 where forbidden, divided by their sum."""
    policy, rows, mask = masked_policy(seen, action)
    assert without_mask(with_mask(seen, action), action) == seen
    distribution, value = policy(rows)
    everything = rows.clone()
    everything[:, mask_columns(with_mask(seen, action), action)] = 1.0
    plain, same = policy(everything)
    torch.testing.assert_close(value, same, msg="networks see the mask")
    sizes = options(action)
    for choice, part in enumerate(mask.split_with_sizes(list(sizes), 1)):
        free, held = (
            d.probs if isinstance(action, Discrete) else d.probs[:, choice, : sizes[choice]]
            for d in (plain, distribution)
        )
        expected = free * part / (free * part).sum(1, keepdim=True)
        torch.testing.assert_close(held, expected)
        assert (held[part == 0] == 0).all(), "not exactly 0"


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_forbidden_options_never_occur_and_add_nothing(action: Spec) -> None:
    policy, rows, mask = masked_policy(Box((4,)), action)
    distribution, _ = policy(rows)
    generator = torch.Generator().manual_seed(1)
    noises = [policy.head.noise((len(rows),), generator) for _ in range(200)]
    noises += [torch.zeros_like(noises[0]), torch.full_like(noises[0], 1 - 2**-24)]
    for sampled in [*(distribution.sample(noise) for noise in noises), distribution.mode()]:
        assert (mask.gather(1, flat_choices(sampled, action)) == 1).all()
    entropy, log_prob = distribution.entropy(), distribution.log_prob(distribution.mode())
    probs = distribution.probs
    terms = torch.where(probs > 0, probs * probs.clamp(min=1e-30).log(), 0.0)
    expected = -terms.flatten(1).sum(1)
    torch.testing.assert_close(entropy, expected)
    assert distribution.kl(plain_of(policy, rows, action)).isfinite().all()
    (entropy.sum() + log_prob.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def plain_of(policy: Any, rows: Tensor, action: Spec) -> Any:
    everything = rows.clone()
    everything[:, mask_columns(with_mask(Box((4,)), action), action)] = 1.0
    return policy.distribution(everything)


def test_a_logit_of_a_forbidden_option_has_no_gradient() -> None:
    policy, rows, _ = masked_policy(Box((4,)), Discrete(3))
    rows[:, 4:] = torch.tensor([1.0, 0.0, 1.0])
    distribution, _ = policy(rows)
    loss = distribution.log_prob(torch.zeros(64, dtype=torch.int64)).sum() + distribution.entropy().sum()
    loss.backward()
    assert (policy.head.logits.weight.grad[1] == 0).all()
    assert policy.head.logits.weight.grad[0].abs().sum() > 0


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_a_mask_that_allows_nothing_is_not_a_number(action: Spec) -> None:
    policy, rows, _ = masked_policy(Box((4,)), action)
    rows[3, 4:] = 0.0
    log_prob = policy.distribution(rows).log_prob(policy.distribution(rows).mode())
    assert log_prob.isnan().nonzero().flatten().tolist() == [3]
    assert forbids_all(rows[:, 4:].numpy(), action).nonzero()[0].tolist() == [3]


def test_made_up_numbers_have_valid_masks() -> None:
    spec = with_mask(Box((2,)), Discrete(2))
    policy = actor_critic(spec, Discrete(2), NetworkConfig())
    env = Arms(num_envs=4)
    batch = random_batch(
        Rollout.allocate(8, env).batch(torch.zeros(8, 4), torch.zeros(8, 4)), tr.PPO(env, **TINY).state.policy, 1
    )
    assert not forbids_all(batch.obs[:, 2:].numpy(), env.action).any()
    assert set(batch.obs[:, 2:].unique().tolist()) == {0.0, 1.0}
    assert policy.action_mask is not None


# environments ------------------------------------------------------------------------------------------------------------


class Arms(TensorEnv):
    """The forbidden arm pays most; which of the others is allowed depends on the state."""

    observation, action, noise_size, time_limit = Box((2,)), Discrete(4), 1, 8

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([(noise > 0.5).float(), torch.zeros_like(noise)], 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([1 - state[:, 0], action.float()], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.5, 10.0, 2.0], device=state.device)[action]

    def action_mask(self, state: Tensor) -> Tensor:
        always = torch.tensor([True, True, False], device=state.device).expand(len(state), 3)
        return torch.cat([always, state[:, :1] > 0.5], 1)


class Corridor(gymnasium.Env[Any, Any]):
    """Walk to the right end. The walls forbid a step, and a forbidden step raises."""

    observation_space: ClassVar[Any] = gs.Box(0, 5, (1,), np.float32)
    action_space: ClassVar[Any] = gs.Discrete(3)

    def mask(self) -> np.ndarray:
        return np.array([self.x > 0, True, self.x < 5], np.int8)

    def shown(self) -> Any:
        return np.array([self.x], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = int(self.np_random.integers(5)), 0
        return self.shown(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask()[action]:
            raise RuntimeError("a forbidden step")
        self.x, self.t = self.x + int(action) - 1, self.t + 1
        return self.shown(), float(self.x == 5), self.x == 5, self.t >= 20, self.info()

    def info(self) -> dict[str, Any]:
        return {}


class InInfo(Corridor):
    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()}


class ByMethod(Corridor):
    def action_masks(self) -> list[bool]:
        return [bool(x) for x in self.mask()]


class InDict(Corridor):
    observation_space: ClassVar[Any] = gs.Dict(
        {"x": Corridor.observation_space, "action_mask": gs.Box(0, 1, (3,), np.int8)}
    )

    def shown(self) -> Any:
        return {"x": np.array([self.x], np.float32), "action_mask": self.mask()}


KINDS: list[Callable[[], Any]] = [InInfo, ByMethod, InDict]


@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_the_forbidden_arm_is_never_taken(algo: Any) -> None:
    """The probe of masks: the forbidden arm pays most, so that any way round the mask would be learned."""
    agent = algo(Arms(num_envs=16), total_timesteps=8192, learning_rate=1e-2, **TINY)
    for _ in agent.phases():
        rollout = agent.state.rollout
        assert (rollout.obs[..., 2:].gather(-1, rollout.action.unsqueeze(-1)) == 1).all()
    assert agent.evaluate(20).mean == 12.0
    assert agent.state.policy.recordings.refusal is None, "masks are not recorded"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasium_masks_are_applied(kind: Callable[[], Any], mode: str) -> None:
    agent = tr.PPO(kind, num_envs=2, total_timesteps=64, num_minibatches=2, vectorization_mode=mode, **TINY)
    with agent:
        agent.learn(quiet=True)  # a forbidden step would raise
        assert agent.evaluate(4).unfinished == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_predict_takes_masks(kind: Callable[[], Any], tmp_path: Path) -> None:
    agent = tr.PPO(kind, num_envs=2, total_timesteps=32, num_minibatches=2, **TINY).learn(quiet=True)
    x = np.array([2.0], np.float32)

    def seen(mask: Any) -> Any:
        return {"x": x, "action_mask": mask} if kind is InDict else {"observation": x, "action_mask": mask}

    for only in range(3):
        mask = np.eye(3, dtype=np.int8)[only]
        assert agent.predict(seen(mask)) == only
        if kind is not InDict:
            assert agent.predict(x, mask=mask) == only
            assert agent.predict((x, {"action_mask": mask})) == only
            assert agent.predict(np.stack([x, x]), mask=np.stack([mask, mask])).tolist() == [only, only]
    with pytest.raises(tr.UsageError, match="mask is given twice"):
        agent.predict(seen(mask), mask=mask)
    agent.save(tmp_path / "run")
    policy = tr.load_policy(tmp_path / "run")
    assert policy.predict(seen(np.array([0, 0, 1], np.int8))) == 2


def test_predict_of_a_tensor_environment_takes_masks() -> None:
    agent = tr.PPO(Arms(num_envs=4), total_timesteps=64, num_minibatches=2, **TINY)
    for only in range(4):
        mask = torch.eye(4)[only]
        assert int(agent.predict(torch.tensor([1.0, 0.0]), mask=mask)) == only
        assert agent.predict(torch.zeros(3, 2), mask=mask).tolist() == [only] * 3
        assert int(agent.predict(torch.cat([torch.zeros(2), mask]))) == only
    with pytest.raises(tr.UsageError, match=r"mask has shape \(3,\): give one entry for each of 4 options"):
        agent.predict(torch.zeros(2), mask=[1, 1, 1])
    with pytest.raises(tr.UsageError, match="trained without action masks"):
        tr.PPO("CartPole-v1", **TINY).predict(np.zeros(4), mask=[1, 1])


def test_masks_are_exported(tmp_path: Path, onnxruntime: Any) -> None:
    agent = tr.PPO(InInfo, num_envs=2, total_timesteps=32, num_minibatches=2, **TINY).learn(quiet=True)
    exported = agent.export(tmp_path / "masked.onnx")
    assert sorted(exported.inputs) == ["action_mask", "observation"]
    session = onnxruntime.InferenceSession(str(exported.path))
    for only in range(3):
        given = {"observation": np.zeros((1, 1), np.float32), "action_mask": np.eye(3, dtype=np.int8)[[only]]}
        assert session.run(["action"], given)[0].tolist() == [only]


# mistakes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (lambda state: torch.ones(len(state), 3, dtype=torch.bool), "wanted bools (N, 4)"),
        (lambda state: torch.ones(len(state), 4), "wanted bools"),
        (lambda state: torch.zeros(len(state), 4, dtype=torch.bool), "action_mask allows nothing for env number 0"),
    ],
)
def test_a_wrong_mask_of_a_tensor_environment_is_one_line(mask: Callable[[Tensor], Tensor], words: str) -> None:
    class Wrong(Arms):
        def action_mask(self, state: Tensor) -> Tensor:
            return mask(state)

    with pytest.raises(tr.UsageError) as error:
        tr.PPO(Wrong(num_envs=4), total_timesteps=64, **TINY)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_masks_are_for_choices() -> None:
    class Continuous(Arms):
        action = Box((1,), -1.0, 1.0)

    with pytest.raises(tr.UsageError, match="action_mask is for choices, and action is Box"):
        tr.PPO(Continuous(num_envs=4), total_timesteps=64, **TINY)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"action_mask": np.zeros(3)}, "info['action_mask'] allows nothing"),
        ({"action_mask": np.ones(2)}, "info['action_mask'] has shape (2,): give one entry for each of 3 options"),
        ({"action_mask": [0.9, 1, 1]}, "info['action_mask'] has 0.9: give 0"),
        ({}, "info['action_mask'] is missing"),
    ],
)
def test_a_wrong_mask_of_gymnasium_names_the_environment(given: dict[str, Any], words: str) -> None:
    class Wrong(InInfo):
        resets = 0

        def info(self) -> dict[str, Any]:
            type(self).resets += self.t == 0
            return super().info() if type(self).resets <= 2 else given

    with pytest.raises(EnvError) as error:
        tr.PPO(Wrong, num_envs=2, total_timesteps=64, num_minibatches=2, **TINY).learn(quiet=True)
    assert words in str(error.value)
    assert "number" in str(error.value)


@pytest.mark.parametrize("scale", [0.4, 0.0, -1.0])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_wrong_mask_in_a_dict_names_the_environment(scale: float, mode: str) -> None:
    class Wrong(InDict):
        observation_space: ClassVar[Any] = gs.Dict(
            {"x": Corridor.observation_space, "action_mask": gs.Box(-9, 9, (3,))}
        )

        def shown(self) -> Any:
            return {"x": np.array([self.x], np.float32), "action_mask": scale * self.mask().astype(np.float32)}

    settings = dict(num_envs=2, total_timesteps=64, num_minibatches=2, vectorization_mode=mode)
    with pytest.raises(EnvError, match=r"number 0 shows the action mask \["):
        tr.PPO(Wrong, **settings, **TINY)


def test_a_mask_that_allows_nothing_is_named_where_only_the_guard_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gym_vector, "check_mask_rows", lambda *given: None)

    class Wrong(InDict):
        def mask(self) -> np.ndarray:
            return np.array([0, self.x != 3, 0], np.int8)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.x, self.t = 3 if self.t else self.x, self.t + 1
            return self.shown(), 0.0, False, self.t >= 20, {}

    vector = gymnasium.vector.SyncVectorEnv([Wrong, Wrong])
    with pytest.raises(tr.NotFinite) as error:
        tr.PPO(vector, total_timesteps=64, num_minibatches=2, **TINY).learn(run_dir=tmp_path / "run", quiet=True)
    assert "allows nothing" in str(error.value)


class Strict(Arms):
    """Refuses a forbidden action."""

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        if not self.action_mask(state).gather(1, action[:, None]).all():
            raise ValueError("forbidden")
        return super().advance(state, action)


def test_an_environment_that_refuses_forbidden_actions_never_gets_one() -> None:
    agent = tr.PPO(Strict(num_envs=4), total_timesteps=256, num_minibatches=2, **TINY).learn(quiet=True)
    assert agent.evaluate(4).unfinished == 0
    assert "step" not in findings(Strict)


def test_an_end_needs_no_allowed_action() -> None:
    class Ending(Arms):
        def terminated(self, state: Tensor) -> Tensor:
            return state[:, 1] == 1

        def action_mask(self, state: Tensor) -> Tensor:
            return super().action_mask(state) & (state[:, 1:] != 1)

    for arrays in (True, False):
        agent = tr.PPO(Ending(num_envs=4), total_timesteps=256, num_minibatches=2, **TINY)
        agent.state.env._uses_arrays = arrays
        assert agent.learn(quiet=True).steps == 256


@pytest.mark.parametrize("order", ["before", "after", "action after"])
def test_spaces_may_be_set_before_and_after_the_base_is_made(order: str) -> None:
    class Late(Arms):
        observation = Box((2,))
        action = Discrete(4) if order != "action after" else Discrete(9)

        def __init__(self, num_envs: int = 1, device: str = "cpu", max_episode_steps: int | None = None) -> None:
            if order == "before":
                self.observation, self.action = Box((2,)), Discrete(4)
            super().__init__(num_envs, device, max_episode_steps)
            if order != "before":
                self.observation, self.action = Box((2,)), Discrete(4)

    env = Late(4)
    assert env.observation == with_mask(Box((2,)), Discrete(4)) == env.spawn(2, 0).observation
    assert tr.PPO(env, total_timesteps=64, num_minibatches=2, **TINY).learn(quiet=True).steps == 64


def test_a_mask_of_a_method_that_keeps_count_is_checked() -> None:
    class Counting(Arms):
        pure = False

        def action_mask(self, state: Tensor) -> Tensor:
            return torch.ones(len(state), 3)

    with pytest.raises(tr.UsageError, match=r"wanted bools \(N, 4\)"):
        tr.PPO(Counting(num_envs=4), total_timesteps=64, num_minibatches=2, **TINY)


def test_draw_does_not_see_the_mask(tmp_path: Path) -> None:
    class Drawn(Arms):
        observation = Discrete(2)

        def observe(self, state: Tensor) -> Tensor:
            return state[:, 0].long()

        def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
            assert obs.dtype == torch.int64
            assert obs.dim() == 1
            return np.zeros((len(obs), 32, 32, 3), np.uint8)

    agent = tr.PPO(Drawn(num_envs=4), total_timesteps=64, num_minibatches=2, video_every=1, **TINY)
    agent.learn(run_dir=tmp_path / "run", quiet=True)
    agent.record(tmp_path / "masked.mp4", episodes=1)
    assert list((tmp_path / "run" / "videos").glob("*.mp4"))


class Bits(gymnasium.Env[Any, Any]):
    """MultiBinary actions; the first bit must stay 0."""

    observation_space: ClassVar[Any] = gs.Box(0, 1, (1,), np.float32)
    action_space: ClassVar[Any] = gs.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {"action_mask": [[1, 0], [1, 1], [1, 1]]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action[0] == 0
        self.t += 1
        return (
            np.zeros(1, np.float32),
            float(action.sum()),
            False,
            self.t >= 5,
            {"action_mask": ([1, 0], [1, 1], [1, 1])},
        )


def test_masks_of_several_choices() -> None:
    agent = tr.PPO(Bits, num_envs=2, total_timesteps=64, num_minibatches=2, **TINY).learn(quiet=True)
    only = ([1, 0], [0, 1], [1, 0])
    for mask in (only, np.array(only), np.ravel(only)):
        assert agent.predict(np.zeros(1, np.float32), mask=mask).tolist() == [0, 1, 0]
    with pytest.raises(tr.UsageError, match="give one entry for each of 6 options, two for each bit"):
        agent.predict(np.zeros(1, np.float32), mask=[1, 1, 1])


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([0, 0, 0], "mask allows nothing"), ([2, 1, 1], "mask has 2: give 0"), ("abc", "is not numbers"),
        (1, "mask has shape ()"), (np.ones((2, 3)), "mask has 2 rows for 3 observations"),
        (None, "has action masks: give mask="),
    ],
)  # fmt: skip
def test_a_wrong_mask_of_predict_is_one_line(mask: Any, words: str) -> None:
    host = tr.PPO(InInfo, num_envs=2, total_timesteps=32, num_minibatches=2, **TINY)
    with pytest.raises(tr.UsageError) as error:
        host.predict(np.zeros((3, 1), np.float32), mask=mask)
    assert words in str(error.value)
    wide = np.concatenate([mask, np.ones((2, 1))], 1) if isinstance(mask, np.ndarray) else mask
    longer = [*mask, mask[0] and 1] if isinstance(mask, list) else wide
    with pytest.raises(tr.UsageError) as error:
        tr.PPO(Arms(num_envs=4), **TINY).predict(torch.zeros(3, 2), mask=longer)
    assert words in str(error.value)


def test_a_mask_of_another_size_than_the_actions_is_one_line() -> None:
    spec = Composite((("x", Box((1,))), ("action_mask", Box((2,)))))
    with pytest.raises(tr.UsageError, match="'action_mask' has 2 entries, and the actions have 3 options"):
        actor_critic(spec, Discrete(3), NetworkConfig())
    assert actor_critic(spec, Box((1,)), NetworkConfig()).action_mask is None, "masks are for choices"


# the check of environments ---------------------------------------------------------------------------------------------------


def findings(env: Any) -> dict[str, str]:
    return {f.check: f.message for f in check(env, steps=200).findings if f.level != "note" or f.check == "action mask"}


@pytest.mark.parametrize("env", [*KINDS, Arms, "Taxi-v4", "MaskProbe-v0"])
def test_a_good_mask_passes_the_check(env: Any) -> None:
    found = findings(env)
    assert not found.keys() & {"action mask", "step", "reset", "determinism"}, found


def test_the_check_finds_wrong_masks() -> None:
    class Inverted(InInfo):
        """Allows just what step refuses."""

        def info(self) -> dict[str, Any]:
            return {"action_mask": [0, 0, 1] if self.x == 5 else [1, 0, 0]}

    class Short(InInfo):
        def info(self) -> dict[str, Any]:
            return {"action_mask": [1, 1]}

    class Nothing(InDict):
        def mask(self) -> np.ndarray:
            return np.zeros(3, np.int8)

    assert "a forbidden step" in findings(Inverted)["step"]
    assert "info['action_mask'] has shape (2,), in reset()" in findings(Short)["action mask"]
    assert "allows no action" in findings(Nothing)["action mask"]
    fixes = {f.check: f.fix for f in check(Inverted, steps=200).findings}
    assert fixes["step"] == "forbid this action by the mask, or let step take it"


def test_the_next_allowed_option() -> None:
    mask = np.array([[0, 0, 1, 1, 1, 0], [1, 0, 0, 0, 0, 1]])
    spec = MultiDiscrete((3, 3))
    assert next_allowed(np.array([[0, 2], [1, 1]]), mask, spec).tolist() == [[2, 0], [0, 2]]
    assert next_allowed(np.array([2, 1]), mask[:, :3], Discrete(3)).tolist() == [2, 0]
