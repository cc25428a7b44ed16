"""Results of load generators, told apart by what is in them."""

from evaluator.experiments.generators.files import GENERATORS, is_result, read_all, read_runs
from evaluator.experiments.generators.measured_run import MeasuredRun

__all__ = ["GENERATORS", "MeasuredRun", "is_result", "read_all", "read_runs"]
