"""The table of expected errors: how a band comes about, what a prediction takes from the table, what is refused."""

import math

import numpy as np
import pytest

from evaluator.accuracy import SHARE, Errors, load_errors
from evaluator.accuracy.cases import CASES, FEWEST_SERVERS, LOADS, band, bands_by_load, cases_of, load_group
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
        (
            "{share: 0.68, cases: {runs: {runs: 1, derived: a, command: b, source: c, devices: [d], "
            "itl_mean: {error: 0.1, median: 0, bias: 0, values: 2, up to 50: 0.1}}}}",
            "mine.yaml: cases.runs.itl_mean.up to 50: unknown key",
        ),
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


BY_LOAD = Errors(
    {"runs": {"itl_mean": 0.03}, "other_models": {"itl_mean": 0.04}, "other_releases": {"itl_mean": 0.08},
     "iterations": {"itl_mean": 0.02}},
    {},
    by_load={
        "runs": {"itl_mean": (0.02, np.nan, np.nan)},
        "other_models": {"itl_mean": (0.03, 0.06, np.nan)},
        "other_releases": {"itl_mean": (0.07, 0.11, 0.09)},
        "iterations": {"itl_mean": (np.nan, np.nan, np.nan)},
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "stated"),
    [
        ("runs", (0.03, 0.02, 0.06, 0.11)),  # with more at a time as of other models, then as of other releases
        ("other_models", (0.04, 0.03, 0.06, 0.11)),
        ("other_releases", (0.08, 0.07, 0.11, 0.11)),
        ("iterations", (0.02, 0.02, 0.02, 0.02)),  # of which no load is known
    ],
)
def test_errors_depend_on_how_many_requests_are_served_at_a_time(case, stated):
    at_a_time = (None, 1.0, *LOADS[1:], 1e4)
    assert tuple(BY_LOAD.of((case,), "itl_mean", concurrency=load) for load in at_a_time) == stated


def test_no_load_beyond_the_measured_ones_is_surer_than_these():
    steep = Errors(
        {"other_models": {"itl_mean": 0.04}}, {}, by_load={"other_models": {"itl_mean": (0.03, 0.2, np.nan)}}
    )
    assert steep.of(("other_models",), "itl_mean", concurrency=1e3) == 0.2


def test_loads_are_judged_apart_where_enough_servers_had_them():
    assert [load_group(at) for at in (0.5, 48.0, 48.1, 160.0, 161.0)] == [0, 0, 1, 1, 2]
    few, more = np.full(FEWEST_SERVERS, 0.01), np.linspace(0.1, 0.5, FEWEST_SERVERS)
    errors = np.concatenate([few, more, [0.9], [np.nan, 0.7]])
    loads = np.concatenate([np.full(FEWEST_SERVERS, 8.0), np.full(FEWEST_SERVERS, 96.0), [500.0, 8.0, np.nan]])
    servers = [*range(FEWEST_SERVERS), *range(FEWEST_SERVERS), 0, 1, 2]
    for by_server in (False, True):
        bands = bands_by_load(errors, loads, servers, by_server)
        assert bands[:2] == (0.01, more[-1]) and np.isnan(bands[2])
    assert np.isnan(bands_by_load(errors, loads, [0] * len(errors), False)).all()  # loads of one server


def test_shipped_errors_of_large_batches_are_larger():
    """Llama-3.1-8B under the release of the runs was stated 2.8 % at any load, and of large ones half were inside."""
    shipped = load_errors()
    for case in ("runs", "other_models", "other_releases", "other_devices", "kernels_and_host"):
        few, some, many = (shipped.of((case,), "itl_mean", concurrency=at) for at in (8, 64, 512))
        assert few < some and few < many, case
    # docs/accuracy.md and calibration/expected-errors.md: up to five times as large as of few
    near = [[shipped.of((case,), "itl_mean", concurrency=at) for at in (8, 512)] for case in ("runs", "other_models")]
    assert 4.5 < max(many / few for few, many in near) < 5.0
    assert all(CASES[case].farther in ("", *CASES) for case in CASES)


def test_what_nobody_measured_has_the_errors_of_the_next_case_that_was():
    """The next one that knows less; of what no fitted server had, the largest of what else none had."""
    known = {"itl_mean": 0.1}
    few = Errors(
        {"other_releases": known, "other_devices": {"itl_mean": 0.06}, "iterations": {"itl_mean": 0.01},
         "spread_experts": {"itl_mean": 0.2}, "state_layers": {}, "other_engines": {"itl_mean": 0.15},
         "kernels": {"itl_mean": 0.3}},
        {},
    )  # fmt: skip
    stated = {case: few.of((case,), "itl_mean") for case in CASES if case not in few.bands or not few.bands[case]}
    assert stated.pop("state_layers") == 0.2
    nearer = ("runs", "other_layouts", "other_models")
    assert {case: stated.pop(case) for case in nearer} == dict.fromkeys(nearer, 0.1)
    # Behind the last case that is known: the worst of all. Nothing but the kernels without a host is no host's case.
    assert stated.pop("datasheet") == 0.3 and set(stated.values()) == {0.3}
    assert few.of(("runs", "state_layers"), "itl_mean") == 0.2
    without = Errors({name: of for name, of in few.bands.items() if name != "other_releases"}, {})
    assert without.of(("other_models",), "itl_mean") == without.of(("other_releases",), "itl_mean") == 0.06
    assert Errors({"kernels": {"itl_mean": 0.3}}, {}).of(("other_engines",), "itl_mean") == 0.3


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


def test_a_device_without_servers_and_another_release_err_together():
    """Each for a reason of its own: as the root of their squares, but of what a case did not measure itself."""
    known = Errors(
        {
            "kernels_and_host": {"itl_mean": 0.03, "ttft_mean": 0.07},
            "other_models": {"ttft_mean": 0.05},
            "other_releases": {"itl_mean": 0.04},
        },
        {},
        by_load={
            "kernels_and_host": {"itl_mean": (0.02, 0.06, np.nan)},
            "other_releases": {"itl_mean": (0.04, 0.08, 0.08)},
        },
    )
    both = ("kernels_and_host", "other_releases")
    of_loads = [known.of(both, "itl_mean", concurrency=load) for load in (None, 8, 64, 512)]
    assert of_loads == pytest.approx([0.05, math.hypot(0.02, 0.04), 0.1, 0.1])
    assert known.of(both, "ttft_mean") == 0.07
    assert known.of(("runs", "other_releases"), "itl_mean", concurrency=64) == 0.08
