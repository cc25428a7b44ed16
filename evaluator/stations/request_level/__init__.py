"""The request-level engine of BestServe: one event per batch of prompts and one per decode, instead of per iteration.

``prefill`` and ``decode`` are the two sides of a disaggregated deployment (algorithms 2 and 3), ``collocated`` serves
both on the same instances (algorithms 4 to 7); ``run`` maps them over lanes. ``evaluator.reference.request_level`` has
the same algorithms in plain Python, and says where they depart from the paper's text and why.
"""

from evaluator.stations.request_level.lane import Departures, RequestLane, RequestLevelStructure, ServedRequests
from evaluator.stations.request_level.run import run_collocated, run_decode, run_prefill

__all__ = [
    "Departures",
    "RequestLane",
    "RequestLevelStructure",
    "ServedRequests",
    "run_collocated",
    "run_decode",
    "run_prefill",
]
