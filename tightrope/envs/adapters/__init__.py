"""Adapters for environments of other engines: Gymnasium, ale-py, EnvPool, Brax and MuJoCo Playground."""
