"""A study over settings, shared by as many processes as join it. Only `tightrope sweep` imports it: it needs Optuna."""
