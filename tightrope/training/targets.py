"""The return at which a task counts as solved: one place for reports, whatever engine runs the environment.

An environment's own `solved_at` comes first, then Gymnasium's threshold, then the result of our preset, less what seeds vary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..envs import TensorEnv
from ..envs.registry import ENVS, module_and_name
from ..logging import Target
from ..types import Env, Settings
from .config import Config
from .presets import EXPECTED

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

SLACK = 0.15  # share of a preset's result by which seeds and evaluations vary
TASK = ("initial", "advance", "reward", "terminated", "time_limit")  # what a target of a tensor environment depends on


def target_of(config: Config, env: Env | None = None) -> Target | None:
    """The target of a run; None if none is known or the task was changed. `env` is the training environment, if it exists."""
    if config.run.adapts_env or config.run.max_episode_steps is not None:
        return None
    own = own_target(config, env)
    if own is not None:
        return Target(own, f"{config.env.rpartition(':')[2]} counts as solved from {own:,.6g}")
    published, reached = gymnasium_threshold(config.env, env), reached_by_preset(config.env)
    if reached is None or (published is not None and published <= reached):
        return None if published is None else Target(published, f"Gymnasium counts it as solved from {published:,.6g}")
    wanted = "" if published is None else f", Gymnasium asks for {published:,.6g}"
    return Target(reached - SLACK * abs(reached), f"the preset reaches about {reached:g}{wanted}", published=False)


def own_target(config: Config, env: Env | None) -> float | None:
    """`solved_at` of a tensor environment, by its id or from the object."""
    if config.env in ENVS:
        return ENVS[config.env].solved_at
    if not isinstance(env, TensorEnv) or config.run.train_env is not None or env.max_episode_steps != env.time_limit:
        return None
    return env.solved_at if "solved_at" in vars(env) else inherited_target(type(env))


def inherited_target(kind: type[TensorEnv]) -> float | None:
    """`solved_at` of a class; None if a subclass has changed the task since it was given."""
    for each in kind.__mro__:
        if "solved_at" in vars(each):
            return kind.solved_at
        if any(name in vars(each) for name in TASK):
            return None
    return None


def gymnasium_threshold(env_id: str, env: Env | None) -> float | None:
    """Gymnasium's reward_threshold for an id; None if the environment differs from its registration."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from ..envs.adapters.gym import ALIASES

    _, name = module_and_name(ALIASES.get(env_id, (env_id, {}))[0])
    registered = gymnasium.registry.get(name)
    if registered is None:
        one = next(iter(getattr(env, "envs", [])), None) or getattr(env, "engine", None)
        spec = getattr(one, "spec", None)  # other libraries have a `spec` of another kind
        if not isinstance(spec, EnvSpec) or spec.additional_wrappers:
            return None
        registered = gymnasium.registry.get(spec.id)
        if registered is None or variant(spec) != variant(registered):
            return None
    return None if registered.reward_threshold is None else float(registered.reward_threshold)


def variant(spec: EnvSpec) -> tuple[Settings, int | None]:
    """The arguments and the time limit of an environment."""
    return {k: v for k, v in spec.kwargs.items() if k != "render_mode"}, spec.max_episode_steps


def reached_by_preset(env_id: str) -> float | None:
    """The mean return that our preset reaches, if one is known."""
    return EXPECTED[env_id].score if env_id in EXPECTED else None
