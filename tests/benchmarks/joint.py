"""Requests per second of replicas that run together: routers that look at them, closed loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from evaluator.device import OF_LOOPS, compiled, configure
from evaluator.reference import Limits, Request, simulate
from evaluator.routing import COUNTERS, ROUTERS, Sent, assign, stream
from evaluator.stations.engine import LaneResult, joint
from evaluator.stations.engine.preemptive import NO_COUNTER, Cluster, RouterChoices
from tests.benchmarks.engine import DENSE, preemptive_input
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of, cores, in_threads
from tests.benchmarks.workload import KV_TOKENS, MAX_NUM_SEQS, Work, work

REPLICAS = 8
SHORT_OF_KV = {"on_demand": True, "kv": 0.2}
RUNS: dict[str, dict[str, Any]] = {
    "least_outstanding": {"router": "least_outstanding"},
    "least_work": {"router": "least_work"},
    "least_kv, on demand, a fifth of the KV": {"router": "least_kv", "rules": SHORT_OF_KV},
    "round_robin, 256 users": {"router": "round_robin", "users": 256},
    "least_outstanding, 8 ranks in lockstep": {"router": "least_outstanding", "ranks": 8},
    "least_work, 8,000 requests": {"router": "least_work", "lanes": 32, "requests": 8_000},
    "least_work, 32 replicas, 8,000 requests": {"replicas": 32, "router": "least_work", "lanes": 32, "requests": 8_000},
    "least_work, 32 replicas, 100,000 requests": {
        "replicas": 32, "router": "least_work", "lanes": 4, "requests": 100_000
    },
}  # fmt: skip


@benchmark("joint")
def together(quick: bool) -> Iterator[Row]:
    """Requests/s of 256 lanes of 8 replicas that run together x 1,000 requests; each request counts once."""
    configure()
    for label, run in RUNS.items():
        if quick and run.get("requests", 0) > 10_000:
            continue
        given = _work(run.get("replicas", REPLICAS), run.get("lanes", 256), run.get("requests", 1_000))
        jobs = _jobs(given, **{name: value for name, value in run.items() if name not in ("lanes", "requests")})
        took = best_of(lambda jobs=jobs: in_threads(_run, jobs, cores()))
        served = given.arrival_s.size
        note = f"{served / took.cpu_s / 1e6:.3g} M per core-second"
        yield Row(label, served / took.wall_s / 1e6, "M requests/s", note)
    yield from _against_reference()


def _work(replicas: int, lanes: int, requests: int) -> Work:
    """That of one replica with arrivals that many times as fast."""
    given = work(DENSE, lanes=lanes, requests=requests)
    return replace(given, arrival_s=given.arrival_s / replicas)


def _jobs(
    given: Work,
    router: str,
    replicas: int = REPLICAS,
    users: int = 0,
    ranks: int = 1,
    rules: dict[str, Any] | None = None,
) -> list[Any]:
    """Calls of at most 32 lanes. ``ranks``: so many of the replicas are data-parallel ranks in lockstep."""
    lanes, requests, structure = preemptive_input(given, **(rules or {}))
    count, width = requests.arrival_s.shape
    record = ROUTERS[router]
    assigned = np.zeros((count, 1, width), np.int32)
    if record.counts is None:
        assigned[:, 0, :-1] = assign(router, Sent(given.prompt_tokens, replicas, stream(0)))
    if users:
        lanes = lanes._replace(limits=lanes.limits._replace(users=np.full(count, users, np.int32)))
    counter = NO_COUNTER if record.counts is None else COUNTERS.index(record.counts)
    locked = None if ranks == 1 else np.full(count, ranks, np.int32)
    chosen = RouterChoices(np.full((count, 1), counter, np.int32), assigned)
    lanes = lanes._replace(cluster=Cluster(np.full(count, replicas, np.int32), chosen, locked))
    size = min(32, -(-count // cores()))
    pieces = [slice(start, start + size) for start in range(0, count, size)]
    sees_kv = record.counts == "kv_units" and structure.preempts
    # Several replicas count step by step what decodes take of KV (``plan.simulators.grows_by_blocks``).
    structure = structure._replace(replicas=replicas, lockstep=ranks > 1, kv_seen=sees_kv, block_tokens=0)
    return [(*jax.tree.map(lambda x, piece=piece: x[piece], (lanes, requests)), structure) for piece in pieces]


def _run(job: Any) -> LaneResult:
    run = compiled(joint.run_lanes, OF_LOOPS, "structure", "vectorise")  # as a sweep compiles it
    return jax.block_until_ready(run(*job))


def _against_reference() -> Iterator[Row]:
    """The same lane by both; the busiest of four."""
    given = _work(REPLICAS, 4, 1_000)
    columns = (given.prompt_tokens, given.prompt_tokens, given.output_tokens, given.kv_units)
    rows = zip(given.arrival_s[-1].tolist(), *(column.tolist() for column in columns), strict=True)
    requests = [Request(index, *row) for index, row in enumerate(rows)]
    limits = Limits(MAX_NUM_SEQS, given.max_num_batched_tokens, KV_TOKENS // given.kv.block_tokens)
    simulate(given.costs[-1], given.policy, limits, requests, replicas=REPLICAS, router="least_work")
    ends = np.array([request.last_token_s for request in requests])
    fast = np.concatenate([np.asarray(_run(job).last_token_s) for job in _jobs(given, "least_work")])[-1]
    yield Row("largest relative difference of completion times", float(np.max(np.abs(fast / ends - 1))), "")
