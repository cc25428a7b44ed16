"""The Chrome trace of a run, read back as the Trace Event Format says."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from evaluator.run import simulate
from tests.test_run import scenario

METADATA, SLICE, COUNTER, BEGIN, END = "M", "X", "C", "b", "e"
FIELDS = {
    METADATA: {"name", "pid", "args"},
    SLICE: {"name", "pid", "tid", "ts", "dur", "args"},
    COUNTER: {"name", "pid", "ts", "args"},
    BEGIN: {"name", "pid", "tid", "ts", "id", "cat"},
    END: {"name", "pid", "tid", "ts", "id", "cat"},
}
RUNS = {
    "replicas": ("deployment.replicas=2", "workload.seeds=[4, 5]"),
    "one router": ("deployment.replicas=2", "deployment.router=least_work"),
    "pipeline": ("deployment.pipeline_parallel=2", "workload.arrivals.rate_rps=30"),
    "preemption": (
        "deployment.hardware=rtx-4090",
        "deployment.precision.weights=fp8",
        "deployment.kv={admission: on_demand, memory_fraction: 0.55}",
        "workload.arrivals.rate_rps=60",
        "workload.lengths={source: fixed, prompt_tokens: 1500, output_tokens: 600}",
    ),
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=list(RUNS))
def traced(request, tmp_path_factory):
    """Events, requests of the first seed, summary."""
    path = tmp_path_factory.mktemp("trace") / "out.json"
    run = simulate(scenario(*request.param), trace=path)
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
    names = {(event["pid"], event.get("tid")): event["args"]["name"] for event in of(events, METADATA)}
    tracks = defaultdict(list)
    for event in of(events, SLICE):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert {name for (_, track), name in names.items() if track is None} >= {"requests", "replica 0"}
    assert set(tracks) == {key for key in names if key[1] is not None}
    for slices in map(sorted, tracks.values()):
        assert all(end <= start + 2e-3 for (_, end), (start, _) in pairwise(slices))
    assert len({pid for pid, _ in tracks}) == requests["replica"].nunique()


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
    events, requests, _ = traced
    started, stages = {}, defaultdict(list)
    for event in events:
        if event["ph"] == BEGIN:
            started[event["id"], event["name"]] = event["ts"]
        elif event["ph"] == END:
            stages[event["id"]].append((started.pop((event["id"], event["name"])), event["ts"]))
    assert not started and set(stages) == set(requests.index)
    for request, found in stages.items():
        begins, ends = zip(*found, strict=True)
        assert begins[0] == pytest.approx(1e6 * requests["arrival_s"][request], abs=1e-2)
        assert ends[-1] == pytest.approx(1e6 * requests["last_token_s"][request], abs=1e-2)
        assert begins[1:] == ends[:-1]


def test_counters_end_at_nothing(traced):
    events, _, _ = traced
    counters = of(events, COUNTER)
    last = {(event["pid"], event["name"]): event["args"] for event in counters}
    assert {name for _, name in last} == {"batch", "waiting", "kv"}
    assert all(not any(values.values()) for values in last.values())
    assert max(event["args"]["units"] for event in counters if event["name"] == "kv") > 0


def test_a_trace_is_small_and_makes_no_difference(tmp_path):
    """500 requests in 2.5 MB are 10,000 in 50 MB."""
    path, busy = tmp_path / "out.json", scenario("workload.requests=500", "workload.arrivals.rate_rps=30")
    traced = simulate(busy, trace=path)
    assert traced.summary["engine"].item() == "token"
    assert path.stat().st_size < 2.5e6
    assert traced.requests.equals(simulate(busy, engine="token").requests)
