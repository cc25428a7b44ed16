"""From operators to iteration time: limits, proportions, and JAX against NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.catalog.calibration import OperatorEfficiency
from evaluator.cost import (
    Operator,
    Parallel,
    coefficients,
    fold,
    fold_rates,
    ideal_times,
    iteration_time,
    operators,
    rates,
    reach,
)
from evaluator.cost.batch import attention_area, decode_batch, prefill_batch, together
from evaluator.cost.iteration import padded
from evaluator.cost.precision import Precision
from tests.cost.fixtures import ALL_MODELS, H100, LLAMA_8B, LLAMA_70B, PERFECT, QWEN3_235B, calibration

BF16 = Precision(weights="bf16")
SPLIT = Parallel(2, 2)


def test_roofline_limits_of_llama_8b():
    """With perfect rates: a lone decode reads the weights; a long prefill computes at the peak."""
    parameters = fold(operators(LLAMA_8B, BF16, Parallel()), H100, PERFECT)
    weights = 2 * (8030261248 - 128256 * 4096 - 65 * 4096)
    lone = float(iteration_time(parameters, decode_batch(1.0, 1.0, None)))
    assert lone == pytest.approx(weights / 3.35e12, rel=5e-3)
    assert lone > weights / 3.35e12
    tokens = 16384
    flops = 2 * weights / 2 * tokens + 32 * 32 * 512 * tokens * (tokens + 1) / 2
    assert float(iteration_time(parameters, prefill_batch(1.0, tokens, None))) == pytest.approx(flops / 989e12, rel=0.1)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_decode_is_linear_in_the_context(model):
    parameters = fold(operators(model, Precision(), SPLIT), H100, calibration())
    context = np.array([1.0, 1e3, 1e4, 1e6])
    times = iteration_time(parameters, decode_batch(np.full(4, 7.0), context, None))
    per_token = 7.0 * (parameters.context_s + parameters.window_context_s)
    np.testing.assert_allclose(times, times[0] + per_token * (context - 1.0), rtol=1e-12)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_jax_folds_as_numpy_does(model):
    known = coefficients(operators(model, Precision(), SPLIT), reach(H100))
    plain = fold_rates(known, rates(H100, calibration()))
    traced = fold_rates(known, jax.tree.map(jnp.asarray, rates(H100, calibration())))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-13), plain, traced)


def test_a_grid_of_hardware_is_one_vmap():
    known = coefficients(operators(LLAMA_8B, BF16, Parallel()), reach(H100))
    base = rates(H100, calibration())
    bandwidths = np.linspace(1e12, 8e12, 5)
    batch = decode_batch(8.0, 1000.0, None)

    def time(bandwidth):
        return iteration_time(fold_rates(known, base._replace(memory_bandwidth=bandwidth)), batch)

    times = jax.jit(jax.vmap(time))(bandwidths)
    assert np.all(np.diff(times) < 0)
    assert times.tolist() == pytest.approx([time(bandwidth) for bandwidth in bandwidths])


def test_overheads_are_added_once_per_iteration_and_sequence():
    found = operators(LLAMA_8B, BF16, Parallel())
    known, rate = coefficients(found, reach(H100)), rates(H100, calibration(step_s=1e-3, sequence_s=1e-5))
    batch = decode_batch(10.0, 100.0, None)
    difference = iteration_time(fold_rates(known, rate), batch) - iteration_time(
        fold_rates(known, rate, overheads=False), batch
    )
    assert difference == pytest.approx(1e-3 + 10 * 1e-5, rel=1e-9)


def test_experts_are_read_as_they_are_touched():
    """One token visits k of E experts; a large batch all of them."""
    found = [each for each in operators(QWEN3_235B, BF16, Parallel()) if each.scaling == "experts"]
    held = sum(each.weight_bytes for each in found)
    for each in found:
        single = fold((each,), H100, PERFECT)
        one = float(iteration_time(single, decode_batch(1.0, 1.0, None)))
        assert one == pytest.approx(each.weight_bytes * 8 / 128 / 3.35e12, rel=1e-2)
        many = float(iteration_time(single, decode_batch(100.0, 1.0, None)))
        assert many == pytest.approx(each.weight_bytes * (1 - (1 - 8 / 128) ** 100) / 3.35e12, rel=2e-2)
    assert held == pytest.approx(2 * 94 * 128 * 3 * 4096 * 1536)


@pytest.mark.parametrize("expert_parallel", [1, 4])
def test_the_tiles_of_every_touched_expert_are_filled_up(expert_parallel):
    """A prompt that touches all experts computes ``fill_rows`` for each of them on top of its visits."""
    found = operators(QWEN3_235B, BF16, Parallel(4, 1, expert_parallel))
    (up,) = (each for each in found if each.name == "experts.gate_up")
    grouped = replace(PERFECT.of("grouped_gemm"), fill_rows=32.0, prologue=4096.0)
    more = replace(PERFECT, efficiencies={**PERFECT.efficiencies, "grouped_gemm": grouped})
    plain, filled = (float(iteration_time(fold((up,), H100, each), prefill_batch(1.0, 1e5, None)))
                     for each in (PERFECT, more))  # fmt: skip
    visits, tiles = 1e5 * 8, 128 * 32.0  # of both twice the FLOPs: the prologue is as deep as the product
    assert filled / plain == pytest.approx(2 * (visits + tiles) / visits, rel=1e-6)


batches = st.tuples(st.integers(1, 300), st.integers(1, 8192), st.integers(0, 4), st.integers(1, 4096))


@settings(max_examples=40, deadline=None)
@given(batches, st.sampled_from(ALL_MODELS), st.sampled_from([1, 2, 8]))
def test_time_grows_with_work_and_falls_with_rates(batch, model, tensor):
    decodes, context, prompts, tokens = batch
    found = operators(model, Precision(), Parallel(tensor))
    known, rate = coefficients(found, reach(H100)), rates(H100, calibration())

    def time(rate=rate, decodes=decodes, context=context, prompts=prompts, tokens=tokens):
        both = together(decode_batch(float(decodes), float(context), 128), prefill_batch(float(prompts), tokens, 128))
        return float(iteration_time(fold_rates(known, rate), both))

    base = time()
    assert 0 < base < 1e5
    assert time(decodes=decodes + 1) > base
    assert time(context=context + 1) >= base
    assert time(prompts=prompts + 1) > base
    assert time(tokens=tokens + 1) >= base
    assert time(rate._replace(memory_bandwidth=2 * rate.memory_bandwidth)) < base
    assert time(rate._replace(peak_flops=2 * rate.peak_flops)) <= base
    assert time(rate._replace(link_bandwidth=2 * rate.link_bandwidth)) <= base
    assert time(rate._replace(launch_s=2 * rate.launch_s)) > base


KNOWN = coefficients(operators(LLAMA_70B, Precision(), Parallel(2)), reach(H100))


def llama_time(rate, batch):
    """Seconds of an iteration of Llama-70B on two devices with these rates."""
    return iteration_time(fold_rates(KNOWN, rate), batch)


llama_times, llama_gradient = jax.jit(jax.vmap(llama_time, (0, None))), jax.jit(jax.grad(llama_time))


def at_the_knee(model):
    """The batch at which the largest GEMM's two sides are equal."""
    rows = fold(operators(model, Precision(), Parallel(2)), H100, calibration()).token_rows
    widest = int(np.argmax(rows.weight))
    return decode_batch(float(rows.weight[widest] / (rows.flop[widest] - rows.activation[widest])), 1000.0, None)


