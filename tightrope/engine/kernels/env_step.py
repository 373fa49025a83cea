"""The step of a tensor environment as one kernel: what `collect.advance` does, recorded on a small copy on the CPU.

The recording holds everything between an action and the next observation: the environment's own methods, time limits, resets,
statistics of episodes, and writing into the rollout. Each environment is a row, and all its numbers stay in registers. No
equation is written a second time. Before a kernel is used, it is compared with the plain step on random numbers.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import ExecutionLoader
from typing import cast

import torch
from torch import Tensor

from ...envs import TensorEnv
from ...envs.attributes import copy_attributes
from ...envs.methods import ROWS, random_action
from ...envs.random_streams import GeneratorSnapshot, streams_lock
from ...envs.recorded_step import TEST_SPREADS, class_values, frozen
from ...envs.tensor import BASE_ATTRIBUTES, UNSAVED
from ...errors import raised
from ...recording import Unrecordable, recorded
from ...recording.per_row import row_program
from ...recording.triton import kernel_source
from ...types import Env, Rollout, Row
from ..collect import Advance
from ..graph import fixtures, rebound
from ..noise import isolated_rng
from ..recorded import random_like

Kernel = Mapping[tuple[int, ...], Callable[..., object]]
BLOCK, WARPS = 64, 2  # environments of a program
MAX_TEST_ROWS = 1024  # with many more, rounding would take some number across a threshold
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # differences that count as rounding
STATE = {"state": "state", "clock": "clock", "running_return": "_running_return"}
WRITTEN = ("obs", "action", "reward", "terminated", "truncated", "final_obs")  # of a row of the rollout
IMPORTS = """\
import triton
import triton.language as tl
from tightrope.engine.kernels.row_math import *

"""


class KernelLoader(ExecutionLoader):
    """Loads a module from its text. Triton asks Python for the text of a function, which Python finds here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        return self.text

    def get_filename(self, fullname: str) -> str:
        return f"{fullname}.py"


