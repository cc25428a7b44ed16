"""From a result to command lines: which design is taken, what is stated, what is said, what is refused."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from evaluator.arguments import COMMAND_LINES, StatedPool, read_script
from evaluator.deploy import deploy
from evaluator.deploy.design import read_design
from evaluator.errors import InputError, InputWarning
from evaluator.run import sweep
from evaluator.scenario import load_scenario
from evaluator.search import optimize
from evaluator.traffic.roles import ROLES

WORKLOAD = {
    "arrivals": {"process": "poisson", "rate_rps": 2},
    "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 8},
    "requests": 20,
    "warmup_requests": 2,
}
POOL = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "batching": {"max_num_seqs": 16}}


def result(axes=None, workload=None, **deployment):
    tree = {"workload": {**WORKLOAD, **(workload or {})}, "deployment": {**POOL, **deployment}, "sweep": axes}
    return sweep(tree, simulator="token", progress=False)


@pytest.fixture(scope="module")
def layouts():
    return result({"deployment.tensor_parallel": [1, 2], "deployment.kv.prefix_caching": [False, True]})


def script(deployed):
    return deployed.files["serve.sh"]


def test_the_best_design_is_taken_by_the_ranking_of_the_result(layouts):
    deployed = deploy(layouts)
    assert deployed.chosen.startswith("the best of 4 designs, by ")
    best = int(deployed.chosen.rpartition("=")[2].rstrip(")"))
    assert deploy(layouts, ["1"]).chosen.startswith(f"number 1, by {''}") and f"(config={best})" in deployed.chosen


def test_a_design_is_named_by_its_number_its_values_or_its_row(layouts):
    assert "--tensor-parallel-size 2" in script(deploy(layouts, ["tp=2"]))
    assert "--enable-prefix-caching" in script(deploy(layouts, ["tp=1,prefix_caching=true"]))
    third = deploy(layouts, ["config=2"])
    assert "(config=2)" in third.chosen and "--tensor-parallel-size 2" in script(third)
    assert deploy(layouts, ["#4"]).chosen.startswith("number 4, by")


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (["9"], "--select 9: r.nc ranks 4 designs, from 1"),
        (["tp=8"], "--select tp=8: not in r.nc; tensor_parallel is 1, 2"),
        (["tensor_paralel=1"], "did you mean tensor_parallel?"),
        (["tp=two"], "tensor_parallel is a number"),
        (["tp=1", "config=3"], "no design of r.nc has all of it"),
        (["nonsense"], "NAME=VALUE is wanted"),
    ],
)
def test_what_cannot_be_selected(layouts, select, message):
    with pytest.raises(InputError) as error:
        deploy(layouts, select, source="r.nc")
    assert message in str(error.value)


def test_all_that_the_simulation_took_is_stated(layouts):
    text = script(deploy(layouts, ["config=0"]))
    for flag in (
        "--max-num-seqs 16", "--max-num-batched-tokens 8192", "--enable-chunked-prefill", "--block-size 16",
        "--gpu-memory-utilization 0.92", "--kv-cache-dtype auto", "--dtype bfloat16", "--watermark 0.0",
        "--scheduler-reserve-full-isl", "--no-enable-prefix-caching", "--no-async-scheduling",
        "--max-model-len 308", "vllm serve meta-llama/Llama-3.1-8B",
    ):  # fmt: skip
        assert f"{flag} \\\n" in text, flag
    capacity = int(layouts["kv_capacity_tokens"].values[0])
    assert f"--num-gpu-blocks-override {capacity // 16} " in text


def test_a_script_read_again_is_the_design(layouts, tmp_path):
    (tmp_path / "serve.sh").write_text(script(deploy(layouts, ["tp=2,prefix_caching=true"])))
    path = tmp_path / "again.yaml"
    path.write_text(f"workload: {json.dumps(WORKLOAD)}\ndeployment: {{from: serve.sh}}\n")
    again = sweep(load_scenario(path), simulator="token", progress=False)
    row = np.flatnonzero((layouts["tensor_parallel"].values == 2) & layouts["prefix_caching"].values)[0]
    for name in ("ttft_s", "tpot_s", "e2e_s", "kv_capacity_tokens"):
        np.testing.assert_array_equal(again[name].values[0], layouts[name].values[row])


def test_a_script_is_one_for_a_shell(layouts, tmp_path):
    text = script(deploy(result(replicas=3)))
    assert subprocess.run(["sh", "-n"], input=text.encode(), check=False).returncode == 0
    # What it would run, with the program replaced
    ran = subprocess.run(["sh"], input=text.replace("vllm serve", "echo $devices").encode(), capture_output=True)
    lines = sorted(ran.stdout.decode().splitlines())
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert [line.split()[-1] for line in lines] == ["8000", "8001", "8002"]


def test_mixed_pools_beside_others_have_no_router():
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}, "whole": {"role": "mixed"}}
    with pytest.raises(InputError, match=r"mixed pools \(whole\) beside prefill and decode pools cannot be written"):
        deploy(result(pools=pools))


def test_replicas_have_a_router_with_their_policy():
    turns = {"sessions": {"turns": 2}}
    files = deploy(result(workload=turns, replicas=2, router="session", kv={"prefix_caching": True})).files
    assert "--policy consistent_hash" in files["router.sh"] and "http://127.0.0.1:8001" in files["router.sh"]
    deployed = deploy(result(replicas=2, router="least_kv"))
    assert any("router least_kv: the router has no such policy" in remark for remark in deployed.remarks)
    assert "router.sh" not in deploy(result()).files


def test_what_has_no_flag_is_said_at_the_head_and_among_the_remarks():
    deployed = deploy(result(batching={"policy": "sarathi", "max_num_seqs": 16}))
    (remark,) = [remark for remark in deployed.remarks if "sarathi" in remark]
    assert remark == "batching.policy sarathi: vLLM has no flag for it, and its server has chunked"
    assert f"# not the same: {remark}" in script(deployed)


def test_what_is_no_servers_to_do_is_said_once():
    batching = {"packing": "shortest_first", "prediction_error": 0.5, "aging_tokens_per_s": 2, "max_num_seqs": 16}
    failures = {"mtbf_s": "10h", "mttr_s": "5min", "requests": "resent"}
    remarks = deploy(result(batching={"planning": "at_once"} | batching, failures=failures, replicas=2)).remarks
    assert [remark for remark in remarks if "batching" in remark] == [
        "batching.packing shortest_first: vLLM has no flag for it; its order is that of --scheduling-policy priority, "
        "where a gateway sends the length that it predicts as the priority of each request"
    ]
    # Servers fail as they do: how often is of the machines, and only what a router is to do with it is of a design.
    assert [remark for remark in remarks if "failures" in remark] == [
        "failures.requests resent: is the router's to do, and the one that is written sends nothing again"
    ]


def test_adapters_have_flags_and_the_load_names_none():
    ds = result(workload={"adapters": {"count": 3}}, lora={"max_loras": 3, "rank": 24, "modules": "attention"})
    deployed, text = deploy(ds), script(deploy(ds))
    for words in ("--enable-lora", "--max-loras 3", "--max-lora-rank 32", "--lora-target-modules qkv_proj o_proj"):
        assert words in text, text
    assert any("the load does not say which adapter each names" in remark for remark in deployed.remarks)
    # The room is for rank 32, the next that vLLM has; the design's own rank comes back with the script.
    assert [remark for remark in deployed.remarks if "lora" in remark] == [
        "lora.rank 24: places have room for rank 32, the next that vLLM has"
    ]
    assert read_script(text, "x").tree["lora"]["rank"] == 24


@pytest.mark.parametrize(
    ("engine", "lora", "told"),
    [
        ("vllm", {"rank": 16}, []),
        ("vllm", {"rank": 600}, ["lora.rank 600: vLLM takes adapters of rank 512 at most"]),
        ("vllm", {"load_bandwidth": 5e10},
         ["lora.load_bandwidth 50 GB/s is the host's or its disks', which no flag sets"]),
        ("vllm 0.24", {"modules": "attention"},
         ["lora.modules attention: this release has no flag for it, and places for all"]),
        ("sglang", {}, ["lora: 3 places for adapters of rank 16: SGLang's own flags of adapters are left to you"]),
    ],
)  # fmt: skip
def test_of_adapters_only_what_differs_is_said(engine, lora, told):
    name, _, version = engine.partition(" ")
    ds = result(workload={"adapters": {"count": 3}}, engine=name, engine_version=version or None,
                lora={"max_loras": 3, **lora}, kv={"prefix_caching": False})  # fmt: skip
    assert [remark for remark in deploy(ds).remarks if remark.startswith("lora")] == told


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_kv_that_is_split_along_tokens_has_a_flag(engine):
    ds = result(engine=engine, tensor_parallel=8, model="deepseek-v3", hardware="h200-sxm", decode_context_parallel=2,
                kv={"capacity_tokens": 6400, "block_tokens": 64})  # fmt: skip
    deployed = deploy(ds)
    assert not any("decode_context_parallel" in remark for remark in deployed.remarks)
    flags = {"vllm": ("--decode-context-parallel-size 2", "--num-gpu-blocks-override 50"),
             "sglang": ("--dcp-size 2", "--max-total-tokens 3200")}  # fmt: skip
    assert all(f"{flag} " in script(deployed) for flag in flags[engine])
    tree = read_script(script(deployed), "serve.sh").tree
    assert (tree["decode_context_parallel"], tree["kv"]["capacity_tokens"]) == (2, 6400)


@pytest.mark.parametrize("cached", [True, False])
def test_a_decode_server_of_sglang_caches_prefixes_where_it_is_asked_to(cached):
    pools = {"front": {"role": "prefill"}, "back": {"role": "decode", "kv": {"prefix_caching": cached}}}
    ds = result(workload={"sessions": {"turns": 2, "think_s": 0.1}}, engine="sglang", kv={"prefix_caching": True},
                transfer={"backpressure": True}, pools=pools)  # fmt: skip
    deployed = deploy(ds)
    front, back = script(deployed).split("--disaggregation-mode decode")[0], script(deployed).split("# evaluator: ")[2]
    assert ("--disaggregation-decode-enable-radix-cache" in back) == cached
    assert ("--disable-radix-cache" in back) != cached and "--disaggregation-mode prefill" in front
    assert not any("prefix" in remark for remark in deployed.remarks)
    trees = read_script(script(deployed), "serve.sh").tree["pools"]
    assert [trees[name]["kv"]["prefix_caching"] for name in ("front", "back")] == [True, cached]


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_a_decode_server_of_sglang_refuses_a_prefix_cache_beside_some_drafts(method):
    line = COMMAND_LINES["sglang"]
    keys = {"engine": "sglang", "role": "decode", "kv": {"prefix_caching": True}, "precision": {}, "batching": {},
            "speculative": {"method": method, "tokens": 2, "acceptance": 0.5}}  # fmt: skip
    flags = line.flags(StatedPool(keys, "Qwen/Qwen3-8B"))
    assert flags["--disaggregation-decode-enable-radix-cache"] == (method == "mtp")
    assert line.keys(flags)[0]["kv"]["prefix_caching"] == (method == "mtp")


def test_a_cache_that_a_decode_server_of_sglang_refuses_is_said():
    back = {"role": "decode", "speculative": {"method": "ngram", "tokens": 2, "acceptance": 0.5}}
    ds = result(workload={"sessions": {"turns": 2, "think_s": 0.1}}, engine="sglang", kv={"prefix_caching": True},
                transfer={"backpressure": True}, pools={"front": {"role": "prefill"}, "back": back})  # fmt: skip
    (told,) = [remark for remark in deploy(ds).remarks if "prefix" in remark]
    assert told.startswith("back: a decode server of SGLang has no prefix cache beside drafts by this method")


def test_a_model_without_a_repository_and_its_remedy():
    model = {"like": "llama-3.1-8b", "layers": 16}
    deployed = deploy(result(model=model))
    assert "vllm serve MODEL_ID" in script(deployed)
    assert any("--model-id ORGANISATION/NAME" in remark for remark in deployed.remarks)
    named = deploy(result(model=model), model_id="me/half-a-llama")
    assert "vllm serve me/half-a-llama" in script(named)
    assert read_script(script(named), "x").tree["model"] == {"like": "llama-3.1-8b", "layers": 16}


def test_a_model_by_its_published_name_is_served_by_it():
    """The entry stands for all models with its layers: that of R1-Distill-Llama-8B is Llama-3.1-8B's."""
    name = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
    axis = {"deployment.model": [name, "Qwen/Qwen3-0.6B"]}
    for deployed in (deploy(result(model=name)), deploy(result(axis), select=(f"model={name}",))):
        assert f"vllm serve {name} " in script(deployed)
    both = result({"deployment.model": [name, "meta-llama/Llama-3.1-8B-Instruct"]})
    assert "vllm serve meta-llama/Llama-3.1-8B" in script(deploy(both))  # the catalog's, as two are called by it


