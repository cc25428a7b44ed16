"""Prefill context parallelism: prompts are split evenly, and what the ranks exchange is the price."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog.read_model import load_model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import prefill_attention_time
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation import iteration_time
from evaluator.plan import plan
from evaluator.replica import ReplicaSpec, build
from tests.scenario.build import scenario
from tests.simulation.engines import both_engines

LITE = "deepseek-v2-lite"
DESIGN = ["deployment.model=deepseek-v2-lite", "deployment.calibration=datasheet"]
SPLIT = "deployment.prefill_context_parallel=2"


def cost_of(parts, **more):
    parallel = Parallel(prefill=parts, **more)
    return build(ReplicaSpec(LITE, "h100-sxm", "datasheet", Precision(), parallel)).ready.costing.typical[0]


def test_ranks_have_as_many_tokens_and_pairs_and_read_as_much_whichever_they_are():
    """Against the parts that vLLM's ``PCPManager._iter_rank_chunks`` gives the ranks, token by token."""
    for parts, history, tokens in ((2, 0, 4000), (4, 1000, 8000)):
        own, _ = cost_of(parts)._of_rank(prefill_batch(1.0, float(tokens), None, float(history)))
        size = tokens // (2 * parts)
        for rank in range(parts):
            pieces = [np.arange(n * size, (n + 1) * size) + history + 1 for n in (rank, 2 * parts - 1 - rank)]
            assert own.prefill_tokens == sum(map(len, pieces))
            assert own.prefill_area == sum(piece.sum() for piece in pieces)
            assert own.prefill_context == sum(piece[-1] for piece in pieces)


def test_decodes_are_dealt_out_or_computed_by_every_rank():
    batch = decode_batch(9.0, 1000.0, None)
    (dealt, share), (all_of_them, whole) = (cost_of(4, dealt=each)._of_rank(batch) for each in (True, False))
    assert (dealt.decodes, share, dealt.decode_context) == (3.0, 1 / 3, batch.decode_context / 3)
    assert (all_of_them.decodes, whole, all_of_them.decode_context) == (9.0, 1.0, batch.decode_context)
    none, _ = cost_of(4, dealt=True)._of_rank(prefill_batch(1.0, 100.0, None))
    assert none.decodes == 0.0


def test_an_iteration_of_decodes_grows_as_its_contexts_do():
    for dealt in (False, True):
        cost = cost_of(2, dealt=dealt)
        batches = [decode_batch(8.0, context, None) for context in (5000.0, 5001.0)]
        grows_s = float(cost.time(batches[1])) - float(cost.time(batches[0]))
        assert float(cost.growth(batches[0], 0.0)) == pytest.approx(grows_s, rel=1e-6)


def test_long_prompts_take_less_and_never_less_than_their_part():
    """Of attention, which has a part of the pairs, and an edge more at each half."""
    one, two = cost_of(1), cost_of(2)
    batch = prefill_batch(1.0, 32_000.0, None)
    whole_s, split_s = float(prefill_attention_time(one, batch)), float(two.time(batch))
    own, _ = two._of_rank(batch)
    assert 0.5 <= float(prefill_attention_time(two.device, own)) / whole_s < 0.51
    assert split_s < 0.6 * iteration_time(LITE, "h100-sxm", prompt_tokens=32_000, calibration="datasheet")

    def dense(parts):
        of = {"calibration": "datasheet", "engine": "sglang", "prefill_context_parallel": parts}
        return iteration_time("llama-3.1-8b", "h100-sxm", prompt_tokens=[8, 32_000], **of)

    # Every rank reads all weights of a dense model, so that a short prompt does not pay back what is exchanged.
    assert dense(4)[0] > dense(1)[0] and dense(4)[1] < 0.4 * dense(1)[1]


