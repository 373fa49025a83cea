"""When a recording of a loss or a policy is valid, and how a new one is tested.

A recording is the list of NumPy calls that replay a function (see recording/). It is valid for one function with its settings,
shapes and dtypes. It is made on random inputs, never on the run's, and must give the function's results on other random
inputs. If it does not, or if the function cannot be recorded, the function runs in plain PyTorch. Making a recording changes
neither the run's random generators nor the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from types import FunctionType
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..models import ActorCritic
from ..models.normalizer import RunningMoments
from ..recording import Array, Recordings, Unrecordable
from ..recording.recorder import tensors
from ..types import Batch
from .noise import isolated_rng

BLOCK = 512  # rows that a recording handles at once, if results do not depend on how rows are grouped
ROWS = 64  # rows of terms that are allocated at once
CPU = torch.device("cpu")
COMPILED_C = "compiled C"  # in the description of a runtime
COMPILED_VERSION = "3"  # raise it when compiled recordings round differently: runs that resume then say so
TOLERANCE = 1e-4  # relative to the norm
MAX_ITEMS = 64  # longer containers are compared by identity
PLAIN = (bool, int, float, str, type(None))
PLAIN_OR_FUNCTION = (*PLAIN, FunctionType)
STANDARD = vars(nn.Module())  # attributes of every module
STANDARD_DICTS = attrgetter(*(name for name, value in STANDARD.items() if isinstance(value, dict)))


# the key of a recording ----------------------------------------------------------------------------------------


def cache_key(thing: object, depth: int = 4) -> object:
    """Return everything that a recording depends on besides the values in tensors: the settings of a loss and of a network's
    modules, the variables that a function closes over, and the addresses of tensors."""
    if isinstance(thing, Tensor):
        return thing.data_ptr(), thing.shape, thing.dtype, thing.requires_grad
    if isinstance(thing, PLAIN):
        return type(thing), thing
    if depth == 0:
        return id(thing)
    deeper = depth - 1
    if isinstance(thing, (list, tuple, dict)) and len(thing) > MAX_ITEMS:
        return id(thing)
    if isinstance(thing, (list, tuple)):
        return type(thing), *(cache_key(x, deeper) for x in thing)
    if isinstance(thing, dict):
        return tuple((key, cache_key(x, deeper)) for key, x in thing.items())
    if isinstance(thing, nn.Module):
        return list(module_settings(thing))
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        return id(thing.__code__), cache_key([cells, thing.__defaults__], deeper), globals_of(thing)
    called = globals_of(vars(type(thing)).get("__call__"))
    if is_dataclass(thing) and not isinstance(thing, type):
        return type(thing), called, *(cache_key(getattr(thing, f.name), deeper) for f in fields(thing))
    return id(thing), called, [x for x in getattr(thing, "__dict__", {}).values() if isinstance(x, PLAIN)]


def globals_of(function: object) -> list[object]:
    """Return the plain global values and functions that a function uses, so that a replaced one is noticed."""
    if hasattr(function, "__wrapped__"):
        function = inspect.unwrap(function)  # type: ignore[arg-type]
    if not isinstance(function, FunctionType):
        return []
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [x if isinstance(x, PLAIN) else id(x) for x in named if isinstance(x, PLAIN_OR_FUNCTION)]


def module_settings(network: nn.Module) -> Iterator[object]:
    """Yield the key of a network: its plain attributes, the addresses of its tensors, the number of its hooks."""
    modules = [network]
    for module in modules:  # this is done twice a phase, and so avoids `network.modules()` and a look at each attribute
        modules += [x for x in module._modules.values() if x is not None]
        yield type(module), type(module).forward, module.training, [*map(len, STANDARD_DICTS(module))]
        for x in (*module._parameters.values(), *module._buffers.values()):
            if x is not None:
                yield x.data_ptr(), x.requires_grad
        for name, value in vars(module).items():
            if name not in STANDARD and type(value) is not Recordings:
                private = name[0] == "_" and not isinstance(value, PLAIN)
                yield (len(value) if isinstance(value, dict) else id(value)) if private else cache_key(value, 2)


def is_frozen(thing: object) -> bool:
    return bool(getattr(getattr(type(thing), "__dataclass_params__", None), "frozen", False))


def same_fields(a: object, b: object) -> bool:
    """Whether two losses of one class have the same fields, tensors and functions by identity."""
    if type(a) is not type(b) or not is_dataclass(a) or not is_dataclass(b):
        return False
    pairs = ((getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return all(x is y or (type(x) is type(y) is float and x == y) for x, y in pairs)


class LossInputs:
    """Puts tensors in place of the numbers that a loss lists in `inputs`, so that one recording serves all of their values."""

    def __init__(self) -> None:
        self.given: object = None  # the loss of the last call
        self.recordable: object = None  # the same loss with tensors
        self.tensors: dict[str, Tensor] = {}  # one for each name, with the number of the last loss

    def take(self, loss: object) -> bool:
        """Use a loss. Returns False if it is the last one again, so that its settings need no second look."""
        if loss is self.given and is_frozen(loss):
            return False
        if is_frozen(loss) and same_fields(loss, self.given):
            self.given = loss
            return True
        numbers = {name: getattr(loss, name) for name in getattr(loss, "inputs", ())}
        numbers = {name: x for name, x in numbers.items() if isinstance(x, (int, float))}
        for name, x in numbers.items():
            self.tensors[name] = self.tensors.get(name, torch.zeros(())).fill_(x)
        self.given = loss
        tensors = {name: self.tensors[name] for name in numbers}
        self.recordable = replace(loss, **tensors) if tensors else loss  # type: ignore[type-var]
        return True


def has_hooks(module: nn.Module) -> bool:
    """Whether the network has forward or backward hooks."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, name) for part in module.modules() for name in names)


