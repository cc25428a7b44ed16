"""Results of load generators against the engine, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import evaluator
from evaluator.cli.app import app
from evaluator.compare.results import EXPECTED, compare_results, predicted, serving_scenario
from evaluator.errors import InputError
from evaluator.experiments.generators import read_runs
from evaluator.scenario import load_scenario

RECORDED = Path(__file__).parents[1] / "experiments/results"
DEPLOYMENT = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}


def scenario(users=None, **deployment):
    arrivals = {"process": "closed_loop", "users": users} if users else {"process": "poisson", "rate_rps": 4}
    return load_scenario(
        {
            "name": "server",
            "workload": {
                "arrivals": arrivals,
                "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 40},
                "requests": 60,
                "warmup_requests": 0,
                "cooldown_requests": 0,
                "find_warmup": False,
            },
            "deployment": DEPLOYMENT | deployment,
        }
    )


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A closed loop of eight users that the engine itself measured, as vLLM's benchmark would write it."""
    values = predicted(evaluator.simulate(scenario(users=8)))
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    content = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 60, "completed": 60, "max_concurrency": 8,
        "request_rate": "inf", "burstiness": 1.0, "total_input_tokens": 60 * 300, "total_output_tokens": 60 * 40,
        "request_throughput": values["throughput_rps"], "output_throughput": values["output_tok_per_s"],
        "total_token_throughput": values["total_tok_per_s"],
    }  # fmt: skip
    for ours, theirs in names.items():
        content |= {f"{name}_{theirs}_ms": 1e3 * values[f"{ours}_{name}"] for name in ("mean",)}
    content["p99_ttft_ms"] = 1e3 * values["ttft_p99"]
    path = tmp_path_factory.mktemp("measured") / "result.json"
    path.write_text(json.dumps(content))
    return path


def test_a_closed_loop_that_the_engine_measured_is_met(closed):
    table = compare_results(read_runs(closed), scenario())  # whose own arrivals, at a rate, are put aside
    assert set(table["metric"]) >= {"ttft_mean", "ttft_p99", "tpot_mean", "itl_mean", "e2e_mean", "output_tok_per_s"}
    assert table["error_pct"].abs().max() == pytest.approx(0, abs=1e-6)
    assert (table["workload"] == "8 users").all() and (table[EXPECTED].dropna() > 0).all()


def test_what_the_file_says_of_the_server_counts(closed, tmp_path):
    wide = tmp_path / "points.csv"
    wide.write_text("tensor_parallel,prompt_tokens,output_tokens,concurrency,requests,e2e_mean_ms\n2,300,40,8,60,300\n")
    two, one = (compare_results(read_runs(file), scenario()).iloc[-1] for file in (wide, closed))
    assert (two["tensor_parallel"], one["tensor_parallel"]) == (2, 1)


def test_contradictions_are_refused():
    runs = read_runs(RECORDED / "sglang-0.5.23.jsonl")
    with pytest.raises(InputError, match=r"measured with tensor_parallel 2, and the scenario has 4; remedy"):
        compare_results(runs, scenario(tensor_parallel=4, engine="sglang"))
    with pytest.raises(InputError, match=r"measured with engine sglang, and the scenario has vllm"):
        compare_results(runs, scenario(tensor_parallel=2))
    with pytest.raises(InputError, match=r"measured with model llama-3.1-8b, and the scenario has qwen3-14b"):
        compare_results(read_runs(RECORDED / "aiperf-0.13.0-rate.json"), scenario(model="qwen3-14b"))


def test_a_run_that_cannot_be_predicted_is_a_row(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("concurrency,requests,prompt_tokens,output_tokens,ttft_mean_ms\n2,8,900000,5,3\n2,8,90,5,30\n")
    table = compare_results(read_runs(path), scenario())
    assert table["status"].str.startswith("cannot run").tolist() == [True, False]


@pytest.mark.parametrize("column, value", [("engine", "tgi"), ("model", "nobody/knows"), ("gpu", "abacus")])
def test_what_a_row_says_wrong_is_told_by_its_row(tmp_path, column, value):
    said = {"model": "llama-3.1-8b", "gpu": "h100-sxm", column: value}
    path = tmp_path / "points.csv"
    path.write_text(
        f"concurrency,prompt_tokens,output_tokens,ttft_mean_ms,{','.join(said)}\n2,9,5,3,{','.join(said.values())}\n"
    )
    with pytest.raises(InputError, match=rf"^points.csv row 1: .*{value}"):
        compare_results(read_runs(path), None)


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_command_takes_results_of_several_generators(closed, tmp_path):
    out = tmp_path / "rows.csv"
    done = compare(
        closed, RECORDED / "guidellm-0.8.1-poisson.json", "--set", "deployment.hardware=h100-sxm", "--out", out
    )
    assert done.exit_code == 0, done.output
    assert "8 users" in done.output and "within the expected error" in done.output
    rows = pd.read_csv(out)
    rates = rows[rows["metric"] == "throughput_rps"].set_index("workload")[EXPECTED]
    assert rates["8 users"] > 0 and np.isnan(rates["poisson"])  # an open loop serves what is sent
    assert "nothing is predicted (expected ± -)" in done.output
    assert out.read_text().startswith("exp_id,")
    assert compare(closed, "--set", "deployment.hardware=h100-sxm", "--fail-above", 1).exit_code == 0
    points = tmp_path / "points.csv"
    points.write_text("concurrency,requests,prompt_tokens,output_tokens,ttft_mean_ms\n2,8,90,5,30000\n")
    hardware = ("--set", "deployment.hardware=h100-sxm", "--set", "deployment.model=llama-3.1-8b")
    done = compare(points, *hardware, "--fail-above", 1)
    assert done.exit_code == 3
    assert (
        "of the measured ones: look at the units of the file first" in done.output
    )  # half a minute where 20 ms are due


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (["aiperf-0.13.0-rate.json"], [], "says nothing of the hardware; say it: --set deployment.hardware=NAME"),
        (["mlperf-loadgen-server.txt"], ["deployment.hardware=h100-sxm"], "says nothing of the model"),
        (
            ["mlperf-loadgen-server.txt"],
            ["deployment.hardware=h100-sxm", "deployment.model=llama-3.1-8b"],
            "lengths of prompts; give --scenario",
        ),
        (["nothing.json"], ["deployment.hardware=h100-sxm"], "there is no file"),
        (["inference-perf-0.7.0-summary.json"], ["deployment.hardware=h100-sxm"], "give the file of each stage"),
    ],
)
def test_the_command_says_what_is_missing(files, options, message):
    done = compare(*(RECORDED / name for name in files), *(part for option in options for part in ("--set", option)))
    assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output


