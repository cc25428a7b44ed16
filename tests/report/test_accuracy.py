"""The lines that tell how far results are expected to be off."""

import numpy as np
import pytest
import xarray as xr

from evaluator.metrics.variables import INPUTS
from evaluator.report.accuracy import expected_errors, in_words, mixtures, percent
from evaluator.report.picture.canvas import calibration

RUNS = "serving runs of this device and model; error of 19 runs"


def dataset(bases, errors, **more):
    return xr.Dataset(
        {
            "model_error_basis": ("config", np.array(bases)),
            "e2e_s_model_error": ("config", np.array(errors)),
            "saturated": ("config", np.zeros(len(bases), dtype=bool)),
            **more,
        }
    )


def test_one_line_for_each_basis_the_most_frequent_first():
    ds = dataset([RUNS, "a data sheet", RUNS], [0.028, 0.14, 0.05])
    assert expected_errors(ds, np.arange(3)) == [
        f"expected error of 2 designs, 68 % of measured means within: E2E ± 2.8 to 5 % ({RUNS})",
        "expected error of 1 design: E2E ± 14 % (a data sheet)",
    ]
    assert expected_errors(ds, np.array([0])) == [
        f"expected error, 68 % of measured means within: E2E ± 2.8 % ({RUNS})"
    ]


def test_what_is_not_known_is_said_and_what_was_not_saved_is_left_out():
    ds = dataset([RUNS], [np.nan])
    assert expected_errors(ds, np.array([0])) == [f"expected error: not known ({RUNS})"]
    assert expected_errors(ds.drop_vars("model_error_basis"), np.array([0])) == []
    assert expected_errors(ds, np.array([], dtype=int)) == []


def test_more_than_three_bases_are_counted():
    ds = dataset(list("abcde"), [0.1] * 5)
    assert expected_errors(ds, np.arange(5))[-1] == "and 2 other bases (model_error_basis)"
    assert expected_errors(ds, np.arange(4))[-1] == "and 1 other basis (model_error_basis)"


def test_a_caption_tells_two_bases_and_counts_the_others_in_one_sentence():
    ds = dataset(list("aabcd"), [0.1] * 5)
    asked, sentence = calibration(ds.assign_attrs(calibration="auto"), np.arange(5))
    assert asked == "Calibration: auto"
    assert sentence == (
        "Expected error of 2 designs, 68 % of measured means within and more towards saturation: E2E ± 10 % (a); "
        "expected error of 1 design: E2E ± 10 % (b); and 2 other bases (model_error_basis)"
    )
    assert calibration(ds.drop_vars("model_error_basis"), np.arange(5)) == ["Calibration: unknown"]


def test_elasticities_to_all_inputs_tell_how_an_error_grows():
    slopes = np.array([[-1.0, -1.5, 0.0, 0.0, 0.25, 0.25], [-0.5, -0.5, 0, 0, 0, 0], [np.nan] * 6])
    more = {"e2e_s_mean_elasticity": (("config", "input"), slopes)}
    ds = dataset([RUNS] * 3, [0.02] * 3, **more).assign_coords(input=list(INPUTS))
    lines = [expected_errors(ds, np.array([row]))[0] for row in range(3)]
    assert ["± 6 %" in lines[0], "± 2 %" in lines[1], "± 2 %" in lines[2]] == [True] * 3


def test_beyond_100_percent_the_model_does_not_know():
    errors = {"TTFT": [1.06, np.inf], "TPOT": [0.42, 1.5], "E2E": [0.3, 1.0]}
    assert in_words({label: np.array(error) for label, error in errors.items()}) == (
        "TTFT ± more than 100 %, TPOT ± 42 to more than 100 %, E2E ± 30 to 100 %"
    )


def test_percents_have_two_digits():
    assert [percent(error) for error in (0.0, 0.0283, 0.0999, 0.35, 1.1)] == ["0", "2.8", "10", "35", "110"]
    assert in_words({"TTFT": np.array([np.nan]), "E2E": np.array([0.03])}) == "E2E ± 3 %"


def test_saturated_designs_count_only_where_all_are():
    ds = dataset([RUNS, RUNS], [0.02, 0.9], saturated=("config", np.array([False, True])))
    assert expected_errors(ds, np.arange(2)) == [f"expected error, 68 % of measured means within: E2E ± 2 % ({RUNS})"]
    assert expected_errors(ds, np.array([1])) == [f"expected error, 68 % of measured means within: E2E ± 90 % ({RUNS})"]


SHEET = "a data sheet; error of 28 runs on 3 devices"


@pytest.mark.parametrize(
    ("provenances", "bases", "told"),
    [
        (["calibrated"] * 2, [RUNS] * 2, []),
        (["datasheet"] * 2, [SHEET, "a data sheet, and serving runs of this device and model"], []),
        (
            ["calibrated", "datasheet"],
            [RUNS, "a data sheet, serving runs of other devices; error of 28 runs on 3 devices"],
            ["1 fitted to measurements of the device, 1 of data sheets; calibration: datasheet treats all alike"],
        ),
        (
            ["calibrated"] * 2,
            [
                RUNS,
                "kernels of this device, no serving runs; no measured server had fp8 KV: the largest measured error",
            ],
            ["1 of 2 designs have no host's times of servers"],
        ),
        (
            ["calibrated", "datasheet"],
            [RUNS, SHEET],
            ["efficiencies of different kinds", "1 of 2 designs have no host's times of servers"],
        ),
    ],
)
def test_a_mixture_of_sets_is_told(provenances, bases, told):
    ds = dataset(bases, [0.1] * 2, provenance=("config", np.array(provenances)))
    lines = mixtures(ds, np.arange(2))
    assert len(lines) == len(told) and all(part in line for part, line in zip(told, lines, strict=True))
