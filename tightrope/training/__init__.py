"""Training runs: settings, presets, the loop around an algorithm, evaluation, checkpoints, export."""
