from dataclasses import replace

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.metrics import Bounds, bounds_of, place, quantile_levels, select, summarise
from evaluator.metrics.latency import latencies, within_objectives
from evaluator.metrics.power import H100, busy_power
from evaluator.metrics.use import WORK
from evaluator.metrics.variables import VARIABLES
from evaluator.stations.contract import use_without_devices
from tests.metrics.build import changed, outcomes, use, used
from tests.simulation.build import jobs

LEVELS = quantile_levels(())


def tiny(**changes):
    """Two measured requests after one of warm-up, one seed, one configuration, on two devices."""
    base = outcomes(configs=1, seeds=1, requests=3, warmup=1)
    values = {
        "arrival_s": [0.0, 1.0, 2.0],
        "scheduled_s": [0.0, 1.5, 3.0],
        "first_token_s": [0.5, 2.0, 4.0],
        "last_token_s": [0.9, 3.0, 6.0],
    }
    arrays = {name: np.array(value)[None, None] for name, value in values.items()}
    tokens = {"prompt_tokens": np.array([[5, 10, 20]]), "output_tokens": np.array([[3, 11, 1]])}
    (own,) = base.stations
    work = {name: np.array([[1.5]]) for name in WORK}
    own = replace(own, totals=own.totals._replace(busy_s=np.array([[3.0]])), **work)
    return changed(base, **arrays, **tokens, makespan_s=np.array([[6.0]]), stations=(own,), **changes)


def bound(metric, statistic, value, configs=1):
    return Bounds(metric, statistic, np.full(configs, value))


def test_latencies_by_hand():
    got = latencies(tiny())
    np.testing.assert_allclose(got["queue_wait_s"][0, 0], [0.0, 0.5, 1.0])
    np.testing.assert_allclose(got["ttft_s"][0, 0], [0.5, 1.0, 2.0])
    np.testing.assert_allclose(got["tpot_s"][0, 0], [0.2, 0.1, np.nan])
    np.testing.assert_allclose(got["e2e_s"][0, 0], [0.9, 2.0, 4.0])


def test_the_warmup_is_cut():
    got = summarise(tiny(), LEVELS)
    assert got["ttft_s_mean"][0] == pytest.approx(1.5)
    assert got["ttft_s"][0, 0] == pytest.approx(1.5)
    assert got["tpot_s_mean"][0] == pytest.approx(0.1)


def test_service_by_hand():
    got = summarise(tiny(), LEVELS)
    window = 6.0 - 1.0  # from the arrival of the first measured request to the last completion
    assert got["throughput_rps"][0] == pytest.approx(2 / window)
    assert got["output_tok_per_s"][0] == pytest.approx(12 / window)
    assert got["total_tok_per_s"][0] == pytest.approx(42 / window)
    assert got["tok_per_s_per_gpu"][0] == pytest.approx(12 / window / 2)
    assert got["tok_per_s_per_user"][0] == pytest.approx(10.0)
    assert got["utilisation"][0] == pytest.approx(0.5)
    assert got["mfu"][0] == pytest.approx(1.5 / (3.0 * 2 * 1.0))


def test_cpus_of_stages_are_no_gpus():
    whole, without = (summarise(replace(tiny(), accelerators=each), LEVELS) for each in (None, np.array([1])))
    np.testing.assert_allclose(without["tok_per_s_per_gpu"], 2 * whole["tok_per_s_per_gpu"])
    np.testing.assert_array_equal(without["usd_per_mtok"], whole["usd_per_mtok"])


def test_cost_by_hand():
    got = summarise(tiny(), LEVELS)
    assert got["usd_per_mtok"][0] == pytest.approx(2 * 3.6 / 3600 / (12 / 5.0) * 1e6)
    busy_w = busy_power(
        *map(np.array, (700.0, 100.0, H100, 0.25, 0.25))
    )  # MFU and MBU while it works: 1.5 / (2 devices x 3 s)
    assert got["joule_per_tok"][0] == pytest.approx(2 * (3.0 * busy_w + 3.0 * 100) / 15)  # whole run: 15 tokens


