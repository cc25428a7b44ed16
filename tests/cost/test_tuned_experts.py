"""Routed experts with tuned and with default tiles: which figures a shape has, and the step of the default ones."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import Parallel, coefficients, fold, iteration_time, operators, reach
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.breakdown import breakdown
from evaluator.cost.fold import fold_devices
from evaluator.cost.precision import Precision
from evaluator.cost.rates import OP_CLASSES
from evaluator.replica import ReplicaSpec, build
from tests.cost.fixtures import H100, PERFECT, QWEN3_235B

MIXTRAL = load_model("mixtral-8x7b")
BF16 = Precision(weights="bf16")
CROWDED = replace(PERFECT.of("grouped_gemm"), crowded_bandwidth=0.5)
WITH_STEP = replace(PERFECT, efficiencies={**PERFECT.efficiencies, "grouped_gemm": CROWDED})
WITH_TUNED = replace(
    WITH_STEP,
    engine="sglang",
    hardware="h100-sxm",
    efficiencies={**WITH_STEP.efficiencies, "grouped_gemm_tuned": PERFECT.of("grouped_gemm")},
)


def experts(parallel, precision=BF16):
    return tuple(each for each in operators(MIXTRAL, precision, parallel) if each.scaling == "experts")


def time_of(found, calibration, tokens):
    return float(iteration_time(fold(found, H100, calibration), decode_batch(float(tokens), 1.0, None)))


@pytest.mark.parametrize(
    ("parallel", "precision", "kind"),
    [
        (Parallel(4), BF16, "grouped_gemm_tuned"),  # 8 experts of 3584
        (Parallel(1), BF16, "grouped_gemm"),  # 8 of 14336: in H200's list alone
        (Parallel(4, 1, 4), BF16, "grouped_gemm"),  # 2 of 14336
        (Parallel(4), Precision(weights="fp8", activations="fp8"), "grouped_gemm_8bit"),
        (Parallel(4), Precision(weights="int4"), "grouped_gemm_w4"),
    ],
)
def test_the_class_of_a_shape(parallel, precision, kind):
    known = coefficients(experts(parallel, precision), reach(H100), (), WITH_TUNED.tuned_experts())
    assert {OP_CLASSES[each] for each in known.op_class} == {kind}


def test_default_tiles_read_weights_more_slowly_with_more_tokens_than_experts():
    """Nine tokens of Mixtral touch 1 - (3/4)^9 of eight experts: at half the bandwidth they take twice the time."""
    found = experts(Parallel(4))
    assert time_of(found, WITH_STEP, 8) == time_of(found, PERFECT, 8)
    weights = 32 * 8 * 3 * 4096 * 3584 * 2 * (1 - 0.75**9) / 3.35e12
    assert time_of(found, PERFECT, 9) == pytest.approx(weights, rel=1e-2)
    assert time_of(found, WITH_STEP, 9) == pytest.approx(2 * weights, rel=1e-2)
    assert time_of(found, WITH_TUNED, 9) == time_of(found, PERFECT, 9)


@pytest.mark.parametrize(
    ("parallel", "most"),
    [
        (Parallel(4, 1, 4), 2),  # every device has two experts, and computes all tokens
        (Parallel(4, 1, 1, 4), 2),  # four ranks of data-parallel attention: the tokens of all come to eight experts
    ],
)
def test_the_tokens_that_count_are_those_of_all_ranks_and_the_experts_those_of_one_device(parallel, most):
    found = experts(parallel)
    assert time_of(found, WITH_STEP, most) == time_of(found, PERFECT, most)
    assert time_of(found, WITH_STEP, most + 1) > 1.5 * time_of(found, PERFECT, most + 1)


def test_the_step_is_in_the_breakdown_and_on_many_devices_alike():
    found, batch = experts(Parallel(4)), prefill_batch(1.0, 64.0, None)
    whole = float(iteration_time(fold(found, H100, WITH_TUNED), batch))
    parts = breakdown(found, H100, WITH_TUNED, batch)
    assert sum(each.time_s for each in parts if each.op_class != "host") == pytest.approx(whole, rel=1e-12)
    for calibration in (WITH_STEP, WITH_TUNED):
        both = iteration_time(fold_devices(found, [H100, H100], calibration), batch)
        np.testing.assert_array_equal(both, float(iteration_time(fold(found, H100, calibration), batch)))
    slow = [each.bound for each in breakdown(found, H100, WITH_STEP, batch) if each.op_class == "grouped_gemm"]
    assert slow == ["memory", "memory"]


def test_prompts_of_mixtral_are_faster_where_sglang_has_a_table():
    """Two ranks have a table on H100 (8 experts of 7168), one has none: more than twice as fast, and as on H200."""
    times = {}
    for hardware in ("h100-sxm", "h200-sxm"):
        device, found = load_hardware(hardware), load_calibration(f"{hardware}-sglang", hardware)
        batch = prefill_batch(1.0, 8192.0, None)
        for ranks in (1, 2):
            times[hardware, ranks] = float(iteration_time(fold(experts(Parallel(ranks)), device, found), batch))
    assert times["h100-sxm", 1] > 4 * times["h100-sxm", 2]
    assert times["h200-sxm", 1] == pytest.approx(2 * times["h200-sxm", 2], rel=0.15)


BLOCKS = Precision(weights="fp8_block")


@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ({}, 127),
        ({"engine_version": "0.14.1", "hardware": "h200-sxm"}, 127),  # the nearest device of its architecture
        ({"engine_version": "0.11.0"}, 0),
        ({"engine_version": "0.15.0"}, 0),
        ({"engine_version": None}, 0),
        ({"precision": BF16}, 0),
        ({"hardware": "b200-sxm"}, 127),
        ({"hardware": "gb300"}, 127),  # the nearest device of its architecture
        ({"hardware": "rtx-pro-6000-server"}, 0),  # no such kernel
        ({"calibration": "datasheet"}, 0),
        ({"parallel": Parallel(8, 1, 1), "model": "deepseek-v3"}, 0),  # shared by eight
        ({"engine": "sglang", "engine_version": None}, 0),
    ],
)
def test_releases_that_fill_up_experts_with_block_scales(more, rows):
    asked = {"model": "qwen3-235b-a22b", "hardware": "h100-sxm", "precision": BLOCKS, "parallel": Parallel(4, 1, 4)}
    built = build(ReplicaSpec(**(asked | {"engine_version": "0.11.1"} | more)))
    assert built.model.filled_rows == rows
    assert (built.calibration.efficiencies.get("grouped_gemm_8bit", PERFECT.of("gemm")).filled_rows == rows) or not rows


def test_all_experts_held_are_computed_whether_or_not_a_token_comes():
    """Two ranks hold 64 experts each, of which 127 rows are computed for one token as for any."""
    one = replace(QWEN3_235B, filled_rows=127.0)
    parallel = Parallel(2, 1, 2)
    found = {each.name: each for each in operators(one, BLOCKS, parallel)}
    kernel = replace(PERFECT.of("grouped_gemm"), filled_rows=127.0)
    calibration = replace(PERFECT, efficiencies={**PERFECT.efficiencies, "grouped_gemm_8bit": kernel})
    up = (found["experts.gate_up"],)
    times = [time_of(up, calibration, tokens) for tokens in (1.0, 10_000.0, 20_000.0)]
    row_s = 94 * 2 * 4096 * 2 * 1536 / 1979e12
    assert times[0] == pytest.approx((64 * 127 + 8) * row_s, rel=1e-6)
    # Whichever device gets most visits: each computes those of all.
    uneven = replace(calibration, expert_skew=0.5)
    assert time_of(up, uneven, 10_000.0) == pytest.approx(times[1], rel=1e-6)
    # Visits of both ranks, also those of the other one's experts.
    assert times[2] - times[1] == pytest.approx(10_000 * 8 * row_s, rel=1e-6)
    extra = found["experts.filled"]
    assert extra.weight_bytes == 94 * 64 * 127 * 1536 * 9 and extra.activation_bytes == 94 * 4 * 1536 * 9
    parts = breakdown((found["experts.gate_up"], extra), H100, calibration, decode_batch(1.0, 1.0, None))
    assert parts[0].bound == "compute"
    assert "experts.filled" not in {each.name for each in operators(QWEN3_235B, BLOCKS, parallel)}
