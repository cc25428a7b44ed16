"""Devices and models like those of the catalog, with other figures."""

import pytest

from evaluator.catalog import load_hardware, load_model
from evaluator.catalog.store import find
from evaluator.catalog.what_if import WhatIf, changed_model, device, read_changed_model, read_device
from evaluator.errors import InputError
from evaluator.replica import ReplicaSpec, build
from evaluator.replica.scenario import design
from evaluator.scenario import load_scenario, with_engine_defaults


def test_a_device_keeps_what_is_not_given():
    base, found = load_hardware("h100-sxm"), device(WhatIf.of({"like": "h100-sxm", "memory_bandwidth": "4.8TB/s"}))
    assert found.memory_bandwidth == 4.8e12
    assert (found.peak_flops, found.links, found.memory_bytes) == (base.peak_flops, base.links, base.memory_bytes)
    assert found.hypothetical and not base.hypothetical


def test_a_device_has_a_title_beside_the_name_of_its_sets():
    found = read_device({"name": "mine", "like": "h100-sxm", "memory_bandwidth": {"times": 2}}, "hardware")
    assert (found.title, found.name) == ("mine", "h100-sxm") and load_hardware("h100-sxm").title == "h100-sxm"


def test_another_price_or_power_makes_no_other_device():
    for change in ({"usd_per_hour": 2, "power_w": "500W", "idle_power_w": {"times": 2}}, {}):
        assert not read_device({"like": "h100-sxm", **change}, "hardware").hypothetical
    for change in ({"memory_bytes": {"times": 2}}, {"usd_per_hour": 2, "links": {"nic": {"devices": 9}}}):
        assert read_device({"like": "h100-sxm", **change}, "hardware").hypothetical


def test_multiples_and_figures_of_parts():
    base = load_hardware("h100-sxm")
    found = read_device(
        {
            "like": "h100-sxm",
            "memory_bytes": {"times": 2},
            "peak_flops": {"times": 1.5, "fp8": "4PFLOP/s", "bf16": {"times": 3}},
            "links": {"latency_s": {"times": 0.5}, "nvlink": {"bandwidth": "900GB/s", "devices": 72}},
        },
        "hardware",
    )
    assert found.memory_bytes == 2 * base.memory_bytes
    assert found.peak_flops["fp16"] == 1.5 * base.peak_flops["fp16"]
    assert (found.peak_flops["fp8"], found.peak_flops["bf16"]) == (4e15, 3 * base.peak_flops["bf16"])
    nvlink, nic = found.links
    assert (nvlink.bandwidth, nvlink.devices, nvlink.latency_s) == (900e9, 72, 0.5 * base.links[0].latency_s)
    assert nic.bandwidth == base.links[1].bandwidth


def test_a_device_of_its_own():
    found = read_device(
        {"peak_flops": {"bf16": "500TFLOP/s"}, "memory_bytes": "64GB", "memory_bandwidth": "1TB/s",
         "links": [{"name": "ring", "bandwidth": "100GB/s", "latency_s": "1us", "devices": 16}]}, "hardware",
    )  # fmt: skip
    assert (found.peak_flops, found.memory_bytes, found.links[0].devices) == ({"bf16": 5e14}, 64e9, 16)


BAD_DEVICES = {
    "name": ({"like": "h100"}, r"unknown hardware 'h100'; did you mean h100-sxm"),
    "lines in a name": (
        {"like": "h100-sxm", "name": "mine\nrm -rf x"},
        r"hardware\.name: expected a name of at most 100",
    ),
    "escapes in a name": (
        {"like": "h100-sxm", "name": "mine\x1b[2J"},
        r"expected a name of at most 100 .* on one line",
    ),
    "key": ({"like": "h100-sxm", "memory_bandwith": 1}, r"hardware\.memory_bandwith: unknown key; did you mean"),
    "no unit": ({"like": "h100-sxm", "memory_bandwidth": 3.35}, r"3\.35 byte/s is no figure of a device; write its"),
    "no dtype": (
        {"like": "h100-sxm", "peak_flops": {"bf17": 1e15}},
        r"bf17: unknown key; did you mean bf16 or fp16\? \(there are: times, fp32, tf32, bf16, fp16, fp8, .*, mxfp8\)",
    ),
    "huge": ({"like": "h100-sxm", "memory_bytes": 1e30}, r"1e\+30 byte is no figure of a device"),
    "below zero": ({"like": "h100-sxm", "memory_bandwidth": "-3TB/s"}, r"must be above 0"),
    "times zero": ({"like": "h100-sxm", "memory_bandwidth": {"times": 0}}, r"memory_bandwidth\.times: must be above 0"),
    "huge times": ({"like": "h100-sxm", "memory_bandwidth": {"times": 1e300}}, r"times: must be at most 1e\+06"),
    "no peaks": ({"like": "h100-sxm", "peak_flops": {"times": 0}}, r"peak_flops\.times: must be above 0"),
    "unknown times": ({"like": "ascend-910b3", "power_w": {"time": 2}}, r"power_w\.times: missing"),
    "link": ({"like": "h100-sxm", "links": {"nvlnk": {}}}, r"links\.nvlnk: unknown key; did you mean nvlink"),
    "all links": ({"like": "h100-sxm", "links": {"bandwidth": "1TB/s"}}, r"expected {times: 2} for all links"),
    "incomplete": ({"memory_bandwidth": "3TB/s"}, r"peak_flops: missing; or say which device of the catalog"),
    "sources": ({"sources": {}}, r"sources: a device described in a scenario has none"),
}


