"""Devices beyond those with servers: how their sets were made, as what they are served, and what stands in for them."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from evaluator.calibrate import calibrate, read_tables
from evaluator.calibrate.document import document
from evaluator.calibrate.run import _as_fast_a_processor
from evaluator.calibrate.sources import aiconfigurator, infersim
from evaluator.calibrate.transfer import known_errors
from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import HOST
from evaluator.catalog.fields import forget_changed
from evaluator.catalog.relatives import nearest_alike, relative_of
from evaluator.catalog.store import find
from evaluator.catalog.transferred import measured_devices, nearest_measured
from tests.benchmarks import other_set

SETS = Path(__file__).resolve().parents[2] / "calibration" / "sets.md"
TABLES = {
    "| | GB200 | GB300 |": ("gb200-vllm", "gb300-vllm", "rtx-pro-6000-server-vllm", "b60-vllm"),
    "| | TensorRT-LLM, GB200 |": tuple(
        f"{device}-{engine}" for engine in ("trtllm", "sglang") for device in ("gb200", "gb300", "rtx-pro-6000-server")
    ),
    "| | H20 | H800 |": ("h20-vllm", "h800-vllm"),
    "| | Ascend 910B | TPU v6e |": ("ascend-910b-vllm", "tpu-v6e-vllm"),
}


@pytest.mark.parametrize("head", TABLES)
def test_the_tables_of_more_devices_are_those_of_their_sets(head):
    """calibration/sets.md, medians and 90th percentiles of what was held out (in the sample where few were)."""
    text = SETS.read_text()
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    table = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}
    sets = [load_calibration(name, "any", foreign=True).fit["errors"] for name in TABLES[head]]
    assert set(table) == {label for errors in sets for label in errors}
    for label, cells in table.items():
        for cell, errors in zip(cells, sets, strict=True):
            found = errors.get(label, {})
            found = found.get("held_out", found.get("in_sample"))
            assert cell == (f"{100 * found['median']:.1f} % ({100 * found['p90']:.0f} %)" if found else "–"), label


@pytest.mark.parametrize(("hardware", "column"), [("h20", 1), ("h800", 3)])
def test_export_versions_by_the_set_of_the_h100_are_as_told(hardware, column, data_folder, capsys):
    """calibration/sets.md, by the command that stands beside the table."""
    tables = [str(data_folder / f"infersim_{name}.csv") for name in ("gemm", "attention")]
    other_set.main([*tables, "--hardware", hardware, "--calibration", "h100-sxm-vllm"])
    printed = {line.split()[0]: line.partition(" calls ")[2] for line in capsys.readouterr().out.splitlines()}
    text = SETS.read_text()
    lines = text[text.index("| | H20 by the H100's |") :].split("\n\n")[0].splitlines()[2:]
    told = {cells[1].strip(): cells[column + 1].strip() for cells in (line.split("|") for line in lines)}
    assert set(printed) == {label for label, cell in told.items() if cell != "–"}
    for label, line in printed.items():
        assert told[label].replace(" %", "%") == line.strip()


@pytest.mark.parametrize(
    ("hardware", "relative", "rests_on"),
    [
        ("gb200", "b200-sxm", "other_devices"),
        ("gb300", "b200-sxm", "other_devices"),
        ("rtx-pro-6000-server", "rtx-pro-6000", "other_devices"),
        ("h20", "h100-sxm", "transferred"),  # its products in 16 bits are the H200's
    ],
)
def test_kernels_are_served_as_those_of_the_nearest_relative(hardware, relative, rests_on):
    """What a server changes of the relative's kernels it changes of these, and the host is the relative's."""
    found, kernels = load_calibration("auto", hardware), load_calibration(f"{hardware}-vllm", hardware)
    serving, isolated = (load_calibration(f"{relative}-vllm{end}", relative) for end in (".serving", ""))
    assert found.name == f"{hardware}-vllm, served as {relative}-vllm.serving"
    assert (relative_of(hardware), found.rests_on) == (relative, rests_on)
    assert found.serving_release == serving.serving_release
    assert load_calibration("auto", hardware) is found  # what is cached by the set is found again
    assert all(getattr(found, figure) == getattr(serving, figure) for figure in HOST)
    for figure in ("launch_s", "kv_head_sequence_s"):
        ratios = [getattr(one.of("attention_decode"), figure) for one in (found, kernels, serving, isolated)]
        assert ratios[0] / ratios[1] == pytest.approx(ratios[2] / ratios[3])
    assert found.of("attention_decode").unequal == serving.of("attention_decode").unequal


def test_the_mi308x_is_told_as_its_set_has_it():
    errors = load_calibration("mi308x-vllm", "mi308x").fit["errors"]
    labels = ("gemm", "gemm_8bit", "gemm_block", "grouped_gemm", "grouped_gemm_8bit")
    told = [f"{100 * errors[label]['held_out']['median']:.1f} %" for label in labels]
    line = SETS.read_text().partition("The MI308X has a set")[2].partition("Few tokens'")[0]
    assert [f"{part} %" for part in ("10.5", "5.5", "8.1", "5.9", "7.1") if part in line] == told


def test_without_a_relative_the_host_alone_is_lent():
    found = load_calibration("auto", "b60")
    assert (found.name, found.rests_on) == ("b60-vllm, host of vllm.serving", "kernels_and_host")
    assert relative_of("b60") is None and relative_of("nobody's") is None


def test_a_device_without_a_set_takes_that_of_the_nearest_of_its_architecture():
    """GH200 as H200, whose memory it has; a median of all H100s and B200s would be nobody's."""
    for hardware, nearest in (("gh200", "h200-sxm"), ("b300-sxm", "b200-sxm"), ("rtx-5090", "rtx-pro-6000-server")):
        found = load_calibration("auto", hardware)
        assert (found.provenance, found.sources["gemm"]) == ("transferred", f"median of the sets of {nearest}")
    assert nearest_alike(load_hardware("h800"), ["a100-sxm", "h100-sxm", "h200-sxm"]) == "h100-sxm"
    assert nearest_alike(load_hardware("gaudi3"), ["h100-sxm"]) is None  # no architecture: alike to nobody
    # One chip in four racks has one voice in the median over architectures.
    assert not {"gb200", "gb300", "rtx-pro-6000-server", "b60"} & set(measured_devices("vllm"))


