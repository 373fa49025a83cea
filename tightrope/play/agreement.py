"""Run the programs of a game with NumPy as a browser runs them, and compare them with torch, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draw import drawn_arguments
from ..engine import isolated_rng
from ..errors import UsageError
from ..scene import coordinates
from .game import Game, played
from .program import Constant, Program, View, as_float32, expression_value

Array = np.ndarray
Kernel = Callable[..., Any]
Tensors = Mapping[str, Tensor]
STEPS = 1_000
MOST = 1e-3  # relative to the largest number of a column, or to 1
FLIPS = 0.005  # share of steps at which rounding may decide a choice or an end
EXAMPLES = 12  # steps that the page computes again
WIDE = 2.0  # a slider's constant, relative to its value, at which a step is compared too


# running a program ------------------------------------------------------------------------------------------------------


def erf(x: Array) -> Array:
    """By Abramowitz and Stegun 7.1.26, to 1.5e-7, as the page's script has it."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


def remainder(a: Array, b: Array) -> Array:
    """With the sign of b, also where rounding makes it b itself."""
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


ELEMENTWISE: dict[str, Kernel] = {
    "copy": lambda a: a, "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "hypot": np.hypot, "trunc": np.trunc,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "erf": erf,
    "isnan": np.isnan, "isinf": np.isinf, "not": lambda a: a == 0, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "floordiv": lambda a, b: np.floor(a / b), "min": np.minimum, "max": np.maximum, "atan2": np.arctan2,
    "remainder": remainder, "fmod": np.fmod, "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": lambda a, b: (a != 0) & (b != 0),
    "or": lambda a, b: (a != 0) | (b != 0), "where": lambda c, a, b: np.where(c != 0, a, b),
}  # fmt: skip
REDUCED: dict[str, Kernel] = {
    "sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all, "argmax": np.argmax,
    "argmin": np.argmin,
}  # fmt: skip


class Replay:
    """A program with its memory."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = [np.zeros(size, torch.empty(0, dtype=dtype).numpy().dtype) for dtype, size in program.buffers]
        for number, content in program.contents.items():
            self.memory[number][:] = content.cpu().numpy().ravel()
        self.steps = [
            (each, self.array(each.out), [self.array(x) if isinstance(x, View) else x for x in each.arguments])
            for each in program.operations
        ]
        self.ends = {name: self.array(view) for name, view in program.outputs.items()}

    def array(self, view: View) -> Array:
        """The part of memory that a view is."""
        buffer = self.memory[view.buffer]
        strides = [stride * buffer.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(buffer[view.offset :], view.shape, strides)

    @np.errstate(all="ignore")
    def __call__(
        self, inputs: Mapping[str, Tensor], attributes: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        for name, view in self.program.inputs.items():
            self.array(view)[...] = inputs[name].detach().cpu().numpy()
        for (kernel, _, _), out, places in self.steps:
            values = [value_of(x, attributes or {}) for x in places]
            if kernel in ELEMENTWISE:
                store(out, ELEMENTWISE[kernel](*values))
            elif kernel in REDUCED:
                inner = values[0].reshape(out.size, -1)
                store(out, REDUCED[kernel](inner, axis=1).reshape(out.shape))
            elif kernel == "matmul":
                store(out, values[0] @ values[1])
            elif kernel == "take":
                store(out, values[0][places_in(values[0], values[1])])
            elif kernel == "put":
                out[places_in(out, values[0])] = values[1]
            else:
                raise ValueError(kernel)
        return {name: torch.from_numpy(array.copy()) for name, array in self.ends.items()}


def places_in(x: Array, index: Array) -> Array:
    return index.astype(np.int64).clip(0, len(x) - 1)


def value_of(argument: Array | float | Constant, attributes: Mapping[str, float]) -> Any:
    """An argument in double precision."""
    if isinstance(argument, Constant):
        number = expression_value(argument.expression, attributes)
        argument = as_float32(number) if argument.rounded else number
    return argument.astype(np.float64) if isinstance(argument, Array) else np.float64(argument)


def store(out: Array, values: Array) -> None:
    """Write values, rounded to the type of the memory."""
    if out.dtype == np.bool_:
        values = np.not_equal(values, 0)
    elif out.dtype.kind in "iu":
        values = np.nan_to_num(np.trunc(np.asarray(values, np.float64)), posinf=2.0**62, neginf=-(2.0**62))
    np.copyto(out, values, casting="unsafe")


# comparing --------------------------------------------------------------------------------------------------------------


class Comparison:
    """Runs programs and methods side by side and collects the differences."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.replays = {name: Replay(program) for name, program in game.programs.items()}
        self.errors: dict[str, float] = {}
        self.sizes: dict[str, float] = {}
        self.flips: dict[str, int] = {}
        self.examples: list[dict[str, object]] = []
        self.steps = 0

    def compare(
        self,
        name: str,
        inputs: Tensors,
        wanted: Tensors,
        attributes: Mapping[str, float],
        keep: bool = False,
    ) -> None:
        got = self.replays[name](inputs, attributes)
        for output, right in wanted.items():
            mine, right = got[output].double(), right.detach().cpu()
            both_odd = ~mine.isfinite() & ~right.isfinite()
            difference = torch.where(both_odd, 0.0, (mine - right.double()).abs())
            worst = float(difference.max()) if difference.numel() else 0.0
            where = f"{name}: {output}" if output != name else name
            if right.dtype.is_floating_point and output not in ("action", "sampled"):
                self.sizes[where] = max(self.sizes.get(where, 1.0), float(right.abs().nan_to_num(0, 0, 0).max()))
                self.errors[where] = max(self.errors.get(where, 0.0), worst if worst == worst else float("inf"))
            else:
                self.flips[where] = self.flips.get(where, 0) + (
                    not worst <= MOST * max(1.0, float(right.double().abs().max()))
                )
        if keep:
            self.examples.append(
                {
                    "program": name,
                    "inputs": {k: v.flatten().tolist() for k, v in inputs.items()},
                    "outputs": {k: v.double().flatten().tolist() for k, v in wanted.items()},
                }
            )

    def step(self, state: Tensor, obs: Tensor, memory: Tensor | None, noise: Tensor, keep: bool) -> dict[str, Tensor]:
        """Compare everything in one state; returns what torch computed."""
        env, values = self.game.env, self.game.attributes
        self.steps += 1
        clock = {"clock": env.clock.clone()}
        mind = played(self.game.policy, obs, memory, noise)
        given = {"obs": obs, "noise": noise} | ({} if memory is None else {"memory": memory})
        self.compare("policy", given, mind, values, keep)
        action = mind["action"]
        if keep and "scene" in self.replays:
            shown = coordinates(env.scene(*drawn_arguments(env, obs, action)), 1)
            self.compare("scene", {"obs": obs, "action": action, **clock}, {"numbers": shown}, values, keep)
        following = env._apply("advance", state, action)
        pair = {"state": state, "action": action}
        self.compare("advance", {**pair, **clock}, {"next": following}, values, keep)
        reward = env._apply("reward", state, action, following)
        self.compare("reward", {**pair, "next": following, **clock}, {"reward": reward}, values)
        over = env._apply("terminated", following)
        self.compare("terminated", {"next": following, **clock}, {"terminated": over}, values)
        env.clock += 1
        seen = env._show(following)
        self.compare("observe", {"state": following, "clock": env.clock.clone()}, {"obs": seen}, values)
        return {**mind, "next": following, "reward": reward, "terminated": over, "obs": seen}

    def verdict(self) -> str:
        """One sentence; UsageError if a difference is more than rounding."""
        title = self.game.title
        for where, error in self.errors.items():
            if not error <= MOST * self.sizes[where]:
                raise UsageError(
                    f"{title} cannot be played in a browser: {where} differs from torch by {error:.1e}: its methods may use "
                    "nothing but their arguments and constants"
                )
        for where, count in self.flips.items():
            if count > max(1, FLIPS * self.steps):
                raise UsageError(
                    f"{title} cannot be played in a browser: {where} differs from torch at {count} of {self.steps:,} steps"
                )
        worst = max(self.errors[where] / self.sizes[where] for where in self.errors)
        digits = f"{max(worst, 1e-9):.0e}".replace("e-0", "e-")
        return f"Compared with PyTorch at {self.steps:,} steps: states, rewards, ends and decisions agree to {digits}."


