"""The base class of wrapped environments under test, and the report of the findings."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from ...errors import EnvError, MaskError, UsageError, plural, raised
from ...models.action_mask import forbids_all, mask_columns, next_allowed
from ...types import Spec
from ..adapters.space_members import as_lists
from ..step_arrays import Array
from ..training_warnings import MASK_ADVICE
from ..validate import short_text
from .values import Trace, differs_at, extreme_action, scalar_label, uniform_actions

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
TRACE_SECONDS, TRACE_STEPS = 0.25, 100  # of each trajectory that is compared with another
FIXES = {  # by check; those of tensor environments differ where TensorUnderTest says so
    "action": "use a copy of it",
    "action bounds": "give the Box the bounds that make sense",
    "action mask": MASK_ADVICE,
    "alias": "return a copy of it",
    "autoreset": "declare the AutoresetMode it has, or reset as declared: otherwise what is learned at every end is wrong",
    "bounds": "give the space the bounds that are true, or clip",
    "both flags": "leave terminated False where only the clock ran out",
    "class": "derive it from gymnasium.Env (old gym: see shimmy)",
    "clock": "if that is a clock, return it as truncated, or leave it to max_episode_steps",
    "constant entries": "leave out what can never change",
    "constant reward": "fine where the task is to last or to end soon; otherwise shape it",
    "determinism": "seed all chance in reset, by super().reset(seed=seed) and self.np_random, and set all state anew there",
    "device": "make tensors with device=self.device",
    "dtype": "return obs.astype(observation_space.dtype), or give the space this dtype",
    "endless": "set max_episode_steps (--max-episode-steps N), or end episodes that lead nowhere",
    "final_obs": "give the successor as both, and a fresh obs only where done",
    "finite": "find the division by 0, the root or the overflow; clip what may grow",
    "forbidden": "fine if step knows what to do with them; if they are mistakes, let step refuse them, or look at the mask",
    "global stream": "draw from self.np_random, which super().reset(seed=seed) seeds",
    "gradient": "detach it, or work under torch.no_grad()",
    "inverted mask": "1 stands for allowed: exchange 0 and 1, if the mask says the opposite",
    "info": "return a dict, if an empty one",
    "masked step": "forbid this action by the mask, or let step take it",
    "no reward": "pay for progress, start nearer to the goal, or be sure that longer play finds it",
    "observation scale": "set norm_obs, or bring entries to a similar size",
    "reset": "write reset(self, *, seed=None, options=None), start it with super().reset(seed=seed), return obs, info",
    "restart": "set all state anew in reset, whatever was under way, and return what is seen then",
    "rows": "give each row a stream of its own",
    "seed": "write reset(self, *, seed=None, options=None), start it with super().reset(seed=seed), return obs, info",
    "seeds": "fine if there is no chance in the task; otherwise draw from self.np_random",
    "shape": "return what observation_space says, or give the space this shape",
    "spawn": "give the requested number of rows, with the same spaces and device, and share no state and no generator",
    "statistics": "add up return and length of each row, and forget both where done",
    "step": "fix that line: step must take every action of its space, from every state",
    "stream": "seed only where a seed is given, as super().reset(seed=seed) does",
    "structure": "return what observation_space says, or fix the space",
}
OLD_STEP = "step() returns 4 values, the interface of the old gym, not 5"
FIVE_VALUES = "return obs, reward, terminated, truncated, info: terminated where the task ended, truncated by the clock"


class CheckFinding(NamedTuple):
    """One problem of an environment, and how to fix it."""

    level: Level
    check: str
    message: str
    fix: str


@dataclass
class CheckReport:
    """The findings about one environment, and facts such as the lengths of its episodes."""

    name: str
    findings: list[CheckFinding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.of("error")

    def of(self, level: Level) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.level == level]

    def has(self, check: str) -> bool:
        return any(finding.check == check for finding in self.findings)

    def add(self, level: Level, check: str, message: str, fix: str) -> None:
        """Add a finding, once per check: further ones are mostly consequences of the first."""
        if not self.has(check):
            self.findings.append(CheckFinding(level, check, message, fix))

    def add_usage_error(self, level: Level, check: str, error: Exception) -> None:
        """Add a finding for an error that ends in its fix."""
        message, _, fix = str(error).rpartition(": ")
        self.add(level, check, message, fix)

    def lines(self) -> list[str]:
        """The report as text, errors first."""
        lines = [self.name, *(f"  {name:<12} {text}" for name, text in fact_lines(self.facts)), ""]
        for level in LEVELS:
            for finding in self.of(level):
                lines += [f"{level:<8} {finding.check}: {finding.message}", f"{'':<8} fix: {finding.fix}"]
        total = ", ".join(plural(len(self.of(level)), level) for level in LEVELS)
        return [*lines, f"{total}. {'Nothing here prevents training.' if self.ok else 'Fix the errors first.'}"]


def fact_lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, text) of each fact there is."""
    for name in ("engine", "observation", "action"):
        if name in facts:
            yield name, str(facts[name])
    if "steps" in facts:
        early = ", then its time was over" if facts["stopped_early"] else ""
        yield "play", f"{plural(facts['steps'], 'random step')}, {plural(facts['episodes'], 'episode')} ended{early}"
    if facts.get("forbidden"):
        yield "forbidden", f"actions that masks forbid: {facts['forbidden']}"
    if facts.get("episodes"):
        yield "length", "{episode_length:.1f} steps on average, {shortest:,} to {longest:,}".format(**facts)
    if "reward_mean" in facts:
        form = "mean {reward_mean:.4g}, std {reward_std:.4g}, {reward_min:.4g} to {reward_max:.4g}"
        yield "reward", form.format(**facts)
    if "steps_per_second" in facts:
        spent = f", {facts['reset_share']:.0%} of the time in resets" if facts.get("reset_share", 0) >= 0.01 else ""
        yield "speed", f"{facts['steps_per_second']:,.0f} steps/s of the environment alone{spent}"
    for name, reason in (("checks", ""), ("unfinished", " (it broke)"), ("skipped", " (its time was over)")):
        if facts.get(name):
            yield name, ", ".join(facts[name]) + reason


