"""Shell scripts of other people, read as deployments; flags that nobody knows; damaged ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from evaluator.arguments import get, read_script
from evaluator.errors import InputError
from evaluator.scenario import load_scenario
from tests.thorough import tried

WORKLOAD = {
    "arrivals": {"process": "poisson", "rate_rps": 1},
    "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
}


def keys(text, *names):
    tree = read_script(text, "serve.sh").tree
    return tuple(get(tree, name) for name in names)


def test_short_flags_variables_continued_lines_and_redirections():
    text = """
    export MODEL=meta-llama/Llama-3.1-70B-Instruct TP=${TP:-4}
    CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve "$MODEL" -tp $TP \\
        --max-num-seqs=64 --max_num_batched_tokens 8k \\
        --kv-cache-dtype fp8_e4m3 > server.log 2>&1 &
    """
    names = ("model", "tensor_parallel", "batching.max_num_seqs", "batching.max_num_batched_tokens", "precision.kv")
    assert keys(text, *names) == ("llama-3.1-70b", 4, 64, 8000, "fp8")


def test_without_a_flag_the_engine_does_what_its_version_does():
    names = ("kv.prefix_caching", "kv.admission", "kv.full_prompt", "kv.memory_fraction", "batching.planning")
    assert keys("vllm serve Qwen/Qwen3-8B", *names) == (True, "on_demand", True, 0.92, "asynchronous")
    # The policy is left to the table of the engine's defaults, and with it what is planned ahead.
    assert keys("sglang serve --model Qwen/Qwen3-8B", *names[:3], "batching.policy", "async_scheduling") == (
        True, "on_demand", False, None, True,
    )  # fmt: skip
    assert keys("sglang serve --model Qwen/Qwen3-8B --disable-overlap-schedule", names[4]) == ("at_once",)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--chunked-prefill-size 4096 --max-prefill-tokens 9000", (None, 4096, 9000, False, "fcfs", 1.0)),
        ("--chunked-prefill-size -1 --max-prefill-tokens 9000", ("continuous", 9000, 16384, False, "fcfs", 1.0)),
        ("--enable-mixed-chunk --schedule-policy lpm", (None, None, 16384, True, "longest_prefix", 1.0)),
        ("--schedule-conservativeness 0.3", (None, None, 16384, False, "fcfs", 0.3)),
    ],
)
def test_the_order_of_sglang(flags, wanted):
    names = ("policy", "max_num_batched_tokens", "max_prefill_tokens", "enable_mixed_chunk", "packing",
             "schedule_conservativeness")  # fmt: skip
    assert keys(f"sglang serve --model Qwen/Qwen3-8B {flags}", *(f"batching.{name}" for name in names)) == wanted


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--tp 8 --dp-size 8 --enable-dp-attention --ep-size 8", (1, 8, 8, "gather")),
        ("--tp-size 8 --attn-dp-size 2 --moe-a2a-backend deepep", (4, 2, 8, "deepep")),
        (
            "--tp-size 8 --attn-dp-size 2 --moe-a2a-backend deepep --deepep-mode low_latency",
            (4, 2, 8, "deepep_low_latency"),
        ),
        ("--tp-size 8 --attn-dp-size 8 --moe-a2a-backend mooncake", (1, 8, 8, "all_to_all")),
        ("--tp-size 4 --dp-size 2", (4, 2, 1, "gather")),
        ("--tp-size 4 --enable-prefill-cp --attn-cp-size 2 --moe-a2a-backend deepep", (2, 1, 4, "deepep")),
    ],
)
def test_data_parallel_ranks_of_sglang(flags, wanted):
    names = ("tensor_parallel", "data_parallel", "expert_parallel", "expert_exchange")
    assert keys(f"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 {flags}", *names) == wanted


def test_experts_of_vllm_are_spread_over_all_ranks():
    text = "vllm serve deepseek-ai/DeepSeek-R1 -tp 2 -dp 8 -ep --eplb-config.num_redundant_experts 32 --enable-eplb"
    names = ("expert_parallel", "redundant_experts", "expert_exchange")
    assert keys(text, *names) == (16, 32, "gather")


@pytest.mark.parametrize(("role", "wanted"), [("prefill", "deepep"), ("decode", "deepep_low_latency")])
def test_deepep_takes_the_kernels_of_the_servers_role(role, wanted):
    flags = f"--tp 8 --attn-dp-size 8 --moe-a2a-backend deepep --disaggregation-mode {role}"
    read = read_script(f"python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 {flags}", "serve.sh")
    assert read.tree["pools"][role]["expert_exchange"] == wanted


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("deepep_high_throughput", "deepep"),
        ("deepep_low_latency", "deepep_low_latency"),
        ("flashinfer_nvlink_two_sided", "nvlink"),
        ("nixl_ep", "all_to_all"),
        ("naive", "gather"),
    ],
)
def test_what_exchanges_tokens_in_vllm(backend, wanted):
    text = f"vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --all2all-backend {backend}"
    assert keys(text, "expert_exchange") == (wanted,)


SPREAD = {
    "vllm": "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --all2all-backend deepep_high_throughput --enable-dbo",
    "sglang": "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --attn-dp-size 8 "
    "--moe-a2a-backend deepep --enable-two-batch-overlap",
}


@pytest.mark.parametrize(
    ("engine", "flags", "approximated"),
    [
        ("sglang", "", ()),
        ("vllm", "", ()),
        ("vllm", "--dbo-decode-token-threshold 32 --dbo-prefill-token-threshold 512", ()),
        ("vllm", "--dbo-decode-token-threshold 64", ("--dbo-decode-token-threshold (32 tokens are taken)",)),
    ],
)
def test_batches_that_are_split_in_two(engine, flags, approximated):
    started = read_script(f"{SPREAD[engine]} {flags}", "serve.sh")
    assert started.tree["two_batch_overlap"] and started.tree["expert_exchange"] == "deepep"
    assert started.approximated == approximated and not started.ignored


def test_nothing_is_split_where_nothing_is_exchanged():
    started = read_script("vllm serve Qwen/Qwen3-8B --enable-dbo --dbo-decode-token-threshold 64", "serve.sh")
    assert not started.tree["two_batch_overlap"] and not started.approximated
    assert started.ignored == ("--enable-dbo", "--dbo-decode-token-threshold")


def test_ranks_that_split_prompts_exchange_tokens_in_vllm():
    text = "vllm serve deepseek-ai/DeepSeek-R1 -tp 2 --prefill-context-parallel-size 2 -ep"
    names = ("expert_parallel", "expert_exchange")
    assert keys(f"{text} --all2all-backend deepep_high_throughput", *names) == (4, "deepep")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("vllm serve Qwen/Qwen3-8B --attention-backend FLASHINFER", "auto"),
        ("vllm serve Qwen/Qwen3-8B --attention-config '{\"use_trtllm_attention\": false}'", "flashinfer"),
        (
            "vllm serve Qwen/Qwen3-8B --attention-backend FLASH_ATTN "
            "--attention-config '{\"use_trtllm_attention\": false}'",
            "auto",
        ),
        (
            'vllm serve Qwen/Qwen3-8B --attention-config \'{"use_trtllm_attention": false, "backend": "FLASH_ATTN"}\'',
            "auto",
        ),
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --attention-backend flashinfer", "auto"),
        (
            "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --decode-attention-backend flashinfer",
            "flashinfer",
        ),
    ],
)
def test_kernels_of_decode_attention(line, wanted):
    assert keys(line, "attention_backend") == (wanted,)


def test_other_keys_of_the_configuration_of_attention_are_listed():
    config = '\'{"use_trtllm_attention": false, "flash_attn_version": 2}\''
    started = read_script(f"vllm serve Qwen/Qwen3-8B --attention-config {config}", "serve.sh")
    assert started.tree["attention_backend"] == "flashinfer"
    assert any("--attention-config" in flag for flag in started.ignored)


def test_a_line_for_each_replica_and_roles_by_their_flags():
    assert keys("vllm serve Qwen/Qwen3-8B --port 1 &\nvllm serve Qwen/Qwen3-8B --port 2 &", "replicas") == (2,)
    role = '--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_%s"}\''
    text = "\n".join(f"vllm serve Qwen/Qwen3-8B {role % side} &" for side in ("producer", "producer", "consumer"))
    pools = read_script(text, "serve.sh").tree["pools"]
    assert {name: (pool["role"], pool["replicas"]) for name, pool in pools.items()} == {
        "prefill": ("prefill", 2), "decode": ("decode", 1),
    }  # fmt: skip


def test_the_image_of_vllm_starts_a_server():
    text = (
        "docker pull vllm/vllm-openai:v0.28.0\ndocker run --gpus all -p 8000:8000 \\\n  %s --model Qwen/Qwen3-8B -tp 2"
    )
    for image in ("vllm/vllm-openai:v0.28.0", "registry.example:5000/mirror/vllm-openai"):
        assert keys(text % image, "engine", "model", "tensor_parallel") == ("vllm", "qwen3-8b", 2)


def test_drafts_are_read_but_for_their_acceptance(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text('vllm serve Qwen/Qwen3-8B -sc \'{"method": "ngram", "num_speculative_tokens": 3}\'')
    tree = {"workload": WORKLOAD, "deployment": {"from": str(script), "hardware": "h100-sxm"}}
    with pytest.raises(InputError, match=r"deployment.speculative.acceptance: is required"):
        load_scenario(tree)
    tree["deployment"]["speculative"] = {"acceptance": 0.5}
    assert load_scenario(tree).deployment.speculative.tokens == 3


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--kv-offloading-size 100", (100 * 2.0**30, False)),
        ("""--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": """
         """{"cpu_bytes_to_use": 5e10, "offload_prompt_only": false}}'""", (5e10, True)),
    ],
)  # fmt: skip
def test_host_memory_is_read_but_for_its_bandwidth(tmp_path, flags, found):
    started = read_script(f"vllm serve Qwen/Qwen3-8B {flags}", "serve.sh")
    assert (get(started.tree, "kv.offload_bytes"), get(started.tree, "kv.offload_answers")) == found
    assert not started.ignored
    (tmp_path / "serve.sh").write_text(f"vllm serve Qwen/Qwen3-8B {flags}")
    tree = {"workload": WORKLOAD, "deployment": {"from": str(tmp_path / "serve.sh"), "hardware": "h100-sxm"}}
    with pytest.raises(InputError, match=r"kv.offload_bandwidth: is required with offload_bytes"):
        load_scenario(tree)
    tree["deployment"]["kv"] = {"offload_bandwidth": "50GB/s"}
    assert load_scenario(tree).deployment.kv.offload_bytes == found[0]