def test_attention_in_another_format_is_of_another_repository():
    remarks = deploy(result(precision={"weights": "fp8", "attention": "bf16"})).remarks
    told = "attention's weights in bf16 are those of another repository: name one that is quantised so with --model-id"
    assert any(remark.endswith(told) for remark in remarks), remarks


def test_a_device_that_does_not_exist_is_said():
    deployed = deploy(result(hardware={"like": "h100-sxm", "memory_bandwidth": 5e12}))
    assert any("is hypothetical: the flags are those of the design" in remark for remark in deployed.remarks)
    own = {"name": "mine", "like": "h100-sxm", "memory_bandwidth": 5e12}
    named = deploy(result(hardware=own))
    assert "# engine: 1 x 1 mine with" in script(named)
    assert any(remark.startswith("hardware mine {like h100-sxm, memory") for remark in named.remarks)
    cheap = deploy(result(hardware={"like": "h100-sxm", "usd_per_hour": 1}))
    assert not any("hypothetical" in remark for remark in cheap.remarks)  # another price is no other device


def test_what_the_sweep_has_told_is_not_told_again():
    with pytest.warns(InputWarning, match="1 of 2 points"):
        ds = result({"deployment.replicas": [1, 2], "where": "1 / (replicas - 1) > 0"})
    deploy(ds)  # warnings are errors in tests