def test_rows_that_fill_experts_up_take_power_and_are_no_use():
    plain = tiny()
    filled = used(plain, executed_flops=np.full((1, 1), 3.0), executed_bytes=np.full((1, 1), 1.8))
    got, without = (summarise(whole, LEVELS) for whole in (filled, plain))
    assert (got["mfu"], got["mbu"]) == (without["mfu"], without["mbu"])
    busy_w = busy_power(*map(np.array, (700.0, 100.0, H100, 0.5, 0.3)))  # over 2 devices x 3 s
    assert got["joule_per_tok"][0] == pytest.approx(2 * (3.0 * busy_w + 3.0 * 100) / 15)


def test_energy_and_cost_are_not_guessed():
    unknown = np.array([np.nan])
    got = summarise(used(tiny(), idle_power_w=unknown, usd_per_hour=unknown), LEVELS)
    assert np.isnan(got["joule_per_tok"][0])
    assert np.isnan(got["usd_per_mtok"][0])


def test_replicas_share_the_devices():
    one = outcomes(configs=1)
    two = used(one, replicas=np.array([2.0]), devices=np.array([4.0]))
    got = summarise(two, LEVELS)
    np.testing.assert_allclose(got["mfu"], summarise(one, LEVELS)["mfu"])
    np.testing.assert_allclose(got["utilisation"], summarise(one, LEVELS)["utilisation"] / 2)


def test_a_replica_is_never_more_than_always_busy():
    one = outcomes(configs=1)
    got = summarise(used(one, busy_s=one.makespan_s * (1 + 1e-15)), LEVELS)
    assert got["utilisation"][0] == 1.0


def test_attainment_asks_all_bounds_of_a_request():
    values = {name: value[..., 1:] for name, value in latencies(tiny()).items()}
    inside = within_objectives(values, (bound("ttft", "p90", 1.5), bound("tpot", "mean", 0.2)))
    np.testing.assert_array_equal(inside[0, 0], [1.0, 0.0])  # the second misses ttft and has no tpot
    inside = within_objectives(values, (bound("tpot", "p90", 0.05),))
    np.testing.assert_array_equal(inside[0, 0], [0.0, 1.0])  # one token only: no tpot to miss


def test_slo_met_asks_the_statistic():
    # ttft of the measured requests: 1 and 2, so that p50 = 1.5 and p90 = 1.9.
    for statistic, limit, met in (("p50", 1.5, True), ("p50", 1.49, False), ("p90", 1.9, True), ("mean", 1.4, False)):
        o = tiny(objectives=(bound("ttft", statistic, limit),))
        got = summarise(o, quantile_levels(o.objectives))
        assert got["slo_met"][0] == met, statistic
        assert got["slo_attainment"][0] == 0.5


def test_without_an_objective_nothing_is_met_and_attainment_is_unknown():
    got = summarise(tiny(), LEVELS)
    assert not got["slo_met"][0]
    assert np.isnan(got["slo_attainment"][0])


def test_objectives_may_differ_between_configurations():
    class Objective:
        metric, statistic, request_class, confidence = "ttft", "p90", "", None

        def __init__(self, bound_s):
            self.bound_s = bound_s

    o = changed(outcomes(), objectives=bounds_of([[Objective(1e9)], [Objective(1e-9)], []]))
    got = summarise(o, LEVELS)
    np.testing.assert_array_equal(got["slo_met"], [True, False, False])
    np.testing.assert_array_equal(got["slo_attainment"], [1.0, 0.0, np.nan])


def test_quantiles_of_objectives_are_reported():
    np.testing.assert_allclose(quantile_levels((bound("ttft", "p99.9", 1.0),)), [0.5, 0.9, 0.95, 0.99, 0.999])
    np.testing.assert_allclose(quantile_levels((bound("ttft", "mean", 1.0),)), [0.5, 0.9, 0.95, 0.99])


