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

PRESETS: dict[tuple[str, str], Settings] = {
    ("CartPole-v1", "ppo"): _CARTPOLE,
    ("EasyCart-v0", "ppo"): _CARTPOLE,
}


def preset(env: str, algo: str) -> Settings:
    """The preset of an environment under an algorithm; empty where there is none."""
    return PRESETS.get((env, algo), {})
