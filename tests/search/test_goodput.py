"""Goodput: against all rates of the lattice, against the theory of queues, and where there is none or no end."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

import evaluator
from evaluator.errors import InputError
from evaluator.search.goodput import SATURATION
from tests.search.build import axes, scenario

BRACKET = 0.1


@pytest.fixture(scope="module")
def grid():
    sweep = axes(deployment__tensor_parallel=[1, 2], deployment__batching__policy=["chunked", "continuous"])
    return scenario(sweep=sweep)


@pytest.fixture(scope="module")
def found(grid):
    return evaluator.optimize(grid, bracket=BRACKET)


def test_the_winner_is_that_of_all_rates(grid, found):
    """Every rate of the lattice around the result, as a sweep: the same numbers, and the same largest rate."""
    steps = np.arange(-14, 16)
    for row in range(found.sizes["config"]):
        point = round(np.log(found["goodput_rps"].values[row]) / np.log1p(BRACKET))
        rates = [float((1.0 + BRACKET) ** float(step)) for step in point + steps]
        at = {name: found[name].values[row] for name in ("tensor_parallel", "policy")}
        one = scenario(
            f"deployment.tensor_parallel={at['tensor_parallel']}",
            f"deployment.batching.policy={at['policy']}",
            sweep=axes(workload__arrivals__rate_rps=rates),
        )
        ds = evaluator.sweep(one)
        serves = ds["slo_met"].values & ~ds["saturated"].values
        largest = int(np.flatnonzero(serves).max())
        assert rates[largest] == found["goodput_rps"].values[row]
        assert found["goodput_high_rps"].values[row] == pytest.approx(rates[largest] * (1 + BRACKET))
        for name in ("ttft_s", "tpot_s", "throughput_rps", "utilisation"):
            np.testing.assert_array_equal(ds[name].values[largest], found[name].values[row], err_msg=name)


def test_what_is_said_of_each_design(found):
    assert (found["status"] == "ok").all() and found["slo_met"].all() and not found["saturated"].any()
    rate, price = found["goodput_rps"].values, found["usd_per_hour"].values
    np.testing.assert_allclose(found["goodput_rps_per_gpu"], rate / found["devices"])
    np.testing.assert_allclose(found["goodput_per_usd"], 3600 * rate / price)
    np.testing.assert_allclose(found["tok_per_joule"], 1 / found["joule_per_tok"])
    np.testing.assert_allclose(price, found["devices"] * evaluator_price("h100-sxm"))
    assert found["pool_layout"].values.tolist() == ["1 x tp1", "1 x tp1", "1 x tp2", "1 x tp2"]
    assert set(found["goodput_limit"].values.tolist()) <= {"ttft p90", "tpot p90", SATURATION}
    assert all(name in found.attrs for name in ("search", "scenario", "objectives"))


def evaluator_price(name: str) -> float:
    from evaluator.catalog import load_hardware

    price = load_hardware(name).usd_per_hour
    assert price is not None
    return price


def single_server(seeds: int, **slo) -> dict:
    """One request at a time, of one length: an M/D/1 queue."""
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "fixed", "prompt_tokens": 2000, "output_tokens": 1},
            "requests": 4000,
            "warmup_requests": 400,
            "seeds": list(range(seeds)),
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "calibration": "datasheet",  # without a frontend's time around the server
            "batching": {"policy": "static", "max_num_seqs": 1},
        },
        "slo": slo,
    }


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_the_goodput_of_an_m_d_1_queue(load):
    """Pollaczek-Khinchine: the mean wait is load x service / (2 (1 - load)), so a bound on it is one on the load."""
    bare = evaluator.sweep(single_server(1, ttft={"mean": 1.0}))  # its requests hardly wait
    service_s = float(bare["ttft_s_mean"].values[0] - bare["queue_wait_s_mean"].values[0])
    bound = load * service_s / (2.0 * (1.0 - load))
    ds = evaluator.optimize(single_server(8, queue_wait={"mean": bound}), bracket=0.005)
    rate, error = float(ds["goodput_rps"].values[0]), float(ds["goodput_rps_stderr"].values[0])
    assert 0.0 < error < 0.03 * rate
    assert abs(rate - load / service_s) < 3.0 * error + 0.005 * rate
    assert ds["goodput_limit"].values[0] == "queue_wait mean"
    # The rate at which the wait meets its bound goes as 2 B / (s (s + 2 B)) with the service s: d ln rate / d ln s is
    # -(2 - load), which is what an error of the service is multiplied by.
    grown = float(ds["goodput_rps_model_error"].values[0] / ds["e2e_s_model_error"].values[0])
    assert grown == pytest.approx(2.0 - load, abs=0.08)


def test_its_standard_error_is_the_spread_of_the_seeds():
    """The goodputs of seeds alone scatter as the error of one of them says."""
    bare = evaluator.sweep(single_server(1, ttft={"mean": 1.0}))
    service_s = float(bare["ttft_s_mean"].values[0] - bare["queue_wait_s_mean"].values[0])
    together = evaluator.optimize(single_server(12, queue_wait={"mean": service_s}), bracket=0.005)
    alone = []
    for seed in range(12):
        given = single_server(1, queue_wait={"mean": service_s})
        given["workload"]["seeds"] = [seed]
        alone.append(float(evaluator.optimize(given, bracket=0.005)["goodput_rps"].values[0]))
    assert float(together["goodput_rps_stderr"].values[0]) == pytest.approx(np.std(alone, ddof=1) / 12**0.5, rel=0.5)


def test_relaxed_objectives_are_larger_bounds():
    slo = {"ttft": {"p90": 0.06}, "tpot": {"p90": 0.05}}
    relaxed = evaluator.optimize(scenario(slo={**slo, "relax": 0.5}), bracket=BRACKET)
    wider = {name: {"p90": bound["p90"] * 1.5} for name, bound in slo.items()}
    same = evaluator.optimize(scenario(slo=wider), bracket=BRACKET)
    strict = evaluator.optimize(scenario(slo=slo), bracket=BRACKET)
    assert relaxed["goodput_rps"].values == same["goodput_rps"].values > strict["goodput_rps"].values


@pytest.fixture(scope="module")
def by_confidence():
    """A search without a confidence (nan) and with ever more of it."""
    slo = {"ttft": {"p90": 0.2}, "tpot": {"p90": 0.05}}
    asked = {level: {**slo, "confidence": level} for level in (0.7, 0.9, 0.97)} | {0.5: slo}
    return {level: evaluator.optimize(scenario(slo=asked[level]), bracket=0.02) for level in sorted(asked)}


def test_more_confidence_is_no_more_goodput(by_confidence):
    rates = [float(ds["goodput_rps"].values[0]) for ds in by_confidence.values()]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[1] > rates[-1] > 0.0
    chances = [float(ds["slo_chance"].values[0]) for ds in by_confidence.values()]
    assert 0.5 <= chances[0] < 0.6  # the search ends where an objective is met just
    assert all(level <= chance for level, chance in zip((0.7, 0.9, 0.97), chances[1:], strict=True))
    assert by_confidence[0.9]["slo_met"].all() and by_confidence[0.9]["goodput_limit"].values[0] == "ttft p90"


def test_the_rate_of_a_confidence_is_that_of_a_slower_service(by_confidence):
    """With a service that is slower by what the confidence asks for, the design is at its goodput without one: at k
    times the rate the latency is the bound over k."""
    ds = by_confidence[0.9]
    rate, headroom = float(ds["goodput_rps"].values[0]), float(ds["objective_headroom"].values[0, 0])
    asked = np.exp(NormalDist().inv_cdf(0.9) * np.log1p(ds["objective_mean_error"].values[0, 0]))
    assert headroom >= asked > 1.0
    there = scenario(f"workload.arrivals.rate_rps={rate * headroom}", slo={"ttft": {"p90": 0.2}})
    assert evaluator.sweep(there)["ttft_s"].sel(quantile=0.9).values[0] == pytest.approx(0.2 / headroom, rel=0.03)


def test_no_confidence_is_reached_where_the_best_is_not_good_enough():
    slo = {"tpot": {"p90": "7.1ms"}, "confidence": 0.9}  # a decode alone takes 6.9
    text = str(evaluator.optimize(scenario(slo=slo), bracket=BRACKET)["search_status"].values[0])
    assert "with a chance of 0.9 tpot p90 is within" in text and text.endswith("and the bound is 7.1 ms")


def test_objectives_that_no_rate_meets():
    ds = evaluator.optimize(scenario(slo={"tpot": {"p90": "1ms"}}), bracket=BRACKET)
    assert ds["goodput_rps"].values == 0.0 and ds["goodput_high_rps"].values > 0.0
    text = str(ds["search_status"].values[0])
    assert text.startswith("no rate meets the objectives: at 0.0") and "tpot p90 is" in text
    assert text.endswith("and the bound is 1 ms")


def test_objectives_without_a_bound_on_waits_end_where_the_queue_grows():
    ds = evaluator.optimize(scenario("workload.requests=2000", slo={"tpot": {"p90": "10s"}}), bracket=BRACKET)
    assert ds["goodput_limit"].values[0] == SATURATION and np.isnan(ds["goodput_rps_stderr"].values[0])
    assert ds["goodput_rps_model_error"].values[0] == ds["e2e_s_model_error"].values[0]
    overload = evaluator.sweep(scenario("workload.requests=2000", "workload.arrivals.rate_rps=20"))
    assert ds["goodput_rps"].values[0] == pytest.approx(overload["throughput_rps"].values[0], rel=0.25)


def test_all_at_once_is_its_throughput():
    ds = evaluator.optimize(
        scenario("workload.arrivals={process: all_at_once, rate_rps: null}", slo={"tpot": {"p90": 1}})
    )
    assert ds["goodput_rps"].values == ds["throughput_rps"].values and np.isinf(ds["goodput_high_rps"].values[0])
    assert str(ds["search_status"].values[0]).startswith("unbounded: ")
    slow = evaluator.optimize(
        scenario("workload.arrivals={process: all_at_once, rate_rps: null}", slo={"ttft": {"p90": 1}})
    )
    assert slow["goodput_rps"].values == 0.0 and "with all requests at once ttft p90 is" in str(
        slow["search_status"].values
    )


def test_few_requests_that_tell_no_rate_are_not_what_a_design_is_ranked_by():
    """Sixty requests at once are served before anybody waits: a burst's throughput is no capacity."""
    slo = {"ttft": {"p90": "1s"}, "tpot": {"p90": "30ms"}}
    few, more = (
        evaluator.optimize(
            scenario(f"workload.requests={count}", "deployment.batching.max_num_seqs=128", slo=slo),
            bracket=BRACKET,
            simulator="token",
        )
        for count in (60, 960)
    )
    assert few["requests_run"].values > 60 and np.isfinite(few["goodput_high_rps"].values[0])
    assert few["goodput_rps"].values == pytest.approx(more["goodput_rps"].values, rel=0.5)
    assert "met the objectives however fast 60 requests came, which tells no rate" in few.attrs["search_note"]
    assert "search_note" not in more.attrs