@pytest.mark.parametrize("engine", ["trtllm", "sglang"])
@pytest.mark.parametrize(
    ("hardware", "relative"), [("gb200", "b200-sxm"), ("gb300", "b200-sxm"), ("rtx-pro-6000-server", "rtx-pro-6000")]
)
def test_kernels_of_another_engine_are_served_as_vllms_of_the_nearest_relative(hardware, relative, engine):
    found, kernels = (
        load_calibration("auto", hardware, engine=engine),
        load_calibration(f"{hardware}-{engine}", hardware),
    )
    serving, isolated = (load_calibration(f"{relative}-vllm{end}", relative) for end in (".serving", ""))
    assert found.name == f"{hardware}-{engine}, served as {relative}-vllm.serving"
    assert (found.provenance, found.engine) == ("extrapolated", engine)
    assert all(getattr(found, figure) == getattr(serving, figure) for figure in HOST)
    ratios = [one.of("attention_decode").launch_s for one in (found, kernels, serving, isolated)]
    assert ratios[0] / ratios[1] == pytest.approx(ratios[2] / ratios[3])
    # One chip has one voice in medians of this engine, too.
    assert hardware not in measured_devices(engine)


def test_of_other_makers_a_relative_alone_tells_anything():
    for hardware, nearest in (("mi350x", "mi355x"), ("ascend-910b3", "ascend-910b")):
        found = load_calibration("auto", hardware)
        assert (found.rests_on, found.sources["gemm"]) == ("transferred", f"median of the sets of {nearest}")
    assert load_calibration("auto", "trainium3").name == "datasheet"


@pytest.mark.parametrize(
    ("hardware", "engine", "name", "of"),
    [
        ("rtx-5090", "sglang", "transferred", "rtx-pro-6000-server"),
        ("gh200", "sglang", "transferred", "h200-sxm"),
        ("mi350x", "sglang", "transferred, for sglang", "mi355x"),
        ("a800", "trtllm", "transferred, for trtllm", "a100-sxm"),
    ],
)
def test_kernels_of_an_engine_are_of_its_own_before_those_of_vllm(hardware, engine, name, of):
    found = load_calibration("auto", hardware, engine=engine)
    assert (found.name, found.sources["gemm"]) == (name, f"median of the sets of {of}")
    if name == "transferred":  # served as the relative is under this engine
        relative = load_calibration("auto", of, engine=engine).of("attention_decode")
        assert found.of("attention_decode").kv_head_sequence_s == relative.kv_head_sequence_s
    else:
        assert found.provenance == "extrapolated"
    assert load_calibration("auto", hardware, engine=engine) is found  # what is cached by the set is found again