@pytest.mark.parametrize("text", ["", "null", "/etc/hostname", "[1]"])
def test_a_result_whose_scenario_is_none_is_refused(layouts, text):
    with pytest.raises(InputError, match="its attribute scenario is damaged"):
        deploy(layouts.assign_attrs(scenario=text))


def test_comments_of_a_script_are_one_line_each(tmp_path):
    """What a file is called stands in the head of the script, whose shell would run a second line."""
    deployed = deploy(result(), source="results\ntouch stolen\n.nc")
    assert "touch stolen" in script(deployed)
    assert not any(line.startswith("touch") for line in script(deployed).splitlines())


def test_an_engine_s_own_target_and_no_other():
    ds = result(engine="sglang")
    deployed = deploy(ds)
    assert "python3 -m sglang.launch_server" in script(deployed) and "--max-prefill-tokens" in script(deployed)
    with pytest.raises(InputError, match=r"--to vllm: the design was simulated with SGLang.*--to sglang"):
        deploy(ds, to="vllm")
    with pytest.raises(InputError, match="--to nomad: is no target; allowed: vllm"):
        deploy(ds, to="nomad")


def test_prefill_and_decode_pools():
    pools = {"front": {"role": "prefill", "replicas": 2}, "back": {"role": "decode", "tensor_parallel": 2}}
    deployed = deploy(result(pools=pools))
    started = read_script(script(deployed), "serve.sh")
    assert {name: (pool["role"], pool["replicas"]) for name, pool in started.tree["pools"].items()} == {
        "front": ("prefill", 2), "back": ("decode", 1),
    }  # fmt: skip
    assert started.tree["transfer"]["link"] == "rdma-400g"
    assert "--vllm-pd-disaggregation" in deployed.files["router.sh"]
    assert "--decode http://127.0.0.1:8002" in deployed.files["router.sh"]


