"""A policy and its environment as programs: what a page needs to play, and nothing of Python."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from .. import draw
from ..draw import drawn_arguments
from ..engine import isolated_rng
from ..envs import TensorEnv
from ..errors import UsageError, raised
from ..models import ActorCritic
from ..models.hybrid_spec import flat_parts
from ..models.recurrent import RecurrentActorCritic
from ..recording import Unrecordable
from ..scene import Scene, columns, coordinates
from ..training.export_interface import other_outputs
from ..types import Box, Composite, Discrete, Env, MultiDiscrete, Spec
from .emitted import record
from .program import Attribute, Expression, Json, Program, expression_json, number_json

NUDGE = 1e-6  # relative: how far a recorded attribute's value lies from its true one, so that all differ
PALETTE = {getattr(draw, name): name.lower() for name in ("BACKGROUND", "INK", "MUTED", "ACCENT", "WARM", "PINK")}


@dataclass
class Game:
    """One policy in its environment."""

    title: str
    steps: int  # trained
    env: TensorEnv  # a copy with one row
    policy: ActorCritic
    programs: dict[str, Program]
    picture: Json  # shapes; None where there is none
    no_picture: str  # why
    attributes: dict[str, float]  # the numbers that sliders change
    push: list[float] = field(default_factory=list)
    checks: Json = None
    agreement: str = ""

    def as_json(self) -> Json:
        env = self.env
        return {
            "title": self.title, "steps": self.steps, "pace": env.pace, "limit": env.max_episode_steps, "picture": self.picture,
            "noPicture": self.no_picture, "attributes": self.attributes, "push": self.push, "checks": self.checks,
            "agreement": self.agreement, "actions": [*action_parts(env.action, env.action_names)],
            "noise": list(noise_kinds(env.action)),
            "programs": {name: program.as_json() for name, program in self.programs.items()},
        }  # fmt: skip


def game_of(policy: ActorCritic, env: Env, seed: int, title: str, steps: int = 0) -> Game:
    """Record a policy and its environment; UsageError with the reason if they cannot be recorded."""
    if not isinstance(env, TensorEnv) or getattr(env.step, "__func__", None) is not TensorEnv.step:
        engine = getattr(env, "backend", "another engine")
        raise UsageError(
            f"{title} cannot be played in a browser: it runs on {engine}, and only tensor environments can"
        )
    if not env.pure:
        raise UsageError(f"{title} cannot be played in a browser: pure is False, so its methods change something")
    with isolated_rng(seed, env.device), torch.no_grad():
        twin, policy = on_cpu(env.spawn(1, seed), seed), copy.deepcopy(policy).cpu()
        obs = twin.reset(seed)
        example = Example(twin, policy, obs)
        try:
            programs, picture, why = example.programs({})
            programs["policy"] = example.record_policy()
            attributes = adjustable(example, programs)
            if attributes:
                trial = example.programs(attributes)[0]
                attributes = {k: v for k, v in attributes.items() if k in trial["advance"].attributes}
                changeable, picture, why = example.programs(attributes)
                programs |= changeable
        except Unrecordable as error:
            raise UsageError(f"{title} cannot be played in a browser: {error}") from None
    return Game(title, steps, twin, policy, programs, picture, why, attributes)


def on_cpu(env: TensorEnv, seed: int) -> TensorEnv:
    """The environment, moved to the CPU: that is where recordings are made."""
    if env.device.type != "cpu":
        vars(env).update({name: x.cpu() for name, x in vars(env).items() if isinstance(x, Tensor)})
        env.device = torch.device("cpu")
        env._allocate(env.num_envs, seed)
    return env


class Example:
    """The arguments with which methods are recorded."""

    def __init__(self, env: TensorEnv, policy: ActorCritic, obs: Tensor) -> None:
        self.env, self.policy, self.obs = env, policy, obs.clone()
        memory = policy.memory_rows
        self.memory = None if memory is None else torch.zeros(1, memory.state_size, device=obs.device)
        self.policy_noise = policy.head.noise((1,), torch.Generator(obs.device).manual_seed(0))
        self.action = played(policy, self.obs, self.memory, self.policy_noise)["action"]

    def programs(self, attributes: Mapping[str, float], nudge: float = NUDGE) -> tuple[dict[str, Program], Json, str]:
        """The environment's programs, its picture, and why there is none. The attributes become inputs."""
        env, state, action = self.env, self.env.state.clone(), self.action
        pair, after = {"state": state, "action": action}, state.clone()
        noise = torch.rand(1, env.noise_size, device=state.device)
        clock = {"clock": env.clock}
        constants: dict[float, Expression] = {}

        def of(name: str, function: Callable[..., Mapping[str, Tensor]], **inputs: Tensor) -> Program:
            try:
                return record(lambda *values: function(*values[:-1]), {**inputs, **clock}, constants)
            except Unrecordable as error:
                raise Unrecordable(f"{type(env).__name__}.{name}: {error}") from None
            except UsageError:
                raise
            except Exception as error:
                raise Unrecordable(f"{type(env).__name__}.{name} raises {raised(error)}") from None

        with Changed(env, attributes, constants, nudge):
            found = {
                "initial": of("initial", lambda x: {"state": env._apply("initial", x)}, noise=noise),
                "advance": of("advance", lambda s, a: {"next": env._apply("advance", s, a)}, **pair),
                "reward": of("reward", lambda *x: {"reward": env._apply("reward", *x)}, **pair, next=after),
                "terminated": of("terminated", lambda s: {"terminated": env._apply("terminated", s)}, next=state),
                "observe": of("observe", lambda s: {"obs": env._show(s)}, state=state),
            }
            picture, why = None, ""
            try:
                scenes: list[Scene] = []
                found["scene"] = of("scene", lambda o, a: self.drawn(scenes, o, a), obs=self.obs, action=action)
                picture = picture_json(scenes[0])
            except (Unrecordable, UsageError):
                why = "This environment has no method scene that can be recorded, so there is no picture."
                if env._overrides("draw"):
                    why = (
                        "A browser cannot run this environment's draw method: a method scene gives a picture here too."
                    )
        return found, picture, why

    def drawn(self, scenes: list[Scene], obs: Tensor, action: Tensor) -> dict[str, Tensor]:
        scene = self.env.scene(*drawn_arguments(self.env, obs, action))
        scenes.append(scene)
        return {"numbers": coordinates(scene, 1)}

    def record_policy(self) -> Program:
        inputs = {"obs": self.obs, "noise": self.policy_noise}
        if self.memory is not None:
            inputs["memory"] = self.memory
        try:
            return record(lambda o, n, m=None: played(self.policy, o, m, n), inputs)
        except Unrecordable as error:
            raise Unrecordable(f"the network: {error}") from None


