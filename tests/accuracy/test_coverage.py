"""Whether as many measured values are within the stated errors as is said."""

import numpy as np
import pandas as pd
import pytest

from evaluator.accuracy import CASES, SHARE, load_errors
from evaluator.accuracy.cases import LOAD_NAMES, band, bands_by_load
from evaluator.catalog.store import find
from evaluator.compare import compare_experiments
from evaluator.compare.expected import SERVER, errors_of
from evaluator.experiments import read_experiments
from tests.benchmarks.accuracy.coverage import coverage as coverage_by_load

MEANS = ("ttft_mean", "itl_mean", "e2e_mean")
TOGETHER = 0.09  # one standard deviation of a share of 28 runs, which all cases have in common
DEVIATIONS = 2.6  # of the binomial distribution: one test in a hundred fails by chance


def agrees(inside, runs):
    """Stages of a run go together, so that there are as many independent values as runs."""
    return abs(inside - SHARE) <= DEVIATIONS * np.sqrt(SHARE * (1 - SHARE) / runs) + 1 / runs


def rows_of(case, statistic):
    rows = pd.read_csv(find("errors", "serving").with_suffix(".csv"), dtype={"run": str})
    return rows[(rows["case"] == case) & rows[statistic].notna()]


def by_server(rows):
    return CASES[rows["case"].iloc[0]].by_server


def coverage(rows, statistic, times=1.0):
    """The share of values within ``times`` the error that the rows of the other models make."""
    inside = []
    for model in set(rows["model"]):
        others = rows[rows["model"] != model]
        servers = list(zip(*(others[name] for name in SERVER), strict=True)) if by_server(rows) else None
        error = band(others[statistic].to_numpy(), servers=servers)
        inside += (rows.loc[rows["model"] == model, statistic].abs() <= times * error).tolist()
    return np.mean(inside)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("statistic", MEANS)
def test_runs_of_a_model_are_within_the_errors_of_the_other_models(case, statistic):
    """Every run kept aside is judged by the error that the rows of the other models make."""
    rows = rows_of(case, statistic)
    if rows.empty:
        pytest.skip(f"{statistic} was not measured of {case}")
    assert agrees(coverage(rows, statistic), rows["run"].nunique())


def test_bands_that_are_a_third_too_narrow_or_wide_would_be_noticed():
    """Over all cases together, since one case of 28 runs alone would let bands of half the width pass."""
    measured = [(rows, name) for case in CASES for name in MEANS if len(rows := rows_of(case, name))]
    shares = {times: np.mean([coverage(*each, times) for each in measured]) for times in (2 / 3, 1.0, 3 / 2)}
    assert shares[2 / 3] < SHARE - TOGETHER < shares[1.0] < SHARE + TOGETHER < shares[3 / 2], shares


@pytest.mark.parametrize(("case", "calibration"), [("kernels", "GPU-vllm"), ("datasheet", "datasheet")])
def test_measured_servers_are_within_the_stated_errors(case, calibration, data_folder):
    experiments = read_experiments(data_folder / "vllm_serving_specs.json", data_folder / "vllm_serving_actuals.csv")
    rows, errors = errors_of(case, compare_experiments(experiments, calibration, (0,)), "now"), load_errors()
    for statistic in MEANS:
        found = rows[statistic].dropna()
        assert agrees((found.abs() <= errors.of((case,), statistic)).mean(), rows["run"].nunique()), statistic


def test_servers_with_many_requests_at_a_time_are_within_the_errors():
    """Of values between 49 and 160 at a time a quarter to a half were within errors that loads had in common."""
    rows = pd.read_csv(find("errors", "serving").with_suffix(".csv"), dtype={"run": str})
    near = ["runs", "other_layouts", "other_models", "other_releases", "other_devices", "kernels_and_host"]
    slices = coverage_by_load(rows[rows["case"].isin(near)]).reset_index()
    slices = slices[slices["metric"].eq("itl_mean") & slices["load"].ne("not known") & slices["rows"].ge(8)]
    inside = slices.groupby("load")[["inside_pct", "rows"]].apply(
        lambda of: np.average(of["inside_pct"], weights=of["rows"])
    )
    assert set(inside.index) == set(LOAD_NAMES)
    assert (inside > 100 * (SHARE - TOGETHER)).all(), inside
    # Most requests at a time are said to be no surer than fewer, though these values would be.
    assert (inside[list(LOAD_NAMES[:2])] < 100 * (SHARE + 1.5 * TOGETHER)).all() and inside[LOAD_NAMES[2]] < 90, inside