def test_what_ranks_exchange_and_expand_again():
    model, precision = load_model(LITE), Precision()
    of = {parts: {op.name: op for op in operators(model, precision, Parallel(prefill=parts))} for parts in (1, 2, 4)}
    mixer = model.layers[0].mixer
    width, layers = mixer.kv_lora_rank + mixer.rope_head_dim, sum(kind.count for kind in model.layers)
    for parts in (2, 4):
        keys = of[parts]["attention.prefill_context_keys"]
        assert keys.message_bytes == parts * width * 2 * layers and keys.ranks == range(parts)
        assert of[parts]["head.prefill_context_states"].message_bytes == parts * model.hidden * 2
        again = of[parts]["attention.kv_up_again"].flops / of[parts]["attention.kv_up"].flops
        assert again == pytest.approx(parts - 0.5)
    assert not set(of[2]) <= set(of[1]) and {"attention.kv_up_again"}.isdisjoint(of[1])
    ranks = [operators(model, precision, Parallel(tensor=2, prefill=2))]
    assert {op.ranks for op in ranks[0] if "prefill_context" in op.name} == {range(0, 4, 2)}


def test_each_rank_holds_the_whole_kv_and_a_part_of_the_experts():
    def memory(parts):
        return build(ReplicaSpec(LITE, "h100-sxm", "datasheet", Precision(), Parallel(prefill=parts))).memory

    one, two = memory(1), memory(2)
    assert two.kv.unit_bytes == one.kv.unit_bytes and two.kv.capacity_units > one.kv.capacity_units
    assert 0.5 * one.weight_bytes < two.weight_bytes < 0.6 * one.weight_bytes


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["deployment.model=llama-3.1-8b"], "infeasible: prefill_context_parallel 2 on llama-3.1-8b: vLLM splits"),
        (["deployment.engine=trtllm"], "unsupported: prefill_context_parallel 2 with engine TensorRT-LLM, of"),
        (["deployment.engine_version='0.15'"], "infeasible: prefill_context_parallel 2 before vLLM 0.28; use"),
        (["deployment.engine_version='0.28'", "deployment.pipeline_parallel=3"], "in a pipeline before vLLM 0.32; use"),
        (["deployment.data_parallel=2", "deployment.expert_parallel=2"], "2 beside data_parallel 2; leave out the one"),
        (["deployment.tensor_parallel=2", "deployment.decode_context_parallel=2"], "beside decode_context_parallel 2"),
        (["deployment.model=deepseek-v3.2", "deployment.tensor_parallel=8"], "sparse attention (an index that chooses"),
        (["deployment.eager=true", "deployment.calibration=auto"], "with CUDA graphs switched off; leave out eager"),
        (["deployment.speculative={method: ngram, tokens: 2, acceptance: 0.5}"], "leave out speculative"),
        (["deployment.engine=sglang", "deployment.model=nemotron-h-56b"], "keep of a prompt is not split along tokens"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(overrides, reason):
    (configuration,) = plan(scenario(*DESIGN, SPLIT, *overrides), simulator="token").configurations
    assert reason in configuration.status


def test_a_design_is_of_so_many_times_as_many_devices_and_goes_to_either_simulator():
    (configuration,) = plan(scenario(*DESIGN, SPLIT, "deployment.tensor_parallel=2")).configurations
    assert (configuration.status, configuration.simulator) == ("ok", "iteration")
    (station,) = configuration.stations
    assert station.devices == 4 and station.design.spec.parallel.dealt
    sglang = plan(scenario("deployment.engine=sglang", SPLIT, "deployment.calibration=datasheet")).configurations[0]
    assert sglang.status == "ok" and not sglang.stations[0].design.spec.parallel.dealt


def test_less_than_one_is_refused():
    with pytest.raises(InputError, match="prefill_context_parallel: must be a whole number of at least 1, not 0"):
        iteration_time(LITE, "h100-sxm", decodes=1, context_tokens=9, prefill_context_parallel=0)


def test_both_simulators_compute_it():
    pair = both_engines(*DESIGN, SPLIT, "deployment.batching.policy=chunked", "workload.arrivals.rate_rps=20")
    assert pair.told("ttft_s_mean") > 0


def test_together_with_decodes_there_is_one_iteration():
    cost = cost_of(2)
    prompts, decodes = prefill_batch(2.0, 1000.0, None), decode_batch(6.0, 500.0, None)
    both_s = float(cost.time(together(prompts, decodes)))
    assert max(float(cost.time(prompts)), float(cost.time(decodes))) < both_s
    assert both_s < float(cost.time(prompts)) + float(cost.time(decodes))