def test_a_short_run_is_told():
    ds = evaluator.optimize(scenario("workload.requests=100", "deployment.replicas=3"), bracket=BRACKET)
    assert not ds["steady"].values[0]
    text = str(ds["search_status"].values[0])
    assert text.startswith("bracketed, but the run of 100 requests is not steady") and text.endswith(
        "requests, or auto"
    )


def test_short_runs_are_made_longer(monkeypatch):
    monkeypatch.setattr("evaluator.scenario.workload.DEFAULT_REQUESTS", 100)
    sweep = axes(deployment__tensor_parallel=[1, 2])
    many, sweep = "deployment.replicas=8", axes(deployment__tensor_parallel=[1, 2])
    ds = evaluator.optimize(scenario(many, "workload.requests={auto: {most: 1600}}", sweep=sweep), bracket=BRACKET)
    assert (ds["search_status"] == "bracketed").all() and ds["steady"].all()
    assert set(ds["requests_run"].values.tolist()) <= {400, 1600}
    for row in range(2):
        parallel = f"deployment.tensor_parallel={int(ds['tensor_parallel'].values[row])}"
        count = int(ds["requests_run"].values[row])
        same = evaluator.optimize(scenario(many, parallel, f"workload.requests={count}"), bracket=BRACKET)
        assert same["goodput_rps"].values[0] == ds["goodput_rps"].values[row]
        np.testing.assert_array_equal(same["ttft_s"].values[0], ds["ttft_s"].values[row])


