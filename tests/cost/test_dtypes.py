"""Widths of dtypes and the dtype of a product."""

from dataclasses import replace

import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.model import CheckpointPrecision
from evaluator.cost import Parallel, operators, weight_bytes
from evaluator.cost.coefficients import efficiency_class, experts_class
from evaluator.cost.dtypes import BYTES, COMPUTE_DTYPES, compute_dtype, experts_dtype, is_unpacked, weight_dtypes, wider
from evaluator.cost.precision import Precision
from evaluator.cost.rates import OP_CLASSES, peak_flops, rates
from evaluator.errors import InputError
from tests.cost.fixtures import H100, LLAMA_8B, QWEN3_235B


@pytest.mark.parametrize(
    ("weight", "activations", "expected"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "bf16", "fp8"),  # activations are quantised on the fly
        ("fp8", "fp8", "fp8"),
        ("fp8_block", "bf16", "fp8"),
        ("fp8_block", "fp8", "fp8"),
        ("fp8_block", "fp32", "fp32"),
        ("fp8", "fp32", "fp32"),
        ("int8", "bf16", "bf16"),  # weight-only
        ("int8", "int8", "int8"),
        ("int4", "bf16", "bf16"),
        ("mxfp4", "bf16", "bf16"),
        ("nvfp4", "nvfp4", "fp4"),
        ("nvfp4", "bf16", "fp4"),  # as fp8
        ("nvfp4", "fp8", "fp8"),
        ("int4", "int4", "int8"),
    ],
)
def test_compute_dtype(weight, activations, expected):
    assert compute_dtype(weight, activations) == expected


def test_wider_keeps_the_second_of_equal_width():
    assert wider("fp8", "int8") == "int8"
    assert wider("bf16", "fp8") == "bf16"


def test_block_scales_are_counted():
    assert BYTES["mxfp4"] * 32 == 17
    assert BYTES["nvfp4"] * 16 == 9
    assert BYTES["int4"] * 128 == 66


def test_missing_unit_falls_back_to_the_next_wider():
    assert peak_flops({"bf16": 312e12}, "fp8") == 312e12
    assert peak_flops(H100.peak_flops, "fp8") == 1979e12
    assert peak_flops({"fp32": 1e12}, "bf16") == 1e12


def test_a_peak_is_never_guessed_from_a_narrower_or_unrelated_unit():
    told = r"odd: peak_flops states tf32, int8; for fp8 it needs one of fp8, bf16, fp16, fp32"
    with pytest.raises(InputError, match=told):
        peak_flops({"tf32": 1e14, "int8": 2e14}, "fp8", "odd")
    with pytest.raises(InputError, match="states nothing; for bf16 it needs one of bf16, fp16, fp32"):
        peak_flops({}, "bf16")
    with pytest.raises(InputError, match="chip: peak_flops states int8"):
        rates(replace(H100, name="chip", peak_flops={"int8": 1e15}), load_calibration("datasheet", "h100-sxm"))


def test_checkpoint_keeps_published_dtypes():
    published = replace(LLAMA_8B, checkpoint=CheckpointPrecision(experts="mxfp4"))
    assert weight_dtypes(published, Precision())["experts"] == "mxfp4"
    assert weight_dtypes(published, Precision())["attention"] == "bf16"


def test_quantisation_leaves_embedding_head_and_router():
    dtypes = weight_dtypes(LLAMA_8B, Precision(weights="fp8"))
    assert dtypes["attention"] == dtypes["feed_forward"] == dtypes["experts"] == "fp8"
    assert dtypes["embedding"] == dtypes["head"] == dtypes["router"] == "bf16"
    assert weight_dtypes(LLAMA_8B, Precision(weights="fp32"))["head"] == "fp32"


def test_nvfp4_leaves_latent_attention_in_16_bits():
    for name, attention in (("deepseek-r1", "bf16"), ("qwen3-30b-a3b", "nvfp4")):
        dtypes = weight_dtypes(load_model(name), Precision(weights="nvfp4"))
        assert (dtypes["attention"], dtypes["experts"], dtypes["feed_forward"]) == (attention, "nvfp4", "nvfp4")
    assert weight_dtypes(load_model("deepseek-r1"), Precision(weights="fp8"))["attention"] == "fp8_block"


