"""Which device it is, and its description from what was measured."""

import dataclasses

import jax
import pandas as pd
import pytest

from evaluator.catalog.hardware import read_hardware
from evaluator.errors import InputError
from evaluator.measure.describe import description
from evaluator.measure.device import Device, find_device
from evaluator.yaml import loads_yaml

GPU = Device("NVIDIA H200", "gpu", 8, 1e11, 50e6, "0.10")


@pytest.mark.parametrize(
    ("driver", "entry"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("TPU v6 lite", "tpu-v6e"),
        ("NVIDIA H100 NVL", None),
        ("AMD EPYC, 2 processors", None),
    ],
)
def test_names_of_drivers(driver, entry):
    assert dataclasses.replace(GPU, name=driver).catalog_name == entry


def test_this_machine():
    found = find_device()
    assert (found.platform, found.count, found.jax_version) == ("cpu", 1, jax.__version__)
    assert found.memory_bytes > 1e8 and 1e5 < found.cache_bytes < 1e10 and "processors" in found.name


def test_no_device_at_all(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(InputError, match="JAX has no device to measure: Unable to initialize backend 'cuda'"):
        find_device()


def rows(*found):
    columns = ("m", "n", "k", "batch", "past_tokens", "kv_heads", "heads", "head_dim", "bytes", "devices",
               "message_bytes")  # fmt: skip
    blank = dict.fromkeys(columns, float("nan")) | {"dtype": "bf16", "measured_at": "now"}
    return pd.DataFrame([blank | each for each in found])


SQUARE = {"op_class": "gemm", "m": 4096, "n": 4096, "k": 4096, "time_s": 2e-4}
VECTOR = {"op_class": "gemm", "m": 1, "n": 4096, "k": 4096, "time_s": 1e-5}
IN_CACHE = {"op_class": "elementwise", "bytes": 1e6, "time_s": 1e-7}
SUM = {"op_class": "elementwise", "bytes": 4e9, "time_s": 1e-3}


def test_the_description_is_hardware_of_the_catalog():
    text = description(rows(SQUARE, VECTOR, IN_CACHE, SUM), GPU, "mine")
    found = read_hardware(loads_yaml(text, "mine.yaml"), "mine.yaml", expected_name="mine")
    assert found.peak_flops == {"bf16": pytest.approx(2 * 4096**3 / 2e-4, rel=1e-3)}
    assert found.memory_bandwidth == pytest.approx(4e12, rel=1e-3)  # not the 1e13 of the cache
    assert (found.links, found.power_w, found.memory_bytes) == ((), None, 1e11)
    assert "measured: the fastest gemm (m=4096 n=4096 k=4096, bf16), JAX 0.10" in found.sources["peak_flops.bf16"]


def test_weights_too_show_the_bandwidth():
    text = description(rows(SQUARE, VECTOR | {"time_s": 6e-6}, SUM), GPU, "mine")
    assert read_hardware(loads_yaml(text, "m"), "m").memory_bandwidth == pytest.approx(2 * 4096**2 / 6e-6, rel=1e-3)


def test_all_reduces_show_the_link():
    large = {"op_class": "all_reduce", "devices": 8, "message_bytes": 2**28, "time_s": 1e-3}
    small = {"op_class": "all_reduce", "devices": 2, "message_bytes": 1024, "time_s": 8e-6}
    (link,) = read_hardware(loads_yaml(description(rows(SQUARE, SUM, large, small), GPU, "m"), "m"), "m").links
    assert (link.devices, link.latency_s) == (8, pytest.approx(4e-6))
    assert link.bandwidth == pytest.approx(1.75 * 2**28 / 1e-3, rel=1e-3)


def test_too_little_to_describe():
    with pytest.raises(InputError, match="too little was measured to describe the device"):
        description(rows(IN_CACHE), GPU, "mine")
