"""Experiment files: what is read, and what is refused with which words."""

import json
import re

import pytest

from evaluator.errors import InputError
from evaluator.experiments import read_experiments
from tests.campaign import entry, row


def test_specifications_are_joined_with_measurements(small):
    first, second, _ = read_experiments(*small)
    assert first.stages == (0, 1, -1)
    assert first.row(1).values["itl_mean"] == pytest.approx(7e-3)
    assert first.row(1).counted_tokens == 39.5
    assert second.stages == (0,)
    assert [stage.requests for stage in first.workload.stages] == [40, 120]


def test_a_pooled_row_serves_a_single_stage(campaign):
    (only,) = read_experiments(*campaign([entry("a", rates=(2.0,))], [row("a", -1, throughput_req_per_s=2.0)]))
    assert only.row(0).values["throughput_rps"] == 2.0


def test_empty_cells_are_not_measured(campaign):
    (only,) = read_experiments(*campaign([entry("a")], [row("a", -1, itl=7.0) | {"itl_mean_ms": ""}]))
    assert set(only.row(-1).values) == {"ttft_mean", "e2e_mean"}


def test_identifiers_are_text(campaign):
    entries = [entry("20260217-155451"), entry("007")]
    found = read_experiments(*campaign(entries, [row("007", 0), row("20260217-155451", 0)]))
    assert all(each.measured for each in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_parallel_size": 1.5}, "tensor_parallel_size must be an integer, got 1.5"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a number of at least 1, got 0"),
        ({"model": None}, "model must be a text, got None"),
        ({"gpu": ""}, "gpu must be a text"),
        ({"workload": None}, "workload must be an object, got None"),
        ({"workload": {}}, "workload.stages must be a list of objects"),
        ({"total_kv_blocks": -1}, "total_kv_blocks must be a number of at least 1, got -1"),
        ({"gpu_memory_utilization": 900}, "gpu_memory_utilization must be a share"),
        ({"prefix_caching": "perhaps"}, "prefix_caching must be true or false"),
        ({"expert_parallel_size": 4}, r"expert_parallel_size must be 1 or tensor_parallel_size \(1\), got 4"),
        ({"exp_id": None}, "exp_id is missing"),
    ],
)
def test_a_bad_specification_is_the_problem_of_one_experiment(campaign, change, message):
    bad, good = read_experiments(*campaign([entry("a") | change, entry("b")], [row("b", 0)]))
    assert re.match(message, bad.problem)
    assert good.measured and not good.problem


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"rate_req_per_s": 0}, r"workload.stages\[0\].rate_req_per_s must be"),
        ({"rate_req_per_s": "fast"}, "'fast'"),
        ({"rate_req_per_s": 0.01}, "is no request"),
        ({"rate_req_per_s": 1e9}, "requests are more than"),
        ({"duration_s": None}, "duration_s must be"),
        ({"stage_index": -1}, "stage_index must be"),
        ({"concurrency": 16}, "concurrency 16: only rates are simulated"),
    ],
)
def test_bad_stages_are_named(campaign, stage, message):
    bad = entry("a", rates=(2.0,))
    bad["workload"]["stages"][0] |= stage
    (found,) = read_experiments(*campaign([bad], [row("a", 0)]))
    assert re.search(message, found.problem)


def test_what_is_there_twice_is_refused_or_noted(campaign):
    same = entry("b")
    same["workload"]["stages"][1]["stage_index"] = 0
    first, second, stages = read_experiments(
        *campaign([entry("a"), entry("a"), same], [row("a", 0, ttft=20.0), row("a", 0, ttft=30.0)])
    )
    assert first.row(0).values["ttft_mean"] == pytest.approx(0.02)
    assert first.notes == ("stage 0 is measured twice: the first row counts",)
    assert second.problem == "exp_id a is there twice"
    assert "stage_index 0 is there twice" in stages.problem


def test_values_are_read_where_their_meaning_is_clear(campaign):
    change = {"tensor_parallel_size": "2", "enable_expert_parallel": "true", "prefix_caching": 0,
              "chunked_prefill": "False", "gpu_memory_utilization": 92, "exp_id": 1.0}  # fmt: skip
    given = entry("a", rates=("2", 4.0)) | change
    given["workload"]["stages"][1] = {"rate_req_per_s": 4.0, "num_requests": 20}
    (found,) = read_experiments(*campaign([given], [row("1", 0)]))
    assert (found.problem, found.notes, found.id) == ("", (), "1")
    assert (found.tensor_parallel, found.expert_parallel, found.memory_fraction) == (2, True, 0.92)
    assert not found.prefix_caching and not found.chunked_prefill
    assert [(stage.index, stage.duration_s) for stage in found.workload.stages] == [(0, 20.0), (1, 5.0)]
    assert found.measured


def test_what_is_not_heeded_is_noted(campaign):
    change = {"cpu_kv_offload": "yes", "engine": "sglang", "colour": "red"}
    (found,) = read_experiments(
        *campaign([entry("a") | change], [row("a", 0, output=900.0), row("a", 7), row("a", 1, ttft=-1.0)])
    )
    assert found.notes == (
        "cpu_kv_offload is not modelled",
        "colour is not read",
        "engine sglang is simulated as vLLM",
        "implied_mean_output_tokens 900 is ignored",
        "stage 7 is not in the specification",
        "row 3: ttft_mean_ms '-1.0' is no measurement",
    )
    assert "ttft_mean" not in found.row(1).values


@pytest.mark.parametrize("cell", ["", "N/A", "-", "NaN", "null"])
def test_cells_without_a_number_are_not_measured(campaign, cell):
    (found,) = read_experiments(*campaign([entry("a")], [row("a", 0) | {"ttft_mean_ms": cell}]))
    assert "ttft_mean" not in found.row(0).values
    assert not found.notes


def test_columns_in_other_units_and_quantiles_are_read(campaign):
    specs, actuals = campaign([entry("a")], [row("a", 0)])
    actuals.write_text(
        "Exp_ID;stage_index;ttft_mean_s;e2e_p75_ms;itl_median_ms;output_tokens_per_s\na;0.0;0.02;9;7;900\n"
    )
    (found,) = read_experiments(specs, actuals)
    assert found.row(0).values == pytest.approx({"ttft_mean": 0.02, "e2e_p75": 0.009, "itl_p50": 0.007})
    assert found.notes == ("column output_tokens_per_s is not read",)


def test_bad_files_are_refused(campaign, tmp_path):
    specs, actuals = campaign([entry("a")], [row("b", 0)])
    with pytest.raises(InputError, match="no row has the exp_id of an experiment"):
        read_experiments(specs, actuals)
    with pytest.raises(InputError, match="expected columns exp_id, stage_index"):
        read_experiments(specs, specs)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_experiments(tmp_path / "bad.json", actuals)
    (tmp_path / "bad.json").write_text(json.dumps([]))
    with pytest.raises(InputError, match="expected a list of experiments"):
        read_experiments(tmp_path / "bad.json", actuals)


@pytest.mark.parametrize(("stated", "kept"), [(None, "fp8"), ("fp16_or_bf16", "fp8"), ("int8", "int8")])
def test_quantization_counts_where_no_precision_is_recorded(campaign, stated, kept):
    files = campaign([entry("a", weight_precision=stated, quantization="fp8")], [row("a", 0)])
    assert read_experiments(*files)[0].weight_precision == kept
