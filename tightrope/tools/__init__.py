"""What is done with trainings: timing them, checking the machine, probing an algorithm, several seeds, sweeps over settings."""