def test_turns_that_are_not_sent_are_told(closed):
    talks = load_scenario(
        {
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 1},
                "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 40},
                "sessions": {"turns": 3, "think_s": 1},
            },
            "deployment": DEPLOYMENT,
        }
    )
    assert "turns of the scenario are requests" in compare_results(read_runs(closed), talks)["notes"].iloc[0]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"classes": {"a": {"share": 1, "lengths": {"source": "fixed", "prompt_tokens": 9, "output_tokens": 9}}}},
         "classes of the scenario are left out"),
        ({"sessions": {"turns": 3, "think_s": 1, "agents": {"fan_out": 2}}}, "turns of the scenario are requests"),
    ],
)  # fmt: skip
def test_a_load_is_what_the_file_says(closed, more, note):
    """Neither classes with lengths of their own nor tasks of agents take the place of its requests."""
    asked = load_scenario({
        "workload": {"arrivals": {"process": "poisson", "rate_rps": 1},
                     "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 40}, **more},
        "deployment": DEPLOYMENT,
    })  # fmt: skip
    table = compare_results(read_runs(closed), asked)
    assert note in table["notes"].iloc[0] and table["error_pct"].abs().max() == pytest.approx(0, abs=1e-6)


def test_a_design_that_refuses_is_compared_by_whom_it_serves(closed):
    few = {"max_queued_requests": 1, "max_num_seqs": 2}
    asked = load_scenario({
        "workload": {"arrivals": {"process": "poisson", "rate_rps": 1},
                     "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 40}},
        "deployment": DEPLOYMENT | {"batching": few},
    })  # fmt: skip
    values = predicted(evaluator.simulate(asked))
    assert all(np.isfinite(values[name]) for name in ("ttft_mean", "e2e_mean", "output_tok_per_s"))


def test_records_of_inferencex_bring_layout_and_precision():
    mixed, apart = read_runs(RECORDED / "inferencex-records.json")
    served_by = serving_scenario(mixed, None).deployment
    assert (served_by.tensor_parallel, served_by.precision.weights, served_by.engine) == (2, "checkpoint", "vllm")
    pools = serving_scenario(apart, None).deployment.pools
    assert {name: (pool.role, pool.tensor_parallel, pool.data_parallel) for name, pool in pools.items()} == {
        "prefill": ("prefill", 2, None), "decode": ("decode", 1, 4),
    }  # fmt: skip
    other = {
        "p": {"role": "prefill", "tensor_parallel": 2, "replicas": 2},
        "d": {"role": "decode", "data_parallel": 2},
    }
    server = scenario(users=4, pools=other, precision={"weights": "fp8"})
    with pytest.raises(InputError, match="data_parallel 4 of the decode pool, and the scenario has 2"):
        serving_scenario(apart, server)
    with pytest.raises(InputError, match=r"precision\.weights checkpoint, and the scenario has fp8"):
        serving_scenario(mixed, scenario(users=4, precision={"weights": "fp8"}))
    assert serving_scenario(apart, scenario(users=4)).deployment.precision.weights == "fp8"


def test_errors_by_slice_as_text_picture_and_page(closed, tmp_path):
    points = tmp_path / "points.csv"
    points.write_text(
        "concurrency,hardware,requests,prompt_tokens,output_tokens,ttft_mean_ms,tpot_mean_ms\n"
        "2,h100-sxm,8,90,5,30,8\n4,h100-sxm,8,90,5,30,8\n2,a100-sxm,8,90,5,30,8\n"
    )
    picture, page = tmp_path / "errors.png", tmp_path / "errors.html"
    done = compare(points, "--set", "deployment.model=llama-3.1-8b", "--plot", picture, "--page", page)
    assert done.exit_code == 0, done.output
    assert "latencies by hardware (errors in %)" in done.output and "within_pct" in done.output
    assert "latencies by model" not in done.output  # all runs are of one
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "points.csv row 3" in text and "data:image/svg+xml" in text and "<script" not in text
    assert compare(points, "--set", "deployment.model=llama-3.1-8b", "--page", tmp_path / "a.txt").exit_code == 2


def test_results_are_not_fitted_as_experiments(closed, tmp_path):
    done = compare(closed, "--set", "deployment.hardware=h100-sxm", "--fit", tmp_path)
    assert done.exit_code == 2 and "--fit" in done.output
