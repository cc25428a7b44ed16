"""Results of load generators: files that the tools wrote of a server that answers at a fixed pace, and damaged ones."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.experiments.generators import GENERATORS, files, is_result, read_all, read_runs
from tests.thorough import tried

RECORDED = Path(__file__).parent / "results"
POINTS = (
    "model,gpu,tensor_parallel,prompt_tokens,output_tokens,concurrency,rate_rps,requests,"
    "ttft_mean_ms,tpot_p99_ms,output_tok_per_s\n"
    "meta-llama/Llama-3.1-8B-Instruct,H100,1,1000,200,16,,,50,9.5,1800\n"
    ",,2,1000,200,,4.5,300,,8,\n"
)
LOADS = {
    "vllm-0.28.0-concurrency.json": ({"process": "closed_loop", "users": 4}, 24),
    "vllm-0.28.0-rate-detailed.json": ({"process": "poisson", "rate_rps": 20}, 24),
    "sglang-0.5.23.jsonl": ({"process": "closed_loop", "users": 4}, 24),
    "aiperf-0.13.0-concurrency.json": ({"process": "closed_loop", "users": 4}, 24),
    "aiperf-0.13.0-rate.json": ({"process": "poisson", "rate_rps": 20}, 24),
    "guidellm-0.8.1-concurrent.json": ({"process": "closed_loop", "users": 4}, 24),
    "guidellm-0.8.1-poisson.json": ({"process": "poisson", "rate_rps": 20}, 24),
    "inference-perf-0.7.0-concurrency.json": ({"process": "closed_loop", "users": 4}, 24),
    "inference-perf-0.7.0-rate.json": ({"process": "poisson", "rate_rps": 20}, 40),
    "inferencex-records.json": ({"process": "closed_loop", "users": 4}, 40),
    "mlperf-loadgen-server.txt": ({"process": "poisson", "rate_rps": 21.61}, 64),
    "mlperf-loadgen-offline.txt": ({"process": "all_at_once"}, 553),
}


@pytest.mark.parametrize("name", LOADS)
def test_what_the_tools_write_is_read(name):
    run = read_runs(RECORDED / name)[0]
    assert (dict(run.arrivals), run.requests) == LOADS[name]
    if "inferencex" not in name:  # which has tokens alone
        assert 10 < run.metrics["throughput_rps"] < 500
    if "offline" not in name:
        # The server answers after 24 to 42 ms and then every 3.2 to 5.2 ms, beside what the clients add.
        assert 0.02 < run.metrics["ttft_mean"] < 0.07
        assert 0.003 < run.metrics["tpot_mean"] < 0.01
        assert 0.06 < run.metrics["e2e_mean"] < 0.25
        assert run.metrics["ttft_p50"] <= run.metrics["ttft_p99"]
    assert is_result(RECORDED / name)


def test_every_generator_is_recorded():
    recorded = {run.generator for name in LOADS for run in read_runs(RECORDED / name)}
    assert {name.split()[0] for name in recorded} == {name.split()[0] for name in GENERATORS} - {"points"}


def test_a_record_of_inferencex_says_what_its_run_did():
    """The records are what its script makes of the recorded run of vLLM: dividing by devices loses nothing."""
    measured = read_runs(RECORDED / "vllm-0.28.0-concurrency.json")[0]
    mixed, apart = read_runs(RECORDED / "inferencex-records.json")
    for run in (mixed, apart):
        for name in ("ttft_mean", "tpot_mean", "ttft_p99", "output_tok_per_s", "total_tok_per_s"):
            assert run.metrics[name] == pytest.approx(measured.metrics[name])
        # Lengths of which the record has the upper ends alone follow from times and tokens.
        assert run.output_tokens == pytest.approx(measured.output_tokens, rel=0.02)
        assert run.prompt_tokens == pytest.approx(measured.prompt_tokens, rel=0.02)
        assert run.gpu == "h100"
    assert mixed.deployment == {"engine": "vllm", "tensor_parallel": 2} and mixed.weights == "bf16"
    assert apart.deployment["pools"] == {
        "prefill": {"role": "prefill", "tensor_parallel": 2, "replicas": 2},
        "decode": {"role": "decode", "tensor_parallel": 1, "data_parallel": 4, "expert_parallel": 4, "replicas": 1},
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "atom"}, "record 2: as InferenceX writes it: framework atom is not simulated"),
        ({"num_decode_gpu": 16}, "num_decode_gpu is 16, and its workers have 4 devices"),
        ({"conc": 0}, "conc must be a number of at least 1, got '0'"),
    ],
)
def test_records_of_inferencex_that_say_no_run_are_told(tmp_path, changes, message):
    records = json.loads((RECORDED / "inferencex-records.json").read_text())
    records[1] |= changes
    path = tmp_path / "records.json"
    path.write_text(json.dumps(records))
    with pytest.raises(InputError, match=message):
        read_runs(path)


def test_a_row_of_inferencex_website_is_a_record():
    record = json.loads((RECORDED / "inferencex-records.json").read_text())[0]
    latencies = {key: record.pop(key) for key in list(record) if key.endswith(("tft", "pot", "itl", "e2el", "_gpu"))}
    row = record | {"hardware": record.pop("hw"), "decode_tp": record.pop("tp"), "metrics": latencies}
    assert files.inferencex.read(row, "row")[0].metrics == files.inferencex.read(row | latencies, "row")[0].metrics


def test_a_line_of_jsonl_is_a_run_and_says_the_servers_layout():
    closed, open_ = read_runs(RECORDED / "sglang-0.5.23.jsonl")
    assert closed.label.endswith("#1") and open_.label.endswith("#2")
    assert closed.deployment["tensor_parallel"] == 2 and closed.deployment["engine"] == "sglang"
    assert isinstance(open_.prompt_tokens, np.ndarray) and isinstance(closed.prompt_tokens, float)


def test_detailed_results_have_requests_in_order_of_sending():
    run = read_runs(RECORDED / "vllm-0.28.0-rate-detailed.json")[0]
    assert run.arrival_s is not None and run.arrival_s[0] == 0 and (np.diff(run.arrival_s) >= 0).all()
    assert len(run.prompt_tokens) == len(run.output_tokens) == run.requests


def test_their_time_per_token_is_ours():
    """Of the single requests of a detailed result: (E2E - TTFT) / (output tokens - 1), and the mean over all gaps."""
    content = json.loads((RECORDED / "vllm-0.28.0-rate-detailed.json").read_text())
    metrics = read_runs(RECORDED / "vllm-0.28.0-rate-detailed.json")[0].metrics
    tpot = [sum(gaps) / (tokens - 1) for gaps, tokens in zip(content["itls"], content["output_lens"], strict=True)]
    assert metrics["tpot_mean"] == pytest.approx(np.mean(tpot), rel=0.02)
    assert metrics["itl_mean"] == pytest.approx(np.mean(np.concatenate(content["itls"])), rel=1e-6)


def test_rows_of_points(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(POINTS)
    first, second = read_runs(path)
    assert dict(first.arrivals) == {"process": "closed_loop", "users": 16} and first.requests == 200
    assert first.metrics == {"ttft_mean": 0.05, "tpot_p99": 0.0095, "output_tok_per_s": 1800}
    assert (first.gpu, first.deployment) == ("H100", {"tensor_parallel": 1})
    assert dict(second.arrivals) == {"process": "poisson", "rate_rps": 4.5} and second.requests == 300


def test_columns_of_points_that_are_not_read_are_named(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("concurrency,ttft_mean_ms,tpot_mean,tp,gpus\n4,50,6,2,\n")
    assert read_runs(path)[0].notes == ("columns not read: tpot_mean, tp",)
    path.write_text("concurrency,ttft_mean_ms,ttft_mean_s\n4,50,0.05\n")
    with pytest.raises(InputError, match="row 1: ttft_mean_s: another column has ttft_mean, too"):
        read_runs(path)


def _written(tmp_path, change, name="vllm-0.28.0-concurrency.json"):
    content = json.loads((RECORDED / name).read_text())
    change(content)
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return path


def test_requests_of_sglang_that_failed_are_counted(tmp_path):
    line = json.loads((RECORDED / "sglang-0.5.23.jsonl").read_text().splitlines()[1])
    line["output_lens"][0] = 0  # as it writes a request without an answer
    path = tmp_path / "result.jsonl"
    path.write_text(json.dumps(line))
    run = read_runs(path)[0]
    assert run.failed == 1 and run.requests == len(line["output_lens"]) - 1 and "requests failed" in run.notes[0]


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    recorded = (RECORDED / "aiperf-0.13.0-rate.json").read_text()
    paths = [tmp_path / folder / "profile_export_aiperf.json" for folder in ("a/run", "b/run", "b/other")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(recorded)
    labels = [run.label for run in read_all([*paths, RECORDED / "sglang-0.5.23.jsonl"])]
    assert [Path(label).parts[:-1] for label in labels[:3]] == [("a", "run"), ("b", "run"), ("other",)]
    assert labels[3:] == ["sglang-0.5.23.jsonl #1", "sglang-0.5.23.jsonl #2"]
    with pytest.raises(InputError, match=r"profile_export_aiperf.json: is given twice"):
        read_all([paths[0], paths[1], paths[0]])


def test_requests_of_guidellm_that_failed_are_counted(tmp_path):
    def some_failed(content):
        content["benchmarks"][0]["metrics"]["request_totals"] |= {"errored": 3, "incomplete": 4}

    run = read_runs(_written(tmp_path, some_failed, "guidellm-0.8.1-concurrent.json"))[0]
    assert (run.requests, run.failed, run.notes) == (24, 3, ("3 requests failed",))


@pytest.mark.parametrize(
    ("change", "arrivals"),
    [
        ({"max_concurrency": None}, {"process": "all_at_once"}),
        ({"max_concurrency": 24}, {"process": "all_at_once"}),
        ({"max_concurrency": None, "request_rate": 5}, {"process": "poisson", "rate_rps": 5}),
        (
            {"max_concurrency": None, "request_rate": 5.0, "burstiness": 0.25},
            {"process": "gamma", "cv": 2.0, "rate_rps": 5.0},
        ),
    ],
)
def test_loads_of_vllm(tmp_path, change, arrivals):
    path = _written(tmp_path, lambda content: content.update(change))
    assert dict(read_runs(path)[0].arrivals) == arrivals


def test_a_rate_that_a_concurrency_caps_is_compared_as_the_rate(tmp_path):
    def capped(content):
        content["input_config"]["phases"][0]["concurrency"] = 8

    run = read_runs(_written(tmp_path, capped, "aiperf-0.13.0-rate.json"))[0]
    assert dict(run.arrivals) == {"process": "poisson", "rate_rps": 20}
    assert run.notes == ("concurrency 8 beside a rate is not modelled",)
    run = read_runs(_written(tmp_path, lambda content: content.update(request_rate=5)))[0]
    assert run.notes == ("max_concurrency 4 beside a rate is not modelled",)


GENAI_PERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 3.0},
    "request_latency": {"unit": "ms", "avg": 900.0, "p50": 880.0, "p99": 1200.0, "min": 700.0, "std": 90.0},
    "time_to_first_token": {"unit": "ms", "avg": 60.0, "p99": 90.0},
    "inter_token_latency": {"unit": "ms", "avg": 8.0, "p99": 9.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 300.0},
    "output_sequence_length": {"unit": "tokens", "avg": 100.0},
    "input_sequence_length": {"unit": "tokens", "avg": 500.0},
    "request_count": {"unit": "count", "avg": 60.0},
    "input_config": {
        "model_names": ["meta-llama/Llama-3.1-8B-Instruct"],
        "perf_analyzer": {"stimulus": {"concurrency": 3}},
    },
}
"""As ``JsonExporter`` of genai-perf 0.0.16 puts it together: statistics by metric, and the command's configuration."""


