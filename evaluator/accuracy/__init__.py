"""How far predictions are from measurements: what is known of it, and what of that speaks for a configuration."""

from evaluator.accuracy.cases import CASES, SHARE, Case, Errors, load_errors

__all__ = ["CASES", "SHARE", "Case", "Errors", "load_errors"]