@torch.no_grad()
def check_game(game: Game, seed: int, steps: int = STEPS) -> None:
    """Play in torch, and compare each method with its program from torch's own states. Sets the game's `agreement`,
    `checks` and `push`. UsageError if they differ."""
    env, policy, comparison = game.env, game.policy, Comparison(game)
    with isolated_rng(seed, env.device):
        generator = torch.Generator(env.device).manual_seed(seed)
        rows = policy.memory_rows
        blank = None if rows is None else torch.zeros(1, rows.state_size, device=env.device)
        obs, memory, states = env.reset(seed), blank, []
        state = env.state.clone()
        for t in range(steps):
            noise = policy.head.noise((1,), generator)
            found = comparison.step(state, obs, memory, noise, keep=t % (-(-steps // EXAMPLES)) == 0)
            states.append(state)
            state, obs, memory = found["next"], found["obs"], found.get("memory")
            limit = env.max_episode_steps
            if (
                bool(found["terminated"])
                or (limit is not None and int(env.clock) >= limit)
                or not bool(state.isfinite().all())
            ):
                start = torch.rand(1, env.noise_size, generator=generator, device=env.device)
                env.clock.zero_()
                state = env._apply("initial", start)
                comparison.compare("initial", {"noise": start, "clock": env.clock}, {"state": state}, game.attributes)
                obs, memory = env._show(state), blank
        check_sliders(game, comparison, states[-1], played(policy, obs, memory, noise)["action"])
    env.clock.zero_()
    game.agreement, game.checks = comparison.verdict(), comparison.examples
    usual = torch.cat(states).double().std(0).nan_to_num(0.0)
    game.push = [float(x) for x in env.push] or (0.5 * usual).tolist()


def check_sliders(game: Game, comparison: Comparison, state: Tensor, action: Tensor) -> None:
    """Compare a step with other values of the constants."""
    env = game.env
    for name, value in game.attributes.items():
        before = dict(vars(env))
        vars(env)[name] = value * WIDE
        try:
            wanted = {"next": env._apply("advance", state, action)}
        finally:
            vars(env).clear()
            vars(env).update(before)
        inputs = {"state": state, "action": action, "clock": env.clock}
        comparison.compare("advance", inputs, wanted, {**game.attributes, name: value * WIDE})
