"""One timing of Tightrope on a workload of speed.py, on the CPU: WORKLOAD SEED [BACKEND]. Prints a line of JSON.

W1  CartPole-v1 by its preset until a greedy 495 is held (hold.py says what counts)
W2  CartPole-v1, 4 envs x 128 steps, 4 minibatches x 4 epochs
W3  LunarLander-v3, 16 envs x 1024 steps, minibatches of 64, 4 epochs
W4  HalfCheetah-v5, 1 env x 2048 steps, 32 minibatches x 10 epochs, observations and returns normalised
W5  HalfCheetah-v5, 64 envs x 32 steps, the same batch
W6  Breakout, 8 envs x 128 steps, 4 minibatches x 4 epochs, the convolutional network of 2015

W2 to W6: steps per second of training alone (imports and construction left out), one torch thread (two on W6). On W3 to W5
Gymnasium's environments run one after the other in the process; "envpool" is that engine with one thread, and
"envpool-threads" with its default number. W2 has our CartPole, W6 ale-py's vector engine.
"""

import contextlib
import json
import sys
import time
from typing import Any

CHEETAH: dict[str, Any] = dict(update_epochs=10, num_minibatches=32, learning_rate=3e-4, ent_coef=0.0)
NORMALISED: dict[str, Any] = dict(norm_obs=True, norm_reward=True)
LUNAR: dict[str, Any] = dict(
    num_envs=16, num_steps=1024, num_minibatches=256, update_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01
)
CARTPOLE: dict[str, Any] = dict(
    num_envs=4, num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4, ent_coef=0.01, clip_vloss=True,
    hidden_sizes=(64, 64), anneal_clip=False,
)  # fmt: skip
BREAKOUT: dict[str, Any] = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4, clip_coef=0.1, ent_coef=0.01,
    anneal_clip=False,
)  # fmt: skip
MORE_THREADS = "envpool-threads"
BACKENDS = {
    "W2": ["tensor"],
    "W5": ["gymnasium", "envpool", MORE_THREADS],
    "W6": ["ale"],
}  # where they are not these two:
USUAL_BACKENDS = ["gymnasium", "envpool"]
WORKLOADS: dict[str, tuple[str, int, dict[str, Any]]] = {  # env, steps to time, our settings
    "W2": ("CartPole-v1", 400 * 512, CARTPOLE),
    "W3": ("LunarLander-v3", 3 * 16_384, dict(**LUNAR, learning_rate=3e-4, anneal_lr=False)),
    "W4": ("HalfCheetah-v5", 20 * 2048, dict(num_envs=1, num_steps=2048, **CHEETAH, **NORMALISED)),
    "W5": ("HalfCheetah-v5", 20 * 2048, dict(num_envs=64, num_steps=32, **CHEETAH, **NORMALISED)),
    "W6": ("BreakoutNoFrameskip-v4", 3 * 1024, BREAKOUT),
}


def to_hold(seed: int) -> None:
    """Our preset on the clock of hold.py."""
    import torch
    from hold import Held, Hold

    import tightrope as tr
    from tightrope.algorithms.ppo import ppo

    torch.set_num_threads(1)
    agent, hold = tr.PPO("CartPole-v1", seed=seed, device="cpu"), Hold()
    hold.start()
    with contextlib.suppress(Held):
        for _ in ppo(agent.state, agent.config.algorithm):
            hold.check(agent.steps, agent.predict)
        hold.stop()
    hold.report("tightrope", seed, agent.steps)


def throughput(workload: str, seed: int, backend: str) -> None:
    """The schedule is that of a million steps; training stops after the steps to time."""
    import torch

    import tightrope as tr
    from tightrope.algorithms.ppo import ppo

    torch.set_num_threads(2 if workload == "W6" else 1)
    env, steps, settings = WORKLOADS[workload]
    threads = {"env_kwargs": {"num_threads": 1}} if backend == "envpool" else {}
    backend = "envpool" if backend == MORE_THREADS else backend
    agent = tr.PPO(env, seed=seed, device="cpu", backend=backend, total_timesteps=1_000_000, **settings, **threads)
    began = time.perf_counter()
    for _ in ppo(agent.state, agent.config.algorithm):
        if agent.steps >= steps:
            break
    print(json.dumps({"steps_per_s": agent.steps / (time.perf_counter() - began)}))


if __name__ == "__main__":
    if sys.argv[1] == "W1":
        to_hold(int(sys.argv[2]))
    else:
        throughput(sys.argv[1], int(sys.argv[2]), sys.argv[3])
