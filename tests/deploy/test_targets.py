"""Files of each target: what they start, by their own schemas where these are there, and what they refuse."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

from evaluator.arguments import COMMAND_LINES, read_script
from evaluator.arguments.manifests import read_servers
from evaluator.deploy import TARGETS, deploy
from evaluator.errors import InputError
from tests.deploy.test_deploy import result

PHASES = {"front_end": {"role": "prefill", "replicas": 2}, "back": {"role": "decode", "tensor_parallel": 2}}


@pytest.fixture(scope="module")
def phases():
    return result(pools=PHASES)


@pytest.fixture(scope="module")
def single():
    return result()


def documents(deployed):
    return list(yaml.safe_load_all(next(iter(deployed.files.values()))))


def started(command):
    """The deployment that the words of a container start."""
    return read_script(shlex.join(command), "container").tree


def test_compose_has_a_service_for_each_replica_and_a_router(phases):
    (text,) = documents(deploy(phases, to="compose"))
    services = text["services"]
    assert list(services) == ["front-end-0", "front-end-1", "back-0", "router"]
    reserved = [
        services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for name in list(services)[:3]
    ]
    assert reserved == [["0"], ["1"], ["2", "3"]]
    back = started(services["back-0"]["entrypoint"] + services["back-0"]["command"])
    (pool,) = back["pools"].values()
    assert pool["tensor_parallel"] == 2 and pool["role"] == "decode" and pool["model"] == "llama-3.1-8b"
    assert "http://front-end-1:8000" in services["router"]["entrypoint"]
    assert services["router"]["ports"] == ["9000:9000"] and services["router"]["depends_on"] == list(services)[:3]


def test_compose_of_one_server_has_no_router(single):
    (text,) = documents(deploy(single, to="compose"))
    assert list(text["services"]) == ["engine-0"] and text["services"]["engine-0"]["ports"] == ["8000:8000"]


def test_kubernetes_has_a_set_and_a_service_for_each_pool(phases):
    manifests = documents(deploy(phases, to="kubernetes"))
    kinds = [(document["kind"], document["metadata"]["name"]) for document in manifests]
    assert kinds == [
        ("StatefulSet", "front-end"), ("Service", "front-end"), ("StatefulSet", "back"), ("Service", "back"),
        ("Deployment", "router"), ("Service", "router"),
    ]  # fmt: skip
    front = manifests[0]["spec"]
    (container,) = front["template"]["spec"]["containers"]
    assert front["replicas"] == 2 and container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert all(isinstance(word, str) for word in container["args"])
    (pool,) = started(container["command"] + container["args"])["pools"].values()
    assert pool["role"] == "prefill" and pool["batching"]["max_num_seqs"] == 16
    assert front["selector"]["matchLabels"].items() <= front["template"]["metadata"]["labels"].items()
    assert manifests[1]["spec"]["selector"] == front["template"]["metadata"]["labels"]
    (router,) = manifests[4]["spec"]["template"]["spec"]["containers"]
    assert "http://front-end-1.front-end:8000" in router["command"]


@pytest.mark.parametrize("engine", COMMAND_LINES)
def test_manifests_are_valid_by_the_schema_of_kubernetes(engine):
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for ds in (result(pools=PHASES, engine=engine), result(engine=engine, replicas=2)):
        for document in documents(deploy(ds, to="kubernetes")):
            validator.validate(document, "1.34", strict=True)


def test_values_of_llm_d(phases, single):
    (values,) = documents(deploy(phases, to="llm-d"))
    assert values["modelArtifacts"]["uri"] == "hf://meta-llama/Llama-3.1-8B"
    assert (values["prefill"]["replicas"], values["decode"]["parallelism"]["tensor"]) == (2, 2)
    (decode,) = values["decode"]["containers"]
    assert decode["modelCommand"] == "vllmServe" and "--tensor-parallel-size" not in decode["args"]
    assert decode["ports"][0]["containerPort"] == 8200 and values["routing"]["proxy"]["connector"] == "nixlv2"
    (values,) = documents(deploy(single, to="llm-d"))
    assert values["prefill"] == {"create": False} and values["decode"]["replicas"] == 1


def test_a_graph_of_dynamo(phases):
    (graph,) = documents(deploy(phases, to="dynamo"))
    services = graph["spec"]["services"]
    assert graph["kind"] == "DynamoGraphDeployment" and list(services) == ["Frontend", "FrontEndWorker", "BackWorker"]
    front, back = services["FrontEndWorker"], services["BackWorker"]
    assert front["subComponentType"] == "prefill" and front["replicas"] == 2
    container = back["extraPodSpec"]["mainContainer"]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"] and "--is-decode-worker" in container["args"]
    assert back["resources"]["limits"] == {"gpu": "2"} and "--kv-transfer-config" not in container["args"]
    assert services["Frontend"]["envs"] == [{"name": "DYN_ROUTER_MODE", "value": "round-robin"}]


def test_a_graph_of_dynamo_says_that_one_frontend_routes_both_phases(phases):
    apart = result(pools=PHASES, router={"prefill": "round_robin", "decode": "random"})
    remark = "router random of the decode phase: one frontend routes both phases, by round-robin"
    assert remark in deploy(apart, to="dynamo").files["dynamo.yaml"]
    assert "decode phase" not in deploy(phases, to="dynamo").files["dynamo.yaml"]


SCALING = {
    "sla": (
        {"metric": "prompt_rate", "within_s": 0.5, "cooldown_s": 0, "tolerance": 0},
        {"metric": "output_rate", "within_s": 0.05, "predictor": "trend"},
        {"ttft_ms": 500.0, "itl_ms": 50.0, "load_predictor": "kalman", "throughput_adjustment_interval_seconds": 15},
    ),
    "load": (
        {"metric": "prompt_tokens", "target": 9000, "lower": 500, "cooldown_s": 0, "tolerance": 0},
        {"metric": "kv", "target": 0.75, "lower": 0.5, "min_replicas": 2},
        {"prefill_scale_up_queue_tokens": 9000, "decode_scale_up_kv_rate": 75.0, "decode_scale_down_kv_rate": 50.0},
    ),
}


@pytest.mark.parametrize("rule", SCALING)
def test_dynamos_planner_scales_both_sides(rule):
    prefill, decode, fields = SCALING[rule]
    pools = {"p": {"role": "prefill", "replicas": 4, "autoscaling": prefill},
             "d": {"role": "decode", "replicas": 3, "tensor_parallel": 2, "autoscaling": decode}}  # fmt: skip
    deployed = deploy(result(pools=pools, autoscaling_devices=9), to="dynamo")
    services = documents(deployed)[0]["spec"]["services"]
    container = services["Planner"]["extraPodSpec"]["mainContainer"]
    config = json.loads(container["args"][1])
    assert container["command"] == ["python3", "-m", "dynamo.planner"] and config["optimization_target"] == rule
    assert config["max_gpu_budget"] == 9 and config["decode_engine_num_gpu"] == 2
    assert {name: config[name] for name in fields} == fields
    assert services["PWorker"]["replicas"] == 4 and config["decode_min_endpoint"] == decode.get("min_replicas", 1)
    text = deployed.files["dynamo.yaml"]
    read = read_servers(text, "dynamo.yaml").tree
    assert [pool["replicas"] for pool in read["pools"].values()] == [4, 3]
    assert read["pools"]["d"]["autoscaling"]["metric"] == decode["metric"] and read["autoscaling_devices"] == 9
    assert "no autoscaler is" not in text and "d: autoscaling: Dynamo's planner" in text
    assert "without cooldown_s and tolerance" in text
    budget = "all replicas take 10 GPUs, and max_gpu_budget is 9; start with fewer"
    assert f"# not the same: {budget}\n" in text and budget in deployed.remarks


def test_what_dynamos_planner_rounds_and_does_not_average_is_said():
    prefill, decode, _ = SCALING["load"]
    often = {"every_s": 0.4, "window_s": 2}
    prefill = prefill | often | {"target": 0.9, "lower": 0.3}
    pools = {"p": {"role": "prefill", "replicas": 2, "autoscaling": prefill},
             "d": {"role": "decode", "replicas": 2, "autoscaling": decode | often}}  # fmt: skip
    text = deploy(result(pools=pools), to="dynamo").files["dynamo.yaml"]
    services = yaml.safe_load(text)["spec"]["services"]
    config = json.loads(services["Planner"]["extraPodSpec"]["mainContainer"]["args"][1])
    assert config["load_adjustment_interval_seconds"] == 1
    assert (config["prefill_scale_up_queue_tokens"], config["prefill_scale_down_queue_tokens"]) == (1, 0)
    assert "window_s, every 1 s in place of 0.4 s" in text and "start with fewer" not in text


def test_a_rule_that_dynamos_planner_has_not():
    scaling = {"metric": "outstanding", "target": 4}
    text = deploy(result(pools=PHASES, autoscaling=scaling), to="dynamo").files["dynamo.yaml"]
    assert "Planner" not in text and "front_end: autoscaling: all 2 replicas are started, and no autoscaler is" in text


def test_tensorrt_llm_has_its_yaml():
    deployed = deploy(result(engine="trtllm", kv={"prefix_caching": True}))
    assert list(deployed.files) == ["serve.sh", "engine.yaml", "load.jsonl", "bench.py"]
    config = yaml.safe_load(deployed.files["engine.yaml"])
    assert config["kv_cache_config"] | {"max_tokens": 0} == {
        "tokens_per_block": 32, "max_tokens": 0, "enable_block_reuse": True, "dtype": "auto",
    }  # fmt: skip
    assert config["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}
    text = deployed.files["serve.sh"]
    assert "trtllm-serve serve meta-llama/Llama-3.1-8B" in text and "--extra_llm_api_options engine.yaml" in text
    assert "--max_batch_size 16" in text and "--max_num_tokens 8192" in text


def test_tensorrt_llm_has_the_attention_of_flashinfer_in_its_yaml():
    deployed = deploy(result(engine="trtllm", hardware="b200-sxm", attention_backend="flashinfer"))
    assert yaml.safe_load(deployed.files["engine.yaml"])["attn_backend"] == "FLASHINFER"
    assert not any("attention_backend" in remark for remark in deployed.remarks)


def test_tensorrt_llm_orchestrates_prefill_and_decode():
    files = deploy(result(engine="trtllm", pools=PHASES)).files
    orchestrator = yaml.safe_load(files["disaggregated.yaml"])
    assert orchestrator["context_servers"] == {"num_instances": 2, "urls": ["localhost:8000", "localhost:8001"]}
    assert orchestrator["generation_servers"]["urls"] == ["localhost:8002"]
    assert yaml.safe_load(files["back.yaml"])["cache_transceiver_config"]["backend"] == "NIXL"
    deployed = deploy(result(engine="trtllm", replicas=2))
    assert deployed.remarks[-1].startswith("router round_robin: trtllm-serve has one for prefill and decode alone")
    assert deployed.remarks[-1] in deployed.files["serve.sh"]
    with pytest.raises(InputError, match="--to dynamo: the design was simulated with TensorRT-LLM"):
        deploy(result(engine="trtllm"), to="dynamo")


@pytest.mark.parametrize("target", ["llm-d", "dynamo"])
def test_several_pools_that_a_target_cannot_hold(target):
    pools = {"a": {"role": "mixed"}, "b": {"role": "mixed", "hardware": "h200-sxm"}}
    with pytest.raises(InputError, match=rf"--to {target}: .*the design has 2 \(mixed, mixed\); use --to kubernetes"):
        deploy(result(pools=pools), to=target)


@pytest.mark.parametrize("target", ["kubernetes", "llm-d", "dynamo"])
def test_a_replica_larger_than_a_machine(target):
    ds = result(model="llama-3.1-70b", tensor_parallel=8, pipeline_parallel=2)
    with pytest.raises(InputError, match="has 16 devices, more than the 8 of a machine"):
        deploy(ds, to=target)
    assert "--pipeline-parallel-size 2" in deploy(ds).files["serve.sh"]


def test_sglang_on_every_target_that_has_it():
    ds = result(engine="sglang")
    for name, target in TARGETS.items():
        if "sglang" in target.engines:
            assert "sglang" in next(iter(deploy(ds, to=name).files.values()))


def test_prefill_servers_of_sglang_meet_decodes_at_ports_of_their_own():
    files = deploy(result(engine="sglang", pools=PHASES)).files
    assert '--disaggregation-bootstrap-port "$bootstrap"' in files["serve.sh"]
    assert "--prefill http://127.0.0.1:8001 8999" in files["router.sh"]
    assert set(read_script(files["serve.sh"], "serve.sh").tree["pools"]) == set(PHASES)
    assert files["serve.sh"].count("--context-length 308") == 2


TURNS = {"sessions": {"turns": 2}}
CACHED = {"workload": TURNS, "replicas": 2, "kv": {"prefix_caching": True}}


@pytest.mark.parametrize(
    ("router", "envs", "remark"),
    [
        (
            {"prefix_approximate": {"ttl_s": 60}},
            {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_USE_KV_EVENTS": "false", "DYN_ROUTER_TTL_SECS": "60.0"},
            "Dynamo's weighs prefixes against load",
        ),
        (
            "prefix_approximate",
            {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_USE_KV_EVENTS": "false", "DYN_ROUTER_TTL_SECS": "120.0"},
            "Dynamo's forgets after 120 s, not by memory_blocks",
        ),
        (
            {"prefix_aware": {"events_delay_s": 1, "predicted_ttl_s": 2}},
            {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_PREDICTED_TTL_SECS": "2.0"},
            "Dynamo's weighs prefixes against load",
        ),
    ],
)
def test_a_graph_of_dynamo_says_what_its_router_knows(router, envs, remark):
    deployed = deploy(result(**CACHED, router=router), to="dynamo")
    text = deployed.files["dynamo.yaml"]
    (graph,) = yaml.safe_load_all(text)
    assert {each["name"]: each["value"] for each in graph["spec"]["services"]["Frontend"]["envs"]} == envs
    # The command tells what differs, too: who applies a manifest does not read its comments.
    assert remark in text and any(remark in told for told in deployed.remarks)


def test_the_routers_of_the_engines_remember_what_they_sent():
    rule = {"threshold": 0.5, "imbalance": 8}
    deployed = deploy(result(**CACHED, router={"prefix_approximate": {**rule, "memory_blocks": 900}}))
    text = deployed.files["router.sh"]
    assert "--policy cache_aware" in text and "--cache-threshold 0.5" in text and "--balance-abs-threshold 8" in text
    assert "--balance-rel-threshold 1.5" in text and "stand in for" not in text
    assert any("in characters (--max-tree-size), not by memory_blocks" in remark for remark in deployed.remarks)
    late = deploy(result(**CACHED, router="prefix_aware"))
    assert any("hears of no cache and goes by what it has sent" in remark for remark in late.remarks)


def test_the_scheduler_of_llm_d_scores_adapters():
    adapters = {"lora": {"max_loras": 2}, "router": {"adapter_affinity": {"queue_weight": 2}}, "replicas": 2}
    files = deploy(result(workload={"adapters": {"count": 9}}, **adapters), to="llm-d").files
    picker = yaml.safe_load(files["llm-d-scheduler.yaml"])
    assert picker["schedulingProfiles"][0]["plugins"] == [
        {"pluginRef": "lora-affinity-scorer", "weight": 1},
        {"pluginRef": "queue-scorer", "weight": 2.0},
        {"pluginRef": "max-score-picker"},
    ]
    assert "llm-d-scheduler.yaml" in files["llm-d-values.yaml"]
    knows = {**adapters, "router": {"adapter_affinity": {"sees": "places"}}}
    deployed = deploy(result(workload={"adapters": {"count": 9}}, **knows), to="llm-d")
    told, unlike = deployed.files["llm-d-values.yaml"], "not as the design's router"
    assert "llm-d-scheduler.yaml" not in deployed.files and unlike in told
    assert [unlike in remark for remark in deployed.remarks][-1]
    assert unlike not in deploy(result(), to="llm-d").files["llm-d-values.yaml"]  # one server: nothing to route


@pytest.mark.parametrize(
    ("keys", "memory", "weights"),
    [
        ({}, {"autoTune": True}, [3, 2, 2]),
        (
            {"memory_blocks": 900, "scores": {"prefix": 1, "kv": 0}},
            {"autoTune": False, "blockSizeTokens": 16, "lruCapacityPerServer": 900},
            [1, 2, 0],
        ),
    ],
)
def test_the_scheduler_of_llm_d_remembers_what_it_sent(keys, memory, weights):
    files = deploy(result(**CACHED, router={"prefix_approximate": keys}), to="llm-d").files
    picker = yaml.safe_load(files["llm-d-scheduler.yaml"])
    producer, *scorers = picker["plugins"]
    assert producer == {"type": "approx-prefix-cache-producer", "parameters": memory}
    assert [each["type"] for each in scorers[:3]] == [
        "prefix-cache-scorer", "queue-scorer", "kv-cache-utilization-scorer",
    ]  # fmt: skip
    assert [each["weight"] for each in picker["schedulingProfiles"][0]["plugins"][:3]] == weights
    assert "in blocks of 64 tokens at the least" in files["llm-d-values.yaml"]
    assert ("with their usual weights" in files["llm-d-values.yaml"]) == ("scores" not in keys)