def test_attention_may_be_kept_in_another_dtype_than_the_rest():
    qwen, deepseek = load_model("qwen3-30b-a3b"), load_model("deepseek-r1")
    plain = weight_dtypes(qwen, Precision("nvfp4"))
    assert weight_dtypes(qwen, Precision("nvfp4", attention="bf16")) == {**plain, "attention": "bf16"}
    assert weight_dtypes(deepseek, Precision("nvfp4", attention="checkpoint"))["attention"] == "fp8_block"
    assert weight_dtypes(deepseek, Precision("nvfp4", attention="nvfp4"))["attention"] == "nvfp4"
    assert weight_dtypes(qwen, Precision(attention="fp8"))["experts"] == "bf16"


def test_attention_in_16_bits_costs_its_bytes_and_its_products_alone():
    """The sum of shapes by hand: 48 layers of 2,048 x 5,120 and 4,096 x 2,048 weights on one device."""
    qwen, narrow, kept = load_model("qwen3-30b-a3b"), Precision("nvfp4"), Precision("nvfp4", attention="bf16")
    matrices = 48 * (2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048)
    more = weight_bytes(qwen, kept, Parallel()) - weight_bytes(qwen, narrow, Parallel())
    assert more == pytest.approx(matrices * (BYTES["bf16"] - BYTES["nvfp4"]), rel=1e-12)
    by_name = [{each.name: each for each in operators(qwen, of, Parallel())} for of in (narrow, kept)]
    changed = {name for name in by_name[0] if by_name[0][name] != by_name[1][name]}
    assert changed == {"attention.qkv", "attention.out"}
    assert {by_name[1][name].dtype for name in changed} == {"bf16"}


def test_products_in_fp4_without_units_for_it_are_those_of_unpacked_weights():
    """On Hopper an nvfp4 checkpoint is unpacked to 16 bits: the peak and the figures are those of 16 bits."""
    sheet = load_calibration("datasheet", "h100-sxm")
    figures = {"gemm": 0.3, "gemm_4bit": 0.4, "gemm_8bit": 0.5, "grouped_gemm_w4": 0.6, "grouped_gemm_4bit": 0.7}
    classes = {name: replace(sheet.of(name), flops_efficiency=value) for name, value in figures.items()}
    mixed = replace(sheet, efficiencies={**sheet.efficiencies, **classes})
    assert peak_flops(H100.peak_flops, "fp4") == H100.peak_flops["bf16"]
    for device, found in ((H100, (0.3, 0.6)), (load_hardware("b200-sxm"), (0.4, 0.7))):
        rate = rates(device, mixed)
        places = [OP_CLASSES.index(name) for name in ("gemm_4bit", "grouped_gemm_4bit")]
        assert tuple(rate.flops_efficiency[places]) == found


def test_experts_in_four_bits_under_sixteen_are_a_class():
    assert is_unpacked("int4", "bf16") and not is_unpacked("mxfp4", "bf16") and not is_unpacked("nvfp4", "bf16")
    assert not is_unpacked("mxfp4", "fp8") and not is_unpacked("int8", "bf16")
    assert [experts_class(weight, "bf16") for weight in ("int4", "nvfp4", "fp8")] == [
        "grouped_gemm_w4", "grouped_gemm", "grouped_gemm",
    ]  # fmt: skip
    (int4,) = (each for each in operators(QWEN3_235B, Precision("int4"), Parallel()) if each.name == "experts.gate_up")
    assert (int4.op_class, int4.dtype) == ("grouped_gemm_w4", "bf16")


def test_experts_in_mxfp4_are_computed_in_mxfp8_where_units_scale_blocks():
    """gpt-oss on Blackwell has the peak of fp8; Hopper, which has fp8 but scales no blocks, that of 16 bits."""
    (up,) = (each for each in operators(load_model("gpt-oss-20b"), Precision(), Parallel())
             if each.name == "experts.gate_up")  # fmt: skip
    assert (efficiency_class(up.op_class, up.dtype), up.dtype) == ("grouped_gemm_mx4", "mxfp8")
    assert experts_dtype("mxfp4", "fp16") == "mxfp8" and experts_dtype("mxfp4", "fp8") == "fp8"
    assert compute_dtype("mxfp4", "bf16") == "bf16"  # dense products
    at = COMPUTE_DTYPES.index("mxfp8")
    for name, dtype in (("b200-sxm", "fp8"), ("h100-sxm", "bf16"), ("a100-sxm", "bf16")):
        device = load_hardware(name)
        assert rates(device, load_calibration("datasheet", name)).peak_flops[at] == device.peak_flops[dtype]
