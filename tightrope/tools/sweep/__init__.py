"""An Optuna study over settings that any number of processes share. Only `tightrope sweep` imports it."""
