"""The version, where everything can see it."""

__version__ = "0.1.0"