class CheckAborted(Exception):
    """The current check cannot continue; the reason is in the report."""


class ObservedStep(NamedTuple):
    """One step of N rows as arrays, with observations flattened to rows of what the network would read."""

    obs: Array  # (N, D)
    reward: Array  # (N,)
    terminated: Array
    truncated: Array
    final_obs: Array
    valid: Array

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


class EnvUnderTest:
    """Wraps an environment with N rows and plays it with actions like those of our policies. Subclasses define `reset` and
    `step`."""

    engine: str
    fixes: ClassVar[Mapping[str, str]] = FIXES
    num_envs = 1
    observation: Spec | None = None
    action: Spec | None = None
    masks: Array | None = None  # (N, options) of the observations shown last, if they have action masks
    restarts_at_once = True  # whether the observation after an end belongs to the next episode

    def __init__(self, env: Any, report: CheckReport, steps: int, seed: int) -> None:
        self.env, self.report, self.steps, self.seed = env, report, steps, seed
        self.rng = np.random.default_rng(seed)
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}  # of every call
        self.age, self.last_seed = 0, seed  # steps since the last seeded reset, and its seed
        self.ends, self.unchanged_ends = 0, 0  # ends of episodes, and those after which the observation was the same
        self.varied = False  # whether two observations ever differed
        self.first_obs: Array | None = None
        self.returned: list[tuple[str, Any, Any]] | None = None  # (name, value, copy) while aliases are looked for

    def reset(self, seed: int | None = None) -> Array:
        """Rows of first observations."""
        raise NotImplementedError

    def step(self, action: object) -> ObservedStep:
        raise NotImplementedError

    # findings --------------------------------------------------------------------------------------------------------

    def add(self, level: Level, check: str, message: str, fix: str | None = None) -> None:
        """Report a finding, with the fix that the table has for this check unless another is given."""
        self.report.add(level, check, message, fix or self.fixes.get(check, "fix that line"))

    def error(self, check: str, message: str, fix: str | None = None) -> None:
        self.add("error", check, message, fix)

    def note_mask(self, where: str | None) -> None:
        if where is not None and self.mask_columns is None:
            self.add("note", "action mask", f"it offers action masks ({where}), which are not applied")

    @property
    def mask_columns(self) -> slice | None:
        return mask_columns(self.observation, self.action) if self.observation and self.action else None

    def read_masks(self, rows: Array) -> Array:
        """Return rows of observations, after reading their action masks."""
        if self.mask_columns is not None and self.action is not None:
            self.masks = rows[:, self.mask_columns]
            if forbids_all(self.masks, self.action).any():
                self.error("action mask", f"a mask allows no action, {self.when}", "allow one option of each choice")
        return rows

    def allowed(self, action: Any) -> Any:
        """Actions with each forbidden option replaced by the next allowed one."""
        return action if self.masks is None or self.action is None else next_allowed(action, self.masks, self.action)

    @property
    def when(self) -> str:
        return f"{plural(self.age, 'step')} after reset(seed={self.last_seed})"

    def check_finite(self, name: str, rows: Array) -> Array:
        """Return the rows, and report an error if a number is not finite."""
        finite = np.isfinite(rows) if rows.dtype.kind == "f" else np.ones(1, bool)
        if not finite.all():
            row, *place = (int(i) for i in np.argwhere(~finite)[0])
            entry = f", {scalar_label(self.observation, place[0])}," if place and self.observation is not None else ""
            self.error("finite", f"{name}{entry} is {rows[(row, *place)]} in row {row}, {self.when}")
        return rows

    def watch(self, name: str, value: object) -> None:
        """Remember a returned value, to see whether it changes later."""
        if self.returned is not None:
            self.returned.append((name, value, copy.deepcopy(value)))

    def inspect(self, step: ObservedStep) -> ObservedStep:
        """Return the step after the checks and counts that all environments share."""
        self.read_masks(step.obs)
        if not self.report.has("reward"):
            self.check_finite("the reward", step.reward)
        self.ends += int(step.done.sum())
        self.unchanged_ends += int((~differs_at(step.obs, step.final_obs).any(1) & step.done).sum())
        self.first_obs = step.final_obs[:1] if self.first_obs is None else self.first_obs
        self.varied = self.varied or bool(differs_at(step.final_obs, self.first_obs).any())
        return step

    def call(self, name: str, function: Callable[[], Any], action: object = None) -> Any:
        """Call a method of the environment; an exception becomes an error and aborts the current check."""
        began = time.perf_counter()
        try:
            return function()
        except (Exception, SystemExit) as error:
            on_action = "" if action is None else f" on action {short_text(as_lists(action))}"
            explains_itself = isinstance(error, (UsageError, EnvError, MaskError)) and error.__cause__ is None
            if explains_itself:
                message, _, fix = str(error).rpartition(": ")
                check = "action mask" if isinstance(error, MaskError) else name
                self.error(check, f"{message}, in {name}(){on_action}, {self.when}", fix)
                raise CheckAborted from None
            reason = raised(error)
            if name == "step" and "expected 5, got 4" in reason:
                self.error(name, OLD_STEP, FIVE_VALUES)
            mask_fix = self.fixes["masked step"] if name == "step" and self.masks is not None else None
            self.error(name, f"{name}() raises{on_action}, {self.when}: {reason}", mask_fix)
            raise CheckAborted from None
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def cost(self, name: str) -> float:
        """Seconds of a typical call."""
        return max(float(np.median(self.seconds[name] or [0.0])), 1e-9)

    def random_actions(self) -> object:
        """Actions (N, ...)."""
        if self.action is None:
            raise CheckAborted  # no policy has such actions, which is reported with the spaces
        return uniform_actions(self.action, self.num_envs, self.rng)

    def extreme_actions(self, side: int) -> Array | None:
        """The lowest (0) or highest (1) actions (N, ...); None where there are none."""
        bound = None if self.action is None else extreme_action(self.action, side)
        return None if bound is None else np.stack([bound] * self.num_envs)

    def action_sequence(self, more: int = 0) -> list[Any]:
        """Random actions for one trajectory, as many as there is time for."""
        count = int(np.clip(TRACE_SECONDS / self.cost("step"), 5, TRACE_STEPS + more))
        return [self.random_actions() for _ in range(count)]

    def play_actions(self, seed: int, actions: list[Any], between: Callable[[], Any] = lambda: None) -> Trace:
        """Reset with a seed, take these actions, reset without a seed, and return everything observed."""
        trace: Trace = [("the observation of reset(seed)", self.reset(seed))]
        names = {"final_obs": "the observation", "reward": "the reward", "terminated": "terminated"}
        names |= {"truncated": "truncated", "obs": "the observation after the end"}
        for t, action in enumerate(actions, 1):
            between()
            step = self.step(action)
            trace += [(f"{name} of step {t}", getattr(step, key)) for key, name in names.items()]
        return [*trace, ("the observation of a later reset()", self.reset())]
