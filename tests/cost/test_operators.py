"""Work of operators against figures worked by hand."""

import math

import pytest

from evaluator.catalog import parameters_by_part
from evaluator.cost import Parallel, operators
from evaluator.cost.batch import prefill_batch
from evaluator.cost.breakdown import scaling_statistics
from evaluator.cost.precision import Precision
from evaluator.cost.weights import rank_parameters
from tests.cost.fixtures import (
    ALL_MODELS,
    DEEPSEEK_V3,
    GPT_OSS_20B,
    LLAMA_8B,
    LLAMA_70B,
    NEMOTRON_H,
    QWEN3_235B,
    QWEN3_NEXT,
)

BF16 = Precision(weights="bf16")


def named(found):
    return {operator.name: operator for operator in found}


def flops(found, batch):
    statistics = scaling_statistics(batch, min(operator.log_expert_missed for operator in found))
    return sum(operator.flops * float(statistics[operator.scaling][0]) for operator in found)


@pytest.mark.parametrize("tokens", [1, 1000])
def test_llama_8b_prefill_is_twice_its_parameters_per_token(tokens):
    head = 128256 * 4096
    matrices = 8030261248 - 2 * head - 65 * 4096  # all but both tables and the norms
    attention = 32 * 32 * 4 * 128 * tokens * (tokens + 1) // 2  # layers x heads x 4 d x area
    found = operators(LLAMA_8B, BF16, Parallel())
    assert flops(found, prefill_batch(1.0, tokens, None)) == 2 * matrices * tokens + attention + 2 * head


def test_llama_8b_weights_are_read_once():
    found = operators(LLAMA_8B, BF16, Parallel())
    assert sum(operator.weight_bytes for operator in found) == 2 * (8030261248 - 128256 * 4096 - 65 * 4096)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_matrices_hold_the_parameters_of_the_catalog(model):
    """The operators' weights are all that the catalog counts but norms, biases, convolutions and the input table."""
    parts = parameters_by_part(model)
    held = sum(rank_parameters(model, Parallel(), 0).values())
    assert held == sum(parts.values())
    read = sum(operator.flops for operator in operators(model, BF16, Parallel()) if operator.scaling == "tokens") / 2
    assert read == pytest.approx(parts["attention"] + parts["feed_forward"], rel=1e-3)


def test_llama_70b_decode_attention():
    decode = named(operators(LLAMA_70B, BF16, Parallel()))["attention.decode"]
    assert decode.activation_bytes == 327680  # KV of one token
    assert decode.flops == 80 * 64 * 4 * 128
    shard = named(operators(LLAMA_70B, BF16, Parallel(16)))["attention.decode"]
    assert shard.activation_bytes == 327680 / 8  # 8 KV heads: two ranks hold the same one
    assert shard.flops == decode.flops / 16


def test_tensor_parallel_divides_matrices_and_adds_two_all_reduces_per_layer():
    one, four = named(operators(LLAMA_70B, BF16, Parallel())), named(operators(LLAMA_70B, BF16, Parallel(4)))
    for name in ("attention.qkv", "attention.out", "feed_forward.gate_up", "feed_forward.down", "head"):
        assert four[name].weight_bytes == one[name].weight_bytes / 4
        assert four[name].flops == one[name].flops / 4
    assert four["attention.all_reduce"].launches == four["feed_forward.all_reduce"].launches == 80
    assert four["attention.all_reduce"].message_bytes == 80 * 8192 * 2
    assert four["head.all_gather"].message_bytes == 128256 * 2
    assert not any(operator.collective for operator in one.values())


def test_deepseek_v3_attention():
    """128 heads, rank 512, nope 128, rope 64, v 128, 61 layers."""
    found = named(operators(DEEPSEEK_V3, Precision(), Parallel(8)))
    heads = 16
    assert found["attention.prefill"].flops == 61 * heads * 2 * (192 + 128)
    assert found["attention.prefill"].activation_bytes == 61 * ((512 + 64) * 2 + heads * (192 + 128) * 2)
    assert found["attention.decode"].flops == 61 * heads * 2 * (512 + 64 + 512)
    assert found["attention.decode"].activation_bytes == 61 * (512 + 64) * 2  # not sharded
    assert found["attention.down"].weight_bytes == 61 * 7168 * (1536 + 512 + 64)  # fp8, not sharded
    kv_up = found["attention.kv_up"]  # absorbed: two products, in 16 bits whatever the checkpoint
    assert (kv_up.weight_bytes, kv_up.launches, kv_up.dtype) == (61 * 512 * heads * 256 * 2, 122, "bf16")
    assert found["attention.down"].dtype == "fp8"


