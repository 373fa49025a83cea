"""Tools around training: benchmarks, checks of the machine, probes of an algorithm, several seeds, sweeps over settings."""