def test_rates_of_the_sweep_are_left_out():
    ds = evaluator.optimize(scenario(sweep=axes(workload__arrivals__rate_rps=[1, 2, 3])), bracket=BRACKET)
    assert ds.sizes["config"] == 1 and "the axis workload.arrivals.rate_rps is left out" in ds.attrs["search_note"]
    mixed = {"design": {"zip": [{"workload.arrivals.rate_rps": 2, "deployment.tensor_parallel": 2}]}}
    with pytest.raises(InputError, match=r"sweep\.design: sets workload\.arrivals\.rate_rps beside other keys"):
        evaluator.optimize(scenario(sweep=mixed))


def test_a_trace_is_sent_faster(tmp_path):
    file = tmp_path / "trace.csv"
    rows = [f"{0.5 * n},{200 + n},{20 + n % 7}" for n in range(200)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    traced = {"workload": {"arrivals": {"process": "trace", "file": str(file)}}}
    ds = evaluator.optimize(scenario(**traced), bracket=BRACKET)
    assert ds["goodput_rps"].values[0] > 2.0 and "bracketed" in str(ds["search_status"].values[0])


def test_rounds_of_fewer_designs_compile_nothing_more(grid):
    from evaluator.stations.engine.fcfs_reserved import run_lanes

    evaluator.optimize(grid, bracket=BRACKET)
    before = run_lanes._cache_size()
    evaluator.optimize(grid, bracket=0.02)
    assert run_lanes._cache_size() == before


def test_progress_is_told_in_trials(grid):
    class Watch:
        total = done = 0

        def expect(self, units):
            self.total = units

        def advance(self, units=1):
            self.done += units

    watch = Watch()
    evaluator.optimize(grid, bracket=BRACKET, progress=watch)
    assert watch.done == watch.total >= 4 * 4


@pytest.mark.parametrize(
    ("sections", "overrides", "message"),
    [
        ({"slo": {}}, (), r"slo: a search needs objectives"),
        ({}, ("workload.arrivals={process: closed_loop, users: 4, rate_rps: null}",), "a closed loop has no rate"),
        ({"sweep": {"workload.arrivals.rate_rps": [1, 2], "where": "rate_rps > 1"}}, (), "no condition can be on it"),
    ],
)
def test_what_cannot_be_searched(sections, overrides, message):
    with pytest.raises(InputError, match=message):
        evaluator.optimize(scenario(*overrides, **sections))


def test_numbers_out_of_range():
    with pytest.raises(InputError, match=r"bracket: must be from 0\.0001 to 1"):
        evaluator.optimize(scenario(), bracket=0.0)
    with pytest.raises(InputError, match="rate: must be a positive number"):
        evaluator.optimize(scenario(), rate_rps=-1.0)


def test_sessions_are_those_of_the_rate():
    """What a search finds does not depend on the rate that the scenario happens to have, and is what a sweep finds."""
    session_turns = "{turns: {mean: 3}, think_s: {mean: 5}, think_from: arrival}"

    def asked(rate: float):
        more = [
            f"workload.arrivals.rate_rps={rate}",
            "workload.requests=1000",
            "deployment.kv.prefix_caching=false",
            f"workload.sessions={session_turns}",
        ]
        return scenario(*more)

    ds = [evaluator.optimize(asked(rate), bracket=BRACKET) for rate in (1.0, 16.0)]
    goodput = float(ds[0]["goodput_rps"].values[0])
    assert goodput > 1.0 and [float(one["goodput_rps"].values[0]) for one in ds] == [goodput] * 2
    swept = evaluator.sweep(asked(goodput))
    np.testing.assert_allclose(ds[0]["ttft_s"].values, swept["ttft_s"].values, rtol=1e-12)


def test_runs_are_as_long_as_it_takes_unless_the_scenario_says_how_long():
    said = scenario()
    unsaid = {key: value for key, value in _tree(said).items() if key != "sweep"}
    del unsaid["workload"]["requests"]
    unsaid["workload"].pop("warmup_requests", None)
    ds = evaluator.optimize(unsaid, bracket=0.5)
    assert ds["steady"].all() and ds["requests_run"].item() >= 1000
    assert evaluator.optimize(said, bracket=0.5)["requests_run"].item() == said.workload.requests


def _tree(one):
    from evaluator.yaml import loads_yaml

    return loads_yaml(one.text, "test")