class EnvStep:
    """The step of one environment. A call does what `advance` does, in one launch."""

    def __init__(self, env: TensorEnv, advance: Advance) -> None:
        """Raises Unrecordable, or whatever a method raises."""
        self.env, self.advance, self.read = env, advance, readings(env)
        self.source, self.order = step_source(env, advance)
        self.kernel: Kernel = {}
        self.kernel_module = ""

    def compile(self) -> None:
        """Load the source as a module with a kernel."""
        self.kernel_module = f"tightrope_step_{hashlib.sha256(self.source.encode()).hexdigest()[:16]}"
        spec = importlib.util.spec_from_loader(self.kernel_module, loader := KernelLoader(IMPORTS + self.source))
        assert spec is not None
        sys.modules[self.kernel_module] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        self.kernel = cast(Kernel, module.row_kernel)

    @torch.no_grad()
    def __call__(self, env: Env, obs: Tensor, action: Tensor, given: Tensor, noise: Tensor, row: Row) -> Tensor:
        """Take one step with the actions `given`, write it into `row`, and return the new observations."""
        rows = env.num_envs
        result = torch.empty_like(row.obs)
        tensors = {"obs": obs, "action": action, "given": given, "noise": noise, "result": result}
        tensors |= changing(cast(TensorEnv, env), row) | attributes_of(env)
        chosen = [flat(tensors[name]) for name in self.order]
        # torch rounds after each operation, so that products and sums are not fused here either
        self.kernel[(-(-rows // BLOCK),)](*chosen, rows, BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False)
        return result

    def is_for(self, env: object) -> bool:
        """Whether this is the step of an environment that has not been changed since."""
        return env is self.env and self.read == readings(env)

    def disagreement(self, spreads: Sequence[float] = TEST_SPREADS) -> str | None:
        """Compare the kernel with the plain step, in states around the present one and at all times of an episode. Return what
        differs by more than rounding."""
        with isolated_rng(0, self.env.device), torch.no_grad():
            whole = any(is_per_env(self.env, x) for x in attributes_of(self.env).values())
            twin = self.env.spawn(self.env.num_envs if whole else min(self.env.num_envs, MAX_TEST_ROWS), 0)
            twin._uses_arrays = False
            generator = torch.Generator().manual_seed(0)
            for spread in spreads:
                twin.state.copy_(
                    self.env.state[: twin.num_envs]
                    + spread * torch.randn(twin.state.shape, generator=generator).to(twin.device)
                )
                longest = twin.max_episode_steps or 1000
                clock = torch.randint(longest, twin.clock.shape, generator=generator)
                twin.clock.copy_(torch.where(torch.rand(clock.shape, generator=generator) < 0.1, longest - 1, clock))
                if (found := step_difference(twin, self.advance, self, generator)) is not None:
                    return found
        return None


class EnvSteps:
    """The step of a run's environments as a kernel, which is made again when they are changed."""

    def __init__(self, advance: Advance, say: Callable[[str], None]) -> None:
        self.advance, self.say = advance, say
        self.step: EnvStep | None = None
        self.refusal: str | None = None  # what is in the way of a kernel

    def prepare(self, env: Env) -> None:
        """Make the kernel, or say why there is none. Other engines step their environments themselves."""
        if self.step is not None:
            sys.modules.pop(self.step.kernel_module, None)
        if isinstance(env, TensorEnv):
            self.step, self.refusal = tried(env, self.advance)
            if self.refusal is not None:
                self.say(
                    f"accelerate: environments step in plain PyTorch, which is slower than one kernel: {self.refusal}"
                )

    def renew(self) -> None:
        """Make the kernel again if the environment was changed; if its methods may read what cannot be watched, compare it with
        them. Reads tensors on the host."""
        if self.step is None:
            return
        env = self.step.env
        if not self.step.is_for(env) or (
            class_values(env) is None and self.step.disagreement(TEST_SPREADS[:1]) is not None
        ):
            self.prepare(env)

    def find(self, env: Env) -> EnvStep | None:
        """The kernel for these environments, as they are now; otherwise None."""
        return self.step if self.step is not None and self.step.is_for(env) else None


def tried(env: TensorEnv, advance: Advance) -> tuple[EnvStep | None, str | None]:
    """Return the step as a kernel that agrees with the plain one, or None with what is in the way."""
    if getattr(env.step, "__func__", None) is not TensorEnv.step:
        return None, "it overrides step"
    if not env.pure:
        return None, "pure is False, so its methods change something"
    if scattered := [name for name, x in attributes_of(env).items() if not x.is_contiguous()]:
        return None, f"its tensor {scattered[0].removeprefix('own_')} is not contiguous"
    with streams_lock:
        generators = GeneratorSnapshot(env)
        try:
            env.try_methods()
            step = EnvStep(env, advance)
            step.compile()
            found = step.disagreement()
        except Exception as error:  # of a method, of the recording, or of Triton's compiler
            return None, str(error) if isinstance(error, Unrecordable) else f"it raises {raised(error)}"
        finally:
            undrawn = generators.restore()
    return (step, None) if found is None and undrawn else (None, found or "its methods draw random numbers")


# the recording ---------------------------------------------------------------------------------------------------------


def step_source(env: TensorEnv, advance: Advance) -> tuple[str, tuple[str, ...]]:
    """Return the source of the kernel and its tensors, in order. Tensors of the environment that have a row for each
    environment are cut to the rows of the copy if recording fails otherwise."""
    with isolated_rng(0, torch.device("cpu")):
        try:
            return recorded_source(env, advance, cut=False)
        except Exception:
            if not any(is_per_env(env, x) for x in attributes_of(env).values()):
                raise
            return recorded_source(env, advance, cut=True)


def recorded_source(env: TensorEnv, advance: Advance, cut: bool) -> tuple[str, tuple[str, ...]]:
    twin = small_copy(env, cut)
    row = Rollout.allocate(1, twin).rows[0]
    given = random_action(twin.action, twin.num_envs, torch.Generator().manual_seed(0))
    noise = torch.full((twin.num_envs, twin.noise_size), 0.5)
    inputs = {"obs": row.obs.clone(), "action": row.action.clone(), "given": given, "noise": noise}
    held = attributes_of(twin)
    own = {name: x for name, x in held.items() if cut and is_per_env(env, attributes_of(env)[name])}
    shared = {name: x for name, x in held.items() if name not in own}
    before, written = fixtures(twin), rows_first(changing(twin, row) | own)

    def function(obs: Tensor, action: Tensor, given: Tensor, noise: Tensor) -> Tensor:
        return advance(twin, obs, action, given, noise, row)

    with torch.no_grad():
        recorder, (result,) = recorded(function, [*inputs.values()], portable=True, writable=[*written.values()])
    if (changed := rebound(twin, before, fixtures(twin))) is not None:
        raise Unrecordable(changed)
    results = {"result": result} | written
    program = row_program(recorder.restores + recorder.calls, inputs | written, shared, results)
    widths = {name: x[0].numel() for name, x in (inputs | results).items()}
    places = {name: f"n * {width} + {{k}}" for name, width in widths.items()}
    places |= dict.fromkeys(shared, "n * 0 + {k}") | {"finished": "n + {k} * rows"}
    used = {str(node.args[0]) for node in program.nodes if node.name == "input"} | {*program.results}
    order = tuple(name for name in places if name in used)
    return kernel_source(program, places, order), order


def small_copy(env: TensorEnv, cut: bool) -> TensorEnv:
    """A copy of the environment with a few rows on the CPU, which steps over tensors and looks at no number."""
    rows = ROWS[env.num_envs == ROWS[0]]
    twin = copy.copy(env)
    copy_attributes(twin, env, UNSAVED)
    for name, x in vars(twin).items():
        if isinstance(x, Tensor):
            vars(twin)[name] = (x[:rows] if cut and is_per_env(env, x) else x).cpu()
    twin.device = torch.device("cpu")
    twin._allocate(rows, 0)
    twin._uses_arrays = False
    vars(twin)["_checked_observe"] = lambda state, final=False: twin._show(state)  # without checks
    return twin


# tensors ---------------------------------------------------------------------------------------------------------------


def attributes_of(env: object) -> dict[str, Tensor]:
    """The tensors that an environment holds besides its state."""
    return {
        f"own_{k}": x for k, x in vars(env).items() if isinstance(x, Tensor) and k not in BASE_ATTRIBUTES and x.numel()
    }


def is_per_env(env: TensorEnv, x: Tensor) -> bool:
    return x.dim() > 0 and len(x) == env.num_envs


def changing(env: TensorEnv, row: Row) -> dict[str, Tensor]:
    """The tensors that a step writes."""
    held = {name: getattr(env, attribute) for name, attribute in STATE.items()} | {"finished": env._finished}
    return held | {f"row_{name}": getattr(row, name) for name in WRITTEN}


def rows_first(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.t() if name == "finished" else x for name, x in tensors.items()}


def flat(x: Tensor) -> Tensor:
    """The memory of a tensor as a kernel takes it: truth values as bytes."""
    x = x.contiguous()
    return x.view(torch.uint8) if x.dtype == torch.bool else x


# comparing -------------------------------------------------------------------------------------------------------------


def readings(env: object) -> list[object]:
    """What methods can read besides numbers in tensors: the attributes of the environment and of its classes."""
    own = [(name, frozen(x)) for name, x in vars(env).items() if name not in BASE_ATTRIBUTES]
    return [*own, *((name, frozen(x)) for each in type(env).__mro__[:-1] for name, x in vars(each).items())]


def step_difference(twin: TensorEnv, plain: Advance, kernel: Advance, generator: torch.Generator) -> str | None:
    """Take a step from the same state in both ways, and describe what differs by more than rounding."""
    rollout = Rollout.allocate(1, twin)
    row, rows = rollout.rows[0], twin.num_envs
    given = random_action(twin.action, rows, generator).to(twin.device)
    noise = torch.rand(rows, twin.noise_size, generator=generator).to(twin.device)
    shown = random_like(row.obs, generator, False), random_like(row.action, generator, False)
    written = changing(twin, row) | attributes_of(twin)
    before = {name: x.clone() for name, x in written.items()}
    found = []
    for advance in (plain, kernel):
        for name, x in written.items():
            x.copy_(before[name])
        obs = advance(twin, *shown, given, noise, row)
        found.append({name: x.clone() for name, x in written.items()} | {"obs": obs})
    return next(
        (f"the kernel gives another {name}" for name in found[0] if not alike(found[0][name], found[1][name])), None
    )


def alike(expected: Tensor, given: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    return torch.allclose(
        given, expected, RELATIVE, ABSOLUTE * (1 + float(expected.nan_to_num(0, 0, 0).abs().max())), True
    )
