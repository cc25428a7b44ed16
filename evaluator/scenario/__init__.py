"""Scenarios: what a YAML file asks, checked, with the points of its sweep.

*A file.* ``load`` makes a ``scenario`` of it: keys by ``key_paths``, ``short_names`` and ``set_keys``, what a script
starts by ``from_command``, what an engine does where nothing is said by ``engine_defaults``.

*Its sections.* ``workload``: ``arrivals``, ``lengths``, ``sessions``, ``reasoning``, ``classes``, ``adapters``,
``token_sampling``, ``trace``. ``deployment``: ``pools``, ``routers``, ``transfer``, ``offload``, ``autoscaling``,
``failures``, ``feed_forward_apart``, ``host``. ``pipeline``. ``objectives``.

*Its sweep.* ``axes`` as they are written (``axis_values``, ``design_table``, ``sampling``; ``shadowed_keys`` are
refused), ``sweep`` checked, each value read by ``swept_fields``; ``grid`` has the points that ``conditions`` leave,
``encoded`` their values.

*For editors.* ``schema`` and ``python_types`` follow from the keys.
"""

from evaluator.scenario.arrivals import Arrivals
from evaluator.scenario.classes import RequestClass, all_objectives
from evaluator.scenario.deployment import STAGE, Batching, Deployment, KvCache, Pool
from evaluator.scenario.engine_defaults import scheduler_defaults, with_engine_defaults
from evaluator.scenario.grid import Grid, Point, expand, size
from evaluator.scenario.lengths import Lengths, ModelShare
from evaluator.scenario.load import load_scenario
from evaluator.scenario.objectives import Budget, Demand, Objective
from evaluator.scenario.pipeline import Stage
from evaluator.scenario.pools import answers_alone, pipeline_problem, pools_of, stage_pools_of
from evaluator.scenario.reasoning import Reasoning
from evaluator.scenario.routers import Routers
from evaluator.scenario.scenario import Axis, Scenario
from evaluator.scenario.sessions import Agents, Exponential, Geometric, Sessions
from evaluator.scenario.transfer import LinkFigures, Transfer
from evaluator.scenario.workload import Auto, Workload

__all__ = [
    "STAGE",
    "Agents",
    "Arrivals",
    "Auto",
    "Axis",
    "Batching",
    "Budget",
    "Demand",
    "Deployment",
    "Exponential",
    "Geometric",
    "Grid",
    "KvCache",
    "Lengths",
    "LinkFigures",
    "ModelShare",
    "Objective",
    "Point",
    "Pool",
    "Reasoning",
    "RequestClass",
    "Routers",
    "Scenario",
    "Sessions",
    "Stage",
    "Transfer",
    "Workload",
    "all_objectives",
    "answers_alone",
    "expand",
    "load_scenario",
    "pipeline_problem",
    "pools_of",
    "scheduler_defaults",
    "size",
    "stage_pools_of",
    "with_engine_defaults",
]
