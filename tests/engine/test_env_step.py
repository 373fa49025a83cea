"""The step of environments as a kernel: its source, what is refused, and its agreement with the plain step, compiled on CUDA
and otherwise in Triton's interpreter."""

import os
import sys
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.algorithms.ppo import ppo
from tightrope.engine import Runtime, draw_noise
from tightrope.engine.collect import advance
from tightrope.engine.kernels.env_step import EnvStep, EnvSteps, readings, step_source, tried
from tightrope.envs import ENVS, TensorEnv, make
from tightrope.envs.classic import CartPole, Pendulum
from tightrope.envs.methods import random_action
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Box, Discrete, MultiDiscrete, Rollout

INTERPRETER = not torch.cuda.is_available() and find_spec("triton") is not None and "triton" not in sys.modules
if INTERPRETER:
    os.environ["TRITON_INTERPRET"] = "1"

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROWS = 33  # more than half a block


@pytest.fixture(params=["interpreted", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda")
    if not (INTERPRETER or os.environ.get("TRITON_INTERPRET")):
        pytest.skip("Triton's interpreter is not here")
    return torch.device("cpu")


class Counter(TensorEnv):
    """A count that the action adds to."""

    observation, action, time_limit = Box((1,)), Discrete(3), 5

    def initial(self, noise: Tensor) -> Tensor:
        return noise

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + action.unsqueeze(1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0]

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] > 4


class Centered(CartPole):
    """A user's own reward."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs() / 2.4


class Levers(Counter):
    """Several choices, which look up numbers in a table of the environment."""

    action = MultiDiscrete((2, 3, 4))

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.weights = torch.tensor([0.5, -1.0, 2.0, 0.25], device=self.device)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + self.weights[action].sum(1, keepdim=True)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (action == torch.tensor([1, 0, 3], device=action.device)).float().mean(1) + state.amax(1)


class Windy(Counter):
    """Each environment has its own wind, which changes in place."""

    def __init__(self, num_envs: int = 1, *args: object, **settings: object) -> None:
        super().__init__(num_envs, *args, **settings)  # type: ignore[arg-type]
        self.wind = torch.linspace(0, 1, num_envs, device=self.device)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + (self.wind[: len(state)] * action).unsqueeze(1)


class Functions(Counter):
    """Operations of every kind."""

    observation = Box((4,))
    noise_size = 4

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        a, b, c, d = state.unbind(1)
        a = torch.remainder(a - 3, 2) + torch.fmod(b, 1.5) + a.floor() + b.ceil() + c.round() + d.trunc() + d.sign()
        b = b.abs().sqrt() + b.exp().clamp(max=5) + (c.square() + 0.1).log() + c.tanh() + torch.expm1(-d.abs())
        c = torch.where((a > 0) & ~(b < c) | (action == 1), torch.maximum(a, b), torch.minimum(c, d)) / 7
        d = (
            torch.log1p(d.abs())
            + d.sigmoid()
            + d.pow(3).clamp(-2, 2)
            + (action % 2 + action // 2).float()
            + d.sinh().clamp(-3, 3)
        )
        return torch.nan_to_num(torch.stack([a, b, c, d], 1)).clamp(-4, 4) @ torch.full(
            (4, 4), 0.25, device=state.device
        )

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        best = next_state.argmax(1) + next_state.cumsum(1)[:, 2] + (next_state > 0).any(1)
        return best.float() + torch.nn.functional.softmax(state, 1)[:, 1] + state.var(1)


class Sorting(Counter):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state.sort(1).values[:, 0]


class Mixing(Counter):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0] - next_state.mean()


class Numbered(Counter):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0] * torch.arange(len(state), device=state.device)


class Drawing(Counter):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0] * torch.rand(len(state), device=state.device)


class Looking(Counter):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0] if bool(state.sum() > 0) else -state[:, 0]


class Counting(Counter):
    calls = 0

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        self.calls += 1
        return state[:, 0]


class Stepping(Counter):
    def step(self, action: Tensor, noise: Tensor | None = None):  # type: ignore[no-untyped-def]
        return super().step(action, noise)


class Impure(Counter):
    pure = False


def a_step(env: TensorEnv) -> EnvStep:
    env.reset(seed=1)
    step, why = tried(env, advance)
    assert step is not None, why
    return step


# without Triton ---------------------------------------------------------------------------------------------------------


def test_the_source_of_a_small_environment() -> None:
    env = Counter(ROWS)
    env.reset(seed=0)
    source, order = step_source(env, advance)
    assert order == (
        "obs", "action", "given", "noise", "result", "state", "clock", "running_return", "finished", "row_obs", "row_action",
        "row_reward", "row_terminated", "row_truncated", "row_final_obs",
    )  # fmt: skip
    lines = [line.strip() for line in source.splitlines()]
    assert lines[1] == f"def row_kernel({', '.join(order)}, rows, BLOCK: tl.constexpr):"
    for line in (
        "v0 = tl.load(state + n * 1 + 0, mask=inside, other=0)",
        "v1 = tl.load(given + n * 1 + 0, mask=inside, other=0)",
        "v2 = v1.to(tl.float32)",
        "v3 = v0 + v2",
        "v4 = tl.full([BLOCK], 4.0, tl.float32)",
        "v5 = v3 > v4",
        "tl.store(row_final_obs + n * 1 + 0, v3, mask=inside)",
        "tl.store(row_terminated + n * 1 + 0, v5.to(tl.uint8), mask=inside)",
    ):
        assert line in lines, source
    stored = [i for i, line in enumerate(lines) if line.startswith("tl.store")]
    assert stored == list(range(stored[0], len(lines)))  # all is read before anything is written


@pytest.mark.parametrize("env_id", ENVS)
def test_every_built_in_environment_has_a_source(env_id: str) -> None:
    env = make(env_id, 5)
    assert isinstance(env, TensorEnv)
    env.reset(seed=0)
    source, order = step_source(env, advance)
    compile(source, env_id, "exec")
    assert {"state", "row_reward", "row_final_obs", "result"} <= {*order}


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Sorting, "sort"), (Mixing, "it mixes environments"), (Numbered, "does not treat all environments alike"),
        (Drawing, "draws random numbers"), (Looking, "looks at numbers: use torch.where instead of if"),
        (Counting, "Counting.calls is replaced in a step"), (Stepping, "it overrides step"), (Impure, "pure is False"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_said_in_one_line(kind: type[TensorEnv], why: str) -> None:
    env, lines = kind(ROWS), list[str]()
    env.reset(seed=0)
    steps = EnvSteps(advance, lines.append)
    steps.prepare(env)
    assert steps.step is None
    assert steps.find(env) is None
    (line,) = lines
    assert line.startswith("accelerate: environments step in plain PyTorch, which is slower than one kernel: ")
    assert why in line
    assert "\n" not in line


def test_without_a_device_environments_step_as_before() -> None:
    lines = list[str]()
    runtime, env = Runtime(say=lines.append), Counter(ROWS)
    runtime.prepare(actor_critic(env.observation, env.action, NetworkConfig()), env)
    assert runtime.env_steps.step is None
    assert not runtime.has_orders
    assert not lines
    on_device = Runtime(say=lines.append, on_device=True)
    on_device.prepare(actor_critic(env.observation, env.action, NetworkConfig()), env)
    assert on_device.env_steps.step is None


# the kernel -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
def test_every_built_in_environment_steps_as_before(device: torch.device, env_id: str) -> None:
    env = make(env_id, ROWS, device)
    assert isinstance(env, TensorEnv)
    a_step(env)


@pytest.mark.parametrize("kind", [Counter, Centered, Levers, Windy, Functions])
def test_environments_of_users_step_as_before(device: torch.device, kind: type[TensorEnv]) -> None:
    a_step(kind(ROWS, device))


@pytest.mark.parametrize("rows", [1, 12, 64, 65, 200])
def test_any_number_of_environments(device: torch.device, rows: int) -> None:
    for kind in (Counter, Levers, *([Windy] if rows != 12 else [])):  # the dry run of 12 environments has 24 rows
        a_step(kind(rows, device))


@pytest.mark.parametrize("limit", [None, 1, 7])
def test_whole_rollouts_are_those_of_the_plain_step(device: torch.device, limit: int | None) -> None:
    """Counts, ends of episodes and their statistics exactly; numbers to rounding."""
    for kind in (Counter, Levers, Centered, Pendulum):
        found = []
        for fused in (False, True):
            env = kind(ROWS, device, max_episode_steps=limit)
            step = a_step(env) if fused else advance
            obs = env.reset(seed=3)
            env._uses_arrays = False
            rollout = Rollout.allocate(30, env)
            noise = draw_noise(env, lambda shape, generator: torch.rand(shape, generator=generator), 30, (1, 30), 0, 0)
            generator = torch.Generator().manual_seed(5)
            for row, reset in zip(rollout.rows, noise.reset, strict=True):
                given = random_action(env.action, ROWS, generator).to(device)
                obs = step(env, obs, given.view_as(row.action), given, reset, row)
            found.append((rollout, obs, env.clock.clone(), env.finished_episodes()))
        (one, first, clock, episodes), (two, second, other_clock, other_episodes) = found
        assert torch.equal(clock, other_clock)
        assert torch.equal(episodes[[0, 2]], other_episodes[[0, 2]])
        assert episodes[0] > 0 or limit is None
        for name in ("terminated", "truncated", "action", "valid"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        torch.testing.assert_close((second, other_episodes[1]), (first, episodes[1]), rtol=1e-3, atol=1e-3)
        for name in ("obs", "final_obs", "reward"):
            torch.testing.assert_close(getattr(two, name), getattr(one, name), rtol=1e-3, atol=1e-3)


def test_a_kernel_that_differs_is_not_used(device: torch.device) -> None:
    env = Counter(ROWS, device)
    step = a_step(env)
    step.source = step.source.replace("4.0, tl.float32", "3.0, tl.float32")
    step.compile()
    assert step.disagreement() == "the kernel gives another state"


def test_changed_environments_get_another_kernel(device: torch.device) -> None:
    env, lines = Centered(ROWS, device), list[str]()
    env.reset(seed=0)
    steps = EnvSteps(advance, lines.append)
    steps.prepare(env)
    first = steps.find(env)
    assert first is not None
    steps.renew()
    assert steps.find(env) is first
    env.max_episode_steps = 3
    assert steps.find(env) is None
    steps.renew()
    assert steps.find(env) not in (None, first)
    env.factor = 2.0  # type: ignore[attr-defined]
    assert steps.find(env) is None
    assert not lines


def test_changed_contents_and_tensors_of_another_shape_are_noticed() -> None:
    env = Centered(ROWS)
    env.limits, env.table, env.wind = [1.0, [2.0]], np.zeros(2), torch.zeros(3)  # type: ignore[attr-defined]

    def unchanged() -> bool:
        return before == readings(env)

    before = readings(env)
    env.wind.add_(1)  # type: ignore[attr-defined]
    assert unchanged(), "tensors are read when the environment steps"
    env.limits[1][0] = 3.0  # type: ignore[attr-defined]
    assert not unchanged()
    before = readings(env)
    env.table[0] = 1  # type: ignore[attr-defined]
    assert not unchanged()
    before = readings(env)
    env.wind = torch.zeros(4)  # type: ignore[attr-defined]
    assert not unchanged()


def test_tensors_of_the_environment_are_read_when_it_steps(device: torch.device) -> None:
    env = Levers(ROWS, device)
    step = a_step(env)
    env.weights.mul_(3)
    assert step.disagreement() is None
    env.weights = env.weights + 1
    assert step.disagreement() is None


@pytest.mark.parametrize("kind", [Centered, Levers])
def test_training_through_the_kernel_is_training(device: torch.device, kind: type[TensorEnv]) -> None:
    """Whole phases of PPO, as on a device, with the kernel and with the plain step."""
    found = []
    for fused in (False, True):
        agent = tr.PPO(
            kind, num_envs=8, num_steps=6, total_timesteps=480, device=device.type, accelerate="eager", seed=1
        )
        runtime = Runtime(device=device, on_device=True)
        agent.state.runtime = runtime
        if fused:
            runtime.env_steps.prepare(agent.state.env)
        phases = islice(ppo(agent.state, agent.config.algorithm), 3)
        episodes = sum(metrics.episodes[0] for metrics in phases)
        assert (runtime.env_steps.find(agent.state.env) is not None) == fused
        found.append((agent.state.optimizer.flat.clone(), agent.state.env.state.clone(), episodes))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [CartPole, Centered, Levers, Pendulum])
def test_training_with_kernels_gives_the_parameters_of_training_without(kind: type[TensorEnv]) -> None:
    found = []
    for mode, fused in (("eager", False), ("eager", True), ("graph", True)):
        agent = tr.PPO(
            kind, num_envs=64, num_steps=16, total_timesteps=64 * 16 * 4, device="cuda", accelerate=mode, seed=1
        )
        steps = agent.state.runtime.env_steps
        assert steps.step is not None, steps.refusal
        assert agent.state.runtime.has_orders
        if not fused:
            steps.step = None
        for _ in ppo(agent.state, agent.config.algorithm):
            pass
        found.append(agent.state.optimizer.flat.clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
    assert torch.equal(found[1], found[2])