def played(policy: ActorCritic, obs: Tensor, memory: Tensor | None, noise: Tensor) -> dict[str, Tensor]:
    """What a policy does with an observation: the likeliest action, a sampled one, the value, and what shows its mind."""
    others: dict[str, Tensor] = {}
    if isinstance(policy, RecurrentActorCritic) and memory is not None:
        distribution, value, following = policy.step(
            policy.memory_rows.join(obs, torch.zeros_like(memory[:, 0]), memory)
        )
        others["memory"] = following
    else:
        distribution, value = policy(obs)
    shown = other_outputs(policy, distribution, None if policy.critic is None else value)
    probabilities = {name.replace("logits", "probs"): x.softmax(-1) for name, x in shown.items() if "logits" in name}
    others |= {name: x for name, x in shown.items() if "logits" not in name} | probabilities
    action, sampled = (policy.head.to_env(x) for x in (distribution.mode(), distribution.sample(noise)))
    return {"action": action, "sampled": sampled, **others}


# attributes -----------------------------------------------------------------------------------------------------------


class Changed:
    """Inside, an environment's attributes remember what is computed from them."""

    def __init__(
        self, env: TensorEnv, attributes: Mapping[str, float], constants: dict[float, Expression], nudge: float
    ) -> None:
        self.env, self.before = env, dict(vars(env))
        self.attributes, self.constants, self.nudge = attributes, constants, nudge

    def __enter__(self) -> None:
        for i, (name, value) in enumerate(self.attributes.items(), 1):
            beside = value * (1 + i * self.nudge) if value else i * self.nudge
            vars(self.env)[name] = Attribute(beside, name, self.constants)

    def __exit__(self, *_: object) -> None:
        vars(self.env).clear()
        vars(self.env).update(self.before)


