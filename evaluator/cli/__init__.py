"""The command ``evaluator``. Nothing heavy is imported here: NumPy, pandas and JAX load inside the commands."""

from evaluator.cli.app import app, main

__all__ = ["app", "main"]
