"""The Runtime: the one place that decides how a run is executed. It changes results only by rounding, and where CUDA kernels
draw the order of minibatches.

A `Runtime` is chosen once, when a run is built, from the device, the mode, the precision and the environment:

    eager, on the CPU   functions are recorded once and replayed as compiled C or NumPy calls; the rest runs in plain PyTorch
    eager, elsewhere    plain PyTorch, with kernels for the layers and gradients of multilayer perceptrons on CUDA
    compile             the functions that do the arithmetic are compiled by torch.compile
    graph               a whole phase is one CUDA graph; if environments are not tensors, acting and learning are graphs
    max                 graph and compile together
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .. import activity
from ..errors import UsageError
from ..functional import PPOLoss, standardize
from ..models import ActorCritic
from ..output import print_line
from ..recording import turned_off, why_not_compiled
from ..types import Batch, Env, Rollout
from . import collect as collection
from . import distributed, rollout_policy
from .across_ranks import Scale, Statistics, moments, standardized, standardized_on_host
from .estimates_in_c import order_in_c
from .gradients import KernelGradients, RecordedGradients
from .graph import Graph, graph_key
from .kernels import (
    EnvSteps,
    clip_and_adam,
    fuse_trunks,
    fused_policy,
    fused_standardized,
    has_device,
    has_tensor_cores,
    keyed_order,
    orders_agree,
)  # fmt: skip
from .noise import Noise
from .optimize import Loss, Optimizer, Terms, autograd, clipped_adam, clipped_adam_on_host, evaluated, over_ranks
from .precision import KernelPrecision, Precision, arithmetic, prepare_compiler
from .recorded import COMPILED_C, CPU
from .repeat import Repeats, Updates
from .rollout_policy import EagerPolicy, RecordedPolicy, RolloutPolicy, recorded_policy
from .units import Unit
from .update_in_c import clipped_adam_in_c, standardized_in_c

Mode = Literal["eager", "compile", "graph", "max"]
Accelerate = Literal["auto", "eager", "compile", "graph", "max"]
Watcher = Callable[[Batch, Any], None]  # called with each minibatch and its terms, after `backward` and before `step`
MIN_CALLS = 3_000  # gradient steps and calls of `env.step` from which recordings are compiled, in about a second
P = ParamSpec("P")
R = TypeVar("R")


class Runtime(Statistics):
    """How a run is executed.

    `unit` is what one CUDA graph holds. `say` prints a line when something runs slower than it could. `on_device` means that
    reading a tensor makes the host wait for the device, which is true everywhere but on the CPU.
    """

    def __init__(
        self, mode: Mode = "eager", unit: Unit = "phase", precision: Precision = "fp32", device: torch.device = CPU,
        say: Callable[[str], None] = lambda line: print_line(line, error=True), watcher: Watcher | None = None,
        on_device: bool | None = None, compiles_recordings: bool = False,
    ) -> None:  # fmt: skip
        self.mode, self.precision, self.device, self.say, self.watcher = mode, precision, device, say, watcher
        self.unit: Unit | None = unit if mode in ("graph", "max") else None
        self.compiles = mode in ("compile", "max")
        self.on_device = device.type != "cpu" if on_device is None else on_device
        self.uses_numpy = not self.on_device and not self.compiles  # eager on the CPU: tensors are read as NumPy arrays
        self.records = self.uses_numpy and precision != "bf16"
        kernels = self.on_device and mode != "compile"
        self.kernels: KernelPrecision | None = precision if kernels and precision != "bf16" else None
        self.compiler_refusal = why_not_compiled() if self.records and compiles_recordings else None
        self.compiles_recordings = self.records and compiles_recordings and self.compiler_refusal is None
        self.recorded = RecordedGradients(say, self.compiles_recordings)
        self.by_kernels = KernelGradients(precision, self.kernels is not None, say)
        self.actor: RolloutPolicy | None = None  # of the last rollout
        self.repeats = Repeats()
        self.env_steps, self.has_orders = EnvSteps(collection.advance, say), False
        self.graphs: dict[Any, Graph] = {}
        self._running = self._capturing = False
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        if self.compiles:
            prepare_compiler()

    def prepare(self, policy: nn.Module, env: Env) -> None:
        """Use kernels for the trunks of the policy, the steps of the environments and the order of minibatches, where the
        device can run them."""
        if self.kernels is None or not has_tensor_cores(self.device):
            return
        if not fuse_trunks(policy, self.compiles):
            self.say("accelerate: layers run in plain PyTorch, which is slower: kernels fail or differ here")
        if not self.compiles:
            self.env_steps.prepare(env)
        self.has_orders = orders_agree(self.device)
        if not self.has_orders:
            self.say("accelerate: minibatches are shuffled by sorting, which is slower: kernels fail or differ here")

    def describe(self) -> str:
        """Describe how phases are executed, for the plan and for checkpoints: a resumed run looks for COMPILED_C in it."""
        graphs = {"phase": "each phase is one CUDA graph", "part": "acting and learning are CUDA graphs"}
        words = [] if self.unit or self.compiles else ["plain PyTorch"]
        if self.records:
            words = [f"recorded, {COMPILED_C}" if self.compiles_recordings else "recorded"]
        words += [graphs[self.unit]] if self.unit else []
        words += ["a step of the environments is one kernel"] if self.env_steps.step else []
        words += ["compiled first, which takes up to 30 s"] if self.compiles else []
        rough = self.precision == "bf16" or (self.precision == "tf32" and self.device.type == "cuda")
        return ", ".join(words + ([self.precision] if rough else []))

    # calling functions -------------------------------------------------------------------------------------------------

    def run(self, unit: Unit, function: Callable[..., R], *args: Any) -> R:
        """Call the function in the precision of this runtime, as a CUDA graph if the runtime captures this unit."""
        try:
            with nullcontext() if self._running else self.arithmetic():
                return self.call(unit, function, *args)
        finally:
            self.repeats.end()  # an update that failed leaves it open

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Inside, torch computes on the device and in the precision of this runtime."""
        if self._running:
            yield
            return
        self._running = True
        try:
            with arithmetic(self.precision, self.device):
                yield
        finally:
            self._running = False

    def call(self, unit: Unit, function: Callable[..., R], *args: Any) -> R:
        """Call the function, as a graph if this is the runtime's unit and no outer function is being captured."""
        if self.unit != unit or self._capturing:
            return function(*args)
        self._capturing = True
        try:
            return self._captured(function, args)
        finally:
            self._capturing = False

    def _captured(self, function: Callable[..., R], args: tuple[Any, ...]) -> R:
        leaves, treespec = pytree.tree_flatten(args)
        key = (function, *(graph_key(x) for x in leaves))
        graph = self.graphs.get(key)
        if graph is None or not graph.is_for(leaves):  # a graph for other objects is replaced
            self.env_steps.renew()  # now, because it reads tensors on the host
            graph = self.graphs[key] = Graph(function, leaves, treespec)
            result = graph.warm_up()
        else:
            result = graph(leaves)
        if graph.obstacle is not None:
            del self.graphs[key]
            self.unit = "part" if self.unit == "phase" else None
            instead = "its parts become CUDA graphs" if self.unit else "it runs in plain PyTorch, which is slower"
            self.say(f"accelerate: {function.__name__} cannot be one CUDA graph, so {instead}: {graph.obstacle}")
        return cast(R, result)

    def compiled(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, compiled if this runtime compiles."""
        if not self.compiles:
            return function
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False)
        return self._compiled[function]

    # acting ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def collect(
        self, env: Env, policy: ActorCritic, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None = None,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """Fill the rollout with the fastest policy of this runtime, see `collect.collect`. Only eager mode on the CPU stops
        early; elsewhere the caller masks the steps after the rollout's end."""
        activity.begin(activity.STEPPING, waits=self.on_device)  # a device may still wait for messages of other ranks
        self.actor = actor = self.rollout_policy(policy, obs, noise.action)
        self.recorded.unchanged = policy if self.records else None
        if not self._capturing:
            self.env_steps.renew()
        plain = self.compiled(collection.advance) if env.capturable else collection.advance
        advance = self.env_steps.find(env) or plain
        result = collection.collect(env, actor, rollout, obs, noise, dead_fraction, self.uses_numpy, advance)
        activity.begin("learning", waits=self.on_device)
        return result

    def rollout_policy(self, policy: ActorCritic, obs: Tensor, noise: Tensor) -> RolloutPolicy:
        """Return the fastest implementation of the policy for a rollout. `noise` is the noise of its actions, (T, N, ...)."""
        actor: RolloutPolicy | None = None
        if self.records:
            actor = recorded_policy(policy, obs, noise[0], len(noise) * len(obs), self.compiles_recordings)
        elif self.kernels is not None:
            actor = fused_policy(policy, self.kernels)
        return actor or EagerPolicy(policy, functools.partial(self.call, "part", self.compiled(rollout_policy.act)))

    def value(self, policy: ActorCritic, obs: Tensor) -> Tensor:
        """Return the values of observations, before the first gradient after a rollout by its recording."""
        actor = self.actor if self.recorded.unchanged is policy else None
        return actor.value(obs) if isinstance(actor, RecordedPolicy) else policy.value(obs)

    def final_values(self, policy: ActorCritic, rollout: Rollout) -> Tensor:
        """Return V(final_obs) where an episode was truncated, and 0 elsewhere. (T, N)"""
        if not self.on_device:
            return collection.truncated_values(functools.partial(self.value, policy), rollout)
        fused = None if self.kernels is None else fused_policy(policy, self.kernels)
        return collection.masked_final_values(policy.value if fused is None else fused.value, rollout)

    # learning ----------------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss[Terms], policy: Any, batch: Batch, optimizer: Optimizer) -> Terms:
        """Write the loss's gradient into `optimizer.grad` and return the loss's terms, both averaged over all ranks."""
        activity.mark()
        terms = self._backward(loss, policy, batch, optimizer)
        if self.watcher is not None:
            self.watcher(batch, terms)
        if distributed.world().is_distributed:
            terms = over_ranks(terms, batch, optimizer)
            self.by_kernels.measure(optimizer)
        return terms

    def _backward(self, loss: Loss[Terms], policy: Any, batch: Batch, optimizer: Optimizer) -> Terms:
        def plain(loss: Any, policy: Any, batch: Any) -> Any:
            return autograd(loss, policy, batch, optimizer, self.compiled(evaluated))

        if self.records:
            return cast(Terms, self.recorded.compute(plain, loss, policy, batch, optimizer.grad, self.repeats.calls))
        by_hand = not self.uses_numpy and self.precision != "bf16"
        form = self.by_kernels.find(loss, policy, batch, optimizer) if by_hand else None
        return cast(Terms, plain(loss, policy, batch) if form is None else form(cast(PPOLoss, loss), batch))

    def step(self, optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None = None) -> Tensor:
        """Clip the gradient, take one Adam step and return the norm before clipping, as `optimize.clipped_adam` does."""
        if (squares := self.by_kernels.squares_of(optimizer)) is not None:
            return clip_and_adam(optimizer, max_grad_norm, stopped, squares=squares)
        if self.compiles_recordings:
            return clipped_adam_in_c(optimizer, max_grad_norm, stopped, self.repeats.calls)
        if self.uses_numpy:
            return clipped_adam_on_host(optimizer, max_grad_norm, stopped)
        return self.compiled(clipped_adam)(optimizer, max_grad_norm, stopped, self.compiles)

    def updates(self, minibatches: Iterable[Batch], *others: Iterable[object]) -> Updates:
        """Return a loop over minibatches, each of which makes an update."""
        return Updates(self, minibatches, *others)

    def order(self, batch: Batch, keys: Tensor) -> Tensor:
        """Return a random order of the batch's rows for each epoch, from random keys (epochs, B or more)."""
        if self.compiles_recordings:
            return order_in_c(keys[:, : len(batch)])
        return keyed_order(keys, len(batch)) if self.has_orders else batch.order(keys)

    def halted(self, stopped: Tensor) -> bool:
        """Whether to leave the learning loop. On a device, where reading the flag would synchronise, `step` does nothing."""
        return not self.on_device and bool(stopped)

    def standardized(self, x: Tensor, scale: Scale | None = None) -> Tensor:
        """Return x with mean 0 and standard deviation 1. `scale` is their (mean, std) over all ranks, if already known."""
        if scale is None and not distributed.world().is_distributed:
            if self.kernels is not None and has_device(x.device):
                return fused_standardized(x)
            if self.compiles_recordings:
                return standardized_in_c(x, self.repeats.calls)
            return standardized_on_host(x) if self.uses_numpy else self.compiled(standardized)(x)
        result: Tensor = standardize(x, *(scale or moments(x)))
        return result


def chosen_mode(accelerate: Accelerate, device: torch.device) -> Mode:
    """Return the mode: `auto` is graph on CUDA and eager elsewhere. Raise UsageError if the device does not support it."""
    on_cuda = device.type == "cuda"
    if accelerate == "graph" and not on_cuda:
        raise UsageError(f"accelerate graph needs a CUDA device and this run is on {device.type}: give auto or compile")
    if accelerate == "auto":
        return "graph" if on_cuda else "eager"
    return "compile" if accelerate == "max" and not on_cuda else accelerate  # graphs and kernels need CUDA


def choose_runtime(accelerate: Accelerate, precision: Precision, env: Env, calls: int = 0) -> Runtime:
    """Return the runtime of a run with these environments. Recordings are compiled if the run has enough `calls`, which are its
    updates and its steps of the environments, and if the machine has a C compiler; nothing else decides it."""
    mode, compiles = chosen_mode(accelerate, env.device), calls >= MIN_CALLS and not turned_off()
    return Runtime(mode, "phase" if env.capturable else "part", precision, env.device, compiles_recordings=compiles)
