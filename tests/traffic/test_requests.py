import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.scenario import Arrivals, Lengths, Workload
from evaluator.traffic.arrivals import arrival_times, unit_gaps
from evaluator.traffic.requests import request_tokens

FIXED = Lengths("fixed", {"prompt_tokens": 100, "output_tokens": 10})
LOGNORMAL = Lengths(
    "lognormal",
    {"prompt_mean": 500, "prompt_cv": 1.0, "prompt_min": 1, "output_mean": 80, "output_cv": 0.5, "output_min": 1},
)
RATED = {
    "poisson": Arrivals("poisson", 4.0),
    "gamma": Arrivals("gamma", 4.0, cv=2.0),
    "uniform": Arrivals("uniform", 4.0),
    "normal": Arrivals("normal", 4.0, std_s=0.2),
    "burst": Arrivals("burst", 4.0, on_s=2.0, off_s=6.0, factor=3.0),
    "full burst": Arrivals("burst", 4.0, on_s=2.0, off_s=6.0, factor=4.0),
    "varying": Arrivals("varying", 4.0, profile=((0.0, 0.0), (2.0, 6.0), (5.0, 3.0), (6.0, 0.0)), period_s=8.0),
    "steps": Arrivals("varying", 4.0, profile=((0.0, 1.0), (2.0, 0.0), (5.0, 3.0)), period_s=8.0, between="steps"),
}
SEEDS = range(20)
N = 5000


def workload(arrivals=RATED["poisson"], lengths=FIXED, requests=1000, cached=0):
    return Workload(arrivals, lengths, requests, 0, seeds=(0,), cached_tokens=cached)


def traffic(given, seed, count=None):
    """Arrivals and lengths together."""
    count = given.requests if count is None else count
    tokens = {name: values for name, values in vars(request_tokens(given, seed, count)).items() if values is not None}
    return SimpleNamespace(arrival_s=arrival_times(given.arrivals, seed, count), **tokens)


@pytest.mark.parametrize("arrivals", RATED.values(), ids=RATED.keys())
def test_the_mean_gap_is_the_inverse_of_the_rate(arrivals):
    """Over 20 seeds, within four standard errors of the observed spread between seeds."""
    means = np.array([arrival_times(arrivals, seed, N)[-1] / N for seed in SEEDS])
    error = means.std(ddof=1) / np.sqrt(len(means)) + 0.25 / N
    assert abs(means.mean() - 0.25) < 4 * error
    assert error < 0.02


@pytest.mark.parametrize("arrivals", RATED.values(), ids=RATED.keys())
def test_times_never_decrease_and_start_after_the_first_gap(arrivals):
    times = arrival_times(arrivals, 3, N)
    assert times.dtype == np.float64
    assert np.all(np.diff(times) >= 0)
    assert (times[0] == 0) == (arrivals.process == "uniform")


@pytest.mark.parametrize(("arrivals", "cv"), [(RATED["poisson"], 1.0), (RATED["gamma"], 2.0), (RATED["uniform"], 0.0)])
def test_the_spread_of_the_gaps(arrivals, cv):
    gaps = np.concatenate([unit_gaps(arrivals, seed, N)[1:] for seed in SEEDS])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-12)


def test_the_normal_process_is_even_where_its_spread_is_zero():
    times = arrival_times(Arrivals("normal", 4.0, std_s=0.0), 0, 8)
    np.testing.assert_allclose(times, np.arange(1, 9) / 4)


def test_bursts_send_factor_times_the_rate_while_on():
    arrivals = RATED["burst"]  # on for 2 of 8 s at 12 per second: 24 of the 32 requests of a period
    times = np.concatenate([arrival_times(arrivals, seed, N) for seed in SEEDS])
    assert np.mean(times % 8.0 < 2.0) == pytest.approx(0.75, abs=0.01)
    assert np.all(arrival_times(RATED["full burst"], 1, N) % 8.0 <= 2.0 + 1e-9)


def test_arrivals_follow_their_profile():
    """Shares of each part of a period, over 100,000 requests: those of the areas below the profile."""
    for name, areas in (("varying", [6.0, 13.5, 1.5, 0.0]), ("steps", [2.0, 0.0, 9.0])):
        arrivals = RATED[name]
        times = np.concatenate([arrival_times(arrivals, seed, N) for seed in SEEDS]) % 8.0
        corners = [at_s for at_s, _ in arrivals.profile]
        shares = np.histogram(times, [*corners, 8.0])[0] / len(times)
        np.testing.assert_allclose(shares, np.array(areas) / sum(areas), atol=0.006)
    # Within a part, too: of the first two seconds, where the rate rises from 0, three quarters in the second half.
    rising = np.concatenate([arrival_times(RATED["varying"], seed, N) for seed in SEEDS]) % 8.0
    assert np.mean(rising[rising < 2.0] < 1.0) == pytest.approx(0.25, abs=0.01)


def test_a_level_profile_is_a_poisson_process():
    level = Arrivals("varying", 4.0, profile=((0.0, 7.0), (3.0, 7.0)), period_s=5.0)
    np.testing.assert_allclose(arrival_times(level, 3, N), arrival_times(RATED["poisson"], 3, N), rtol=1e-9)


def test_all_at_once_and_closed_loop_start_at_zero():
    for arrivals in (Arrivals("all_at_once"), Arrivals("closed_loop", users=4)):
        assert not traffic(workload(arrivals), 0).arrival_s.any()


