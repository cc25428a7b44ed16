"""Iterations of data-parallel ranks that share experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration
from evaluator.cost import fold, ideal_times, iteration_time, memory_plan, operators, prefill_batch, together
from evaluator.cost.batch import decode_batch
from evaluator.cost.breakdown import breakdown
from evaluator.cost.dtypes import BYTES, weight_dtypes
from evaluator.cost.gemm import gemm
from evaluator.cost.host import with_model_host
from evaluator.cost.iteration import decode_growth, padded
from evaluator.cost.lockstep import (
    Counts,
    Ranks,
    graph_tokens,
    launched_alone,
    overtaken_after,
    steps_together,
    time_alone,
)
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.prediction import module_joint, prediction_module
from evaluator.cost.quantities import batch_tokens
from evaluator.cost.speculative import speculative_cost
from evaluator.cost.weights import weight_bytes
from tests.cost.fixtures import DEEPSEEK_V3, H100, LLAMA_8B, QWEN3_235B

SET = load_calibration("h100-sxm-vllm", "h100-sxm")
BATCH = together(prefill_batch(2.0, 300, None), decode_batch(20.0, 1500.0, None))
EIGHT = Parallel(1, 1, 8, 8)


def cost_of(parallel, model=DEEPSEEK_V3, calibration=SET):
    return with_model_host(
        fold(operators(model, Precision(), parallel), H100, calibration), model, calibration, parallel
    )


def ranks_of(cost, batches):
    """As an engine sums them up, in which every rank has a batch."""
    own = [float(time_alone(cost, batch)) for batch in batches]
    growth = [float(decode_growth(cost, batch, 0.0)) for batch in batches]
    tokens = np.array([batch_tokens(cost, batch) for batch in batches])
    sequences = np.array([batch.decodes + batch.prefill_sequences for batch in batches])
    ahead = int(np.argmax(own))

    def counts(each):
        return Counts(each.max(), each.mean(), np.mean([padded(one, graph_tokens(cost)) for one in each]))

    launched_s = max(float(launched_alone(cost, batch)) for batch in batches)
    return Ranks(counts(tokens), own[ahead], growth[ahead], max(growth), launched_s, counts(sequences))


@pytest.mark.parametrize("calibration", ["h100-sxm-vllm", "h100-sxm-vllm.serving", "datasheet"])
@pytest.mark.parametrize("batch", [decode_batch(13.0, 900.0, None), BATCH])
def test_ranks_with_equal_batches_take_as_long_as_one_among_them(calibration, batch):
    cost = cost_of(EIGHT, calibration=load_calibration(calibration, "h100-sxm"))
    steps = steps_together(cost, ranks_of(cost, [batch] * 8), 256)
    assert float(steps.first_s) == pytest.approx(float(iteration_time(cost, batch)), rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("graphs", [0.0, 8.0])
@pytest.mark.parametrize("batch", [decode_batch(13.0, 900.0, None), BATCH])
def test_ranks_with_equal_batches_draft_as_long_as_one_among_them(batch, graphs, tokens):
    """By modules with experts, which all ranks share in every pass."""
    module = prediction_module(DEEPSEEK_V3)
    drafted = (*operators(module, Precision(), EIGHT), gemm(module_joint(DEEPSEEK_V3), module, Precision()))
    verified = operators(DEEPSEEK_V3, Precision(), EIGHT)
    given = verified, drafted, tokens, DEEPSEEK_V3.vocabulary, H100, replace(SET, graph_tokens=graphs)
    cost = speculative_cost(*given)
    steps = steps_together(cost, ranks_of(cost, [batch] * 8), 256)
    assert float(steps.first_s) == pytest.approx(float(cost.time(batch)), rel=1e-12)
    busy = decode_batch(900.0, 900.0, None)
    assert float(steps_together(cost, ranks_of(cost, [batch] * 7 + [busy]), 256).first_s) > float(cost.time(batch))


def test_the_slowest_rank_and_the_tokens_of_all_set_the_time():
    cost = cost_of(EIGHT, calibration=replace(SET, graph_tokens=0.0))
    short, long = decode_batch(8.0, 100.0, None), decode_batch(8.0, 50000.0, None)
    of_long = float(steps_together(cost, ranks_of(cost, [long] * 8), 256).first_s)
    assert float(steps_together(cost, ranks_of(cost, [short] * 7 + [long]), 256).first_s) == pytest.approx(of_long)
    busy = decode_batch(64.0, 100.0, None)  # more tokens on the others keep the experts busy for longer
    assert float(steps_together(cost, ranks_of(cost, [long] + [busy] * 7), 256).first_s) > of_long


def test_graphs_pad_all_ranks_to_the_largest():
    graphs = cost_of(EIGHT, calibration=replace(SET, graph_tokens=8.0))
    plain = cost_of(EIGHT, calibration=replace(SET, graph_tokens=0.0))
    uneven = [decode_batch(4.0, 1000.0, None)] * 7 + [decode_batch(64.0, 1000.0, None)]
    even = [decode_batch(64.0, 1000.0, None)] * 8

    def first_s(cost, batches, max_num_seqs=256):
        return float(steps_together(cost, ranks_of(cost, batches), max_num_seqs).first_s)

    assert first_s(graphs, uneven) == pytest.approx(first_s(graphs, even), rel=1e-3)
    # Of eleven tokens a rank on average the busiest device touches nearly as many experts as of 64.
    assert first_s(plain, uneven) < 0.94 * first_s(plain, even)
    large = [decode_batch(4.0, 1000.0, None)] * 7 + [prefill_batch(1.0, 1000, None)]  # too large for a graph
    assert first_s(graphs, large) == pytest.approx(first_s(plain, large), rel=1e-3)
    few = 31  # sequences of an iteration: graphs are kept for 62 tokens at most
    assert first_s(graphs, uneven, few) == pytest.approx(first_s(plain, uneven), rel=0.02)


def test_a_rank_behind_overtakes_when_its_context_grows_faster():
    assert overtaken_after(np.array([0.0, 1.0, 2.5, 1.0]), np.array([1.0, 0.5, 1.0, -1.0])).tolist() == [1, 3, 3, 1e9]
    assert overtaken_after(1.0, 0.5) == 3.0


def test_every_device_holds_attention_whole_and_its_share_of_experts():
    """Per device of eight: all that is no expert as on one, experts as under expert parallelism alone."""
    one, apart = weight_bytes(DEEPSEEK_V3, Precision(), Parallel()), weight_bytes(DEEPSEEK_V3, Precision(), EIGHT)
    moe = next(kind for kind in DEEPSEEK_V3.layers if hasattr(kind.feed_forward, "experts"))
    expert = 3 * DEEPSEEK_V3.hidden * moe.feed_forward.intermediate
    experts = moe.count * moe.feed_forward.experts * expert
    each = BYTES[weight_dtypes(DEEPSEEK_V3, Precision())["experts"]]
    assert one - apart == pytest.approx(experts * 7 / 8 * each, rel=1e-9)
    shards = weight_bytes(DEEPSEEK_V3, Precision(), Parallel(1, 1, 2, 8))  # two parts, four devices share each expert
    assert shards == pytest.approx(apart, rel=1e-9)
    copies = weight_bytes(DEEPSEEK_V3, Precision(), replace(EIGHT, redundant=32))
    assert (copies - apart) / (one - apart) == pytest.approx(4 / (7 / 8 * moe.feed_forward.experts), rel=1e-9)


def test_latent_attention_keeps_the_tokens_of_one_rank_only():
    """Tensor parallelism copies the compressed KV to every device; data parallelism has eight caches."""
    plans = [memory_plan(DEEPSEEK_V3, replace(H100, memory_bytes=141e9), Precision(), each)
             for each in (Parallel(8, 1, 8), EIGHT)]  # fmt: skip
    together_, apart = (plan.kv.capacity_tokens for plan in plans)
    assert plans[0].kv.bytes_per_token_full == plans[1].kv.bytes_per_token_full
    assert together_ < 8 * apart


def test_useful_work_does_not_depend_on_the_split():
    """FLOPs per token over all devices of a replica."""
    whole = ideal_times(operators(QWEN3_235B, Precision(), Parallel()), H100)[0].token_s
    for parallel in (Parallel(1, 1, 8, 8), Parallel(2, 1, 4, 2), Parallel(2, 1, 1, 4)):
        of_rank = ideal_times(operators(QWEN3_235B, Precision(), parallel), H100)[0].token_s
        # a token is of one rank, whose devices do the work of its attention and, on average, of its experts
        assert of_rank * parallel.tensor == pytest.approx(whole, rel=0.02)


def test_operators_add_up():
    parts = breakdown(operators(DEEPSEEK_V3, Precision(), EIGHT), H100, SET, BATCH)
    assert sum(part.time_s for part in parts) == pytest.approx(float(iteration_time(cost_of(EIGHT), BATCH)), rel=1e-9)
    named = {part.name: part for part in parts}
    state = DEEPSEEK_V3.hidden * 2.0 * 8 * (BATCH.decodes + BATCH.prefill_tokens)
    moe_layers = sum(kind.count for kind in DEEPSEEK_V3.layers if hasattr(kind.feed_forward, "experts"))
    assert named["experts.dispatch"].message_bytes == pytest.approx(moe_layers * state)
    assert "experts.all_gather" not in named and "attention.all_reduce" not in named


def test_skew_makes_the_slowest_device_wait_and_copies_help():
    uneven = replace(SET, expert_skew=1.0)
    batch = prefill_batch(1.0, 8000, None)  # bound by FLOPs
    even, skewed, copied = (
        float(iteration_time(cost_of(parallel, calibration=which), batch))
        for parallel, which in ((EIGHT, replace(SET, expert_skew=0.0)), (EIGHT, uneven),
                                (replace(EIGHT, redundant=32), uneven))
    )  # fmt: skip
    assert skewed > 1.05 * even
    assert copied == pytest.approx(even, rel=0.01)


def test_dense_models_know_nothing_of_other_ranks():
    assert operators(LLAMA_8B, Precision(), Parallel(2, data=4)) == operators(LLAMA_8B, Precision(), Parallel(2))
    plans = [memory_plan(LLAMA_8B, H100, Precision(), each) for each in (Parallel(2, data=4), Parallel(2))]
    assert plans[0] == plans[1]