def shapes_of(given: Sequence[Tensor]) -> tuple[object, ...]:
    return tuple((x.shape, x.dtype) for x in given)


# random inputs --------------------------------------------------------------------------------------------------------


def random_like(like: Tensor, generator: torch.Generator, simple: bool) -> Tensor:
    """Return random numbers of a tensor's shape and dtype: bytes from 0 to 255, other integers 0 or 1, which are valid in every
    space, and normal floats, or 0 and 1 if `simple`."""
    if like.is_floating_point() and not simple:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
    most = 256 if like.dtype == torch.uint8 else 2
    return torch.randint(most, like.shape, generator=generator).to(like.device, like.dtype)


def random_acts(policy: ActorCritic, obs: Tensor, seed: int) -> tuple[Tensor, ...]:
    """Return random observations, and the noise, actions, log-probabilities and values for them. If the policy gives non-finite
    numbers, as for choices stored as floats, observations of 0 and 1 are used instead."""
    for simple in (False, True):
        generator = torch.Generator().manual_seed(seed)
        shown = policy.valid_rows(random_like(obs, generator, simple))
        distribution, value = policy(shown)
        noise = policy.head.noise((len(value),), generator).to(obs.device)
        action = distribution.sample(noise)
        log_prob = distribution.log_prob(action)
        if log_prob.isfinite().all():
            break
    return shown, noise, action, log_prob, value


@torch.no_grad()
def random_batch(batch: Batch, policy: ActorCritic, seed: int) -> Batch:
    """Return a random batch of the same shape, with ratios and values on both sides of the clip intervals."""
    generator = torch.Generator().manual_seed(seed)
    columns = {f.name: random_like(getattr(batch, f.name), generator, False) for f in fields(batch)}
    obs, _, action, log_prob, value = random_acts(policy, batch.obs, seed)
    near = {"log_prob": log_prob + 0.3 * columns["log_prob"], "value": value + 0.3 * columns["value"]}
    return replace(batch, **columns | {"obs": obs, "action": action} | near)


