"""Devices by the names that makers, drivers and users give them."""

import pytest

from evaluator.catalog import load_hardware, names
from evaluator.catalog.devices import entry_called
from evaluator.errors import InputError
from evaluator.keys import Place, hardware_name


@pytest.mark.parametrize(
    ("called", "entry"),
    [
        ("H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("GB200", "gb200"),
        # Two builds, and another memory than the entry's.
        ("H100", "H100"),
        ("A100-80GB", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
    ],
)
def test_devices_are_told_by_their_names_where_these_tell_the_build(called, entry):
    assert entry_called(called) == entry


@pytest.mark.parametrize("name", names("hardware"))
def test_names_of_the_catalog_stay(name):
    assert entry_called(name) == name


def test_scenarios_have_the_names_of_the_catalog():
    assert load_hardware("H200") is load_hardware("h200-sxm")
    assert hardware_name("B200", Place("s.yaml", "deployment.hardware")) == "b200-sxm"
    with pytest.raises(InputError, match=r"unknown hardware 'H100'; did you mean h100-sxm or h100-pcie"):
        load_hardware("H100")
    with pytest.raises(InputError, match=r"unknown hardware 'NVIDIA H100'; did you mean h100-sxm or h100-pcie"):
        load_hardware("NVIDIA H100")
