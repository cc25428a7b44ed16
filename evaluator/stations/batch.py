"""Servers that put the jobs waiting for them into batches: a vector index, an embedder, anything that serves several
queries in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluator.stations.contract import (
    ChunkJobs,
    JobColumns,
    RequestTimes,
    Station,
    Use,
    by_id,
    in_turn,
    order_of,
    out_of_turn,
    passed_on,
    ready_times,
    shape_of,
    use_without_devices,
)


@dataclass(frozen=True, eq=False)
class BatchServers:
    """``servers`` alike, each of which serves up to as many jobs at once as ``service_s`` has entries.

    ``service_s`` (size,): seconds of a batch of 1, 2, ... jobs; all jobs of a batch leave at its end. A free server
    starts as soon as a job is there, with all that wait. With ``max_wait_s`` it first waits for a full batch, until
    that long after the oldest waiting job came.
    """

    service_s: np.ndarray
    servers: int = 1
    max_wait_s: float = 0.0


def batch(name: str, servers: Callable[[int], BatchServers]) -> Station:
    """The station: ``servers`` are those of a configuration by its place in the chunk.

    Jobs are served in the order in which they come, those of one time in the order of their ids; jobs that come at the
    moment at which a batch starts are part of it. Of several free servers the one that is free for longest serves.
    """

    def serve(jobs: ChunkJobs) -> tuple[RequestTimes, Use]:
        served, use = serve_in_batches(name, jobs, [servers(config) for config in range(len(jobs))])
        return by_id(jobs, served), use

    return Station(name, serve)


@dataclass(frozen=True, eq=False)
class _Lanes:
    """A lane is a configuration and seed: (lane,) unless said otherwise."""

    ready_s: np.ndarray  # (lane, job) in order, behind the last job inf for as many as the largest batch
    service_s: np.ndarray  # (lane, size), from a batch of no job on
    most: np.ndarray  # jobs of the largest batch
    servers: np.ndarray
    max_wait_s: np.ndarray


def serve_in_batches(name: str, jobs: ChunkJobs, servers: Sequence[BatchServers]) -> tuple[JobColumns, Use]:
    """Serve the jobs of a chunk; ``servers`` are those of each configuration."""
    shape = configs, seeds, count = shape_of(jobs)
    ready_s = ready_times(jobs, rest=np.inf)
    order = order_of(jobs)
    waiting = in_turn(ready_s, order).reshape(configs * seeds, count)
    batches = _batches(_lanes(servers, waiting, seeds))
    came = np.isfinite(ready_s)
    scheduled_s, left_s, server = (out_of_turn(values.reshape(shape), order) for values in batches[:3])
    ready_s, scheduled_s, left_s = (np.where(came, values, 0.0) for values in (ready_s, scheduled_s, left_s))
    # Utilisation is of servers: a batch keeps one busy for as long as it takes, whatever its size.
    use = use_without_devices(
        name, jobs, np.array([float(of_config.servers) for of_config in servers]), batches[3].reshape(configs, seeds)
    )
    replica = np.where(came, server, 0).astype(np.int32)
    return passed_on(ready_s, scheduled_s, left_s, replica), use


def _lanes(servers: Sequence[BatchServers], ready_s: np.ndarray, seeds: int) -> _Lanes:
    most = np.array([len(of_config.service_s) for of_config in servers], dtype=np.int64)
    largest = most.max(initial=1)
    service_s = np.zeros((len(servers), largest + 1))
    for row, of_config in zip(service_s, servers, strict=True):
        row[1 : 1 + len(of_config.service_s)] = of_config.service_s
    # So that ``here + most - 1`` is always a place in the row: a batch that never gets full has infinity there, and
    # starts by its oldest job.
    behind = np.full((len(ready_s), largest), np.inf)
    return _Lanes(
        np.concatenate([ready_s, behind], axis=1),
        np.repeat(service_s, seeds, axis=0),
        np.repeat(most, seeds),
        np.repeat([of_config.servers for of_config in servers], seeds).astype(np.int64),
        np.repeat([of_config.max_wait_s for of_config in servers], seeds).astype(float),
    )


def _batches(lanes: _Lanes) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(start, end, server) of the batch of every job, (lane, job), and seconds served (lane,).

    The loop is over batches, the next one of all lanes at a time: the server that is free first takes it, once it is
    full or its first job has waited for long enough. What is known of a batch is written at its first job, and
    spread over the others when all is done.
    """
    rows, width = len(lanes.ready_s), lanes.ready_s.shape[1] - (lanes.service_s.shape[1] - 1)
    start_s, end_s = np.zeros((rows, width)), np.zeros((rows, width))
    server, first = np.zeros((rows, width), dtype=np.int32), np.zeros((rows, width), dtype=np.int64)
    free_s = np.where(np.arange(lanes.servers.max(initial=1)) < lanes.servers[:, None], 0.0, np.inf)
    position, busy_s = np.zeros(rows, dtype=np.int64), np.zeros(rows)
    lane = np.flatnonzero(np.isfinite(lanes.ready_s[:, 0]))
    while len(lane):
        here = position[lane]
        chosen = np.argmin(free_s[lane], axis=1)
        oldest_s = lanes.ready_s[lane, here]
        full_s = lanes.ready_s[lane, here + lanes.most[lane] - 1]
        # A batch starts when a server is free, and when it is full or its first job has waited for long enough.
        began_s = np.maximum(free_s[lane, chosen], np.minimum(oldest_s + lanes.max_wait_s[lane], full_s))
        size = _waiting(lanes, lane, here, began_s)
        took_s = lanes.service_s[lane, size]
        free_s[lane, chosen] = began_s + took_s
        start_s[lane, here], end_s[lane, here] = began_s, began_s + took_s
        server[lane, here], first[lane, here] = chosen, here
        busy_s[lane] += took_s
        position[lane] = here + size
        # Lanes that are through drop out, so that one with many batches does not carry the others along.
        lane = lane[np.isfinite(lanes.ready_s[lane, here + size])]
    # Jobs behind the first of a batch have 0 there, so that the running maximum is the first job of each one's batch.
    np.maximum.accumulate(first, axis=1, out=first)
    spread = (np.take_along_axis(values, first, axis=1) for values in (start_s, end_s, server))
    return *spread, busy_s  # type: ignore[return-value]


def _waiting(lanes: _Lanes, lane: np.ndarray, here: np.ndarray, now_s: np.ndarray) -> np.ndarray:
    """How many jobs from ``here`` on have come by ``now_s``, at most a full batch; by bisection, (lane,)."""
    fewest = np.zeros_like(here)
    # Powers of two from the largest down: after each the count is the largest multiple of the step that has come.
    step = 1 << (int(lanes.most.max()).bit_length() - 1)
    while step:
        more = fewest + step
        fits = more <= lanes.most[lane]
        fits &= lanes.ready_s[lane, here + np.minimum(more, lanes.most[lane]) - 1] <= now_s
        fewest = np.where(fits, more, fewest)
        step >>= 1
    return fewest
