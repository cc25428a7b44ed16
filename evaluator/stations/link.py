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
    by_run,
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
    times, busy_s = RequestTimes.empty(table_shape(jobs)), np.zeros(shape_of(jobs)[:2])
    for run, run_jobs in by_run(jobs):
        plan = links[run[0]]
        for column in (times.arrival_s, times.scheduled_s, times.last_token_s):
            # First as if everything came at once, which holds where there is no link.
            column[run][run_jobs.id] = run_jobs.ready_s
        if plan is None or run_jobs.origin is None or len(run_jobs) == 0:
            continue
        way = plan.ways(run_jobs.origin.replica, run_jobs.chosen) if plan.others else None
        service_s = plan.service_s(plan.tokens(run_jobs.demand), way)
        # Layer by layer KV is sent while the rest of the prompt is computed: the link may begin before the prefill
        # has ended, by as much as the layers before the last one take.
        may_s = run_jobs.ready_s - plan.head_start_s(service_s, run_jobs.origin.served_s, plan.layers(way))
        start_s = _starts(run_jobs, may_s, service_s) if plan.shared else may_s
        times.scheduled_s[run][run_jobs.id] = start_s
        times.replica[run][run_jobs.id] = run_jobs.origin.replica
        # The latency is added behind the queue: bytes of the next request follow while these travel.
        times.last_token_s[run][run_jobs.id] = start_s + service_s + plan.latency_s
        busy_s[run] = service_s.sum()
    times.first_token_s[...] = times.last_token_s
    replicas = np.array([0 if plan is None else plan.replicas for plan in links], dtype=float)
    return times, use_without_devices(name, jobs, replicas, busy_s)


def _starts(jobs: Jobs, may_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """When each job starts, (job,), where every replica has a link of its own."""
    assert jobs.origin is not None
    if not jobs.origin.replica.any() and in_order(jobs.id, may_s):  # most often: one replica, first come, first served
        return single_server(may_s, service_s)
    start_s = np.empty_like(may_s)
    # By replica, and within each in the order in which its link may begin.
    order = np.lexsort((jobs.id, may_s, jobs.origin.replica))
    edges = np.flatnonzero(np.diff(jobs.origin.replica[order])) + 1
    for served in np.split(order, edges):
        start_s[served] = single_server(may_s[served], service_s[served])
    return start_s
