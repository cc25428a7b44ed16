import math
from pathlib import Path

import numpy as np
import pytest

from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.keys import written
from evaluator.scenario import Batching, KvCache, Lengths, Objective, load_scenario, with_engine_defaults
from evaluator.scenario.objectives import written_slo
from evaluator.yaml import loads_yaml

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"

FULL = """
name: h100-or-l40s
workload:
  arrivals: {process: poisson, rate_rps: 4}
  lengths: {source: azure-conv-2023}
  requests: 2000
  warmup_requests: 100
  seeds: [0, 1, 2, 3]
  cached_tokens: 16
deployment:
  model: llama-3.1-70b
  precision: {weights: bf16, activations: bf16, kv: fp8}
  hardware: h100-sxm
  calibration: auto
  replicas: 2
  tensor_parallel: 4
  pipeline_parallel: 2
  expert_parallel: 1
  batching: {policy: mixed, max_num_seqs: 64, max_num_batched_tokens: 4096}
  kv: {admission: reserve, memory_fraction: 0.8, block_tokens: 32}
  router: random
  role: prefill
  usd_per_device_hour: 2.5USD/h
slo: {ttft: {p90: 1.5s, p99.9: 3}, tpot: {p90: 70ms}, e2e: {mean: 10s}}
"""


def test_every_key_of_a_file(tmp_path):
    path = tmp_path / "full.yaml"
    path.write_text(FULL)
    scenario = load_scenario(path)
    assert (scenario.name, scenario.text, scenario.path) == ("h100-or-l40s", FULL, str(path))
    workload, deployment = scenario.workload, scenario.deployment
    assert workload.arrivals.rate_rps == 4.0
    assert workload.lengths == Lengths("azure-conv-2023")
    assert (workload.requests, workload.warmup_requests, workload.cached_tokens) == (2000, 100, 16)
    assert workload.seeds == (0, 1, 2, 3)
    assert deployment.precision == Precision("bf16", "bf16", "fp8")
    assert deployment.calibration == "auto"
    assert (deployment.replicas, deployment.tensor_parallel, deployment.pipeline_parallel) == (2, 4, 2)
    assert deployment.batching == Batching("mixed", 64, 4096, planning=None)
    assert deployment.kv == KvCache("reserve", 0.8, 32, full_prompt=None, prefix_caching=None)
    stated = with_engine_defaults(deployment)
    assert stated.batching == Batching("mixed", 64, 4096)
    assert stated.kv == KvCache("reserve", 0.8, 32, full_prompt=True)
    assert (deployment.router, deployment.role, deployment.usd_per_device_hour) == ("random", "prefill", 2.5)
    assert scenario.slo == (
        Objective("ttft", "p90", 1.5),
        Objective("ttft", "p99.9", 3.0),
        Objective("tpot", "p90", 0.07),
        Objective("e2e", "mean", 10.0),
    )


def test_defaults(base):
    scenario = load_scenario(base)
    workload, deployment = scenario.workload, scenario.deployment
    assert (workload.requests, workload.warmup_requests, workload.seeds) == (1000, 100, (0,))
    assert deployment.precision == Precision("checkpoint", "bf16", "bf16")
    assert (deployment.engine, with_engine_defaults(deployment).batching) == ("vllm", Batching("chunked", 1024, None))
    assert with_engine_defaults(deployment).kv == KvCache("on_demand", 0.92, 16, full_prompt=True)
    assert (deployment.router, deployment.role, deployment.calibration) == ("round_robin", "mixed", "auto")
    assert (scenario.slo, scenario.sweep, scenario.name) == ((), (), "scenario")


def test_the_name_defaults_to_the_file(tmp_path, base):
    path = tmp_path / "mine.yaml"
    path.write_text(load_scenario(base).text)
    assert load_scenario(path).name == "mine"


@pytest.mark.parametrize("source", [None, 3, [], ["a.yaml"]])
def test_what_is_neither_a_file_nor_a_mapping_is_no_scenario(source):
    with pytest.raises(InputError, match="a scenario is a mapping, or the path of a file, not "):
        load_scenario(source)


def test_null_is_as_good_as_absent(base):
    base |= {"slo": None, "sweep": None}
    base["deployment"] |= {"router": None, "batching": {"max_num_batched_tokens": None}}
    assert load_scenario(base).deployment == load_scenario({**base, "slo": {}}).deployment


