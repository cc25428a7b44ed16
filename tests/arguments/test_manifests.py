"""YAML of Dynamo, llm-d, Kubernetes and Compose, read as deployments: what deploy wrote, and what others write."""

from __future__ import annotations

import contextlib
import random

import pytest
from typer.testing import CliRunner

from evaluator.arguments import read_servers
from evaluator.cli.app import app
from evaluator.deploy import deploy
from evaluator.errors import InputError
from evaluator.scenario import load_scenario
from tests.deploy.test_deploy import WORKLOAD, result
from tests.thorough import tried

PHASES = {"front_end": {"role": "prefill", "replicas": 2}, "back": {"role": "decode", "tensor_parallel": 2}}

# As examples/backends/vllm/deploy/disagg_router.yaml of ai-dynamo/dynamo (Apache-2.0) is built.
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: vllm-disagg}
spec:
  services:
    Frontend:
      componentType: frontend
      replicas: 1
      envs: [{name: DYN_ROUTER_MODE, value: kv}]
      extraPodSpec: {mainContainer: {image: dynamo}}
    VllmDecodeWorker:
      componentType: worker
      subComponentType: decode
      replicas: 2
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-8B, --tensor-parallel-size, "2", --max-num-seqs, "7", --is-decode-worker]
    VllmPrefillWorker:
      componentType: worker
      replicas: 3
      extraPodSpec:
        mainContainer:
          command: [/bin/sh, -c]
          args: ["exec python3 -m dynamo.vllm --model Qwen/Qwen3-8B --is-prefill-worker"]
"""
# As guides/pd-disaggregation/ms-pd/values.yaml of llm-d (Apache-2.0) is built.
LLMD = """
modelArtifacts: {uri: "hf://Qwen/Qwen3-8B", name: Qwen/Qwen3-8B, size: 160Gi}
decode:
  create: true
  replicas: 1
  parallelism: {tensor: 4}
  containers:
  - {name: vllm, modelCommand: vllmServe, args: [--block-size, "128", --max-model-len, "32000"]}
prefill:
  create: true
  replicas: 4
  parallelism: {tensor: 1}
  containers:
  - {name: vllm, modelCommand: vllmServe, args: [--block-size, "128"]}