def test_kernels_of_no_engine_or_with_servers_stay_under_every_engine():
    """InferSim's products of an H20 are DeepGEMM's, which is no engine's own; servers of an L40S were measured."""
    for hardware, name in (("h20", "h20-vllm, served as h100-sxm-vllm.serving"), ("l40s", "l40s-vllm.serving")):
        assert load_calibration("auto", hardware, engine="sglang").name == f"{name}, for sglang"


def described(folder, name, *changes):
    """A device of a user's own, as the A30 but for ``changes``."""
    text = find("hardware", "a30").read_text().replace("name: a30\n", f"name: {name}\n")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.yaml").write_text(text)
    return load_hardware(str(folder / f"{name}.yaml"))


def test_a_device_is_compared_by_the_16_bits_that_it_has(tmp_path):
    bf16, fp16 = ("  bf16: 165TFLOP/s\n", ""), ("  fp16: 165TFLOP/s\n", "")
    others = ["a100-sxm", "h100-sxm"]
    assert nearest_alike(described(tmp_path, "half", bf16), others) == "a100-sxm"
    assert nearest_alike(described(tmp_path, "none", bf16, fp16), others) == "a100-sxm"
    assert load_calibration("auto", described(tmp_path, "box", bf16)).provenance == "transferred"


def test_a_relative_that_was_edited_within_a_session_is_asked_anew(tmp_path, monkeypatch):
    folder = tmp_path / "models" / "hardware"
    folder.mkdir(parents=True)
    text = find("hardware", "h800").read_text()
    (folder / "h800.yaml").write_text(text)
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    assert relative_of("h800") == "h100-sxm"
    (folder / "h800.yaml").write_text(text.replace("architecture: hopper", "architecture: ampere"))
    forget_changed()
    assert relative_of("h800") == "a100-sxm"


