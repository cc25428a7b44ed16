"""Experiment files: what is read, and what is refused with which words."""

import json

import pytest

from evaluator.compare import read_experiments
from evaluator.errors import InputError
from tests.compare.conftest import entry, row


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
        ({"tensor_parallel_size": 1.5}, r"specs.json: experiment 0 \(a\): tensor_parallel_size must be an integer"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a number of at least 1, got 0"),
        ({"model": None}, "model must be a text, got None"),
        ({"workload": {}}, "stages must be a list of rates and durations"),
    ],
)
def test_bad_specifications_are_refused(campaign, change, message):
    specs, actuals = campaign([entry("a") | change], [row("a", 0)])
    with pytest.raises(InputError, match=message):
        read_experiments(specs, actuals)


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
    actuals.write_text(actuals.read_text().replace("20.0", "fast"))
    with pytest.raises(InputError, match="row 1, ttft_mean_ms: 'fast' is not a number"):
        read_experiments(specs, actuals)


@pytest.mark.parametrize(("stated", "kept"), [(None, "fp8"), ("fp16_or_bf16", "fp8"), ("int8", "int8")])
def test_quantization_counts_where_no_precision_is_recorded(campaign, stated, kept):
    files = campaign([entry("a", weight_precision=stated, quantization="fp8")], [row("a", 0)])
    assert read_experiments(*files)[0].weight_precision == kept
