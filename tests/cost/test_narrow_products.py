"""Products in 8 and 4 bits, which quantise their inputs first, and attention on latents: classes of their own."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from evaluator.calibrate.kernels import predictor
from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import base_class
from evaluator.cost import Parallel, breakdown, fold, iteration_time, operators, rates
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.coefficients import reach
from evaluator.cost.precision import Precision

B200 = load_hardware("b200-sxm")
SHEET = load_calibration("datasheet", "b200-sxm")
LLAMA, DEEPSEEK = load_model("llama-3.1-8b"), load_model("deepseek-v2-lite")
NVFP4 = Precision("nvfp4", "nvfp4")


def with_class(name, **figures):
    return replace(SHEET, efficiencies={**SHEET.efficiencies, name: replace(SHEET.of(name), **figures)})


def seconds(calibration, precision, tokens=256.0, model=LLAMA):
    cost = fold(operators(model, precision, Parallel()), B200, calibration)
    return float(iteration_time(cost, prefill_batch(1.0, tokens, None)))


def test_a_class_that_a_set_has_not_is_as_the_one_that_it_is_a_kind_of():
    assert SHEET.of("gemm_4bit") is SHEET.of("gemm_8bit") is SHEET.of("gemm")
    narrow = with_class("gemm_8bit", flops_efficiency=0.3)
    assert narrow.of("gemm_4bit") is narrow.of("gemm_8bit") is not narrow.of("gemm")
    assert SHEET.of("mla_decode") is SHEET.of("attention_decode")
    assert [base_class(name) for name in ("gemm_4bit", "mla_prefill", "sort", "p2p")] == [
        "gemm", "attention_prefill", "elementwise", "p2p",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "precision"), [("gemm_8bit", Precision("fp8")), ("gemm_4bit", NVFP4), ("gemm", Precision())]
)
def test_each_width_has_figures_of_its_own(name, precision):
    slower = {each: with_class(each, launch_s=1e-4) for each in ("gemm", "gemm_8bit", "gemm_4bit")}
    change = {each: seconds(slower[each], precision) - seconds(SHEET, precision) for each in slower}
    products = 4 * LLAMA.layers[0].count
    assert change[name] >= products * 0.9e-4
    wider = {"gemm_4bit": ("gemm", "gemm_8bit"), "gemm_8bit": ("gemm",), "gemm": ()}[name]  # stand in for it, in part
    assert all(change[each] == 0.0 for each in change if each not in (name, *wider))


def test_products_of_weights_with_block_scales_are_a_class():
    """They are computed in fp8; a set without the class has those with one scale per tensor for them."""
    assert SHEET.of("gemm_block") is SHEET.of("gemm")
    slow = with_class("gemm_block", launch_s=1e-3)
    assert with_class("gemm_8bit", launch_s=1e-3).of("gemm_block").launch_s == 1e-3
    for weights, moves in (("fp8_block", True), ("fp8", False), ("bf16", False)):
        assert (seconds(slow, Precision(weights)) > seconds(SHEET, Precision(weights))) is moves
    products = {each.name: each for each in operators(LLAMA, Precision("fp8_block"), Parallel())}
    block = products["feed_forward.down"]
    assert (block.op_class, block.dtype) == ("gemm_block", "fp8")
    assert block.weight_bytes == pytest.approx(LLAMA.layers[0].count * 14336 * 4096 * (1 + 4 / 128**2), rel=1e-12)
    kept = operators(load_model("deepseek-v3"), Precision("fp8"), Parallel())  # published so, and stays so
    assert {each.op_class for each in kept if each.name == "feed_forward.down"} == {"gemm_block"}


@pytest.mark.parametrize("figures", [{"quantise_bytes": 4.0}, {"quantise_row_s": 5e-9}])
def test_quantising_the_inputs_takes_time_per_token_beside_the_product(figures):
    found = {
        tokens: seconds(with_class("gemm_8bit", **figures), Precision("fp8"), tokens)
        - seconds(with_class("gemm_8bit"), Precision("fp8"), tokens)
        for tokens in (100.0, 1000.0)
    }
    products = [each for each in operators(LLAMA, Precision("fp8"), Parallel())
                if each.op_class == "gemm" and each.dtype == "fp8"]  # fmt: skip
    rows_s = sum(each.layers for each in products) * figures.get("quantise_row_s", 0.0)
    bytes_ = sum(each.inputs * each.layers for each in products) * figures.get("quantise_bytes", 0.0)
    assert found[100.0] == pytest.approx(100 * (rows_s + bytes_ / B200.memory_bandwidth))
    assert found[1000.0] == pytest.approx(10 * found[100.0])


def test_the_depth_of_a_product_takes_time_once_an_iteration():
    deep = with_class("gemm_8bit", depth_s=1e-9)
    plain = with_class("gemm_8bit")
    gains = [seconds(deep, Precision("fp8"), n) - seconds(plain, Precision("fp8"), n) for n in (1.0, 1000.0)]
    assert gains[0] == pytest.approx(gains[1]) and gains[0] > 1e-9 * 4096 * 32


def test_a_narrow_product_takes_as_long_as_one_of_its_tiles():
    """Columns and rows within a tile cost nothing, where the product is neither read from memory nor written for long;
    a tile of half the rows is passed in half the time."""
    figures = {"launch_s": 0.0, "knee": 0.0, "tile_pass_s": 1e-7}
    calibration = with_class("gemm_8bit", **figures)

    def time_s(m, n):
        rows = pd.DataFrame({"m": m, "n": n, "k": 8192.0, "op_class": "gemm", "dtype": "fp8"}, index=range(len(m)))
        return np.asarray(predictor("gemm", rows, reach(B200))(rates(B200, calibration)))

    one_s = 1e-7 * 8192.0
    assert time_s(np.array([129.0, 256.0, 1000.0]), 64.0) == pytest.approx(one_s)
    assert time_s(np.array([129.0, 256.0, 1000.0]), 4096.0) == pytest.approx(one_s)
    assert time_s(np.array([1.0, 32.0, 33.0, 64.0, 65.0, 128.0]), 64.0) == pytest.approx(
        np.array([1, 1, 2, 2, 4, 4]) * one_s / 8
    )
    beyond = time_s(np.array([1e6]), 4096.0)
    assert beyond == pytest.approx(2 * 1e6 * 4096 * 8192 / (0.5 * 4500e12), rel=0.5) and beyond > 10 * one_s


@pytest.mark.parametrize("tokens", [1.0, 40.0, 300.0])
def test_the_breakdown_adds_up_with_them(tokens):
    calibration = with_class("gemm_8bit", quantise_bytes=5.0, depth_s=1e-9, quantise_row_s=5e-9, tile_pass_s=1e-7)
    found, batch = operators(LLAMA, Precision("fp8"), Parallel()), prefill_batch(1.0, tokens, None)
    whole = float(iteration_time(fold(found, B200, calibration), batch))
    assert sum(each.time_s for each in breakdown(found, B200, calibration, batch)) == pytest.approx(whole)


def test_latents_have_figures_of_their_own():
    slow = with_class("mla_decode", bandwidth_efficiency=0.1, activation_efficiency=0.1)
    batch = decode_batch(8.0, np.array([4000.0]), None)
    for model, moves in ((DEEPSEEK, True), (LLAMA, False)):
        both = [fold(operators(model, Precision(), Parallel()), B200, each) for each in (SHEET, slow)]
        times = [float(iteration_time(cost, batch)[0]) for cost in both]
        assert (times[1] > 1.05 * times[0]) is moves


def test_measured_kernels_are_predicted_as_the_cost_model_predicts_them():
    """A DeepSeek-V2-Lite decode, whose attention is all that depends on the context; sizes of one layer."""
    mixer = DEEPSEEK.layers[0].mixer
    layers = sum(kind.count for kind in DEEPSEEK.layers)
    sizes = {
        "heads": mixer.heads, "kv_rank": mixer.kv_lora_rank, "nope_dim": mixer.nope_head_dim,
        "rope_dim": mixer.rope_head_dim, "value_dim": mixer.v_head_dim,
    }  # fmt: skip
    rows = pd.DataFrame({"batch": [8.0, 8.0], "past_tokens": [1000.0, 3000.0], "kv_dtype": "bf16", "dtype": "bf16"})
    rows = rows.assign(**sizes)
    calibration = with_class("mla_decode", bandwidth_efficiency=0.8, activation_efficiency=0.8, spread=0.5)
    alone = np.asarray(predictor("mla_decode", rows, reach(B200))(rates(B200, calibration)))
    cost = fold(operators(DEEPSEEK, Precision(), Parallel()), B200, calibration)
    whole = iteration_time(cost, decode_batch(np.full(2, 8.0), np.array([999.0, 2999.0]), None))
    assert alone[1] - alone[0] == pytest.approx((whole[1] - whole[0]) / layers, rel=1e-6)
