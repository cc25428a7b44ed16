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
    AlikeRuns,
    ChunkJobs,
    RequestTimes,
    Station,
    alike_runs,
    runs_by,
    shape_of,
    table_shape,
    use_without_devices,
)
from evaluator.stations.queue import single_server


def link(name: str, links: Sequence[LinkPlan | None]) -> Station:
    """The station: ``links`` are those of the configurations of the chunk; over None everything comes at once.

    Jobs come from an engine. Those that a link could begin at one time go in the order of their ids.
    """
    return Station(name, lambda jobs: _serve(name, jobs, links))


def _serve(name: str, jobs: ChunkJobs, links: Sequence[LinkPlan | None]) -> tuple[RequestTimes, Use]:
    times, busy_s = RequestTimes.empty(table_shape(jobs)), np.zeros(shape_of(jobs)[:2])
    for asked in alike_runs(jobs):
        sent = _by_link(asked, links)
        asked.put(times.arrival_s, asked.ready_s)
        if not any(runs is asked for _, runs in sent):
            # First as if everything came at once, which holds where there is no link.
            asked.put(times.scheduled_s, asked.ready_s)
            asked.put(times.last_token_s, asked.ready_s)
        for plan, runs in sent:
            _send(plan, runs, times, busy_s)
    times.first_token_s[...] = times.last_token_s
    replicas = np.array([0 if plan is None else plan.replicas for plan in links], dtype=float)
    return times, use_without_devices(name, jobs, replicas, busy_s)


def _by_link(asked: AlikeRuns, links: Sequence[LinkPlan | None]) -> list[tuple[LinkPlan, AlikeRuns]]:
    """The runs whose jobs go over a link, those of one link together."""
    over = [
        (run, run_jobs)
        for run, run_jobs in zip(asked.runs, asked.jobs, strict=True)
        if links[run[0]] is not None and run_jobs.origin is not None and len(run_jobs)
    ]
    by_plan = runs_by(lambda run, _: id(links[run[0]]), over)
    # What is known of the runs already serves where all of them go over one link.
    sent = [asked if len(runs.runs) == len(asked.runs) else runs for runs in by_plan]
    return [(plan, runs) for runs in sent if (plan := links[runs.runs[0][0]]) is not None]


def _send(plan: LinkPlan, asked: AlikeRuns, times: RequestTimes, busy_s: np.ndarray) -> None:
    """Send what runs ask of a link: arrays are (run, job)."""
    origins = [jobs.origin for jobs in asked.jobs if jobs.origin is not None]
    served_s = np.stack([origin.served_s for origin in origins])
    tokens, layers = plan.tokens(asked.demand), plan.layers()
    service_s = plan.service_s(tokens)  # (job,): the same in all runs
    if plan.others:  # what is sent depends on who sends it, and to whom
        ways = [plan.ways(origin.replica, jobs.chosen) for origin, jobs in zip(origins, asked.jobs, strict=True)]
        service_s = np.stack([plan.service_s(tokens, way) for way in ways])
        layers = np.stack([np.broadcast_to(plan.layers(way), way.shape) for way in ways])
    # Layer by layer KV is sent while the rest of the prompt is computed: the link may begin before the prefill
    # has ended, by as much as the layers before the last one take.
    may_s = asked.ready_s - plan.head_start_s(service_s, served_s, layers)
    replica = np.stack([origin.replica for origin in origins])
    start_s = _starts(asked.jobs[0].id, replica, may_s, service_s) if plan.shared else may_s
    asked.put(times.scheduled_s, start_s)
    # The latency is added behind the queue: bytes of the next request follow while these travel.
    asked.put(times.last_token_s, start_s + service_s + plan.latency_s)
    asked.put(times.replica, replica)
    busy_s[tuple(np.transpose(asked.runs))] = service_s.sum(axis=-1)


def _starts(ids: np.ndarray, replica: np.ndarray, may_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """When each job starts, (run, job), where every replica has a link of its own; ``service_s`` may be (job,)."""
    start_s = single_server(may_s, service_s)  # most often: one replica, first come, first served
    come_in_order = (may_s[:, 1:] >= may_s[:, :-1]).all(axis=-1) & bool((ids[1:] > ids[:-1]).all())
    service_s = np.broadcast_to(service_s, may_s.shape)
    for run in np.flatnonzero(~come_in_order | replica.any(axis=-1)):
        # By replica, and within each in the order in which its link may begin.
        order = np.lexsort((ids, may_s[run], replica[run]))
        edges = np.flatnonzero(np.diff(replica[run][order])) + 1
        for served in np.split(order, edges):
            start_s[run, served] = single_server(may_s[run, served], service_s[run, served])
    return start_s
