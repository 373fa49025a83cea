"""Populations: many agents, each with a seed and settings of its own, that train in turns in one program."""