def test_genai_perf_has_the_form_of_aiperf(tmp_path):
    path = tmp_path / "profile_export_genai_perf.json"
    path.write_text(json.dumps(GENAI_PERF))
    (run,) = read_runs(path)
    assert run.generator == "GenAI-Perf" and dict(run.arrivals) == {"process": "closed_loop", "users": 3}
    assert (run.requests, run.prompt_tokens, run.output_tokens) == (60, 500, 100)
    assert run.metrics["tpot_p99"] == pytest.approx(0.009) and run.model == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vllm-0.28.0-concurrency.json", {"request_rate": "fast"}, "request_rate must be a number above 0 or inf"),
        ("vllm-0.28.0-concurrency.json", {"completed": 0}, "completed must be a number of at least 1"),
        ("vllm-0.28.0-concurrency.json", {"completed": 10**9}, "a comparison takes 1 to 200,000"),
        ("vllm-0.28.0-concurrency.json", {"total_input_tokens": 1e300}, "prompts of 4.16667e\\+298 tokens"),
        ("vllm-0.28.0-concurrency.json", {"ramp_up_strategy": "linear"}, "ramps up has no one load"),
        ("vllm-0.28.0-concurrency.json", {"input_lens": [1, "x"], "output_lens": [1, 2]}, r"input_lens\[1\]"),
        ("aiperf-0.13.0-rate.json", {"request_latency": {"unit": "parsecs", "avg": 1}}, "request_latency.unit"),
        ("aiperf-0.13.0-rate.json", {"input_config": {}}, "neither a concurrency nor a request rate"),
        ("inference-perf-0.7.0-summary.json", {}, "give the file of each stage"),
        ("guidellm-0.8.1-poisson.json", {"benchmarks": [{"metrics": {}}]}, "config.strategy is missing"),
        ("guidellm-0.8.1-poisson.json", {"benchmarks": 3}, "no result of sglang.bench_serving, .* is recognised"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, name, change, message):
    with pytest.raises(InputError, match=message):
        read_runs(_written(tmp_path, lambda content: content.update(change), name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("{", "not JSON, or cut off"),
        ("[" * 100_000, "."),
        ('{"request_throughput": 1' + "0" * 6000 + "}", "."),
        ("[1, 2]", "a list"),
        ('{"metadata": {}, "metrics": {}}\n{"metadata": {}, "metrics": {}}', "profile_export_aiperf.json beside it"),
        ("concurrency,ttft_mean_ms\n", "there is no row below the heading"),
        ("concurrency,ttft_mean_ms\nmany,3\n", "row 1: concurrency must be a number"),
        ("concurrency,ttft_mean_ms\n4,-3\n", "row 1: ttft_mean_ms must be a number of at least 0"),
        ("concurrency,rate_rps,ttft_mean_ms\n4,3,2\n", "row 1: needs one of concurrency and rate_rps"),
        ("concurrency,ttft_mean_ms\n4,\n", "row 1: no latency or throughput"),
        ("MLPerf Results Summary\nScenario : MultiStream\n", "'MultiStream' is not compared"),
        ("MLPerf Results Summary\nScenario : Server\nMode : AccuracyOnly\n", "only runs of performance"),
    ],
)
def test_files_that_are_none_are_told_in_a_line(tmp_path, text, message):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_runs(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 700


def test_a_file_too_large_for_a_result_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_BYTES", 1000)
    with pytest.raises(InputError, match="MiB; a result has at most"):
        read_runs(_written(tmp_path, lambda content: None))


ODD = [None, True, "", "x", -1, 0, 1e300, float("nan"), float("inf"), 10**40, [], {}, [None], {"avg": []}, "1e400", "4"]


def _damaged(rng: random.Random) -> str:
    name = rng.choice([*LOADS, "points"])
    text = POINTS if name == "points" else (RECORDED / name).read_text()
    kind = rng.choice(["cut", "bytes", "value", "value", "key", "text"])
    if kind == "cut":
        return text[: rng.randrange(len(text))]
    if kind == "bytes":
        letters = list(text)
        for _ in range(rng.randint(1, 20)):
            letters[rng.randrange(len(letters))] = chr(rng.randrange(1, 0x2FF))
        return "".join(letters)
    if name.endswith((".txt", "points", "l")) or kind == "text":
        words = text.split(rng.choice([",", ":", "\n"]))
        words[rng.randrange(len(words))] = str(rng.choice(ODD))
        return ",".join(words)
    content = json.loads(text)
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(list(keys))
        below = place[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.3:
            break
        place = below
    if kind == "key" and isinstance(place, dict):
        del place[key]
    else:
        place[key] = rng.choice(ODD)
    return json.dumps(content)


@pytest.mark.parametrize("seed", range(tried(40)))
def test_damaged_files_are_read_or_refused_at_once(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "result"
    for _ in range(40):
        path.write_text(_damaged(rng), encoding="utf-8")
        begun = time.perf_counter()
        try:
            for run in read_runs(path):
                assert run.requests >= 1 and all(0 <= value < np.inf for value in run.metrics.values())
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 700, str(error)[:1000]
        assert time.perf_counter() - begun < 2.0
