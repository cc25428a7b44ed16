"""The table of expected errors: how a band comes about, what a prediction takes from the table, what is refused."""

import numpy as np
import pytest

from evaluator.accuracy import SHARE, Errors, load_errors
from evaluator.accuracy.cases import band, cases_of
from evaluator.errors import InputError

TABLE = Errors(
    {
        "runs": {"itl_mean": 0.02},
        "transferred": {"itl_mean": 0.08},
        "kernels": {"itl_mean": 0.3},
        "datasheet": {"itl_mean": 0.2},
    },
    {"runs": 20, "transferred": 28, "kernels": 28, "datasheet": 28},
)


def test_a_band_is_a_conformal_quantile():
    errors = np.array([0.01, -0.02, 0.03, -0.04, 0.05])
    assert band(errors) == 0.05  # ceil(6 x 0.68) = 5th of 5
    assert band(np.append(errors, [0.06] * 5)) == 0.06 and band(np.append(errors, np.nan)) == 0.05
    assert np.isnan(band(np.array([0.1])))


def test_loads_of_one_server_share_one_vote():
    errors = np.array([0.01, 0.02, 0.03, 0.1, 0.2, 0.3])
    alone = ["a", "b", "c", "d", "e", "f"]
    assert band(errors, servers=alone) == band(errors) == 0.2  # of a load each: ceil(7 x 0.68) = 5th of 6
    # Three servers, 0.68 x 4 = 2.72 votes: all of a and b, and more than one of the two loads of c.
    assert band(errors, servers=["a", "b", "b", "b", "c", "c"]) == 0.3
    assert band(np.append(errors, np.nan), servers=["a", "b", "b", "b", "c", "c", "d"]) == 0.3
    assert band(errors, servers=["a"] * 6) == 0.3  # of another server nothing is known but the largest


def test_one_more_value_is_inside_as_often_as_is_said():
    rng = np.random.default_rng(1)
    draws = rng.lognormal(-3.0, 1.0, (4000, 21)) * rng.choice([-1, 1], (4000, 21))
    inside = [abs(row[-1]) <= band(row[:-1]) for row in draws]
    assert SHARE - 0.02 < np.mean(inside) < SHARE + 1 / 21 + 0.02  # exact to one rank


def test_a_prediction_has_the_error_of_its_weakest_case():
    assert TABLE.of(("runs",), "itl_mean") == 0.02
    assert TABLE.of(("runs", "transferred"), "itl_mean") == 0.08
    assert TABLE.of(("runs",), "itl_mean", unmeasured=True) == 0.08  # the host is known, the kernels are not
    assert TABLE.of(("kernels",), "itl_mean", unmeasured=True) == 0.3
    assert TABLE.of(("eager",), "itl_mean") == 0.3  # no such case was measured: the worst of all
    assert np.isnan(TABLE.of(("runs",), "ttft_mean")) and np.isnan(Errors({}, {}).of(("runs",), "itl_mean"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{share: 0.9, cases: {}}", "mine.yaml: share: must be 0.68, got 0.9; derive the table anew"),
        (
            "{share: 0.68, cases: {hearsay: {}}}",
            "mine.yaml: cases.hearsay: no such case; there are: runs, other_layouts",
        ),
        ("{share: 0.68, cases: {runs: {runs: 0}}}", "mine.yaml: cases.runs.runs"),
    ],
)
def test_a_table_that_cannot_be_read_says_so(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load_errors(str(tmp_path / "mine.yaml"))
    assert message in str(error.value)


def test_another_layout_is_no_surer_than_other_models():
    few = Errors(
        {"runs": {"itl_mean": 0.03}, "other_layouts": {"itl_mean": 0.01}, "other_models": {"itl_mean": 0.04}}, {}
    )
    assert few.of(("other_layouts",), "itl_mean") == 0.04  # of few runs, which happen to be met
    assert Errors({"other_models": {"itl_mean": 0.04}}, {}).of(("other_layouts",), "itl_mean") == 0.04
    shipped = load_errors()
    for statistic in ("ttft_mean", "itl_mean", "e2e_mean"):
        near, farther, far = (shipped.of((case,), statistic) for case in ("runs", "other_layouts", "other_devices"))
        assert near < farther < far


def test_what_a_case_does_not_tell_is_as_what_nobody_measured():
    """Of spread experts no TTFT was measured."""
    shipped = load_errors()
    cases = ("runs", "spread_experts")
    assert "ttft_mean" not in shipped.bands["spread_experts"]
    assert shipped.of(cases, "ttft_mean") == shipped.of(("runs",), "ttft_mean", unmeasured=True) > 0.3
    assert shipped.of(cases, "itl_mean") == shipped.bands["spread_experts"]["itl_mean"]


def test_a_table_that_is_not_there_knows_nothing():
    assert load_errors("hearsay").bands == {}


def test_which_comparison_tells_of_which_cases():
    assert cases_of("gpu", "GPU-vllm") == ["other_devices", "kernels_and_host", "transferred"]
    assert cases_of(None, "datasheet") == ["datasheet"]
    with pytest.raises(InputError, match=r"--errors: --held-out fold --calibration mine measures no case; those"):
        cases_of("fold", "mine")
