"""The runs of report_rules.py: three sets of forty, half of each spoilt on purpose."""

from typing import Any

import torch

import tightrope as tr


class FlippedCartPole(tr.envs.CartPole):
    """CartPole with a reward of the wrong sign."""

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return -super().reward(state, action, next_state)


class FlippedPendulum(tr.envs.Pendulum):
    """Pendulum with a reward of the wrong sign."""

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return -super().reward(state, action, next_state)


FLIPPED = {"FlippedCartPole-v0": FlippedCartPole, "FlippedPendulum-v0": FlippedPendulum}
CART, PENDULUM, ACROBOT, CAR = "CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"
TO_THE_END: dict[str, Any] = {"eval_every": 0, "stop_at_return": None}
SHORT_ACROBOT: dict[str, Any] = {"total_timesteps": 200_000}
SHORT_VPG: dict[str, Any] = {"total_timesteps": 320_000}
LATE: dict[str, Any] = {"seed": 13, **TO_THE_END, "total_timesteps": 100_000}
Run = tuple[str, str, dict[str, Any]]  # env, algo, settings

FIRST_GOOD: dict[str, Run] = {
    **{f"CartPole, seed {seed}": (CART, "ppo", {"seed": seed}) for seed in (11, 12, 13)},
    "CartPole, no stop": (CART, "ppo", {"seed": 14, **TO_THE_END, "total_timesteps": 100_000}),
    "CartPole, long after it is solved": (CART, "ppo", {"seed": 15, **TO_THE_END, "total_timesteps": 400_000}),
    "CartPole, normalised observations": (CART, "ppo", {"seed": 16, "norm_obs": True}),
    "CartPole, evaluations alone": (CART, "ppo", {"seed": 17, "stop_at_return": None, "total_timesteps": 100_000}),
    **{f"Pendulum, seed {seed}": (PENDULUM, "ppo", {"seed": seed}) for seed in (11, 12, 13)},
    **{f"Acrobot, seed {seed}": (ACROBOT, "ppo", {"seed": seed, **SHORT_ACROBOT}) for seed in (11, 12)},
    **{f"MountainCar, seed {seed}": (CAR, "ppo", {"seed": seed}) for seed in (11, 12)},
    **{f"VPG on CartPole, seed {seed}": (CART, "vpg", {"seed": seed, **SHORT_VPG}) for seed in (11, 12)},
    "VPG with a critic": (CART, "vpg", {"seed": 13, "baseline": "critic", **SHORT_VPG}),
    "probe 4": ("Probe4-v0", "ppo", {"seed": 11}),
    "probe 5": ("Probe5-v0", "ppo", {"seed": 11}),
    "probe 5, VPG": ("Probe5-v0", "vpg", {"seed": 11, "num_steps": 8, "total_timesteps": 30_000}),
}
FIRST_SPOILT: dict[str, Run] = {
    "CartPole, learning rate 1e-7": (CART, "ppo", {**LATE, "learning_rate": 1e-7}),
    "CartPole, learning rate 0.001": (CART, "ppo", {**LATE, "learning_rate": 0.001}),
    "CartPole, learning rate 1": (CART, "ppo", {**LATE, "learning_rate": 1.0}),
    "CartPole, clip 1e-4": (CART, "ppo", {**LATE, "clip_coef": 1e-4}),
    "CartPole, gamma 0": (CART, "ppo", {**LATE, "gamma": 0.0}),
    "CartPole, entropy bonus 10": (CART, "ppo", {**LATE, "ent_coef": 10.0}),
    "CartPole, 12,288 steps": (CART, "ppo", {"seed": 13, **TO_THE_END, "total_timesteps": 12_288}),
    "CartPole, reward flipped": (CART, "ppo", {**LATE, "train_env": "FlippedCartPole-v0"}),
    "CartPole, gradients cut to 1e-6": (CART, "ppo", {**LATE, "max_grad_norm": 1e-6, "learning_rate": 1e-5}),
    "CartPole, no limit on the gradient": (CART, "ppo", {**LATE, "max_grad_norm": None, "learning_rate": 0.3}),
    "Pendulum, gamma 0": (PENDULUM, "ppo", {"seed": 13, "gamma": 0.0}),
    "Pendulum, learning rate 1e-6": (PENDULUM, "ppo", {"seed": 13, "learning_rate": 1e-6}),
    "Pendulum, entropy bonus 10": (PENDULUM, "ppo", {"seed": 13, "ent_coef": 10.0}),
    "Pendulum, reward flipped": (PENDULUM, "ppo", {"seed": 13, "train_env": "FlippedPendulum-v0"}),
    "Acrobot, learning rate 1e-6": (ACROBOT, "ppo", {"seed": 13, "learning_rate": 1e-6, **SHORT_ACROBOT}),
    "MountainCar without shaping": (CAR, "ppo", {"seed": 13, "train_env": None}),
    "VPG, learning rate 1": (CART, "vpg", {"seed": 13, "learning_rate": 1.0, "total_timesteps": 100_000}),
    "VPG, learning rate 1e-6": (CART, "vpg", {"seed": 13, "learning_rate": 1e-6, "total_timesteps": 100_000}),
    "VPG, gamma 0": (CART, "vpg", {"seed": 13, "gamma": 0.0, "total_timesteps": 100_000}),
    "probe 5, learning rate 1e-7": ("Probe5-v0", "ppo", {"seed": 13, "learning_rate": 1e-7}),
}

