"""The same page, executed in other ways: equal numbers, no hidden waiting, and a word where it cannot be done."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from forks import PythonProcess
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tightrope as tr
from tightrope.algorithms import ALGORITHMS, common
from tightrope.engine import Runtime, chosen_mode, draw_noise, run_as, unguarded
from tightrope.engine.graph import fixtures, rebound
from tightrope.functional import PPOLoss
from tightrope.types import Batch

SMALL: dict[str, Any] = dict(num_envs=16, num_steps=8, seed=3, total_timesteps=16 * 8 * 40)
HOST_READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "allclose", "item", "masked_select"}


def agent_of(algo: str = "ppo", env: Any = "CartPole-v1", **settings: Any) -> tr.Agent:
    kind = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]
    own = {"num_minibatches": 4, "update_epochs": 2} if algo == "ppo" else {}
    return kind(env, **{**({} if not isinstance(env, str) else SMALL), **own, **settings})


def phases(agent: tr.Agent, count: int) -> list[Any]:
    rows = []
    for metrics in ALGORITHMS[agent.algo].loop(agent.state, agent.config.algorithm):
        rows.append(metrics)
        if len(rows) == count:
            break
    return rows


# choices -------------------------------------------------------------------------------------------------------------


def test_auto_is_graphs_on_cuda_and_the_page_as_written_elsewhere() -> None:
    assert chosen_mode("auto", torch.device("cpu")) == "eager"
    assert chosen_mode("auto", torch.device("cuda")) == "graph"
    assert chosen_mode("max", torch.device("cpu")) == "compile"
    assert chosen_mode("eager", torch.device("cuda")) == "eager"


def test_graphs_without_cuda_are_refused_in_one_line() -> None:
    with pytest.raises(tr.UsageError, match="accelerate graph needs a CUDA device and this run is on cpu"):
        tr.PPO("CartPole-v1", accelerate="graph", device="cpu")


CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ((), "recorded"),
        (("eager", "phase", "bf16"), "plain PyTorch, bf16"),
        (("eager", "phase", "fp32", CUDA), "plain PyTorch"),
        (("compile", "phase"), "compiled first, which takes up to 30 s"),
        (("graph", "phase", "fp32", CUDA), "each phase is one CUDA graph"),
        (
            ("max", "part", "tf32", CUDA),
            "acting and learning are CUDA graphs, compiled first, which takes up to 30 s, tf32",
        ),
    ],
)
def test_a_runtime_says_how_phases_are_executed(choice: tuple[Any, ...], words: str) -> None:
    assert Runtime(*choice).describe() == words


def test_the_plan_prints_the_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    agent_of(total_timesteps=256, device="cpu", threads=1).learn()
    assert "cpu, 1 thread, recorded\n" in capsys.readouterr().out


class Run:
    """As much of a run's state as a marked function needs."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime


def test_the_unit_of_capture_decides_which_functions_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = []

    def note(self: Runtime, function: Any, args: Any) -> Any:
        captured.append(function.__name__)
        return function(*args)

    monkeypatch.setattr(Runtime, "_captured", note)

    @run_as("part")
    def inner(state: Run) -> int:
        return 3

    @run_as("part")
    def part(state: Run, factor: int) -> int:
        return factor * inner(state)

    @run_as("phase")
    def whole(state: Run) -> int:
        return part(state, 2) + inner(state)

    for runtime in (Runtime("graph", "phase"), Runtime("graph", "part"), Runtime("compile", "part"), Runtime()):
        assert whole(Run(runtime)) == 9
        captured.append("-")
    assert captured == ["whole", "-", "part", "inner", "-", "-", "-"]
    assert part(Run(Runtime()), factor=4) == 12


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_phase_called_directly_is_that_of_the_loop(algo: str, precision: str) -> None:
    looped, direct = (agent_of(algo, precision=precision) for _ in range(2))
    page = unguarded(ALGORITHMS[algo].loop).__globals__
    state, config = direct.state, direct.config.algorithm
    for expected in phases(looped, 2):
        page.get("schedule", common.schedule_settings)(state, config)
        metrics = page["phase"](state, config, common.noise_of_phase(state, config))
        assert torch.equal(torch.stack(metrics.terms), torch.stack(expected.terms))
        state.phase, state.steps = state.phase + 1, state.steps + (int(metrics.steps) if algo == "vpg" else 128)
    assert torch.equal(looped.state.optimizer.flat, state.optimizer.flat)


# what a graph would miss ---------------------------------------------------------------------------------------------


class Forgetful(tr.envs.CartPole):
    """Keeps its last action by replacing an attribute, which a replay would not see."""

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        self.last_action = action
        return super().advance(state, action)


class Counting(tr.envs.CartPole):
    calls = 0

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        self.calls += 1
        return super().reward(state, action, next_state)


