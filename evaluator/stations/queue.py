"""A first-come-first-served queue in front of identical servers, with service times that are known beforehand."""

from __future__ import annotations

from collections.abc import Callable

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
    use_without_devices,
)
from evaluator.stations.delay import Times, times_of


def queue(name: str, times: Times, servers: Callable[[int], int] = lambda config: 1) -> Station:
    """The station: ``times`` are service times, ``servers`` the servers of a configuration by its place in the chunk.

    Jobs of one time are served in the order of their ids.
    """

    def serve(jobs: ChunkJobs) -> tuple[RequestTimes, Use]:
        count = np.array([servers(config) for config in range(len(jobs))], dtype=np.int64)
        served, use = serve_in_turn(name, jobs, times_of(jobs, times), count)
        return by_id(jobs, served), use

    return Station(name, serve)


def serve_in_turn(name: str, jobs: ChunkJobs, service_s: np.ndarray, count: np.ndarray) -> tuple[JobColumns, Use]:
    """Serve the jobs of a chunk; ``service_s`` as of ``times_of``, ``count`` (config,) are the servers."""
    ready_s = ready_times(jobs, rest=np.inf)
    order = order_of(jobs)
    waiting, service = (in_turn(values, order) for values in (ready_s, service_s))
    if (count == 1).all():
        # One server, the most frequent case, is a cumulative sum; several need a loop over the jobs.
        start, server = single_server(waiting, service), np.zeros(waiting.shape, dtype=np.int32)
    else:
        start, server = _several(waiting, service, count)
    scheduled_s, replica = (out_of_turn(values, order) for values in (start, server))
    # Places behind the last job of a run, which have no arrival, become 0: infinities would spoil
    # sums and maxima of tables.
    came = np.isfinite(ready_s)
    if not came.all():
        ready_s, scheduled_s = np.where(came, ready_s, 0.0), np.where(came, scheduled_s, 0.0)
    left_s = scheduled_s + service_s
    use = use_without_devices(name, jobs, count.astype(float), service_s.sum(axis=-1))
    return passed_on(ready_s, scheduled_s, left_s, replica), use


def single_server(ready_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """When the services of one server start, (..., job) in order of arrival.

    Lindley (1952): a job starts at its arrival, or when all work that came since some earlier arrival is done; so the
    start less the work before is the running maximum of the arrivals less the work before them.
    """
    before = np.cumsum(service_s, axis=-1) - service_s
    # Once more against the arrival: taking `before` away and adding it again may round below it.
    return np.maximum(np.maximum.accumulate(ready_s - before, axis=-1) + before, ready_s)


def _several(ready_s: np.ndarray, service_s: np.ndarray, servers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and servers, (config, seed, job): every job in turn takes the server that is free first.

    Kiefer and Wolfowitz (1955). The loop is over the jobs, for all configurations and seeds at a time.
    """
    configs, seeds, jobs = ready_s.shape
    lanes = configs * seeds
    # Job by job a row of all lanes, which NumPy takes as it is.
    by_job = [np.ascontiguousarray(values.reshape(lanes, jobs).T) for values in (ready_s, service_s)]
    free_s = np.where(np.arange(servers.max())[:, None] < np.repeat(servers, seeds), 0.0, np.inf)  # (server, lane)
    flat_s, lane = free_s.reshape(-1), np.arange(lanes)
    start, server = np.empty((jobs, lanes)), np.empty((jobs, lanes), dtype=np.int64)
    for began_s, chosen, comes_s, takes_s in zip(start, server, *by_job, strict=True):
        # Of several free ones the one of the lowest number, as in the reference's heap of (since when, number).
        np.argmin(free_s, axis=0, out=chosen)
        place = chosen * lanes + lane
        np.maximum(flat_s[place], comes_s, out=began_s)
        flat_s[place] = began_s + takes_s
    start, server = (np.ascontiguousarray(values.T).reshape(ready_s.shape) for values in (start, server))
    return start, server.astype(np.int32)