@contextmanager
def trial_parameters(policy: nn.Module) -> Iterator[list[str]]:
    """Inside, the network has random parameters and no statistics, so that results do not depend on training so far. Afterwards
    the network and the random generators are restored. Yields a list that names, afterwards, what the code inside changed."""
    changed: list[str] = []
    modules = [(module, dict(vars(module))) for module in policy.modules()]
    buffers = [(x, x.clone()) for x in policy.buffers()]
    parameters = [(x.detach(), x.detach().clone()) for x in policy.parameters()]
    generator = torch.Generator().manual_seed(0)
    for module, _ in modules:
        if isinstance(module, RunningMoments):
            module.mean.zero_()
            module.variance.fill_(1)
    kept = [x.clone() for x, _ in buffers]
    try:
        for x, _ in parameters:
            x.copy_(torch.randn(x.shape, generator=generator) / max(4, x[0].numel() if x.dim() else 1) ** 0.5)
        with isolated_rng(0, CPU):
            yield changed
    finally:
        for module, held in modules:
            if vars(module).keys() != held.keys() or any(vars(module)[k] is not v for k, v in held.items()):
                changed.append(type(module).__name__)
                vars(module).clear()
                vars(module).update(held)
        changed += ["a buffer" for (x, _), before in zip(buffers, kept, strict=True) if not torch.equal(x, before)]
        with torch.no_grad():
            for x, before in buffers + parameters:
                x.copy_(before)


def agree(given: Iterable[object], expected: Iterable[Tensor]) -> bool:
    """Whether all arrays or tensors are close to the expected ones."""
    return all(near(torch.as_tensor(a), b) for a, b in zip(given, expected, strict=True))


def near(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are close by the norm of their difference, with non-finite entries in the same places."""
    if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isfinite(), b.isfinite()):
        return False
    a, b = (torch.where(x.isfinite(), x, 0).double() for x in (a, b))
    return bool((a - b).norm() <= TOLERANCE * b.norm() + 1e-6)


class Agreeing(Protocol):
    """A recording with the result of its comparison with the original function."""

    agrees: bool


Made = TypeVar("Made", bound=Agreeing)


def attempted(
    policy: nn.Module, make: Callable[[bool], Made], compiled: bool = False
) -> tuple[Made | None, str | None]:
    """Return the recording that `make` makes and None, or None and the reason why there is none. With `compiled` it is C code,
    unless only NumPy gives the right numbers."""
    if has_hooks(policy):
        return None, "it has hooks"
    try:
        with trial_parameters(policy) as changed, np.errstate(all="ignore"):
            found = make(compiled)
            if compiled and not found.agrees:
                found = make(False)
    except Exception as error:  # an error of the function itself occurs again in plain PyTorch
        return None, str(error) if isinstance(error, Unrecordable) else type(error).__name__
    if changed:
        return None, f"it changes {changed[0]}"
    return (found, None) if found.agrees else (None, "a replay gives other numbers")


# results ----------------------------------------------------------------------------------------------------------


class TermsBuffer:
    """Turns the results of a recording into the loss's terms, in new tensors.

    Scalar terms are views of a preallocated block of rows, because between NumPy calls each torch call is ten times slower.
    """

    def __init__(self, terms: object) -> None:
        self.leaves, self.treespec = pytree.tree_flatten(terms)
        self.kind, self.found = type(terms), tensors(self.leaves)
        self.scalar = all(x.dim() == 0 and x.dtype == torch.float32 for x in self.found)
        names = getattr(self.kind, "_fields", ())  # a named tuple is made without pytree
        self.plain = self.scalar and len(self.found) == len(self.leaves) == len(names)
        self.width, self.rows = len(self.found), self.block()

    def results(self) -> list[Tensor]:
        """Return the tensors to record: one stack of all scalars, or each tensor."""
        return [torch.stack(self.found)] if self.scalar and self.found else self.found

    def block(self) -> Iterator[tuple[Array, tuple[Tensor, ...]]]:
        """Yield new rows: an array to write, and its entries as tensors."""
        while True:
            block = torch.empty(ROWS, self.width)
            entries = block.flatten().unbind()
            for i, row in enumerate(block.numpy()):
                yield row, entries[i * self.width : (i + 1) * self.width]

    def fresh(self, values: Sequence[Array]) -> object:
        """Return the terms with copies of these values."""
        new: Sequence[Tensor]
        if self.scalar and self.width:
            row, new = next(self.rows)
            row[:] = values[0]
        else:
            new = [torch.from_numpy(x.copy()) for x in values]
        return self.of(new)

    def of(self, new: Sequence[Tensor]) -> object:
        """Return the terms with these tensors."""
        if self.plain:
            return self.kind(*new)
        rest = iter(new)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in self.leaves], self.treespec)
