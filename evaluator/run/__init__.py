"""The two runs: a sweep over all configurations of a scenario, and one configuration with every request.

``sweeps`` is of all configurations, its ``rows`` chunk by chunk; ``single`` of one. Both take a ``request`` in any
form, and know ``plan_figures`` before anything runs.
"""

from evaluator.run.request import AnyScenario
from evaluator.run.single import Simulation, simulate
from evaluator.run.sweeps import sweep, sweep_shard

__all__ = ["AnyScenario", "Simulation", "simulate", "sweep", "sweep_shard"]
