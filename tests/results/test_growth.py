"""How errors of the times of service grow in latencies, told by the rates that were swept."""

import json

import numpy as np
import pytest
import xarray as xr

import evaluator
from evaluator.report.accuracy import expected_errors
from evaluator.results.growth import ARRIVALS, LatencyGrowth
from tests.metrics.build import fifo

RUNS = "serving runs of this device and model"


def swept(rates, latency, saturated=None, wait=0.0, **more):
    size = len(rates)
    coordinates = {"rate_rps": ("config", np.asarray(rates), {"description": ARRIVALS[0]}), **more}
    return xr.Dataset(
        {
            "status": ("config", np.full(size, "ok")),
            "saturated": ("config", np.zeros(size, bool) if saturated is None else np.asarray(saturated)),
            "ttft_s_mean": ("config", np.asarray(latency)),
            "queue_wait_s_mean": ("config", np.asarray(latency) * wait),
            "ttft_s_model_error": ("config", np.full(size, 0.05)),
            "model_error_basis": ("config", np.full(size, RUNS)),
        },
        coords=coordinates,
        attrs={"coordinates_of": json.dumps([[name] for name in coordinates])},
    )


def test_the_slope_over_the_rate_is_what_a_slower_service_makes_of_a_latency():
    """M/D/1 on the same arrivals, and with a service 1 % longer: no formula in between."""
    rates, step = np.array([0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8]), 1.01
    gaps = np.random.default_rng(0).exponential(1.0, 20_000)

    def latency(rate, service_s):
        arrival_s = np.cumsum(gaps) / rate
        return float(np.mean(fifo(arrival_s, np.full(gaps.size, service_s)) + service_s - arrival_s))

    base = np.array([latency(rate, 1.0) for rate in rates])
    slower = np.array([latency(rate, step) for rate in rates])
    grown = np.log(slower / base) / np.log(step)
    found = LatencyGrowth(swept(rates, base)).of("ttft_s", np.arange(rates.size))
    np.testing.assert_allclose(found[1:-1], grown[1:-1], rtol=0.06)
    np.testing.assert_allclose(found[[0, -1]], grown[[0, -1]], rtol=0.15)
    assert grown[0] < 2 and grown[-1] > 4


def test_towards_saturation_the_one_neighbour_tells():
    """A latency s / (1 - r s), whose growth is 1 / (1 - r): the saturated neighbour's is that of the run's length."""
    rates = np.array([0.6, 0.8, 1.2])
    ds = swept(rates, [1 / 0.4, 1 / 0.2, 400.0], saturated=[False, False, True])
    np.testing.assert_allclose(LatencyGrowth(ds).of("ttft_s", np.arange(3)), [2.5, 5.0, 1.0])


def test_rates_of_other_designs_tell_nothing():
    tp = ("config", np.array([1, 2, 1, 2]), {"description": "deployment.tensor_parallel"})
    ds = swept([1.0, 1.0, 2.0, 2.0], [1.0, 3.0, 2.0, 3.0], tensor_parallel=tp)
    np.testing.assert_allclose(LatencyGrowth(ds).of("ttft_s", np.arange(4)), [1.5, 1.0, 3.0, 1.0])
    ds["status"][2] = "infeasible: no"
    assert np.isnan(LatencyGrowth(ds).of("ttft_s", np.array([0]))).all()


def test_the_axis_is_described_as_a_sweep_describes_it():
    ds = evaluator.sweep(
        {
            "name": "rates",
            "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 2.0},
                "lengths": {"source": "fixed", "prompt_tokens": 200, "output_tokens": 20},
                "requests": 60,
            },
            "sweep": {"workload.arrivals.rate_rps": [2, 4, 8], "deployment.tensor_parallel": [1, 2]},
        }
    )
    assert np.isfinite(LatencyGrowth(ds).of("e2e_s", np.arange(6))).all()


def test_the_lines_have_it():
    ds = swept([0.6, 0.8], [1 / 0.4, 1 / 0.2], wait=0.5)
    assert expected_errors(ds, np.array([1])) == [
        f"expected error, 68 % of measured means within: TTFT ± 25 % ({RUNS})"
    ]


@pytest.mark.parametrize(
    ("rows", "told"), [([0], "all wait for over a third of TTFT"), ([0, 1], "1 of 2 designs wait for over a third")]
)
def test_where_nothing_tells_it_of_designs_that_wait_it_is_said(rows, told):
    ds = swept([0.6, 0.8], [1.0, 2.0]).isel(config=rows)
    ds["queue_wait_s_mean"][0] = 0.4
    ds.attrs["coordinates_of"] = "[]"
    lines = expected_errors(ds, np.arange(len(rows)))
    assert "TTFT ± 5 %" in lines[0]
    assert lines[1].startswith(told) and lines[1].endswith("a swept rate or --sensitivity tells")


def test_over_all_designs_it_is_left_to_words():
    ds = swept([0.6, 0.8], [1 / 0.4, 1 / 0.2], wait=0.5)
    assert expected_errors(ds, np.arange(2), grown=False) == [
        f"expected error, 68 % of measured means within and more towards saturation: TTFT ± 5 % ({RUNS})"
    ]
