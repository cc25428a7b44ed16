"""The table of expected errors, from comparisons to the file and its rows."""

from pathlib import Path

import pandas as pd
import pytest

from evaluator.accuracy import CASES, Errors, load_errors
from evaluator.accuracy.cases import (
    ITERATIONS,
    OTHER_ENGINES,
    OTHER_RELEASES,
    SPREAD_EXPERTS,
    STATE_LAYERS,
    STATISTICS,
)
from evaluator.catalog.store import find
from evaluator.catalog.what_if import WhatIf
from evaluator.compare.expected import (
    case_of,
    errors_of,
    errors_of_iterations,
    errors_of_requests,
    summary,
    write_errors,
)
from evaluator.errors import InputError
from evaluator.report.accuracy import percent
from evaluator.scenario import Deployment
from evaluator.yaml import load_yaml


def test_the_table_that_is_shipped_is_that_of_its_rows():
    path = find("errors", "serving")
    rows = pd.read_csv(path.with_suffix(".csv"), dtype={"run": str})
    listed = load_yaml(path)["cases"]
    assert list(listed) == list(dict.fromkeys(rows["case"])) == list(CASES)
    for case, figures in listed.items():
        assert summary(rows[rows["case"] == case], figures["derived"]) == figures
    found = load_errors()
    # Of iterations and of batches held full nobody measured all that there is of servers.
    held_full = {"itl_mean", "e2e_mean"}
    partial = dict.fromkeys((OTHER_RELEASES, SPREAD_EXPERTS, STATE_LAYERS, OTHER_ENGINES), held_full)
    partial[ITERATIONS] = {"ttft_mean", "itl_mean"}
    for case in CASES:
        assert set(found.bands[case]) == partial.get(case, set(STATISTICS))
        assert all(0.0 < error < 3.0 for error in found.bands[case].values())


def compared(**changes):
    row = {"exp_id": "a", "stage_index": 0, "model": "m", "hardware": "h100-sxm", "tensor_parallel": 1,
           "concurrency": 4.0, "status": "ok", "model_seen": True}  # fmt: skip
    rows = [
        row | {"metric": "itl_mean", "predicted": 10.0, "measured": 11.0},
        row | {"metric": "ttft_mean", "predicted": 50.0, "measured": 40.0},
        row | {"metric": "throughput_rps", "predicted": 2.0, "measured": 2.0},
        row | {"stage_index": 1, "metric": "itl_mean", "predicted": 10.0, "measured": 10.5},
        row | {"exp_id": "b", "metric": "itl_mean", "predicted": 10.0, "measured": 9.0, "model_seen": False},
    ]
    table = pd.DataFrame([each | changes for each in rows])
    return table.assign(error_pct=100 * (table["predicted"] / table["measured"] - 1))


def test_errors_are_measured_over_predicted_row_by_row():
    rows = errors_of("datasheet", compared(), "x.csv")
    assert rows["itl_mean"].tolist() == [0.1, 0.05, -0.1] and rows["ttft_mean"].tolist()[0] == -0.2
    assert errors_of("runs", compared(), "x.csv")["run"].tolist() == ["a", "a"]  # the model of b was not seen
    with pytest.raises(InputError, match="no run was both predicted and measured that tells of the case datasheet"):
        errors_of("datasheet", compared(status="cannot run: too large"), "x.csv")


