"""The hardware files: figures in SI units, a source for each, and what is refused."""

import re

import pytest

from evaluator.catalog import load_hardware, names
from evaluator.catalog.hardware import Link, read_hardware
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml

WANTED = """
a100-pcie a100-sxm a40 h100-pcie h100-sxm h200-sxm h20 b200-sxm gb200 l4 l40s rtx-4090 rtx-pro-6000 mi300x mi325x
tpu-v5e tpu-v6e tpu-ironwood gaudi3 ascend-910b3 cpu-grace cpu-sapphire-rapids
""".split()
GOOD = """
name: chip
kind: gpu
peak_flops: {bf16: 100TFLOP/s, fp8: 200TFLOP/s}
memory_bytes: 80GB
memory_bandwidth: 2TB/s
links:
  - {name: wire, bandwidth: 100GB/s, latency_s: 1us, devices: 8}
  - {name: nic, bandwidth: 200Gb/s, latency_s: 5us, devices: null}
power_w: 400W
idle_power_w: null
usd_per_hour: null
sources:
  peak_flops: 'sheet'
  memory_bytes: 'sheet'
  memory_bandwidth: 'sheet'
  links.wire: 'sheet'
  links.nic.bandwidth: 'sheet'
  links.nic.latency_s: 'assumption: 5 us'
  power_w: 'sheet'
"""


def test_what_is_there():
    assert set(WANTED) <= set(names("hardware"))


@pytest.mark.parametrize("name", names("hardware"))
def test_figures_are_plausible(name):
    hardware = load_hardware(name)
    if hardware.usd_per_hour is not None:
        assert 0.1 < hardware.usd_per_hour < 20.0
        assert re.search(r"read 20\d\d-\d\d-\d\d", hardware.sources["usd_per_hour"]), "a price needs its date"
    if hardware.idle_power_w is not None:
        assert hardware.power_w is not None and 0.05 < hardware.idle_power_w / hardware.power_w < 0.4
    assert hardware.peak_flops["bf16"] <= max(hardware.peak_flops.values())
    if hardware.kind == "gpu":
        assert hardware.peak_flops["fp16"] == hardware.peak_flops["bf16"]
    assert 1e12 < hardware.peak_flops["bf16"] <= 1e16
    assert 10e9 < hardware.memory_bytes < 1e12
    assert 1e11 < hardware.memory_bandwidth < 3e13
    assert all(1e9 < link.bandwidth < hardware.memory_bandwidth for link in hardware.links)
    assert hardware.links[-1].devices is None


def test_h100_is_its_data_sheet():
    hardware = load_hardware("h100-sxm")
    assert hardware.peak_flops["bf16"] == 989e12
    assert hardware.peak_flops["fp8"] == 1979e12
    assert (hardware.memory_bytes, hardware.memory_bandwidth) == (85899345920, 3.35e12)
    assert hardware.links == (Link("nvlink", 450e9, 0.8e-6, 8), Link("nic", 50e9, 5e-6, None))
    assert load_hardware("h100-pcie").peak_flops["bf16"] == 756e12


def test_a_good_file():
    hardware = read_hardware(loads_yaml(GOOD), "chip.yaml", "chip")
    assert hardware.links[1].bandwidth == 25e9
    assert hardware.idle_power_w is None


REFUSED = {
    "chip.yaml: memory_bandwidth: missing": ("memory_bandwidth: 2TB/s\n", ""),
    "chip.yaml: memory_bytes: must be above 0, got '-80GB'": ("80GB", "-80GB"),
    "chip.yaml: power_w: must be above 0, got 0": ("400W", "0"),
    "chip.yaml: memory_bandwidth: .*GB": ("2TB/s", "2TB"),
    "chip.yaml: kind: 'gpus' is unknown; did you mean gpu": ("kind: gpu", "kind: gpus"),
    "chip.yaml: memory: unknown key; did you mean memory_bytes": ("power_w: 400W", "power_w: 400W\nmemory: 3"),
    r"chip.yaml: links\[0\].devices: expected a whole number of at least 2": ("devices: 8", "devices: 1"),
    "chip.yaml: links: 'nic' must join more devices than 'wire'": ("devices: null", "devices: 4"),
    "chip.yaml: links: two links have the same name": ("name: nic", "name: wire"),
    "chip.yaml: sources: no source for 'links.nic.latency_s'": ("  links.nic.latency_s: 'assumption: 5 us'\n", ""),
    "chip.yaml: sources: no source for 'usd_per_hour'": ("usd_per_hour: null", "usd_per_hour: 2USD/h"),
    "chip.yaml: sources: 'peak_flop' is no figure of this file; did you mean peak_flops": (
        "  power_w: 'sheet'",
        "  power_w: 'sheet'\n  peak_flop: 'sheet'",
    ),
    "chip.yaml: sources.power_w: expected a text": ("  power_w: 'sheet'", "  power_w: ''"),
    "chip.yaml: peak_flops.fp12: unknown key; did you mean fp": ("fp8:", "fp12:"),
    "chip.yaml: peak_flops: needs at least one of fp32": ("{bf16: 100TFLOP/s, fp8: 200TFLOP/s}", "{}"),
    "memory_bandwidth: .*not a finite number": ("2TB/s", ".inf"),
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items())
def test_bad_hardware_files_are_refused(message, change):
    assert change[0] in GOOD
    with pytest.raises(InputError, match=message):
        read_hardware(loads_yaml(GOOD.replace(*change)), "chip.yaml")