def test_no_design_that_can_run():
    with pytest.raises(InputError, match="no design that was asked for can run: "):
        deploy(result(model="llama-3.1-405b"))


def test_a_saturated_design_is_refused():
    ds = result(workload={"arrivals": {"process": "poisson", "rate_rps": 1000}, "requests": 2000})
    assert ds["saturated"].values.all()
    with pytest.raises(InputError, match=r"is saturated.*no server can be checked against it"):
        deploy(ds)


# --- the load


def load_of(ds):
    head, *requests = (json.loads(line) for line in deploy(ds).files["load.jsonl"].splitlines())
    return head, requests


def test_the_load_is_the_one_that_was_simulated(layouts):
    head, requests = load_of(layouts)
    design = read_design(layouts, (), "r")
    jobs = design.traffic.sampler.jobs(design.traffic.workload, 0, ROLES["mixed"])
    np.testing.assert_allclose([request["at_s"] for request in requests], jobs.ready_s, atol=1e-6)
    assert {sum(tokens for _, tokens in request["prompt"]) for request in requests} == {300}
    assert {request["output_tokens"] for request in requests} == {8} and head["users"] is None


def test_users_cached_prefixes_and_system_prompts():
    head, _ = load_of(result(workload={"arrivals": {"process": "closed_loop", "users": 3}}))
    assert head["users"] == 3
    deployed = deploy(result(workload={"cached_tokens": 64}))
    assert "--enable-prefix-caching" in script(deployed) and any("prefix caching is on" in r for r in deployed.remarks)
    head, requests = load_of(result(workload={"cached_tokens": 64}))
    assert head["warm"] == [[["cached", 64]]] and requests[0]["prompt"][0] == ["cached", 64]
    sessions = {"system_prompts": 2, "system_tokens": 128}
    head, requests = load_of(result(workload={"sessions": sessions}, kv={"prefix_caching": True}))
    assert [prompt[0][0] for prompt in head["warm"]] == ["system 0", "system 1"]
    # Several pools find them by their content, and begin without.
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}}
    head, apart = load_of(result(workload={"sessions": sessions}, pools=pools, kv={"prefix_caching": True}))
    assert head["warm"] == [] and {request["prompt"][0][0] for request in apart} == {"system 0", "system 1"}
    assert [request["prompt"][0] for request in requests[:3]] == [
        ["system 0", 128],
        ["system 1", 128],
        ["system 0", 128],
    ]


