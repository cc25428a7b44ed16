"""Shards of weights in fp8 with block scales, against what vLLM and SGLang are known to load and to refuse."""

from __future__ import annotations

import pytest

from evaluator.catalog import load_model
from evaluator.cost.blocks import block_problem
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision

LOADED = [
    ("deepseek-v3", "checkpoint", Parallel(16)),
    ("deepseek-v3", "bf16", Parallel(32)),
    ("deepseek-v4-pro", "checkpoint", Parallel(8)),
    ("minimax-m2", "checkpoint", Parallel(4)),
    ("minimax-m2", "checkpoint", Parallel(8, 1, 8)),
    ("minimax-m2", "bf16", Parallel(8)),
    ("qwen3-235b-a22b", "fp8_block", Parallel(4)),
    ("qwen3-235b-a22b", "fp8", Parallel(8)),
    ("deepseek-v2-lite", "fp8_block", Parallel(1)),  # 85.5 blocks, but none is cut
    ("deepseek-v3", "checkpoint", Parallel(1, 1, 32, 32)),
]


@pytest.mark.parametrize(("model", "weights", "parallel"), LOADED)
def test_whole_blocks_are_loaded(model, weights, parallel):
    assert block_problem(load_model(model), Precision(weights), parallel) is None


REFUSED = [
    (
        "deepseek-v3",
        "checkpoint",
        Parallel(32),
        "32 devices share the 18,432 inputs of feed_forward.down of deepseek-v3, and 576 each are no whole blocks of "
        "the 128 that have one scale (weights in fp8_block); use tensor_parallel 16 or precision.weights without "
        "blocks, such as bf16",
    ),
    (
        "deepseek-v4-pro",
        "checkpoint",
        Parallel(16, 1, 16),
        "16 devices share the 3,072 inputs of shared_experts.down of ",
    ),
    (
        "minimax-m2",
        "checkpoint",
        Parallel(8),
        "8 devices share the 1,536 inputs of experts.down of minimax-m2, and 192 each are no whole blocks of the 128 "
        "that have one scale (weights in fp8_block); use expert_parallel 8 or tensor_parallel 4 or ",
    ),
    ("qwen3-235b-a22b", "fp8_block", Parallel(4, 1, 1, 2), "8 devices share the 1,536 inputs of experts.down of "),
    ("deepseek-v2-lite", "fp8_block", Parallel(2), "2 devices share the 10,944 inputs of feed_forward.down of "),
]


@pytest.mark.parametrize(("model", "weights", "parallel", "message"), REFUSED)
def test_shards_that_cut_a_block_are_told(model, weights, parallel, message):
    assert str(block_problem(load_model(model), Precision(weights), parallel)).startswith(message)
