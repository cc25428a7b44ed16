import numpy as np
import pytest

from evaluator.metrics.reasons import reasons
from evaluator.report import ranked_table
from evaluator.report.ranking import ranking
from tests.results.build import HARDWARE, PARALLEL, POLICY, RATE, Axis, Objective, axis, sweep


def rows(text):
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if set(line) == {"-"}) + 1
    return lines[start : lines.index("", start)]


def test_the_best_ten_with_units_and_a_summary():
    text = ranked_table(sweep(HARDWARE, PARALLEL, POLICY, RATE))
    assert len(rows(text)) == 10
    assert "TTFT p90" in text and "per Mtok" in text and "ms" in text
    ds = sweep(HARDWARE, PARALLEL, POLICY, RATE)
    met, over = int(ds["slo_met"].sum()), int(ds["saturated"].sum())
    assert f"144 configurations: 128 feasible, {met} meet the SLO, {over} saturated, 16 infeasible." in text
    assert "16 x weights of 70.0 GB per device do not fit" in text
    assert max(map(len, text.splitlines())) <= 120


def test_latencies_stand_at_the_statistics_of_their_objectives():
    bounds = (Objective("ttft", "p99", 1.5), Objective("ttft", "p50", 0.9), Objective("e2e", "mean", 20.0))
    ds = sweep(HARDWARE, RATE, objectives=bounds)
    heads = ranked_table(ds, width=200).splitlines()
    head = next(line for line in heads if "TTFT" in line)
    assert all(word in head for word in ("TTFT p99", "TTFT p50", "TPOT p90", "E2E mean")) and "TTFT p90" not in head
    best = ranking(ds, np.flatnonzero(ds["status"].values == "ok"))[0][0]
    for value in (1e3 * ds["ttft_s"].values[best, 3], 1e3 * ds["e2e_s_mean"].values[best]):
        assert f" {value:,.0f} " in rows(ranked_table(ds, width=200))[0]
    assert "TTFT p90" in ranked_table(sweep(HARDWARE, RATE, objectives=()))
    narrow = ranked_table(ds, width=75)
    assert "TTFT p99" in narrow and "(not shown for want of room: output, busy" in narrow


@pytest.mark.parametrize("top", [1, 3, 500])
def test_as_many_rows_as_asked_for_and_there(top):
    assert len(rows(ranked_table(sweep(HARDWARE, RATE), top=top))) == min(top, 24)


def test_designs_that_meet_the_slo_come_first_then_the_cheapest():
    ds = sweep(HARDWARE, PARALLEL, RATE)
    feasible = np.flatnonzero(ds["status"].values == "ok")
    order, rule = ranking(ds, feasible)
    met = ds["slo_met"].values[order]
    assert "meet the SLO first, then by cost per million output tokens" in rule
    assert (np.diff(met.astype(int)) <= 0).all()
    best = order[met & ~ds["saturated"].values[order]]
    assert (np.diff(ds["usd_per_mtok"].values[best]) >= -1e-12).all()


def test_without_prices_throughput_per_gpu_decides():
    ds = sweep(HARDWARE, PARALLEL, RATE, price=False, objectives=())
    order, rule = ranking(ds, np.flatnonzero(ds["status"].values == "ok"))
    assert rule == "not saturated first, then by output tokens/s per GPU"
    over = ds["saturated"].values[order]
    assert (np.diff(over.astype(int)) >= 0).all()
    assert (np.diff(ds["tok_per_s_per_gpu"].values[order[~over]]) <= 1e-9).all()


def test_nearest_misses_when_none_meets_the_slo():
    ds = sweep(HARDWARE, RATE)
    ds["slo_met"][:] = False
    assert "none meets the SLO: by SLO attainment" in ranked_table(ds)


def test_a_single_configuration_is_no_ranking():
    text = ranked_table(sweep())
    assert text.startswith("Result\n")
    assert "1 configuration: 1 feasible" in text


def test_nothing_feasible_says_why():
    text = ranked_table(sweep(HARDWARE, PARALLEL, room=False))
    assert text.startswith("9 configurations: 0 feasible")
    assert "Nothing can run as it stands:" in text
    assert "9 x e.g. weights of" in text
    assert "use more tensor_parallel" in text