def test_what_is_read_reads_back_the_same(base):
    base["slo"] = {"ttft": {"p90": "1.5s"}}
    for process in _PROCESSES:
        base["workload"]["arrivals"] = process
        scenario = load_scenario(base)
        tree = {
            "workload": written(scenario.workload),
            "deployment": written(scenario.deployment),
            "slo": written_slo(scenario.slo),
        }
        again = load_scenario(tree)
        assert (again.workload, again.deployment, again.slo) == (scenario.workload, scenario.deployment, scenario.slo)
        assert load_scenario(loads_yaml(again.text)).workload == scenario.workload


_PROCESSES = [
    {"process": "poisson", "rate_rps": "4rps"},
    {"process": "gamma", "rate_rps": 4, "cv": 2},
    {"process": "uniform", "rate_rps": 4},
    {"process": "normal", "rate_rps": 4, "std_s": "50ms"},
    {"process": "burst", "rate_rps": 4, "on_s": 1, "off_s": "3s", "factor": 4},
    {"process": "all_at_once"},
    {"process": "closed_loop", "users": 8},
]


@pytest.mark.parametrize("arrivals", _PROCESSES)
def test_arrival_processes(base, arrivals):
    base["workload"]["arrivals"] = arrivals
    assert load_scenario(base).workload.arrivals.process == arrivals["process"]


@pytest.mark.parametrize(
    ("lengths", "more"),
    [
        ({"source": "lognormal", "prompt_mean": 9, "prompt_cv": 1, "output_mean": 5, "output_cv": 2}, 2),
        (
            {"source": "normal", "prompt_mean": 9, "prompt_std": 1, "output_mean": 5, "output_std": 2, "output_max": 9},
            2,
        ),
        ({"source": "uniform", "prompt_min": 1, "prompt_max": 9, "output_min": 5, "output_max": 5}, 0),
        ({"source": "zipf", "prompt_exponent": 1, "prompt_max": 9, "output_exponent": 2, "output_max": 5}, 2),
    ],
)
def test_length_formulas(base, lengths, more):
    base["workload"]["lengths"] = lengths
    read = load_scenario(base).workload.lengths
    assert read.source == lengths["source"]
    assert len(read.parameters) == len(lengths) - 1 + more  # min defaults to 1


def test_numbers_of_numpy_are_numbers(base):
    base["deployment"]["replicas"] = np.int64(3)
    base["workload"]["arrivals"]["rate_rps"] = np.float32(2.5)
    scenario = load_scenario(base)
    assert (scenario.deployment.replicas, scenario.workload.arrivals.rate_rps) == (3, 2.5)


