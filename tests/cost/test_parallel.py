"""Which splits are possible, and what is said of those that are not."""

from dataclasses import replace

import pytest

from evaluator.catalog.model import DenseFeedForward, LayerKind, SoftmaxAttention
from evaluator.cost.parallel import Parallel, parallel_problem, rank_layers
from tests.cost.fixtures import DEEPSEEK_V3, GPT_OSS_20B, H100, LLAMA_8B, LLAMA_70B, NEMOTRON_H, QWEN3_235B, QWEN3_NEXT


@pytest.mark.parametrize(
    ("model", "parallel", "message"),
    [
        (LLAMA_8B, Parallel(3), "tensor_parallel 3 does not divide the 32 attention heads of llama-8b"),
        (LLAMA_8B, Parallel(0), "decode_context_parallel and prefill_context_parallel must be at least 1"),
        (LLAMA_8B, Parallel(1, 33), "pipeline_parallel 33 exceeds the 32 layers"),
        (LLAMA_8B, Parallel(2, 1, 2), "expert_parallel 2 on llama-8b, which has no experts"),
        (QWEN3_235B, Parallel(4, 1, 3), "expert_parallel 3 does not divide the 4 devices that share the experts"),
        (QWEN3_235B, Parallel(2, 1, 3, 4), r"3 does not divide the 8 devices \(tensor_parallel 2 x data_parallel 4\)"),
        (QWEN3_235B, Parallel(1, 1, 8, 8, 4), "expert_parallel 8 does not divide the 128 experts and 4 redundant ones"),
        (QWEN3_235B, Parallel(8, redundant=8), "redundant_experts 8 without expert_parallel"),
        (QWEN3_235B, Parallel(4, 1, 4, exchange="all_to_all"), "all_to_all without data_parallel: every device has"),
        (QWEN3_235B, Parallel(1, 1, 1, 4, 0, "all_to_all"), "without expert_parallel: every device holds a part of"),
        (LLAMA_8B, Parallel(data=4, exchange="all_to_all"), "expert_exchange all_to_all on llama-8b, which has no"),
        (LLAMA_8B, Parallel(1, 1, 1, 4, 8), "redundant_experts 8 on llama-8b, which has no experts"),
        (
            GPT_OSS_20B,
            Parallel(1, 1, 2, 14),
            "7 of the 14 devices .* share each expert under expert_parallel 2, and do not divide its 2880 intermediate",
        ),
        (GPT_OSS_20B, Parallel(64, 1, 64), "expert_parallel 64 does not divide the 32 experts"),
        (QWEN3_NEXT, Parallel(32), "does not divide the 16 linear-attention key heads"),
        (NEMOTRON_H, Parallel(128), "does not divide the 64 attention heads"),
    ],
)
def test_impossible_splits_say_why(model, parallel, message):
    with pytest.raises(ValueError, match=message):
        raise ValueError(parallel_problem(model, H100, parallel))


def test_kv_heads_are_replicated_or_refused():
    assert parallel_problem(LLAMA_70B, H100, Parallel(16)) is None  # 8 KV heads, two ranks each
    odd = replace(LLAMA_8B, layers=(LayerKind(1, SoftmaxAttention(24, 3, 128), DenseFeedForward(14336)),))
    assert "nor is a multiple of the 3 KV heads" in str(parallel_problem(odd, H100, Parallel(2)))
    assert parallel_problem(replace(odd), H100, Parallel(1)) is None


def test_replica_must_be_within_the_links():
    island = replace(H100, links=H100.links[:1])
    assert "16 devices per replica exceed the 8 that the links of h100 join" in str(
        parallel_problem(LLAMA_70B, island, Parallel(8, 2))
    )
    assert parallel_problem(LLAMA_70B, replace(H100, links=()), Parallel(2)) is not None
    assert parallel_problem(LLAMA_70B, replace(H100, links=()), Parallel()) is None


def test_possible_splits():
    plain = (Parallel(), Parallel(8), Parallel(8, 2), Parallel(8, 1, 8), Parallel(16, 2, 16))
    for parallel in (*plain, Parallel(8, 1, 4), Parallel(1, 1, 8, 8), Parallel(2, 1, 16, 8, 32), Parallel(2, 1, 1, 4)):
        assert parallel_problem(DEEPSEEK_V3, H100, parallel) is None


@pytest.mark.parametrize(
    ("layers", "pipeline", "expected"),
    [(80, 4, (20,) * 4), (61, 4, (15, 15, 16, 15)), (62, 4, (15, 16, 16, 15)), (63, 4, (16, 16, 16, 15)), (5, 1, (5,))],
)
def test_stages_are_those_of_vllm(layers, pipeline, expected):
    assert rank_layers(layers, pipeline) == expected
