"""Chances of objectives: by hand, by draws, and where nothing is known."""

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import yaml

from evaluator.accuracy.cases import load_group
from evaluator.metrics.chance import is_sure, joint_chance, normal_cdf, normal_quantile, objective_chance, spread
from evaluator.report.places import IN_COMMON

ERRORS = Path(__file__).resolve().parents[2] / "calibration/errors"


def chance(ratio, model_error, stderr=0.0, mean_error=None, growth=1.0, headroom=None):
    ratio, growth = np.array([[ratio]]), np.array([[growth]])
    of_mean = np.array([[model_error if mean_error is None else mean_error]])
    deviation = spread(of_mean, np.array([[model_error]]), ratio, np.array([[stderr]]), growth)
    with np.errstate(divide="ignore"):
        slower = ratio ** (-1.0 / growth) if headroom is None else np.array([[headroom]])
    return objective_chance(slower, deviation).item()


def test_tpot_of_48_8_ms_under_50_with_an_error_of_11_percent():
    """ln(50 / 48.8) is 0.0243 and ln 1.11 is 0.1044: 0.233 standard deviations, of which 59 % are below."""
    assert chance(48.8 / 50, 0.11) == pytest.approx(NormalDist().cdf(0.0243 / 0.1044), abs=2e-4)
    assert chance(48.8 / 50, 0.11) == pytest.approx(0.592, abs=5e-4)
    # A standard error of 2 ms beside it: 0.0243 / sqrt(0.1044^2 + 0.041^2).
    assert chance(48.8 / 50, 0.11, stderr=2 / 50) == pytest.approx(0.586, abs=5e-4)
    # Where a service that is 1 % slower makes TPOT 2.5 % longer: 0.0243 / 2.5 of headroom.
    assert chance(48.8 / 50, 0.11, growth=2.5) == pytest.approx(NormalDist().cdf(0.0243 / 2.5 / 0.1044), abs=2e-4)


def test_the_chance_is_the_share_of_draws_of_both_errors_that_are_within_the_bound():
    rng = np.random.default_rng(1)
    model_error, stderr, ratio = 0.08, 0.05, 0.93
    real = ratio * np.exp(np.log1p(model_error) * rng.standard_normal(400_000))
    real *= np.exp(stderr / ratio * rng.standard_normal(400_000))
    assert chance(ratio, model_error, stderr) == pytest.approx((real <= 1.0).mean(), abs=3e-3)


def test_what_a_tail_errs_by_beyond_the_mean_does_not_grow():
    """At a growth of 1 it is the error of the statistic; a queue lengthens a service that is slower, and no stall."""
    assert chance(0.8, 0.45, mean_error=0.05) == pytest.approx(chance(0.8, 0.45))
    grown = chance(0.8, 0.45, mean_error=0.05, growth=3.0)
    assert chance(0.8, 0.45, growth=3.0) < grown < chance(0.8, 0.05, growth=3.0)


def test_a_wider_bound_is_held_with_a_larger_chance_and_a_half_is_the_bound_itself():
    found = [chance(ratio, 0.1, 0.02) for ratio in (0.5, 0.9, 0.99, 1.0, 1.01, 1.5)]
    assert found == sorted(found, reverse=True) and found[3] == 0.5
    assert chance(0.9, 0.3) < chance(0.9, 0.1) and chance(1.1, 0.3) > chance(1.1, 0.1)


def test_what_is_not_known():
    assert np.isnan(chance(0.9, np.nan))
    assert chance(0.9, 0.1, stderr=np.nan) == chance(0.9, 0.1)  # chance of one seed's gaps counts as none
    assert chance(0.0, np.nan) == 1.0  # a latency that no request has
    chances, bounded = np.array([[0.9, 0.6], [0.9, np.nan], [0.9, np.nan], [np.nan, np.nan]]), np.ones((4, 2), bool)
    bounded[2, 1] = bounded[3] = False
    np.testing.assert_array_equal(joint_chance(chances, bounded), [0.6, np.nan, 0.9, np.nan])
    assert is_sure(np.array([0.9, 0.9, np.nan, np.nan]), np.array([0.9, 0.91, 0.6, np.nan])).tolist() == [
        True, False, False, True,
    ]  # fmt: skip


def test_the_normal_distribution():
    z = np.array([-3.0, -0.5, 0.0, 1.0, np.nan])
    np.testing.assert_allclose(normal_cdf(z), [NormalDist().cdf(value) if value == value else value for value in z])
    np.testing.assert_allclose(normal_quantile(normal_cdf(z)), z, atol=1e-12)


def in_bands(statistic):
    """ln(measured / predicted) over the stated band, its case and its server, of every measured value."""
    table = pd.read_csv(ERRORS / "serving.csv")
    cases = yaml.safe_load((ERRORS / "serving.yaml").read_text())["cases"]
    rows = table[table[statistic].notna() & np.array([statistic in cases[case] for case in table["case"]])]
    names = ("up to 48", "up to 160", "more")

    def band(case, concurrency):
        figures = cases[case][statistic]
        at_load = names[load_group(concurrency)] if concurrency == concurrency else ""
        return figures.get(at_load, figures["error"])

    bands = [band(*pair) for pair in zip(rows["case"], rows["concurrency"], strict=True)]
    values = np.log1p(rows[statistic].clip(lower=-0.99)) / np.log1p(bands)
    return pd.DataFrame({"z": values, "case": rows["case"], "server": rows["model"] + rows["hardware"]})


@pytest.mark.parametrize("statistic", ["ttft_mean", "itl_mean", "e2e_mean"])
def test_measured_means_are_as_a_normal_logarithm_has_them(statistic):
    """90 % within 1.645 and 95 % within two bands; a little less, whose tails are longer."""
    size = in_bands(statistic)["z"].abs()
    assert size.size > 400
    assert (size < 1.645).mean() == pytest.approx(0.90, abs=0.02) and (size < 2).mean() == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("statistic", "shared"), [("itl_mean", 0.6), ("ttft_mean", 0.3)])
def test_what_two_values_of_one_server_have_in_common(statistic, shared):
    """Their mean product over the mean square, on the mean over the cases: half of the variance, roughly."""
    parts = []
    for _, case in in_bands(statistic).groupby("case"):
        z, server = case["z"].clip(-3, 3).to_numpy(), case["server"].to_numpy()
        one, other = np.triu_indices(z.size, 1)
        of_one_server = server[one] == server[other]
        parts.append(np.mean((z[one] * z[other])[of_one_server]) / np.mean(z**2))
    assert np.mean(parts) == pytest.approx(shared, abs=0.1)
    assert abs(np.mean(parts) - IN_COMMON) < 0.25