# the second set: other seeds, tasks, engines and mistakes ----------------------------------------------------------------


class HeavyCartPole(tr.envs.CartPole):
    """A task of a user's own: a long, heavy pole, and half the force."""

    pole_mass, half_length, force = 0.5, 1.0, 5.0
    solved_at = 495.0


OWN = {**FLIPPED, "HeavyCartPole-v0": HeavyCartPole}
HEAVY, BLIND, BLIND_PENDULUM = "HeavyCartPole-v0", "CartPoleNoVelocity-v0", "PendulumNoVelocity-v0"
LAKE, HILL, POLE = "FrozenLake-v1", "MountainCarContinuous-v0", "InvertedPendulum-v5"
SHORT: dict[str, Any] = {**TO_THE_END, "total_timesteps": 100_000}
SMALL_ROLLOUTS: dict[str, Any] = {"num_envs": 4, "num_steps": 128, "num_minibatches": 4, "learning_rate": 2.5e-4}
SECOND_GOOD: dict[str, Run] = {
    "CartPole, small rollouts": (CART, "ppo", {"seed": 21, **TO_THE_END, **SMALL_ROLLOUTS, "total_timesteps": 300_000}),
    "CartPole, 8 hidden units": (CART, "ppo", {"seed": 22, "hidden_sizes": (8,)}),
    "CartPole, VPG without normalising": (CART, "vpg", {"seed": 23, "max_grad_norm": 1.0, **SHORT_VPG}),
    "CartPole, VPG with two uses": (
        CART, "vpg", {"seed": 24, "rollout_uses": 2, "use_importance_weights": True, **SHORT_VPG},
    ),
    **{f"heavy CartPole, seed {seed}": (HEAVY, "ppo", {"seed": seed, "total_timesteps": 300_000}) for seed in (21, 22)},
    "heavy CartPole, VPG": (HEAVY, "vpg", {"seed": 23}),
    "CartPole without velocities, GRU": (BLIND, "ppo", {"seed": 21, "memory": "gru"}),
    "CartPole without velocities, LSTM": (BLIND, "ppo", {"seed": 22, "memory": "lstm"}),
    "Pendulum, 16 environments": (PENDULUM, "ppo", {"seed": 21, "num_envs": 16, "num_steps": 256}),
    "Pendulum, one trunk": (PENDULUM, "ppo", {"seed": 22, "share_trunk": True}),
    "Pendulum, long after it is solved": (PENDULUM, "ppo", {"seed": 23, "total_timesteps": 800_000}),
    "Acrobot, longer rollouts": (ACROBOT, "ppo", {"seed": 21, "num_steps": 64, **SHORT_ACROBOT}),
    "Recall10, GRU": ("Recall10-v0", "ppo", {"seed": 21, "memory": "gru"}),
    "T-maze, GRU": ("TMaze-v0", "ppo", {"seed": 22, "memory": "gru"}),
    "FrozenLake": (LAKE, "ppo", {"seed": 21, "total_timesteps": 300_000}),
    "FrozenLake, VPG": (LAKE, "vpg", {"seed": 22, "total_timesteps": 300_000}),
    "continuous MountainCar": (HILL, "ppo", {"seed": 21}),
    "inverted pendulum": (POLE, "ppo", {"seed": 21}),
    "probe 5, small rollouts": ("Probe5-v0", "ppo", {"seed": 22, "num_envs": 32, "num_steps": 32}),
}  # fmt: skip
SECOND_SPOILT: dict[str, Run] = {
    "CartPole, gamma 0.5": (CART, "ppo", {"seed": 31, **SHORT, "gamma": 0.5}),
    "CartPole, clip 0.01, 40,960 steps": (
        CART, "ppo", {"seed": 32, **TO_THE_END, "total_timesteps": 40_960, "clip_coef": 0.01},
    ),
    "CartPole, entropy bonus 0.5": (CART, "ppo", {"seed": 33, **SHORT, "ent_coef": 0.5}),
    "CartPole, one environment": (CART, "ppo", {"seed": 34, **SHORT, "num_envs": 1, "total_timesteps": 30_000}),
    "CartPole, no value loss": (CART, "ppo", {"seed": 35, **SHORT, "vf_coef": 0.0}),
    "CartPole, 60 epochs": (CART, "ppo", {"seed": 36, **SHORT, "update_epochs": 60, "total_timesteps": 30_000}),
    "CartPole without velocities, no memory": (BLIND, "ppo", {"seed": 31}),
    "Pendulum without velocity, no memory": (BLIND_PENDULUM, "ppo", {"seed": 32, "total_timesteps": 400_000}),
    "Pendulum, learning rate 0.2": (PENDULUM, "ppo", {"seed": 31, "learning_rate": 0.2}),
    "Pendulum, no value loss": (PENDULUM, "ppo", {"seed": 32, "vf_coef": 0.0}),
    "Pendulum, a narrow policy": (PENDULUM, "ppo", {"seed": 33, "log_std_init": -6.0}),
    "Acrobot, gamma 0.5": (ACROBOT, "ppo", {"seed": 31, "gamma": 0.5, **SHORT_ACROBOT}),
    "Acrobot, learning rate 0.1": (ACROBOT, "ppo", {"seed": 32, "learning_rate": 0.1, **SHORT_ACROBOT}),
    "Recall10, no memory": ("Recall10-v0", "ppo", {"seed": 31}),
    "T-maze, learning rate 1e-6": ("TMaze-v0", "ppo", {"seed": 32, "memory": "gru", "learning_rate": 1e-6}),
    "FrozenLake, entropy bonus 1": (LAKE, "ppo", {"seed": 31, "ent_coef": 1.0, "total_timesteps": 100_000}),
    "continuous MountainCar, gamma 0.9": (HILL, "ppo", {"seed": 31, "gamma": 0.9}),
    "inverted pendulum, learning rate 1": (POLE, "ppo", {"seed": 31, **SHORT, "learning_rate": 1.0}),
    "VPG, 30 uses": (
        CART, "vpg",
        {"seed": 31, "rollout_uses": 30, "use_importance_weights": True, "total_timesteps": 100_000, "learning_rate": 0.1},
    ),
    "VPG, two environments": (CART, "vpg", {"seed": 32, "num_envs": 2, "total_timesteps": 50_000}),
}  # fmt: skip

