"""Elasticities of measures: exact where the metric is a power of the input, with errors that are those of chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.metrics import Bounds, summarise
from evaluator.metrics.elasticity import METRICS, STEP
from evaluator.metrics.variables import VARIABLES
from tests.metrics.build import changed, fifo, outcomes, used

LEVELS = np.array([0.5, 0.9, 0.99])
TAILS = np.array([0.7, 0.9])  # where no atom is, such as that of no wait
FACTORS = np.array([1.0, 1.0 / (1.0 + STEP), 1.0 + STEP])
SIDES = np.array([[[1, 2]]])


def runs(seeds: int, load: float = 0.5, requests: int = 2000, seed: int = 0, services: np.ndarray = FACTORS):
    """A FIFO server with these service times, one row each, on the same arrivals."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / load, (1, seeds, requests)), axis=-1) * np.ones((len(services), 1, 1))
    service = services[:, None, None] * np.ones_like(arrival)
    start = fifo(arrival, service)
    first, last = start + 0.5 * service, start + service
    busy = services[:, None] * np.full((1, seeds), float(requests))
    times = {"arrival_s": arrival, "scheduled_s": start, "first_token_s": first, "last_token_s": last}
    base = outcomes(configs=len(services), seeds=seeds, requests=requests)
    return changed(used(base, busy_s=busy), **times, makespan_s=last[..., -1])


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_power_of_the_input_has_its_exponent_and_no_error(seeds):
    """tpot is a tenth of half the service time: elasticity 1 whatever the requests, all parts agree."""
    found = summarise(runs(seeds), LEVELS, SIDES)
    assert found["tpot_s"].shape == (1, 3) and found["tpot_s_elasticity"].shape == (1, 1, 3)
    np.testing.assert_allclose(found["tpot_s_mean_elasticity"], 1.0, rtol=1e-9)
    np.testing.assert_allclose(found["tpot_s_elasticity"], 1.0, rtol=1e-9)
    for name in ("tpot_s_mean_elasticity", "tpot_s_elasticity"):
        np.testing.assert_allclose(found[f"{name}_stderr"], 0.0, atol=1e-8)
        np.testing.assert_allclose(found[f"{name}_step_error"], 0.0, atol=1e-8)
    assert found["joule_per_tok_elasticity"] > 0 and found["usd_per_mtok_elasticity"] == pytest.approx(
        -found["output_tok_per_s_elasticity"]
    )


def test_the_wait_of_a_single_server():
    """M/D/1: W = rho D / (2 (1 - rho)), rho = D / gap, so that d ln W / d ln D = (2 - rho) / (1 - rho)."""
    found = summarise(runs(40, requests=5000), LEVELS, SIDES)
    slope, error = (found[f"queue_wait_s_mean_elasticity{suffix}"].item() for suffix in ("", "_stderr"))
    assert error < 0.02
    assert abs(slope - 3.0) < 4 * error
    assert found["utilisation_elasticity"].item() == pytest.approx(1.0, abs=0.01)
    calm = summarise(runs(3, load=0.2), LEVELS, SIDES)["queue_wait_s_elasticity"]
    assert np.isnan(calm[0, 0, 0]) and np.isfinite(calm[0, 0, 1:]).all()  # most do not wait: no logarithm of 0


@pytest.fixture(scope="module")
def one_and_eight_seeds():
    """Statistics of 150 runs of one seed, and of one of eight."""
    slo = (Bounds("ttft", "p90", np.full(3, 1.2)),)
    single = [summarise(replace(runs(1, seed=n), objectives=slo), TAILS, SIDES) for n in range(150)]
    return single, summarise(replace(runs(8), objectives=slo), TAILS, SIDES)


@pytest.mark.parametrize("name", ["queue_wait_s_mean", "ttft_s", "ttft_s_mean", "e2e_s_mean", "slo_attainment"])
def test_errors_are_the_spread_over_runs(name, one_and_eight_seeds):
    """Of one seed from within the run, of eight from between them; paired runs differ far less than unpaired ones."""
    single, eight = one_and_eight_seeds
    slopes = np.array([one[f"{name}_elasticity"][0, 0] for one in single])
    errors = np.array([one[f"{name}_elasticity_stderr"][0, 0] for one in single])
    spread = slopes.std(axis=0, ddof=1)
    assert (spread > 0).all()
    np.testing.assert_allclose(np.sqrt((errors**2).mean(axis=0)), spread, rtol=0.35)
    several = eight[f"{name}_elasticity_stderr"][0, 0]
    np.testing.assert_allclose(several, spread / np.sqrt(8), rtol=0.9)
    relative = np.array([one[f"{name}_stderr"][0] / one[name][0] for one in single]).mean(axis=0)
    unpaired = relative * np.sqrt(2) / (2 * np.log1p(STEP))
    assert (errors.mean(axis=0) < 0.5 * unpaired).all()


def test_a_kink_is_the_error_of_the_step():
    """Up 1, down 0: the elasticity is one half, and so is what the step may do to it."""
    found = summarise(runs(2, services=np.array([1.0, 1.0, 1.0 + STEP])), LEVELS, SIDES)
    assert found["tpot_s_mean_elasticity"].item() == pytest.approx(0.5)
    assert found["tpot_s_mean_elasticity_step_error"].item() == pytest.approx(0.5)


def test_an_input_without_effect_and_a_row_that_cannot_run():
    rows = replace(runs(2), status=np.array(["infeasible: x", "ok", "ok"]))
    found = summarise(rows, LEVELS, np.array([[[0, 0]]]))
    assert found["status"].tolist() == ["infeasible: x"]
    assert all(np.isnan(value).all() for name, value in found.items() if "_elasticity" in name)
    found = summarise(runs(2), LEVELS, np.array([[[0, 0]]]))
    assert found["e2e_s_mean_elasticity"] == 0.0 == found["e2e_s_mean_elasticity_stderr"]


def test_what_has_no_error_with_one_seed_says_so():
    found = summarise(runs(1), LEVELS, SIDES)
    for name in ("output_tok_per_s", "utilisation", "usd_per_mtok", "joule_per_tok"):
        assert np.isfinite(found[f"{name}_elasticity"]) and np.isnan(found[f"{name}_elasticity_stderr"])


def test_every_elasticity_is_described():
    found = summarise(runs(2), LEVELS, SIDES)
    for name in METRICS:
        if name in found:
            for suffix in ("", "_stderr", "_step_error"):
                variable = VARIABLES[f"{name}_elasticity{suffix}"]
                assert variable.units == "1" and variable.dims[:2] == ("config", "input")
