"""What commands print with --json: one document that the schema holds, whatever becomes of the command."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import jsonschema
import pandas as pd
import pytest

from evaluator.cli.output import SCHEMA, parts_of, plain


@pytest.fixture
def document(evaluator):
    """Runs a command with --json: its document, which the schema holds and whose exit code is the process's."""
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)

    def run(*arguments):
        code, told, noted = evaluator(*arguments, "--json")

        def refuse(constant):
            raise AssertionError(f"{constant} is no JSON")

        found = json.loads(told, parse_constant=refuse)
        jsonschema.validate(found, schema)
        assert found["exit_code"] == code and (found["error"] is None) == (code == 0)
        if found["error"]:
            assert found["error"]["message"] in noted
        return found

    return run


def test_a_sweep_gives_its_best_designs_with_units(document, small, tmp_path):
    found = document("sweep", small, "--top", "2", "--simulator", "token", "--out", tmp_path / "a.nc")
    designs = found["tables"]["designs"]
    assert found["command"] == "sweep" and found["values"]["configurations"] == 4 and len(designs["rows"]) == 2
    first = designs["rows"][0]
    assert set(first["ttft_s"]) >= {"p50", "p90", "p99"} and designs["columns"]["ttft_s"]["unit"] == "s"
    assert first["hardware"] in ("h100-sxm", "l40s") and isinstance(first["rate_rps"], float)
    assert found["text"] == [] and found["tables"]["reasons"]["rows"] == []
    deployed = document("deploy", tmp_path / "a.nc")["values"]["deployed"]
    assert "serve.sh" in deployed["files"] and isinstance(deployed["remarks"], list)
    # The same where the files are written, too: a program asks which there are.
    assert document("deploy", tmp_path / "a.nc", "--out", tmp_path / "d")["values"]["deployed"] == deployed
    script, out = tmp_path / "d/serve.sh", tmp_path / "imported.yaml"
    assert document("catalog", "import", script, "--out", out)["values"]["deployment"]["model"] == "llama-3.1-8b"


def test_a_forecast_and_one_configuration(document, small):
    assert document("sweep", small, "--dry-run")["values"]["forecast"]["designs"] == 4
    chosen = document("simulate", small, "--select", "hardware=l40s,rate_rps=1", "--simulator", "token")
    (row,) = chosen["tables"]["configuration"]["rows"]
    assert row["hardware"] == "l40s" and row["utilisation"] > 0


def test_figures_that_are_none_are_null(document):
    estimate = document("estimate", "--model", "llama-3.1-8b", "--hardware", "mi300x")["values"]["estimate"]
    assert estimate["status"] == "ok" and estimate["load"] is None and estimate["ttft_s"] > 0
    assert plain([math.nan, math.inf, 1.5, pd.NA, {"a": (1, None)}]) == [None, None, 1.5, None, {"a": [1, None]}]


def test_what_was_found_before_a_failure_is_there(document):
    found = document("estimate", "--model", "llama-2-70b", "--hardware", "l40s")
    assert found["exit_code"] == 2 and found["error"]["kind"] == "input"
    assert found["values"]["estimate"]["status"].startswith("does not fit")


def test_the_catalog(document):
    models = document("catalog", "models")["tables"]["models"]["rows"]
    assert next(row for row in models if row["name"] == "llama-3.1-8b")["parameters"] == pytest.approx(8.03e9, rel=1e-3)
    assert "quickstart" in document("catalog", "scenarios")["values"]["scenarios"]
    assert document("catalog", "show", "l40s")["values"]["hardware"]["content"]
    shown = document("catalog", "schema", "--of", "output")
    assert shown["values"]["schema"] == json.loads(SCHEMA.read_text()) and shown["command"] == "catalog schema"


def test_errors_are_fields(document, small, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(small.read_text().replace("rate_rps: 4}", "rate_rps: -4}"))
    error = document("sweep", bad)["error"]
    assert error["kind"] == "input" and error["place"].endswith("bad.yaml: workload.arrivals.rate_rps")
    assert error["reason"] and not error["reason"].startswith("error")
    error = document("sweep", small, "--simulator", "none")["error"]
    assert error["place"] == "--simulator none" and error["remedy"].startswith("allowed: auto")
    assert document("sweep")["error"]["kind"] == "usage"
    assert document("sweep", small, "--no-such-option")["error"]["kind"] == "usage"
    assert document("no-such-command")["error"]["kind"] == "usage"


def test_a_gate_that_fails_says_so(document, small, tmp_path):
    requests = tmp_path / "requests.csv"
    requests.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n0,100,10,5,9\n1,100,10,5,9\n")
    scenario = tmp_path / "one.yaml"
    scenario.write_text(small.read_text().split("sweep:")[0])
    found = document("compare", requests, "--scenario", scenario, "--fail-above", "1")
    assert found["exit_code"] == 3 and found["error"]["kind"] == "gate" and found["values"]["requests"] == 2
    assert {"metric", "statistic", "error_pct"} <= set(found["tables"]["comparison"]["columns"])


def test_every_command_takes_it():
    from typer.main import get_command

    from evaluator.cli.app import app
    from evaluator.cli.output import Command

    commands = get_command(app).commands
    leaves = [leaf for command in commands.values() for leaf in getattr(command, "commands", {"": command}).values()]
    assert len(leaves) > 20 and all(isinstance(leaf, Command) for leaf in leaves)
    told = subprocess.run(
        [sys.executable, "-m", "evaluator", "sweep", "--help", "--json"], capture_output=True, text=True
    )
    assert told.returncode == 0 and "--json: one JSON document" in told.stdout


def test_a_reader_that_goes_away():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "evaluator", "catalog", "hardware", "--json"]
    told = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert told.returncode == 1 and told.stderr == ""


@pytest.mark.parametrize(
    "message, parts",
    [
        ("a b.yaml: slo.ttft: is none; use 1s", ("a b.yaml: slo.ttft", "is none", "use 1s")),
        ("--out x.txt: the name must end in .nc", ("--out x.txt", "the name must end in .nc", None)),
        ("there is no file a.csv", (None, "there is no file a.csv", None)),
        ("one; two; three", (None, "one; two", "three")),
        ("the design cannot run: it is too large", (None, "the design cannot run: it is too large", None)),
    ],
)
def test_parts_of_a_message(message, parts):
    assert parts_of(message) == parts
