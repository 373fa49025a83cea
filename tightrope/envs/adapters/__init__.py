"""Adapters for environments of other libraries: Gymnasium, ale-py, EnvPool, Brax and MuJoCo Playground."""
