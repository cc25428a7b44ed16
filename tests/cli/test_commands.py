"""The commands on whole scenarios, from the arguments to what is printed, written and returned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from evaluator import results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def replay(tmp_path):
    """A scenario that replays trace.csv, and a way to write that file."""
    path = tmp_path / "replay.yaml"
    path.write_text(
        "workload:\n  arrivals: {process: trace, file: trace.csv}\n"
        "deployment: {model: llama-3.1-8b, hardware: h100-sxm}\n"
    )

    def write(*rows, header="arrival_s,prompt_tokens,output_tokens"):
        (tmp_path / "trace.csv").write_text("\n".join([header, *rows]) + "\n")
        return path

    return write


# --- good


def test_sweep(evaluator, small, tmp_path):
    out, plot = tmp_path / "new" / "a.nc", tmp_path / "a.png"
    code, table, err = evaluator("sweep", small, "--out", out, "--plot", plot)
    assert code == 0
    assert "h100-sxm" in table and "l40s" in table
    assert "4/4 configurations" in err and err.endswith(f"wrote {out} and {plot}\n")
    ds = results.read(out)
    assert ds.sizes["config"] == 4 and (ds["status"].values == "ok").all()
    assert plot.stat().st_size > 10_000
    assert sorted(path.name for path in out.parent.iterdir()) == ["a.nc"]


def test_sweep_of_a_changed_scenario(evaluator, small):
    code, table, err = evaluator("sweep", small, "--set", "sweep=null", "--set", "deployment.hardware=l40s", "-q")
    assert (code, err) == (0, "")
    assert "TTFT p90" in table and "1 configuration: 1 feasible" in table


def test_simulate(evaluator, small, tmp_path):
    requests = tmp_path / "r.csv"
    code, out, _ = evaluator("simulate", small, "--select", "hardware=l40s,rate=4", "--requests", requests)
    assert code == 0
    assert "ttft_s " in out and "l40s" in out
    table = pd.read_csv(requests)
    assert len(table) == 40 and table["e2e_s"].gt(0).all()


def test_estimate(evaluator):
    code, out, err = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm", "--tp", "4")
    assert (code, err) == (0, "")
    assert "decode" in out and "prefill" in out
    assert "room for iterations of 1,024 sequences and 8,192 tokens" in out


def test_estimate_of_prompts_split_and_of_feed_forwards_apart(evaluator):
    of = ["estimate", "--model", "deepseek-v3", "--hardware", "b200-sxm", "--tp", "4"]
    code, out, _ = evaluator(*of, "--pcp", "4")
    assert code == 0 and "on 16 x b200-sxm (TP 4, PP 1, EP 1, PCP 4)" in out
    code, out, _ = evaluator(*of, "--feed-forward-devices", "8", "--attention-ranks", "2")
    assert code == 0 and "attention in 2 ranks, feed-forwards on 8 devices, 3 micro-batches" in out
    held = re.search(r"weights +([0-9.]+) GB per attention device, ([0-9.]+) GB per feed-forward device of", out)
    # All experts' weights in fp8, 58 layers x 256 experts x 3 x 7168 x 2048, are divided among 8 devices.
    assert held and 58 * 256 * 3 * 7168 * 2048 / 8e9 < float(held[2]) < 1.05 * 58 * 256 * 3 * 7168 * 2048 / 8e9
    assert float(held[1]) < float(held[2])
    refused(evaluator(*of, "--micro-batches", "2"), "--attention-ranks and --micro-batches need --feed-forward-devices")
    refused(evaluator(*of, "--attention-backend", "triton"), "attention_backend: must be one of auto, flashinfer")


def test_estimate_says_its_adapters(evaluator):
    options = ["estimate", "--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--max-loras", "8"]
    line = "  8 places for adapters of rank {} on all linear layers, requests name {}\n"
    assert line.format(16, 8) in evaluator(*options)[1]
    assert line.format(64, 100) in evaluator(*options, "--lora-rank", "64", "--adapters", "100")[1]


def test_estimate_with_limits_of_its_own(evaluator):
    options = ["--max-num-seqs", "256", "--max-num-batched-tokens", "512", "--memory-fraction", "0.95"]
    code, out, _ = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm", "--tp", "2", *options)
    assert code == 0
    assert "81.6 GB usable" in out and "room for iterations of 256 sequences and 512 tokens" in out


def test_a_process_of_its_own_with_the_data_it_finds(small, tmp_path):
    """From another directory, without the tests' settings of JAX."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", "sweep", str(small), "--out", "a.nc", "--top", "2"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout and "Traceback" not in done.stderr
    assert results.read(tmp_path / "a.nc").sizes["config"] == 4