@pytest.mark.parametrize("knee", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("case", ["decode", "prefill", "knee", "empty"])
def test_gradients_are_finite_differences(case, knee):
    batch = {
        "decode": decode_batch(16.0, 1000.0, None),
        "prefill": prefill_batch(1.0, 2048.0, None),
        "knee": at_the_knee(LLAMA_70B),
        "empty": decode_batch(0.0, 0.0, None),
    }[case]
    base = jax.tree.map(np.asarray, rates(H100, calibration(knee=knee)))
    gradient = llama_gradient(base, batch)
    assert all(np.isfinite(slope).all() for slope in gradient)
    if case == "knee" and knee == 0.0:
        return  # the classic maximum has no derivative at its knee; a finite subgradient is enough
    places = [(name, at) for name, leaf in zip(base._fields, base, strict=True) for at in np.ndindex(np.shape(leaf))]
    # Of operators that are not there.
    endless = [(name, at) for name, at in places if np.isinf(getattr(base, name)[at])]
    assert not any(getattr(gradient, name)[at] for name, at in endless)
    places = [place for place in places if place not in endless]
    steps = [1e-5 * max(abs(getattr(base, name)[at]), 1e-8 if name.endswith("_s") else 1e-3) for name, at in places]
    changed = [
        moved(base, name, at, sign * step)
        for sign in (1.0, -1.0, 0.0)
        for (name, at), step in zip(places, steps, strict=True)
    ]
    times = llama_times(jax.tree.map(lambda *leaves: np.stack(leaves), *changed), batch)
    for (name, at), step, up, down, there in zip(places, steps, *np.asarray(times).reshape(3, -1), strict=True):
        estimate = (up - down) / (2 * step)
        assert getattr(gradient, name)[at] == pytest.approx(estimate, rel=2e-4, abs=1e-9 * there / step), name


def moved(rate, name, at, step):
    """The rates with one of them changed."""
    leaf = np.array(getattr(rate, name))
    leaf[at] += step
    return rate._replace(**{name: leaf})


def test_a_batch_is_padded_to_the_next_graph():
    assert [padded(float(tokens), 8.0) for tokens in (1, 2, 4, 5, 8, 9, 100)] == [1, 2, 4, 8, 8, 16, 104]
    assert [padded(float(tokens), 0.0) for tokens in (1, 9)] == [1, 9]
    graphs = replace(calibration(), graph_tokens=8.0)
    eager, replayed = (fold(operators(QWEN3_235B, BF16, Parallel()), H100, each) for each in (calibration(), graphs))
    assert iteration_time(replayed, decode_batch(9.0, 100.0, None)) == pytest.approx(
        iteration_time(eager, decode_batch(16.0, 100.0, None)), rel=0.02
    )


def test_logits_are_ordered_where_the_model_asks_and_the_engine_does():
    asks = replace(LLAMA_8B, nucleus_sampling=True)
    orders = replace(calibration(), efficiencies={**PERFECT.efficiencies, "sort": OperatorEfficiency(1, 0.5, 0, 1e-3)})
    plain = replace(calibration(), efficiencies=PERFECT.efficiencies)
    batch = decode_batch(4.0, 100.0, None)

    def time(model, set_):
        return iteration_time(fold(operators(model, BF16, Parallel()), H100, set_), batch)

    extra = 1e-3 + 4 * 128256 * 220 / (0.5 * 3.35e12)
    assert time(asks, orders) - time(LLAMA_8B, orders) == pytest.approx(extra)
    assert time(asks, plain) == time(LLAMA_8B, plain)
    assert ideal_times(operators(asks, BF16, Parallel()), H100) == ideal_times(
        operators(LLAMA_8B, BF16, Parallel()), H100
    )


def test_the_worked_example_of_the_module():
    device = replace(H100, peak_flops={"bf16": 1e14}, memory_bandwidth=1e12)
    found = (
        Operator("feed_forward.up", "gemm", "tokens", flops=2e8, weight_bytes=2e8, activation_bytes=1e4),
        Operator("attention.decode", "attention_decode", "decode", flops=1e5, activation_bytes=1e4),
        Operator("norm", "elementwise", "linear_tokens", activation_bytes=3e4),
    )
    folded = fold(found, device, PERFECT)
    row = folded.token_rows
    assert [*row.flop, *row.weight, *row.activation] == pytest.approx([2e-6, 2e-4, 1e-8])
    assert folded.context_s == pytest.approx(1e-8) and folded.token_s == pytest.approx(3e-8)
    assert iteration_time(folded, decode_batch(16.0, 1000.0, None)) == pytest.approx(2.0016e-4 + 1.6e-4 + 4.8e-7)


def test_attention_area():
    assert attention_area(4) == 1 + 2 + 3 + 4
    assert attention_area(4, cached=2) == 3 + 4
    assert attention_area(6, window=3) == 1 + 2 + 3 + 3 + 3 + 3
    assert attention_area(6, cached=4, window=3) == 6
    np.testing.assert_array_equal(attention_area(np.array([1, 2])), [1, 3])