def test_turns_go_on_where_the_answer_before_ended():
    sessions = {"turns": 3, "think_s": 0.5}
    _, requests = load_of(result(workload={"sessions": sessions, "requests": 12}, kv={"prefix_caching": True}))
    turns = [request for request in requests if "after" in request]
    assert turns and all(request["prompt"][0][1] == 300 and request["think_s"] == 0.5 for request in turns)


def test_what_a_search_adds_to_a_sweep_is_of_the_design():
    tree = {
        "workload": {**WORKLOAD, "requests": 60},
        "deployment": {"model": "qwen3-8b", "hardware": "l40s", "batching": {"max_num_seqs": 16}},
        "slo": {"ttft": {"p90": "1s"}},
        "sweep": {"deployment.kv.prefix_caching": [False, True], "workload.arrivals.rate_rps": [1, 2]},
        "budget": {"devices": 4, "fill": True, "layouts": True},
    }
    ds = optimize(tree, bracket=0.5, simulator="token", progress=False)
    for row in range(ds.sizes["config"]):
        if ds["goodput_rps"].values[row] > 0:
            design = read_design(ds, (f"config={ds['config'].values[row]}",), "r")
            (pool,) = design.pools
            assert (pool.keys["tensor_parallel"], pool.replicas) == (
                ds["tensor_parallel"].values[row], ds["replicas"].values[row],
            )  # fmt: skip
            assert pool.keys["kv"]["prefix_caching"] == ds["prefix_caching"].values[row]
            assert design.traffic.workload.arrivals.rate_rps == pytest.approx(ds["goodput_rps"].values[row])
    assert ds["replicas"].values.max() > 1


def test_without_chunks_an_iteration_has_room_for_the_longest_request():
    batching = {"policy": "mixed", "max_num_seqs": 16, "max_num_batched_tokens": 302}
    deployed = deploy(result(batching=batching))
    assert "--max-num-batched-tokens 308" in script(deployed) and "--max-model-len 308" in script(deployed)
    assert any("max_num_batched_tokens 302: vLLM takes no fewer" in remark for remark in deployed.remarks)
    assert read_script(script(deployed), "x").tree["batching"]["max_num_batched_tokens"] == 302


