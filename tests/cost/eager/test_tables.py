"""The rows of the eager operator set: what the paper prints, what was corrected, and the same on NumPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost.eager import AsPrinted, Corrected, EagerRates, eager_cost, eager_problem, eager_shape
from evaluator.cost.eager.modules import row_s
from evaluator.cost.eager.slips import SLIPS
from evaluator.cost.eager.tables import Row
from evaluator.cost.iteration import BatchStatistics, iteration_time
from tests.cost.eager.paper import paper_cost

SET = "ascend-910b3-bestserve"
SHAPE = eager_shape(load_model("codellama-34b"))
H, H0, HQ, KV = 8192, 22016, 64, 1 / 8
MODULES = [(module, phase) for module in ("norm", "attention", "feed_forward") for phase in ("prefill", "decode")]


def by_name(tables, module, phase, *sizes):
    return {row.name: row for row in tables.rows(module, phase, SHAPE, sizes)}


def test_one_device_is_tables_1_6_and_8():
    b, s = 3, 100
    norm, attention, mlp = (by_name(Corrected(), module, "prefill", b, s, 1) for module, phase in MODULES[::2])
    assert norm["mean"][1:3] == (b * s * H, 2 * b * s * H + 2 * b * s)
    assert attention["q_proj"][1:3] == (2 * b * s * H**2, 2 * (2 * b * s * H + H**2))
    assert attention["v_proj"][1:3] == (2 * b * s * H**2 * KV, 2 * (b * s * H + H**2 * KV + b * s * H * KV))
    assert attention["rope"].bytes == pytest.approx(2 * b * s * H * (8.5 + 8.5 * KV + 2 / HQ))
    assert attention["query_key"][1:3] == (2 * b * s**2 * H, 2 * (2 * b * s * H + b * HQ * s**2))
    assert attention["softmax"][1:3] == (3 * b * HQ * s**2, 4 * b * HQ * s**2)
    assert mlp["gate_proj"][1:3] == (2 * b * s * H * H0, 2 * (b * s * (H + H0) + H * H0))
    assert mlp["mul"][1:3] == (b * s * H0, 6 * b * s * H0)


def test_one_device_is_tables_2_7_and_9():
    b, s = 3, 100
    norm, attention, mlp = (by_name(Corrected(), module, "decode", b, s, 1) for module, phase in MODULES[1::2])
    assert norm["weight"][1:3] == (b * H, 4 * b * H + 2 * H)
    assert attention["update"].bytes == 4 * b * s * H * KV
    assert attention["repeat_kv"].bytes == 4 * b * s * H * (1 + KV)
    assert attention["upcast"].bytes == 4 * b * HQ * s
    assert attention["score_value"][1:3] == (2 * b * s * H, 2 * b * (H + H * s + HQ * s))
    assert mlp["silu"][1:3] == (5 * b * H0, 4 * b * H0)
    assert mlp["mul"][1:3] == (b * H0, 6 * b * H0)  # table 2 prints 6 b s h0


@pytest.mark.parametrize(("module", "phase"), MODULES)
def test_only_the_named_rows_are_printed_otherwise(module, phase):
    """And each of them is, with several devices and a batch of several tokens."""
    right, printed = (by_name(tables, module, phase, 3, 100, 4) for tables in (Corrected(), AsPrinted()))
    differing = {name for name in right if right[name] != printed[name]}
    assert differing == set(SLIPS.get((module, phase), {}))


@pytest.mark.parametrize(("module", "phase"), MODULES)
def test_devices_share_the_matrices(module, phase):
    """No device does more than all of one, and the work of matrices is divided evenly."""
    one, four = (by_name(Corrected(), module, phase, 3, 100, t) for t in (1, 4))
    for name, row in one.items():
        assert four[name].bytes <= row.bytes
        if "proj" in name or name in ("query_key", "score_value", "softmax"):
            assert four[name].flops == pytest.approx(row.flops / 4)


def test_kv_heads_are_repeated_only_where_they_are_shared():
    every = SHAPE._replace(kv_heads=SHAPE.heads)
    rows = {row.name: row for row in Corrected().rows("attention", "decode", every, (1, 100, 1))}
    assert rows["repeat_kv"].bytes == 0


def test_an_operator_takes_its_slower_side():
    rates = EagerRates(flops=10.0, memory=2.0, link=1.0, update=4.0, repeat_kv=4.0, upcast=8.0, message_s=0.0)
    assert row_s(Row("compute", 100.0, 4.0), rates) == 10.0
    assert row_s(Row("memory", 10.0, 40.0), rates) == 20.0
    assert row_s(Row("copy", 0.0, 40.0, "upcast"), rates) == 5.0


def test_numpy_jax_and_floats_agree():
    cost = paper_cost(Corrected())
    rng = np.random.default_rng(1)
    batch = BatchStatistics(*rng.integers(0, 9, (9, 20)).astype(float))
    batch = batch._replace(prefill_context=500 * batch.prefill_sequences, decode_context=300 * batch.decodes)
    found = iteration_time(cost, batch)
    compiled = jax.jit(iteration_time)(cost, jax.tree.map(jnp.asarray, batch))
    single = [iteration_time(cost, BatchStatistics(*(float(field[i]) for field in batch))) for i in range(20)]
    np.testing.assert_allclose(compiled, found, rtol=1e-14)
    np.testing.assert_allclose(single, found, rtol=1e-14)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixtral-8x7b", "knows gated dense feed-forwards; mixtral-8x7b has another"),
        ("qwen2.5-7b", "full softmax attention without bias or gate; qwen2.5-7b has another"),
        ("gpt-oss-20b", "needs layers that are all alike, and gpt-oss-20b has 2 kinds"),
    ],
)
def test_says_which_models_it_does_not_know(name, message):
    assert message in eager_problem(load_model(name))
    with pytest.raises(ValueError, match="eager operator set"):
        eager_cost(load_model(name), load_hardware("ascend-910b3"), 1, load_calibration(SET, "ascend-910b3").eager)