BAD = {
    "unknown key": (
        "deployment.batching.max_num_seq=3",
        r"deployment\.batching\.max_num_seq: unknown key \(did you mean "
        r"max_num_seqs\?\); allowed here: policy, max_num_seqs, max_num_batched_tokens",
    ),
    "key of a section below": (
        "deployment.weights=fp8",
        r"deployment\.weights: unknown key \(did you mean precision\.weights\?\); allowed here: model",
    ),
    "unknown section": (
        "workloads=3",
        r"scenario: workloads: unknown key \(did you mean workload\?\); allowed here: name",
    ),
    "wrong type": ("deployment.replicas=two", r"deployment\.replicas: expected an integer, got 'two'"),
    "bool": ("deployment.replicas=true", r"deployment\.replicas: expected an integer, got True"),
    "fraction": ("deployment.replicas=1.5", r"deployment\.replicas: expected an integer, got 1\.5"),
    "zero": ("deployment.tensor_parallel=0", r"must be an integer from 1 to 4096, got 0"),
    "negative": ("workload.arrivals.rate_rps=-4", r"workload\.arrivals\.rate_rps: must be greater than 0, got -4"),
    "nan": ("workload.arrivals.rate_rps=.nan", r"workload\.arrivals\.rate_rps: nan is not a finite number"),
    "infinite": ("workload.arrivals.rate_rps=.inf", r"workload\.arrivals\.rate_rps: inf is not a finite number"),
    "unit": ("workload.arrivals.rate_rps=4rpz", r"unknown unit 'rpz' .* did you mean rps\?"),
    "fraction of memory": ("deployment.kv.memory_fraction=1.1", r"memory_fraction: must be at most 1, got 1\.1"),
    "number as text": ("deployment.kv.memory_fraction=half", r"memory_fraction: expected a number, got 'half'"),
    "nan number": ("deployment.kv.memory_fraction=.nan", r"memory_fraction: nan is not a finite number"),
    "policy": (
        "deployment.batching.policy=chunky",
        r"'chunky' is not one of static, continuous, chunked, mixed, orca, sarathi, lightllm, token_ratio "
        r"\(did you mean chunked\?\)",
    ),
    "dtype": ("deployment.precision.weights=bf15", r"precision\.weights: 'bf15' is not one of .*did you mean bf16"),
    "section": (
        "deployment.precision=fp8",
        r"expected a section with the keys weights, activations, kv, attention, got 'fp8'",
    ),
    "model": ("deployment.model=llama-3.1-70", r"deployment\.model: unknown model .*did you mean llama-3\.1-70b"),
    "slow": (
        "workload.arrivals.rate_rps=1e-7",
        r"rate_rps: 1e-07 is too low for the clock of a run; use at least 1e-06",
    ),
    "fast": (
        "workload.arrivals.rate_rps=1e300",
        r"rate_rps: 1e\+300 is too high for the clock of a run; use at most 1e\+09 requests/s, or process: all_at_once",
    ),
    "model type": (
        "deployment.model=7",
        r"deployment\.model: expected a name or {like: llama-3\.1-8b, layers: 40}, got 7",
    ),
    "hardware": ("deployment.hardware=h100", r"deployment\.hardware: unknown hardware .*h100-sxm"),
    "lengths": ("workload.lengths={source: azure-conv}", r"lengths\.source: unknown length distribution 'azure-conv'"),
    "formula": ("workload.lengths={source: lognorml}", r"or a formula: fixed, .* \(did you mean lognormal\?\)"),
    "calibration": ("deployment.calibration=mine", r"deployment\.calibration: unknown calibration 'mine'"),
    "router without its keys": (
        "deployment.router=heavy_light",
        r"deployment\.router: heavy_light needs its keys: \{heavy_light: \{prompt_tokens, heavy_replicas\}\}",
    ),
    "router with a wrong key": (
        "deployment.router={heavy_light: {prompts: 5}}",
        r"deployment\.router\.heavy_light\.prompts: unknown key .*allowed here: prompt_tokens, heavy_replicas",
    ),
    "router with a missing key": (
        "deployment.router={heavy_light: {heavy_replicas: 5}}",
        r"deployment\.router\.heavy_light\.prompt_tokens: is required",
    ),
    "news from the future": (
        "deployment.router={prefix_aware: {events_delay_s: -1s}}",
        r"deployment\.router\.prefix_aware\.events_delay_s: must be at least 0",
    ),
    "a memory of nothing": (
        "deployment.router={prefix_approximate: {memory_blocks: 0}}",
        r"deployment\.router\.prefix_approximate\.memory_blocks: must be an integer from 1",
    ),
    "two routers": (
        "deployment.router={heavy_light: {prompt_tokens: 5}, random: 1}",
        r"deployment\.router: expected the name of a router or \{heavy_light: \{\.\.\.\}\} or \{pre",
    ),
    "router": ("deployment.router=robin", r"deployment\.router: 'robin' is not one of random, round_robin"),
    "admission": ("deployment.kv.admission=demand", r"kv\.admission: 'demand' is not one of reserve, on_demand"),
    "preemption": ("deployment.kv.preemption=swop", r"kv\.preemption: 'swop' is not one of recompute, swap \(did you"),
    "swap": (
        "deployment.kv.preemption=swap",
        r"kv\.swap_bandwidth: is required with preemption swap: bytes per second of one device .* such as 25GB/s",
    ),
    "offload": (
        "deployment.kv.offload_bytes=200GB",
        r"kv\.offload_bandwidth: is required with offload_bytes: bytes per second of one device .* such as 50GB/s",
    ),
    "tiers behind nothing": (
        "deployment.kv.offload_tiers=[nvme]",
        r"kv\.offload_bytes: is required with offload_tiers: all that goes to them and comes from them goes through ho",
    ),
    "a tier of nothing": (
        "deployment.kv.offload_tiers=[{capacity: 1TB}]",
        r"kv\.offload_tiers\[0\]: needs a storage of the catalog, or a bandwidth",
    ),
    "no list of tiers": (
        "deployment.kv.offload_tiers=nvme",
        r"kv\.offload_tiers: expected a list of tiers such as \[nvme, \{storage: rack-pool, shared_by: all\}\], got ",
    ),
    "an unknown storage": (
        "deployment.kv.offload_tiers=[nvmee]",
        r"kv\.offload_tiers\[0\]\.storage: .*nvme",
    ),
    "when to offload": ("deployment.kv.offload_write=back", r"kv\.offload_write: 'back' is not one of write_through"),
    "no room to offload": ("deployment.kv.offload_bytes=0GB", r"kv\.offload_bytes: must be greater than 0"),
    "swap unit": ("deployment.kv.swap_bandwidth=25GB", r"kv\.swap_bandwidth: .*25GB"),
    "watermark": ("deployment.kv.watermark=0.9", r"kv\.watermark: must be at most 0\.5, got 0\.9"),
    "no pools": ("deployment.pools={}", r"deployment\.pools: expected sections by name, got \{\}"),
    "pipeline": ("pipeline=[]", r"pipeline: holds no stage; leave it out for \[prefill, decode\]"),
    "packing": ("deployment.batching.packing=lifo", r"batching\.packing: 'lifo' is not one of fcfs, least_work_left"),
    "threshold": (
        "deployment.batching.long_prefill_token_threshold=-1",
        r"long_prefill_token_threshold: must be an integer from 0 to",
    ),
    "process": ("workload.arrivals.process=poison", r"process: 'poison' is not one of poisson, .*did you mean poisson"),
    "key of another process": (
        "workload.arrivals.cv=2",
        r"arrivals\.cv: not a key of process poisson \(its keys: "
        r"rate_rps\); it belongs to gamma",
    ),
    "required": ("workload.arrivals.process=gamma", r"workload\.arrivals\.cv: is required"),
    "no mean gap": (
        "workload.arrivals={process: gamma, cv: 1e9}",
        r"arrivals\.cv: [\d,]+ gaps with a coefficient of variation of 1e\+09 have no mean rate .* must be at most",
    ),
    "no process": ("workload.arrivals.process=null", r"workload\.arrivals\.process: is required: one of poisson"),
    "arrivals": ("workload.arrivals=4", r"workload\.arrivals: expected a section such as \{process: poisson, \.\.\.\}"),
    "no model": ("deployment.model=null", r"deployment\.model: is required; keys of deployment: model, hardware"),
    "no lengths": ("workload.lengths=null", r"workload\.lengths: is required \(a trace of arrivals may do without"),
    "no source": ("workload.lengths.source=null", r"workload\.lengths\.source: is required: fixed, .* or trace: FILE"),
    "key of another formula": ("workload.lengths.prompt_cv=1", r"not a key of source fixed .*it belongs to lognormal"),
    "no trace": (
        "workload.lengths={trace: none.csv}",
        r"lengths\.trace: there is no such file: none\.csv \(looked for",
    ),
    "min over max": (
        "workload.lengths={source: uniform, prompt_min: 5, prompt_max: 4, output_min: 1, output_max: 1}",
        r"workload\.lengths\.prompt_max: must be at least prompt_min = 5, got 4",
    ),
    "burst": (
        "workload.arrivals={process: burst, rate_rps: 3, on_s: 1, off_s: 9, factor: 11}",
        r"arrivals\.factor: the bursts alone would exceed rate_rps: must be at most \(on_s \+ off_s\) / on_s = 10",
    ),
    "warm-up": ("workload.warmup_requests=1000", r"warmup_requests: must be less than requests = 1000, got 1000"),
    "cached": ("workload.cached_tokens=100", r"cached_tokens: must be less than the prompt of 100 tokens"),
    "turns": (
        "workload.sessions={turns: {mean: 0.5}}",
        r"workload\.sessions\.turns\.mean: must be at least 1, got 0\.5",
    ),
    "no turns": ("workload.sessions.turns=0", r"workload\.sessions\.turns: must be an integer from 1 to 1000, got 0"),
    "turns without a mean": ("workload.sessions={turns: {max: 4}}", r"sessions\.turns\.mean: is required"),
    "think": ("workload.sessions={turns: 2, think_s: -1}", r"sessions\.think_s: must be at least 0, got -1"),
    "think from": (
        "workload.sessions.think_from=question",
        r"sessions\.think_from: 'question' is not one of answer, arrival",
    ),
    "users who do not wait": (
        "workload={arrivals: {process: closed_loop, users: 3, rate_rps: null}, sessions: {turns: 2, think_from: "
        "arrival}}",
        r"sessions\.think_from: users of a closed loop wait for their answers before they think; use think_from:",
    ),
    "turns beside cached tokens": (
        "workload={cached_tokens: 9, sessions: {turns: 2}}",
        r"workload\.sessions\.turns: excludes cached_tokens: what was said before is cached where",
    ),
    "no system prompts": (
        "workload.sessions.system_tokens=9",
        r"sessions\.system_prompts: must be at least 1 where there are system_tokens, got 0",
    ),
    "endless thinking": (
        "workload.sessions={turns: 2, think_s: {mean: 1e9}}",
        r"workload\.sessions\.think_s: must be at most 86,400 s, a day, got 1e\+09 s",
    ),
    "cached beside system prompts": (
        "workload={cached_tokens: 5, sessions: {system_prompts: 1, system_tokens: 9}}",
        r"workload\.sessions: system_tokens and cached_tokens exclude each other",
    ),
    "flag": ("deployment.kv.prefix_caching=1", r"prefix_caching: expected true or false, got 1"),
    "seed": ("workload.seeds=4", r"workload\.seeds: expected a list such as \[0, 1, 2\], got 4"),
    "no seeds": ("workload.seeds=[]", r"workload\.seeds: expected a list"),
    "same seeds": ("workload.seeds=[1, 1]", r"workload\.seeds: the same value is there twice"),
    "negative seed": ("workload.seeds=[1, -1]", r"workload\.seeds\[1\]: must be an integer from 0"),
    "metric": ("slo.tftt.p90=1s", r"slo\.tftt: unknown key \(did you mean ttft\?\); allowed here: ttft, tpot"),
    "statistic": (
        "slo.ttft.p100=1s",
        r"slo\.ttft\.p100: unknown statistic; allowed: mean, or a percentile such as p50",
    ),
    "no statistic": ("slo.ttft=1s", r"slo\.ttft: expected bounds such as \{p90: 1\.5s\}, got '1s'"),
    "bound": ("slo.ttft.p90=0s", r"slo\.ttft\.p90: must be greater than 0, got '0s'"),
    "bound's unit": ("slo.ttft.p90=1.5GB", r"slo\.ttft\.p90: unknown unit 'GB' .* GB is a unit of byte"),
    "name": ("name=a/b", r"name: names the files of the results, so it holds no slash"),
    "dollars": ("deployment.usd_per_device_hour=-1", r"usd_per_device_hour: must be at least 0, got -1"),
}


