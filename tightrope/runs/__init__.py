"""Around the algorithms: settings, presets, training, evaluation, saving."""
