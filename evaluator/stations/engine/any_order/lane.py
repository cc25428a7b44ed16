"""What a lane of the general program is given beyond ``Lane``: rules that need queues in any order."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.iteration import Array, IterationCost
from evaluator.cost.kv import KvUnits
from evaluator.stations.engine.common.lane import Lane


def every_token(kv: KvUnits) -> Array:
    """Whether every token takes a unit: then it need not be noted who needs one when."""
    return (kv.block_tokens == 1.0) & (kv.window == 0.0) & (kv.sequence == 0.0)


class Rules(NamedTuple):
    """Scheduling beyond first come, first served with all KV reserved; numbers, as in ``Policy``."""

    on_demand: Array  # KV is given as tokens come; who was admitted last is preempted where it runs out
    whole_kv: Array  # on_demand: a prompt gets the KV of its whole length on admission (Sarathi)
    watermark_units: Array  # on_demand: an admission leaves this much free
    long_prefill_tokens: Array  # most prompt tokens of one request in an iteration; infinite: no bound
    least_work: Array  # who waits with the fewest tokens left goes first
    look_every: Array  # LightLLM: decode iterations between two looks at who waits, int32; 0: another policy
    kv: KvUnits


class GeneralLane(NamedTuple):
    """One replica. ``pipeline_ranks``: the cost of each pipeline rank; that of ``lane`` is not used.

    ``kv_units`` of requests and lane are without what is shared.
    """

    lane: Lane
    pipeline_ranks: tuple[IterationCost, ...]
    rules: Rules
    shared_units: Array  # (request + 1,) int32, on_demand: units of a request's prefix that stay and are not counted


class GeneralStructure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers
    pipeline_ranks: int  # pipeline ranks, and batches in flight
    peaks: bool  # some lane admits by its future peak (LightLLM); with one rank only
