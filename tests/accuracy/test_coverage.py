"""Whether as many measured values are within the stated errors as is said."""

import numpy as np
import pandas as pd
import pytest

from evaluator.accuracy import CASES, SHARE, load_errors
from evaluator.accuracy.cases import band
from evaluator.catalog.store import find
from evaluator.compare import compare_experiments
from evaluator.compare.expected import errors_of
from evaluator.experiments import read_experiments

MEANS = ("ttft_mean", "itl_mean", "e2e_mean")
DEVIATIONS = 2.6  # of the binomial distribution: one test in a hundred fails by chance


def agrees(inside, runs):
    """Stages of a run go together, so that there are as many independent values as runs."""
    return abs(inside - SHARE) <= DEVIATIONS * np.sqrt(SHARE * (1 - SHARE) / runs) + 1 / runs


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("statistic", MEANS)
def test_runs_of_a_model_are_within_the_errors_of_the_other_models(case, statistic):
    """Every run kept aside is judged by the error that the rows of the other models make."""
    rows = pd.read_csv(find("errors", "serving").with_suffix(".csv"), dtype={"run": str})
    rows = rows[(rows["case"] == case) & rows[statistic].notna()]
    if rows.empty:
        pytest.skip(f"{statistic} was not measured of {case}")
    inside = []
    for model in set(rows["model"]):
        others = rows.loc[rows["model"] != model, statistic].to_numpy()
        inside += (rows.loc[rows["model"] == model, statistic].abs() <= band(others)).tolist()
    assert agrees(np.mean(inside), rows["run"].nunique())


@pytest.mark.parametrize(("case", "calibration"), [("kernels", "GPU-vllm"), ("datasheet", "datasheet")])
def test_measured_servers_are_within_the_stated_errors(case, calibration, data_folder):
    experiments = read_experiments(data_folder / "vllm_serving_specs.json", data_folder / "vllm_serving_actuals.csv")
    rows, errors = errors_of(case, compare_experiments(experiments, calibration, (0,)), "now"), load_errors()
    for statistic in MEANS:
        found = rows[statistic].dropna()
        assert agrees((found.abs() <= errors.of((case,), statistic)).mean(), rows["run"].nunique()), statistic