def test_an_objective_on_gaps_needs_gaps():
    with pytest.raises(InputError, match=r"slo\.itl: the gaps between tokens were not recorded; use tpot"):
        summarise(tiny(objectives=(bound("itl", "p99", 0.1),)), LEVELS)
    gaps = [[(np.array([0.05, 0.2]), np.array([9, 1]))]]
    got = summarise(tiny(objectives=(bound("itl", "p50", 0.1),), itl=gaps), LEVELS)
    assert got["slo_met"][0]
    assert got["itl_s_mean"][0] == pytest.approx(0.065)
    assert np.isnan(got["slo_attainment"][0])  # gaps belong to tokens, not to requests


def test_rows_that_cannot_run_are_empty():
    broken = np.array(["ok", "infeasible: no room", "ok"])
    whole = outcomes()
    arrival = whole.times.arrival_s.copy()
    arrival[1] = np.nan
    got = summarise(
        changed(whole, status=broken, arrival_s=arrival, objectives=(bound("ttft", "p90", 9.0, 3),)), LEVELS
    )
    reference = summarise(changed(whole, objectives=(bound("ttft", "p90", 9.0, 3),)), LEVELS)
    for name in ("ttft_s", "throughput_rps"):
        assert np.isnan(got[name][1]).all()
        np.testing.assert_array_equal(got[name][[0, 2]], reference[name][[0, 2]])
    assert got["devices"].dtype == np.int64 and (got["devices"] == reference["devices"]).all()  # known beforehand
    assert got["slo_met"].dtype == got["saturated"].dtype == bool
    assert not got["slo_met"][1]


def test_nothing_that_can_run():
    got = summarise(changed(outcomes(), status=np.full(3, "infeasible: no room")), LEVELS)
    assert np.isnan(got["ttft_s"]).all()
    assert got["ttft_s"].shape == (3, 4)


def test_select_and_place_are_inverse():
    whole = outcomes(configs=4)
    rows = np.array([1, 3])
    part = summarise(select(whole, rows), LEVELS)
    numbers = {name: value for name, value in part.items() if value.dtype.kind in "bf"}
    spread = place(numbers, rows, 4)
    np.testing.assert_array_equal(spread["ttft_s"][rows], part["ttft_s"])
    assert np.isnan(spread["ttft_s"][[0, 2]]).all()


def test_closed_loop_is_never_saturated():
    overloaded = outcomes(load=2.0)
    assert summarise(overloaded, LEVELS)["saturated"].all()
    closed = replace(overloaded, open_loop=np.array([False, True, False]))
    np.testing.assert_array_equal(summarise(closed, LEVELS)["saturated"], [False, True, False])


def test_every_request_may_be_warmup_is_a_mistake():
    with pytest.raises(ValueError, match="no measured request"):
        summarise(outcomes(warmup=200), LEVELS)


def test_a_mask_with_holes_is_the_same_as_dropping_requests():
    o = outcomes(seeds=1)
    holes = o.measured.copy()
    holes[50] = False
    got = summarise(changed(o, measured=holes), LEVELS)
    expected = np.quantile(
        np.delete(o.times.first_token_s - o.times.arrival_s, [*range(20), 50], axis=-1), 0.9, axis=-1
    )
    np.testing.assert_allclose(got["ttft_s"][:, 1], expected[:, 0])


def test_percentiles_do_not_fall_and_every_variable_is_in_the_table():
    got = summarise(outcomes(load=0.9, objectives=(bound("ttft", "p90", 5.0, 3),)), LEVELS)
    for name in ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s"):
        assert (np.diff(got[name], axis=-1) >= -1e-9).all()
        assert f"{name}_stderr" in got
    assert set(got) <= set(VARIABLES)
    for value in got.values():
        assert isinstance(value, np.ndarray)


