"""A deployment that is written as a command line and read again is the same, whatever it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from evaluator.arguments import (
    COMMAND_LINES,
    FLEET_NOTE,
    POOL_NOTE,
    WHOLE,
    StatedPool,
    leaves,
    read_script,
    tree_of,
    unsaid,
)
from evaluator.catalog import load_model
from evaluator.catalog.published import model_name, repository_of
from evaluator.cost.parallel import EXCHANGES
from evaluator.keys import table_of, written
from evaluator.scenario import load_scenario, pools_of, with_engine_defaults
from evaluator.scenario.deployment import Pool
from tests.thorough import tried

WORKLOAD = {
    "arrivals": {"process": "poisson", "rate_rps": 1},
    "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
}
RATE = some.floats(0.01, 1.0)
SPECULATIVE = some.one_of(
    some.none(),
    some.fixed_dictionaries({"method": some.sampled_from(["ngram", "mtp", "eagle"]), "tokens": some.integers(1, 16),
                             "acceptance": RATE}),
    some.fixed_dictionaries({"method": some.just("draft"), "tokens": some.integers(1, 4),
                             "model": some.just("llama-3.1-8b"), "acceptance": RATE}),
)  # fmt: skip
POOL = some.fixed_dictionaries(
    {
        "engine": some.sampled_from(list(COMMAND_LINES)),
        "model": some.sampled_from(["llama-3.1-70b", "deepseek-r1", "glm-4.6", "bloom-176b", "deepseek-v4-flash"]),
        "hardware": some.sampled_from(["h100-sxm", "l40s", {"like": "h100-sxm", "memory_bandwidth": "4TB/s"}]),
        "tensor_parallel": some.sampled_from([1, 2, 8]),
        "pipeline_parallel": some.integers(1, 3),
        "data_parallel": some.sampled_from([1, 2, 4]),
        "expert_parallel": some.sampled_from([1, 2, 4, 8, 16]),
        "redundant_experts": some.integers(0, 8),
        "eager": some.booleans(),
        "attention_backend": some.sampled_from(["auto", "flashinfer"]),
        "decode_context_parallel": some.sampled_from([1, 1, 2, 8]),
        "prefill_context_parallel": some.sampled_from([1, 1, 2]),
        "lora": some.one_of(
            some.none(),
            some.fixed_dictionaries(
                {
                    "max_loras": some.integers(1, 50),
                    "rank": some.integers(1, 600),
                    "modules": some.sampled_from(["all", "attention", "feed_forward"]),
                    "load_bandwidth": some.sampled_from([None, 1e9]),
                }
            ),
        ),
        "expert_exchange": some.sampled_from(EXCHANGES),
        "two_batch_overlap": some.booleans(),
        "api_servers": some.sampled_from([None, 1, 4]),
        "host": some.sampled_from([None, {"speed": 1.3}]),
        "api_server_times": some.sampled_from([None, {"per_token_s": 2e-5}]),
        "replicas": some.integers(1, 5),
        "usd_per_device_hour": some.one_of(some.none(), some.floats(0.0, 9.0)),
        "calibration": some.sampled_from(["auto", "datasheet"]),
        "speculative": SPECULATIVE,
        "precision": some.fixed_dictionaries(
            {
                "weights": some.sampled_from(["checkpoint", "bf16", "fp8", "int4", "fp8_block"]),
                "activations": some.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
                "kv": some.sampled_from(["bf16", "fp16", "fp8", "int8", "nvfp4"]),
            }
        ),
        "batching": some.fixed_dictionaries(
            {
                "policy": some.sampled_from(["chunked", "continuous", "mixed", "orca", "sarathi", "static"]),
                "max_num_seqs": some.integers(1, 4000),
                "max_num_batched_tokens": some.integers(1, 100_000),
                "long_prefill_token_threshold": some.integers(0, 4000),
                "packing": some.sampled_from(["fcfs", "least_work_left"]),
                "planning": some.sampled_from(["at_once", "queued", "asynchronous"]),
                "tau": some.sampled_from([1.0, 2.5]),
            }
        ),
        "kv": some.builds(
            lambda kv, offload: kv | offload,
            some.fixed_dictionaries(
                {
                    "admission": some.sampled_from(["reserve", "on_demand"]),
                    "memory_fraction": some.floats(0.05, 1.0),
                    "block_tokens": some.sampled_from([1, 16, 32, 64]),
                    "watermark": some.floats(0.0, 0.5),
                    "full_prompt": some.booleans(),
                    "capacity_tokens": some.one_of(some.none(), some.integers(512, 10**7)),
                    "prefix_caching": some.booleans(),
                    "preemption": some.just("recompute"),
                }
            ),
            some.sampled_from(
                [
                    {},
                    *(
                        {"offload_bytes": size, "offload_bandwidth": 25e9, "offload_answers": answers}
                        for size in (2e11, 2.0**38)
                        for answers in (False, True)
                    ),
                    {
                        "offload_bytes": 2e11,
                        "offload_bandwidth": 25e9,
                        "offload_write": "write_back",
                        "offload_tiers": ["nvme", {"storage": "rack-pool", "shared_by": "all"}, {"bandwidth": 1e9}],
                    },
                ]
            ),
        ),
    }
)


def loaded(deployment):
    return load_scenario({"workload": WORKLOAD, "deployment": deployment}).deployment


def keys_of(pool):
    """All that a pool says, in whole blocks of KV, as a design states it."""
    tree = {name: written(getattr(pool, name)) for name in table_of(Pool)}
    if tree["kv"]["capacity_tokens"]:
        tree["kv"]["capacity_tokens"] -= tree["kv"]["capacity_tokens"] % pool.shared_block_tokens
    return tree_of(leaves(tree, WHOLE))


def command(keys, name="engine"):
    """The lines by which a pool is started."""
    model, line = load_model(keys["model"]), COMMAND_LINES[keys["engine"]]
    stored = frozenset((model.checkpoint.attention, model.checkpoint.experts))
    repository = repository_of(model.name, model.source)
    server = StatedPool(keys, repository, model.has_experts, 4000, checkpoint=stored, draft="meta-llama/Llama-3.1-8B")
    flags = line.flags(server)
    note = json.dumps({"pool": name, **unsaid(line, server, flags)})
    words = [*line.program, *(() if line.model_flag else (repository,))]
    words += [f"'{word}'" for flag in line.arguments.words(flags) for word in flag]
    return f"{POOL_NOTE}{note}\n{' '.join(words)} --port $port &\n"


@settings(max_examples=tried(400), deadline=None)
@given(POOL, some.sampled_from(["round_robin", "least_work", {"heavy_light": {"prompt_tokens": 9}}]))
def test_a_pool_comes_back(tree, router):
    pool = with_engine_defaults(loaded({**tree, "router": router}))
    keys = keys_of(pool)
    started = read_script(f"{FLEET_NOTE}{json.dumps({'router': router})}\n{command(keys)}", "serve.sh")
    assert not started.unknown
    read = with_engine_defaults(loaded(started.tree))
    assert keys_of(read) == keys and read.router == pool.router


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--all2all-backend=deepep_high_throughput"), ("sglang", "--moe-a2a-backend=deepep")]
)
def test_ranks_that_split_prompts_say_how_they_exchange_tokens(engine, flag):
    tree = {"engine": engine, "model": "deepseek-r1", "hardware": "h100-sxm", "tensor_parallel": 2,
            "prefill_context_parallel": 2, "expert_parallel": 4, "expert_exchange": "deepep"}  # fmt: skip
    text = command(keys_of(with_engine_defaults(loaded(tree))))
    assert flag in text.replace("' '", "=").replace(" ", "=").replace("'", "")
    # By the flags alone, as the note says what they leave out.
    read = read_script(text.splitlines()[-1], "serve.sh").tree
    assert {name: said for name, said in tree.items() if name != "hardware"}.items() <= read.items()


@pytest.mark.parametrize(
    ("engine", "exchange", "flags"),
    [("vllm", "deepep", ("--enable-dbo", "deepep_high_throughput")), ("vllm", "all_to_all", ("nixl_ep",)),
     ("sglang", "deepep_low_latency", ("--enable-two-batch-overlap",))],
)  # fmt: skip
def test_ranks_that_split_batches_in_two_say_so(engine, exchange, flags):
    tree = {"engine": engine, "model": "deepseek-r1", "hardware": "h200-sxm", "data_parallel": 16,
            "expert_parallel": 16, "expert_exchange": exchange, "two_batch_overlap": True}  # fmt: skip
    text = command(keys_of(with_engine_defaults(loaded(tree))))
    assert all(flag in text for flag in flags)
    read = read_script(text.splitlines()[-1], "serve.sh").tree
    assert {name: said for name, said in tree.items() if name != "hardware"}.items() <= read.items()


@settings(max_examples=tried(100), deadline=None)
@given(POOL, POOL)
def test_prefill_and_decode_pools_come_back(prefill, decode):
    trees = {"front": {**prefill, "role": "prefill"}, "back": {**decode, "role": "decode", "speculative": None}}
    wanted = loaded({"pools": trees})
    pools = [(name, keys_of(with_engine_defaults(pool))) for name, pool in pools_of(wanted)]
    started = read_script("".join(command(keys, name) for name, keys in pools), "serve.sh")
    read = loaded(started.tree)
    assert [(name, keys_of(with_engine_defaults(pool))) for name, pool in pools_of(read)] == pools


@pytest.mark.parametrize("engine", COMMAND_LINES)
def test_every_row_is_a_flag_of_the_recorded_arguments(engine):
    line = COMMAND_LINES[engine]
    for row in line.rows:
        entry = line.arguments.entries[row.flag]
        for word in (row.words or {}).values():
            assert word in entry.get("choices", (word,)), row.flag


def test_every_model_of_the_catalog_is_found_by_its_repository():
    from evaluator.catalog import names

    # The tower of a multimodal model is in the repository of that model, and no server runs it alone.
    for name in set(names("models")) - {"qwen3.5-vision"}:
        assert model_name(str(repository_of(name, load_model(name).source))) == name
