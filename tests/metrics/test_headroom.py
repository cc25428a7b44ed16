"""Headroom: against queues whose latency is known, at the ends of the rates, and where a design saturates."""

import numpy as np
import pytest

from evaluator.metrics.chance import objective_chance, spread
from evaluator.metrics.headroom import headrooms
from evaluator.metrics.statistics import batch_means, seed_stderr
from tests.metrics.build import fifo


def solved(rates, ratios, saturated=None):
    """Headroom and growth at each rate, of one objective."""
    ratios = np.asarray(ratios, dtype=float)[:, None]
    over = np.zeros(len(rates), dtype=bool) if saturated is None else np.asarray(saturated)
    with np.errstate(divide="ignore"):
        log_headroom, growth = headrooms(np.log(rates), np.log(ratios), over)
    return np.exp(log_headroom[:, 0]), growth[:, 0]


def test_a_latency_that_no_load_moves_grows_as_the_service():
    headroom, growth = solved([1.0, 2.0, 4.0], [0.8, 0.8, 0.8])
    np.testing.assert_allclose(headroom, 1.25)
    np.testing.assert_array_equal(growth, 1.0)


@pytest.mark.parametrize("bound", [2.0, 5.0])
def test_the_headroom_of_an_m_m_1_queue(bound):
    """Time in the system 1 / (1 - r): with a service k times as long k / (1 - k r), which is the bound b at
    k = b / (1 + b r), whether the bound is met at r or not."""
    rates = np.linspace(0.05, 0.9, 35)
    headroom, growth = solved(rates, 1.0 / (1.0 - rates) / bound)
    exact = bound / (1.0 + bound * rates)
    # Rates whose own k is among those that were swept; the others go on from the ends.
    inside = (exact * rates > rates[0]) & (exact * rates < rates[-1])
    assert inside.sum() > 20
    np.testing.assert_allclose(headroom[inside], exact[inside], rtol=3e-3)
    np.testing.assert_allclose(growth[inside], 1.0 / (1.0 - (exact * rates)[inside]), rtol=0.15)
    met = 1.0 / (1.0 - rates) <= bound
    np.testing.assert_array_equal(headroom >= 1.0, met)
    assert (np.diff(headroom) < 0).all()


def test_it_is_what_a_slower_service_makes_of_the_same_requests():
    """M/D/1 on one draw of arrivals: the mean latency at the headroom found, simulated, is the bound."""
    gaps = np.random.default_rng(0).exponential(1.0, 20_000)

    def latency(rate, service_s):
        arrival_s = np.cumsum(gaps) / rate
        return float(np.mean(fifo(arrival_s, np.full(gaps.size, service_s)) + service_s - arrival_s))

    rates = np.array([0.4, 0.5, 0.6, 0.7, 0.8, 0.85])
    headroom, _ = solved(rates, [latency(rate, 1.0) / 2.0 for rate in rates])
    for rate, slower in zip(rates[:4], headroom[:4], strict=True):
        assert latency(rate, slower) == pytest.approx(2.0, rel=0.05)


def test_beyond_the_last_rate_the_growth_there_goes_on_up_to_saturation():
    rates = np.array([0.5, 0.6])
    ratios = 1.0 / (1.0 - rates) / 5.0
    headroom, growth = solved(rates, ratios)
    # 1 / L falls linearly: 1 + r / (1 - r) is exact for M/M/1.
    assert growth[-1] == pytest.approx(1.0 / (1.0 - 0.6))
    assert headroom[-1] == pytest.approx(ratios[-1] ** (-1.0 / growth[-1]))
    # At 0.62 the queue grows for good, whatever the line says.
    headroom, _ = solved([0.5, 0.6, 0.62], [*ratios, 0.7], [False, False, True])
    np.testing.assert_allclose(headroom[:2], [0.62 / 0.5, 0.62 / 0.6])
    assert headroom[2] == 1.0  # of the saturated rate itself: as good as the rate below, at most
    headroom, _ = solved([0.5, 0.8], [0.4, 0.5], [False, True])
    assert headroom[1] == 1.0


def test_a_saturated_design_has_the_headroom_that_lets_it_keep_up():
    headroom, _ = solved([1.0, 2.0, 4.0], [0.5, 0.9, 0.6], [False, False, True])
    # At half of its rate, with a service that takes half as long, it has 0.45 of the bound; then it grows as at 2.
    growth = 1.0 + (0.9 / 0.5 - 1.0) / (1.0 - 0.5)
    assert headroom[2] == pytest.approx(0.5 * 0.45 ** (-1.0 / growth)) and headroom[2] < 1.0
    nowhere, growth = solved([1.0, 2.0], [0.5, 0.9], [True, True])
    assert np.isnan(nowhere).all() and np.isnan(growth).all()


