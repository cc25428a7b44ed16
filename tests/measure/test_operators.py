"""Programs do the work that is timed: nothing merged, hoisted or dropped, and the right result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.measure.operators import MAKERS, link, noise
from evaluator.measure.points import MeasuredCall, gemm
from evaluator.measure.run import chain
from evaluator.measure.timing import Effort

HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 64, "window": 0}
COLUMNS = {
    "gemm": {"m": 8, "n": 96, "k": 64},
    "grouped_gemm": {"tokens": 8, "hidden": 64, "intermediate": 32, "top_k": 2, "experts": 4, "expert_parallel": 1},
    "attention_prefill": {"batch": 2, "new_tokens": 16, "past_tokens": 0} | HEADS,
    "attention_decode": {"batch": 2, "past_tokens": 48} | HEADS,
    "elementwise": {"bytes": 12 * 1000.0},
}


def made(op_class, dtype="fp32"):
    (call,) = MAKERS[op_class](COLUMNS[op_class] | {"dtype": dtype}, "cpu")
    return call


def flops(call, calls):
    program = chain(call, call.carried(), [call.operands(at) for at in range(calls)])
    return program.cost_analysis()["flops"]


@pytest.mark.parametrize("op_class", COLUMNS)
def test_work_grows_with_the_calls_of_a_program(op_class):
    """The compiled program of four calls does four times the work of one."""
    call = made(op_class)
    assert flops(call, 4) == pytest.approx(4 * flops(call, 1), rel=0.02)


@pytest.mark.parametrize("op_class", ["gemm", "attention_decode"])
def test_a_program_does_at_least_the_work_of_its_point(op_class):
    points = {"gemm": 2 * 8 * 96 * 64, "attention_decode": 4 * 2 * 48 * 4 * 64}
    assert flops(made(op_class), 1) >= points[op_class]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("op_class", COLUMNS)
def test_long_chains_stay_finite(op_class, dtype):
    call = made(op_class, dtype)
    carried, operands = call.carried(), [call.operands(at) for at in range(3)]
    shape = carried.shape
    program = chain(call, carried, operands)
    carried = call.carried()
    for _ in range(30):
        carried = program(carried, operands)
    assert carried.shape == shape and np.isfinite(np.asarray(carried, dtype=np.float64)).all()


@pytest.mark.parametrize("op_class", ["attention_prefill", "attention_decode"])
def test_attention_is_that_of_jax(op_class):
    columns, call = COLUMNS[op_class], made(op_class)
    queries, (keys, values) = call.carried(), call.operands(0)
    batch, size = queries.shape[0], queries.shape[-1]
    new = columns.get("new_tokens", 1)
    tokens_first = queries.reshape(batch, columns["heads"], new, size).transpose(0, 2, 1, 3)
    wanted = jax.nn.dot_product_attention(
        tokens_first, keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3), is_causal="new_tokens" in columns
    )
    found = call.run(queries, (keys, values)).reshape(batch, columns["heads"], new, size).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_gpu_is_offered_cudnn_first_and_the_products_of_xla_where_that_fails():
    given = COLUMNS["attention_decode"] | {"dtype": "bf16"}
    assert [call.kernel for call in MAKERS["attention_decode"](given, "gpu")] == ["cudnn", "products"]
    assert [call.kernel for call in MAKERS["attention_decode"](given | {"dtype": "fp32"}, "gpu")] == ["products"]


def test_the_first_kernel_that_runs_is_timed():
    from evaluator.measure.run import time_best

    works = made("gemm")

    def fails(carried, operands):
        raise NotImplementedError("no such kernel here")

    call, timing = time_best([works._replace(kernel="fast", run=fails), works], 2, 3, Effort(1e-4, 3, 1e-4, 1.0))
    assert call.kernel == "dot" and timing.time_s > 0
    with pytest.raises(NotImplementedError, match="no such kernel"):
        time_best([works._replace(run=fails)], 1, 1, Effort(1e-4, 3, 1e-4, 1.0))


def test_noise_is_spread_and_differs_by_seed():
    one, other = noise((1000, 50), "fp32", 1), noise((1000, 50), "fp32", 2)
    assert float(jnp.abs(one).max()) <= 1.0
    assert float(one.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(one.std()) == pytest.approx(3**-0.5, rel=0.02)
    assert abs(np.corrcoef(np.ravel(one), np.ravel(other))[0, 1]) < 0.1


def test_a_link_changes_one_element():
    changed = link(jnp.zeros((3, 4)), jnp.full((2, 2), 5.0))
    assert float(changed[0, 0]) == pytest.approx(5e-3) and float(jnp.abs(changed).sum()) == pytest.approx(5e-3)


def test_points_know_how_long_they_take_at_least():
    point = gemm(10, 20, 30, "fp32")
    assert isinstance(point, MeasuredCall)
    assert point.seconds(2 * 10 * 20 * 30, 1e12) == 1.0
    assert point.seconds(1e15, 20 * 30 * 4) == 1.0