# --- bad: one line on stderr, nothing on stdout, exit code 2


def refused(run, *parts: str) -> None:
    code, out, err = run
    assert (code, out) == (2, ""), err
    line = err.splitlines()[-1]
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


BAD_KEYS = {
    "unknown key": ("deployment.batching.max_num_seq=3", "max_num_seq: unknown key (did you mean max_num_seqs?)"),
    "misspelt unit": ("workload.arrivals.rate_rps=4rpz", "unknown unit 'rpz'"),
    "negative rate": ("workload.arrivals.rate_rps=-4", "workload.arrivals.rate_rps: must be greater than 0, got -4"),
    "NaN rate": ("workload.arrivals.rate_rps=.nan", "workload.arrivals.rate_rps: nan is not a finite number"),
    "unknown hardware": ("deployment.hardware=h100-smx", "did you mean h100-sxm"),
}


@pytest.mark.parametrize("command", ["sweep", "simulate"])
@pytest.mark.parametrize(("change", "message"), BAD_KEYS.values(), ids=list(BAD_KEYS))
def test_bad_keys_and_values(evaluator, small, command, change, message):
    refused(evaluator(command, small, "--set", "sweep=null", "--set", change), message)


def test_a_bad_value_in_the_sweep_names_its_place(evaluator, small):
    refused(
        evaluator("sweep", small, "--set", "sweep={workload.arrivals.rate_rps: [1, -1]}"),
        str(small), "workload.arrivals.rate_rps", "must be greater than 0, got -1",
    )  # fmt: skip


BAD_TRACES = {
    "no column": (["0,10"], "arrival_s,prompt_tokens", "no column output_tokens; the columns there are arrival_s"),
    "unsorted": (["1,10,5", "0.5,10,5"], None, "row 2, arrival_s: must not be earlier than in the row before"),
    "negative time": (["-1,10,5"], None, "row 1, arrival_s: must not be negative"),
    "NaN time": (["nan,10,5"], None, "row 1, arrival_s: must be a finite number"),
    "zero output": (["0,10,5", "1,10,0"], None, "row 2, output_tokens: must be an integer of at least 1, got 0"),
    "empty": ([], None, "the trace has no rows"),
}


@pytest.mark.parametrize(("rows", "header", "message"), BAD_TRACES.values(), ids=list(BAD_TRACES))
def test_bad_traces(evaluator, replay, rows, header, message):
    path = replay(*rows, **({} if header is None else {"header": header}))
    refused(evaluator("sweep", path), "trace.csv", message)


def test_a_trace_that_is_not_there(evaluator, replay, tmp_path):
    path = replay("0,10,5")
    (tmp_path / "trace.csv").unlink()
    refused(evaluator("sweep", path), "trace.csv", "there is no such file")


def test_simulate_of_what_cannot_run(evaluator, small):
    refused(
        evaluator("simulate", small, "--set", "sweep=null", "--set", "deployment.model=llama-3.1-70b"),
        "infeasible: does not fit", "remedy: tensor_parallel >= 2",
    )  # fmt: skip


def test_a_request_that_is_too_long_for_the_model(evaluator, replay):
    path = replay("0,10,5", "1,140000,5")
    refused(evaluator("simulate", path), "a request of 140,005 tokens exceeds the 131,072 positions of llama-3.1-8b")


def test_a_sweep_in_which_nothing_can_run(evaluator, small, tmp_path):
    """Its dataset says why for each row, and the exit code that there is no answer."""
    out = tmp_path / "a.nc"
    code, printed, err = evaluator("sweep", small, "--set", "deployment.model=llama-3.1-70b", "--out", out)
    assert code == 2
    assert "does not fit" in printed
    assert err.splitlines()[-1].startswith(f"error: {small}: none of 4 configurations can run: ")
    assert all(text.startswith("infeasible") for text in results.read(out)["status"].values)


