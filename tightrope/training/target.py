"""The return from which on a task counts as solved, where that is known."""

from __future__ import annotations

import re
from typing import Any

from ..envs.registry import module_and_name
from ..logging import Target
from ..types import Env
from .config import Config
from .presets import EXPECTED

SLACK = 0.15  # share of a preset's result by which seeds and evaluations may differ


def target_of(config: Config, env: Env | None = None) -> Target | None:
    """What Gymnasium asks for, or what our preset reaches where that is less or all that is known. None where the task was
    changed, or nobody knows. `env` is what is trained on, where there is more to it than an id."""
    if config.run.env_kwargs or config.run.max_episode_steps is not None:
        return None
    asked, reached = asked_for(config.env, env), reached_by_preset(config.env)
    if reached is None or (asked is not None and asked.value <= reached):
        return asked
    wanted = "" if asked is None else f", Gymnasium asks for {asked.value:,.6g}"
    return Target(reached - SLACK * abs(reached), f"the preset reaches about {reached:g}{wanted}", published=False)


def asked_for(env_id: str, env: Env | None) -> Target | None:
    """Gymnasium's reward_threshold, of an id or of an environment as it is registered."""
    import gymnasium

    from ..envs.adapters.gym import ALIASES

    _, name = module_and_name(ALIASES.get(env_id, (env_id, {}))[0])
    registered = gymnasium.registry.get(name)
    if registered is None:
        spec = spec_of(env)
        registered = None if spec is None else gymnasium.registry.get(spec.id)
        if registered is None or changed(spec, registered):
            return None
    value = registered.reward_threshold
    return None if value is None else Target(float(value), f"Gymnasium counts it as solved from {value:,.6g}")


def spec_of(env: Env | None) -> Any:
    """The spec of a Gymnasium environment that was given as an object; engines of other libraries have specs of their own."""
    from gymnasium.envs.registration import EnvSpec

    one = next(iter(getattr(env, "envs", [])), None) or getattr(env, "engine", None)
    spec = getattr(one, "spec", None)
    return spec if isinstance(spec, EnvSpec) else None


def changed(spec: Any, registered: Any) -> bool:
    """Whether an environment is another than the one of its id: other arguments, another time limit, wrappers."""
    kwargs = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    as_registered = {k: v for k, v in registered.kwargs.items() if k != "render_mode"}
    other_limit = spec.max_episode_steps != registered.max_episode_steps
    return bool(kwargs != as_registered or other_limit or getattr(spec, "additional_wrappers", ()))


def reached_by_preset(env_id: str) -> float | None:
    """The score of our preset, where it is a plain number."""
    words = EXPECTED.get(env_id, ("", ""))[0].split(",")[0]
    return float(words) if re.fullmatch(r"-?\d+(\.\d+)?", words) else None
