"""Environments that misbehave on one rank, for the tests beside this file."""

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch

from tightrope.envs import CartPole


class Quiet(gymnasium.Env):
    """Counts its steps and shows nothing."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Endless(Quiet):
    """Episodes of it never end, which an evaluation waits for."""

    def step(self, action):
        if self.steps > 100:  # more than there are in training
            Path("evaluating").touch()
            time.sleep(0.001)
        return super().step(action)


class Stuck(Quiet):
    """Never answers on rank 1, after it was tried and has been through a phase."""

    def step(self, action):
        while os.environ["RANK"] == "1" and self.steps > 40:
            time.sleep(0.1)
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.steps % 9 == 0, info


class Mortal(Quiet):
    """Kills rank 1 in its sixth phase of 16 steps, unless torchrun has restarted it."""

    def step(self, action):
        if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.steps > 90:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Sick(CartPole):
    """Pays NaN on rank 1, though not in the first steps, which are tried when the agent is made."""

    def reward(self, state, action, next_state):
        sick = (next_state[:, 2].abs() > 0.1) & (os.environ["RANK"] == "1")
        return torch.where(sick, torch.nan, super().reward(state, action, next_state))