def test_tiers_behind_host_memory_are_told_as_ignored_since_no_flag_says_how_fast_they_are():
    tiers = '{"kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs"}]}}'
    started = read_script(
        f"vllm serve Qwen/Qwen3-8B --kv-offloading-size 100 --kv-transfer-config '{tiers}'", "serve.sh"
    )
    assert get(started.tree, "kv.offload_bytes") == 100 * 2.0**30
    assert started.ignored == ("--kv-transfer-config",)


@pytest.mark.parametrize(
    ("flags", "cached"),
    [
        ("--disaggregation-mode decode", False),
        ("--disaggregation-mode decode --disaggregation-decode-enable-radix-cache --disable-radix-cache", True),
        ("--disaggregation-mode prefill", True),
        ("--disable-radix-cache", False),
    ],
)
def test_a_decode_server_of_sglang_caches_no_prefixes_by_itself(flags, cached):
    started = read_script(f"sglang serve --model Qwen/Qwen3-8B {flags}", "serve.sh")
    tree = started.tree.get("pools", {"servers": started.tree})
    (pool,) = tree.values()
    assert pool["kv"]["prefix_caching"] is cached and not started.ignored


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        ("o_proj qkv_proj", "attention"),
        ("q_proj k_proj v_proj o_proj", "attention"),
        ("down_proj up_proj", "feed_forward"),
        ("q_proj o_proj gate_up_proj down_proj", "all"),
        ("q_proj v_proj", None),
        ("model.layers.0.self_attn.o_proj", None),
    ],
)
def test_matrices_with_adapters_by_their_names(names, modules):
    text = f"vllm serve Qwen/Qwen3-8B --enable-lora --lora-target-modules {names}"
    started = read_script(text, "serve.sh")
    assert started.tree["lora"]["modules"] == (modules or "all") and not started.ignored
    other = ("--lora-target-modules (adapters of all linear layers are taken)",)
    assert started.approximated == (() if modules else other)


