"""What the two engines of Atari games have in common: ids, settings, what is refused, and that threads change nothing."""

from typing import Any

import pytest
import torch
from test_contract import random_actions, run, same

from tightrope.envs.adapters import ale, envpool
from tightrope.envs.adapters.atari import Rules
from tightrope.envs.registry import BACKENDS, EnvOptions
from tightrope.errors import EnvError, UsageError

ENGINES = [
    pytest.param(module, id=name, marks=pytest.mark.skipif(not BACKENDS[name].installed, reason=f"needs {name}"))
    for name, module in (("ale", ale), ("envpool", envpool))
]
each_engine = pytest.mark.parametrize("engine", ENGINES)
PLAIN = Rules(clip_reward=False, life_is_episode=False)


def made(engine: Any, env_id: str, num_envs: int = 1, **options: Any) -> Any:
    return engine.ADAPTER.from_id(env_id, num_envs, "cpu", EnvOptions(**options))


@each_engine
@pytest.mark.parametrize(
    ("env_id", "words"),
    [(env_id, "unknown env") for env_id in ("Breakout-v4", "ALE/Brekout-v5", "ALE/breakout-v5", "ALE/Combat-v5", "nothing")]
    + [("Brekout-v5", "unknown env .* Did you mean Breakout-v5"), ("HalfCheetah-v1", "unknown env")],
)  # fmt: skip
def test_unknown_ids(engine: Any, env_id: str, words: str) -> None:
    assert not engine.ADAPTER.provides(env_id)
    with pytest.raises(UsageError, match=words):
        made(engine, env_id)


@each_engine
def test_options(engine: Any) -> None:
    env = made(engine, "ALE/Pong-v5")
    assert (env.observation.shape, env.observation.dtype, env.action.n) == ((4, 84, 84), torch.uint8, 6)
    assert (env.max_episode_steps, env._rules) == (27_000, Rules(clip_reward=True, life_is_episode=True))
    clip = "reward_clipping" if engine is ale else "reward_clip"
    asked = {clip: False, "episodic_life": False, "full_action_space": True}
    env = made(engine, "PongNoFrameskip-v4", max_episode_steps=9, env_kwargs=asked)
    assert (env.action.n, env.max_episode_steps, env._rules) == (18, 9, PLAIN)
    assert made(engine, "Pong-v5", scoring=True)._rules == PLAIN
    twin = env.spawn(2, seed=1)
    assert (twin.max_episode_steps, twin._rules) == (9, PLAIN)


@each_engine
def test_keywords_that_the_adapter_decides_or_the_engine_lacks_are_refused(engine: Any) -> None:
    for name in engine.RESERVED:
        with pytest.raises(UsageError, match=f"env_kwargs '{name}' cannot be set"):
            made(engine, "Pong-v5", env_kwargs={name: 1})
    with pytest.raises(UsageError, match=r"cannot be made.*wings|'wings' is not an argument of Pong-v5.* frameskip"):
        made(engine, "Pong-v5", env_kwargs={"wings": 2})


@each_engine
def test_actions_that_do_not_exist(engine: Any) -> None:
    env = made(engine, "Breakout-v5", 2)
    env.reset()
    for stray in (4, -1):
        with pytest.raises(EnvError, match=f"number 1 failed on action {stray}: there are only actions 0 to 3"):
            env.step(torch.tensor([0, stray]))


@each_engine
def test_threads_change_nothing(engine: Any) -> None:
    one, two = (made(engine, "Breakout-v5", 2, env_kwargs={"num_threads": threads}) for threads in (1, 2))
    actions = random_actions(one, 60)
    one.reset(seed=1), two.reset(seed=1)
    assert same(run(one, actions), run(two, actions))
