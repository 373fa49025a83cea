"""Settings with which each shipped environment is solved with no flags. docs/benchmarks.md holds the results."""

from ..types import Settings

_CARTPOLE: Settings = dict(
    total_timesteps=100_000,
    num_envs=64,
    num_steps=16,
    num_minibatches=2,
    update_epochs=8,
    learning_rate=0.015,
    anneal_clip=True,
    ent_coef=0.0,
    hidden_sizes=(32, 32),
)

_MOUNTAIN_CAR: Settings = dict(
    total_timesteps=200_000,
    num_envs=16,
    num_steps=64,
    learning_rate=3e-3,
    norm_obs=True,
)
_SWING_UP: Settings = dict(
    total_timesteps=60_000_000,
    num_envs=2048,
    num_steps=32,
    num_minibatches=16,
    learning_rate=1e-3,
    norm_obs=True,
    norm_reward=True,
)

PRESETS: dict[tuple[str, str], Settings] = {
    ("CartPole-v1", "ppo"): _CARTPOLE,
    ("EasyCart-v0", "ppo"): _CARTPOLE,
    ("Pendulum-v1", "ppo"): dict(
        total_timesteps=400_000,
        num_envs=64,
        num_steps=64,
        num_minibatches=16,
        learning_rate=2e-3,
        gamma=0.96,
        ent_coef=0.0,
        norm_reward=True,
    ),
    ("Acrobot-v1", "ppo"): dict(
        total_timesteps=300_000,
        num_envs=64,
        num_steps=64,
        learning_rate=2.5e-3,
    ),
    ("MountainCar-v0", "ppo"): dict(train_env="MountainCarShaped-v0", **_MOUNTAIN_CAR),
    ("MountainCarShaped-v0", "ppo"): _MOUNTAIN_CAR,
    ("SpinCart-v0", "ppo"): dict(
        total_timesteps=500_000,
        num_envs=64,
        num_steps=64,
        learning_rate=1e-3,
        norm_obs=True,
    ),
    ("CartDoublePendulum-v0", "ppo"): _SWING_UP,
    ("CartPole-v1", "vpg"): dict(anneal_lr=True),
    ("DanceCart-v0", "ppo"): dict(
        total_timesteps=1_000_000,
        num_envs=64,
        num_steps=64,
        learning_rate=1e-3,
    ),
}


for _i in range(1, 6):
    PRESETS[f"Probe{_i}-v0", "ppo"] = dict(
        total_timesteps=30_000, num_envs=256, num_steps=8, learning_rate=1e-2, ent_coef=0.0
    )


def preset(env: str, algo: str) -> Settings:
    """The preset of an environment under an algorithm; empty where there is none."""
    return PRESETS.get((env, algo), {})