def test_flags_of_adapters_without_adapters_mean_nothing():
    started = read_script("vllm serve Qwen/Qwen3-8B --lora-target-modules o_proj --fully-sharded-loras", "serve.sh")
    assert started.ignored == ("--lora-target-modules", "--fully-sharded-loras") and not started.approximated


def test_what_is_unknown_and_what_means_nothing_is_listed():
    started = read_script("vllm serve Qwen/Qwen3-8B --foo 3 --trust-remote-code --seed 7 -xyz -q awq", "serve.sh")
    assert started.unknown == ("--foo", "-xyz")
    assert started.ignored == ("--trust-remote-code", "--seed", "--quantization")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "serve.sh: starts no server that can be read; looked for vllm serve"),
        ("echo hello", "starts no server"),
        ("vllm serve", "vllm serve says no model"),
        ("vllm serve nobody/knows-this", "model nobody/knows-this is not in the catalog"),
        ("vllm serve Qwen/Qwen3-8B -tp two", "--tensor-parallel-size of vllm takes int, got 'two'"),
        ("vllm serve Qwen/Qwen3-8B -tp", "-tp of vllm takes a value; there is none"),
        ("vllm serve Qwen/Qwen3-8B --eplb-config {]", "--eplb-config of vllm takes json"),
        ("vllm serve 'Qwen/Qwen3-8B", "not readable as a shell's line"),
        ("# evaluator: {]\nvllm serve Qwen/Qwen3-8B", "a comment of evaluator is damaged"),
        ("x" * 2_000_000, "are no script that starts servers"),
    ],
)
def test_one_message_for_what_cannot_be_read(text, message):
    with pytest.raises(InputError) as error:
        read_script(text, "serve.sh")
    assert message in str(error.value)


