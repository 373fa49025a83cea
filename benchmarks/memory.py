"""What memory reaches and costs: CartPole and Pendulum without their velocities, and the time of a step with and without.

    python benchmarks/memory.py                  # everything: about ten minutes on two cores
    python benchmarks/memory.py cost             # only the time of a step
    python benchmarks/memory.py vpg              # only the time of VPG's gradient over sequences of several lengths
    python benchmarks/memory.py scores --seeds 5 # only the scores
    python benchmarks/memory.py sb3              # beside RecurrentPPO of sb3-contrib, if it is installed

Times are processor seconds of this process, with one thread, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine import Runtime
from tightrope.functional import VPGLoss

TASKS = {"CartPoleNoVelocity-v0": ("gru", "lstm", "mingru", None), "PendulumNoVelocity-v0": ("gru", None)}
PHASES, WARM_UP, EPISODES, TRIALS = 40, 5, 50, 8


def scores(seeds: int, first: int) -> None:
    """Greedy returns of the presets, over 100 episodes, for each seed."""
    for task, memories in TASKS.items():
        for memory in memories:
            found, seconds = [], []
            for seed in range(first, first + seeds):
                began = time.process_time()
                agent = tr.PPO(task, memory=memory, seed=seed, device="cpu", threads=1).learn(quiet=True)
                seconds.append(time.process_time() - began)
                found.append(round(agent.evaluate(100).mean, 1))
            print(f"{task} memory {memory}: {found}, {statistics.median(seconds):.0f} s a seed", flush=True)


def cost() -> None:
    """The time of a step against a multilayer perceptron of the same hidden layers.

    Their phases are run in turn, and the fastest of each counts, which other programs disturb least."""
    torch.set_num_threads(1)
    for share in (False, True):
        loops, times, rows = {}, dict[str | None, list[float]](), 1
        for memory in (None, "gru", "mingru", "lstm"):
            agent = tr.PPO(
                "CartPole-v1", total_timesteps=1024 * 1000, eval_every=0, stop_at_return=None, device="cpu", memory=memory,
                hidden_sizes=(64, 64), share_trunk=share,
            )  # fmt: skip
            rows = agent.config.algorithm.batch_size
            loops[memory], times[memory] = ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm), []
        for phase in range(PHASES):
            for memory, loop in loops.items():
                began = time.process_time()
                next(loop)
                times[memory] += [time.process_time() - began] if phase >= WARM_UP else []
        plain = min(times[None])
        print(f"hidden_sizes [64, 64], {'shared' if share else 'separate'} trunks: {1e6 * plain / rows:.1f} us a step")
        for memory in [*times][1:]:
            own = min(times[memory])
            print(f"  memory {memory} of 64: {1e6 * own / rows:.1f} us, {own / plain:.1f} times", flush=True)


def vpg() -> None:
    """The time of a gradient of VPG with a GRU over 32 sequences, in plain PyTorch and recorded; and what recording takes.

    The values of a batch do not matter for its time. Rollouts of CartPole end early, so that every length occurs."""
    torch.set_num_threads(1)
    runtimes = {"plain PyTorch": Runtime(on_device=True), "compiled": Runtime(compiles_recordings=True)}
    for steps in (50, 200, 500):
        state = tr.VPG("CartPole-v1", memory="gru", num_steps=steps, device="cpu", eval_every=0).state
        zero = state.rollout.reward
        batch, loss = state.rollout.trajectories(zero, zero, zero == 0).flat(), VPGLoss(False, None, 0.0, 0.0)
        for name, runtime in runtimes.items():
            times = []
            for _ in range(TRIALS):
                began = time.process_time()
                runtime.backward(loss, state.policy, batch, state.optimizer)
                times.append(1e3 * (time.process_time() - began))
            first = times[0] - min(times)
            print(f"{steps} steps, {name}: {min(times):.1f} ms; {first / 1e3:.1f} s more at first", flush=True)


def sb3(seeds: int) -> None:
    """RecurrentPPO and our PPO with an LSTM on CartPole without velocities, at the settings of RL Baselines3 Zoo."""
    try:
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    except ImportError:
        print("sb3-contrib is not installed: pip install sb3-contrib")
        return
    torch.set_num_threads(1)
    envs, steps, total, spent = 8, 32, 100_352, [0.0, 0.0]
    for seed in range(1, seeds + 1):
        began = time.process_time()
        many = VecNormalize(DummyVecEnv([without_velocities] * envs))
        model = RecurrentPPO(
            "MlpLstmPolicy", many, n_steps=steps, batch_size=envs * steps, n_epochs=20, gae_lambda=0.8, gamma=0.98, seed=seed,
            learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, device="cpu",
            policy_kwargs=dict(
                ortho_init=False, activation_fn=torch.nn.ReLU, lstm_hidden_size=64, enable_critic_lstm=True,
                net_arch=dict(pi=[64], vf=[64]),
            ),
        )  # fmt: skip
        model.learn(total)
        theirs = time.process_time() - began
        many.training = False
        score = recurrent_score(model, many)
        print(f"seed {seed}, RecurrentPPO: mean {score:.1f} over {EPISODES} episodes, {theirs:.1f} s", flush=True)
        began = time.process_time()
        agent = tr.PPO(
            "CartPoleNoVelocity-v0", memory="lstm", num_envs=envs, num_steps=steps, num_minibatches=1, update_epochs=20,
            gae_lambda=0.8, gamma=0.98, learning_rate=1e-3, anneal_lr=True, clip_coef="linear(0.2, 0)", ent_coef=0.0,
            hidden_sizes=(64,), activation="relu", norm_obs=True, norm_reward=True, total_timesteps=total, seed=seed,
            defaults="plain", device="cpu", threads=1, eval_every=0,
        )  # fmt: skip
        agent.learn(quiet=True)
        ours = time.process_time() - began
        print(f"seed {seed}, tightrope:    mean {agent.evaluate(EPISODES).mean:.1f}, {ours:.1f} s", flush=True)
        spent = [spent[0] + ours, spent[1] + theirs]
    print(f"time of ours / RecurrentPPO: {spent[0] / spent[1]:.3f}")


def without_velocities() -> Any:
    import gymnasium

    def positions(obs: Any) -> Any:
        return obs[::2]

    env = gymnasium.make("CartPole-v1")
    space = gymnasium.spaces.Box(env.observation_space.low[::2], env.observation_space.high[::2])  # type: ignore[attr-defined]
    return gymnasium.wrappers.TransformObservation(env, positions, space)


def recurrent_score(model: Any, many: Any) -> float:
    """The greedy mean return of RecurrentPPO, one episode after the other."""
    env, returns = without_velocities(), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        state, total, over = None, 0.0, False
        while not over:
            start = [state is None]
            action, state = model.predict(many.normalize_obs(obs), state, episode_start=start, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return sum(returns) / EPISODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("scores", "cost", "vpg", "sb3"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1, help="of the scores")
    given = parser.parse_args()
    if given.what in (None, "cost"):
        cost()
    if given.what in (None, "vpg"):
        vpg()
    if given.what in (None, "scores"):
        scores(given.seeds, given.first_seed)
    if given.what in (None, "sb3"):
        sb3(given.seeds)


if __name__ == "__main__":
    main()
