"""Settings with which environments are solved with no flags: presets of known environments, and defaults by the kind of any
other. docs/scores.md and docs/benchmarks.md hold the results."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..engine import cores
from ..models.action_mask import without_mask
from ..models.hybrid_spec import flat_parts
from ..models.networks import sees_images
from ..models.observation_groups import group_spec, observation_groups
from ..types import Box, Discrete, MultiDiscrete, Settings, Spec

_CARTPOLE: Settings = dict(
    total_timesteps=100_000, num_envs=64, num_steps=16, num_minibatches=2, update_epochs=8, learning_rate=0.015,
    anneal_clip=True, ent_coef=0.0, hidden_sizes=(32, 32),
)  # fmt: skip
_MOUNTAIN_CAR: Settings = dict(
    total_timesteps=200_000, num_envs=16, num_steps=64, learning_rate=3e-3, norm_obs=True
)  # fmt: skip
_PROBE: Settings = dict(total_timesteps=30_000, num_envs=256, num_steps=8, learning_rate=1e-2, ent_coef=0.0)
_RECALL: Settings = dict(
    total_timesteps=200_000, num_envs=64, num_steps=51, num_minibatches=4, learning_rate=1e-2, ent_coef=0.0, memory_size=16,
    hidden_sizes=(16,),
)  # fmt: skip
_ATARI: Settings = dict(
    total_timesteps=10_000_000, num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4,
    clip_coef=0.1, anneal_clip=True, ent_coef=0.01,
)  # fmt: skip
_LUNAR: Settings = dict(
    total_timesteps=1_000_000, num_envs=16, num_steps=512, num_minibatches=32, update_epochs=8, learning_rate=1e-3,
    gamma=0.999, gae_lambda=0.98, ent_coef=0.01, norm_reward=True,
)  # fmt: skip
_MUJOCO: Settings = dict(
    total_timesteps=1_000_000, num_envs=16, num_steps=128, num_minibatches=32, update_epochs=10, learning_rate=3e-4,
    ent_coef=0.0, norm_obs=True, norm_reward=True,
    log_std_init=-1.0,  # wider, a cheetah ends on its back and learns to run that way; narrower, a walker never learns
)  # fmt: skip
_HOPPER: Settings = _MUJOCO | dict(log_std_init=0.0)  # narrower, some seeds learn to stand still
_SWIMMER: Settings = _MUJOCO | dict(
    num_envs=4, num_steps=512, anneal_lr=False, gae_lambda=0.99, log_std_init=0.0,
    gamma=0.9999,  # a stroke pays late
)  # fmt: skip
_FEW_JOINTS: Settings = _MUJOCO | dict(num_minibatches=16, learning_rate=1e-3)  # larger steps
_DOUBLE_PENDULUM: Settings = _FEW_JOINTS | dict(
    log_std_init=-0.5, ent_coef=0.03,  # without lasting noise the policy forgets how episodes begin
)  # fmt: skip
_BRAX: Settings = dict(
    total_timesteps=10_000_000, num_envs=4096, num_steps=10, num_minibatches=4, update_epochs=4, learning_rate=1e-3,
    gamma=0.97, ent_coef=1e-3, max_grad_norm=1.0, norm_obs=True, norm_reward=True, hidden_sizes=(256, 256),
    activation="silu",
)  # fmt: skip
_BRAX_LEGS: Settings = _BRAX | dict(
    num_envs=2048, num_steps=32, num_minibatches=128, hidden_sizes=(64, 64),
    gamma=0.998,  # steps are 8 ms: with a shorter view hoppers and walkers hurry and fall
)  # fmt: skip

PRESETS: dict[tuple[str, str], Settings] = {
    ("CartPole-v1", "ppo"): _CARTPOLE,
    ("EasyCart-v0", "ppo"): _CARTPOLE,
    ("Pendulum-v1", "ppo"): dict(
        total_timesteps=400_000, num_envs=64, num_steps=64, num_minibatches=16, learning_rate=2e-3, ent_coef=0.0,
        norm_reward=True,
    ),
    ("Acrobot-v1", "ppo"): dict(
        total_timesteps=500_000, num_envs=64, num_steps=16, num_minibatches=8, update_epochs=10, learning_rate=1e-3,
        norm_obs=True, norm_reward=True,
    ),
    ("MountainCar-v0", "ppo"): dict(train_env="MountainCarShaped-v0", **_MOUNTAIN_CAR),
    ("MountainCarShaped-v0", "ppo"): _MOUNTAIN_CAR,
    ("MountainCarContinuous-v0", "ppo"): dict(
        total_timesteps=200_000, num_envs=16, num_steps=128, num_minibatches=16, update_epochs=10, learning_rate=1e-3,
        gamma=0.9999,  # a shorter view stands still: the flag is far away, and every push costs
        gae_lambda=0.9, norm_obs=True, norm_reward=True,
    ),
    ("SpinCart-v0", "ppo"): dict(
        total_timesteps=500_000, num_envs=64, num_steps=64, learning_rate=1e-3, norm_obs=True
    ),
    ("CartDoublePendulum-v0", "ppo"): dict(
        total_timesteps=60_000_000, num_envs=2048, num_steps=32, num_minibatches=16, learning_rate=1e-3, norm_obs=True,
        norm_reward=True,
    ),
    ("CartPole-v1", "vpg"): dict(anneal_lr=True),
    ("DanceCart-v0", "ppo"): dict(total_timesteps=1_000_000, num_envs=64, num_steps=64, learning_rate=1e-3),
    **{(f"Probe{i}-v0", "ppo"): _PROBE for i in range(1, 6)},
    **{(f"{kind}Probe-v0", "ppo"): _PROBE for kind in ("Mask", "Privileged")},
    ("CartPoleNoVelocity-v0", "ppo"): dict(
        total_timesteps=300_000, num_envs=64, num_steps=64, num_minibatches=8, learning_rate=3e-3, ent_coef=0.0,
        norm_obs=True,
    ),
    ("PendulumNoVelocity-v0", "ppo"): dict(
        total_timesteps=800_000, num_envs=64, num_steps=64, num_minibatches=16, learning_rate=2e-3, gamma=0.96,
        ent_coef=0.0, norm_reward=True,
    ),
    **{(task, "ppo"): _RECALL for task in ("Recall10-v0", "Recall50-v0", "TMaze-v0")},
    ("LunarLander-v3", "ppo"): _LUNAR,
    ("LunarLanderContinuous-v3", "ppo"): _LUNAR,
    ("BipedalWalker-v3", "ppo"): dict(
        total_timesteps=5_000_000, num_envs=32, num_steps=512, num_minibatches=32, update_epochs=10, learning_rate=1e-3,
        gamma=0.995,  # with a shorter view walkers hurry and fall, with 0.999 they stay slow
        clip_coef=0.1, ent_coef=0.0, norm_obs=True, norm_reward=True, log_std_init=-0.5,
    ),
}  # fmt: skip

_MUJOCO_TASKS = (
    "HalfCheetah", "Hopper", "Walker2d", "Swimmer", "Reacher", "InvertedPendulum", "InvertedDoublePendulum", "Ant",
    "Humanoid",
)  # fmt: skip
_BRAX_TASKS = ("ant", "hopper", "halfcheetah", "walker2d", "humanoid")
FAMILIES: list[tuple[str, Settings]] = [  # of ids with no preset of their own
    (r"Swimmer-v\d", _SWIMMER),
    (r"Hopper-v\d", _HOPPER),
    (r"InvertedDoublePendulum-v\d", _DOUBLE_PENDULUM),
    (r"(Reacher|InvertedPendulum)-v\d", _FEW_JOINTS),
    (rf"({'|'.join(_MUJOCO_TASKS)})-v\d", _MUJOCO),
    (r"brax/(hopper|walker2d)", _BRAX_LEGS),
    (r"(brax|playground)/\w+", _BRAX),
    (r"ALE/\w+-v5|\w+NoFrameskip-v4", _ATARI),
]
# Evaluations that end a run once its task is solved: PPO forgets, and a policy trained further may end up worse.
STOPS: dict[tuple[str, str], Settings] = {
    ("CartPole-v1", "ppo"): dict(eval_every=8192, stop_at_return=500.0),
    ("CartPoleNoVelocity-v0", "ppo"): dict(eval_every=16_384, stop_at_return=500.0),
    **{(f"InvertedPendulum-v{i}", "ppo"): dict(eval_every=50_000, stop_at_return=1000.0) for i in (4, 5)},
}
NO_STOP: Settings = dict(eval_every=0, stop_at_return=None)
MOST_GAMES, GAMES_A_CORE, ROWS_OF_GAMES = 128, 8, 4096  # of Atari on a GPU

# Of environments with no preset, by what they show and take. benchmarks/defaults.py measures them
_PPO: Settings = dict(num_minibatches=8, update_epochs=10, learning_rate=1e-3, norm_reward=True, norm_obs=True)
KINDS: dict[tuple[str, str], Settings] = {
    ("discrete", "ppo"): _PPO,
    ("states", "ppo"): _PPO,
    ("continuous", "ppo"): _PPO | dict(ent_coef=0.0),
    ("images", "ppo"): _PPO | dict(update_epochs=4, learning_rate=5e-4),
    ("discrete", "vpg"): dict(anneal_lr=True),
    ("states", "vpg"): dict(anneal_lr=True),
    ("continuous", "vpg"): dict(anneal_lr=True),
    ("images", "vpg"): dict(anneal_lr=True, num_envs=8, learning_rate=1e-3),
}
KIND_WORDS = {
    "discrete": "discrete actions",
    "states": "discrete observations and actions",
    "continuous": "continuous actions",
    "images": "images",
}
# PPO's rollout size in rows, whatever num_envs is; discrete states get more if the budget has room for 100 such rollouts
ROWS, ROWS_OF_STATES, FEWEST_STEPS = 1024, 4096, 16
LONGEST = 500  # VPG rollout length: the time limit, at most 500
FEWEST_WITH_MEMORY = 64  # steps of a rollout: gradients reach no further back
MINIBATCH, MOST_MINIBATCHES = 128, 32
BUDGET = {"ppo": (500_000, 100), "vpg": (640_000, 40)}  # minimum steps and minimum phases
MANY = 64  # environments side by side, where a step of many costs hardly more than a step of one


class Expected(NamedTuple):
    """What a preset reaches, as `tightrope envs` shows it."""

    result: str
    time: str
    score: float | None = None  # the mean return, if `result` is one


def _returns(score: float, time: str, note: str = "") -> Expected:
    return Expected(f"{score:g}{note}", time, score)


# Results are medians of docs/scores.md and docs/benchmarks.md. Times are of a run alone on a core; on the page of scores some
# are longer, because runs shared busy cores.
EXPECTED: dict[str, Expected] = {
    "CartPole-v1": _returns(500, "1 s"),
    "EasyCart-v0": Expected("500 steps", "3 s"),
    "SpinCart-v0": Expected("11.8 rad/s within 0.2 m", "11 s"),
    "DanceCart-v0": Expected("0.06 m off the beat", "20 s"),
    "Pendulum-v1": _returns(-151, "4 s"),
    "MountainCar-v0": _returns(-110, "5 s", ", always the flag"),
    "MountainCarShaped-v0": Expected("", "5 s"),
    "Acrobot-v1": _returns(-76, "20 s"),
    "LunarLander-v3": _returns(277, "60 s"),
    "LunarLanderContinuous-v3": _returns(279, "67 s"),
    "BipedalWalker-v3": _returns(303, "190 s"),
    "HalfCheetah-v5": _returns(6327, "100 s"),
    "Hopper-v5": _returns(3313, "132 s"),
    "Walker2d-v5": _returns(4366, "150 s"),
    "Swimmer-v5": _returns(360, "200 s"),
    "Reacher-v5": _returns(-4.1, "89 s"),
    "InvertedPendulum-v5": _returns(1000, "8 s"),
    "InvertedDoublePendulum-v5": _returns(9359, "100 s"),
    "brax/ant": _returns(6100, "40 s on an H200"),
    "brax/hopper": _returns(2175, "193 s"),
    "brax/walker2d": _returns(1075, "300 s"),
    "CartDoublePendulum-v0": Expected("up for 1.00 of the time", "54 s on an H200"),
}
# environments with presets that engines run: (engines, extra that installs one of them)
ELSEWHERE: dict[str, tuple[str, str]] = {
    "MountainCarContinuous-v0": ("envpool, gymnasium", ""),
    "LunarLander-v3": ("envpool, gymnasium", "box2d"),
    "LunarLanderContinuous-v3": ("envpool, gymnasium", "box2d"),
    "BipedalWalker-v3": ("envpool, gymnasium", "box2d"),
    **{f"{task}-v5": ("envpool, gymnasium", "mujoco") for task in _MUJOCO_TASKS},
    "ALE/Pong-v5 and all of Atari": ("ale, envpool", "atari"),
    **{f"brax/{task}": ("brax", "brax") for task in _BRAX_TASKS},
}


def preset(env: str, algo: str, given: Settings | None = None) -> Settings:
    """The preset of an environment under an algorithm, its own or its family's; empty where there is none. Atari's depends
    on the machine and on what the user has `given`. An environment with arguments or wrappers is trained on itself."""
    if (env, algo) in PRESETS:
        adapted = given is not None and (given.get("env_kwargs") or given.get("wrappers"))
        return {name: value for name, value in PRESETS[env, algo].items() if not adapted or name != "train_env"}
    if algo != "ppo":
        return {}
    family = next((settings for pattern, settings in FAMILIES if re.fullmatch(pattern, env)), {})
    return atari(given or {}) if family is _ATARI or (not family and is_game(env)) else family


def preset_stop(env: str, algo: str, given: Settings) -> Settings:
    """The evaluations that end a run once its task is solved. Empty where there are none, where the user has `given` how long
    to train or how to evaluate, and where the task is changed."""
    lasts = {"total_timesteps", "eval_every", "eval_episodes", "stop_at_return"} & given.keys()
    changed = any(given.get(name) for name in ("max_episode_steps", "env_kwargs", "wrappers"))
    return {} if lasts or changed else STOPS.get((env, algo), {})


def atari(given: Settings) -> Settings:
    """Eight games as published; on a GPU enough of them to keep the cores busy, and larger minibatches at a larger learning
    rate, unless the user has given sizes."""
    device = given.get("device", "auto")
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if not on_gpu or {"num_envs", "num_steps", "num_minibatches"} & given.keys():
        return _ATARI
    games = min(MOST_GAMES, GAMES_A_CORE * 2 ** (cores().bit_length() - 1))
    larger = dict(num_envs=games, num_steps=ROWS_OF_GAMES // games, num_minibatches=8, learning_rate=5e-4)
    return _ATARI | larger | dict(precision="tf32")


def kind_of(observation: Spec, action: Spec) -> str:
    """Which defaults suit an environment that has no preset."""
    observation = without_mask(observation, action)
    observation = group_spec(observation, observation_groups(observation, None, None).actor)
    if sees_images(observation):
        return "images"
    if any(isinstance(part, Box) for _, part in flat_parts(action)):
        return "continuous"
    return "states" if isinstance(observation, Discrete | MultiDiscrete) else "discrete"


@dataclass(frozen=True)
class Traits:
    """What the defaults of a kind depend on besides the kind."""

    limit: int | None = None  # steps after which an episode is truncated, where that is known
    on_device: bool = False  # whether a step of many environments costs hardly more than a step of one


def kind_settings(kind: str, algo: str, given: Settings, traits: Traits | None = None) -> Settings:
    """The defaults of a kind. PPO's sizes follow those that were given: a rollout keeps its rows, a minibatch its 128. Other
    algorithms than PPO and VPG have none."""
    if (kind, algo) not in KINDS:
        return {}
    traits = traits or Traits()
    steps, phases = BUDGET[algo]
    settings = {"num_envs": 8 if algo == "ppo" else 32, **KINDS[kind, algo]}
    if algo == "ppo" and traits.on_device:
        settings["num_envs"] = MANY
    num_envs = max(given.get("num_envs", settings["num_envs"]), 1)
    if algo == "ppo":
        long = kind == "states" and given.get("total_timesteps", steps) >= phases * ROWS_OF_STATES
        fewest = FEWEST_STEPS if given.get("memory") is None else FEWEST_WITH_MEMORY
        settings["num_steps"] = max(fewest, (ROWS_OF_STATES if long else ROWS) // num_envs)
    else:
        settings["num_steps"] = min(
            traits.limit or LONGEST, LONGEST
        )  # whole episodes, and no steps after an episode's end
    batch = max(num_envs * given.get("num_steps", settings["num_steps"]), 1)
    if algo == "ppo":
        most = min(max(batch // MINIBATCH, 1), MOST_MINIBATCHES)
        whole = batch if given.get("memory") is None else num_envs  # a minibatch is then all steps of some environments
        settings["num_minibatches"] = next(count for count in range(most, 0, -1) if whole % count == 0)
    if batch * phases > steps:
        settings["total_timesteps"] = batch * phases
    return settings


def is_game(env: str) -> bool:
    """Whether an id such as Breakout-v5 is one of Atari's."""
    if not re.fullmatch(r"\w+-v5", env):
        return False
    from ..envs.registry import BACKENDS

    return BACKENDS["ale"].provides(env)