@pytest.mark.parametrize(("override", "message"), BAD.values(), ids=BAD.keys())
def test_messages(base, override, message):
    with pytest.raises(InputError, match=message) as error:
        load_scenario(base, [override])
    assert "\n" not in str(error.value)


def test_messages_name_the_file(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("workload: {}\ndeployment: {model: x}")
    with pytest.raises(InputError, match=r"s\.yaml: workload\.arrivals: is required"):
        load_scenario(path)
    path.write_text("just text")
    with pytest.raises(InputError, match=r"s\.yaml: expected a scenario with the keys name, workload, deployment"):
        load_scenario(path)
    path.write_text("")
    with pytest.raises(InputError, match=r"s\.yaml: expected a scenario"):
        load_scenario(path)
    with pytest.raises(InputError, match=r"none\.yaml: there is no such file"):
        load_scenario(tmp_path / "none.yaml")


def test_nan_in_a_mapping_is_refused(base):
    base["workload"]["arrivals"]["rate_rps"] = math.nan
    with pytest.raises(InputError, match=r"workload\.arrivals\.rate_rps: nan is not a finite number"):
        load_scenario(base)


def test_objects_in_a_mapping_are_refused(base):
    base["deployment"]["replicas"] = object()
    with pytest.raises(InputError, match=r"deployment\.replicas: expected an integer, got <object"):
        load_scenario(base)


def test_overrides_set_create_and_merge(base):
    scenario = load_scenario(
        base,
        [
            "deployment.tensor_parallel=8",
            "deployment.batching={policy: static}",
            "deployment.batching.max_num_seqs=32",
            "slo.ttft.p99.9=2s",
            "name=other",
        ],
    )
    assert scenario.deployment.tensor_parallel == 8
    assert scenario.deployment.batching == Batching("static", 32, None, planning=None)
    assert scenario.slo == (Objective("ttft", "p99.9", 2.0),)
    assert loads_yaml(scenario.text)["deployment"]["tensor_parallel"] == 8
    assert base["deployment"] == {"model": "llama-3.1-70b", "hardware": "h100-sxm"}  # nothing changed in place


def test_an_override_to_another_process_drops_what_only_the_old_one_takes(base):
    overrides = ["workload.arrivals={process: closed_loop, users: 4}"]
    assert load_scenario(base, overrides).workload.arrivals.users == 4
    arrivals = load_scenario(base, ["workload.arrivals={process: gamma, cv: 2}"]).workload.arrivals
    assert (arrivals.rate_rps, arrivals.cv) == (4.0, 2.0)
    lengths = load_scenario(base, ["workload.lengths.source=azure-conv-2023"]).workload.lengths
    assert lengths == Lengths("azure-conv-2023")
    with pytest.raises(InputError, match=r"arrivals\.rate: unknown key"):  # but never a key that nobody takes
        base["workload"]["arrivals"]["rate"] = 3
        load_scenario(base, overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("deployment.replicas", r"--set 'deployment\.replicas': expected key\.path=value, such as"),
        ("=3", r"expected key\.path=value"),
        ("deployment..replicas=3", r"expected key\.path=value"),
        ("workload.arrivals.rate_rps.x=3", r"--set .*: workload\.arrivals\.rate_rps holds a value, so nothing can be"),
        ("deployment.replicas=[1", r"--set 'deployment\.replicas=\[1'.*: .*"),
        (
            "sweep.deployment.replica=null",
            r"there is no such axis \(did you mean deployment\.replicas\?\); the axes are",
        ),
        (
            "deployment.replicas=3",
            r"the sweep sets deployment\.replicas; take its axis away first, with --set "
            r"sweep\.deployment\.replicas=null",
        ),
    ],
)
def test_bad_overrides(base, override, message):
    base["sweep"] = {"deployment.replicas": [1, 2]}
    with pytest.raises(InputError, match=message):
        load_scenario(base, [override])