# the third set: other seeds and mistakes again, trained after the rules were final ----------------------------------------


class LightCartPole(tr.envs.CartPole):
    """A task of a user's own: a light pole on a heavy cart."""

    pole_mass, cart_mass = 0.02, 3.0
    solved_at = 495.0


OWN["LightCartPole-v0"] = LightCartPole
THIRD_GOOD: dict[str, Run] = {
    "CartPole, eight environments": (
        CART, "ppo",
        {"seed": 41, **TO_THE_END, "num_envs": 8, "num_steps": 128, "learning_rate": 1e-3, "total_timesteps": 200_000},
    ),
    "CartPole, relu": (CART, "ppo", {"seed": 42, "activation": "relu"}),
    "CartPole, lambda 1": (CART, "ppo", {"seed": 43, "gae_lambda": 1.0}),
    "CartPole, VPG without a baseline": (CART, "vpg", {"seed": 44, "baseline": "none", **SHORT_VPG}),
    "CartPole, VPG with a critic": (CART, "vpg", {"seed": 45, "baseline": "critic", **SHORT_VPG}),
    "light CartPole": ("LightCartPole-v0", "ppo", {"seed": 41}),
    "light CartPole, VPG": ("LightCartPole-v0", "vpg", {"seed": 42, **SHORT_VPG}),
    "Pendulum, gamma 0.95": (PENDULUM, "ppo", {"seed": 41, "gamma": 0.95}),
    "Pendulum, 256 environments": (PENDULUM, "ppo", {"seed": 42, "num_envs": 256, "num_steps": 32}),
    "Pendulum, constant learning rate": (PENDULUM, "ppo", {"seed": 43, "anneal_lr": False}),
    **{f"MountainCar, seed {seed}": (CAR, "ppo", {"seed": seed}) for seed in (41, 42)},
    "Acrobot, whole budget": (ACROBOT, "ppo", {"seed": 41}),
    "Acrobot, 16 environments": (ACROBOT, "ppo", {"seed": 42, "num_envs": 16, "num_steps": 64, **SHORT_ACROBOT}),
    "CartPole without velocities, relu": (BLIND, "ppo", {"seed": 41, "memory": "gru", "activation": "relu"}),
    "Pendulum without velocity, GRU": (BLIND_PENDULUM, "ppo", {"seed": 42, "memory": "gru"}),
    "Recall10, LSTM": ("Recall10-v0", "ppo", {"seed": 41, "memory": "lstm"}),
    "FrozenLake, whole budget": (LAKE, "ppo", {"seed": 41}),
    "continuous MountainCar, seed 42": (HILL, "ppo", {"seed": 42}),
    "inverted pendulum, seed 42": (POLE, "ppo", {"seed": 42}),
}  # fmt: skip
THIRD_SPOILT: dict[str, Run] = {
    "CartPole, lambda 0": (CART, "ppo", {"seed": 51, **SHORT, "gae_lambda": 0.0}),
    "CartPole, clip 0.9, 20 epochs": (CART, "ppo", {"seed": 52, **SHORT, "clip_coef": 0.9, "update_epochs": 20}),
    "CartPole, gradients cut to 1e-4": (CART, "ppo", {"seed": 53, **SHORT, "max_grad_norm": 1e-4, "learning_rate": 1e-4}),
    "CartPole, entropy bonus 2": (CART, "ppo", {"seed": 54, **SHORT, "ent_coef": 2.0}),
    "CartPole, one hidden unit": (CART, "ppo", {"seed": 55, **SHORT, "hidden_sizes": (1,)}),
    "CartPole, one small step a phase": (
        CART, "ppo", {"seed": 56, **SHORT, "num_minibatches": 1, "update_epochs": 1, "learning_rate": 1e-4},
    ),
    "CartPole, 16,384 steps": (CART, "ppo", {"seed": 57, **TO_THE_END, "total_timesteps": 16_384}),
    "Pendulum, gamma 0.9999, plain rewards": (PENDULUM, "ppo", {"seed": 51, "gamma": 0.9999, "norm_reward": False}),
    "Pendulum, two steps a phase": (
        PENDULUM, "ppo", {"seed": 52, "num_steps": 2, "num_minibatches": 2, "total_timesteps": 200_000},
    ),
    "Pendulum, learning rate 1e-5": (PENDULUM, "ppo", {"seed": 53, "learning_rate": 1e-5}),
    "Pendulum, entropy bonus 1": (PENDULUM, "ppo", {"seed": 54, "ent_coef": 1.0}),
    "Acrobot, entropy bonus 1": (ACROBOT, "ppo", {"seed": 51, "ent_coef": 1.0, **SHORT_ACROBOT}),
    "Acrobot, clip 0.001": (ACROBOT, "ppo", {"seed": 52, "clip_coef": 0.001, **SHORT_ACROBOT}),
    "MountainCar without shaping, 50,000 steps": (
        CAR, "ppo", {"seed": 51, "train_env": None, "total_timesteps": 50_000},
    ),
    "Recall10, gamma 0": ("Recall10-v0", "ppo", {"seed": 51, "memory": "gru", "gamma": 0.0}),
    "T-maze, no memory": ("TMaze-v0", "ppo", {"seed": 52}),
    "FrozenLake, gamma 0": (LAKE, "ppo", {"seed": 51, "gamma": 0.0, "total_timesteps": 100_000}),
    "FrozenLake, learning rate 3": (LAKE, "ppo", {"seed": 52, "learning_rate": 3.0, "total_timesteps": 100_000}),
    "Acrobot, VPG, learning rate 0.2": (ACROBOT, "vpg", {"seed": 51, "learning_rate": 0.2, "total_timesteps": 320_000}),
    "inverted pendulum, 20,480 steps": (POLE, "ppo", {"seed": 52, **TO_THE_END, "total_timesteps": 20_480}),
}  # fmt: skip
SETS: dict[str, dict[bool, dict[str, Run]]] = {
    "first": {False: FIRST_GOOD, True: FIRST_SPOILT},
    "second": {False: SECOND_GOOD, True: SECOND_SPOILT},
    "third": {False: THIRD_GOOD, True: THIRD_SPOILT},
}  # by whether they are spoilt
