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
    RunKey,
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
    alike: dict[tuple[int, int], list[tuple[RunKey, Jobs]]] = {}
    for run, run_jobs in by_run(jobs):
        plan = links[run[0]]
        for column in (times.arrival_s, times.scheduled_s, times.last_token_s):
            # First as if everything came at once, which holds where there is no link.
            column[run][run_jobs.id] = run_jobs.ready_s
        if plan is not None and run_jobs.origin is not None and len(run_jobs):
            alike.setdefault((id(plan), id(run_jobs.demand)), []).append((run, run_jobs))
    for runs in alike.values():
        plan = links[runs[0][0][0]]
        assert plan is not None
        _send(plan, runs, times, busy_s)
    times.first_token_s[...] = times.last_token_s
    replicas = np.array([0 if plan is None else plan.replicas for plan in links], dtype=float)
    return times, use_without_devices(name, jobs, replicas, busy_s)


def _send(plan: LinkPlan, runs: Sequence[tuple[RunKey, Jobs]], times: RequestTimes, busy_s: np.ndarray) -> None:
    """Send what runs of one demand ask of a link, as the rates of a sweep are: arrays are (run, job)."""
    origins = [jobs.origin for _, jobs in runs if jobs.origin is not None]
    served_s = np.stack([origin.served_s for origin in origins])
    ready_s = np.stack([jobs.ready_s for _, jobs in runs])
    tokens, layers = plan.tokens(runs[0][1].demand), plan.layers()
    service_s = np.broadcast_to(plan.service_s(tokens), ready_s.shape)
    if plan.others:  # what is sent depends on who sends it, and to whom
        ways = [plan.ways(origin.replica, jobs.chosen) for origin, (_, jobs) in zip(origins, runs, strict=True)]
        service_s = np.stack([plan.service_s(tokens, way) for way in ways])
        layers = np.stack([np.broadcast_to(plan.layers(way), way.shape) for way in ways])
    # Layer by layer KV is sent while the rest of the prompt is computed: the link may begin before the prefill
    # has ended, by as much as the layers before the last one take.
    may_s = ready_s - plan.head_start_s(service_s, served_s, layers)
    start_s = _starts(runs, may_s, service_s) if plan.shared else may_s
    # The latency is added behind the queue: bytes of the next request follow while these travel.
    left_s = start_s + service_s + plan.latency_s
    for number, (run, jobs) in enumerate(runs):
        times.scheduled_s[run][jobs.id], times.last_token_s[run][jobs.id] = start_s[number], left_s[number]
        times.replica[run][jobs.id] = origins[number].replica
        busy_s[run] = service_s[number].sum()


def _starts(runs: Sequence[tuple[RunKey, Jobs]], may_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """When each job starts, (run, job), where every replica has a link of its own."""
    start_s = single_server(may_s, service_s)  # most often: one replica, first come, first served
    for number, (_, jobs) in enumerate(runs):
        assert jobs.origin is not None
        if not jobs.origin.replica.any() and in_order(jobs.id, may_s[number]):
            continue
        # By replica, and within each in the order in which its link may begin.
        order = np.lexsort((jobs.id, may_s[number], jobs.origin.replica))
        edges = np.flatnonzero(np.diff(jobs.origin.replica[order])) + 1
        for served in np.split(order, edges):
            start_s[number, served] = single_server(may_s[number, served], service_s[number, served])
    return start_s