def test_experts():
    """Qwen3-235B: 94 layers, 128 experts, 8 per token, 1536 wide, hidden 4096."""
    found = named(operators(QWEN3_235B, BF16, Parallel(4)))
    up = found["experts.gate_up"]
    assert up.scaling == "experts" and up.op_class == "grouped_gemm"
    assert up.weight_bytes == 94 * 128 * 4096 * 2 * (1536 // 4) * 2
    assert up.flops == 94 * 2 * 8 * 4096 * 2 * (1536 // 4)
    assert up.log_expert_missed == math.log(1 - 8 / 128)
    assert up.matrices == found["experts.down"].matrices == 94 * 128
    assert found["experts.router"].weight_bytes == 94 * 4096 * 128 * 2  # replicated


def test_expert_parallel_holds_whole_experts_with_the_same_work():
    tensor, expert = (named(operators(QWEN3_235B, BF16, Parallel(4, 1, ep))) for ep in (1, 4))
    for name in ("experts.gate_up", "experts.down"):
        assert expert[name].weight_bytes == tensor[name].weight_bytes
        assert expert[name].matrices == tensor[name].matrices / 4  # and larger ones
        assert expert[name].flops == tensor[name].flops
        assert expert[name].activation_bytes < tensor[name].activation_bytes  # fewer, wider rows
    assert expert["feed_forward.all_reduce"] == tensor["feed_forward.all_reduce"]


def test_shared_experts_are_dense():
    found = named(operators(QWEN3_NEXT, BF16, Parallel()))
    assert found["shared_experts.gate_up"].scaling == "tokens"
    assert found["shared_experts.gate_up"].weight_bytes == 48 * 2048 * 1024 * 2
    assert found["experts.router"].weight_bytes == 48 * 2048 * (512 + 1) * 2  # and the shared expert's gate


def test_linear_attention_state():
    """Qwen3-Next: 36 layers, 32 value heads of 128 x 128 in fp32, convolution of 3 inputs over 8192 channels."""
    found = named(operators(QWEN3_NEXT, BF16, Parallel()))
    assert found["linear_attention.state"].activation_bytes == 36 * 2 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert found["linear_attention.update"].flops == 36 * 7 * 32 * 128 * 128
    assert found["linear_attention.in"].weight_bytes == 36 * 2048 * (2 * 2048 + 2 * 4096 + 64) * 2
    assert found["attention.qkv"].weight_bytes == 12 * 2048 * (2 * 16 + 2 * 2) * 256 * 2  # output gate: queries twice


def test_state_space_and_layers_without_a_mixer():
    found = named(operators(NEMOTRON_H, BF16, Parallel()))
    assert found["state_space.in"].weight_bytes == 54 * 8192 * (2 * 16384 + 2 * 8 * 256 + 256) * 2
    assert found["state_space.update"].flops == 54 * 5 * 256 * 64 * 256
    assert found["feed_forward.up"].weight_bytes == 54 * 8192 * 32768 * 2  # not gated
    four = named(operators(NEMOTRON_H, BF16, Parallel(2)))
    assert four["attention.all_reduce"].launches == 54 + 10
    assert four["feed_forward.all_reduce"].launches == 54


def test_windowed_layers_are_apart():
    found = named(operators(GPT_OSS_20B, Precision(), Parallel()))
    assert found["attention.decode"].scaling == "decode"
    assert found["attention.decode_window"].scaling == "decode_window"
    assert found["attention.decode"].activation_bytes == found["attention.decode_window"].activation_bytes
    assert found["attention.qkv"].launches == 24  # the same matrices in both kinds: one operator
    assert found["experts.gate_up"].weight_bytes == 24 * 32 * 2880 * 5760 * (0.5 + 1 / 32)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("pipeline", [2, 4])
def test_stages_add_up_to_the_whole(model, pipeline):
    parallel = Parallel(2, pipeline)
    whole = operators(model, Precision(), parallel)
    pipeline_ranks = [operators(model, Precision(), parallel, pipeline_rank) for pipeline_rank in range(pipeline)]
    for field in ("flops", "weight_bytes", "activation_bytes", "message_bytes", "launches"):
        total = sum(getattr(operator, field) for operator in whole)
        summed = sum(getattr(operator, field) for pipeline_rank in pipeline_ranks for operator in pipeline_rank)
        assert summed == pytest.approx(total, rel=1e-12)
    assert "head" in named(pipeline_ranks[-1]) and "head" not in named(pipeline_ranks[0])
    assert "embedding" in named(pipeline_ranks[0]) and "embedding" not in named(pipeline_ranks[-1])
    assert "pipeline.send" not in named(pipeline_ranks[-1])


def test_pipeline_without_stages_is_the_whole_model():
    assert operators(LLAMA_8B, BF16, Parallel(), 0) == operators(LLAMA_8B, BF16, Parallel())


def test_fp8_kv_halves_what_decode_reads():
    half, full = (
        named(operators(LLAMA_8B, Precision(kv=kv), Parallel()))["attention.decode"] for kv in ("fp8", "bf16")
    )
    assert half.activation_bytes == full.activation_bytes / 2
    assert half.dtype == "bf16"


def test_linear_operators_have_one_side():
    for model in ALL_MODELS:
        for operator in operators(model, Precision(), Parallel(2, 2)):
            if operator.scaling.startswith("linear"):
                assert operator.weight_bytes == 0
                sides = (operator.flops, operator.activation_bytes, operator.message_bytes)
                assert sum(side > 0 for side in sides) == (operator.name != "attention.launch")
            if operator.scaling.startswith("decode"):
                assert operator.weight_bytes == operator.message_bytes == operator.launches == 0
