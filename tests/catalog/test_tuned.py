"""Lists of the shapes for which engines have tuned experts: the shipped one, and what is said of one of no use."""

import numpy as np
import pytest

from evaluator.catalog import load_calibration, names
from evaluator.catalog.engines import ENGINES
from evaluator.catalog.tuned import crowded_bandwidth, filled_experts, tuned_experts
from evaluator.errors import InputError
from tests.benchmarks import filled_experts as filled_benchmark


def test_the_shapes_of_sglang():
    """Mixtral-8x7B on 4 devices and Qwen3-30B-A3B on 2 are in the lists of both; Mixtral-8x7B on one H100 is not."""
    h100, h200 = tuned_experts("sglang", "h100-sxm"), tuned_experts("sglang", "h200-sxm")
    assert {(8, 3584), (128, 384)} <= h100 & h200
    assert (8, 14336) in h200 - h100
    assert (len(h100), len(h200)) == (53, 21)


def test_an_engine_or_a_device_without_a_list_has_no_tuned_shapes():
    assert set(names("experts")) <= set(ENGINES)
    assert not tuned_experts("trtllm", "h100-sxm") and not tuned_experts("sglang", "b200-sxm")


def test_default_tiles_of_earlier_releases_of_vllm():
    """Those of SGLang's calls, whose kernel is the same; today's are those that the sets were fitted to."""
    assert crowded_bandwidth("vllm", "h100-sxm", (0, 16, 2)) == pytest.approx(0.71, abs=0.001)
    assert crowded_bandwidth("vllm", "b300-sxm", (0, 11)) == crowded_bandwidth("vllm", "b300-sxm", (0, 17, 0)) == 0.667
    assert crowded_bandwidth("vllm", "h100-sxm", (0, 17, 1)) is crowded_bandwidth("sglang", "h100-sxm", (0, 5)) is None
    assert (8, 3584) in tuned_experts("vllm", "h100-sxm") and (64, 768) not in tuned_experts("vllm", "h100-sxm")


def test_a_set_without_the_class_has_no_tuned_shapes():
    assert load_calibration("h100-sxm-sglang", "h100-sxm").tuned_experts() == tuned_experts("sglang", "h100-sxm")
    assert not load_calibration("h100-sxm-vllm", "h100-sxm").tuned_experts()
    served = load_calibration("auto", "h200-sxm", engine="sglang")
    assert served.provenance == "extrapolated" and (8, 3584) in served.tuned_experts()


GOOD = "name: sglang\nsources: {tuned: mine}\ntuned:\n  h100-sxm:\n    8: [100]\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    (tmp_path / "models" / "experts").mkdir(parents=True)
    return tmp_path / "models" / "experts" / "sglang.yaml"


def test_a_list_of_ones_own_comes_first(mine):
    mine.write_text(GOOD)
    assert tuned_experts("sglang", "h100-sxm") == {(8, 100)}


TILES = (
    "{tuned: mine, default_tiles: mine}\ndefault_tiles: {before: '0.4', crowded_bandwidth: {any: 0.5, h100-sxm: 0.7}}"
)