def test_another_device_of_an_architecture_in_a_folder_of_ones_own_is_found(tmp_path, monkeypatch):
    """Caches are by the folders that are searched."""
    before = load_calibration("auto", "a40").name
    for folder, kind, old, new in (
        ("models/hardware", "hardware", "name: a40", "name: a45"),
        ("calibration", "calibrations", "hardware: l40s", "hardware: a45"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        name = "a40" if kind == "hardware" else "l40s-vllm"
        text = find(kind, name).read_text().replace(old, new).replace("name: l40s-vllm", "name: a45-vllm")
        (tmp_path / folder / ("a45.yaml" if kind == "hardware" else "a45-vllm.yaml")).write_text(text)
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    assert load_calibration("auto", "a40").sources["gemm"] == "median of the sets of a45"
    monkeypatch.delenv("EVALUATOR_PATH")
    assert load_calibration("auto", "a40").name == before


def test_a_start_of_another_device_reads_no_faster_per_processor():
    """H20: 78 processors at 4 TB/s, H200: 132 at 4.8; at the H200's rate per processor 71 % of its share is left."""
    h200, share = load_calibration("h200-sxm-vllm", "h200-sxm"), 78 * 4.8 / (132 * 4.0)
    start = _as_fast_a_processor(h200, load_hardware("h20"))
    for name in ("gemm", "attention_decode"):
        expected = share * h200.of(name).bandwidth_efficiency
        assert start.of(name).bandwidth_efficiency == pytest.approx(expected)
    assert start.of("all_reduce") == h200.of("all_reduce")
    for same in ("h200-sxm", "gaudi3"):  # its own set; a device whose processors are not known
        assert _as_fast_a_processor(h200, load_hardware(same)) is h200
    # Nearer to what was measured than either the same fraction or the same bytes per second.
    fitted = load_calibration("h20-vllm", "h20").of("gemm_block").bandwidth_efficiency
    of_h200 = h200.of("gemm_block").bandwidth_efficiency
    assert abs(share * of_h200 - fitted) < abs(of_h200 - fitted)


def test_groups_that_were_not_measured_are_those_of_the_start(data_folder):
    """One tray of a rack has four GPUs: all-reduces among eight are as the B200's, not a figure for any number."""
    (table,) = read_tables([data_folder / "aic_devices_all_reduce.csv"])
    rows = table.rows[(table.rows["hardware"] == "gb200") & (table.rows["engine"] == "vllm")]
    fitted = document(calibrate([replace(table, rows=rows)], "gb200", "x", start="b200-sxm-vllm"))
    groups, b200 = (
        fitted["efficiencies"]["all_reduce"]["devices"],
        load_calibration("b200-sxm-vllm", "b200-sxm").of("all_reduce").devices,
    )
    assert set(groups) == {2, 4, 8} and groups[4]["launch_s"] != b200[4].launch_s
    assert groups[8]["launch_s"] == pytest.approx(b200[8].launch_s, rel=1e-3)


def attention(**columns):
    usual = {"gpu": "gb200", "engine": "sglang", "engine_version": "1", "kernel": "trtllm_mha", "latency_us": 100.0}
    sizes = {"batch_size": 1, "num_heads": 8, "num_kv_heads": 8, "head_dim": 128, "window_size_tokens": 0}
    tokens = {"prompt_tokens_per_sequence": 1024, "past_kv_tokens": 0, "kv_cache_dtype": "bfloat16"}
    return pd.DataFrame({**usual, **sizes, **tokens, "is_suspect": False} | columns)


def test_rows_that_the_source_flags_and_kernels_that_are_not_the_usual_are_left_out():
    assert len(aiconfigurator.prefill(attention(is_suspect=[False, True]))) == 1
    # FlashInfer is what SGLang falls back to in data centres, and its usual kernel on the workstation's chip.
    by_device = attention(kernel="flashinfer", gpu=["gb200", "rtx_pro_6000_server"])
    assert list(aiconfigurator.prefill(by_device)["hardware"]) == ["rtx-pro-6000-server"]
    # Intel's kernel skips nothing outside a window.
    windowed = attention(gpu="b60", engine="vllm", window_size_tokens=[0, 128])
    assert list(aiconfigurator.prefill(windowed)["window"]) == [0]


def test_where_an_engine_captures_no_graphs_its_launched_calls_count():
    rows = pd.DataFrame(
        {"gpu": ["b60", "gb200", "gb200", "gb200"], "engine": ["vllm", "vllm", "vllm", "trtllm"], "num_gpus": 2}
        | {"backend": ["vllm_eager", "vllm_eager", "vllm_graph", None], "engine_version": "1", "latency_us": 9.0}
        | {"message_size_bytes": 1024}
    )
    assert list(aiconfigurator.engine_all_reduce(rows)["mode"]) == ["graph", "eager", "graph", "graph"]


def test_products_of_infersim_are_deepgemms_in_blocks_and_stand_for_all_fp8():
    frame = pd.DataFrame({"gpu": ["H20"], "dtype": ["fp8"], "m": [16], "n": [512], "k": [7168], "latency_us": [9.0]})
    assert list(infersim.gemm(frame)["dtype"]) == ["fp8_block", "fp8"]


def test_the_table_of_relatives_is_that_of_the_errors():
    text = SETS.read_text()
    lines = text[text.index("| nearest relative |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    named = {"H100": "h100-sxm", "H200": "h200-sxm", "B200": "b200-sxm"}
    pairs = [[named.get(name, name.lower()) for name in cell.split(" by ")] for cell in rows[0][1:]]
    for device, relative in pairs:
        assert nearest_measured(load_hardware(device), "vllm") == relative
    known = known_errors()
    for label, *cells in rows[2:]:
        errors = [known[label]["relatives"].get(device) for device, _ in pairs]
        assert cells == [f"{100 * pair[0]:.0f} %" if pair else "–" for pair in errors], label


def test_the_table_of_the_page_on_accuracy_is_that_of_the_sets():
    text = (SETS.parents[1] / "docs" / "accuracy.md").read_text()
    lines = text[text.index("| | GB200 | GB300 |") :].split("\n\n")[0].splitlines()[2:]
    shown = [name for names in TABLES.values() for name in names if name.endswith("-vllm")]
    sets = [load_calibration(name, "any", foreign=True).fit["errors"] for name in shown]
    classes = [("gemm",), ("attention_prefill", "attention_decode"), ("grouped_gemm",), ("gemm_8bit", "gemm_block")]
    for line, labels in zip(lines, [*classes, ("all_reduce",)], strict=True):
        for cell, errors in zip((part.strip() for part in line.split("|")[2:-1]), sets, strict=True):
            found = [errors.get(label, {}) for label in labels]
            told = [one.get("held_out", one.get("in_sample", {})).get("median") for one in found]
            figures = [f"{100 * median:.1f}" for median in told if median is not None]
            assert [part for part in cell.replace(";", " ").replace("/", " ").split() if part[0].isdigit()] == figures