def test_chance_between_two_rates_is_no_headroom():
    """A latency that is longer at a lower rate counts as no longer, and a bound is met exactly where it is."""
    headroom, growth = solved([1.0, 2.0, 3.0], [0.95, 0.9, 1.05])
    np.testing.assert_array_equal(headroom >= 1.0, [True, True, False])
    assert (growth >= 1.0).all()
    assert solved([1.0, 2.0], [0.0, 0.0])[0].min() > 1e6  # waits of nothing
    assert np.isnan(solved([1.0, 2.0], [np.nan, np.nan])[0]).all()  # no such objective


def by_all_pairs(log_rate, log_ratio, saturated):
    """How many of the lowest rates meet the bound with the service that each stands for at ``row``, (row,): as the
    docstring of the module has it, with a table of all pairs of rates."""
    missed, count = np.where(saturated, np.inf, log_ratio), len(log_rate)
    table = [[missed[min(row, to) : max(row, to) + 1] for to in range(count)] for row in range(count)]
    around = [
        [np.max(some) if to >= row else np.min(some) for to, some in enumerate(table[row])] for row in range(count)
    ]
    return (np.array(around) + log_rate - log_rate[:, None] <= 0.0).sum(axis=1)


@pytest.mark.parametrize("seed", range(30))
def test_any_rates_are_solved_as_by_a_table_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    log_rate = np.sort(rng.choice(np.linspace(-2.0, 2.0, 100), count, replace=False))
    log_ratio = rng.normal(size=(count, 3, 2)) + np.linspace(-2.0, 2.0, count)[:, None, None]
    saturated = rng.random((count, 3)) < 0.2
    log_headroom, growth = headrooms(log_rate, log_ratio, saturated)
    for design in range(3):
        one = headrooms(log_rate, log_ratio[:, design], saturated[:, design])
        np.testing.assert_array_equal(one, (log_headroom[:, design], growth[:, design]))
        for place in range(2):
            met = by_all_pairs(log_rate, log_ratio[:, design, place], saturated[:, design])
            ratio = np.append(log_rate, np.inf)[met] - log_rate  # of the lowest rate that does not meet it
            known = np.isfinite(log_headroom[:, design, place])
            assert (log_headroom[known, design, place] <= ratio[known] + 1e-12).all()
            below = np.append(-np.inf, log_rate)[met] - log_rate
            assert (log_headroom[known, design, place] >= below[known] - 1e-12).all()


@pytest.mark.parametrize("seed", range(10))
def test_rates_whose_latency_is_not_known_are_left_out(seed):
    rng = np.random.default_rng(seed)
    log_rate, known = np.linspace(-2.0, 2.0, 30), rng.random(30) < 0.7
    log_ratio = np.where(known, rng.normal(size=30) + log_rate, np.nan)[:, None]
    log_headroom, _ = headrooms(log_rate, log_ratio, np.zeros(30, dtype=bool))
    assert np.isnan(log_headroom[~known]).all()
    # At the others the headroom reaches at least as far as the last of them that meets the bound.
    finite = np.isfinite(log_headroom[known])
    met = by_all_pairs(log_rate[known], log_ratio[known, 0], np.zeros(known.sum(), dtype=bool))
    below = np.append(-np.inf, log_rate[known])[met][:, None] - log_rate[known, None]
    assert finite.any() and (log_headroom[known][finite] >= below[finite] - 1e-12).all()


@pytest.mark.parametrize("bound", [1.8, 2.6])
def test_chances_are_the_share_of_real_queues_that_meet_the_bound(bound):
    """M/D/1 at 0.6: each prediction is a run of its own, by chance too fast or too slow; each real service is off by
    an error of its own. Whether its mean latency meets the bound is known in closed form (Pollaczek-Khinchine)."""
    seeds, model_error, place = 400, 0.12, 2
    rng, rates = np.random.default_rng(5), np.array([0.4, 0.5, 0.6, 0.66, 0.72, 0.8])
    gaps = rng.exponential(1.0, (seeds, 1, 3000))
    arrival_s = np.cumsum(gaps, axis=-1) / rates[:, None]
    latency_s = (fifo(arrival_s, np.ones_like(arrival_s)) + 1.0 - arrival_s)[..., 300:]
    ratio = latency_s.mean(axis=-1) / bound  # (seed, rate)
    stderr = seed_stderr(batch_means(latency_s[:, place])) / bound
    chances = []
    for of_run, error in zip(ratio, stderr, strict=True):
        headroom, growth = solved(rates, of_run)
        told = (model_error, model_error, of_run[place], error, growth[place])
        deviation = spread(*(np.array([figure]) for figure in told))
        chances.append(objective_chance(headroom[[place]], deviation)[0])
    slower = np.exp(np.log1p(model_error) * rng.standard_normal(20_000))
    load = np.minimum(slower * rates[place], 1.0 - 1e-9)
    real = (slower * (1.0 + load / (2.0 * (1.0 - load))) <= bound).mean()
    assert np.mean(chances) == pytest.approx(real, abs=0.03)