def test_tiles_of_ones_own(mine):
    mine.write_text(GOOD.replace("{tuned: mine}", TILES))
    assert crowded_bandwidth("sglang", "h100-sxm", (0, 3, 9)) == 0.7
    assert crowded_bandwidth("sglang", "l40s", (0, 3)) == 0.5 and crowded_bandwidth("sglang", "l40s", (0, 4)) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'0.4'", "new", "sglang.yaml: default_tiles.before: expected a release such as '0.28', got 'new'"),
        ("any: 0.5, ", "", "sglang.yaml: default_tiles.crowded_bandwidth.any: missing"),
        ("any: 0.5", "any: 1.5", "sglang.yaml: default_tiles.crowded_bandwidth.any: "),
        ("h100-sxm: 0.7", "h100: 0.7", "sglang.yaml: default_tiles.crowded_bandwidth.h100: no such device"),
        (", default_tiles: mine", "", "sglang.yaml: sources.default_tiles: missing"),
        ("before", "until", "sglang.yaml: default_tiles"),
    ],
)
def test_tiles_of_no_use_are_refused(mine, old, new, message):
    mine.write_text(GOOD.replace("{tuned: mine}", TILES).replace(old, new, 1))
    with pytest.raises(InputError) as raised:
        tuned_experts("sglang", "h100-sxm")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[100]", "100", "sglang.yaml: tuned.h100-sxm.8: expected experts and a list of their widths, such as 8: "),
        ("[100]", "[]", "sglang.yaml: tuned.h100-sxm.8: expected experts and a list of their widths"),
        ("[100]", "[0]", "sglang.yaml: tuned.h100-sxm.8: expected experts and a list of their widths"),
        ("8: ", "many: ", "sglang.yaml: tuned.h100-sxm.many: expected experts and a list of their widths"),
        ("h100-sxm", "h100", "sglang.yaml: tuned.h100: no such device; did you mean h100-sxm"),
        ("{tuned: mine}", "{}", "sglang.yaml: sources.tuned: missing"),
        ("name: sglang", "name: vllm", "sglang.yaml: name: 'vllm' is not the file's name 'sglang'"),
        ("name: sglang", "name: sglang\nwatts: 3", "sglang.yaml: watts: unknown key"),
        ("\n  h100-sxm:\n    8: [100]", " 8", "sglang.yaml: tuned: expected a mapping of keys to values, got 8"),
    ],
)
def test_a_list_of_no_use_is_refused(mine, old, new, message):
    mine.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as raised:
        tuned_experts("sglang", "h100-sxm")
    assert message in str(raised.value)


FILLED = "filled: {rows: 127, since: '0.3', before: '0.4', most_shards: 2, devices: {h800: {flops_efficiency: 0.7, "
FILLED += "bandwidth_efficiency: 1.0, knee: 0.5}}}\n"


def test_kernels_that_fill_up_experts_are_read(mine):
    mine.write_text(GOOD.replace("{tuned: mine}", "{tuned: mine, filled: mine}") + FILLED)
    kernel = filled_experts("sglang", (0, 3, 5), 2)
    assert kernel is not None and kernel.devices["h800"] == (0.7, 1.0, 0.5) and kernel.rows == 127
    assert filled_experts("sglang", (0, 3), 4) is filled_experts("sglang", (0, 4), 1) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rows: 127", "rows: 0", "sglang.yaml: filled.rows: "),
        ("'0.3'", "soon", "sglang.yaml: filled.since: expected a release"),
        ("h800", "h801", "sglang.yaml: filled.devices.h801: no such device"),
        ("knee: 0.5", "knee: 1.5", "sglang.yaml: filled.devices.h800.knee: "),
        (", filled: mine", "", "sglang.yaml: sources.filled: missing"),
    ],
)
def test_such_kernels_of_no_use(mine, old, new, message):
    text = GOOD.replace("{tuned: mine}", "{tuned: mine, filled: mine}") + FILLED
    mine.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        filled_experts("sglang", (0, 3), 1)
    assert message in str(caught.value)


def test_blackwells_figures_are_those_of_the_measured_calls(data_folder):
    devices = filled_experts("vllm", (0, 11, 1), 1).devices
    for measured in ("b200_sxm", "b300_sxm", "gb200"):
        name = filled_benchmark.DEVICES[measured]
        values, _, off = filled_benchmark.fitted(filled_benchmark.calls(data_folder, measured), name)
        assert values[:3] == pytest.approx(devices[name], abs=1e-3)
        assert np.max(np.abs(off)) < 0.025
    # The same calls tell the H100's share of the FLOPs as the H800's products by themselves do.
    values, _, _ = filled_benchmark.fitted(filled_benchmark.calls(data_folder, "h100_sxm"), "h100-sxm")
    assert values[0] == pytest.approx(devices["h800"].flops_efficiency, rel=0.01)