def test_overrides_of_the_sweep(base):
    base["sweep"] = {"deployment.replicas": [1, 2], "deployment.tensor_parallel": [1, 2]}
    scenario = load_scenario(base, ["sweep.deployment.replicas=null", "deployment.replicas=3"])
    assert [axis.name for axis in scenario.sweep] == ["deployment.tensor_parallel"]
    assert scenario.deployment.replicas == 3
    scenario = load_scenario(base, ["sweep.workload.arrivals.rate_rps={linspace: [1, 2, 3]}"])
    assert scenario.sweep[-1].values == (1.0, 1.5, 2.0)
    assert load_scenario(base, ["sweep=null"]).sweep == ()


def test_traces_give_lengths_and_requests(base, trace_csv):
    base["workload"]["lengths"] = {"trace": str(trace_csv)}
    workload = load_scenario(base).workload
    assert workload.lengths == Lengths("trace", file=str(trace_csv))
    assert (workload.requests, workload.warmup_requests) == (4, 0)
    with pytest.raises(InputError, match=r"workload\.requests: 5 are more than the 4 of the trace; leave it out"):
        load_scenario(base, ["workload.requests=5"])


def test_a_trace_of_arrivals_has_lengths_too(base, trace_csv):
    base["workload"] = {"arrivals": {"process": "trace", "file": str(trace_csv), "scale": 2}}
    workload = load_scenario(base, ["workload.requests=3"]).workload
    assert workload.lengths == Lengths("trace", file=str(trace_csv))
    assert (workload.requests, workload.arrivals.scale) == (3, 2.0)
    fixed = load_scenario(base, ["workload.lengths={source: fixed, prompt_tokens: 5, output_tokens: 5}"])
    assert (fixed.workload.lengths.source, fixed.workload.requests) == ("fixed", 4)


def test_traces_are_looked_for_beside_the_scenario_then_here(tmp_path, base, trace_csv, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    base["workload"]["lengths"] = {"trace": "trace.csv"}
    text = load_scenario({**base, "workload": {**base["workload"], "lengths": {"trace": str(trace_csv)}}}).text
    text = text.replace(str(trace_csv), "trace.csv")
    (elsewhere / "s.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert load_scenario(elsewhere / "s.yaml").workload.lengths.file == str(trace_csv)
    (elsewhere / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    assert load_scenario(elsewhere / "s.yaml").workload.requests == 1


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_load(path, trace_csv):
    trace = "process: trace" in path.read_text()
    scenario = load_scenario(path, [f"workload.arrivals.file={trace_csv}"] if trace else [])
    assert scenario.name == path.stem
    assert scenario.sweep or path.stem in ("trace-replay", "rtxpro6000-sharegpt")