def test_what_one_source_tells_takes_the_place_of_what_it_told_before(tmp_path):
    path = tmp_path / "errors" / "mine.yaml"
    write_errors(path, errors_of("datasheet", compared(), "x.csv"))
    write_errors(path, errors_of("kernels", compared(), "x.csv"))
    write_errors(path, errors_of("datasheet", compared(measured=12.0), "x.csv"))
    deployment = Deployment("llama-3.1-8b", "l40s")
    statistics = pd.DataFrame(
        [{"metric": "tpot", "statistic": "mean", "predicted_s": 1.0, "measured_s": 1.5},
         {"metric": "tpot", "statistic": "p50", "predicted_s": 1.0, "measured_s": 9.0}]
    )  # fmt: skip
    write_errors(path, errors_of_requests("datasheet", statistics, "y.csv", "overload", deployment))
    found = load_errors(str(path))
    assert found.runs == {"kernels": 2, "datasheet": 3}
    assert found.bands["kernels"]["itl_mean"] == 0.1 and found.bands["datasheet"]["itl_mean"] == 0.5
    content = load_yaml(path)["cases"]["datasheet"]
    assert content["source"] == "x.csv, y.csv" and content["devices"] == ["h100-sxm", "l40s"]
    assert content["itl_mean"]["values"] == 4


def test_iterations_of_shapes_kept_aside_tell_of_ttft_and_itl():
    judged = pd.DataFrame(
        {
            "label": ["m TP 2 prefill", "m TP 2 decode", "m TP 2 decode", "m TP 2 decode"],
            "phase": ["prefill", "decode", "decode", "decode"],
            "fitted": [False, False, False, True],
            "predicted_s": [1.0, 2.0, 2.0, 2.0],
            "time_s": [1.1, 1.8, 2.0, 9.0],
        }
    )
    rows = errors_of_iterations(judged, "x.csv", "h100-sxm")
    assert rows[["model", "run", "tensor_parallel"]].values.tolist() == [["m", "h100-sxm m TP 2", "2"]] * 2
    assert rows["ttft_mean"].tolist()[0] == 0.1 and rows["itl_mean"].tolist()[1] == -0.05
    known = Errors({"iterations": {"ttft_mean": 0.12, "itl_mean": 0.03}, "runs": {"e2e_mean": 0.5}}, {})
    assert known.of(("iterations",), "e2e_mean") == 0.12  # it consists of both
    with pytest.raises(InputError, match="no iteration was kept aside"):
        errors_of_iterations(judged[judged["fitted"]], "x.csv", "h100-sxm")


def test_the_errors_of_the_page_are_those_of_the_table():
    text = (Path(__file__).resolve().parents[2] / "calibration" / "expected-errors.md").read_text()
    lines = text[text.index("| a row rests on") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")][1:4] for line in lines if line.startswith("| ")][1:]
    errors = load_errors()
    for name, row in zip(CASES, rows, strict=True):
        assert row == [percent(errors.of((name,), f"{metric}_mean")) for metric in ("ttft", "itl", "e2e")], name


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({}, "runs"),
        ({"model": "qwen3-8b"}, "other_models"),
        ({"hardware": "l4"}, "transferred"),
        ({"calibration": "h100-sxm-vllm"}, "kernels"),
    ],
)
def test_a_run_tells_of_the_case_that_its_deployment_rests_on(changes, case):
    assert case_of(Deployment(**({"model": "llama-3.1-8b", "hardware": "h100-sxm"} | changes))) == case


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "sglang"}, "--errors: no case is of servers with SGLang"),
        ({"hardware": WhatIf.of({"like": "h100-sxm", "memory_bandwidth": "5TB/s"})}, "nothing can have been measured"),
        ({"pools": {"prefill": None}}, "--errors: the cases are of one pool; of several none tells"),
    ],
)
def test_a_run_that_tells_of_no_case_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        case_of(Deployment(**({"model": "llama-3.1-8b", "hardware": "h100-sxm"} | changes)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.yaml", "[]", "mine.yaml: expected a mapping of keys to values"),
        ("mine.csv", "a,b\n1,2\n", "mine.csv: no column case; derive the table anew under another name"),
        ("mine.csv", "", "mine.csv: no rows of errors: No columns to parse from file"),
    ],
)
def test_files_that_hold_no_table_are_left_alone(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        write_errors(tmp_path / "mine.yaml", errors_of("datasheet", compared(), "x.csv"))
    assert message in str(error.value)
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]
