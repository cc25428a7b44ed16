"""The Chrome trace of a run, read back as the Trace Event Format says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from evaluator.run import simulate
from tests.scenario.build import scenario
from tests.simulation.runs import RUNS

METADATA, SLICE, COUNTER, BEGIN, END = "M", "X", "C", "b", "e"
FIELDS = {
    METADATA: {"name", "pid", "tid", "args"},
    SLICE: {"name", "pid", "tid", "ts", "dur", "args"},
    COUNTER: {"name", "pid", "ts", "args"},
    BEGIN: {"name", "pid", "tid", "ts", "id2", "cat"},
    END: {"name", "pid", "tid", "ts", "id2", "cat"},
}


@pytest.fixture(scope="module", params=list(RUNS))
def traced(request, traced_run):
    """Events, requests of the first seed, summary."""
    path, run = traced_run(request.param)
    first = run.requests[run.requests["seed"] == run.requests["seed"].min()]
    return json.loads(path.read_text())["traceEvents"], first.set_index("request"), run.summary


def of(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_every_event_has_the_fields_of_its_phase(traced):
    events, _, _ = traced
    for event in events:
        assert set(event) >= FIELDS[event["ph"]] | {"ph"}
        assert event.get("ts", 0.0) >= 0 and event.get("dur", 0.0) >= 0
    assert all(isinstance(value, int) for event in of(events, COUNTER) for value in event["args"].values())


def test_tracks_are_named_and_slices_on_them_do_not_overlap(traced):
    events, requests, _ = traced
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in of(events, METADATA)}
    processes = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    threads = {(pid, tid): name for (kind, pid, tid), name in names.items() if kind == "thread_name"}
    tracks = defaultdict(list)
    for event in of(events, SLICE):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(processes.values()) == {"requests"} | {f"replica {replica}" for replica in requests["replica"]}
    assert {event["pid"] for event in events} == set(processes)
    assert set(tracks) <= set(threads) and {threads[key] for key in set(threads) - set(tracks)} == {"requests"}
    for slices in map(sorted, tracks.values()):
        assert all(end <= start + 2e-3 for (_, end), (start, _) in pairwise(slices))


def test_numbers_are_those_of_an_operating_system(traced):
    """Perfetto: none is 0, the first track of a process has its number, and no other process has that of a track."""
    events, _, _ = traced
    named = {(event["tid"], event["pid"]): event["args"]["name"] for event in of(events, METADATA)}
    tracks = [tid for tid, _ in named]
    assert 0 not in tracks and len(set(tracks)) == len(tracks)
    assert all(tid == pid for (tid, pid), name in named.items() if name == "iterations")
    assert {pid for _, pid in named} <= set(tracks)


def test_iterations_and_tokens_are_all_there(traced):
    events, requests, summary = traced
    args = [event["args"] for event in of(events, SLICE)]
    decoded = sum(one["iterations"] * one.get("decodes", 0) for one in args)
    generated = (requests["output_tokens"] - 1).sum()
    preemptions = sum(one.get("preempted", 0) for one in args)
    # A prompt that is computed anew after a preemption gives its next token as it did the first.
    assert generated - preemptions <= decoded <= generated
    if len(summary.attrs["seeds"].split(",")) == 1:
        assert preemptions == summary["preemptions"].item()
        assert sum(one["iterations"] for one in args) == summary["iterations"].item()
    if not preemptions:
        assert sum(one.get("prompt_tokens", 0) for one in args) == requests["prompt_tokens"].sum()


def test_requests_go_through_their_stages(traced):
    """Within the slice of the request, one after the other, and all closed."""
    events, requests, _ = traced
    opened, stages, whole = defaultdict(list), defaultdict(list), {}
    for event in events:
        if event["ph"] == BEGIN:
            opened[event["id2"]["local"]].append(event)
        elif event["ph"] == END:
            request = int(event["id2"]["local"])
            began = opened[event["id2"]["local"]].pop()
            assert began["name"] == event["name"]
            if event["name"] == "request":
                whole[request] = (began["ts"], event["ts"])
                assert began["args"]["request"] == request
            else:
                stages[request].append((began["ts"], event["ts"]))
    assert not any(opened.values()) and set(stages) == set(whole) == set(requests.index)
    for request, found in stages.items():
        begins, ends = zip(*found, strict=True)
        assert whole[request] == (begins[0], ends[-1]) and begins[1:] == ends[:-1]
        times = 1e6 * requests.loc[request, ["arrival_s", "last_token_s"]]
        assert whole[request] == pytest.approx(tuple(times), abs=1e-2)


def test_counters_end_at_nothing(traced):
    events, _, _ = traced
    counters = of(events, COUNTER)
    last = {(event["pid"], event["name"]): event["args"] for event in counters}
    assert {name for _, name in last} == {"batch", "waiting", "kv"}
    for track in last:  # one that does not change is not written, so they have to be written in order
        times = [event["ts"] for event in counters if (event["pid"], event["name"]) == track]
        assert times == sorted(times)
    assert all(not any(values.values()) for values in last.values())
    assert max(event["args"]["units"] for event in counters if event["name"] == "kv") > 0


def test_a_trace_is_small_and_makes_no_difference(tmp_path):
    """500 requests in 2.5 MB are 10,000 in 50 MB."""
    path, busy = tmp_path / "out.json", scenario("workload.requests=500", "workload.arrivals.rate_rps=30")
    traced = simulate(busy, trace=path)
    assert traced.summary["engine"].item() == "token"
    assert path.stat().st_size < 2.5e6
    assert traced.requests.equals(simulate(busy, simulator="token").requests)
