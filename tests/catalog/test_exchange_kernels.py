"""Kernels of libraries that exchange tokens among experts: figures by device, and how a replica takes them."""

from __future__ import annotations

import re

import pytest

from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.exchange_kernels import exchange_devices, exchange_figures, with_exchange
from evaluator.cost.parallel import ALL_TO_ALL, DEEPEP, DEEPEP_LOW_LATENCY, EXCHANGES, GATHER, NVLINK, Parallel
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.replica.build import build
from evaluator.replica.spec import ReplicaSpec


def sent_us(exchange, hardware, ranks, batch=128):
    """Dispatch and combine of one of DeepSeek-V3's 58 layers with experts, of a decode of so many tokens a rank."""
    found = estimate(
        "deepseek-v3", hardware, prompt_tokens=64, output_tokens=8, data_parallel=ranks, expert_parallel=ranks,
        expert_exchange=exchange, batch=batch,
    )  # fmt: skip
    times = {operator.name: operator.time_s for operator in found.decode.operators}
    return [times[f"experts.{side}"] / 58 * 1e6 for side in ("dispatch", "combine")]


@pytest.mark.parametrize(
    ("exchange", "hardware", "batch", "measured", "within"),
    [
        (DEEPEP_LOW_LATENCY, "h100-sxm", 128, (36.7, 67.0), 0.08),
        (DEEPEP_LOW_LATENCY, "h100-sxm", 1024, (224.1, 489.4), 0.05),
        (DEEPEP, "h100-sxm", 128, (50.1, 82.5), 0.12),
        (DEEPEP, "h100-sxm", 4096, (492.2, 982.7), 0.08),
        (DEEPEP_LOW_LATENCY, "h800", 128, (77.0, 114.0), 0.01),
    ],
)
def test_a_node_takes_what_was_measured(exchange, hardware, batch, measured, within):
    """Of aiconfigurator's tables (H100, hidden size 7,168, 8 of 256 experts) and of DeepEP's own page (H800)."""
    assert sent_us(exchange, hardware, 8, batch) == pytest.approx(measured, rel=within)


@pytest.mark.parametrize(("ranks", "measured"), [(16, (118, 195)), (64, (173, 314)), (128, (192, 369))])
def test_nodes_take_what_was_published(ranks, measured):
    assert sent_us(DEEPEP_LOW_LATENCY, "h800", ranks) == pytest.approx(measured, rel=0.1)


def test_each_kind_has_its_own_figures():
    """Over 32 H800: of large batches low latency sends a copy per expert, of small ones it starts the soonest."""
    large, small = (
        {each: sum(sent_us(each, "h800", 32, batch)) for each in EXCHANGES if each != NVLINK} for batch in (512, 1)
    )
    assert large[DEEPEP] < large[DEEPEP_LOW_LATENCY] < large[GATHER]
    assert small[DEEPEP_LOW_LATENCY] < small[DEEPEP]


def test_a_device_without_figures_takes_those_of_its_architecture():
    h20, h200 = (exchange_figures(DEEPEP, load_hardware(name)) for name in ("h20", "h200-sxm"))
    assert h20 in (h200, *(exchange_figures(DEEPEP, load_hardware(name)) for name in ("h100-sxm", "h800")))
    assert exchange_figures(ALL_TO_ALL, load_hardware("h20")) is None
    assert exchange_figures(NVLINK, load_hardware("b200-sxm")) == exchange_figures(NVLINK, load_hardware("gb200"))
    assert exchange_devices(NVLINK) == ("gb200",)


def test_an_architecture_that_nobody_measured_is_refused():
    parallel = Parallel(1, 1, 32, 32, exchange=DEEPEP)
    found = build(ReplicaSpec("qwen3-235b-a22b", "a100-sxm", "auto", parallel=parallel))
    assert found.status.startswith("unsupported: expert_exchange deepep on ") and found.status.endswith(
        "use all_to_all"
    )
    # Of a dense model nothing is exchanged, which is said before; so it is of devices that all have all tokens, of
    # which no device with figures would change anything.
    alone = build(ReplicaSpec("qwen3-235b-a22b", "a100-sxm", "auto", parallel=Parallel(8, 1, 8, exchange=DEEPEP)))
    assert alone.status.startswith("infeasible: expert_exchange deepep without data_parallel")
    dense = build(ReplicaSpec("llama-3.1-8b", "a100-sxm", "auto", parallel=Parallel(data=4, exchange=DEEPEP)))
    assert "which has no experts" in dense.status


def test_kernels_of_one_nvlink_domain_do_not_go_beyond_it():
    within, beyond = (Parallel(1, 1, ranks, ranks, exchange=NVLINK) for ranks in (8, 16))
    assert build(ReplicaSpec("qwen3-30b-a3b", "b200-sxm", "auto", parallel=within)).status == "ok"
    assert build(ReplicaSpec("qwen3-30b-a3b", "gb200", "auto", parallel=beyond)).status == "ok"
    found = build(ReplicaSpec("qwen3-30b-a3b", "b200-sxm", "auto", parallel=beyond))
    assert found.status == (
        "infeasible: expert_exchange nvlink among 16 devices, of which 8 b200-sxm are in one nvlink domain: these "
        "kernels send nothing beyond it; use deepep"
    )


def test_figures_of_a_file_are_of_the_link_and_those_of_a_set_stay():
    calibration, figures = load_calibration("auto", "h100-sxm"), exchange_figures(DEEPEP, load_hardware("h100-sxm"))
    found = with_exchange(calibration, figures).efficiencies["combine"].devices[8]
    (stated,) = (group for size, group in figures.combine if size == 8)
    assert found.bandwidth_efficiency * calibration.link_efficiency == pytest.approx(stated.bandwidth_efficiency)
    assert found.far_efficiency * calibration.link_efficiency == pytest.approx(stated.far_efficiency)
    own = with_exchange(calibration, figures)
    assert (
        with_exchange(own, exchange_figures(DEEPEP_LOW_LATENCY, load_hardware("h100-sxm"))).efficiencies
        == own.efficiencies
    )


GOOD = """
name: deepep
devices:
  h100-sxm:
    dispatch: {8: {launch_s: 20us, bandwidth_efficiency: 0.5}}
    combine: {8: {launch_s: 20us, bandwidth_efficiency: 1}}
across_nodes: {dispatch: 0.9, combine: 0.9}
sources: {devices: mine, across_nodes: mine}
"""


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("h100-sxm:", "h100:", "devices.h100: no such device; did you mean"),
        ("dispatch: {8: {launch_s: 20us, bandwidth_efficiency: 0.5}}", "dispatch: {}", "expected figures by number"),
        ("dispatch: {8:", "dispatch: {1:", "1 is no number of devices (2 or more)"),
        ("{dispatch: 0.9, combine: 0.9}", "{dispatch: 0.9, combine: 1.9}", "across_nodes.combine"),
        (", across_nodes: mine}", "}", "across_nodes"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_it_should_be(tmp_path, monkeypatch, was, now, message):
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    file = tmp_path / "models" / "exchanges" / "deepep.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(GOOD.replace(was, now))
    with pytest.raises(InputError, match=re.escape(message)):
        exchange_figures(DEEPEP, load_hardware("h100-sxm"))
