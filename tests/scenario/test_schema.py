"""The schema for editors and the loader agree: what loads is valid, what is refused for one key alone is not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluator.cli.app import app
from evaluator.keys import Section, Variant, split_path, table_of
from evaluator.scenario import Deployment, Workload
from evaluator.scenario.key_paths import put
from evaluator.scenario.objectives import SLO
from evaluator.scenario.schema import DRAFT, scenario_schema
from evaluator.scenario.short_names import key_readers
from evaluator.yaml import load_yaml

jsonschema = pytest.importorskip("jsonschema")
SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


@pytest.fixture(scope="module")
def validator():
    schema = scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_command_prints_it(validator):
    result = CliRunner().invoke(app, ["catalog", "schema"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["$schema"] == DRAFT
    assert printed == json.loads(json.dumps(validator.schema))


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_valid(validator, path):
    validator.validate(load_yaml(path))


GOOD = [
    ("workload.arrivals", {"process": "gamma", "rate_rps": "4rps", "cv": 2}),
    ("workload.arrivals", {"process": "trace", "file": "x.csv"}),
    ("workload.lengths", {"source": "azure-conv-2023"}),
    ("workload.lengths", {"trace": "x.parquet"}),
    ("workload.lengths", {"source": "uniform", "prompt_min": 1, "prompt_max": 2, "output_min": 1, "output_max": 2}),
    ("workload.seeds", [0, 1]),
    ("workload.warmup_requests", None),
    ("deployment.kv", {"swap_bandwidth": "25GB/s", "preemption": "swap", "memory_fraction": 0.5}),
    ("deployment.kv", {"prefix_caching": True, "offload_bytes": "200GB", "offload_bandwidth": "50GB/s"}),
    (
        "deployment.kv",
        {
            "offload_bytes": "200GB",
            "offload_bandwidth": "50GB/s",
            "offload_write": "write_back",
            "offload_tiers": ["nvme", {"storage": "rack-pool", "shared_by": "all", "capacity": 0}, {"bandwidth": 1e9}],
        },
    ),
    ("deployment.calibration", "auto"),
    ("deployment.usd_per_device_hour", "2.5USD/h"),
    ("deployment.pools", {"p": {"role": "prefill", "replicas": 2, "kv": {"block_tokens": 1}}, "d": {"role": "decode"}}),
    ("deployment.pools", {"a": {"role": "mixed", "weight": 0.5}, "b": {"role": "mixed"}, "c": None}),
    ("workload.models", {"llama-3.1-8b": 1, "qwen3-8b": {"share": 2, "lengths": {"source": "azure-conv-2023"}}}),
    ("deployment.transfer", {"figures": "per_device", "groups": 2, "backpressure": True}),
    ("deployment.router", {"prefill": "random"}),
    ("deployment.router", "least_kv"),
    ("deployment.router", "prefix_aware"),
    ("deployment.router", {"prefix_aware": {"threshold": 0.5, "imbalance": 8}}),
    ("deployment.router", {"prefix_aware": {"events_delay_s": "200ms", "predicted_ttl_s": 2}}),
    ("deployment.router", {"decode": {"prefix_approximate": {"memory_blocks": 31250, "ttl_s": "120s"}}}),
    ("deployment.router", "prefix_approximate"),
    ("deployment.router", {"prefix_approximate": {"scores": {"prefix": 1, "queue": 0.5}}}),
    ("deployment.router", {"adapter_affinity": {"queue_weight": 0, "sees": "places"}}),
    ("workload.sessions", {"turns": {"mean": 4, "max": 9}, "think_s": {"mean": "20s"}, "think_from": "arrival"}),
    ("workload.sessions", {"turns": 3, "think_s": "500ms", "system_prompts": 2, "system_tokens": 100}),
    ("deployment.router", {"prefill": {"heavy_light": {"prompt_tokens": 4096, "heavy_replicas": 2}}}),
    ("deployment.router", {"heavy_light": {"prompt_tokens": 4096}}),
    ("deployment.transfer", {"link": "nvlink", "granularity": "layer", "dtype": "fp8", "shared": "none"}),
    ("deployment.transfer", {"link": {"bandwidth": "10GB/s", "latency": 0}}),
    ("sweep", {"deployment.pools.d.replicas": [1, 2], "deployment.transfer.link": ["nvlink", "rdma-400g"]}),
    ("slo", {"ttft": {"p99.9": "1000s", "mean": 2}}),
    ("sweep", {"deployment.tensor_parallel": [1, 2], "slo.ttft.p90": ["1s"], "where": "tensor_parallel < 2"}),
    ("sweep", {"workload.arrivals.rate_rps": {"linspace": [1, 20, 20]}, "deployment.kv.block_tokens": None}),
    ("sweep", {"deployment.batching": {"zip": [{"policy": "static"}]}, "table": "designs.csv"}),
    ("sweep", {"pairs": {"zip": [{"deployment.replicas": 2}]}, "others": {"table": "x.csv"}, "where": ["a < 1"]}),
    ("sweep", {"sample": {"size": 64}, "deployment.replicas": {"between": [1, 4], "log": True}}),
    ("sweep", None),
]
BAD = [
    ("workloads", {}),
    ("name", "a/b"),
    ("workload.arrivals", {"process": "poison", "rate_rps": 4}),
    ("workload.arrivals", {"process": "poisson", "rate_rps": 4, "cv": 2}),
    ("workload.arrivals.rate_rps", 0),
    ("workload.arrivals.rate_rps", "4rpz"),
    ("workload.lengths", {"source": "azure-conv"}),
    ("workload.lengths", {"source": "azure-conv-2023", "prompt_tokens": 3}),
    ("workload.lengths", {"source": "fixed", "prompt_cv": 1}),
    ("workload.requests", 10**8),
    ("workload.seeds", []),
    ("workload.seeds", [1, 1]),
    ("deployment.model", "llama"),
    ("deployment.tensor_paralel", 2),
    ("deployment.tensor_parallel", 0),
    ("deployment.replicas", 1.5),
    ("deployment.replicas", 10**6),
    ("deployment.batching.policy", "chunky"),
    ("deployment.kv.memory_fraction", 1.1),
    ("deployment.kv.swap_bandwidth", "25GB"),
    ("deployment.kv.offload_bytes", 0),
    ("deployment.kv.offload_tiers", "nvme"),
    ("deployment.kv.offload_tiers", [{"storage": "nvme", "shared_by": "some"}]),
    ("deployment.kv.offload_write", "write_around"),
    ("deployment.precision", "fp8"),
    ("deployment.pools", {}),
    ("deployment.pools", {"p": {"role": "prefil"}}),
    ("deployment.pools", {"p": {"role": "mixed", "weight": 0}}),
    ("workload.models", {"llama-3.1-8b": 0}),
    ("workload.models", {"llama-3.1-8b": {"lengths": {"source": "azure-conv-2023"}}}),
    ("deployment.transfer", {"groups": 0}),
    ("deployment.pools", {"p": {"role": "prefill", "router": "random"}}),
    ("deployment.transfer", {"link": "nvlnk"}),
    ("deployment.transfer", {"link": {"latency": "1ms"}}),
    ("deployment.router", {"decode": "robin"}),
    ("deployment.router", {"prefix_aware": {"events_delay_s": -1}}),
    ("deployment.router", {"prefix_aware": {"predicted_ttl_s": 0}}),
    ("deployment.router", {"prefix_approximate": {"memory_blocks": 0}}),
    ("deployment.router", {"prefix_approximate": {"events_delay_s": 1}}),
    ("deployment.router", {"prefix_aware": {"scores": {"prefix": -1}}}),
    ("deployment.router", {"prefix_aware": {"scores": 3}}),
    ("deployment.router", {"adapter_affinity": {"sees": "queue"}}),
    ("slo", {"tftt": {"p90": 1}}),
    ("slo", {"ttft": {"p90": 1000}}),
    ("slo", {"ttft": {}}),
    ("slo", {"ttft": {"q90": 1}}),
    ("sweep", {"deployment.tensor_parallel": 4}),
    ("sweep", {"deployment.tensor_parallel": [0]}),
    ("sweep", {"deployment.tensor_parallel": {"linspce": [1, 2, 3]}}),
    ("sweep", {"workload.seeds": [1, 2]}),
    ("sweep", {"pairs": [1, 2]}),
    ("sweep", {"sample": {"method": "sobol"}}),
    ("sweep", {"where": 3}),
]


def changed(base, path, value):
    """The value put at a path; a mapping replaces what is there."""
    keys = split_path(path)
    return put(put(base, keys, None), keys, value)


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_loads_is_valid(validator, base, path, value):
    validator.validate(changed(base, path, value))


@pytest.mark.parametrize(("path", "value"), BAD)
def test_what_is_refused_is_not_valid(validator, base, path, value):
    assert not validator.is_valid(changed(base, path, value))


def test_keys_that_must_be_there_may_be_swept_only(validator, base):
    del base["deployment"]["hardware"]
    assert not validator.is_valid(base)
    assert validator.is_valid(base | {"sweep": {"deployment.hardware": ["l40s"]}})
    assert not validator.is_valid({"deployment": {}})


def test_every_key_says_what_it_is():
    def silent(path, table):
        for key, field in table.items():
            if not field.says:
                yield f"{path}.{key}"
            if isinstance(field.read, Section):
                yield from silent(f"{path}.{key}", field.read.table)
            elif isinstance(field.read, Variant):
                yield from silent(f"{path}.{key}", field.read.keys)

    for name, table in (("workload", table_of(Workload)), ("deployment", table_of(Deployment)), ("slo", SLO)):
        assert list(silent(name, table)) == []
    assert {"workload.arrivals.users", "deployment.kv.watermark", "workload.lengths.trace"} < set(key_readers())
