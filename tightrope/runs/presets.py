"""Settings with which each shipped environment is solved with no flags. docs/benchmarks.md holds the results."""

from ..types import Settings

PRESETS: dict[tuple[str, str], Settings] = {
    ("CartPole-v1", "ppo"): dict(total_timesteps=200_000, num_envs=64, num_steps=32, learning_rate=2.5e-3),
}


def preset(env: str, algo: str) -> Settings:
    """The preset of an environment under an algorithm; empty where there is none."""
    return PRESETS.get((env, algo), {})
