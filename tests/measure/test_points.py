"""What is measured: the shapes of models, each once, and what a device has not is refused by name."""

import pytest

from evaluator.calibrate.table import checked
from evaluator.catalog import load_model
from evaluator.cost import Parallel, operators
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.measure.points import CLASSES, FULL, QUICK, points

LLAMA, MOE = load_model("llama-3.1-8b"), load_model("qwen3-30b-a3b")


def of(found, op_class):
    return [each for each in found if each.op_class == op_class]


def test_products_are_those_of_the_cost_model():
    """Every matrix that an iteration multiplies with, and only those, apart from the square ones."""
    found = points(["gemm"], [LLAMA, MOE], [1, 2], "bf16", 1, QUICK)
    measured = {(each.columns["n"], each.columns["k"]) for each in of(found, "gemm")} - {(n, n) for n in QUICK.squares}
    wanted = {
        (each.outputs, each.inputs)
        for model in (LLAMA, MOE)
        for split in (1, 2)
        for each in operators(model, Precision(), Parallel(split))
        if each.op_class == "gemm"
    } - {(n, n) for n in QUICK.squares}
    assert measured == wanted


def test_work_is_that_of_the_cost_model():
    """FLOPs and bytes of a MoE layer and of decodes, by the operators of an iteration."""
    layers = 48
    known = {each.name: each for each in operators(MOE, Precision(), Parallel(2))}
    products = [known["experts.gate_up"], known["experts.down"]]
    (one,) = [
        each for each in of(points(["grouped_gemm"], [MOE], [2], "bf16", 1, QUICK), "grouped_gemm")
        if each.columns["tokens"] == 128
    ]  # fmt: skip
    assert one.flops == pytest.approx(128 * sum(each.flops for each in products) / layers)
    assert one.operand_bytes == pytest.approx(sum(each.weight_bytes for each in products) / layers)
    decode = known["attention.decode"]
    first = of(points(["attention_decode"], [MOE], [2], "bf16", 1, QUICK), "attention_decode")[0]
    tokens = first.columns["batch"] * first.columns["past_tokens"]
    assert first.operand_bytes == pytest.approx(tokens * decode.activation_bytes / layers)
    assert first.flops == pytest.approx(tokens * decode.flops / layers)


@pytest.mark.parametrize("grid", [FULL, QUICK])
def test_each_call_is_there_once_and_is_a_row_of_a_table(grid):
    import pandas as pd

    found = points(None, [LLAMA, MOE], [1, 2, 4, 8], "bf16", 4, grid)
    assert {each.op_class for each in found} == set(CLASSES)
    assert len({each.key for each in found}) == len(found)
    checked(pd.DataFrame([{"op_class": each.op_class, "time_s": 1.0, **each.columns} for each in found]), "points")


def test_a_run_that_ends_early_has_some_of_each_class():
    found = points(None, [LLAMA, MOE], [1, 2], "bf16", 2, FULL)
    ends = len(FULL.squares) + len(FULL.moved_bytes)
    assert {each.op_class for each in found[:ends]} == {"gemm", "elementwise"}
    for name in ("gemm", "attention_prefill", "attention_decode", "all_reduce"):
        share = len(of(found[ends : ends + (len(found) - ends) // 4], name)) / len(of(found[ends:], name))
        assert 0.2 < share < 0.3, name
    assert found == points(None, [LLAMA, MOE], [1, 2], "bf16", 2, FULL)


@pytest.mark.parametrize(
    ("classes", "models", "message"),
    [
        (["gemmm"], [LLAMA], r"unknown operator class 'gemmm'; did you mean gemm"),
        (["grouped_gemm"], [LLAMA], "nothing to measure of grouped_gemm: it needs a model that has it"),
        (["all_reduce"], [LLAMA], "nothing to measure of all_reduce: it needs several devices"),
    ],
)
def test_what_cannot_be_measured_is_refused(classes, models, message):
    with pytest.raises(InputError, match=message):
        points(classes, models, [1], "bf16", 1, QUICK)


def test_a_split_that_no_model_has_is_refused():
    with pytest.raises(InputError, match=r"none of llama-3\.1-8b can be split over 7 devices"):
        points(["gemm"], [LLAMA], [7], "bf16", 1, QUICK)