@given(st.floats(0.01, 1000.0), st.integers(0, 2**32), st.sampled_from(["poisson", "gamma", "uniform"]))
@settings(max_examples=30)
def test_the_rate_only_scales_the_times(rate, seed, process):
    arrivals = dataclasses.replace(RATED[process], rate_rps=rate)
    times = traffic(workload(arrivals, requests=50), seed).arrival_s
    np.testing.assert_array_equal(times, np.cumsum(unit_gaps(arrivals, seed, 50)) / rate)


@given(st.integers(0, 2**63 - 1))
@settings(max_examples=20)
def test_common_random_numbers(seed):
    """The same seed: the same lengths under any arrivals, gaps under any lengths, and start of a longer run."""
    one = traffic(workload(lengths=LOGNORMAL, requests=60), seed)
    other = traffic(workload(Arrivals("closed_loop", users=3), LOGNORMAL, 60), seed)
    np.testing.assert_array_equal(one.prompt_tokens, other.prompt_tokens)
    np.testing.assert_array_equal(one.output_tokens, other.output_tokens)
    np.testing.assert_array_equal(one.arrival_s, traffic(workload(requests=60), seed).arrival_s)
    longer = traffic(workload(lengths=LOGNORMAL, requests=100), seed)
    shorter = traffic(workload(lengths=LOGNORMAL, requests=100), seed, count=60)
    for name, values in vars(one).items():
        np.testing.assert_array_equal(values, getattr(longer, name)[:60])
        np.testing.assert_array_equal(values, getattr(shorter, name))


def test_seeds_differ_and_gaps_do_not_follow_lengths():
    one, two = (traffic(workload(lengths=LOGNORMAL, requests=N), seed) for seed in (0, 1))
    assert not np.array_equal(one.prompt_tokens, two.prompt_tokens)
    assert not np.array_equal(one.arrival_s, two.arrival_s)
    gaps = np.diff(one.arrival_s, prepend=0.0)
    assert abs(np.corrcoef(gaps, one.prompt_tokens)[0, 1]) < 4 / np.sqrt(N)
    assert abs(np.corrcoef(one.output_tokens, one.prompt_tokens)[0, 1]) < 4 / np.sqrt(N)


def lengths(source, **parameters):
    both = {f"{side}_{key}": value for side in ("prompt", "output") for key, value in parameters.items()}
    return traffic(workload(lengths=Lengths(source, both), requests=40_000), 5)


def test_fixed_lengths():
    sent = lengths("fixed", tokens=17)
    assert set(sent.prompt_tokens) == set(sent.output_tokens) == {17}


def test_lognormal_lengths():
    tokens = lengths("lognormal", mean=500, cv=0.8, min=1).prompt_tokens
    assert tokens.mean() == pytest.approx(500, rel=0.02)
    assert tokens.std() / tokens.mean() == pytest.approx(0.8, rel=0.03)
    clipped = lengths("lognormal", mean=500, cv=0.8, min=100, max=900).output_tokens
    assert (clipped.min(), clipped.max()) == (100, 900)


def test_normal_lengths():
    tokens = lengths("normal", mean=500, std=100, min=1).prompt_tokens
    assert tokens.mean() == pytest.approx(500, rel=0.01)
    assert tokens.std() == pytest.approx(100, rel=0.02)
    assert lengths("normal", mean=1, std=100, min=1).prompt_tokens.min() == 1


def test_uniform_lengths():
    tokens = lengths("uniform", min=3, max=6).output_tokens
    values, counts = np.unique(tokens, return_counts=True)
    np.testing.assert_array_equal(values, [3, 4, 5, 6])
    np.testing.assert_allclose(counts / len(tokens), 0.25, atol=0.015)


def test_zipf_lengths():
    tokens = lengths("zipf", exponent=1.5, min=2, max=50).prompt_tokens
    values, counts = np.unique(tokens, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(2, 51))
    weights = np.arange(2.0, 51.0) ** -1.5
    np.testing.assert_allclose(counts / len(tokens), weights / weights.sum(), atol=0.01)
    assert lengths("zipf", exponent=20, min=9_999_000, max=10**7).prompt_tokens.min() >= 9_999_000


def test_lengths_of_the_catalog():
    sent = traffic(workload(lengths=Lengths("azure-conv-2023"), requests=5000), 0)
    assert sent.prompt_tokens.dtype == sent.output_tokens.dtype == np.int64
    assert min(sent.prompt_tokens.min(), sent.output_tokens.min()) >= 1
    assert 900 < sent.prompt_tokens.mean() < 1400  # the trace's mean is 1,155


def test_a_cached_prefix_leaves_one_token_to_compute():
    sent = traffic(workload(lengths=LOGNORMAL, requests=2000, cached=300), 0)
    np.testing.assert_array_equal(sent.cached_tokens, np.minimum(300, sent.prompt_tokens - 1))
    assert sent.cached_tokens.dtype == np.int64


def test_traces_are_replayed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,cached_tokens\n0.5,10,5,4\n2,20,6,0\n3,7,3,6\n")
    replay = workload(Arrivals("trace", file=str(path), scale=2.0), Lengths("trace", file=str(path)), 3, cached=1)
    sent = traffic(replay, 0)
    np.testing.assert_array_equal(sent.arrival_s, [0.25, 1.0, 1.5])
    np.testing.assert_array_equal(sent.prompt_tokens, [10, 20, 7])
    np.testing.assert_array_equal(sent.cached_tokens, [4, 0, 6])
    np.testing.assert_array_equal(traffic(replay, 1, count=2).output_tokens, [5, 6])


def test_unit_gaps_are_only_of_processes_that_scale():
    with pytest.raises(ValueError, match="burst arrivals do not scale with the rate"):
        unit_gaps(RATED["burst"], 0, 3)