def test_queue_of_theory():
    """M/D/1 at load 0.5: mean wait rho / (2 (1 - rho)) = 0.5 (Pollaczek-Khinchine), within three standard errors."""
    o = outcomes(configs=1, seeds=8, requests=5000, load=0.5, warmup=500)
    got = summarise(o, LEVELS)
    assert abs(got["queue_wait_s_mean"][0] - 0.5) < 3 * got["queue_wait_s_mean_stderr"][0]
    assert got["throughput_rps"][0] == pytest.approx(0.5, rel=0.05)


# --- windows that differ, and several stations


def test_runs_with_windows_of_their_own_are_as_if_alone():
    """Two configurations with other warm-ups in one chunk: what each has with its warm-up for all."""
    whole = outcomes(configs=2, seeds=2, objectives=(bound("ttft", "p90", 0.6, 2),))
    masks = [np.arange(200) >= warmup for warmup in (20, 80)]
    got = summarise(changed(whole, measured=np.stack(masks)[:, None] & np.ones((2, 2, 200), dtype=bool)), LEVELS)
    for config, mask in enumerate(masks):
        alone = summarise(select(changed(whole, measured=mask), np.array([config])), LEVELS)
        for name, value in alone.items():
            if value.dtype.kind in "bf":
                np.testing.assert_allclose(got[name][config], value[0], rtol=1e-12, err_msg=name)


def test_a_mask_may_have_all_axes_and_still_be_one_window():
    whole = outcomes()
    got = summarise(changed(whole, measured=whole.measured[None, None]), LEVELS)
    np.testing.assert_array_equal(got["ttft_s"], summarise(whole, LEVELS)["ttft_s"])


def test_stations_add_up():
    """A pool of four devices at half its time beside one of two that is always busy, and a step without devices."""
    whole = outcomes(configs=1, seeds=1, requests=100, warmup=0)
    span = whole.makespan_s
    pools = (
        use(busy_s=span, power_w=np.array([500.0]), kv_unit_s=span * 100, iterations=np.array([[7.0]])),
        use(busy_s=span, devices=np.array([4.0]), replicas=np.array([2.0]), kv_unit_s=span * 0),
    )
    hop = use_without_devices("hop", [[jobs([0.0])]], np.ones(1), span)
    got = summarise(changed(whole, stations=(*pools, hop)), LEVELS)
    assert got["devices"][0] == 6
    assert got["utilisation"][0] == pytest.approx(2 / 6 * 1.0 + 4 / 6 * 0.5)
    assert got["kv_used_mean"][0] == pytest.approx(2 / 6)  # all of two devices' cache, nothing of the four's
    assert got["kv_used_max"][0] == 0.5
    assert got["mfu"][0] == pytest.approx(6 * 0.25 / (span.item() * (2 + 2)))
    assert got["iterations"][0] == 7 + 33
    used = 0.75 / (2 * span.item()), 1.5 / (2 * span.item())  # MFU and MBU, at both pools
    part = busy_power(*map(np.array, (1.0, 0.0, H100, *used)))  # of the TDP
    joule = span.item() * (2 * 500 * part + 2 * 700 * part + 2 * 100)
    assert got["joule_per_tok"][0] == pytest.approx(joule / 1100)
    assert got["usd_per_mtok"][0] == pytest.approx(6 * 3.6 / 3600 / got["output_tok_per_s"][0] * 1e6)


def test_a_queue_that_grows_meets_no_objective():
    """However loose the bound and short the run: a longer one would miss it."""
    bound = Bounds("ttft", "p90", np.full(2, 1e9))
    calm = outcomes(2, 1, 900, load=0.5, objectives=(bound,))
    found = summarise(calm, LEVELS)
    assert found["slo_met"].all() and not found["saturated"].any()
    found = summarise(outcomes(2, 1, 900, load=2.0, objectives=(bound,)), LEVELS)
    assert found["saturated"].all() and not found["slo_met"].any()
    np.testing.assert_array_equal(found["slo_attainment"], 1.0)  # of the requests that there were