@settings(max_examples=tried(300), deadline=None)
@given(
    some.text(), some.lists(some.sampled_from(["-tp", "--", "-", "--no-", "=", "{", "'", "\\", "$X", "--dtype", "4"]))
)
def test_whatever_is_written_is_read_or_refused(text, words):
    for script in (text, f"vllm serve Qwen/Qwen3-8B {' '.join(words)} {text}"):
        with contextlib.suppress(InputError):
            read_script(script, "serve.sh")


# --- deployment: {from: serve.sh}


def scenario(tmp_path, script, **beside):
    (tmp_path / "serve.sh").write_text(script)
    path = tmp_path / "s.yaml"
    said = "".join(f", {key}: {value}" for key, value in beside.items())
    path.write_text(f"workload: {{arrivals: {{process: poisson, rate_rps: 1}}, lengths: {{source: azure-conv-2023}}}}\n"
                    f"deployment: {{from: serve.sh{said}}}\n")  # fmt: skip
    return path


def test_a_scenario_takes_its_deployment_from_a_script_beside_it(tmp_path):
    path = scenario(tmp_path, "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 7", hardware="l40s", tensor_parallel=4)
    loaded = load_scenario(path, ["deployment.batching.max_num_seqs=9"])
    deployment = loaded.deployment
    assert (deployment.model, deployment.hardware, deployment.tensor_parallel) == ("qwen3-8b", "l40s", 4)
    assert deployment.batching.max_num_seqs == 9 and "from" not in loaded.text and "max_num_seqs: 9" in loaded.text


def test_the_model_beside_a_script_is_that_of_a_folder(tmp_path):
    path = scenario(tmp_path, "vllm serve /models/finetuned -tp 2", hardware="l40s", model="qwen3-8b")
    assert load_scenario(path).deployment.model == "qwen3-8b"
    path = scenario(tmp_path, "vllm serve /models/finetuned -tp 2", hardware="l40s")
    with pytest.raises(InputError, match=r"serve.sh: model /models/finetuned is not in the catalog"):
        load_scenario(path)


def test_a_script_says_no_hardware(tmp_path):
    with pytest.raises(InputError, match=r"deployment.hardware: is required"):
        load_scenario(scenario(tmp_path, "vllm serve Qwen/Qwen3-8B"))


def test_a_flag_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"deployment.from: .*--tensor-paralel-size, which vllm 0.28.0 does not take"):
        load_scenario(scenario(tmp_path, "vllm serve Qwen/Qwen3-8B --tensor-paralel-size 2", hardware="l40s"))


@pytest.mark.parametrize("value, message", [("nowhere.sh", "there is no file nowhere.sh"), (3, "expected the name")])
def test_a_script_that_is_not_there(value, message):
    with pytest.raises(InputError, match=message):
        load_scenario({"workload": WORKLOAD, "deployment": {"from": value}})
