"""Calibration sets: the default one, and what is refused."""

import json
import math

import pytest

from evaluator.catalog import load_calibration
from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.calibration import COLLECTIVE_CLASSES, OPERATOR_CLASSES, read_calibration
from evaluator.catalog.store import find
from evaluator.errors import InputError
from evaluator.yaml import load_yaml


@pytest.fixture
def content():
    return load_yaml(find("calibrations", "datasheet"))


def test_the_default_set():
    calibration = load_calibration("datasheet", "h100-sxm")
    assert calibration is load_calibration("datasheet", "l40s")
    assert (calibration.hardware, calibration.provenance) == ("any", "datasheet")
    assert tuple(calibration.efficiencies) == OPERATOR_CLASSES
    for name, efficiency in calibration.efficiencies.items():
        assert 0 < efficiency.flops_efficiency <= 1
        assert 0 < efficiency.bandwidth_efficiency <= 1
        assert 0 <= efficiency.launch_s < 1e-4
        assert calibration.sources[name]
    assert all(calibration.efficiencies[name].knee == 0 for name in COLLECTIVE_CLASSES)
    assert 0 < calibration.link_efficiency <= 1
    assert calibration.step_overhead_s == 1e-3


def test_a_set_of_other_hardware_is_refused(tmp_path, content):
    text = load_text(content, hardware="h100-sxm", name="mine")
    (tmp_path / "mine.yaml").write_text(text)
    assert load_calibration(str(tmp_path / "mine.yaml"), "h100-sxm").hardware == "h100-sxm"
    with pytest.raises(InputError, match="is of h100-sxm, not of l40s"):
        load_calibration(str(tmp_path / "mine.yaml"), "l40s")


def load_text(content, **change):
    return json.dumps({**content, **change})


def test_bad_sets_are_refused(content):
    def refused(message, **change):
        with pytest.raises(InputError, match=message):
            read_calibration({**content, **change}, "bad.yaml")

    gemm = content["efficiencies"]["gemm"]

    def with_gemm(**change):
        return {**content["efficiencies"], "gemm": {**gemm, **change}}

    refused("bad.yaml: provenance: 'guess' is unknown", provenance="guess")
    refused("bad.yaml: link_efficiency: expected a number from 0 to 1, got 1.2", link_efficiency=1.2)
    refused("bad.yaml: link_efficiency: must be above 0", link_efficiency=0)
    refused("bad.yaml: step_overhead_s: must be at least 0", step_overhead_s=-1)
    refused(
        "efficiencies.gemm.flops_efficiency: expected a number from 0 to 1", efficiencies=with_gemm(flops_efficiency=2)
    )
    refused("efficiencies.gemm.kne: unknown key; did you mean knee", efficiencies=with_gemm(kne=1))
    refused("bad.yaml: efficiencies.p2p: expected a mapping", efficiencies={**content["efficiencies"], "p2p": None})
    refused("bad.yaml: sources.p2p: missing", sources={k: v for k, v in content["sources"].items() if k != "p2p"})


def test_what_an_api_server_takes(content):
    said = {"api_server_times": {"per_token_s": "20us"}, "sources": {**content["sources"], "api_server_times": "mine"}}
    assert read_calibration({**content, **said}, "mine.yaml").api_server_times == ApiServerTimes(2e-5, 0.0)
    assert read_calibration(content, "mine.yaml").api_server_times is None
    with pytest.raises(InputError, match=r"api_server_times\.per_tokens_s: unknown key; did you mean per_token_s"):
        read_calibration({**content, "api_server_times": {"per_tokens_s": "20us"}}, "mine.yaml")


def test_a_missing_class_is_named(content):
    efficiencies = {name: value for name, value in content["efficiencies"].items() if name != "gemm"}
    with pytest.raises(InputError, match=r"bad\.yaml: efficiencies\.gemm: missing"):
        read_calibration({**content, "efficiencies": efficiencies}, "bad.yaml")


@pytest.fixture
def eager():
    return load_yaml(find("calibrations", "ascend-910b3-bestserve"))


def test_a_set_of_unfused_operators(eager):
    found = load_calibration("ascend-910b3-bestserve", "ascend-910b3")
    assert (found.form, found.efficiencies, found.eager.tables) == ("eager", {}, "corrected")
    assert found.eager.prefill.copies == (math.inf,) * 3
    copies = {**eager["prefill"], "copies": {"update": 0.5, "upcast": 0.7}}
    assert read_calibration({**eager, "prefill": copies}, "x.yaml").eager.prefill.copies == (0.5, math.inf, 0.7)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("prefill", {"flops_efficiency": 0.5}, r"x\.yaml: prefill\.bandwidth_efficiency: missing"),
        ("message_s", -1, r"x\.yaml: message_s: must be at least 0, got -1"),
        ("tables", "as_printd", r"x\.yaml: tables: 'as_printd' is unknown; did you mean as_printed"),
        ("dispatch", {"norm_s": 0, "attention_s": 0}, r"x\.yaml: dispatch\.feed_forward_s: missing"),
        ("sources", {"prefill": "a", "decode": "b"}, r"x\.yaml: sources\.dispatch: missing"),
        ("link_efficiency", 1.0, r"x\.yaml: link_efficiency: unknown key"),
    ],
)
def test_bad_sets_of_unfused_operators_are_refused(eager, key, value, message):
    with pytest.raises(InputError, match=message):
        read_calibration({**eager, key: value}, "x.yaml")