def test_whole_campaigns_are_within_what_the_others_state():
    """Without its only campaign a case had the error of data sheets, or that of another model: 42 % or 2.4 %."""
    rows = pd.read_csv(find("errors", "serving").with_suffix(".csv"), dtype={"run": str})
    slices = coverage_by_load(rows[rows["itl_mean"].notna()]).reset_index()
    slices = slices[slices["metric"].eq("itl_mean")]
    of_case = slices.groupby(["campaign", "case"]).apply(
        lambda of: pd.Series({
            "inside": np.average(of["inside_by_others_pct"], weights=of["rows"]),
            "stated": of["stated_by_others_pct"].max(),
        }), include_groups=False,
    )  # fmt: skip
    releases, spread = (of_case.loc[("ML.ENERGY", case)] for case in ("other_releases", "spread_experts"))
    assert 58 < releases["inside"] < 80 and releases["stated"] < 8
    assert 58 < spread["inside"] < 80 and spread["stated"] < 15
    # By others they are said to be less sure than they are, but by half of what data sheets' error would say.
    assert of_case.loc[("MLPerf", "other_engines"), "stated"] < 26
    assert of_case.loc[("inference-sim", "other_models"), "stated"] < 12
    assert (of_case.loc[[("MLPerf", "other_engines"), ("inference-sim", "other_models")], "inside"] > 68).all()
    # Submitters of one design share a vote: of four servers three are inside, of their values two fifths.
    at_some = slices[slices["case"].eq("other_engines") & slices["load"].eq(LOAD_NAMES[1])].iloc[0]
    assert at_some["servers_inside_pct"] == 75 and at_some["inside_pct"] < 50


def test_no_load_is_surer_than_a_lower_one():
    shipped, loads = load_errors(), (8.0, 100.0, 1000.0)
    for case in CASES:
        for statistic in MEANS:
            stated = [shipped.of((case,), statistic, concurrency=load) for load in loads]
            assert stated == sorted(stated), (case, statistic)


def test_groups_whose_errors_would_fall_with_the_load_have_one_band():
    few, some, many = np.full(6, 0.02), np.full(6, 0.12), np.full(6, 0.08)
    errors, loads = np.concatenate([few, some, many]), np.repeat([8.0, 100.0, 500.0], 6)
    assert bands_by_load(errors, loads, list(range(18)), False) == (0.02, 0.12, 0.12)
    # Of twelve values together the ninth: some of the largest are beyond it.
    spread = np.concatenate([few, np.linspace(0.07, 0.12, 6), np.linspace(0.03, 0.08, 6)])
    assert bands_by_load(spread, loads, list(range(18)), False) == (0.02, 0.09, 0.09)


def test_loads_of_few_servers_are_no_independent_values():
    """Of Llama 4 Scout none of 20 loads is within what the 22 of two other servers would say as so many runs."""
    rows = rows_of("spread_experts", "itl_mean")
    scout = rows["model"] == "llama-4-scout-17b-16e"
    others, errors = rows[~scout], rows.loc[scout, "itl_mean"].abs()
    servers = list(zip(*(others[name] for name in SERVER), strict=True))
    assert (errors <= band(others["itl_mean"].to_numpy())).mean() == 0.0
    assert (errors <= band(others["itl_mean"].to_numpy(), servers=servers)).mean() > 0.6
    assert rows["run"].nunique() == len(rows)  # two rows of one server at one load are two runs
