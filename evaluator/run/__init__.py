"""The two runs: a sweep over all configurations of a scenario, and one configuration with every request."""

from evaluator.run.request import AnyScenario
from evaluator.run.single import Simulation, simulate
from evaluator.run.sweeps import sweep, sweep_shard

__all__ = ["AnyScenario", "Simulation", "simulate", "sweep", "sweep_shard"]
