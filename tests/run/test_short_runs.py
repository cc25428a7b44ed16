"""Runs so short that compiling a program would take longer: the reference computes them unless asked otherwise."""

import numpy as np
import pytest

from evaluator.run import simulate, sweep

SCENARIO = {
    "name": "short",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 200, "output_tokens": 20},
        "requests": 40,
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": {"admission": "reserve"}},
    "slo": {"ttft": {"p90": "1s"}},
    "sweep": {"workload.arrivals.rate_rps": [1, 2, 4]},
}


def with_(**workload):
    return SCENARIO | {"workload": SCENARIO["workload"] | workload}


def test_a_short_sweep_goes_to_the_reference_and_says_so(as_users_run):
    ds = sweep(SCENARIO)
    assert set(ds["engine"].values) == {"token"}
    assert ds.attrs["engine_note"] == (
        "3 of 3 configurations were computed token by token: too few requests for a program to be worth its compilation"
    )
    compiled = sweep(SCENARIO, simulator="iteration")
    assert set(compiled["engine"].values) == {"iteration"} and "engine_note" not in compiled.attrs
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tok_per_s"):
        np.testing.assert_allclose(ds[name].values, compiled[name].values, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(("requests", "engine"), [(1_600, "token"), (1_700, "iteration")])
def test_what_counts_are_the_requests_of_the_whole_sweep(requests, engine, as_users_run):
    assert set(sweep(with_(requests=requests))["engine"].values) == {engine}


@pytest.mark.parametrize(("requests", "engine"), [(4_900, "token"), (5_000, "iteration")])
def test_of_one_configuration_its_own(requests, engine, as_users_run):
    assert simulate(with_(requests=requests), select={"rate": "4"}).summary["engine"].item() == engine
