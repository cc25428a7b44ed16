"""Classes of requests in results: drawn by their shares, with the statistics of their own requests and objectives."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.plan import plan
from evaluator.report.table.ranked import ranked_table
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations
from evaluator.traffic.classes import request_classes
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import request_tokens

# Short runs go to the reference; the program is held to it where that is what is tested.
pytestmark = pytest.mark.usefixtures("as_users_run")

LONG = {"source": "fixed", "prompt_tokens": 4000, "output_tokens": 200}


def scenario(classes, slo=None, **workload):
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 10},
            "lengths": {"source": "fixed", "prompt_tokens": 500, "output_tokens": 50},
            "requests": 400,
            "find_warmup": False,
            "seeds": [0, 1],
            "classes": classes,
            **workload,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
        "slo": slo or {},
    }


INTERACTIVE = {"share": 3, "slo": {"ttft": {"p95": "100ms"}, "tpot": {"p90": "1s"}}}
BATCH = {"share": 1, "lengths": LONG}


@pytest.fixture(scope="module")
def run():
    return evaluator.simulate(scenario({"interactive": INTERACTIVE, "batch": BATCH}))


def test_statistics_are_those_of_the_requests_of_a_class(run):
    ds, requests = run.summary.isel(config=0), run.requests
    measured = requests[requests["measured"]]
    by_class = measured.groupby("class")
    assert ds["class"].values.tolist() == ["interactive", "batch"]
    assert by_class["prompt_tokens"].unique()["batch"].tolist() == [4000]
    for name, group in by_class:
        of_class = ds.sel({"class": name})
        seeds = group.groupby("seed")
        assert of_class.class_ttft_s_mean.item() == pytest.approx(seeds["ttft_s"].mean().mean())
        assert of_class.class_e2e_s.sel(quantile=0.9).item() == pytest.approx(seeds["e2e_s"].quantile(0.9).mean())
        assert of_class.class_share.item() == pytest.approx(len(group) / len(measured))
    # The classes are the parts of the whole.
    for name in ("throughput_rps", "output_tok_per_s"):
        assert ds[f"class_{name}"].sum().item() == pytest.approx(ds[name].item())


def test_objectives_of_a_class_are_held_against_its_requests(run):
    ds = run.summary.isel(config=0)
    interactive = run.requests[run.requests["measured"] & (run.requests["class"] == "interactive")]
    within = (interactive["ttft_s"] <= 0.1).groupby(interactive["seed"]).mean().mean()
    assert ds.class_slo_attainment.values[0] == pytest.approx(within) and 0 < within < 1
    # Requests without an objective are no misses, and no hits.
    assert np.isnan(ds.class_slo_attainment.values[1]) and ds.slo_attainment.item() == pytest.approx(within)
    missed = ds.class_ttft_s.sel(quantile=0.95).values[0] > 0.1
    assert ds.slo_met.item() == ds.class_slo_met.values[0] == (not missed)
    assert not ds.class_slo_met.values[1]  # it asks for nothing


def test_objectives_of_all_hold_beside_those_of_a_class():
    loose = {"share": 1, "slo": {"ttft": {"p95": "1h"}}}
    classes = {"a": loose, "b": {"share": 1, "slo": {"e2e": {"mean": "1h"}}}}
    tight = evaluator.sweep(scenario(classes, {"ttft": {"p50": "1us"}}, requests=60)).isel(config=0)
    assert tight.class_slo_met.values.all() and not tight.slo_met and tight.slo_attainment == 0
    assert evaluator.sweep(scenario(classes, requests=60)).slo_met.all()


def test_the_table_shows_the_classes_of_the_best_design(run):
    text = ranked_table(run.summary)
    assert "interactive TTFT p95" in text and "class of #1" in text
    batch = next(line for line in text.splitlines() if line.startswith("batch"))
    assert batch.endswith("-    -")  # no objective


def test_a_run_over_time_tells_classes_apart(run):
    ds, requests = run.over_time("10s"), run.requests
    first = requests[(requests["arrival_s"] < 10.0) & (requests["class"] == "interactive")]
    at = ds.sel({"class": "interactive"}).isel(time=0)
    assert at.class_arrivals_rps.item() == pytest.approx(len(first) / 20.0)
    assert at.class_ttft_s.sel(quantile=0.9).item() == pytest.approx(first["ttft_s"].quantile(0.9))
    assert at.class_attainment.item() == pytest.approx((first["ttft_s"] <= 0.1).mean()) == ds.attainment[0].item()
    assert np.isnan(ds.class_attainment.sel({"class": "batch"})).all()
    assert ds.class_arrivals_rps.sum("class").values == pytest.approx(ds.arrivals_rps.values)


def test_designs_with_other_classes_share_the_columns():
    # A value of the axis merges into the classes of the scenario.
    axes = {"sweep": {"workload.classes": [{"c": 2}, {"b": {"share": 1, "slo": {"ttft": {"mean": "1h"}}}}, None]}}
    ds = evaluator.sweep(scenario({"a": 1, "b": 1}, requests=60) | axes)
    assert ds["class"].values.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(ds.class_share.sum("class"), [1, 1, 0])
    np.testing.assert_array_equal(np.isnan(ds.class_ttft_s_mean.values), [[0, 0, 0], [0, 0, 1], [1, 1, 1]])
    assert ds.slo_met.values.tolist() == [False, True, False]


def test_objectives_of_a_class_are_searched_for():
    slow = {"share": 1, "slo": {"ttft": {"p95": "1us"}}}
    ds = evaluator.optimize(scenario({"a": {"share": 1}, "b": slow}, requests=60))
    assert "ttft p95 of b is" in str(ds.search_status.values[0])


def test_shares_draw_classes_and_nothing_else():
    base = load_scenario(scenario({"a": 3, "b": 1}, requests=4000)).workload
    number = request_classes(base, 0).number
    assert abs((number == 0).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)
    longer = load_scenario(scenario({"a": 3, "b": BATCH}, requests=4000)).workload
    tokens, other = request_tokens(base, 0, 4000), request_tokens(longer, 0, 4000)
    np.testing.assert_array_equal(request_classes(longer, 0).number, number)
    np.testing.assert_array_equal(other.prompt_tokens, np.where(number == 1, 4000, tokens.prompt_tokens))


def test_a_session_is_of_one_class():
    talks = {"sessions": {"turns": 4, "think_s": 1}, "requests": 300}
    workload = load_scenario(scenario({"a": {"share": 1, "priority": 2}, "b": 1}, **talks)).workload
    turns = RequestSampler().turns(workload, 0)
    classes = request_classes(workload, 0, turns)
    for session in np.unique(turns.session):
        assert len(set(classes.number[turns.session == session])) == 1
    assert set(classes.number) == {0, 1}
    np.testing.assert_array_equal(classes.priority, np.where(classes.number == 0, 2, 0))


PRIORITY = {"batching": {"packing": "priority", "max_num_seqs": 4}}


def by_priority(high, low, deployment=PRIORITY, **workload):
    found = scenario({"chat": {"share": 1, "priority": high}, "batch": {"share": 1, "priority": low}}, **workload)
    return found | {"deployment": found["deployment"] | deployment}


def test_the_smaller_priority_goes_first():
    waits = {}
    for high, low in ((0, 1), (1, 0), (0, 0)):
        run = evaluator.simulate(by_priority(high, low, requests=200))
        assert run.summary.engine.item() == "token"
        waits[high, low] = run.requests.groupby("class")["queue_wait_s"].mean()
    assert waits[0, 1]["chat"] < 0.7 * waits[0, 0]["chat"] < 0.7 * waits[1, 0]["chat"]
    assert waits[1, 0]["batch"] < 0.7 * waits[0, 0]["batch"] < 0.7 * waits[0, 1]["batch"]
    # Without a difference in priority it is first come, first served.
    plain = by_priority(0, 0, {"batching": {"max_num_seqs": 4}}, requests=200)
    fcfs = evaluator.simulate(plain).requests.groupby("class")["queue_wait_s"].mean()
    assert waits[0, 0].to_dict() == pytest.approx(fcfs.to_dict())


def test_where_kv_runs_short_the_largest_priority_gives_way():
    kv = {"kv": {"capacity_tokens": 2400, "admission": "on_demand"}, "batching": {"packing": "priority"}}
    lengths = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 400}
    design = by_priority(
        -5, 5, kv, lengths=lengths, requests=80, arrivals={"process": "poisson", "rate_rps": 3}, seeds=[0]
    )
    run = evaluator.simulate(design, iterations=True)
    of = run.requests["class"].tolist()
    columns = (run.iterations[name] for name in ("preempted", "requests"))
    rows = [({of[request] for request in gone}, {of[request] for request in there})
            for gone, there in zip(*columns, strict=True) if gone]  # fmt: skip
    # A chat gives way to others of its class, and never while a batch goes on.
    assert any(gone == {"batch"} for gone, _ in rows)
    assert all("batch" not in there for gone, there in rows if "chat" in gone)


def test_priorities_of_a_trace(tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"0,2000,5,{priority}" for priority in (3, 1, 2, 0)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,priority", *rows]))
    design = {
        "workload": {"arrivals": {"process": "trace", "file": str(trace)}, "warmup_requests": 0},
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm",
                       "batching": {"packing": "priority", "max_num_seqs": 1}},
    }  # fmt: skip
    run = evaluator.simulate(design)
    assert run.requests["scheduled_s"].rank().tolist() == [4, 2, 3, 1] and "class" not in run.requests


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batching": {"packing": "priority", "policy": "continuous"}}, "policy continuous; use policy chunked"),
        ({"batching": {"packing": "priority", "planning": "asynchronous"}}, "planning asynchronous; use planning at"),
        ({"batching": {"packing": "priority"}, "pipeline_parallel": 2}, "pipeline_parallel; use tensor_parallel"),
        (
            {
                "batching": {"packing": "priority"},
                "kv": {"admission": "on_demand", "preemption": "swap", "swap_bandwidth": 1e9},
            },
            "preemption swap; use preemption recompute",
        ),
    ],
)
def test_what_priorities_do_not_go_with(changed, message):
    with pytest.raises(evaluator.InputError, match=f"unsupported: packing priority with {message}"):
        evaluator.simulate(by_priority(0, 1, changed, requests=20))


SHEDS = {"batching": {"max_queued_requests": 2, "max_num_seqs": 2}}


def test_requests_beyond_the_bound_are_refused_and_miss_their_objectives():
    run = evaluator.simulate(scenario({"a": {"share": 1, "slo": {"ttft": {"p95": "1h"}}}, "b": 1}, requests=300) | {
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **SHEDS}
    })  # fmt: skip
    ds, requests = run.summary.isel(config=0), run.requests
    measured = requests[requests["measured"]]
    assert ds.engine == "token" and 0.05 < ds.refused_share < 0.95
    assert ds.refused_share.item() == pytest.approx(measured.groupby("seed")["refused"].mean().mean())
    refused = measured[measured["refused"]]
    assert refused["ttft_s"].isna().all() and (refused["last_token_s"] == refused["arrival_s"]).all()
    served = measured[~measured["refused"]]
    assert ds.ttft_s_mean.item() == pytest.approx(served.groupby("seed")["ttft_s"].mean().mean())
    # Of who asks for an objective it is the share that was served: the objective itself holds for any latency.
    of_a = measured[measured["class"] == "a"]
    assert ds.class_slo_attainment.values[0] == pytest.approx(1 - of_a.groupby("seed")["refused"].mean().mean())
    assert ds.class_refused_share.values[0] == pytest.approx(of_a.groupby("seed")["refused"].mean().mean())
    # What is served and what is refused is what comes; who is refused holds nobody up.
    windows = run.over_time("5s")
    parts = windows.completions_rps.sum() + windows.refused_rps.sum()
    assert parts.item() == pytest.approx(windows.arrivals_rps.sum().item())
    longest = requests[~requests["refused"]]["queue_wait_s"].max()
    assert longest < 4 * requests["e2e_s"].max() / 2
    attained = [
        (len(group) - 1) / np.ptp(group["arrival_s"]) * ((group["class"] == "a") & ~group["refused"]).mean()
        for _, group in measured.groupby("seed")
    ]
    assert ds.attained_rps.item() == pytest.approx(np.mean(attained))


def test_a_design_that_refuses_most_meets_no_objective_at_a_quantile():
    """The latencies that are told are of who was served; bounds are held against all who asked."""
    asked = scenario({"a": {"share": 1, "slo": {"ttft": {"p95": "1h"}}}}, requests=300)
    asked |= {"deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **SHEDS}, "slo": {"ttft": {"p90": "1h"}}}
    ds = evaluator.simulate(asked).summary.isel(config=0)
    assert ds.refused_share > 0.1 and ds.ttft_s.max() < 3600
    assert not ds.slo_met and not ds.class_slo_met.any()
    # Who is refused completes nothing: it is no end by which the rate would be taken for that of a steady state.
    long = asked | {"workload": asked["workload"] | {
        "lengths": {"source": "fixed", "prompt_tokens": 500, "output_tokens": 3000}, "requests": 30
    }}  # fmt: skip
    assert evaluator.simulate(long).summary.throughput_rps.item() > 0


def test_a_bound_that_nobody_reaches_changes_nothing():
    loose = {"batching": {"max_queued_requests": 10_000}}
    plain, bounded = (
        evaluator.simulate(scenario({"a": 1}, requests=100) | {
            "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **more}
        }).summary
        for more in ({}, loose)
    )  # fmt: skip
    for name in ("ttft_s", "e2e_s_mean", "throughput_rps", "mfu", "attained_rps", "refused_share"):
        np.testing.assert_allclose(plain[name], bounded[name], rtol=1e-9)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"workload": {"arrivals": {"process": "closed_loop", "users": 4}}}, "a closed loop; use arrivals with a rate"),
        ({"deployment": {"role": "prefill"}}, "role prefill; use role mixed, or leave it out"),
        (
            {"deployment": {"pipeline": 0}, "pipeline": [{"stage": "tool", "seconds": 1}, "prefill", "decode"]},
            "several",
        ),
    ],
)
def test_what_a_bound_does_not_go_with(keys, message):
    base = scenario({"a": 1}, requests=20, **keys.get("workload", {}))
    more = {name: value for name, value in keys.get("deployment", {}).items() if name != "pipeline"}
    base["deployment"] |= SHEDS | more
    with pytest.raises(evaluator.InputError, match=f"unsupported: max_queued_requests with {message}"):
        evaluator.simulate(base | ({"pipeline": keys["pipeline"]} if "pipeline" in keys else {}))


def test_the_program_serves_by_priority_as_the_reference_does():
    sizes = {"prompt_mean": 800, "prompt_cv": 1, "prompt_max": 6000, "output_mean": 60, "output_cv": 1}
    lengths = {"source": "lognormal", **sizes}
    classes = {"a": {"share": 2}, "b": {"share": 1, "priority": 3}, "c": {"share": 1, "priority": -2}}
    design = scenario(classes, requests=150, lengths=lengths)
    design["deployment"] |= {
        "batching": {"packing": "priority", "max_num_batched_tokens": 512},
        "kv": {"admission": "reserve", "capacity_tokens": 9000},
    }
    # On demand 9,000 tokens are enough for six, and short for 24 of them.
    names = ("max_num_seqs", "packing", "prediction_error", "aging_tokens_per_s")
    by_length = ((6, "shortest_first", 0, 0), (6, "shortest_first", 0.5, 0), (6, "shortest_first", 0.5, 30.0))
    rows = [((seats, "priority", 0, 0), "reserve") for seats in (2, 6, 24)]
    rows += [((2, "priority", 0, 0), "on_demand"), ((24, "priority", 0, 0), "on_demand")]
    rows += [(row, "reserve") for row in by_length] + [((24, "shortest_first", 1, 5), "on_demand")]
    design["sweep"] = {"designs": {"zip": [
        {f"deployment.batching.{name}": value for name, value in zip(names, row, strict=True)}
        | {"deployment.kv.admission": admission} for row, admission in rows
    ]}}  # fmt: skip
    runs, preempted = {}, {}
    for simulator in ("token", "iteration"):
        whole = plan(load_scenario(design), simulator=simulator)
        assert [each.simulator for each in whole.configurations] == [simulator] * len(rows)
        (group,) = whole.groups
        found = simulate_configurations(whole, group.configurations)
        runs[simulator], preempted[simulator] = found.times, found.stations[0].totals.preemptions
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        np.testing.assert_allclose(getattr(runs["iteration"], name), getattr(runs["token"], name), rtol=1e-9)
    np.testing.assert_array_equal(preempted["iteration"], preempted["token"])
    assert (preempted["token"] > 0).any(axis=1).tolist() == [*[False] * 4, True, *[False] * 3, True]
    waits = (runs["token"].scheduled_s - runs["token"].arrival_s)[0]
    number = np.array([request_classes(load_scenario(design).workload, seed).number for seed in (0, 1)])
    first, middle, last = (waits[number == which].mean() for which in (2, 0, 1))
    assert first < 0.5 * middle < 0.5 * last
    # Each of the three orders by length is another one.
    waited = (runs["token"].scheduled_s - runs["token"].arrival_s)[5:8].mean(axis=(1, 2))
    assert len(set(waited)) == 3


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"batching": {"packing": "priority", "long_prefill_token_threshold": 64}, "kv": {"admission": "reserve"}},
            "batching.packing priority with long_prefill_token_threshold",
        ),
    ],
)
def test_what_of_priorities_the_reference_keeps(keys, reason):
    design = scenario({"a": 1}, requests=20)
    design["deployment"] |= {"batching": {"packing": "priority"}} | keys
    (configuration,) = plan(load_scenario(design)).configurations
    assert configuration.simulator == "token" and configuration.lacking == (reason,)
