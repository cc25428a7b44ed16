"""Predictions beside measurements, and their summaries."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration
from evaluator.compare import compare_experiments, described, headline, summarise
from evaluator.compare.report import by_stage, pooled, usable
from evaluator.cost.frontend import Frontend, client_times
from evaluator.experiments import read_experiments
from tests.campaign import entry, row


@pytest.fixture
def experiments(small):
    return read_experiments(*small)


@pytest.fixture
def table(experiments):
    return compare_experiments(experiments, "datasheet", seeds=(0, 1))


def test_every_stage_and_metric_has_its_signed_error(table):
    rows = table[(table["exp_id"] == "a") & (table["stage_index"] == 1) & (table["metric"] == "itl_mean")]
    (one,) = rows.to_dict("records")
    assert one["measured"] == pytest.approx(7.0)
    assert one["error_pct"] == pytest.approx(100 * (one["predicted"] / 7.0 - 1))
    assert 5 < one["predicted"] < 10
    assert one["predicted_stderr"] < 0.1
    assert set(table.loc[table["exp_id"] == "a", "stage_index"]) == {0, 1, -1}
    assert set(table.loc[table["exp_id"] == "b", "stage_index"]) == {0}


def test_the_time_between_tokens_is_per_token_that_the_client_counts(experiments):
    from evaluator.compare.run import predictions, simulate_server
    from evaluator.compare.servers import server
    from evaluator.experiments.traffic import requests

    (times,) = simulate_server(server(experiments[0], "datasheet"), [requests(experiments[0], 0)])
    all_, fewer = predictions(times, 0), predictions(times, 0, counted_tokens=27.0)
    for metric in ("itl_mean", "tpot_p90"):
        assert fewer[metric] == pytest.approx(all_[metric] * 39 / 26)
    assert fewer["e2e_mean"] == all_["e2e_mean"]


def test_what_cannot_run_is_a_row_with_its_reason(table):
    (one,) = table[table["exp_id"] == "c"].to_dict("records")
    assert one["status"].startswith("cannot run: GPU Abacus-3 is not in the catalog")
    assert "1 could not run" in described(table)


def test_single_stages_are_not_counted_twice(table):
    rows = usable(table)
    assert pooled(rows).groupby(["exp_id", "metric"]).size().max() == 1
    assert by_stage(rows).query("exp_id == 'a'")["stage_index"].min() == 0
    assert set(headline(table)) == {"ttft_mean", "itl_mean", "e2e_mean"}
    assert summarise(rows, ["metric"])["n"].sum() == len(rows)


def test_requests_that_never_fit_are_told(campaign):
    found = read_experiments(*campaign([entry("a", total_kv_blocks=2)], [row("a", 0)]))
    assert compare_experiments(found, "datasheet", seeds=(0,))["status"].iloc[0].startswith("cannot run: some requests")


def test_one_experiment_never_stops_the_others(small, monkeypatch):
    from evaluator.compare import run

    simulate = run.simulate_server

    def broken(replica, loads):
        if replica.experiment.id == "a":
            raise IndexError("out of range")
        return simulate(replica, loads)

    monkeypatch.setattr(run, "simulate_server", broken)
    first, second, *_ = compare_experiments(read_experiments(*small), "datasheet", (0,)).groupby("exp_id")
    assert set(first[1]["status"]) == {"cannot run: internal error: IndexError: out of range"}
    assert set(second[1]["status"]) == {"ok"}


def test_sequences_longer_than_the_server_allows_are_told(campaign):
    long = entry("b")
    long["workload"]["shared_prefix"]["question_len_tokens"] = 200_000
    found = read_experiments(*campaign([entry("a", max_model_len_tokens=300), long], [row("a", 0)]))
    first, second = compare_experiments(found, "datasheet", (0,))["status"]
    assert first == "cannot run: requests of 340 tokens exceed max_model_len_tokens, 300"
    assert "exceed the positions of llama-3.1-8b, 131,072" in second


def test_what_is_undefined_has_no_error(campaign):
    one = entry("a", rates=(2.0,))
    one["workload"]["shared_prefix"]["output_len_tokens"] = 1
    zero, silent = entry("b", rates=(2.0,), cpu_kv_offload=True), entry("c", rates=(2.0,))
    found = read_experiments(*campaign([one, zero, silent], [row("a", 0), row("b", 0, ttft=0.0)]))
    table = compare_experiments(found, "datasheet", (0,)).set_index(["exp_id", "metric"])
    assert np.isnan(table.loc[("a", "itl_mean"), "error_pct"]) and np.isnan(table.loc[("b", "ttft_mean"), "error_pct"])
    assert table.loc[("a", "e2e_mean"), "status"] == "ok"
    told = described(table.reset_index())
    assert "without measurements: c" in told
    assert "cpu_kv_offload is not modelled (1 experiment)" in told


def test_quantiles_are_predicted_as_they_are_measured(campaign):
    specs, actuals = campaign([entry("a", rates=(4.0,))], [row("a", 0)])
    actuals.write_text("exp_id,stage_index,ttft_p75_ms,ttft_p99.9_ms\na,0,20,60\n")
    table = compare_experiments(read_experiments(specs, actuals), "datasheet", (0,)).set_index("metric")
    assert table.loc["ttft_p75", "predicted"] < table.loc["ttft_p99.9", "predicted"]


def test_prompts_too_long_for_one_iteration_are_told(campaign):
    whole = {"chunked_prefill": False, "prefix_caching": False, "max_num_batched_tokens": 256}
    found = read_experiments(*campaign([entry("a", **whole)], [row("a", 0)]))
    (status,) = compare_experiments(found, "datasheet", seeds=(0,))["status"]
    assert "tokens exceed max_num_batched_tokens 256, and chunked_prefill is off" in status


def test_what_is_around_the_engine_is_added_to_both_latencies():
    base = load_calibration("datasheet", "any")
    first, last, output = np.array([1.0, 1.0]), np.array([1.9, 1.0]), np.array([10, 1])
    around = replace(base, frontend_s=0.01, lookahead_steps=2.0)
    late_first, late_last = client_times(Frontend.of(around), first, last, output)
    assert late_first == pytest.approx([1.0 + 0.01 + 0.2, 1.01])
    assert late_last - late_first == pytest.approx(last - first)
    assert client_times(Frontend.of(base), first, last, output)[0] == pytest.approx(first)
