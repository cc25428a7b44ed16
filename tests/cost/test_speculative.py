"""What an iteration with drafts takes, beside what it takes without."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog import load_model
from evaluator.catalog.model import DenseFeedForward, LatentAttention, SoftmaxAttention
from evaluator.cost import BatchStatistics, Parallel, RowCounts, common_counts, iteration_time, memory_plan, stack
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.fold import fold
from evaluator.cost.gemm import gemm
from evaluator.cost.iteration import CostParameters
from evaluator.cost.operators import operators
from evaluator.cost.precision import Precision
from evaluator.cost.prediction import eagle_head, eagle_joint, module_joint, prediction_module
from evaluator.cost.speculative import SpeculativeCost, speculative_cost
from tests.cost.fixtures import H100, LLAMA_8B, LLAMA_70B, calibration
from tests.reference.build import linear_cost

PRECISION, FOUR = Precision(), Parallel(4)
MIXED = together(prefill_batch(2.0, 500.0, None), decode_batch(10.0, 1000.0, None))


def cost(tokens: int, drafted=None, **figures: float) -> SpeculativeCost:
    """Of Llama-3.1-70B on four devices."""
    found = operators(LLAMA_70B, PRECISION, FOUR)
    return speculative_cost(found, drafted, tokens, LLAMA_70B.vocabulary, H100, calibration(**figures))


def plain(model=LLAMA_70B, overheads: bool = True, **figures: float) -> CostParameters:
    return fold(operators(model, PRECISION, FOUR), H100, calibration(**figures), overheads)


def own(iteration_s: float, draft_s: float, tokens: int, passes: int) -> SpeculativeCost:
    """Iterations of both models of constant length."""
    return SpeculativeCost(linear_cost(iteration_s), linear_cost(draft_s), tokens + 1.0, float(passes), 0.0)


def module_operators(model):
    """Of a pass of the model's prediction module."""
    module = prediction_module(model)
    return (*operators(module, PRECISION, FOUR), gemm(module_joint(model), module, PRECISION))


def test_drafting_takes_a_pass_for_each_token_where_prompts_are_computed_too():
    """vLLM drafts for every sequence of the batch, and so does the iteration that computes its prompt."""
    made = own(1.0, 0.1, 4, 4)
    decodes, prompts = decode_batch(3.0, 100.0, None), prefill_batch(2.0, 50.0, None)
    assert made.time(decodes) == pytest.approx(1.4)
    assert made.time(prompts) == pytest.approx(1.4)
    assert made.time(together(decodes, prompts)) == pytest.approx(1.4)
    assert own(1.0, 0.1, 4, 0).time(together(decodes, prompts)) == pytest.approx(1.0)


def test_the_first_pass_has_all_tokens_of_the_model_and_later_ones_a_token_of_each_sequence():
    """With 1 ms per token and 10 us per token attended to; the later passes attend to 1, 2, 3 tokens more."""
    draft = linear_cost(0.0, 1e-3, 1e-5)
    made = SpeculativeCost(linear_cost(0.0), draft, 5.0, 4.0, 0.0)
    decodes, prompts = decode_batch(10.0, 100.0, None), prefill_batch(2.0, 50.0, None)
    rows, contexts = 50 + 3 * 10, 10 * (100 + 4) + 10 * (101 + 102 + 103)
    assert made.time(decodes) == pytest.approx(rows * 1e-3 + contexts * 1e-5)
    only_first = SpeculativeCost(linear_cost(0.0), draft, 5.0, 1.0, 0.0)
    alone, both = (each.time(together(decodes, prompts)) - each.time(decodes) for each in (only_first, made))
    assert alone == pytest.approx(100 * 1e-3)
    assert both == pytest.approx(alone + 3 * 2 * 1e-3 + 2 * (51 + 52 + 53) * 1e-5)


def test_the_head_of_what_drafts_scores_one_token_of_a_sequence_in_every_pass():
    batch = decode_batch(256.0, 1.0, None)
    drafted = tuple(each for each in operators(LLAMA_8B, PRECISION, FOUR) if each.name == "head")
    found = cost(3, drafted).time(batch) - cost(3).time(batch)
    once = iteration_time(fold(drafted, H100, calibration(), overheads=False), batch)
    assert found == pytest.approx(3 * once, rel=1e-9)


def test_no_draft_beside_a_token_is_plain_decoding():
    """To the last digits, but for the kernel that chooses among drafts."""
    made = calibration(step_s=1e-3, sequence_s=1e-4)
    found = tuple(each for each in operators(LLAMA_70B, PRECISION, FOUR) if each.name != "sampling")
    none = speculative_cost(found, None, 0, LLAMA_70B.vocabulary, H100, made)
    assert none.time(MIXED) == pytest.approx(iteration_time(fold(found, H100, made), MIXED), rel=1e-12)


def test_verification_computes_all_tokens_of_a_sequence():
    """Where rows count (tokens computed), four drafts make a decode five of them; contexts are read once."""
    target, draft = linear_cost(0.0, 1e-3, 1e-5), linear_cost(0.0)
    made = SpeculativeCost(target, draft, 5.0, 0.0, 2e-4)
    batch = decode_batch(10.0, 100.0, None)
    assert made.time(batch) == pytest.approx(50 * 1e-3 + 1e-5 * (10 * 100 + 10 * 4) + 10 * 2e-4)


def test_attention_reads_a_context_once_for_all_rows_and_computes_each():
    one, four = plain(knee=0.0), cost(3, knee=0.0).target
    assert four.context_s == pytest.approx(one.context_s, rel=1e-12)  # bound by memory
    assert cost(15, flops=0.02).target.context_s > 2 * plain(flops=0.02).context_s


