"""What attention costs beyond its area, and all-reduces beyond their volume: by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_model
from evaluator.cost import Parallel, fold, operators
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.iteration import AttentionRows, alike_steps, attention_time, decode_growth, iteration_time
from evaluator.cost.precision import Precision
from tests.cost.fixtures import DEEPSEEK_V3, H100, LLAMA_8B, PERFECT
from tests.reference.build import linear_cost

NOTHING = dict.fromkeys(AttentionRows._fields, 0.0)


def row(**fields: float) -> AttentionRows:
    return AttentionRows(**(NOTHING | fields))


@pytest.mark.parametrize(
    ("fields", "tokens", "prompts", "seconds"),
    [
        ({"edge_s": 1.0}, 100.0, 4.0, 100.0),  # without tiles a row per token
        ({"edge_s": 1.0, "tile": 64.0}, 4.0, 4.0, 256.0),  # one tile of every short prompt
        ({"edge_s": 1.0, "tile": 64.0}, 4000.0, 4.0, 4128.0),  # of a long one half a tile more, on average
        ({"edge_s": 1.0, "fill": 3000.0}, 4000.0, 1.0, 5000.0),  # 4000 sqrt(1 + (3/4)^2)
        ({"traffic_s": 1.0}, 100.0, 1.0, 100.0),
        ({"traffic_s": 1.0, "cache": 100.0}, 100.0, 1.0, 50.0),  # half of it in the cache
    ],
)
def test_prefill_by_hand(fields, tokens, prompts, seconds):
    assert float(attention_time(row(**fields), 0.0, 0.0, tokens, prompts)) == pytest.approx(seconds)


def test_history_is_never_in_the_cache():
    assert attention_time(row(activation=1.0, cache=1e9), 0.0, 500.0, 10.0, 1.0) == pytest.approx(500.0)


def test_a_context_that_is_not_split_bounds_what_few_sequences_reach():
    cost = linear_cost(0.0, context_s=1.0)._replace(unsplit_s=8.0, spread_s=2.0, join_s=5.0)
    times = iteration_time(cost, decode_batch(np.array([1.0, 4.0, 16.0]), 100.0, None))
    np.testing.assert_allclose(times, [5 + 800, 5 + 800, 5 + 1600 + 200])  # 8 of a mean context, then 16 + 2
    assert decode_growth(cost, decode_batch(4.0, 100.0, None), 0.0) == 8.0


def test_joining_is_of_decodes_alone():
    cost = linear_cost(0.0)._replace(join_s=5.0, prefill_token_s=1.0)
    assert float(iteration_time(cost, prefill_batch(1.0, 7, None))) == 7.0
    assert float(iteration_time(cost, decode_batch(0.5, 1.0, None))) == 2.5  # half a sequence, on average


def test_large_messages_are_handed_over():
    cost = linear_cost(0.0)._replace(handover_s=3.0, handover_tokens=512.0)
    assert [float(iteration_time(cost, prefill_batch(1.0, tokens, None))) for tokens in (511, 512)] == [0.0, 3.0]


def test_a_host_that_runs_ahead():
    """10 sequences; the device takes 1 ms per 1,000 tokens attended to, the host 5 ms."""
    cost = Dispatched(linear_cost(0.0, context_s=1e-6), 5e-3)
    short, long = decode_batch(10.0, 399.5, None), decode_batch(10.0, 600.0, None)
    assert (iteration_time(cost, short), decode_growth(cost, short, 0.0)) == (5e-3, 0.0)
    assert alike_steps(cost, short) == 101.0  # at contexts from 399.5 to 499.5
    assert iteration_time(cost, long) == pytest.approx(6e-3)
    assert decode_growth(cost, long, 0.0) == pytest.approx(1e-5) and math.isinf(alike_steps(cost, long))


def test_queries_that_an_engine_copies_move_once_more():
    """A prompt in one layer of 32 heads of 128: 12 bytes per element of the queries, in prompts and nowhere else."""
    copies = replace(PERFECT.of("attention_prefill"), query_bytes=12.0, activation_efficiency=1.0)
    with_copies = replace(PERFECT, efficiencies={**PERFECT.efficiencies, "attention_prefill": copies})
    found = [each for each in operators(LLAMA_8B, Precision(), Parallel()) if each.name.startswith("attention.")]
    for calibration in (PERFECT, with_copies):
        rows = fold(tuple(found), H100, calibration).prefill_rows
        per_token = (32 + 8) * 128 * 2 * 2 + 8 * 128 * 2 * 2
        copied = 0.0 if calibration is PERFECT else 12.0 * 32 * 128
        assert float(rows.traffic_s[0]) == pytest.approx(32 * (per_token + copied) / 3.35e12)
    decodes = decode_batch(4.0, 100.0, None)
    one, other = (iteration_time(fold(tuple(found), H100, each), decodes) for each in (PERFECT, with_copies))
    assert one == other


@pytest.mark.parametrize("model", [DEEPSEEK_V3, load_model("deepseek-v3.2"), load_model("deepseek-v4-flash")])
def test_queries_of_latents_are_not_copied(model):
    found = operators(model, Precision(), Parallel(8))
    assert not any(each.query_elements for each in found)
