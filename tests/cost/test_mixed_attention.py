"""Decode attention beside prompts and of unequal contexts: by hand, in its limits, and absent."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.cost import Parallel, breakdown, coefficients, fold, fold_rates, iteration_time, operators, rates, reach
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import alike_steps, decode_growth
from evaluator.cost.mixed_attention import BesideRows, beside_time, waiting
from evaluator.cost.precision import Precision
from tests.cost.fixtures import DEEPSEEK_V3, GPT_OSS_20B, H100, LLAMA_8B, calibration

NOTHING = dict.fromkeys(BesideRows._fields, 0.0) | {"filling": 1.0}
FIGURES = {"beside_context_s": 1.25e-10, "beside_walk_s": 1.7e-8, "beside_head_s": 1.6e-8, "beside_tile_s": 4e-9,
           "beside_knee": 0.5, "beside_cache_bytes": 1.4e8, "beside_resident": 400.0}  # fmt: skip
MIXED = together(prefill_batch(1.0, 512.0, None, past_tokens=1000.0), decode_batch(40.0, 900.0, None))


def stated(**more: float):
    """The set of all tests, which says what decodes take beside prompts."""
    base = calibration()
    decode = replace(base.efficiencies["attention_decode"], **(FIGURES | more))
    return replace(base, efficiencies={**base.efficiencies, "attention_decode": decode})


def folded(model, set_of, parallel=None):
    return fold(operators(model, Precision(), parallel or Parallel()), H100, set_of)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"work": 2.0}, 2.0 * 4000),  # 4 decodes of 1,000 tokens, however long they take alone
        ({"work": 2.0, "context": 0.5, "sequence": 10.0, "join": 7.0}, 8000 - 2000 - 40 - 7),
        ({"work": 2.0, "unsplit": 6.0}, 8000 - 6000),  # alone: as long as one context
        ({"work": 2.0, "call": 3.0, "block": 5.0}, 8000 + 4 * (3 + 2 * 5)),  # two tiles of the chunk
        ({"work": 2.0, "walk": 50.0, "longest": 50.0}, 50_000 - 25_000),  # walks are longer than all the work
        ({"work": 2.0, "walk": 6.0, "longest": 6.0}, 8000 + 1000 - 3000),  # the chunk's walk was longer than its work
        ({"work": 2.0, "walk": 10.0, "longest": 30.0}, 30_000 - 5000),  # the longest context is three times the mean
        ({"work": 2.0, "activation": 3.0, "sharers": 3.0, "resident": 1e9}, 12_000),  # read once
        ({"work": 2.0, "activation": 3.0, "sharers": 3.0}, 48_000),  # read by four heads
    ],
)
def test_by_hand(fields, seconds):
    """A chunk of 200 tokens on 300; its tiles attend to 500 tokens each at most."""
    row = BesideRows(**(NOTHING | fields))
    found = beside_time(row, 4.0, 4000.0, 1.0, 500.0, 200.0, 1.0)
    assert float(found) == pytest.approx(seconds, rel=1e-6)


def test_without_the_figures_everything_is_as_it_was():
    plain, cost = folded(LLAMA_8B, calibration()), folded(LLAMA_8B, stated())
    assert len(plain.beside_rows.work) == 0 and len(cost.beside_rows.work) == 1
    for alone in (decode_batch(40.0, 900.0, None), prefill_batch(2.0, 300.0, None)):
        assert float(iteration_time(cost, alone)) == float(iteration_time(plain, alone))
    assert float(iteration_time(cost, MIXED)) > float(iteration_time(plain, MIXED))
    for model in (DEEPSEEK_V3, GPT_OSS_20B):  # attention on latents is another kernel, windowed layers are as alone
        rows = folded(model, stated(), Parallel(2)).beside_rows.work
        assert len(rows) == (model is GPT_OSS_20B)


def test_a_mean_batch_has_a_share_of_iterations_with_a_prompt():
    cost = folded(LLAMA_8B, stated())
    row = BesideRows(*(field[0] for field in cost.beside_rows))
    whole = beside_time(row, 40.0, 36_000.0, 6e5, 1500.0, 512.0, 1.0)
    assert beside_time(row, 40.0, 36_000.0, 1.5e5, 375.0, 128.0, 0.25) == pytest.approx(0.25 * whole, rel=1e-12)


def test_the_parts_add_up():
    set_of = stated(unequal=1.5)
    found = operators(LLAMA_8B, Precision(), Parallel(2))
    parts = breakdown(found, H100, set_of, MIXED)
    assert sum(part.time_s for part in parts) == pytest.approx(float(iteration_time(fold(found, H100, set_of), MIXED)))


def test_traced_rates_give_the_same_times():
    """Where the figures are traced nobody knows whether they are there: rows of 0 then change nothing."""
    known = coefficients(operators(LLAMA_8B, Precision(), Parallel()), reach(H100))
    for set_of in (calibration(), stated(unequal=1.5)):
        rate = rates(H100, set_of)
        traced = jax.jit(lambda rate: iteration_time(fold_rates(known, rate), MIXED))(jax.tree.map(jnp.asarray, rate))
        assert float(traced) == pytest.approx(float(iteration_time(fold_rates(known, rate), MIXED)), rel=1e-12)


def test_the_device_waits_longest_where_contexts_just_fill_it():
    assert waiting(np.array([0.0, 5.0, 10.0, 40.0]), 10.0).tolist() == [0.0, 0.5, 1.0, 0.25]
    equal, unequal = folded(LLAMA_8B, stated()), folded(LLAMA_8B, stated(unequal=2.0))
    assert float(unequal.late_decodes) == 50.0  # 400 contexts of 8 KV heads each
    late = [
        float(iteration_time(unequal, batch)) - float(iteration_time(equal, batch))
        for batch in (decode_batch(50.0, 1000.0, None), decode_batch(200.0, 1000.0, None))
    ]
    assert late == pytest.approx([32 * 1.7e-8 * 2000, 0.25 * 32 * 1.7e-8 * 2000])


def test_a_kernel_that_starts_contexts_in_any_order_waits_with_more_of_them_too():
    assert waiting(np.array([5.0, 10.0, 40.0]), 10.0, 0.5).tolist() == [0.5, 1.0, 0.5]
    alone = {"beside_context_s": 0.0, "beside_walk_s": 4e-9, "beside_resident": 148.0, "late_beyond": 1.0}
    equal, unequal = (folded(LLAMA_8B, stated(**alone, unequal=longer)) for longer in (0.0, 2.0))
    assert not len(unequal.beside_rows.work)  # nothing is said of decodes beside prompts
    for batch, share in ((decode_batch(9.25, 1000.0, None), 0.5), (decode_batch(200.0, 1000.0, None), 1.0)):
        late = float(iteration_time(unequal, batch)) - float(iteration_time(equal, batch))
        assert late == pytest.approx(share * 32 * 4e-9 * 2000)


@pytest.mark.parametrize("beyond", [0.0, 1.0])
def test_times_stay_affine_in_the_context_for_leaps(beyond):
    cost = folded(LLAMA_8B, stated(unequal=2.0, late_beyond=beyond))
    first, later = decode_batch(30.0, 700.0, None), decode_batch(30.0, 701.0, None)
    growth = decode_growth(cost, first, 0.0)
    assert float(iteration_time(cost, later)) == pytest.approx(float(iteration_time(cost, first)) + growth, rel=1e-12)
    assert alike_steps(cost, first) == np.inf