def adjustable(example: Example, plain: Mapping[str, Program]) -> dict[str, float]:
    """The attributes, numbers of the class or the instance, that the programs can take as inputs: recordings at two different
    values are then the same. An attribute that decides about shapes or is turned into a plain number is left as it is."""
    env = example.env
    classes = [kind for kind in type(env).__mro__ if issubclass(kind, TensorEnv) and kind is not TensorEnv]
    names = [name for kind in reversed(classes) for name in vars(kind)]
    found = {
        name: getattr(env, name)
        for name in dict.fromkeys([*names, *vars(env)])
        if name[0] != "_" and not hasattr(TensorEnv, name) and type(getattr(env, name, None)) is float
    }
    if follows(example, found):
        return found
    return {name: value for name, value in found.items() if follows(example, {name: value})}


def follows(example: Example, attributes: Mapping[str, float]) -> bool:
    """Whether the programs with these attributes do not depend on the values at which they were recorded."""
    torch.manual_seed(0)
    try:
        texts = []
        for nudge in (NUDGE, 3 * NUDGE):
            programs, picture, _ = example.programs(attributes, nudge)
            texts.append(json.dumps([{k: v.as_json() for k, v in programs.items()}, picture]))
    except (Unrecordable, UsageError):
        return False
    return bool(attributes) and texts[0] == texts[1]


# what the page shows --------------------------------------------------------------------------------------------------


def picture_json(scene: Scene) -> Json:
    """The shapes of a scene; a tensor is the number of its column."""
    column = columns(scene)

    def shown(value: object) -> Json:
        if isinstance(value, Tensor):
            return {"column": column[id(value)]}
        if isinstance(value, Attribute):
            return {"expression": expression_json(value.expression)}
        if isinstance(value, (tuple, list)):
            return [shown(item) for item in value]
        return number_json(value) if isinstance(value, float) else value

    shapes = [
        {
            "kind": type(shape).__name__.lower(),
            **{each.name: shown(getattr(shape, each.name)) for each in fields(shape)},
        }
        for shape in scene.shapes
    ]
    for shape in shapes:
        shape["color"] = PALETTE.get(tuple(shape["color"]), shape["color"])  # type: ignore[arg-type]
    size = {"width": scene.width, "height": scene.height, "span": shown(scene.span), "center": shown(scene.center)}
    return {**size, "shapes": shapes}


def action_leaves(action: Spec) -> Sequence[tuple[str, Spec]]:
    return flat_parts(action) if isinstance(action, Composite) else [("", action)]


def action_parts(action: Spec, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The numbers of an action: choices, or numbers between bounds, which are None where there are none."""
    for name, part in action_leaves(action):
        if isinstance(part, Discrete):
            yield {"name": name, "choices": [*names] if len(names) == part.n else [str(i) for i in range(part.n)]}
        elif isinstance(part, MultiDiscrete):
            yield from (
                {"name": f"{name} {i}".strip(), "choices": [str(k) for k in range(n)]} for i, n in enumerate(part.n)
            )
        elif isinstance(part, Box):
            size = torch.Size(part.shape).numel()
            bounds = [torch.tensor(bound).expand(size).tolist() for bound in (part.low, part.high)]
            for i, (low, high) in enumerate(zip(*bounds, strict=True)):
                label = f"{name} {i}".strip() if size > 1 else name
                yield {"name": label, "low": low if abs(low) < 1e6 else None, "high": high if abs(high) < 1e6 else None}


def noise_kinds(action: Spec) -> Iterator[str]:
    """The kind of each random number with which an action is sampled."""
    for _, part in action_leaves(action):
        yield from ["normal" if isinstance(part, Box) else "uniform"] * torch.Size(part.shape).numel()
