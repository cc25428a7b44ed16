"""A run as a trace for Perfetto or chrome://tracing: what every replica and every request did, and when.

The Trace Event Format (Google, "Trace Event Format", 2016): a process for each replica, with its iterations on a
track (in a pipeline one for each batch in flight) and counters for its batch, its queue and its KV cache; and a process
with the requests as asynchronous slices, which hold one for each stage: waiting, prefill, decode, or the stages of
their pipeline with the waits before them. Times are microseconds.

Perfetto takes the numbers for those of an operating system. So none is 0 (the idle process), the first track of a
process has the number of the process (its main thread, shown first), and no two tracks share a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import numpy as np

from evaluator.metrics import Outcomes
from evaluator.reference import Iteration
from evaluator.simulation.times import spans_of
from evaluator.stations.contract import StationVisit

REQUESTS = 1  # the process of the requests
SPAN = 1000  # numbers for each replica: replica r is process SPAN * (r + 1), and its tracks count from there
STAGES = ("waiting", "prefill", "decode")


class PerfettoTrace:
    """Collects the iterations of one seed; a run of alike ones is one slice."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._lanes: dict[int, list[dict[str, Any]]] = {}  # by process: the last slice of each of its tracks
        self._counters: dict[tuple[int, str], dict[str, int]] = {}  # as last written

    def add(self, replica: int, iteration: Iteration) -> None:
        """After an iteration, or a leap over several. Replicas are numbered pool after pool."""
        pid, start, end = _process(replica), _us(iteration.start_s), _us(iteration.end_s)
        given = {
            "iterations": iteration.iterations,
            "decodes": len(iteration.decodes),
            "prompts": len(iteration.chunks),
            "prompt_tokens": sum(tokens for _, tokens in iteration.chunks),
            "preempted": len(iteration.preempted),
        }
        name = "decode" if not iteration.chunks else "mixed" if iteration.decodes else "prefill"
        args = {key: value for key, value in given.items() if value}
        if not self._merged(pid, start, end, args):
            self._idle_until(pid, start)
            self._count(pid, start, "batch", {"decodes": given["decodes"], "prompts": given["prompts"]})
            slice_ = {"name": name, "ph": "X", "pid": pid, "ts": start, "dur": round(end - start, 3), "args": args}
            self._place(pid, slice_)
            self._events.append(slice_)
        self._count(pid, end, "waiting", {"requests": iteration.waiting})
        self._count(pid, end, "kv", {"units": iteration.kv_units})

    def _merged(self, pid: int, start: float, end: float, args: dict[str, int]) -> bool:
        """Whether it goes on with what a track did last: as many decodes and nothing else, at once."""
        # Batches with prompts differ in what they compute, and have a slice each.
        if len(args) > 2 or "decodes" not in args:
            return False
        for last in self._lanes.get(pid, ()):
            same = last["name"] == "decode" and last["args"].get("decodes") == args["decodes"]
            # No longer apart than one of its iterations took: else the replica was idle between the two.
            if same and 0 <= start - _end(last) <= last["dur"] / last["args"]["iterations"]:
                last["dur"] = round(end - last["ts"], 3)
                last["args"]["iterations"] += args["iterations"]
                return True
        return False

    def _place(self, pid: int, slice_: dict[str, Any]) -> None:
        """On the first track that is free: a pipeline has several batches in flight, and slices must not overlap."""
        lanes = self._lanes.setdefault(pid, [])
        for number, last in enumerate(lanes):
            if _end(last) <= slice_["ts"]:
                slice_["tid"], lanes[number] = pid + number, slice_
                return
        slice_["tid"] = pid + len(lanes)
        lanes.append(slice_)

    def _idle_until(self, pid: int, start: float) -> None:
        """Counters fall to nothing where a replica had nothing to do."""
        lanes = self._lanes.get(pid)
        end = max(map(_end, lanes)) if lanes else start
        if end < start:
            self._count(pid, end, "batch", {"decodes": 0, "prompts": 0})
            self._count(pid, end, "waiting", {"requests": 0})
            self._count(pid, end, "kv", {"units": 0})

    def _count(self, pid: int, time_us: float, name: str, values: dict[str, int]) -> None:
        """A counter keeps its value until the next event, so one that has not changed need not be written."""
        if self._counters.get((pid, name)) != values:
            self._counters[pid, name] = values
            self._events.append({"name": name, "ph": "C", "pid": pid, "ts": time_us, "args": values})

    def events(
        self,
        outcomes: Outcomes,
        pools: Sequence[tuple[str, int]],
        station_visits: Sequence[StationVisit] = (),
        seed: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """All events of the run: names of the tracks, iterations and counters, requests.

        ``pools`` are names and replicas in the order in which replicas are numbered, ``station_visits`` those of a
        pipeline.
        """
        yield _name("process_name", REQUESTS, REQUESTS, "requests")
        yield _name("thread_name", REQUESTS, REQUESTS, "requests")
        of_pools = [(name, replica) for name, replicas in pools for replica in range(replicas)]
        for number, (pool, replica) in enumerate(of_pools):
            pid = _process(number)
            track = f"{pool} replica {replica}" if len(pools) > 1 else f"replica {replica}"
            yield _name("process_name", pid, pid, track)
            yield _name("thread_name", pid, pid, "iterations")
            for lane in range(1, len(self._lanes.get(pid, ()))):
                yield _name("thread_name", pid, pid + lane, f"batch in flight {lane + 1}")
            # Counters fall to 0 at the last end of each replica.
            self._idle_until(pid, math.inf)
        yield from self._events
        yield from _request_events(outcomes, station_visits, seed)


def write_trace(events: Iterator[dict[str, Any]], file: TextIO) -> None:
    """One event per line, so that a trace of any length can be written, and read, piece by piece."""
    file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    for number, event in enumerate(events):
        # NaN and infinity are no JSON: better no file than one that no viewer opens.
        file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
    file.write("\n]}\n")


def _end(slice_: dict[str, Any]) -> float:
    # Rounded as starts are: else the sum may lie behind the start that it is equal to, and ``_place`` would open a
    # track.
    return round(slice_["ts"] + slice_["dur"], 3)


def _us(seconds: float) -> float:
    # To the nanosecond: Perfetto counts in no smaller unit.
    return round(1e6 * float(seconds), 3)


def _process(replica: int) -> int:
    return SPAN * (replica + 1)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _request_events(outcomes: Outcomes, station_visits: Sequence[StationVisit], seed: int) -> Iterator[dict[str, Any]]:
    """A slice for each request and in it one for each stage that takes time.

    They share an id, and so a track; it is local to their process, else Perfetto puts them outside of all processes.
    """
    names = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
    times = np.array([getattr(outcomes.times, name)[0, seed] for name in names]).T.tolist()
    counts = outcomes.tokens.of_config(0)
    tokens = np.array([counts.prompt_tokens[seed], counts.output_tokens[seed]]).T.tolist()
    replicas = outcomes.times.replica[0, seed].tolist()
    visits = _visits(station_visits, outcomes.times.arrival_s.shape, seed) if station_visits else None
    for request, (edges, (prompt, output), replica) in enumerate(zip(times, tokens, replicas, strict=True)):
        common = {"cat": "request", "id2": {"local": str(request)}, "pid": REQUESTS, "tid": REQUESTS}
        args = {"request": request, "replica": replica, "prompt_tokens": prompt, "output_tokens": output}
        yield {"name": "request", "ph": "b", "ts": _us(edges[0]), **common, "args": args}
        stages = zip(STAGES, edges[:-1], edges[1:], strict=True) if visits is None else visits[request]
        for stage, start, end in stages:
            if end > start:
                yield {"name": stage, "ph": "b", "ts": _us(start), **common}
                yield {"name": stage, "ph": "e", "ts": _us(end), **common}
        yield {"name": "request", "ph": "e", "ts": _us(edges[-1]), **common}


def _visits(
    station_visits: Sequence[StationVisit], shape: tuple[int, int, int], seed: int
) -> list[list[tuple[str, float, float]]]:
    """(name, start, end) of every wait and every service of each request, in their order."""
    spans: list[list[tuple[str, float, float]]] = [[] for _ in range(shape[-1])]
    for visit in station_visits:
        for span in spans_of(visit, shape):
            times = np.array([span.came_s[0, seed], span.began_s[0, seed], span.left_s[0, seed]])
            for request in np.flatnonzero(~np.isnan(times[0])).tolist():
                came, began, left = times[:, request].tolist()
                spans[request] += [(f"waiting {span.name}", came, began), (span.name, began, left)]
    return spans
