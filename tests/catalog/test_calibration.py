"""Calibration sets: the default one, and what is refused."""

import json

import pytest

from evaluator.catalog import load_calibration
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


def test_a_missing_class_is_named(content):
    efficiencies = {name: value for name, value in content["efficiencies"].items() if name != "gemm"}
    with pytest.raises(InputError, match=r"bad\.yaml: efficiencies\.gemm: missing"):
        read_calibration({**content, "efficiencies": efficiencies}, "bad.yaml")
