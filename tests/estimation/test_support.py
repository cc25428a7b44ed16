"""What is known of a model on every device and engine."""

from __future__ import annotations

import json
import re

import pytest

from docs.site.support import MODELS, page
from evaluator.catalog import load_model, names
from evaluator.catalog.engines import ENGINES
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.estimation.support import KNOWN_BY, REFUSED, support


@pytest.fixture(scope="module")
def llama():
    return {(row.hardware, row.engine): row for row in support(load_model("llama-3.1-8b"))}


def test_every_device_and_engine_has_a_row(llama):
    assert list(llama) == [(device, engine) for device in names("hardware") for engine in ENGINES]
    for row in llama.values():
        assert (row.known_by == REFUSED) == bool(row.reason) == (row.devices == 0) and row.known_by in (
            *KNOWN_BY.values(),
            REFUSED,
        )


def test_a_row_is_what_an_estimate_says(llama):
    row = llama["h100-sxm", "vllm"]
    asked = {"prompt_tokens": 2048, "output_tokens": 256}
    told, crowded = (estimate("llama-3.1-8b", "h100-sxm", **asked, batch=batch) for batch in (1, 64))
    assert (row.known_by, row.devices, row.calibration) == ("measured", 1, told.calibration)
    # The row is of any load, an estimate of its own.
    assert row.basis == told.model_error_basis and told.model_error[1] < row.errors[1] < crowded.model_error[1]


def test_kinds_of_knowledge(llama):
    assert llama["h100-sxm", "sglang"].known_by == "extrapolated"
    assert llama["gb200", "vllm"].known_by == "measured"
    assert llama["b300-sxm", "vllm"].known_by == "transferred"
    assert llama["mi300x", "vllm"].known_by == "extrapolated"
    assert llama["gaudi3", "vllm"].known_by == "data sheet"
    assert llama["mi300x", "trtllm"].known_by == llama["cpu-grace", "trtllm"].known_by == REFUSED
    assert "runs on GPUs of NVIDIA alone" in llama["mi300x", "trtllm"].reason
    assert llama["mi300x", "vllm"].errors > llama["h100-sxm", "vllm"].errors


def test_what_does_not_fit_says_what_would():
    (row, *_) = support(load_model("deepseek-v3"), [_device("h100-sxm")])
    assert row.known_by == REFUSED and row.reason.startswith("does not fit: ") and "remedy: " in row.reason


def test_the_fewest_devices_that_hold_it_are_taken_and_widened_weights_are_told():
    (row, *_) = support(load_model("llama-3.1-70b"), [_device("h100-sxm")])
    assert row.devices == 2
    (row, *_) = support(load_model("qwen3-30b-a3b"), [_device("a100-sxm")])
    assert row.widened == ()
    (row, *_) = support(load_model("deepseek-v3"), [_device("cpu-sapphire-rapids")])
    assert row.widened == ("fp8_block in bf16",)


def test_a_model_without_tokens_is_refused():
    with pytest.raises(InputError, match="e5-base: gives a vector and no tokens"):
        support(load_model("e5-base"))


def test_the_command(evaluator):
    code, told, _ = evaluator("catalog", "support", "llama-3.1-8b", "--hardware", "h100-sxm", "--hardware", "mi300x")
    assert code == 0 and re.search(r"^h100-sxm\s+vllm\s+measured\s+1\s+\d+", told, re.MULTILINE)
    assert re.search(r"^mi300x\s+trtllm\s+refused\s+-\s+-", told, re.MULTILINE)
    code, told, _ = evaluator("catalog", "support", "llama-3.1-8b", "--hardware", "mi300x", "--json")
    rows = json.loads(told)["tables"]["support"]["rows"]
    assert code == 0 and [row["engine"] for row in rows] == list(ENGINES) and rows[1]["errors"] == [None] * 3
    assert evaluator("catalog", "support", "nothing")[0] == 2
    assert evaluator("catalog", "support", "llama-3.1-8b", "--hardware", "nothing")[0] == 2
    code, _, noted = evaluator("catalog", "support", "llama-3.1-8b", "--weights", "fp7")
    assert code == 2 and "--weights fp7: is no dtype" in noted


def test_the_page_has_every_device_under_every_model():
    sections = page().split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(MODELS)
    for section in sections:
        devices = re.findall(r"^\| ([\w.-]+) \|", section, re.MULTILINE)
        assert devices == ["device", *names("hardware")]


def _device(name):
    from evaluator.catalog import load_hardware

    return load_hardware(name)
