"""The steady state under a rate."""

import math
from itertools import pairwise

import pytest

from evaluator.cost import Parallel, fold, operators
from evaluator.cost.precision import Precision
from evaluator.cost.steady import steady_state
from tests.cost.fixtures import H100, LLAMA_8B, calibration

PARAMETERS = fold(operators(LLAMA_8B, Precision(), Parallel()), H100, calibration())


def state(rate, **changes):
    given = dict(
        prompt_tokens=1000,
        output_tokens=200,
        pipeline_ranks=1,
        max_sequences=256,
        max_num_batched_tokens=2048,
        window=None,
    )
    return steady_state(PARAMETERS, rate, **(given | changes))


def test_littles_law_holds():
    """Decoding sequences = rate x decode steps x step time, and requests in the system = rate x time in it."""
    result = state(5.0)
    assert not result.saturated
    assert result.concurrency == pytest.approx(5.0 * result.e2e_s, rel=1e-12)
    decodes = 5.0 * 199 * result.step_s
    assert decodes < result.concurrency < 1.3 * decodes + 1


def test_everything_grows_with_the_rate():
    results = [state(rate) for rate in (0.01, 1.0, 5.0, 10.0)]
    for one, other in pairwise(results):
        assert one.utilisation < other.utilisation
        assert one.tpot_s < other.tpot_s and one.ttft_s < other.ttft_s and one.concurrency < other.concurrency
    assert results[0].utilisation == pytest.approx(0.01 / results[0].capacity_rps)


def test_overload_is_saturated():
    capacity = state(1.0).capacity_rps
    assert not state(0.99 * capacity).saturated
    over = state(1.01 * capacity)
    assert over.saturated and over.utilisation == 1.0 and math.isinf(over.ttft_s) and math.isinf(over.concurrency)


def test_little_memory_lowers_the_capacity():
    assert state(1.0, max_sequences=8).capacity_rps < state(1.0).capacity_rps
    nothing = state(1.0, max_sequences=0)
    assert nothing.saturated and nothing.capacity_rps == 0.0


def test_single_token_outputs_only_prefill():
    result = state(5.0, output_tokens=1)
    assert math.isnan(result.tpot_s)
    assert result.e2e_s == result.ttft_s
