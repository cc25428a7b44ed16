"""What the engine and the plain loop must agree on."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np

from evaluator.cost.iteration import decode_context_s
from evaluator.cost.speculative import SpeculativeCost
from evaluator.reference import PoolOutcome
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.common.histogram import RELATIVE_ERROR, bin_middles
from tests.stations.engine.fcfs_reserved.build import Case

TOLERANCE = 1e-9
TIE = 1e-12
"""Times of two replicas are the same but for rounding, relative."""
QUANTILES = np.array([0.103, 0.507, 0.911, 0.9877])


def assert_same(case: Case, result: LaneResult, expected: PoolOutcome) -> None:
    """Times and busy time to 1e-9 relative, counts exactly, gaps between tokens within the histogram's error."""
    assert_same_times(case, result, expected)
    np.testing.assert_allclose(result.totals.busy_s, expected.busy_s, rtol=TOLERANCE, err_msg=f"busy_s of {case}")
    assert result.totals.iterations == expected.iterations, case
    assert result.totals.kv_units_max == expected.kv_units_max, case
    if all(request.finished for request in expected.requests):
        _assert_same_gaps(case, result, expected)


def assert_all_close(one: LaneResult, other: LaneResult, rtol: float = 1e-12) -> None:
    """Two results of the engine, field by field."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol), one, other)


def assert_same_times(case: Case, result: LaneResult, expected: PoolOutcome) -> None:
    """When each request is scheduled and has its first and last token, to 1e-9 relative; infinite where never."""
    requests = expected.requests
    times = {
        "scheduled_s": [request.scheduled_s for request in requests],
        "first_token_s": [request.token_s[0] if request.token_s else np.inf for request in requests],
        "last_token_s": [request.token_s[-1] if request.finished else np.inf for request in requests],
    }
    for name, values in times.items():
        np.testing.assert_allclose(getattr(result, name), values, rtol=TOLERANCE, atol=0, err_msg=f"{name} of {case}")


def _assert_same_gaps(case: Case, result: LaneResult, expected: PoolOutcome) -> None:
    """Gaps count from the iteration on that follows the first token of the first measured request.

    Whether one counts that ends at the same time but for rounding on another replica is nobody's to say.
    """
    first = expected.requests[case.measured_from]
    since, histogram = first.token_s[0], result.itl_histogram
    known: list[np.ndarray] = []
    tied_gaps: list[np.ndarray] = []
    for request in expected.requests:
        for output in request.branches or (request.output_tokens,):
            times = np.array(request.token_s[:output])
            if case.chances:  # the tokens of an iteration come together: they end one gap
                times = np.unique(times)
            elsewhere = request.replica != first.replica
            tied = elsewhere & (np.abs(times[1:] - since) <= TIE * since)
            known.append(np.diff(times)[(times[1:] > since) & ~tied])
            tied_gaps.append(np.diff(times)[tied])
    gaps, ties = np.concatenate(known), np.concatenate(tied_gaps)
    assert len(gaps) <= histogram.sum() <= len(gaps) + len(ties), case
    if histogram.sum() == len(gaps) + len(ties):
        gaps = np.concatenate([gaps, ties])
    assert np.array_equal(histogram, np.round(histogram)) and (histogram >= 0).all(), case
    if not len(gaps) or histogram.sum() != len(gaps):
        return
    found = bin_middles()[np.searchsorted(np.cumsum(histogram), QUANTILES * len(gaps))]
    exact = np.quantile(gaps, QUANTILES, method="inverted_cdf")
    # The gaps of a leap, of at most 128 steps, are entered at their mean: half of what the leap's context grows.
    decodes = min(case.limits.max_num_seqs, len(known))
    growth_s = 64 * decodes * _per_token_s(case, float(decodes)) * (1 + len(case.chances))
    assert (abs(found / exact - 1) <= RELATIVE_ERROR + growth_s / gaps.min() + 1e-12).all(), case


def _per_token_s(case: Case, decodes: float) -> float:
    """Seconds by which an iteration is longer per token more of context."""
    if isinstance(case.cost, SpeculativeCost):
        return sum(case.cost.token_growth(decodes))
    return decode_context_s(case.cost, decodes) + case.cost.window_context_s
