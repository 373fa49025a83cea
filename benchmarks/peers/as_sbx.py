"""Runs a script written for Stable-Baselines3 with sbx, its JAX twin, in PPO's place: as_sbx.py SCRIPT ARGUMENTS..."""

import runpy
import sys

import sbx
import stable_baselines3

stable_baselines3.PPO = sbx.PPO
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
