"""What drafts on a replica: where it is, what it takes of the memory, and why it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluator.catalog import load_model
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.replica import ReplicaSpec, build
from evaluator.replica.build import drafter_of
from evaluator.speculation import Drafting
from tests.cost.fixtures import H100, LLAMA_70B, calibration

EAGLE = Drafting("eagle", 3, vocabulary=32_000)
MTP = Drafting("mtp", 1)
SPEC = ReplicaSpec(LLAMA_70B, H100, calibration(), parallel=Parallel(4))
DEEPSEEK = ReplicaSpec("deepseek-v3", "h200-sxm", "datasheet", parallel=Parallel(8))


def weights(spec: ReplicaSpec) -> float:
    """Bytes per device of what drafts."""
    found = drafter_of(build(spec))
    assert found is not None
    return found.weight_bytes


def test_a_head_has_a_layer_its_scores_and_a_joint():
    """In 16 bits, of EAGLE-3 for Llama-3.1-70B: q, k, v of two hidden sizes, output, three of the feed-forward."""
    hidden, wide = 8192, 28_672
    attention = 2 * hidden * (hidden + 2 * 1024) + hidden * hidden
    matrices = attention + 3 * hidden * wide + 32_000 * hidden
    joint = 3 * hidden * hidden  # every device holds it whole
    assert weights(replace(SPEC, drafting=EAGLE)) == pytest.approx(2 * (matrices / 4 + joint), rel=1e-3)
    quantised = replace(SPEC, drafting=EAGLE, precision=Precision(weights="fp8"))
    assert weights(quantised) == weights(replace(SPEC, drafting=EAGLE))


def test_a_prediction_module_is_stored_as_the_model_is_and_comes_as_often_as_there_are():
    """DeepSeek-V3's has 11.5e9 parameters of its own (model card), nearly all of them in fp8."""
    assert weights(replace(DEEPSEEK, drafting=MTP)) * 8 == pytest.approx(12.2e9, rel=0.05)
    three = replace(load_model("deepseek-v3"), prediction_layers=3)
    one, all_three = (
        drafter_of(build(replace(DEEPSEEK, model=model, drafting=Drafting("mtp", 3))))
        for model in ("deepseek-v3", three)
    )
    assert all_three.weight_bytes == pytest.approx(3 * one.weight_bytes)
    assert (one.layers[0].count, all_three.layers[0].count) == (1, 3)
    assert all_three.operators == one.operators


@pytest.mark.parametrize("drafting", [EAGLE, Drafting("draft", 3, "llama-3.1-8b")], ids=["eagle", "draft"])
def test_what_drafts_is_on_the_last_pipeline_rank(drafting):
    deep = replace(SPEC, parallel=Parallel(2, 2), drafting=drafting)
    first, last = build(deep).ready.pipeline_ranks
    alone_first, alone_last = build(replace(deep, drafting=Drafting("ngram", 3))).ready.pipeline_ranks
    assert str(first) == str(alone_first)
    assert (first.passes, last.passes, alone_last.passes) == (0, 3, 0)
    plain = build(replace(deep, drafting=None))
    assert build(deep).memory.pipeline_rank == 1
    assert build(deep).memory.weight_bytes > plain.memory.weight_bytes + 2e9 / 4
    assert build(deep).memory.kv.capacity_units < plain.memory.kv.capacity_units


def test_a_head_has_its_own_copy_of_the_embedding_where_the_model_has_it_on_another_rank():
    table = 2 * 128_256 * 8192 / 2  # 16 bits, over two devices
    shallow, deep = (replace(SPEC, parallel=Parallel(2, ranks), drafting=EAGLE) for ranks in (1, 2))
    assert weights(deep) == pytest.approx(weights(shallow) + table)


def test_recurrent_layers_keep_a_state_behind_every_draft():
    hybrid = replace(DEEPSEEK, model="qwen3-next-80b-a3b", parallel=Parallel(4))
    plain, drafting = (build(replace(hybrid, drafting=each)).memory.kv for each in (None, Drafting("mtp", 3)))
    assert drafting.bytes_per_sequence == 4 * plain.bytes_per_sequence > 0
    assert drafting.bytes_per_token_full == pytest.approx(plain.bytes_per_token_full * 13 / 12)  # full in 12 layers


def test_memory_names_what_drafts_and_remedies_count_it():
    whole = build(replace(SPEC, drafting=Drafting("draft", 2, "llama-3.1-405b")))
    assert "238.2 GB of weights per device (202.9 GB of what drafts) exceed" in whole.reason
    assert "tensor_parallel >= 16" in whole.reason
    assert whole.reason.endswith("or less that drafts (method ngram takes nothing)")
    alone = build(replace(SPEC, parallel=Parallel(1), drafting=Drafting("ngram", 2)))
    assert "of what drafts" not in alone.reason and alone.reason.endswith("pipeline_parallel >= 4")


REFUSED = {
    "speculative.tokens 4 is no multiple of the 3 prediction modules of deepseek-v3, which take turns; use 3 or 6": (
        replace(DEEPSEEK, model=replace(load_model("deepseek-v3"), prediction_layers=3), drafting=Drafting("mtp", 4))
    ),
    "speculative with e5-mistral-7b, which gives a vector and no tokens; leave it out": (
        replace(DEEPSEEK, model="e5-mistral-7b", drafting=Drafting("ngram", 2))
    ),
    "speculative.model qwen3-4b: 8 devices share the 9,728 inputs of feed_forward.down of qwen3-4b, and 1,216 each are "
    "no whole blocks of the 128 that have one scale (weights in fp8_block); use tensor_parallel 4 or "
    "precision.weights without blocks, such as bf16": replace(
        DEEPSEEK, model="qwen3-32b", precision=Precision("fp8_block"), drafting=Drafting("draft", 2, "qwen3-4b")
    ),
}


@pytest.mark.parametrize(("reason", "spec"), REFUSED.items())
def test_what_cannot_draft_says_why(reason, spec):
    assert build(spec).reason == reason
