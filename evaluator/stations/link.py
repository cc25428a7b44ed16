"""The links between a prefill and a decode side as a station: the KV of every request goes over one of them.

It takes no part in the admission: a prefill replica frees the KV of a request with its first token, and a decode pool
without room makes requests wait in its own queue. Where a prefill side holds its KV until then
(``transfer.backpressure``), the pools run in one loop, and their link with them (``engine.joint.transfers``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluator.metrics.use import Use
from evaluator.plan.link import LinkPlan
from evaluator.stations.contract import (
    ChunkJobs,
    RequestTimes,
    Station,
    each,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.stations.queue import single_server
from evaluator.traffic.jobs import Jobs, in_order


def link(name: str, links: Sequence[LinkPlan | None]) -> Station:
    """The station: ``links`` are those of the configurations of the chunk; over None everything comes at once.

    Jobs come from an engine. Those that a link could begin at one time go in the order of their ids.
    """
    return Station(name, lambda jobs: _serve(name, jobs, links))


def _serve(name: str, jobs: ChunkJobs, links: Sequence[LinkPlan | None]) -> tuple[RequestTimes, Use]:
    found, busy_s = RequestTimes.empty(table_shape(jobs)), np.zeros(shape_of(jobs)[:2])
    for at, one in each(jobs):
        plan = links[at[0]]
        for column in (found.arrival_s, found.scheduled_s, found.last_token_s):
            column[at][one.id] = one.ready_s
        if plan is None or one.origin is None or len(one) == 0:
            continue
        way = plan.ways(one.origin.replica, one.chosen) if plan.others else None
        service_s = plan.service_s(plan.tokens(one.demand), way)
        may_s = one.ready_s - plan.head_start_s(service_s, one.origin.served_s, plan.layers(way))
        start_s = _starts(one, may_s, service_s) if plan.shared else may_s
        found.scheduled_s[at][one.id] = start_s
        found.replica[at][one.id] = one.origin.replica
        found.last_token_s[at][one.id] = start_s + service_s + plan.latency_s
        busy_s[at] = service_s.sum()
    found.first_token_s[...] = found.last_token_s
    replicas = np.array([0 if plan is None else plan.replicas for plan in links], dtype=float)
    return found, use_without_devices(name, jobs, replicas, busy_s)


def _starts(jobs: Jobs, may_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """When each job starts, (job,), where every replica has a link of its own."""
    assert jobs.origin is not None
    if not jobs.origin.replica.any() and in_order(jobs.id, may_s):  # most often: one replica, first come, first served
        return single_server(may_s, service_s)
    start_s = np.empty_like(may_s)
    order = np.lexsort((jobs.id, may_s, jobs.origin.replica))
    edges = np.flatnonzero(np.diff(jobs.origin.replica[order])) + 1
    for served in np.split(order, edges):
        start_s[served] = single_server(may_s[served], service_s[served])
    return start_s
