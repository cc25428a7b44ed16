"""A run in windows: counts and times are those of its requests, and the command's table and picture."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import evaluator
from evaluator.cli.app import app
from evaluator.errors import InputError
from evaluator.report.picture.over_time import over_time_figure
from evaluator.results.over_time import over_time

SCENARIO = {
    "workload": {
        "arrivals": {"process": "varying", "rate_rps": 4, "period_s": "20s", "profile": [["0s", 1], ["10s", 5]]},
        "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 20},
        "requests": 120,
        "seeds": [0, 1],
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
    "slo": {"ttft": {"p90": "30ms"}, "tpot": {"p90": "1s"}},
}


@pytest.fixture(scope="module")
def simulation():
    return evaluator.simulate(SCENARIO)


def test_windows_hold_every_request(simulation):
    ds, requests = simulation.over_time("5s"), simulation.requests
    whole = ds.attrs["window_s"] * ds.attrs["seeds"]
    assert ds["time"].values.tolist() == (5.0 * np.arange(len(ds["time"]))).tolist()
    for name in ("arrivals_rps", "completions_rps"):
        assert ds[name].sum().item() * whole == pytest.approx(len(requests))
    assert ds["output_tok_per_s"].sum().item() * whole == pytest.approx(requests["output_tokens"].sum())
    # Little's law, from empty to empty: what is in the system over time is what all requests spend in it.
    assert ds["in_system"].sum().item() * whole == pytest.approx(requests["e2e_s"].sum(), rel=1e-9)
    first = requests[requests["arrival_s"] < 5.0]
    assert ds["ttft_s"].sel(quantile=0.9)[0].item() == pytest.approx(first["ttft_s"].quantile(0.9))
    assert ds["attainment"][0].item() == pytest.approx((first["ttft_s"] <= 0.03).mean())
    assert 0 < ds["attainment"].min() < 1


def test_windows_without_arrivals_have_no_latency():
    requests = pd.DataFrame(
        {"seed": 0, "arrival_s": [0.5, 8.0], "last_token_s": [1.5, 9.0], "output_tokens": [1, 3],
         "ttft_s": [0.1, 0.2], "tpot_s": [np.nan, 0.01], "e2e_s": [1.0, 1.0]}
    )  # fmt: skip
    ds = over_time(requests, 2.0, (0.5,), {"tpot_s": 0.005})
    np.testing.assert_allclose(ds["in_system"], [0.5, 0, 0, 0, 0.5])
    assert np.isnan(ds["ttft_s"][1:4]).all() and ds["ttft_s"][0, 0] == 0.1
    np.testing.assert_array_equal(ds["attainment"], [1, np.nan, np.nan, np.nan, 0])  # one token has no TPOT


def test_replicas_are_counted_while_the_run_is_on():
    requests = pd.DataFrame(
        {"seed": [4, 4, 1, 1], "arrival_s": [1.5, 2.0, 0.5, 2.0], "last_token_s": [2.5, 5.5, 3.0, 3.5],
         "output_tokens": 1, "ttft_s": 0.1, "tpot_s": np.nan, "e2e_s": 1.0, "lost": [False, True, False, False]}
    )  # fmt: skip
    spans = np.array([[1.5, 4.5], [1.5, 4.5]]), np.array([[0.5, 3.5], [0.5, 3.5]])
    np.testing.assert_allclose(over_time(requests, 2.0, alive=spans)["replicas"], [2, 2, 2 * 0.5 / 1.5])
    # The run of the first seed ends with its last request, which is lost while both of its replicas are down.
    del requests["lost"]
    ds = over_time(requests, 1.0, up=spans)
    np.testing.assert_allclose(ds["replicas_up"], [2, 2, 2, 2, 2, np.nan])
    # Nobody has a time per token, which has no panel then.
    pytest.importorskip("matplotlib")
    labels = [axes.get_ylabel() for axes in over_time_figure(ds, "a run").axes]
    assert labels == ["requests/s", "requests", "replicas", "TTFT (s)"]


def test_quantiles_are_in_the_order_in_which_they_are_asked_for(simulation):
    requests = simulation.requests
    found = over_time(requests, "10s", (0.99, 0.5))["ttft_s"]
    xr.testing.assert_equal(found.sel(quantile=[0.5, 0.99]), over_time(requests, "10s", (0.5, 0.99))["ttft_s"])
    assert (found.sel(quantile=0.99) > found.sel(quantile=0.5)).any()


@pytest.mark.parametrize("every", [0, -1, 1e-9, "5 apples"])
def test_windows_of_no_length_are_refused(simulation, every):
    with pytest.raises(InputError):
        simulation.over_time(every)


def test_the_command_tells_windows(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(str(SCENARIO))
    table, picture, file = tmp_path / "w.csv", tmp_path / "w.png", tmp_path / "w.nc"

    def run(*words):
        return CliRunner().invoke(app, ["simulate", str(path), *map(str, words)])

    done = run("--over-time", "5s")
    assert done.exit_code == 0 and "in_system" in done.output and "ttft_p90_s" in done.output, done.output
    assert run("--over-time", "5s", "--windows", table, "--plot", picture).exit_code == 0
    assert {"begin_s", "tpot_p90_s", "attainment"} <= set(pd.read_csv(table).columns)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run("--over-time", "5s", "--windows", file).exit_code == 0
    assert xr.open_dataset(file).sizes["time"] > 3
    assert run("--plot", picture).exit_code == 2
    assert run("--over-time", "5 apples").exit_code == 2
    short = run("--over-time", "0")
    assert short.exit_code == 2 and "--over-time 0: a window must be longer than 0 s" in short.output
    assert run("--over-time", "5", "--windows", table).exit_code == 0 and pd.read_csv(table)["begin_s"][1] == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": [["1s", 1]]}, "must begin at time 0"),
        ({"profile": [["0s", 1], ["0s", 2]]}, "does not come after 0 s"),
        ({"profile": [["0s", 1], ["30s", 2]]}, "must be after the last time of the profile, 30 s"),
        ({"profile": [["0s", 0]]}, "has no factor above 0"),
        ({"profile": [["0s", -1]]}, "profile"),
        ({"profile": [["0s"]]}, "expected a time and a factor such as [8h, 1.5]"),
        ({"period_s": None}, "period_s"),
    ],
)
def test_profiles_that_say_nothing_are_refused(changes, message):
    arrivals = SCENARIO["workload"]["arrivals"] | changes
    with pytest.raises(InputError) as caught:
        evaluator.simulate(SCENARIO | {"workload": SCENARIO["workload"] | {"arrivals": arrivals}})
    assert message in str(caught.value)
