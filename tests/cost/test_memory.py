"""Weights, KV and what fits."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.catalog import load_hardware, load_model, parameter_count
from evaluator.cost import (
    Parallel,
    kv_bytes_per_token,
    kv_units,
    memory_plan,
    memory_problem,
    model_window,
    weight_bytes,
)
from evaluator.cost.activations import rotary_bytes
from evaluator.cost.kv import KvUnits, units
from evaluator.cost.memory import KvLayout, units_of
from evaluator.cost.precision import Precision
from evaluator.device import configure
from evaluator.experiments.names import hardware_name, model_name
from tests.cost.fixtures import (
    ALL_MODELS,
    DEEPSEEK_V3,
    GPT_OSS_20B,
    H100,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MAMBA,
    NEMOTRON_H,
    QWEN3_235B,
)

BF16 = Precision(weights="bf16")


@pytest.mark.parametrize(
    ("model", "expected"),
    [(LLAMA_8B, 131_072), (LLAMA_70B, 327_680), (LLAMA_405B, 516_096), (DEEPSEEK_V3, 70_272), (QWEN3_235B, 192_512)],
    ids=lambda value: getattr(value, "name", value),
)
def test_kv_bytes_per_token(model, expected):
    assert kv_bytes_per_token(model, "bf16") == expected
    assert kv_bytes_per_token(model, "fp8") == expected / 2


def test_kv_under_tensor_parallelism():
    assert kv_bytes_per_token(LLAMA_70B, "bf16", 8) == 327_680 / 8
    assert kv_bytes_per_token(LLAMA_70B, "bf16", 16) == 327_680 / 8  # replicated
    assert kv_bytes_per_token(DEEPSEEK_V3, "bf16", 8) == 70_272  # the latent is on every rank


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_weights_of_one_device_are_the_model(model):
    assert weight_bytes(model, BF16, Parallel()) == 2 * parameter_count(model)


def test_weights_by_part():
    """gpt-oss-20b: mxfp4 experts, the rest in bf16."""
    experts = 24 * 32 * 3 * 2880 * 2880
    rest = parameter_count(GPT_OSS_20B) - experts
    assert weight_bytes(GPT_OSS_20B, Precision(), Parallel()) == pytest.approx(experts * 17 / 32 + 2 * rest)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("tensor", [2, 8])
def test_shards_hold_no_less_than_the_model(model, tensor, pipeline):
    parallel = Parallel(tensor, pipeline)
    held = tensor * sum(weight_bytes(model, BF16, parallel, pipeline_rank) for pipeline_rank in range(pipeline))
    assert 1.0 <= held / weight_bytes(model, BF16, Parallel()) < 1.2


def test_expert_parallel_holds_the_same_experts():
    assert weight_bytes(QWEN3_235B, BF16, Parallel(8, 1, 8)) == weight_bytes(QWEN3_235B, BF16, Parallel(8))


def test_tied_embeddings_are_held_once_but_in_two_stages_twice():
    tied = replace(LLAMA_8B, tied_embeddings=True)
    table = 2 * 128256 * 4096
    assert weight_bytes(LLAMA_8B, BF16, Parallel()) - weight_bytes(tied, BF16, Parallel()) == table
    both = sum(weight_bytes(tied, BF16, Parallel(1, 2), pipeline_rank) for pipeline_rank in range(2))
    assert both == pytest.approx(weight_bytes(LLAMA_8B, BF16, Parallel()))


@given(st.integers(1, 200_000), st.sampled_from([1, 16, 64]))
def test_full_attention_occupies_whole_blocks(tokens, block):
    layout = memory_plan(LLAMA_70B, H100, BF16, Parallel(8), block_tokens=block).kv
    assert kv_units(layout, tokens) == math.ceil(tokens / block)


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.sampled_from(ALL_MODELS))
def test_units_grow_with_tokens(one, more, model):
    layout = memory_plan(model, H100, Precision(), Parallel(8)).kv
    assert 1 <= kv_units(layout, one) <= kv_units(layout, one + more)


@pytest.mark.parametrize("model", ALL_MODELS, ids=lambda model: model.name)
def test_the_engine_counts_the_same_units(model):
    """In JAX, compiled, where the last bit of a product may differ."""
    configure()
    tokens = np.unique(np.geomspace(1, 200_000, 2_000).astype(int))
    for block in (1, 16, 64):
        layout = memory_plan(model, H100, Precision(), Parallel(8), block_tokens=block).kv
        parts = KvUnits(*map(np.float64, units_of(layout)))
        for held in (tokens, tokens // block * block + block):
            np.testing.assert_array_equal(jax.jit(units)(parts, held.astype(float)), kv_units(layout, held))


def test_windowed_layers_keep_their_window():
    layout = memory_plan(GPT_OSS_20B, H100, Precision(), Parallel()).kv
    assert layout.window == model_window(GPT_OSS_20B) == 128
    assert layout.bytes_per_token_full == layout.bytes_per_token_window == 12 * 2 * 8 * 64 * 2
    assert kv_units(layout, 128) == 8
    assert kv_units(layout, 128 + 1600) == 8 + 50
    np.testing.assert_array_equal(kv_units(layout, np.array([1, 17])), [1, 2])


def test_fixed_states():
    layout = memory_plan(NEMOTRON_H, H100, Precision(), Parallel(8)).kv
    state = 54 * (32 * 64 * 256 * 4 + 3 * (2048 + 2 * 256) * 2)
    assert layout.bytes_per_sequence == state
    assert kv_units(layout, 16) == math.ceil((16 * layout.bytes_per_token_full + state) / layout.unit_bytes)


def test_model_without_kv_counts_sequences():
    layout = memory_plan(MAMBA, H100, Precision(), Parallel()).kv
    assert layout.unit_bytes == layout.bytes_per_sequence > 0
    assert layout.capacity_tokens == math.inf
    np.testing.assert_array_equal(kv_units(layout, np.array([1, 100_000])), [1, 1])


def test_capacity_is_what_is_left():
    plan = memory_plan(LLAMA_8B, H100, BF16, Parallel(), memory_fraction=0.9)
    left = 0.9 * 80e9 - 2 * 8030261248 - plan.activation_bytes
    assert plan.kv.capacity_units == math.floor(left / (16 * 131072))
    assert plan.kv.capacity_tokens == 16 * plan.kv.capacity_units


def test_the_blocks_that_vllm_reports(data_folder):
    """All servers of the recorded runs whose logs state them: six models with TP 1 to 4, Llama-4-Scout among them,
    whose tables of rotary positions take 5.4 GB and whose vision tower is counted."""
    specs = data_folder / "vllm_serving_specs.json"
    if not specs.is_file():
        pytest.skip(f"no {specs.name}")
    errors = {}
    for each in json.loads(specs.read_text())["experiments"]:
        if each["total_kv_blocks"] is None:
            continue
        plan = memory_plan(
            load_model(model_name(each["model"])), load_hardware(hardware_name(each["gpu"])), Precision(),
            Parallel(each["tensor_parallel_size"]), max_num_batched_tokens=each["max_num_batched_tokens"],
            max_num_seqs=each["max_num_seqs"],
        )  # fmt: skip
        errors[each["exp_id"]] = plan.kv.capacity_units / each["total_kv_blocks"] - 1
    assert len(errors) == 11
    assert max(map(abs, errors.values())) < 0.0015, errors


PUBLISHED = {  # MiB of the device, dtype of weights, memory fraction -> tokens of KV for Qwen3-8B
    (32607, "bf16", 0.92): 89_040,  # RTX 5090, vLLM 0.24; the same server's next start gave 95,936
    (23034, "bf16", 0.90): 22_880,  # L4
    (23034, "fp8", 0.90): 67_424,  # L4
}


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_the_tokens_that_fit_on_small_cards(case):
    """What users of vLLM published of its logs, with 2,048 tokens and 256 sequences per iteration, its defaults."""
    mebibytes, weights, fraction = case
    card = replace(load_hardware("rtx-4090"), memory_bytes=mebibytes * 2.0**20)
    plan = memory_plan(
        load_model("qwen3-8b"), card, Precision(weights=weights), Parallel(), memory_fraction=fraction,
    )  # fmt: skip
    assert plan.kv.capacity_tokens == pytest.approx(PUBLISHED[case], rel=0.05)


@pytest.mark.parametrize(
    ("model", "bytes_"), [(LLAMA_8B, 131_072 * 128 * 4), (DEEPSEEK_V3, 131_072 * 64 * 4), (MAMBA, 0)]
)
def test_tables_of_rotary_positions(model, bytes_):
    assert rotary_bytes(model) == bytes_


def test_the_fullest_stage_limits():
    plan = memory_plan(LLAMA_70B, H100, BF16, Parallel(4, 3))
    assert plan.pipeline_rank == 0  # 27, 27 and 26 layers, and the first rank has the embedding
    assert isinstance(plan.kv, KvLayout)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (
            Parallel(),
            r"does not fit: 141.1 GB of weights per device exceed the 72.0 GB usable of 80 GB on h100; "
            r"remedy: tensor_parallel >= 4 or pipeline_parallel >= 4",
        ),
        (Parallel(8), None),
    ],
)
def test_what_does_not_fit_says_so(parallel, message):
    plan = memory_plan(LLAMA_70B, H100, BF16, parallel)
    assert memory_problem(LLAMA_70B, H100, BF16, parallel, plan) == message


def test_no_room_for_kv():
    plan = memory_plan(LLAMA_70B, H100, BF16, Parallel(2), memory_fraction=0.885)
    text = memory_problem(LLAMA_70B, H100, BF16, Parallel(2), plan)
    assert "leave no room for KV in the 70.8 GB usable" in str(text)
    assert "max_num_seqs" not in str(text)  # beside what driver and context take there is no room for the weights alone
    assert plan.kv.capacity_units == 0


def test_smaller_batches_are_a_remedy_where_the_weights_would_fit():
    plan = memory_plan(LLAMA_70B, H100, BF16, Parallel(2), max_num_seqs=1024, max_num_batched_tokens=8192)
    text = memory_problem(LLAMA_70B, H100, BF16, Parallel(2), plan)
    assert str(text).endswith("or a smaller max_num_seqs or max_num_batched_tokens")


def test_a_block_that_is_larger_than_the_room_for_kv():
    """The remedy is the largest block that fits: one token more does not."""
    plan = memory_plan(LLAMA_8B, H100, BF16, Parallel(), block_tokens=1_000_000)
    free = plan.usable_bytes - plan.weight_bytes - plan.activation_bytes
    most = math.floor(free / 131072)
    assert memory_problem(LLAMA_8B, H100, BF16, Parallel(), plan) == (
        f"does not fit: 16.1 GB of weights and {plan.activation_bytes / 1e9:.1f} GB of activations per device leave "
        f"{free / 1e9:.1f} GB for KV in the 72.0 GB usable of 80 GB on h100, and a block of 1,000,000 tokens takes "
        f"131.1 GB; remedy: kv.block_tokens <= {most:,}"
    )
    assert memory_plan(LLAMA_8B, H100, BF16, Parallel(), block_tokens=most).kv.capacity_units == 1
    assert memory_plan(LLAMA_8B, H100, BF16, Parallel(), block_tokens=most + 1).kv.capacity_units == 0