"""


def keys(scenario):
    pools = scenario.deployment.pools
    return sorted(pools.items()) if pools else scenario.deployment


@pytest.mark.parametrize("target", ["compose", "kubernetes", "llm-d", "dynamo"])
@pytest.mark.parametrize("pools", [None, PHASES])
def test_what_deploy_writes_comes_back(tmp_path, target, pools):
    made = result(**({"pools": pools} if pools else {"tensor_parallel": 2}))
    written, script = (next(iter(deploy(made, to=to).files.values())) for to in (target, "vllm"))
    scenarios = []
    for name, text in (("design.yaml", written), ("serve.sh", script)):
        (tmp_path / name).write_text(text)
        scenarios.append(load_scenario({"workload": WORKLOAD, "deployment": {"from": str(tmp_path / name)}}))
    assert keys(scenarios[0]) == keys(scenarios[1])


def test_a_graph_of_dynamo_says_roles_replicas_and_router():
    started = read_servers(DYNAMO, "graph.yaml")
    assert not started.unknown and started.tree["router"] == "prefix_aware"
    pools = {name: (pool["role"], pool["replicas"], pool["tensor_parallel"], pool["model"])
             for name, pool in started.tree["pools"].items()}  # fmt: skip
    assert pools == {"decode": ("decode", 2, 2, "qwen3-8b"), "prefill": ("prefill", 3, 1, "qwen3-8b")}
    assert started.tree["pools"]["decode"]["batching"]["max_num_seqs"] == 7


@pytest.mark.parametrize(
    ("said", "router"),
    [
        ('{name: DYN_ROUTER_USE_KV_EVENTS, value: "false"}', {"prefix_approximate": {"ttl_s": 120.0}}),
        (
            '{name: DYN_ROUTER_USE_KV_EVENTS, value: "false"}, {name: DYN_ROUTER_TTL_SECS, value: "9"}',
            {"prefix_approximate": {"ttl_s": 9.0}},
        ),
        ('{name: DYN_ROUTER_PREDICTED_TTL_SECS, value: "5"}', {"prefix_aware": {"predicted_ttl_s": 5.0}}),
    ],
)
def test_a_graph_of_dynamo_says_what_its_router_knows(said, router):
    mode = "{name: DYN_ROUTER_MODE, value: kv}"
    assert mode in DYNAMO
    assert read_servers(DYNAMO.replace(mode, f"{mode}, {said}"), "graph.yaml").tree["router"] == router


def test_values_of_llmd_say_how_devices_share_a_model():
    pools = read_servers(LLMD, "values.yaml").tree["pools"]
    said = {
        name: (pool["replicas"], pool["tensor_parallel"], pool["kv"]["block_tokens"]) for name, pool in pools.items()
    }
    assert said == {"decode": (1, 4, 128), "prefill": (4, 1, 128)}
    mixed = LLMD.replace("prefill:\n  create: true", "prefill:\n  create: false")
    assert read_servers(mixed, "values.yaml").tree["tensor_parallel"] == 4


@pytest.mark.parametrize(
    "text",
    [
        # As vLLM's documentation and its recipes have it: the image starts vLLM, the arguments are flags alone.
        "services: {a: {image: 'vllm/vllm-openai:v0.9.1', command: --model Qwen/Qwen3-8B --tensor-parallel-size 2}}",
        "kind: Deployment\nspec: {template: {spec: {containers: [{image: vllm/vllm-openai, args: [--model, "
        'Qwen/Qwen3-8B, "-tp", "2"]}]}}}',
        "kind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: [sh, -c, vllm serve Qwen/Qwen3-8B -tp 2]}]}",
        "kind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: [vllm serve Qwen/Qwen3-8B -tp 2]}]}",
    ],
)
def test_the_image_of_vllm_starts_it_without_a_command(text):
    tree = read_servers(text, "file.yaml").tree
    assert (tree["engine"], tree["model"], tree["tensor_parallel"]) == ("vllm", "qwen3-8b", 2)


def test_the_command_imports_a_manifest(tmp_path):
    path = tmp_path / "graph.yaml"
    path.write_text(DYNAMO.replace("--max-num-seqs", "--no-such-flag"))
    done = CliRunner().invoke(app, ["catalog", "import", str(path)])
    assert done.exit_code == 0 and "role: decode" in done.output
    assert "unknown to vllm" in done.output and "--no-such-flag" in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: DynamoGraphDeployment\nspec: {services: [1]}\n", "not as such files are built"),
        ("kind: DynamoGraphDeployment\n", "not as such files are built (KeyError: 'spec')"),
        ("modelArtifacts: {name: Qwen/Qwen3-8B}\ndecode: {containers: 4}\n", "not as such files are built"),
        (
            "kind: Deployment\nspec: {replicas: many, template: {spec: {containers: [{name: a}]}}}\n",
            "not as such files",
        ),
        ("services: {web: {image: nginx}}\n", "no container starts a server of vLLM or SGLang"),
        ("kind: {{ .Values.kind }}\n", "graph.yaml"),
        ("kind: " + "x" * 2_000_000, "are no script that starts servers"),
    ],
)
def test_one_message_for_manifests_that_cannot_be_read(text, message):
    with pytest.raises(InputError) as caught:
        read_servers(text, "graph.yaml")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(tried(10)))
def test_damaged_manifests_are_read_or_refused(seed):
    rng = random.Random(seed)
    for text in (DYNAMO, LLMD) * 10:
        words = text.split(" ")
        words[rng.randrange(len(words))] = rng.choice(["", "[]", "{}", "null", "-1", "x", "'", "1e400", "\n", "- "])
        with contextlib.suppress(InputError):
            read_servers(" ".join(words), "graph.yaml")