@pytest.mark.parametrize(("kind", "name"), [(Forgetful, "last_action"), (Counting, "calls")])
def test_state_that_a_step_replaces_is_found(kind: type[tr.envs.CartPole], name: str) -> None:
    env = kind(4)
    env.step(torch.zeros(4, dtype=torch.int64))
    before = fixtures(env)
    env.step(torch.zeros(4, dtype=torch.int64))
    assert f"{kind.__name__}.{name} is replaced" in str(rebound(env, before, fixtures(env)))


@pytest.mark.parametrize("env_id", sorted(tr.envs.ENVS))
def test_our_environments_write_into_their_state(env_id: str) -> None:
    env = tr.envs.ENVS[env_id](4)
    before = fixtures(env)
    zero = torch.zeros(4, *env.action.shape, dtype=env.action.dtype)
    env.step(zero)
    assert rebound(env, before, fixtures(env)) is None


# no hidden synchronisation -------------------------------------------------------------------------------------------


class Ledger(TorchDispatchMode):
    """Counts operations, each of which is a launch on a device, and those at which the host would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def reads(self) -> int:
        return sum(self.operations[name] for name in HOST_READS)

    @property
    def launches(self) -> int:
        views = {
            "view", "select", "slice", "t", "transpose", "unsqueeze", "squeeze", "expand", "detach", "alias",
            "split_with_sizes", "unbind", "_unsafe_view", "as_strided", "split", "permute", "empty_like", "empty",
        }  # fmt: skip
        return sum(count for name, count in self.operations.items() if name not in views)


@pytest.mark.parametrize(
    ("algo", "settings", "most"),
    [
        ("ppo", {}, 1600),  # of plain PyTorch: on CUDA, kernels take the place of most
        ("ppo", {"target_kl": 0.01, "norm_obs": True, "norm_reward": True, "clip_vloss": True}, 2010),
        ("vpg", {"baseline": "critic"}, 760),
    ],
)
def test_a_phase_reads_nothing_on_the_host_and_launches_no_more_than_it_did(
    algo: str, settings: dict[str, Any], most: int
) -> None:
    """If this fails because you added a launch that is worth it, raise the figure; a read on the host never is."""
    agent = agent_of(algo, **settings)
    agent.state.runtime = Runtime(on_device=True)
    agent.state.env._uses_arrays = False  # steps over tensors
    phases(agent, 1)  # in which the gradient looks at itself once
    module = unguarded(ALGORITHMS[algo].loop).__globals__
    noise = draw_noise(agent.state.env, agent.state.policy.head.noise, 8, (2, 128) if algo == "ppo" else (1, 16), 3, 1)
    with Ledger() as ledger:
        module["phase"](agent.state, agent.config.algorithm, noise)
    assert ledger.reads == 0, ledger.operations.most_common()
    assert 0.9 * most < ledger.launches <= most, ledger.operations.most_common()


# equal numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it compiles
def test_compiled_is_eager_to_rounding() -> None:
    plain, compiled = agent_of(), agent_of(accelerate="compile")
    for a, b in zip(phases(plain, 3), phases(compiled, 3), strict=True):
        torch.testing.assert_close(torch.stack(a.terms), torch.stack(b.terms), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plain.state.optimizer.flat, compiled.state.optimizer.flat, rtol=1e-4, atol=1e-5)


def gradient_in(precision: Any, device: str = "cpu") -> Tensor:
    """The gradient of one and the same minibatch."""
    torch.manual_seed(0)
    agent = agent_of(device=device, accelerate="eager")
    obs, rows = torch.randn(256, 4), torch.randn(4, 256)
    batch = Batch(obs, torch.arange(256) % 2, rows[0] * 0.1 - 0.7, rows[1], rows[2], rows[3])
    batch = Batch(*(column.to(device) for column in vars(batch).values()))
    runtime = Runtime(precision=precision, device=torch.device(device))
    with runtime.arithmetic():
        runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), agent.state.policy, batch, agent.state.optimizer)
    assert agent.state.optimizer.grad.dtype == agent.state.optimizer.flat.dtype == torch.float32
    return agent.state.optimizer.grad.cpu()


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_bf16_changes_the_gradient_by_its_rounding_alone() -> None:
    assert 1e-5 < relative(gradient_in("bf16"), gradient_in("fp32")) < 0.02


@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"max_episode_steps": 5}),
        ("ppo", "Pendulum-v1", {"max_episode_steps": 5, "norm_obs": True}),
        ("ppo", "CartPole-v1", {"max_episode_steps": 5, "share_trunk": True}),
        ("vpg", "CartPole-v1", {"baseline": "critic", "max_episode_steps": 5}),
    ],
)
def test_whole_phases_run_in_bf16_truncations_and_all(algo: str, env: str, settings: dict[str, Any]) -> None:
    agent = agent_of(algo, env, precision="bf16", **settings)
    for metrics in phases(agent, 3):
        assert torch.isfinite(torch.stack(metrics.terms)).all()
    assert agent.state.optimizer.flat.dtype == agent.state.rollout.value.dtype == torch.float32


def test_torchs_newer_way_to_set_precision_is_no_obstacle() -> None:
    code = "import torch, tightrope as tr; torch.backends.cuda.matmul.fp32_precision = 'tf32'; " + (
        "tr.PPO('CartPole-v1', device='cpu', num_envs=4, num_steps=8, num_minibatches=2).learn(64, quiet=True)"
    )
    done = PythonProcess("-c", code, variables={"PYTHONWARNINGS": "ignore"}).done()
    assert done.returncode == 0, done.stderr


def test_tensors_that_are_replaced_are_found_even_where_memory_is_used_again() -> None:
    env = tr.envs.CartPole(1024)
    env.extra = torch.zeros(1024)  # type: ignore[attr-defined]
    env.list = [torch.zeros(3)]  # type: ignore[attr-defined]
    before = fixtures(env)
    for _ in range(2):
        env.extra = env.extra + 1  # type: ignore[attr-defined]
    assert "CartPole.extra is replaced" in str(rebound(env, before, fixtures(env)))
    before = fixtures(env)
    env.list[0] = torch.zeros(3)  # type: ignore[attr-defined]
    assert "CartPole.list is replaced" in str(rebound(env, before, fixtures(env)))


@pytest.mark.gpu
def test_precisions_on_a_gpu() -> None:
    exact = gradient_in("fp32")
    assert relative(gradient_in("fp32", "cuda"), exact) < 1e-5
    assert relative(gradient_in("tf32", "cuda"), exact) < 2e-3
    assert relative(gradient_in("bf16", "cuda"), exact) < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {}),
        ("ppo", "Pendulum-v1", {"norm_obs": True, "norm_reward": True, "target_kl": 0.02}),
        ("ppo", "CartPole-v1", {"share_trunk": True}),
        ("ppo", "CartDoublePendulum-v0", {}),
        ("vpg", "CartPole-v1", {"baseline": "critic"}),
    ],
)
def test_graph_is_eager_bit_for_bit(algo: str, env: str, settings: dict[str, Any]) -> None:
    plain = agent_of(algo, env, device="cuda", accelerate="eager", **settings)
    replayed = agent_of(algo, env, device="cuda", **settings)
    for a, b in zip(phases(plain, 5), phases(replayed, 5), strict=True):
        assert torch.equal(torch.stack(a.terms), torch.stack(b.terms))
        assert torch.equal(a.episodes, b.episodes)
    assert replayed.state.runtime.graphs
    for name, tensor in plain.state.state_dict().items():
        assert torch.equal(tensor, replayed.state.state_dict()[name]), name


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("settings", [{}, {"hidden_sizes": (32, 32, 32)}, {"share_trunk": True}])
def test_max_is_eager_to_rounding(settings: dict[str, Any]) -> None:
    plain = agent_of(device="cuda", accelerate="eager", **settings)
    fast = agent_of(device="cuda", accelerate="max", **settings)
    for a, b in zip(phases(plain, 3), phases(fast, 3), strict=True):
        torch.testing.assert_close(torch.stack(a.terms), torch.stack(b.terms), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(plain.state.optimizer.flat, fast.state.optimizer.flat, rtol=1e-3, atol=1e-4)


class Peeking(tr.envs.CartPole):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0]) * float(state[:, 0].abs().max() < 100)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "words"), [(Peeking, "test_runtime.py, line"), (Forgetful, "last_action"), (Counting, "calls")]
)
def test_what_cannot_be_captured_runs_by_parts_and_says_why(
    kind: type[tr.envs.CartPole], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = dict(
        num_steps=8, num_minibatches=4, update_epochs=2, seed=3, total_timesteps=16 * 8 * 40
    )
    plain = agent_of(env=kind(16, "cuda"), accelerate="eager", **settings)
    other = agent_of(env=kind(16, "cuda"), **settings)
    phases(plain, 4)
    phases(other, 4)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said
    assert other.state.runtime.graphs
    assert torch.equal(plain.state.optimizer.flat, other.state.optimizer.flat)


@pytest.mark.gpu
def test_memory_does_not_grow_and_metrics_are_copies() -> None:
    agent = agent_of(device="cuda", total_timesteps=16 * 8 * 400)
    rows, before = [], 0
    for i, metrics in enumerate(ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm)):
        rows.append(metrics.grad_norm)
        if i == 20:
            before = torch.cuda.memory_allocated()
    assert len({float(x) for x in rows}) > 300
    assert torch.cuda.memory_allocated() <= before + 400 * 4096


@pytest.mark.gpu
def test_a_replayed_phase_is_a_handful_of_launches() -> None:
    agent = agent_of(device="cuda")
    loop = ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm)
    for _ in range(3):
        next(loop)
    torch.cuda.synchronize()
    with torch.profiler.profile(acc_events=True) as profile:
        next(loop)
    calls = Counter({event.key: event.count for event in profile.key_averages()})
    assert calls["cudaGraphLaunch"] == 1
    assert sum(calls[name] for name in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync")) <= 30, calls
    assert calls["cudaStreamSynchronize"] + calls["cudaMemcpy"] == 0, calls