def test_an_iteration_is_longer_by_the_rows_and_never_by_more_than_their_number():
    batch = decode_batch(np.array([1.0, 16.0, 256.0]), 1000.0, None)
    without, with_drafts = (iteration_time(each, batch) for each in (plain(), cost(3)))
    assert (with_drafts > without).all() and (with_drafts < 4 * without).all()
    assert with_drafts[0] < 1.1 * without[0]  # a single sequence is bound by the weights
    assert with_drafts[2] > 1.5 * without[2]


def test_time_is_affine_in_the_contexts():
    made = cost(3, operators(LLAMA_8B, PRECISION, FOUR))
    batch = MIXED._replace(prefill_tokens=0.0, prefill_sequences=0.0, prefill_area=0.0, prefill_context=0.0)
    longer = batch._replace(decode_context=batch.decode_context + 12345.0)
    full, _ = made.token_growth(batch.decodes)
    assert made.time(longer) - made.time(batch) == pytest.approx(12345.0 * full, rel=1e-9)
    assert full == pytest.approx(made.target.context_s + 3 * made.draft.context_s)


def test_the_host_schedules_once_and_takes_its_time_for_each_sequence_not_for_each_row():
    batch = decode_batch(8.0, 500.0, None)
    drafted = operators(LLAMA_8B, PRECISION, FOUR)
    idle = cost(3, drafted, step_s=0.0, sequence_s=0.0).time(batch)
    assert cost(3, drafted, step_s=1e-3, sequence_s=0.0).time(batch) == pytest.approx(idle + 1e-3)
    assert cost(3, drafted, step_s=0.0, sequence_s=1e-4).time(batch) == pytest.approx(idle + 8e-4)


def test_a_prediction_module_is_one_layer_a_joint_and_the_head():
    module = prediction_module(LLAMA_70B)
    assert [kind.count for kind in module.layers] == [1]
    assert isinstance(module.layers[0].mixer, SoftmaxAttention)
    (joint,) = (each for each in module_operators(LLAMA_70B) if each.name == "prediction.join")
    assert (joint.inputs, joint.outputs) == (2 * LLAMA_70B.hidden, LLAMA_70B.hidden)
    batch = decode_batch(4.0, 1000.0, None)
    without, with_module = cost(2).time(batch), cost(2, module_operators(LLAMA_70B)).time(batch)
    assert without < with_module < 1.15 * without


def test_an_eagle_head_is_a_dense_layer_with_a_head_of_its_own():
    """Sizes as of the published head of Llama-3.1-70B (SpecForge, configs/llama3-70B-ealge3.json)."""
    head = eagle_head(LLAMA_70B, 32_000)
    (layer,) = head.layers
    assert layer.mixer == SoftmaxAttention(64, 8, 128, input_width=2 * 8192)
    assert layer.feed_forward == DenseFeedForward(28_672)
    assert (head.vocabulary, head.hidden, head.tied_embeddings) == (32_000, 8192, False)
    assert (eagle_joint(LLAMA_70B).inputs, eagle_joint(LLAMA_70B).outputs) == (3 * 8192, 8192)
    assert eagle_head(LLAMA_70B, None).vocabulary == LLAMA_70B.vocabulary


def test_heads_of_models_without_kv_heads_and_with_experts():
    """As those of Kimi-K2 and Qwen3-30B-A3B (SpecForge, configs/kimi-k2-eagle3.json, qwen3-30B-eagle3.json)."""
    (kimi,), (qwen,) = (eagle_head(load_model(name), 32_000).layers for name in ("kimi-k2", "qwen3-30b-a3b"))
    assert kimi.mixer == SoftmaxAttention(56, 8, 128, input_width=2 * 7168)
    assert kimi.feed_forward == DenseFeedForward(18_432)
    assert qwen.mixer == SoftmaxAttention(32, 4, 128, input_width=2 * 2048)
    assert qwen.feed_forward == DenseFeedForward(6144)


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-h-56b", "gpt-oss-20b", "deepseek-v3"])
def test_a_prediction_module_attends_to_all_tokens(name):
    """Hybrids have linear attention or windows in most layers; the module is like those without."""
    (layer,) = prediction_module(load_model(name)).layers
    assert isinstance(layer.mixer, SoftmaxAttention | LatentAttention) and layer.mixer.window is None
    assert layer.feed_forward is not None


def test_lanes_of_all_methods_are_stacked_as_they_are():
    lanes = [
        cost(2),
        cost(3, operators(LLAMA_8B, PRECISION, FOUR)),
        cost(1, module_operators(LLAMA_70B)),
    ]
    assert common_counts(lanes) == RowCounts(8, 1, 0, 1, 0)
    stacked = stack(lanes)
    per_lane = BatchStatistics(*(np.full(3, value) for value in MIXED))
    expected = [float(iteration_time(lane, MIXED)) for lane in lanes]
    np.testing.assert_allclose(iteration_time(stacked, per_lane), expected, rtol=1e-12)


def test_what_drafts_takes_weights_and_kv_from_the_cache():
    alone = memory_plan(LLAMA_70B, H100, PRECISION, FOUR)
    beside = memory_plan(LLAMA_70B, H100, PRECISION, FOUR, beside=(4e9, LLAMA_8B.layers))
    assert beside.weight_bytes == alone.weight_bytes + 4e9
    kv = alone.kv.bytes_per_token_full * (1 + 32 / 80)  # as many KV heads of the same size in 32 layers
    assert beside.kv.bytes_per_token_full == pytest.approx(kv)
    assert beside.kv.capacity_units < (alone.kv.capacity_units - 4e9 / alone.kv.unit_bytes) / 1.39
