"""A measured run request by request, and the command."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluator.accuracy import load_errors
from evaluator.catalog import load_calibration
from evaluator.catalog.store import names
from evaluator.compare import compare_requests
from evaluator.errors import InputError
from evaluator.run import simulate
from evaluator.scenario import load_scenario
from tests.campaign import entry, row

SCENARIO = """
workload:
  arrivals: {process: poisson, rate_rps: 4}
  lengths: {source: azure-conv-2023}
deployment: {model: llama-3.1-8b, hardware: h100-sxm, batching: {max_num_seqs: 8}}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def requests(tmp_path, scenario):
    """A run that the engine itself measured: written twice, the second time with its own times."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(20, 900, 30)
    table = pd.DataFrame(
        {
            "queued_s": np.sort(rng.random(30)) + 5,
            "prompt_tokens": prompt,
            "output_tokens": rng.integers(1, 60, 30),
            "prefix_shared_tokens": np.where(rng.random(30) < 0.3, prompt, 0),
            "e2e_s": 1.0,
        }
    )
    path = tmp_path / "requests.csv"
    table.to_csv(path, index=False)
    first, _ = compare_requests(path, load_scenario(scenario))
    for metric in ("ttft", "tpot", "e2e"):
        table[f"{metric}_s"] = 1.0
    table.to_csv(path, index=False)
    first, _ = compare_requests(path, load_scenario(scenario))
    for metric in ("ttft", "tpot", "e2e"):
        table[f"{metric}_s"] = first[f"predicted_{metric}_s"]
    table.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def test_a_run_measured_by_the_engine_is_met_request_by_request(requests, scenario):
    table, statistics = compare_requests(requests, load_scenario(scenario))
    assert len(table) == 30
    assert statistics["error_pct"].abs().max() < 1e-6
    assert set(statistics["statistic"]) == {"mean", "p50", "p90", "p99", "mean absolute difference"}
    assert (statistics.query("metric == 'tpot'")["requests"] <= 30).all()


def test_classes_and_priorities_are_those_of_the_table(tmp_path, scenario):
    """Drawn anew, interactive requests would wait for others, and have the lengths of their class."""
    classes = {
        "quick": {"share": 0.5, "priority": 0},
        "slow": {
            "share": 0.5,
            "priority": 1,
            "lengths": {"source": "fixed", "prompt_tokens": 900, "output_tokens": 90},
        },
    }
    asked = {
        "workload": {"arrivals": {"process": "poisson", "rate_rps": 20}, "classes": classes, "requests": 40,
                     "lengths": {"source": "fixed", "prompt_tokens": 90, "output_tokens": 30}},
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm",
                       "batching": {"packing": "priority", "max_num_seqs": 2}},
    }  # fmt: skip
    table = simulate(asked).requests
    table.to_csv(tmp_path / "own.csv", index=False)
    _, statistics = compare_requests(tmp_path / "own.csv", load_scenario(asked))
    assert statistics["error_pct"].abs().max() < 1e-6
    table.drop(columns=["class"]).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(InputError, match="has no column class, by which requests have the priorities"):
        compare_requests(tmp_path / "own.csv", load_scenario(asked))


def test_bad_request_files_are_refused(tmp_path, scenario):
    path = tmp_path / "bad.csv"
    path.write_text("prompt_tokens,output_tokens\n1,2\n")
    with pytest.raises(InputError, match="expected requests with prompt_tokens, output_tokens, one of queued_s"):
        compare_requests(path, load_scenario(scenario))
    with pytest.raises(InputError, match="there is no file"):
        compare_requests(tmp_path / "none.csv", load_scenario(scenario))


@pytest.mark.parametrize(
    ("cell", "message"),
    [("0", "row 7, prompt_tokens must be at least 1, got 0"), ("", "row 7, prompt_tokens"), ("many", "got many")],
)
def test_bad_requests_are_told_by_their_row(requests, scenario, cell, message):
    table = pd.read_csv(requests, dtype={"prompt_tokens": str})
    table.loc[6, "prompt_tokens"] = cell
    table.to_csv(requests, index=False)
    with pytest.raises(InputError, match=message) as caught:
        compare_requests(requests, load_scenario(scenario))
    assert str(requests) in str(caught.value)


def test_milliseconds_zeros_and_gaps_are_read(requests, scenario):
    table = pd.read_csv(requests)
    table["tpot_ms"], table["ttft_s"], table["e2e_s"] = 1e3 * table.pop("tpot_s"), 0.0, table["e2e_s"].astype(object)
    table.loc[3, "e2e_s"] = "N/A"
    table.to_csv(requests, index=False)
    _, statistics = compare_requests(requests, load_scenario(scenario))
    rows = statistics.query("statistic == 'mean'").set_index("metric")
    assert np.isnan(rows.loc["ttft", "error_pct"])
    assert abs(rows.loc["tpot", "error_pct"]) < 1e-6
    assert rows.loc["e2e", "requests"] == 29


def test_the_command_on_requests(evaluator, requests, scenario, tmp_path):
    out = tmp_path / "deep" / "requests.csv"
    code, printed, _ = evaluator("compare", requests, "--scenario", scenario, "--out", out, "--fail-above", 1)
    assert code == 0
    assert "30 requests" in printed
    assert "predicted_ttft_s" in pd.read_csv(out)
    slower = ("--set", "deployment.tensor_parallel=2")
    code, _, told = evaluator("compare", requests, "--scenario", scenario, "--fail-above", 1, *slower)
    assert code == 3
    assert "above 1 %: " in told


def test_a_run_request_by_request_has_expected_errors_and_pictures(evaluator, requests, scenario, tmp_path):
    picture, page = tmp_path / "errors.png", tmp_path / "errors.html"
    code, printed, _ = evaluator("compare", requests, "--scenario", scenario, "--plot", picture, "--page", page)
    assert code == 0
    assert "expected_error_pct" in printed and "within the expected error: 3 of 3 means" in printed
    assert picture.read_bytes().startswith(b"\x89PNG") and "tpot_p99" in page.read_text()


def test_the_command_on_experiments(evaluator, small, tmp_path):
    out = tmp_path / "compare.csv"
    arguments = ("compare", *small, "--calibration", "datasheet", "--seeds", 1, "--out", out)
    code, printed, _ = evaluator(*arguments, "--fail-above", 95)
    assert code == 0
    assert "means by model" in printed
    table = pd.read_csv(out)
    assert {"predicted", "measured", "error_pct", "stage_index", "metric", "status"} <= set(table)
    assert evaluator(*arguments, "--fail-above", 0.1)[0] == 3


def test_a_campaign_that_cannot_run_is_the_users_input(evaluator, campaign, tmp_path):
    files, out = campaign([entry("a", gpu="Abacus-3")], [row("a", 0)]), tmp_path / "out.csv"
    code, printed, told = evaluator("compare", *files, "--seeds", 1, "--out", out)
    assert code == 2
    assert "1 could not run" in printed and "no experiment could run" in told
    assert pd.read_csv(out)["status"].str.startswith("cannot run").all()


def test_wrong_arguments_are_told(evaluator, small, scenario):
    assert "compare takes SPECS.json ACTUALS.csv" in evaluator("compare", small[0])[2]
    assert "takes one file of requests" in evaluator("compare", *small, "--scenario", scenario)[2]
    assert evaluator("compare", *small, "--calibration", "nothing")[0] == 2


def test_a_fit_by_the_command(evaluator, small, tmp_path):
    code, printed, _ = evaluator("compare", *small, "--fit", tmp_path / "sets", "--seeds", 1)
    assert code == 0
    assert "weight_bandwidth" in printed
    written = {path.name for path in (tmp_path / "sets").iterdir()}
    assert written == {"h100-sxm-vllm.serving.yaml"}  # all runs were on that GPU: they say nothing of others


def test_wrong_partitions_are_told(evaluator, small):
    assert "'x' is none of fold, layout, model, gpu" in evaluator("compare", *small, "--held-out", "x")[2]


def _real(data_folder, name):
    path = data_folder / name
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return path


def test_real_experiments(evaluator, data_folder, tmp_path):
    specs, actuals = (_real(data_folder, name) for name in ("vllm_serving_specs.json", "vllm_serving_actuals.csv"))
    out = tmp_path / "compare.csv"
    code, _, told = evaluator("compare", specs, actuals, "--seeds", 1, "--fail-above", 6, "--out", out)
    assert code == 0, told
    assert set(pd.read_csv(out)["status"]) == {"ok", "not measured"}


def test_real_requests(evaluator, data_folder):
    requests = _real(data_folder, "lls_rtxpro6000_llama31_8b_requests.csv")
    shipped = Path(__file__).resolve().parents[2] / "scenarios" / "rtxpro6000-sharegpt.yaml"
    assert "rtx-pro-6000-vllm.serving" in names("calibrations")
    assert evaluator("compare", requests, "--scenario", shipped, "--fail-above", 4)[0] == 0
    table = compare_requests(requests, load_scenario(shipped))[1]
    errors = table[table["statistic"] == "mean"].set_index("metric")["error_pct"].abs()
    assert errors["ttft"] < 4 and errors["tpot"] < 2 and errors["e2e"] < 2
    host = load_calibration("rtx-pro-6000-vllm.serving", "rtx-pro-6000")
    assert host.step_overhead_s == load_calibration("h100-sxm-vllm.serving", "h100-sxm").step_overhead_s


def test_gpu_in_a_sets_name_stands_for_the_scenarios(evaluator, requests, scenario):
    table = scenario.with_name("errors.yaml")
    options = ("--calibration", "GPU-vllm", "--errors", table)
    code, told, _ = evaluator("compare", requests, "--scenario", scenario, *options)
    assert code == 0 and "calibration h100-sxm-vllm\n" in told
    assert list(load_errors(str(table)).bands) == ["kernels"]


CLOSED = ["workload.arrivals={process: closed_loop, users: 4}"]


def test_the_users_of_a_closed_loop_send_the_requests(tmp_path, scenario):
    """They send as predicted answers come, so that a run that was measured ten times as slow is met all the same."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"arrival_s": np.sort(rng.random(30)), "prompt_tokens": rng.integers(20, 900, 30),
                          "output_tokens": rng.integers(2, 60, 30), "e2e_s": 1.0})  # fmt: skip
    path = tmp_path / "requests.csv"
    table.to_csv(path, index=False)
    closed = load_scenario(scenario, CLOSED)
    first, _ = compare_requests(path, closed)
    assert first["prompt_tokens"].tolist() == table["prompt_tokens"].tolist()
    table.assign(arrival_s=table["arrival_s"] * 10, e2e_s=first["predicted_e2e_s"]).to_csv(path, index=False)
    again, statistics = compare_requests(path, closed)
    assert statistics["error_pct"].abs().max() < 1e-6
    assert not np.allclose(compare_requests(path, load_scenario(scenario))[0]["predicted_e2e_s"], again["e2e_s"])


def test_a_closed_loop_of_sessions_is_refused(tmp_path, scenario):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,e2e_s\n0,10,5,1\n")
    for sessions in ("{turns: 3}", "{think_s: 2}"):
        with pytest.raises(InputError, match=r"workload\.sessions: a table of requests does not say which of them a"):
            compare_requests(path, load_scenario(scenario, [*CLOSED, f"workload.sessions={sessions}"]))


@pytest.mark.parametrize("content", ['{"input_lens": [1]}', '\ufeff [{"a": 1}]'])
def test_json_of_a_load_generator_is_told(tmp_path, scenario, content):
    path = tmp_path / "bench.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"bench\.json: is JSON, as load generators write it; requests are"):
        compare_requests(path, load_scenario(scenario))


def test_what_is_told_of_other_columns_is_short(tmp_path, scenario):
    path = tmp_path / "wide.csv"
    path.write_text(",".join("x" * 300 + str(number) for number in range(500)) + "\n")
    with pytest.raises(InputError) as error:
        compare_requests(path, load_scenario(scenario))
    assert len(str(error.value)) < 1500
