"""Layouts that are enumerated under a budget."""

from __future__ import annotations

import json

import pytest

import evaluator
from evaluator.catalog import load_hardware, load_model
from evaluator.errors import InputError
from evaluator.search.designs import designs_of
from evaluator.search.layouts import KEPT, KEYS, layouts, short
from evaluator.search.run import layout_of
from evaluator.search.start import Starts
from tests.search.build import axes, scenario

BIG = "deployment.model=llama-3.1-405b"  # 812 GB of weights: eight H200, or sixteen H100
H200 = "deployment.hardware=h200-sxm"
POOLS = "deployment.pools=" + json.dumps({"p": {"role": "prefill"}, "d": {"role": "decode"}})


def listed(model, hardware, devices):
    return [short(layout) for layout in layouts([load_model(model)], [load_hardware(hardware)], devices)]


def test_layouts_of_dense_models_and_of_experts():
    assert listed("llama-3.1-70b", "h100-sxm", 16) == ["tp1", "tp2", "tp4", "tp8", "tp8 pp2"]
    assert listed("llama-3.1-70b", "h100-sxm", 3) == ["tp1", "tp2"]
    assert listed("qwen3-30b-a3b", "h100-sxm", 4) == [
        "tp1", "dp2 ep2", "tp2", "tp2 ep2", "dp4 ep4", "tp2 dp2 ep4", "tp4", "tp4 ep4",
    ]  # fmt: skip
    assert listed("llama-3.1-8b", "l4", 1) == ["tp1"]


def test_none_is_there_twice_and_all_are_within_the_devices():
    for devices in (1, 2, 7, 8, 16, 72):
        found = layouts([load_model("deepseek-v3")], [load_hardware("h200-sxm")], devices)
        assert len({tuple(layout.values()) for layout in found}) == len(found)
        for layout in found:
            tensor, pipeline, data, expert = (layout[key] for key in KEYS)
            assert tensor * pipeline * data <= devices and expert in (1, tensor * data)


def test_what_does_not_fit_is_left_out():
    designs = designs_of(scenario(BIG, H200, budget={"devices": 16, "fill": True, "layouts": True}), "iteration")
    assert [layout_of(ladder[0]) for ladder in designs.ladders] == ["2 x tp8", "1 x tp8 pp2"]
    assert designs.note.startswith("layouts that fit: 2 of 5.")


def test_pools_get_every_layout_and_split_and_what_promises_little_is_pruned():
    budget = {"devices": 24, "fill": True, "layouts": True}
    designs = designs_of(scenario(BIG, H200, POOLS, budget=budget), "iteration")
    starts = Starts(designs.plan)
    promises = [starts.rate(ladder[0]) for ladder in designs.ladders]
    assert min(promises) >= KEPT * max(promises)
    found = {layout_of(ladder[0]) for ladder in designs.ladders}
    assert "p 2 x tp8, d 1 x tp8" in found and "p 1 x tp8, d 1 x tp8" not in found  # which has room for another
    assert "layouts that fit" in designs.note


def test_a_layout_of_one_pool_that_is_said_stays():
    pools = {"p": {"role": "prefill", "tensor_parallel": 4}, "d": {"role": "decode"}}
    said = scenario("deployment.pools=" + json.dumps(pools), budget={"devices": 16, "fill": True, "layouts": True})
    assert {ladder[0].stations[0].deployment.tensor_parallel for ladder in designs_of(said, "iteration").ladders} == {4}


def test_swept_hardware_and_models_are_all_laid_out():
    sweep = axes(deployment__model=["llama-3.1-8b", "qwen3-30b-a3b"])
    designs = designs_of(scenario(sweep=sweep, budget={"devices": 2, "fill": True, "layouts": True}), "iteration")
    assert {layout_of(ladder[0]) for ladder in designs.ladders} >= {"2 x tp1", "1 x tp2", "1 x tp1 dp2 ep2"}


def test_the_best_layout_is_found_and_told():
    ds = evaluator.optimize(scenario(budget={"devices": 2, "fill": True, "layouts": True}), bracket=0.1)
    assert sorted(ds["pool_layout"].values.tolist()) == ["1 x tp2", "2 x tp1"]
    assert ds.attrs["search_note"].startswith("layouts that fit: 2 of 2.")


def test_the_fewest_devices_for_a_rate_over_all_layouts():
    asked = scenario("deployment.model=llama-3.1-70b", budget={"devices": 32, "layouts": True})
    ds = evaluator.optimize(asked, rate_rps=6.0)
    assert ds["pool_layout"].values.tolist() == ["3 x tp2", "2 x tp4", "2 x tp8"]


@pytest.mark.parametrize(
    ("sets", "sections", "message"),
    [
        ([], {"budget": {"layouts": True}}, r"budget\.layouts: needs a bound on the devices"),
        (["deployment.tensor_parallel=2"], {"budget": {"devices": 4, "layouts": True}}, "tensor_parallel is said"),
        (
            [],
            {"budget": {"devices": 4, "layouts": True}, "sweep": axes(deployment__tensor_parallel=[1, 2])},
            "tensor_parallel is said",
        ),
        ([BIG], {"budget": {"devices": 1, "layouts": True}}, r"no layout can run on the devices of the budget, e\.g\."),
    ],
)
def test_what_cannot_be_laid_out_is_said(sets, sections, message):
    with pytest.raises(InputError, match=message):
        evaluator.optimize(scenario(*sets, **sections))