def test_reasons_that_differ_in_figures_are_counted_together_and_get_a_remedy():
    status = np.array(
        [
            "ok",
            "infeasible: weights of 7 GB do not fit",
            "infeasible: weights of 9 GB do not fit",
            "heads 7 by 2",
            "tensor_parallel 8 neither divides nor is a multiple of the 10 KV heads of phi-4",
        ]
    )
    first, second, third = reasons(status)
    remedy = "more devices per replica, a lower precision, or hardware with more memory"
    assert first == (f"e.g. weights of 7 GB do not fit (try {remedy})", 2)
    assert second[0] == "heads 7 by 2 (try a parallelism that divides the model's heads and experts)"
    assert third[0].endswith("KV heads of phi-4 (try a parallelism that divides the model's heads and experts)")


@pytest.mark.parametrize(
    "reason",
    [
        "does not fit: 141.1 GB of weights per device exceed 77.3 GB; remedy: tensor_parallel >= 2",
        "a request of 9 tokens exceeds the 8 positions of m; use shorter prompts",
        "max_num_batched_tokens 8 is below the longest prompt; raise it or use policy chunked",
        "the KV cache is too small; lower max_num_seqs",
        "kv.offload_bytes with deployment.speculative; leave out speculative, or leave it out",
    ],
)
def test_a_reason_with_a_remedy_of_its_own_gets_no_other(reason):
    assert reasons(np.array([f"infeasible: {reason}"])) == [(reason, 1)]


def test_api_servers_that_are_busy_all_the_time_are_told():
    ds = sweep(HARDWARE, RATE)
    held = "tokens wait for API servers"
    assert held not in ranked_table(ds)
    busy = np.full(ds.sizes["config"], np.nan)
    ds["api_server_utilisation"] = ("config", busy)
    assert held not in ranked_table(ds)
    busy[:4] = 0.3, 0.95, 1.0, 0.89
    assert f"  2 x {held}, which are busy all the time; use more deployment.api_servers" in ranked_table(ds)


def test_more_reasons_than_are_shown_are_counted():
    ds = sweep(axis("deployment.hardware", *"abcde"), room=False)
    ds["status"][:] = [f"reason {letter}" for letter in "abcde"]
    assert "2 x 2 other reasons (status)" in ranked_table(ds)


def test_wide_tables_drop_measures_but_never_say_less_about_the_design():
    long = axis("deployment.model", "a-model-with-a-name-of-many-characters-70b", "another-model-with-a-long-name-8b")
    more = [axis(f"deployment.part{n}.knob{n}", 1.5, 2.5) for n in range(4)]
    text = ranked_table(sweep(long, HARDWARE, *more, RATE), width=100)
    assert "not shown for want of room" in text
    table = [*rows(text), text.splitlines()[2]]
    assert max(map(len, table)) <= 100
    for n in range(4):
        assert f"knob{n}" in text


def test_waits_and_services_of_the_best_design_by_stage():
    ds = sweep(HARDWARE).assign_coords(stage=["retrieval", "prefill", "never"])
    assert "stage" not in ranked_table(sweep(HARDWARE))
    best = ranking(ds, np.arange(3))[0][0]
    for name, values in (
        ("stage_wait_s_mean", [0.01, 0.2, np.nan]), ("stage_service_s_mean", [0.25, 0.09, np.nan]),
        ("stage_share", [0.3, 1.0, np.nan]), ("stage_utilisation", [np.nan, 0.5, np.nan]),
    ):  # fmt: skip
        ds[name] = (("config", "stage"), np.full((3, 3), np.nan))
        ds[name][best] = values
    lines = ranked_table(ds).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("stage of #1"))
    assert lines[at : at + 6] == [
        "stage of #1      wait   service  requests  busy",
        "             mean, ms  mean, ms",
        "-----------------------------------------------",
        "retrieval          10       250       30%     -",
        "prefill           200        90      100%   50%",
        "",
    ]


def test_what_is_everywhere_the_same_is_said_once():
    text = ranked_table(sweep(axis("deployment.model", "llama"), RATE))
    assert "all with model=llama" in text
    text = ranked_table(sweep(axis("deployment.hardware.memory_bandwidth", 2e12), RATE))
    assert "all with memory_bandwidth=2TB/s" in text


def test_the_label_of_a_zip_is_not_repeated():
    zipped = Axis(
        "deployment.batching",
        ("policy=a,x=1", "policy=b,x=2"),
        (
            {"deployment.batching.policy": "a", "deployment.batching.x": 1},
            {"deployment.batching.policy": "b", "deployment.batching.x": 2},
        ),
    )
    text = ranked_table(sweep(zipped, RATE))
    assert "policy=a" not in text
    assert "policy" in text
