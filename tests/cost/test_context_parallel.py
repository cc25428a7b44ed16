"""The KV of a sequence split along its tokens (vLLM's decode context parallelism): rules, memory, time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluator.arguments import COMMAND_LINES
from evaluator.catalog import load_model
from evaluator.cost import Parallel, decode_batch, fold, iteration_time, memory_plan, operators, prefill_batch
from evaluator.cost.context_parallel import context_problem
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.plan import plan
from tests.cost.fixtures import DEEPSEEK_V3, GPT_OSS_20B, H100, LLAMA_70B, MAMBA, PERFECT, QWEN3_235B
from tests.scenario.build import scenario
from tests.simulation.engines import outcomes

BF16 = Precision()


def split(tensor, context):
    return Parallel(tensor, context=context)


@pytest.mark.parametrize(
    ("model", "parallel", "problem"),
    [
        (LLAMA_70B, split(8, 1), None),
        (
            LLAMA_70B,
            split(8, 2),
            "whole KV heads of the 8, and none is there twice without more tensor_parallel; use 1",
        ),
        (LLAMA_70B, split(16, 2), None),
        (LLAMA_70B, split(16, 4), "each of the 8 KV heads is on 2 devices, and no more can share it; use 1 or 2"),
        (LLAMA_70B, split(16, 3), "decode_context_parallel 3 does not divide tensor_parallel 16; use 1 or 2"),
        (QWEN3_235B, split(8, 2), None),
        (DEEPSEEK_V3, split(8, 8), None),
        (DEEPSEEK_V3, split(8, 16), "decode_context_parallel 16 does not divide tensor_parallel 8; use 1, 2, 4 or 8"),
        (
            GPT_OSS_20B,
            split(16, 2),
            "layers with sliding windows, sparse attention (an index that chooses tokens) or another",
        ),
        (MAMBA, split(8, 2), "states are not split along tokens; use 1"),
        (load_model("deepseek-v3.2"), split(8, 2), "layer's KV are not split along tokens; use 1"),
    ],
)
def test_the_rules_are_those_of_vllm(model, parallel, problem):
    """``ModelConfig.verify_with_parallel_config``: tp > KV heads, dcp <= tp / KV heads, and it divides the group."""
    told = context_problem(model, parallel)
    assert told is None if problem is None else problem in told


def test_query_heads_of_a_kv_head_are_divided():
    (kind,) = LLAMA_70B.layers
    odd = replace(LLAMA_70B, layers=(replace(kind, mixer=replace(kind.mixer, heads=48, kv_heads=16)),))
    assert "it does not divide the 3 query heads of a KV head; use 1 or 3" in str(context_problem(odd, split(48, 2)))


@pytest.mark.parametrize("parts", [0, -2])
def test_less_than_one_is_refused(parts):
    with pytest.raises(InputError, match="decode_context_parallel: must be a whole number of at least 1"):
        estimate(
            "qwen3-235b-a22b",
            "h200-sxm",
            prompt_tokens=9,
            output_tokens=9,
            tensor_parallel=8,
            decode_context_parallel=parts,
        )


@pytest.mark.parametrize("context", [1, 2, 4, 8])
def test_the_cache_holds_so_many_times_as_many_tokens_in_as_many_blocks(context):
    plans = [
        memory_plan(DEEPSEEK_V3, replace(H100, memory_bytes=141e9), BF16, split(8, parts), memory_fraction=0.95).kv
        for parts in (1, context)
    ]
    assert plans[1].capacity_units == plans[0].capacity_units and plans[1].unit_bytes == plans[0].unit_bytes
    assert plans[1].capacity_tokens == context * plans[0].capacity_tokens and plans[1].block_tokens == 16 * context


def cost_of(model, parallel):
    return fold(operators(model, BF16, parallel), H100, PERFECT)


@pytest.mark.parametrize(("model", "tensor"), [(QWEN3_235B, 8), (DEEPSEEK_V3, 8), (LLAMA_70B, 16)])
def test_a_decode_reads_its_part_of_the_context(model, tensor):
    """Seconds per token of context at the peaks: of memory a part, never below those of the FLOPs, which stay."""
    one, two = (cost_of(model, split(tensor, parts)) for parts in (1, 2))
    # MLA's decodes of 16 heads on a latent are near the knee: of half the bytes they are bound by their FLOPs.
    assert one.context_s / 2 <= two.context_s * (1 + 1e-9) and two.context_s < one.context_s
    long = [float(iteration_time(cost, decode_batch(8.0, 200_000.0, None))) for cost in (one, two)]
    short = [float(iteration_time(cost, decode_batch(8.0, 100.0, None))) for cost in (one, two)]
    # Collectives are the price, which a short context does not pay back.
    assert long[1] < long[0] and short[1] > short[0]


@pytest.mark.parametrize("beyond", [0.0, 1.0])
def test_each_device_walks_along_its_part_of_the_longest_context(beyond):
    """What unequal contexts add is the walk along the longest: half of it where two devices share each context."""
    walk = {"beside_walk_s": 4e-9, "beside_resident": 8.0, "late_beyond": beyond}
    figures = replace(PERFECT.efficiencies["attention_decode"], **walk)

    def added(parts):
        def time_s(unequal):
            decode = {"attention_decode": replace(figures, unequal=unequal)}
            calibration = replace(PERFECT, efficiencies=PERFECT.efficiencies | decode)
            cost = fold(operators(QWEN3_235B, BF16, split(8, parts)), H100, calibration)
            return float(iteration_time(cost, decode_batch(16.0, 20_000.0, None)))

        return time_s(2.0) - time_s(0.0)

    assert added(1) == pytest.approx(94 * 4e-9 * 2 * 20_000 * (1.0 if beyond else 0.5))
    assert added(2) == pytest.approx(added(1) / 2) and added(4) == pytest.approx(added(1) / 4)


def test_collectives_send_what_vllm_sends():
    """The queries of all heads, the logarithms of their sums in fp32 by every rank, and their outputs."""
    parts = {each.name: each for each in operators(QWEN3_235B, BF16, split(8, 2)) if "context_" in each.name}
    assert {name.removeprefix("attention.context_"): each.message_bytes / 94 for name, each in parts.items()} == {
        "queries": 2 * 8 * 128 * 2, "lse": 2 * (2 * 8) * 4, "outputs": 2 * 8 * 128 * 2,
    }  # fmt: skip
    latent = {each.name: each for each in operators(DEEPSEEK_V3, BF16, split(8, 4)) if "context_" in each.name}
    assert latent["attention.context_queries"].message_bytes / 61 == 4 * 16 * 576 * 2
    assert latent["attention.context_outputs"].message_bytes / 61 == 4 * 16 * 512 * 2
    assert {each.scaling for each in latent.values()} == {"linear_sequences"}
    assert not [each for each in operators(QWEN3_235B, BF16, split(8, 1)) if "context_" in each.name]


def test_prompts_of_latent_attention_read_all_of_their_history():
    one, two = (operators(DEEPSEEK_V3, BF16, split(8, parts)) for parts in (1, 2))
    reads = [next(each for each in each_of if each.scaling == "prefill").activation_bytes for each_of in (one, two)]
    assert reads[0] == reads[1]
    ordinary = [
        next(
            each for each in operators(QWEN3_235B, BF16, split(8, parts)) if each.scaling == "prefill"
        ).activation_bytes
        for parts in (1, 2)
    ]
    assert ordinary[1] == ordinary[0] / 2
    prompt = prefill_batch(1.0, 1000.0, None)
    assert iteration_time(cost_of(QWEN3_235B, split(8, 2)), prompt) > 0


def test_estimate_tells_the_room_and_refuses_by_the_rules():
    def of(model="qwen3-235b-a22b", **more):
        return estimate(model, "h200-sxm", prompt_tokens=1000, output_tokens=100, tensor_parallel=8, **more)

    plain, halves = of(), of(decode_context_parallel=2)
    assert halves.kv_capacity_tokens == 2 * plain.kv_capacity_tokens
    assert halves.kv_bytes_per_token == plain.kv_bytes_per_token / 2
    with pytest.raises(InputError, match=r"decode_context_parallel 2 on llama-3\.1-70b: tensor_parallel 8 gives"):
        of("llama-3.1-70b", decode_context_parallel=2)


DESIGN = ["deployment.model=qwen3-235b-a22b", "deployment.hardware=h200-sxm", "deployment.tensor_parallel=8"]
SPLIT = "deployment.decode_context_parallel=2"


def test_both_engines_agree_on_a_cache_that_is_split():
    fast, exact = (outcomes(simulator, *DESIGN, SPLIT) for simulator in ("iteration", "token"))
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        assert getattr(fast.times, name) == pytest.approx(getattr(exact.times, name), rel=1e-9)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*DESIGN, "deployment.decode_context_parallel=4"], "infeasible: decode_context_parallel 4 on qwen3"),
        ([*DESIGN, SPLIT, "deployment.speculative={method: ngram, tokens: 2, acceptance: 0.5}"],
         "unsupported: decode_context_parallel with deployment.speculative; leave out"),
        ([*DESIGN, SPLIT, "deployment.role=prefill"],
         "unsupported: decode_context_parallel with role prefill, between whose sides whole heads"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(overrides, message):
    (configuration,) = plan(scenario(*overrides)).configurations
    assert message in configuration.status


def test_a_stated_capacity_is_of_whole_blocks_of_all_ranks():
    (configuration,) = plan(scenario(*DESIGN, SPLIT, "deployment.kv.capacity_tokens=100000")).configurations
    kv = configuration.stations[0].design.ready.kv
    assert (kv.block_tokens, kv.capacity_units) == (32, 3125)
    with pytest.raises(InputError, match=r"capacity_tokens: 20 tokens are less than a block of 32"):
        scenario(*DESIGN, SPLIT, "deployment.kv.capacity_tokens=20")


def test_vllms_command_line():
    line = COMMAND_LINES["vllm"]
    read, _ = line.keys(
        {"--tensor-parallel-size": 8, "--decode-context-parallel-size": 2, "--num-gpu-blocks-override": 10}
    )
    assert read["decode_context_parallel"] == 2 and read["kv"]["capacity_tokens"] == 10 * 16 * 2