def test_an_estimate_of_what_does_not_fit_is_shown_but_is_no_answer(evaluator):
    code, out, err = evaluator("estimate", "--model", "llama-3.1-70b", "--hardware", "h100-sxm")
    assert code == 2 and "decode" in out
    assert err.startswith("error: llama-3.1-70b cannot run so on h100-sxm: does not fit: ") and err.count("\n") == 1


def test_estimate_of_what_there_is_not(evaluator):
    refused(evaluator("estimate", "--model", "llama-3.1-70", "--hardware", "h100-sxm"), "llama-3.1-70b")
    options = ("--model", "qwen3-30b-a3b", "--hardware", "h100-sxm", "--dp", "4", "--ep", "3")
    refused(evaluator("estimate", *options), "expert_parallel 3 does not divide the 4 devices")
    refused(evaluator("estimate", "--model", "llama-3.1-8b", "--hardware", "h100"), "h100-sxm")
    refused(evaluator("estimate", "--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--rate", "nan"), "rate")
    refused(evaluator("estimate", "--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--rate", "-1"), "rate")


def test_estimate_with_drafts(evaluator):
    design = ("estimate", "--model", "deepseek-v3", "--hardware", "h200-sxm", "--tp", "8")
    code, out, err = evaluator(*design, "--speculative", "mtp", "--drafts", "1", "--acceptance", "0.85")
    assert (code, err) == (0, "")
    assert "drafts            mtp x 1 at 0.85: " in out and "  draft.experts" in out
    code, out, _ = evaluator(*design, "--speculative", "ngram", "--drafts", "2", "--acceptance", "0.5,0.4")
    assert code == 0 and "ngram x 2 at 0.5/0.4" in out and "draft." not in out
    refused(evaluator(*design, "--drafts", "2"), "need --speculative METHOD")
    refused(evaluator(*design, "--speculative", "mtp"), "--speculative mtp: needs --drafts and --acceptance")
    given = (*design, "--speculative", "mtp", "--drafts", "2", "--acceptance")
    refused(evaluator(*given, "high"), "--acceptance high: expected a rate, or several with commas between")
    refused(evaluator(*given, "1.5"), "speculative.acceptance: must be at most 1, got 1.5")
    refused(evaluator(*given, "0.5,0.4,0.3"), "3 rates for 2 drafted tokens")


def test_a_sweep_says_what_it_computed_token_by_token(evaluator, small):
    axis = "sweep={deployment.kv.admission: [reserve, on_demand]}"
    code, _, err = evaluator("sweep", small, "--set", axis, "--set", "workload.reasoning={branches: 2}")
    assert code == 0, err
    reason = "workload.reasoning.branches with kv.admission on_demand"
    assert f"4 of 8 configurations were computed token by token: {reason}\n" in err
    code, _, err = evaluator("sweep", small, "--simulator", "token")
    assert code == 0 and "token by token" not in err


def test_simulate_on_the_reference_with_a_trace(evaluator, small, tmp_path):
    chosen = ("--select", "hardware=h100-sxm,rate_rps=4")
    code, out, err = evaluator("simulate", small, *chosen, "--simulator", "token", "--trace", tmp_path / "t.json")
    assert code == 0 and "engine" in out and "token" in out
    assert f"wrote {tmp_path / 't.json'}; open it in https://ui.perfetto.dev" in err
    assert (tmp_path / "t.json").is_file()
    code, _, err = evaluator("simulate", small, *chosen, "--trace", tmp_path / "t.txt")
    assert (code, err) == (2, f"error: --trace {tmp_path / 't.txt'}: the name must end in .json\n")


def test_validate(evaluator, small, tmp_path):
    table = tmp_path / "v.csv"
    code, out, err = evaluator("validate", small, "--sample", "2", "--out", table)
    assert code == 0 and "2 of 4 configurations compared\nall agree within 1e-09; the largest difference is" in out
    assert f"wrote {table}" in err
    assert pd.read_csv(table)["metric"].nunique() == 15
    code, out, _ = evaluator("validate", small, "--sample", "1", "--tolerance", "0", "-q")
    assert code == 3 and "1 of them differ by more than 0;" in out
    assert " of configuration " in out.splitlines()[-1]
    queued = ("--set", "deployment.batching.planning=queued", "--set", "deployment.pipeline_parallel=2")
    code, _, err = evaluator("validate", small, *queued)
    assert code == 2 and "no configuration that both engines can run" in err
