"""``evaluator deploy``: files, stdout and stderr, and one message with exit code 2 for what is wrong."""

from __future__ import annotations

import pytest

from evaluator.run import sweep

TREE = {
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 2},
        "lengths": {"source": "fixed", "prompt_tokens": 300, "output_tokens": 8},
        "requests": 20,
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "batching": {"max_num_seqs": 16}},
    "sweep": {"deployment.tensor_parallel": [1, 2]},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("deploy") / "r.nc"
    sweep(TREE, simulator="token", progress=False, out=path)
    return path


def test_the_command_goes_to_stdout_and_the_files_to_a_folder(evaluator, result, tmp_path):
    code, text, notes = evaluator("deploy", result)
    assert code == 0 and text.startswith("#!/bin/sh") and "vllm serve" in text
    assert "the best of 2 designs, by " in notes and "--out FOLDER writes serve.sh with load.jsonl, bench.py" in notes
    out = tmp_path / "new" / "folder"
    code, text, notes = evaluator("deploy", result, "--out", out, "--select", "tp=2", "--model-id", "me/mine")
    assert code == 0 and not text and f"to {out}" in notes and "vllm serve me/mine" in (out / "serve.sh").read_text()
    assert evaluator("deploy", result, "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "nomad"], "error: --to nomad: is no target; allowed: vllm, "),
        (["--to", "sglang"], "error: --to sglang: the design was simulated with vLLM"),
        (["--select", "17"], "ranks 2 designs"),
        (["--select", "tp=3"], "tensor_parallel is 1, 2"),
        (["--out", __file__], "is no folder"),
    ],
)
def test_one_message_for_what_is_wrong(evaluator, result, options, message):
    code, text, notes = evaluator("deploy", result, *options)
    assert code == 2 and not text and message in notes and len(notes.splitlines()) == 1


def test_a_file_that_is_no_result(evaluator, tmp_path):
    path = tmp_path / "r.nc"
    path.write_text("no result")
    code, _, notes = evaluator("deploy", path)
    assert code == 2 and len(notes.splitlines()) == 1
