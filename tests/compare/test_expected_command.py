"""``evaluator compare --errors``: the cases that it writes, and the options that tell of none."""

import pandas as pd
import pytest

from evaluator.accuracy import load_errors
from evaluator.calibrate import serving
from evaluator.compare import compare_experiments
from tests.campaign import campaign, small

__all__ = ["campaign", "small"]


def test_a_comparison_goes_into_the_table(evaluator, small, tmp_path):
    table = tmp_path / "errors" / "mine.yaml"
    code, _, told = evaluator("compare", *small, "--calibration", "datasheet", "--errors", table)
    assert code == 0 and "errors of the case datasheet to" in told
    rows = pd.read_csv(table.with_suffix(".csv"), dtype={"run": str})
    assert set(rows["case"]) == {"datasheet"} and set(rows["run"]) == {"a", "b"}
    assert set(rows["source"]) == {"specs.json, actuals.csv"}
    assert load_errors(str(table)).runs == {"datasheet": 2}


def test_one_gpu_left_out_tells_of_three_cases(evaluator, small, tmp_path, monkeypatch):
    asked = []

    def held_out(experiments, partition, base, seeds, kernels):
        asked.append((partition, base, list(kernels)))
        table = compare_experiments(experiments[:2], "datasheet", (0,)).assign(model_seen=False)
        return dict.fromkeys(kernels, table)

    monkeypatch.setattr(serving, "held_out_by_kernels", held_out)
    table = tmp_path / "mine.yaml"
    code, _, _ = evaluator("compare", *small, "--held-out", "gpu", "--errors", table)
    assert code == 0 and asked == [("gpu", "GPU-vllm", ["own", "host", "transferred"])]
    assert list(load_errors(str(table)).bands) == ["other_devices", "kernels_and_host", "transferred"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--calibration", "h100-sxm-vllm"),
            "--errors: --calibration h100-sxm-vllm measures no case; those that do are:",
        ),
        (("--held-out", "model", "--calibration", "datasheet"), "measures no case"),
    ],
)
def test_options_that_measure_no_case_are_told_before_anything_runs(evaluator, small, tmp_path, options, message):
    code, _, told = evaluator("compare", *small, *options, "--errors", tmp_path / "mine.yaml")
    assert code == 2 and message in told
    assert not (tmp_path / "mine.yaml").exists()