@pytest.mark.parametrize(("document", "message"), BAD_DEVICES.values(), ids=BAD_DEVICES.keys())
def test_bad_devices(document, message):
    with pytest.raises(InputError, match=message):
        read_device(document, "hardware")


def test_a_figure_that_is_not_known_has_no_multiple():
    names = ("power_w", "idle_power_w", "usd_per_hour")
    base = load_hardware("ascend-910b3")
    unknown = next(name for name in names if getattr(base, name) is None)
    with pytest.raises(InputError, match=rf"{unknown}\.times: there is no {unknown} to multiply; give a figure"):
        read_device({"like": "ascend-910b3", unknown: {"times": 2}}, "hardware")


def test_models_with_other_shapes():
    base = load_model("gpt-oss-20b")
    found = changed_model(WhatIf.of({"like": "gpt-oss-20b", "layers": 48.0, "experts": 64}))
    assert [kind.count for kind in found.layers] == [2 * kind.count for kind in base.layers]
    assert {kind.feed_forward.experts for kind in found.layers} == {64}
    assert found.name == "gpt-oss-20b with layers 48, experts 64"
    assert read_changed_model({"like": "llama-3.1-8b", "heads": 64}, "model").layers[0].mixer.heads == 64


BAD_MODELS = {
    "mixture": ({"like": "gpt-oss-20b", "layers": 25}, r"25 layers do not keep the mixture .* \(12 \+ 12\); use .* 48"),
    "no experts": ({"like": "llama-3.1-8b", "experts": 4}, r"llama-3\.1-8b has no experts; leave it out"),
    "too many": ({"like": "gpt-oss-20b", "experts_per_token": 40}, r"40 experts_per_token exceed the 32 experts"),
    "groups": ({"like": "llama-3.1-8b", "heads": 30}, r"30 heads do not divide into groups for 8 KV heads"),
    "none": ({"like": "llama-3.1-8b", "layers": 0}, r"layers: expected a whole number of at least 1"),
    "key": ({"like": "llama-3.1-8b", "width": 3}, r"width: unknown key"),
}


@pytest.mark.parametrize(("document", "message"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_bad_models(document, message):
    with pytest.raises(InputError, match=message):
        read_changed_model(document, "model")


def test_a_device_keeps_the_set_of_the_one_it_is_like():
    """Its times follow from the same efficiencies; but nobody measured it, so they are extrapolated."""
    real = build(ReplicaSpec("llama-3.1-8b", "h100-sxm", "auto"))
    same = build(ReplicaSpec("llama-3.1-8b", WhatIf.of({"like": "h100-sxm", "memory_bytes": "100GB"}), "auto"))
    assert (real.provenance, same.provenance) == ("calibrated", "extrapolated")
    assert same.calibration.name == real.calibration.name
    assert same.ready.cost.context_s == real.ready.cost.context_s


def test_two_catalogs_of_one_session_are_told_apart(tmp_path, monkeypatch):
    """Caches are of the folders in which names are looked for, and not of the names alone."""
    described = WhatIf.of({"like": "h100-sxm", "power_w": "650W"})
    deeper = WhatIf.of({"like": "llama-3.1-8b", "max_positions": 4096})
    tree = {
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "calibration": "datasheet"},
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        },
    }
    for folder, name, was, now in (
        ("hardware", "h100-sxm", "memory_bandwidth: 3.35TB/s", "memory_bandwidth: 1TB/s"),
        ("llm", "llama-3.1-8b", "vocabulary: 128256", "vocabulary: 1024"),
    ):
        text = find("models" if folder == "llm" else folder, name).read_text()
        assert was in text
        file = tmp_path / "models" / folder / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text.replace(was, now))
    found = []
    for path in ("", str(tmp_path), ""):
        monkeypatch.setenv("EVALUATOR_PATH", path)
        built = design(with_engine_defaults(load_scenario(tree).deployment), 100)
        found.append(
            (built.hardware.memory_bandwidth, device(described).memory_bandwidth, changed_model(deeper).vocabulary)
        )
    assert found == [(3.35e12, 3.35e12, 128256), (1e12, 1e12, 1024), (3.35e12, 3.35e12, 128256)]


def test_what_is_described_may_say_its_name():
    """Sets are found by the device that it is like; a price and a name leave what was measured as it is."""
    found = read_device({"like": "h100-sxm", "name": "mine", "usd_per_hour": 1.0}, "x")
    assert (found.name, found.hypothetical) == ("h100-sxm", False)
    assert read_changed_model({"like": "llama-3.1-8b", "name": "deep", "layers": 40}, "x").name == "deep"
    with pytest.raises(InputError, match="name: expected a text, got 3"):
        read_device({"like": "h100-sxm", "name": 3}, "x")