def test_a_bound_of_chunks_beyond_all_requests_is_one_that_vllm_takes():
    ds = result(batching={"policy": "chunked", "max_num_seqs": 16, "long_prefill_token_threshold": 5000})
    deployed = deploy(ds)
    assert "--long-prefill-token-threshold 308" in script(deployed)
    assert read_script(script(deployed), "x").tree["batching"]["long_prefill_token_threshold"] == 5000


def test_sglang_has_no_bound_of_chunks():
    ds = result(engine="sglang", batching={"policy": "chunked", "max_num_seqs": 16, "long_prefill_token_threshold": 99})
    assert any("long_prefill_token_threshold 99: SGLang has no flag" in remark for remark in deploy(ds).remarks)


def test_sglang_overlaps_where_the_design_plans_ahead():
    own = {"policy": "token_ratio", "max_num_seqs": 16}
    ahead, at_once = (
        deploy(result(engine="sglang", batching={**own, "planning": planning}))
        for planning in ("asynchronous", "at_once")
    )
    assert "--disable-overlap-schedule" in script(at_once)
    assert "--disable-overlap-schedule" not in script(ahead)
    assert not any("planning" in remark for remark in ahead.remarks)
    assert read_script(script(ahead), "x").tree["batching"]["planning"] == "asynchronous"


def test_several_models_and_what_a_router_does_not_do():
    models = {"llama-3.1-8b": 0.5, "qwen3-8b": 0.5}
    pools = {"a": {"role": "mixed"}, "b": {"role": "mixed", "model": "qwen3-8b"}}
    ds = result(workload={"models": models}, pools=pools)
    deployed = deploy(ds)
    assert any("the router does not choose by model" in remark for remark in deployed.remarks)
    assert "vllm serve Qwen/Qwen3-8B" in script(deployed) and "vllm serve meta-llama/Llama-3.1-8B" in script(deployed)
    head, requests = load_of(ds)
    assert head["models"] == ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"]
    assert {request["model"] for request in requests} == {0, 1}


def test_stages_are_said_and_left_out():
    ds = result()
    tree = {
        "workload": WORKLOAD,
        "deployment": POOL,
        "pipeline": [{"stage": "tool", "seconds": "20ms", "tokens": 50}, {"stage": "prefill"}, {"stage": "decode"}],
    }
    ds = sweep(tree, simulator="token", progress=False)
    deployed = deploy(ds)
    assert any("the stages tool of the pipeline are left out" in remark for remark in deployed.remarks)
    assert "# not the same: the stages tool" in script(deployed)
    _, requests = load_of(ds)
    assert {sum(tokens for _, tokens in request["prompt"]) for request in requests} == {350}


def test_a_trace_is_looked_for_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n0.5,120,6\n1,80,4\n")
    monkeypatch.chdir(tmp_path)
    tree = {"workload": {"arrivals": {"process": "trace", "file": "t.csv"}}, "deployment": POOL}
    ds = sweep(tree, simulator="token", progress=False)
    _, requests = load_of(ds)
    assert [(request["at_s"], request["prompt"][-1][1], request["output_tokens"]) for request in requests] == [
        (0.0, 100, 5), (0.5, 120, 6), (1.0, 80, 4),
    ]  # fmt: skip
    (tmp_path / "t.csv").unlink()
    with pytest.raises(InputError, match=r"t\.csv.*files that it names are looked for in the current directory"):
        deploy(ds, source="r.nc")


def test_tiers_behind_host_memory_are_folders_of_vllm():
    turns = {"turns": 3, "think_s": 1}
    tiers = ["nvme", {"storage": "rack-pool", "shared_by": "all"}]
    offload = {"offload_bytes": "64GB", "offload_bandwidth": "25GB/s", "offload_tiers": tiers}
    deployed = deploy(result(workload={"sessions": turns}, kv={"prefix_caching": True, **offload}))
    assert '"spec_name": "TieringOffloadingSpec"' in script(deployed)
    assert '{"type": "fs", "root_dir": "/mnt/kv-tiers/1-rack-pool"}' in script(deployed)
    assert any("one PYTHONHASHSEED" in remark for remark in deployed.remarks)
    assert any("no flag of vLLM bounds what they keep" in remark for remark in deployed.remarks)
    assert not any("kv.offload_write" in remark for remark in deployed.remarks)
